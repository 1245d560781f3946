"""python -m specdemo: generate, bench, pairs. One sentence on standard error for what goes wrong; exit status 2 when the
request was wrong, 1 when it failed."""

import argparse
import json
import os
import sys
from dataclasses import MISSING, asdict, fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from specdemo.cli.terminal import Printer, summary
from specdemo.events import DRAFT_WITH, LIMITS, RULES, Params, Round, allowed

if TYPE_CHECKING:
    from specdemo.bench.results import Result

WRONG, FAILED, INTERRUPTED = 2, 1, 130


class Failure(Exception):
    """The request was right, but something outside of it failed; one sentence says what."""


class Parser(argparse.ArgumentParser):
    def error(self, message):
        self.exit(WRONG, f"{self.prog}: {message}\n")


def main(argv: list[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    if sys.stdout is None:
        return _say("standard output is closed, so there is nowhere to write to", WRONG)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8")  # whatever the locale says, text comes out as it was generated
    # Torch and transformers take seconds to import; nobody should wait for them to be told of a typing error.
    return run(arguments.command, arguments)


def run(command, arguments: argparse.Namespace) -> int:
    """Calls command(arguments) -> exit status; its failures become one sentence and an exit status."""
    from transformers.utils import logging

    from specdemo.loading.errors import LoadError, PairError, redacted

    if "TRANSFORMERS_VERBOSITY" not in os.environ:
        logging.set_verbosity_error()  # what a user should know is said in our words
    try:
        return command(arguments)
    except (Failure, LoadError) as error:
        return _say(error, FAILED)
    except (PairError, ValueError) as error:
        return _say(error, WRONG)
    except KeyboardInterrupt:
        return _say("interrupted", INTERRUPTED)
    except BrokenPipeError:  # whoever read standard output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:
        return _say(redacted(f"failed: {type(error).__name__}: {' '.join(str(error).split())}"), FAILED)


def _say(message: object, status: int = 0) -> int:
    print(f"specdemo: {message}", file=sys.stderr)
    return status


def parser() -> Parser:
    parser = Parser(
        prog="specdemo",
        description="Speculative decoding that shows every accepted and rejected token, and why.",
    )
    commands = parser.add_subparsers(required=True, metavar="generate | bench | pairs")

    generate = commands.add_parser("generate", help="continue a prompt; the text goes to standard output")
    generate.add_argument("prompt", metavar="PROMPT")
    generate.add_argument(
        "--trace",
        metavar="FILE",
        help="save the run as JSON; - writes it to standard output instead of the text",
    )
    add_pair_options(generate)
    add_params_options(generate)
    generate.set_defaults(command=_generate)

    bench = commands.add_parser(
        "bench", help="transformers plain and assisted beside this engine, in one run"
    )
    add_pair_options(bench)
    add_params_options(
        bench, leave_out={"draft_with", "stop", "ignore_eos", "chat", "system", "alternatives"}
    )
    bench.add_argument("--prompts", type=_count, default=6, help="how many prompts (default 6)")
    bench.add_argument("--repeats", type=_count, default=3, help="how often each is run (default 3)")
    bench.add_argument(
        "--peers",
        action="store_true",
        help="also transformers compiled, and this engine without captured steps",
    )
    bench.add_argument(
        "--shapes",
        metavar="NAME",
        help="random weights instead of a pair: llama-3.2-3b-1b, qwen3-8b-0.6b, llama-3.1-8b-1b, tiny",
    )
    bench.add_argument(
        "--accept", type=_share, metavar="P", help="the acceptance rate that --shapes builds in (default 0.8)"
    )
    bench.add_argument(
        "--gammas", type=_numbers(1, 16), default=[], metavar="N,N", help="sweep over gamma, like 1,2,4,8"
    )
    bench.add_argument(
        "--contexts",
        type=_numbers(2, 1_000_000),
        default=[],
        metavar="N,N",
        help="sweep over the prompt's length, like 256,1024",
    )
    bench.add_argument(
        "--quantize-sweep",
        metavar="KIND,KIND",
        help="the pair again for each of these, like none,int8,int4,float8",
    )
    bench.add_argument("--plot", metavar="FILE", help="draw the result: a .png or .svg file")
    bench.set_defaults(command=_bench, temperature=0.0, max_new_tokens=128, seed=0)

    pairs = commands.add_parser("pairs", help="the pairs that are known by name")
    pairs.set_defaults(command=_pairs)
    return parser


def add_pair_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--pair", metavar="NAME", help="a pair from the catalogue (default: the embedded one)"
    )
    parser.add_argument("--target", metavar="ID_OR_DIR", help="a hub id or a directory, instead of --pair")
    parser.add_argument("--drafter", metavar="ID_OR_DIR", help="the same for the drafter")
    parser.add_argument("--device", help="cpu, cuda or cuda:N (default: cuda where there is one)")
    parser.add_argument("--dtype", help="auto, float32, bfloat16 or float16 (default auto)")
    parser.add_argument(
        "--quantize", metavar="KIND", help="the target's weights: none, int8, int4, int2 or float8"
    )
    parser.add_argument("--quantize-drafter", metavar="KIND", help="the same for the drafter's")


def add_params_options(parser: argparse.ArgumentParser, leave_out: set[str] = frozenset()) -> None:
    """One option per field of Params. Values are handed to Params as they are, so that its own sentence refuses them."""
    choices = {"draft_with": DRAFT_WITH, "rule": RULES}
    for field in fields(Params):
        if field.name in leave_out:
            continue
        option = "--" + field.name.replace("_", "-")
        default = None if field.default is MISSING else field.default
        if isinstance(default, bool):
            parser.add_argument(option, action="store_true", help=f"(default: {str(default).lower()})")
        elif field.name == "stop":
            parser.add_argument(
                option,
                action="append",
                default=[],
                metavar="TEXT",
                help="end before this text; can be given again",
            )
        elif field.name in LIMITS:
            parser.add_argument(
                option,
                type=_number,
                default=default,
                metavar="N",
                help=f"{allowed(field.name)} (default {default})",
            )
        else:
            says = ", ".join(choices[field.name]) if field.name in choices else "a system prompt for --chat"
            parser.add_argument(option, default=default, help=f"{says} (default {default})")


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1000:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 to 1000, not {text!r}")
    return int(text)


def _numbers(low: int, high: int):
    """A type for argparse: "1,2,4" -> [1, 2, 4], in order, each once."""

    def numbers(text: str) -> list[int]:
        parts = [part.strip() for part in text.split(",")]
        if not all(
            part.isascii() and part.isdecimal() and len(part) < 10 and low <= int(part) <= high
            for part in parts
        ):
            raise argparse.ArgumentTypeError(
                f"must be whole numbers from {low:,} to {high:,} with commas between, not {ascii(text)}"
            )
        return sorted({int(part) for part in parts})

    return numbers


def _share(text: str) -> float:
    value = _number(text)
    if isinstance(value, str) or not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"must be a number from 0 to 1, not {ascii(text)}")
    return float(value)


