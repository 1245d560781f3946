"""python -m tests.gpu.soak: random runs, each captured and uncaptured, until something differs or the time is
over. On CUDA the memory that runs are given is often full of NaN, and few graphs are kept."""

import math
import random
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic

import torch

from specdemo import Params, Trace, generate, load_pair
from specdemo.bench.compare import methods_at_hand
from specdemo.events.choices import RULES
from specdemo.loading.pair import Pair

BEGINNING = "Once upon a time there was a fox. "
LENGTHS = (1, 3, 12, 30)  # of a prompt, in beginnings
CONFIDENCES = (0.0, 0.0, 0.4)
POISONED = 2**26  # numbers of 4 bytes
MOST_GRAPHS = 16


@dataclass(frozen=True)
class Soaked:
    runs: int
    difference: str | None  # what differed in the last of them, and with which settings


def soak(
    pair: Pair, beginning: Sequence[int], seconds: float, seed: int, most_runs: float = math.inf
) -> Soaked:
    """Compares the pair with itself uncaptured. beginning: token ids that the prompts are made of."""
    uncaptured, choose = pair.with_capture("off"), random.Random(seed)
    methods, runs, end = methods_at_hand(pair), 0, monotonic() + seconds
    while monotonic() < end and runs < most_runs:
        params, prompt = random_params(choose, methods), [*beginning] * choose.choice(LENGTHS)
        if pair.target.device.type == "cuda" and choose.random() < 0.3:
            torch.full((POISONED,), float("nan"), device=pair.target.device)  # freed at once
        where = f"with a prompt of {len(prompt)} tokens and {params}"
        runs += 1
        try:
            captured = generate(pair, prompt, params, measure=choose.random() < 0.3)
            expected = generate(uncaptured, prompt, params, measure=False)
        except Exception as error:  # the engine's own checks can be what finds a wrong number
            return Soaked(runs, f"a run ended with {type(error).__name__}: {error} ({where})")
        if pair.runner.notes:
            return Soaked(runs, f"{pair.runner.notes[0]} ({where})")
        if told(captured) != told(expected):
            pairs = zip(captured.output_ids, expected.output_ids, strict=False)
            same = next((i for i, (one, other) in enumerate(pairs) if one != other), "the rounds alone")
            return Soaked(runs, f"captured and uncaptured runs differ from token {same} on ({where})")
    return Soaked(runs, None)


def random_params(choose: random.Random, methods: Sequence[str]) -> Params:
    return Params(
        draft_with=choose.choice(methods),
        rule=choose.choice(list(RULES)),
        gamma=choose.choice([1, 2, 4, 8, "auto"]),
        confidence=choose.choice(CONFIDENCES),
        temperature=choose.choice([0.0, 0.7, 1.2]),
        top_k=choose.choice([0, 20]),
        top_p=choose.choice([1.0, 0.9]),
        min_p=choose.choice([0.0, 0.05]),
        repetition_penalty=choose.choice([None, None, 1.2]),
        alternatives=choose.choice([0, 5]),
        max_new_tokens=choose.choice([10, 40, 150]),
        ignore_eos=True,
        seed=choose.randrange(2**31),
    )


def told(trace: Trace) -> tuple:
    return trace.output_ids, [(one.gamma, one.ended_by) for one in trace.rounds]


def options() -> ArgumentParser:
    parser = ArgumentParser(prog="python -m tests.gpu.soak", description=__doc__)
    usual = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--pair", default="embedded", help="a pair from the catalogue (default: embedded)")
    parser.add_argument("--device", default=usual, help=f"default here: {usual}")
    parser.add_argument("--seconds", type=float, default=120.0, help="default 120")
    parser.add_argument("--seed", type=int, default=0, help="of the settings (default 0)")
    return parser


def main(given: Sequence[str] | None = None) -> int:
    arguments = options().parse_args(given)
    pair = load_pair(arguments.pair, device=arguments.device, dtype="float32")
    pair.runner.graphs.most = MOST_GRAPHS
    found = soak(pair, pair.tokenizer(BEGINNING).input_ids, arguments.seconds, arguments.seed)
    graphs = len(pair.runner.graphs.graphs)
    print(f"{found.runs} runs of {arguments.pair} on {arguments.device}, {graphs} graphs kept at the end")
    print(found.difference or "each equal to itself uncaptured")
    return 1 if found.difference or not found.runs else 0


if __name__ == "__main__":
    sys.exit(main())
