"""Chooses and records the run that the page plays first (assets/traces/first.json).

python -m tests.first_run          chooses a seed, and records its run
python -m tests.first_run SEED     only records it again

The page's first prompt is run with each of SEEDS, with everything else as the page has it at first. The
texts that meet every criterion of TEXT are printed, and the first is chosen. It is recorded as the other runs
are (tests/recorded_runs.py), and kept if it meets the criteria of TIMES.
"""

import re
import sys
from collections.abc import Callable, Iterator
from datetime import date

from specdemo import generate, load_pair
from specdemo.events import Params, Round
from specdemo.events.trace import Trace
from specdemo.loading.pair import AnyPair
from specdemo.ui.page.page import RECORDED, STORY
from specdemo.ui.view.settings import FIRST, params_from_controls
from tests.recorded_runs import record, save

SEEDS = range(200)
PHRASE = 4  # words; no sequence of so many occurs twice
BEGINNING = 40  # tokens

Criteria = dict[str, Callable[[Trace], bool]]
TEXT: Criteria = {
    "accepted near 75 %": lambda run: 0.72 <= run.stats.acceptance_rate <= 0.78,
    "of 90 to 150 tokens": lambda run: 90 <= run.stats.tokens <= 150,
    "ended by the model": lambda run: run.finish == "eos",
    "ended with a sentence": lambda run: run.text.endswith((".", "!", "?", '"')),
    "without a phrase twice": lambda run: len(phrases := phrases_of(run)) == len(set(phrases)),
    "of printable characters": lambda run: run.text.replace("\n", "").isprintable(),
    "with quotation marks in pairs": lambda run: run.text.count('"') % 2 == 0,
    "with a rejection and a bonus in its beginning": lambda run: (
        {"resampled", "bonus"} <= {one.next.source for one in beginning(run) if one.next}
    ),
    "without three rounds in a row of one token each": lambda run: (
        "111" not in "".join(str(len(one.emitted)) for one in run.rounds)
    ),
}
TIMES: Criteria = {
    "about twice as fast": lambda run: 1.8 <= run.stats.speedup <= 2.3,
    "faster for sure": lambda run: run.stats.speedup_interval[0] > 1,
    "undisturbed": lambda run: (
        is_within(1.25, run.stats.speedup_interval) and is_within(1.5, run.stats.target_step_spread)
    ),
}


def phrases_of(run: Trace) -> list[tuple[str, ...]]:
    words = re.findall(r"[\w']+", (run.prompt + run.text).lower())
    return [tuple(words[at : at + PHRASE]) for at in range(len(words) - PHRASE + 1)]


def beginning(run: Trace) -> Iterator[Round]:
    """The rounds that are complete within the first tokens."""
    tokens = 0
    for one in run.rounds:
        tokens += len(one.emitted)
        if tokens > BEGINNING:
            return
        yield one


def is_within(factor: float, ends: tuple[float, float]) -> bool:
    low, high = ends
    return high <= factor * low


def unmet(run: Trace, criteria: Criteria) -> list[str]:
    return [name for name, is_met in criteria.items() if not is_met(run)]


def first_example(seed: int) -> tuple[str, Params]:
    """What the page runs where nothing but the seed is set."""
    return STORY, params_from_controls(FIRST | {"seed": str(seed)})


def choose(pair: AnyPair) -> int:
    """The first seed whose text meets the criteria. Prints all that do."""
    found = []
    for seed in SEEDS:
        run = generate(pair, *first_example(seed), measure=False)
        if not unmet(run, TEXT):
            print(f"seed {seed}: {run.text}\n", flush=True)
            found.append(seed)
    if not found:
        sys.exit("No run meets the criteria of the text.")
    return found[0]


def main(seed: str | None = None) -> None:
    prompt, params = first_example(choose(load_pair()) if seed is None else int(seed))
    run = record("embedded", prompt, params)
    stats = run.stats
    low, high = stats.speedup_interval
    print(
        f"seed {run.params.seed}: {stats.acceptance_rate:.1%} accepted, {stats.mean_tokens_per_round:.2f} "
        f"tokens/round, {stats.speedup:.2f} times as fast ({low:.2f} to {high:.2f})"
    )
    if missed := unmet(run, TEXT | TIMES):
        sys.exit(f"Not saved, since it is not: {', '.join(missed)}.")
    run.date = date.today()
    save(run, RECORDED)


if __name__ == "__main__":
    main(*sys.argv[1:])