def params_of(arguments: argparse.Namespace) -> Params:
    given = vars(arguments)
    return Params(**{field.name: given[field.name] for field in fields(Params) if field.name in given})


def pair_request(arguments: argparse.Namespace) -> dict:
    """The arguments for `load_pair`."""
    from specdemo.loading.errors import PairError

    if arguments.pair is not None and (arguments.target is not None or arguments.drafter is not None):
        raise PairError("pair: give --pair or --target with --drafter, not both")
    return {
        "name": arguments.pair,
        "target": arguments.target,
        "drafter": arguments.drafter,
        "device": arguments.device,
        "dtype": arguments.dtype,
        "quantize": {"target": arguments.quantize, "drafter": arguments.quantize_drafter},
    }


def _load(arguments: argparse.Namespace):
    from specdemo.loading.load import load_pair

    pair = load_pair(**pair_request(arguments))
    held = pair.bytes_held
    sizes = f"target {held.target / 1e6:,.0f} MB" + (
        f", drafter {held.drafter / 1e6:,.0f} MB" if held.drafter else ""
    )
    _say(f"{pair.info.name} on {pair.info.device} ({pair.info.device_name}), {sizes}; {pair.dtype_reason}")
    for note in pair.notes:
        _say(note)
    return pair


def _generate(arguments: argparse.Namespace) -> int:
    params = params_of(arguments)
    if arguments.trace not in (None, "-"):
        _check_writable("trace", arguments.trace)
    from specdemo.session import stream

    pair = _load(arguments)
    told = pair.notes
    printer = None if arguments.trace == "-" else Printer(params.stop, sys.stdout, sys.stderr)
    with stream(pair, arguments.prompt, params) as run:
        try:
            for event in run:
                if printer and isinstance(event, Round):
                    printer.round(event)
        finally:  # an interrupted run is a run too
            run.close()
            if printer:
                printer.finish(run.trace.text)
            if arguments.trace == "-":
                sys.stdout.write(run.trace.to_json() + "\n")
            elif arguments.trace is not None:
                _save(run.trace, arguments.trace)
            for note in pair.notes:  # what has turned out while it ran
                if note not in told:
                    _say(note)
            _say(summary(run.trace.stats, run.trace.finish, run.trace.params.seed))
    return 0


