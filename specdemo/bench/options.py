"""What the command line asks of a benchmark, checked before anything loads."""

from argparse import Namespace

from specdemo.bench.prompts import Prompts
from specdemo.bench.shapes import SHAPES, shaped_pair
from specdemo.loading.pair import Pair
from specdemo.loading.request import DTYPES, resolve

PAIR_OPTIONS = ("pair", "target", "drafter", "quantize", "quantize_drafter", "quantize_sweep")


def check(arguments: Namespace) -> None:
    """ValueError (PairError for an unknown kind of weights) for what does not go together."""
    if arguments.shapes is None and arguments.accept is not None:
        raise ValueError("accept is what --shapes builds in, so it needs --shapes")
    if arguments.shapes is not None:
        if arguments.shapes not in SHAPES:
            raise ValueError(f"shapes must be one of {', '.join(SHAPES)}, not {ascii(arguments.shapes)}")
        if others := [name for name in PAIR_OPTIONS if getattr(arguments, name) is not None]:
            raise ValueError(f"shapes: give --shapes or --{others[0].replace('_', '-')}, not both")
        if arguments.temperature != 0:
            raise ValueError(
                f"temperature must be 0 with --shapes, whose acceptance is known for greedy only, not {arguments.temperature}"
            )
    if arguments.quantize_sweep is not None and (
        arguments.quantize is not None or arguments.quantize_drafter is not None
    ):
        raise ValueError("quantize: give --quantize and --quantize-drafter or --quantize-sweep, not both")
    for kind in kinds(arguments):
        resolve(None, quantize=kind)


def kinds(arguments: Namespace) -> list[str]:
    """Of weights to sweep over, each once."""
    return (
        list(dict.fromkeys(arguments.quantize_sweep.split(",")))
        if arguments.quantize_sweep is not None
        else []
    )


def shapes(arguments: Namespace) -> tuple[Pair, dict, Prompts]:
    """The pair, what is to be told of it, and where its prompts come from."""
    asked = resolve(None, device=arguments.device, dtype=arguments.dtype).parts[0]
    dtype = asked.dtype or DTYPES["float32" if asked.device == "cpu" else "bfloat16"]
    accept = 0.8 if arguments.accept is None else arguments.accept
    pair, follows = shaped_pair(arguments.shapes, asked.device, dtype, accept, arguments.seed)
    return pair, {"name": arguments.shapes, "accept": accept, "cycle": len(follows.order)}, follows.prompts
