"""The options of the command line, and what can be checked about them without torch."""

import os
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any, NoReturn

from specdemo.events import LISTED, METHODS, PARAMETERS, RULES, Params
from specdemo.events.params import DEEPEST_TREE, MOST_NODES, DraftTree, described, read_number
from specdemo.loading.catalog import DTYPES, QUANTIZE, WORKS
from specdemo.words.catalogue import LANGUAGES
from specdemo.words.message import about, harmless

ALL = "all"  # of bench --methods
# The fields of Params that bench has options for.
OF_BENCH = ("gamma", "confidence", "exit_layer", "rule", "temperature", "top_k", "top_p", "min_p", "seed")
OF_BENCH += ("max_new_tokens", "ngram", "lenience")
BENCH_DEFAULTS = Params(temperature=0.0, max_new_tokens=128, seed=0)
ADVISE_DEFAULTS = Params(temperature=0.0, max_new_tokens=96, seed=0, alternatives=0)
SHORTEST_BUDGET, LONGEST_BUDGET = 10.0, 86_400.0  # seconds
UNITS = {"s": 1, "m": 60, "h": 3600}  # seconds


class Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, harmless(f"{self.prog.split()[0]}: {message}\n"))


def parser() -> Parser:
    parser = Parser(
        prog="specdemo",
        description="Speculative decoding that shows every accepted and rejected token, and why.",
    )
    commands = parser.add_subparsers(required=True, dest="command")
    generate = commands.add_parser("generate", help="continue a prompt; the text goes to standard output")
    generate.add_argument("prompt", metavar="PROMPT")
    about = "save the run's trace as JSON; - writes it to standard output instead of the text"
    generate.add_argument("--trace", metavar="FILE", help=about)
    add_pair_options(generate)
    add_server_options(generate, several=False)
    _add_params_options(generate, Params())
    about = "compare this engine with transformers, side by side"
    _add_bench_options(commands.add_parser("bench", help=about))
    about = "find which drafter and draft length pay for your work, or that none does"
    _add_advise_options(commands.add_parser("advise", help=about))
    commands.add_parser("pairs", help="list the pairs that have a name, and what each needs")
    export = commands.add_parser("export", help="write the recorded runs and exercises as files for a class")
    export.add_argument("folder", metavar="DIR")
    export.add_argument("--language", choices=list(LANGUAGES), default="en", help="of the files (default en)")
    doctor = commands.add_parser("doctor", help="find out what works on this machine's GPU")
    about = "only these, for example versions,parity"
    doctor.add_argument("--sections", type=_names, metavar="NAME,NAME", help=about)
    return parser


def add_pair_options(parser: ArgumentParser, several: bool = False) -> None:
    """several: whether there can be several drafters, which have an option of their own."""
    kinds = f"none, {', '.join(QUANTIZE)}; on CUDA not all of them (see pairs)"
    target = "a hub id (ID or ID@REVISION) or a directory, instead of --pair"
    drafter = "the same for the drafter: a model, or a speculator, which names the target that it needs"
    add = parser.add_argument
    add("--pair", metavar="NAME", help="a pair from the catalogue (default: the embedded one)")
    add("--target", metavar="ID_OR_DIR", help=target)
    add("--drafter", metavar="ID_OR_DIR", help=SUPPRESS if several else drafter)
    add("--device", help="cpu, cuda or cuda:N (default: cuda if there is one)")
    add("--dtype", help=f"auto, {', '.join(DTYPES)} (default auto)")
    add("--quantize", metavar="KIND", help=f"quantise the target's weights: {kinds}")
    add("--quantize-drafter", metavar="KIND", help="quantise the drafter's weights")


def add_server_options(parser: ArgumentParser, several: bool) -> None:
    more, action = ("; can be given more than once", "append") if several else ("", "store")
    url = f"a running server as the engine (vLLM or llama.cpp), like http://host:8000{more}"
    key = "the environment variable that has the key (--api-key) of the server, or of all given ones"
    parser.add_argument("--server", "--vllm", metavar="URL", action=action, help=url)
    parser.add_argument("--server-key-from-env", "--vllm-key-from-env", metavar="NAME", help=key)


def server_key(arguments: Namespace) -> str | None:
    """The key of the server, or of all servers."""
    name = arguments.server_key_from_env
    if name is None:
        return None
    if not arguments.server:
        raise ValueError("server_key_from_env is for a server, so it needs --server")
    if not (key := os.environ.get(name)):
        unset = "must name an environment variable that is set"
        raise ValueError(f"server_key_from_env {unset}, not {ascii(name)[:60]}")
    return key


def pair_request(arguments: Namespace) -> dict[str, Any]:
    """The arguments for `load_pair`."""
    if arguments.pair is not None and (arguments.target is not None or arguments.drafter is not None):
        raise ValueError("pair: give --pair or --target with --drafter, not both")
    same = ("target", "drafter", "device", "dtype")
    kinds = {"target": arguments.quantize, "drafter": arguments.quantize_drafter}
    return {"name": arguments.pair, "quantize": kinds} | {name: getattr(arguments, name) for name in same}


def _add_params_options(parser: ArgumentParser, defaults: Params, leave_out: Collection[str] = ()) -> None:
    """Adds one option for each field of Params. Values are passed to Params unchecked, so that its own
    sentence rejects them."""
    for name, row in PARAMETERS.items():
        if name in leave_out:
            continue
        default = getattr(defaults, name)
        usual = (row.none_is or "empty") if default in (None, ()) else default
        if isinstance(default, bool):
            how: dict[str, Any] = {"action": "store_true", "help": described(name)}
        elif row.codec.join:
            text = f"{described(name)}; can be given more than once (default {usual})"
            how = {"action": "append", "metavar": row.codec.form, "help": text}
        else:
            text = f"{described(name)} (default {usual})"
            how = {"default": default, "type": row.codec.read, "metavar": row.codec.form, "help": text}
        parser.add_argument(f"--{name.replace('_', '-')}", **how)