def _check_writable(option: str, file: str) -> None:
    """Before the models load, so that no finished run is lost to a mistyped path."""
    path = Path(file)
    if path.is_dir():
        raise ValueError(f"{option} must be a file, but {file} is a directory")
    if not path.parent.is_dir():
        raise ValueError(f"{option} cannot be saved: there is no directory {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ValueError(f"{option} cannot be saved: no permission to write {file}")


def _save(trace, file: str) -> None:
    try:
        trace.save(file)
    except OSError as error:
        raise Failure(f"the trace could not be saved to {file}: {error.strerror}") from None


def _bench(arguments: argparse.Namespace) -> int:
    params = params_of(arguments)
    if arguments.plot is not None:
        _check_plot(arguments.plot)
    from specdemo.bench import options
    from specdemo.bench.report import quantized_table, table
    from specdemo.bench.run import bench
    from specdemo.bench.sweeps import quantize_sweep
    from specdemo.loading.load import load_pair

    options.check(arguments)
    wanted = {"peers": arguments.peers, "gammas": arguments.gammas, "contexts": arguments.contexts}
    if arguments.shapes is not None:
        pair, shapes, prompts_of = options.shapes(arguments)
        result = bench(pair, params, arguments.prompts, arguments.repeats, prompts_of=prompts_of, **wanted)
        result = replace(result, pair=f"shapes {arguments.shapes}", shapes=shapes)
    else:
        pair = _load(arguments)
        result = bench(pair, params, arguments.prompts, arguments.repeats, **wanted)
    print(table(result))
    if kinds := options.kinds(arguments):
        del pair  # its memory is wanted
        request = pair_request(arguments)
        rows = quantize_sweep(
            lambda kind: load_pair(**request | {"quantize": kind}),
            params,
            arguments.prompts,
            arguments.repeats,
            kinds,
        )
        print("\n" + quantized_table(rows))
        result = replace(result, quantized=rows)
    if arguments.plot is not None:
        _draw(result, arguments.plot)
    print(json.dumps(asdict(result)))
    return 0


def _check_plot(file: str) -> None:
    if Path(file).suffix.lower() not in (".png", ".svg"):
        raise ValueError(f"plot must be a file that ends in .png or .svg, not {file}")
    _check_writable("plot", file)
    if find_spec("matplotlib") is None:
        raise Failure("plot needs matplotlib, which is not installed: pip install matplotlib")


def _draw(result: "Result", file: str) -> None:
    from specdemo.bench.picture import draw

    try:
        draw(result).savefig(file)
    except OSError as error:
        raise Failure(f"the plot could not be saved to {file}: {error.strerror}") from None


def _pairs(arguments: argparse.Namespace) -> int:
    from specdemo.loading.catalog import CATALOGUE

    for entry in CATALOGUE.values():
        gated = "; gated: accept the terms on the hub and set HF_TOKEN" if entry.gated else ""
        print(f"{entry.name:<14} {entry.target} + {entry.drafter}")
        print(f"{'':<14} {entry.about}; {entry.gigabytes:g} GB in bfloat16{gated}; tried: {entry.tried}")
    return 0
