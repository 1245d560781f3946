"""The speed-up that a run measures beside itself. Each bound is on a ratio of times of the same run."""

import multiprocessing
from collections.abc import Callable
from dataclasses import replace
from random import Random
from statistics import mean, median

import pytest

from specdemo import Params, Trace, generate, load_pair, stream
from specdemo.bench.compare import Setting, compare
from specdemo.bench.prompts import prompt_sets
from specdemo.engine.drafters import NoDrafter
from specdemo.engine.loop import Decoder
from specdemo.engine.plain import SHARE
from specdemo.events import metrics
from specdemo.events.estimate import estimates
from specdemo.runtime import clock
from specdemo.runtime.lm import CachedLM
from specdemo.runtime.torchscript import TorchScriptLM

PROMPT = "One day, a girl named Mia found a tiny kitten in the rain."
LONG = {"ignore_eos": True, "max_new_tokens": 120, "seed": 3}


@pytest.fixture(scope="module")
def pair():
    return load_pair()


def calm_runs(pair, count: int, prompt: str = PROMPT, **params) -> list[Trace]:
    """Runs that have a speed-up and are not too noisy to show it. Skips the test where the machine is."""
    calm: list[Trace] = []
    for _ in range(4 * count):
        trace = generate(pair, prompt, Params(**LONG | params))
        if trace.stats.speedup is not None and not metrics.is_noisy(trace.stats, trace.rounds):
            calm.append(trace)
        if len(calm) == count:
            return calm
    pytest.skip(f"this machine is too noisy: {len(calm)} of {4 * count} runs could show a speed-up")


def assert_honest(pair) -> None:
    """By the wall clock, so plain decoding may be off by a factor of 2: another program may begin or end
    between a run and what is timed after it. A simulated clock below shows the figures themselves."""
    plain = [trace.stats.speedup for trace in calm_runs(pair, 5, draft_with="none")]
    assert 0.5 < median(plain) < 2, plain
    for trace in calm_runs(pair, 3, draft_with="model"):
        stats = trace.stats
        assert stats.cost_ratio == pytest.approx(stats.draft_ms / stats.drafted / stats.target_step_ms)


def test_plain_decoding_reads_about_one_and_c_is_the_ratio_of_the_runs_own_times(pair):
    assert_honest(pair)


@pytest.fixture
def forwards_take(pair, monkeypatch):
    """forwards_take(target, drafter): from now on a forward takes that many ms on the engine's clock, and
    nothing else takes any. Each is a function that is called for each forward."""
    now = 0.0
    monkeypatch.setattr(clock, "perf_counter", lambda: now)
    each = CachedLM.forward

    def simulate(target: Callable[[], float], drafter: Callable[[], float]) -> None:
        def forward(self, ids, start):
            nonlocal now
            now += (target() if self.model is pair.target else drafter()) / 1000
            return each(self, ids, start)

        monkeypatch.setattr(TorchScriptLM, "forward", forward)

    return simulate


def test_plain_decoding_reads_one_on_a_steady_clock(pair, forwards_take):
    forwards_take(lambda: 10.0, lambda: 2.0)
    stats = generate(pair, PROMPT, Params(**LONG, draft_with="none")).stats
    assert stats.speedup == pytest.approx(1) and stats.target_step_ms == pytest.approx(10)
    assert metrics.speedup_spread(stats) == pytest.approx((1, 1))


def test_c_is_the_ratio_of_the_forwards_on_a_steady_clock(pair, forwards_take):
    forwards_take(lambda: 10.0, lambda: 2.0)
    stats = generate(pair, PROMPT, Params(**LONG, draft_with="model", gamma=4)).stats
    assert stats.target_step_ms == pytest.approx(10) and stats.verify_ms == pytest.approx(10 * stats.rounds)
    # One forward for each draft; the first may feed two tokens.
    assert stats.drafter_step_ms == pytest.approx(2) and stats.cost_ratio == pytest.approx(0.2)
    expected = 10 * stats.tokens / (10 * stats.rounds + 2 * stats.drafted)
    assert stats.speedup == pytest.approx(expected) and stats.speedup > 1


def test_plain_decoding_reads_one_within_its_spread_where_forwards_vary(pair, forwards_take):
    varying = Random(1)
    forwards_take(lambda: 10 * varying.lognormvariate(0, 0.2), lambda: 2.0)
    spreads = []
    for seed in range(10):
        stats = generate(pair, PROMPT, Params(**LONG | {"seed": seed}, draft_with="none")).stats
        spreads.append(metrics.speedup_spread(stats))
    assert all(low <= 1 <= high for low, high in spreads), spreads


def _spin() -> None:
    while True:
        pass