def params_from_arguments(arguments: Namespace) -> Params:
    given = {
        name: value for name, value in vars(arguments).items() if name in PARAMETERS and value is not None
    }
    parts = {
        name: PARAMETERS[name].codec.join(value) for name, value in given.items() if isinstance(value, list)
    }
    return Params(**given | parts)


def _add_bench_options(parser: ArgumentParser) -> None:
    add_pair_options(parser)
    _add_params_options(parser, BENCH_DEFAULTS, PARAMETERS.keys() - OF_BENCH)
    add = parser.add_argument
    count = _whole(1, 1000)
    add("--prompts", type=count, default=6, help="how many prompts (default 6)")
    add("--repeats", type=count, default=3, help="how often each prompt is run (default 3)")
    prompt_tokens = "all prompts have so many tokens (default: as long as they are)"
    add("--prompt-tokens", type=_whole(2, 1_000_000), metavar="N", help=prompt_tokens)
    methods = f"a table of drafters instead, from {','.join(LISTED)}, or {ALL} that the pair can have"
    methods += "; none is always measured, because the speed-ups divide by it"
    trees = "with --methods: trees to measure beside the chains, like 2,1 2,1,1,1 auto"
    add("--methods", type=_names, metavar="NAME,NAME", help=methods)
    add("--trees", type=_tree, nargs="+", default=[], metavar="N,N", help=trees)


def _add_advise_options(parser: ArgumentParser) -> None:
    add_pair_options(parser, several=True)
    _add_params_options(parser, ADVISE_DEFAULTS, ["draft_with", "gamma", "alternatives", "tree"])
    add = parser.add_argument
    drafters = f"hub ids or directories of drafters, and methods that need none; {ALL}: whatever is at hand"
    prompts = "your own prompts: one a line, or JSON lines with prompt or messages"
    work = "prompts that come with the project, by kind of work, also by SPEED-Bench's names"
    budget = "the most time that it may take, like 90s, 5m or 1h (default 5m)"
    add("--drafters", nargs="+", default=[ALL], metavar="ID_OR_DIR", help=f"{drafters} (default {ALL})")
    add("--prompts", metavar="FILE", help=prompts)
    add("--work", type=_names, metavar="KIND,KIND", help=f"{work} (default {','.join(WORKS)})")
    add("--budget", type=_seconds, default=300.0, metavar="TIME", help=budget)
    add("--report", metavar="FILE.html", help="save a page with what was measured")


def check_advise_options(arguments: Namespace) -> None:
    """ValueError for options that do not go together."""
    if arguments.drafter is not None:
        raise ValueError("drafter: give --drafters here")
    if arguments.quantize_drafter is not None:
        raise ValueError(about("quantize_drafter", "advice_drafters_weights"))
    if arguments.prompts is not None and arguments.work is not None:
        raise ValueError("prompts: give --prompts or --work, not both")


def _seconds(text: str) -> float:
    """A type for argparse: "90s", "5m", "1h", or seconds."""
    unit = UNITS.get(text[-1:])
    number = read_number(text[:-1] if unit else text)
    seconds = number * (unit or 1) if not isinstance(number, str) else 0.0
    if not SHORTEST_BUDGET <= seconds <= LONGEST_BUDGET:
        raise ArgumentTypeError(f"must be a time from 10s to 24h, like 90s, 5m or 1h, not {ascii(text)}")
    return float(seconds)


def check_bench_options(arguments: Namespace) -> None:
    """Raises ValueError for options that do not go together, and for an unknown method."""
    if arguments.methods is not None:
        for method in arguments.methods if arguments.methods != [ALL] else ():
            if method not in METHODS:
                names = f"{', '.join(LISTED)}, separated by commas, or {ALL}"
                raise ValueError(f"methods must be some of {names}, not {ascii(method)}")
        if arguments.prompt_tokens is not None:
            raise ValueError("methods: give --methods or --prompt-tokens, not both")
    elif arguments.gamma == "auto":
        raise ValueError("gamma must be a whole number here: auto goes with --methods")
    elif arguments.rule in RULES and not RULES[arguments.rule].lossless:
        raise ValueError("rule must be a lossless one here, since transformers has no other: use --methods")
    elif arguments.confidence:
        raise ValueError("confidence must be 0 here, since transformers drafts gamma tokens: use --methods")
    if arguments.trees and arguments.methods is None:
        raise ValueError("trees are rows of the table of --methods, so they need --methods")


def _names(text: str) -> list[str]:
    return list(dict.fromkeys(text.split(",")))


def _tree(text: str) -> DraftTree:
    """A type for argparse: "2,1" and "auto", as Params has them."""
    with suppress(ValueError):
        if tree := Params(tree=text).tree:
            return tree
    numbers = f"at most {DEEPEST_TREE} whole numbers from 1, like 3,2,1, of at most {MOST_NODES} tokens"
    raise ArgumentTypeError(f"must be auto or {numbers}, not {ascii(text)}")


def _whole(low: int, high: int) -> Callable[[str], int]:
    """A type for argparse."""

    def whole(text: str) -> int:
        if not text.isdecimal() or len(text) > 9 or not low <= int(text) <= high:
            raise ArgumentTypeError(f"must be a whole number from {low:,} to {high:,}, not {text!r}")
        return int(text)

    return whole
