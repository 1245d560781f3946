"""Checks the benchmark's options before anything loads."""

from argparse import Namespace

from specdemo.bench.prompts import Prompts
from specdemo.bench.results import ShapesInfo
from specdemo.bench.shapes import SHAPES, shaped_pair
from specdemo.loading.pair import Pair
from specdemo.loading.request import DTYPES, resolve

PAIR_OPTIONS = ("pair", "target", "drafter", "quantize", "quantize_drafter", "quantize_sweep")


def check(arguments: Namespace) -> None:
    """Raises ValueError (PairError for an unknown kind of weights) for options that do not go together."""
    if arguments.shapes is None and arguments.accept is not None:
        raise ValueError("accept is what --shapes builds in, so it needs --shapes")
    if arguments.shapes is not None:
        if arguments.shapes not in SHAPES:
            raise ValueError(f"shapes must be one of {', '.join(SHAPES)}, not {ascii(arguments.shapes)}")
        if others := [name for name in PAIR_OPTIONS if getattr(arguments, name) is not None]:
            raise ValueError(f"shapes: give --shapes or --{others[0].replace('_', '-')}, not both")
        if arguments.temperature != 0:
            raise ValueError(
                "temperature must be 0 with --shapes, whose acceptance is known for greedy only, "
                f"not {arguments.temperature}"
            )
    quantize = (arguments.quantize, arguments.quantize_drafter)
    if arguments.quantize_sweep is not None and quantize != (None, None):
        raise ValueError("quantize: give --quantize and --quantize-drafter or --quantize-sweep, not both")
    for kind in kinds(arguments):
        resolve(None, quantize=kind)


def kinds(arguments: Namespace) -> list[str]:
    """The kinds of weights to sweep over, each once."""
    return (
        [] if arguments.quantize_sweep is None else list(dict.fromkeys(arguments.quantize_sweep.split(",")))
    )


def shapes(arguments: Namespace) -> tuple[Pair, ShapesInfo, Prompts]:
    """The pair that --shapes asks for, and what makes its prompts."""
    part = resolve(None, device=arguments.device, dtype=arguments.dtype).parts[0]
    dtype = part.dtype or DTYPES["float32" if part.device == "cpu" else "bfloat16"]
    accept = 0.8 if arguments.accept is None else arguments.accept
    pair, bigrams = shaped_pair(arguments.shapes, part.device, dtype, accept, arguments.seed)
    return pair, ShapesInfo(arguments.shapes, accept, len(bigrams.order)), bigrams.prompts