@pytest.mark.slow
def test_the_same_beside_a_busy_neighbour(pair):
    neighbour = multiprocessing.get_context("spawn").Process(target=_spin, daemon=True)
    neighbour.start()
    try:
        assert_honest(pair)
    finally:
        neighbour.kill()


@pytest.mark.slow
def test_the_estimate_agrees_with_measured_draft_lengths(pair, capsys, forwards_take):
    """Estimates from runs with gamma 4, and measured points of other lengths, on the same steady clock."""
    forwards_take(lambda: 10.0, lambda: 2.0)
    gammas, how = (1, 2, 4, 8), Params(**LONG, top_p=1.0)
    prompts = prompt_sets()["stories"][:3]
    settings = [Setting("none", pair, replace(how, draft_with="none"))]
    settings += [Setting(str(gamma), pair, replace(how, gamma=gamma)) for gamma in gammas]
    *_, last = compare(settings, prompts, repeats=1)
    measured = {row.gamma: row for row in last.rows}
    runs = [calm_runs(pair, 1, prompt, top_p=1.0, gamma=4)[0] for prompt in prompts]
    estimated = [estimates(trace.rounds, trace.stats) for trace in runs]
    with capsys.disabled():
        print("\ngamma  tokens/round estimated, measured  speed-up estimated, measured")
        for gamma in gammas:
            tokens = mean(found[gamma].seen_tokens for found in estimated)
            speedup = median(found[gamma].seen_speedup for found in estimated)
            row = measured[gamma]
            print(f"{gamma:>5}  {tokens:9.2f} {row.tokens_per_round:9.2f} {speedup:17.2f} {row.speedup:9.2f}")
            assert tokens == pytest.approx(row.tokens_per_round, rel=0.2)
            assert speedup == pytest.approx(row.speedup, rel=0.35)


def test_it_is_unknown_while_the_run_goes_on_and_after_a_cancelled_one(pair):
    with stream(pair, PROMPT, Params(**LONG)) as run:
        for _ in range(15):
            next(run)
            assert run.trace.stats.target_step_ms is run.trace.stats.speedup is None
            assert run.trace.stats.cost_ratio is None
    assert run.trace.finish == "cancelled" and run.trace.stats.target_step_ms is None
    assert run.trace.stats.drafter_step_ms > 0, "this is the run's own"


def test_plain_rounds_are_spread_over_the_text_and_take_a_tenth_at_most(pair, monkeypatch, forwards_take):
    forwards_take(lambda: 10.0, lambda: 2.0)
    places, each = [], Decoder.round

    def spy(self, ids, index):
        places.append((len(ids), isinstance(self.drafter, NoDrafter)))
        return each(self, ids, index)

    monkeypatch.setattr(Decoder, "round", spy)
    params = replace(Params(**LONG), max_new_tokens=200)
    start = clock.perf_counter()
    with stream(pair, PROMPT, params) as run:
        next(event for event in run if run.trace.finish)
        until_last_round, rounds = clock.perf_counter() - start, len(places)
        assert not any(plain for _, plain in places) and run.trace.stats.speedup is None
        last = list(run)[-1]
        took = clock.perf_counter() - start - until_last_round
    assert last.stats == run.trace.stats and last.stats.speedup > 0
    assert all(plain for _, plain in places[rounds:]), "they come after the last round"
    lengths, prompt = [length for length, _ in places[rounds:]], len(run.trace.prompt_ids)
    assert lengths == sorted(set(lengths)) and lengths[0] == prompt and lengths[-1] > prompt + 100
    assert 0 < took <= SHARE * until_last_round
    places.clear()
    alone = generate(pair, PROMPT, params, measure=False)
    assert len(places) == rounds and alone.stats.speedup is None
    assert [without_times(one) for one in run.trace.rounds] == [without_times(one) for one in alone.rounds]


def test_a_run_that_is_closed_meanwhile_has_ended_and_has_no_speed_up(pair, monkeypatch):
    run = stream(pair, PROMPT, Params(**LONG))
    each = Decoder.round

    def closes(self, ids, index):
        if isinstance(self.drafter, NoDrafter):
            run._closing.set()  # as another thread's close() does first
        return each(self, ids, index)

    monkeypatch.setattr(Decoder, "round", closes)
    list(run)
    run.close()
    assert run.trace.finish == "length" and run.trace.stats.speedup is None
    assert not pair.lock.locked()


def without_times(one):
    return one.draft, one.next, one.emitted


def test_a_short_run_times_none(pair, forwards_take):
    forwards_take(lambda: 10.0, lambda: 2.0)
    trace = generate(pair, PROMPT, Params(max_new_tokens=8, seed=1))
    assert trace.stats.target_step_ms is None and trace.stats.tokens_per_second > 0
