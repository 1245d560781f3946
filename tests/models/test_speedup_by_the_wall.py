"""How good the speed-up of a run and its interval are, on this machine and beside busy processes. Prints the
figures of specdemo/measure/README.md."""

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import pbkdf2_hmac
from statistics import median

import pytest
import torch

from specdemo import Params, generate, load_pair, session, stream
from specdemo.events import Round, Stats
from specdemo.events.speedup import is_wide

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

PROMPT = "One day, a girl named Mia found a tiny kitten in the rain."
RUNS, ENOUGH, TURNS = 40, 36, 20


@contextmanager
def beside(count: int) -> Iterator[None]:
    """Beside so many processes that never rest."""
    spawn = multiprocessing.get_context("spawn")
    endless = ("sha256", b"", b"", 2**31 - 1)
    others = [spawn.Process(target=pbkdf2_hmac, args=endless, daemon=True) for _ in range(count)]
    for other in others:
        other.start()
    try:
        yield
    finally:
        for other in others:
            other.kill()


@pytest.fixture(autouse=True)
def wide_ones_too(monkeypatch):
    """Every interval is looked at, also where no speed-up is claimed."""
    monkeypatch.setattr(session, "claimed", lambda stats: stats)


@pytest.fixture(scope="module")
def pair():
    pair = load_pair()
    for how in ("none", "model"):  # the first runs are slower
        generate(pair, PROMPT, Params(draft_with=how, max_new_tokens=60, seed=1))
    return pair


def hits(what: str, busy: int, runs: list[Stats], true: float) -> int:
    """Prints the figures; returns how many intervals have the true value."""
    read, intervals = [one.speedup for one in runs], [one.speedup_interval for one in runs]
    hit = sum(low <= true <= high for low, high in intervals)
    ratio = median(high / low for low, high in intervals)
    print(
        f"\n{what}, {torch.get_num_threads()} threads, beside {busy} busy processes: {hit} of {len(runs)} "
        f"intervals have {true:.3f}; median reading {median(read):.3f} ({min(read):.3f} to {max(read):.3f}), "
        f"median high/low {ratio:.2f}, {sum(map(is_wide, intervals))} claimed by nobody"
    )
    return hit


@pytest.mark.parametrize("busy", [0, 1, 8])
def test_runs_read_what_whole_runs_in_turns_measure_and_plain_ones_read_one(pair, busy):
    """Each text is the same, since the seed is, so there is one true value."""
    plain, drafted, runs, alone = [], [], [], []
    with beside(busy):
        for at in range(TURNS):
            plain.append(by_the_wall(pair, params(120, draft_with="none")))
            drafted.append(by_the_wall(pair, params(120)))
            for again in range(RUNS // TURNS):
                runs.append(generate(pair, PROMPT, params(120)).stats)
                how = params(60 + 7 * at, seed=100 + 2 * at + again, draft_with="none")
                alone.append(generate(pair, PROMPT, how).stats)
    assert hits("gamma 4", busy, runs, sum(plain) / sum(drafted)) >= ENOUGH
    assert hits("plain", busy, alone, 1.0) >= ENOUGH
    assert abs(median(stats.speedup for stats in alone) - 1) <= (0.05 if busy == 8 else 0.02)


def params(tokens: int, **how) -> Params:
    return Params(**{"max_new_tokens": tokens, "ignore_eos": True, "seed": 3, "top_p": 1.0} | how)


def by_the_wall(pair, how: Params) -> float:
    """Seconds of a whole run, without its prefill."""
    with stream(pair, PROMPT, how, measure=False) as run:
        next(run)
        first = None
        for event in run:
            if isinstance(event, Round):
                first = first or (time.perf_counter(), len(event.emitted))
    seconds = time.perf_counter() - first[0]
    return seconds / (len(run.trace.output_ids) - first[1])
