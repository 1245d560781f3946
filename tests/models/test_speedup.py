"""The speed-up that a run measures beside itself. Each bound is on a ratio of times of the same run."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from specdemo import Params, generate, load_pair, stream
from specdemo.engine.draft import NoDrafter
from specdemo.engine.loop import Loop
from specdemo.events.speedup import FEWEST_PLAIN, claimed
from specdemo.measure import turns
from specdemo.measure.samples import FEWEST_TURNS
from specdemo.measure.turns import USUAL_TURN, settle, time_in_turns
from specdemo.runtime import cuda
from specdemo.runtime.lm import CachedLM
from specdemo.session import LEAST_MS, MOST_PLAIN

PROMPT = "One day, a girl named Mia found a tiny kitten in the rain."
LONG = {"ignore_eos": True, "max_new_tokens": 120, "seed": 3}


@pytest.fixture(scope="module")
def pair():
    return load_pair()


@pytest.fixture
def forwards_take(pair, monkeypatch):
    """forwards_take(target, drafter): from now on a forward takes that many ms on the engine's clock, and
    nothing else takes any. Each is a function that is called for each forward."""
    now = 0.0
    monkeypatch.setattr(cuda, "perf_counter", lambda: now)
    each = CachedLM.forward

    def simulate(target: Callable[[], float], drafter: Callable[[], float]) -> None:
        def forward(self, *given):
            nonlocal now
            now += (target() if self.model is pair.target else drafter()) / 1000
            return each(self, *given)

        monkeypatch.setattr(CachedLM, "forward", forward)
        monkeypatch.setattr(CachedLM, "drafts_itself", False)

    return simulate


@pytest.mark.slow
def test_on_a_steady_clock_plain_decoding_reads_one_and_c_is_the_ratio_of_the_forwards(pair, forwards_take):
    forwards_take(lambda: 10.0, lambda: 2.0)
    stats = generate(pair, PROMPT, Params(**LONG | {"max_new_tokens": 60}, draft_with="none")).stats
    assert stats.speedup == pytest.approx(1) and stats.target_step_ms == pytest.approx(10)
    assert stats.speedup_interval == pytest.approx((1, 1))
    stats = generate(pair, PROMPT, Params(**LONG, draft_with="model", gamma=4)).stats
    assert stats.target_step_ms == pytest.approx(10) and stats.verify_ms == pytest.approx(10 * stats.rounds)
    # One forward for each draft; the first may feed two tokens.
    assert stats.drafter_step_ms == pytest.approx(2) and stats.cost_ratio == pytest.approx(0.2)
    expected = 10 * stats.tokens / (10 * stats.rounds + 2 * stats.drafted)
    assert stats.speedup == pytest.approx(expected) and stats.speedup > 1


def test_it_is_unknown_while_a_run_goes_on_and_after_one_that_was_cancelled_or_is_too_short(pair):
    with stream(pair, PROMPT, Params(**LONG)) as run:
        for _ in range(15):
            next(run)
            assert run.trace.stats.target_step_ms is run.trace.stats.speedup is None
            assert run.trace.stats.cost_ratio is None
    assert run.trace.finish == "cancelled" and run.trace.stats.target_step_ms is None
    assert run.trace.stats.drafter_step_ms > 0, "this is the run's own"
    short = stream(pair, PROMPT, replace(Params(**LONG), max_new_tokens=23))
    list(short)
    stats = short.trace.stats
    assert stats.target_step_ms is stats.speedup is stats.speedup_interval is None
    assert (
        list(time_in_turns(run, 60)) == list(time_in_turns(short, 60)) == [] and stats.tokens_per_second > 0
    )


@pytest.mark.slow
def test_plain_rounds_are_spread_over_the_text_and_take_a_quarter_of_a_second(
    pair, monkeypatch, forwards_take
):
    forwards_take(lambda: 10.0, lambda: 2.0)
    places, each = [], Loop._launch

    def spy(self, ids, index, u):
        places.append((len(ids), isinstance(self.drafter, NoDrafter)))
        return each(self, ids, index, u)

    monkeypatch.setattr(Loop, "_launch", spy)
    with stream(pair, PROMPT, Params(**LONG)) as run:
        next(event for event in run if run.trace.finish)
        start, rounds = cuda.perf_counter(), len(places)
        assert not any(plain for _, plain in places) and run.trace.stats.speedup is None
        last = list(run)[-1]
    assert last.stats == run.trace.stats and last.stats.speedup > 0
    assert all(plain for _, plain in places[rounds:]), "they come after the last round"
    lengths, prompt = [length for length, _ in places[rounds:]], len(run.trace.prompt_ids)
    assert lengths == sorted(set(lengths)) and lengths[0] == prompt and lengths[-1] > prompt + 60
    assert len(lengths) == 25 and cuda.perf_counter() - start == pytest.approx(LEAST_MS / 1000)
    alone = generate(pair, PROMPT, Params(**LONG), measure=False)
    assert len(places) == 2 * rounds + 25 and alone.stats.speedup is None
    assert [without_times(one) for one in run.trace.rounds] == [without_times(one) for one in alone.rounds]


def test_a_run_that_is_closed_meanwhile_has_ended_and_has_no_speed_up(pair, monkeypatch):
    run = stream(pair, PROMPT, Params(**LONG))
    each = Loop._launch

    def closes(self, ids, index, u):
        if isinstance(self.drafter, NoDrafter):
            run._closing.set()  # as another thread's close() does first
        return each(self, ids, index, u)

    monkeypatch.setattr(Loop, "_launch", closes)
    list(run)
    run.close()
    assert run.trace.finish == "length" and run.trace.stats.speedup is None
    assert not pair.lock.locked()


def without_times(one):
    return one.draft, one.next, one.emitted


@pytest.mark.slow
@pytest.mark.parametrize(("tokens", "step_ms", "count"), [(24, 1000.0, FEWEST_PLAIN), (100, 1.0, MOST_PLAIN)])
def test_at_least_eight_plain_rounds_follow_any_run_of_24_tokens(pair, forwards_take, tokens, step_ms, count):
    """step_ms: of a forward. However slow the model is, eight are timed, and never more than are needed."""
    forwards_take(lambda: step_ms, lambda: step_ms / 5)
    start = cuda.perf_counter()
    trace = generate(pair, PROMPT, replace(Params(**LONG), max_new_tokens=tokens))
    beside_ms = 1000 * (cuda.perf_counter() - start) - trace.stats.run_ms - trace.stats.prefill_ms
    assert beside_ms == pytest.approx(count * step_ms)
    assert trace.stats.speedup_interval == pytest.approx((trace.stats.speedup, trace.stats.speedup), rel=1e-3)


# Timing it again in turns. No interval is wider than 10.0, so it ends with the text and enough turns.


@pytest.mark.parametrize(
    ("name", "draft_with"), [("embedded", "model"), ("embedded", "ngram"), ("embedded-dflash", "model")]
)
def test_a_run_that_is_timed_again_stays_as_it_was_but_for_its_speed_up(name, draft_with, monkeypatch):
    """The rounds that are made again are the run's, also of drafters that learn while it goes on."""
    pair, made = load_pair(name), []

    def in_turns(*arguments):
        for own, turn in each(*arguments):
            made.extend([own] if turn else [])
            yield own, turn

    each = turns._in_turns
    monkeypatch.setattr(turns, "_in_turns", in_turns)
    params = replace(Params(**LONG, draft_with=draft_with), max_new_tokens=80)
    run = stream(pair, PROMPT, params, measure=False)
    list(run)
    before = replace(run.trace, rounds=list(run.trace.rounds))
    assert before.stats.speedup is None
    monkeypatch.setattr(turns, "NARROW", 10.0)
    monkeypatch.setattr("specdemo.events.speedup.WIDE", 1e9)
    list(time_in_turns(run, 60))
    after, stats = run.trace, run.trace.stats
    low, high = stats.speedup_interval
    assert 0 < low < stats.speedup < high
    assert stats.speedup == pytest.approx(stats.target_step_ms * stats.tokens / stats.run_ms)
    timed_again = ("target_step_ms", "target_step_spread", "cost_ratio", "speedup", "speedup_interval")
    assert replace(after, stats=replace(stats, **dict.fromkeys(timed_again))) == before
    assert not pair.lock.locked() and len(made) >= FEWEST_TURNS
    if draft_with == "model":  # its run has too few rounds to be made again only once
        assert len({own[0].index % USUAL_TURN.own for own in made}) > 1, "turns begin at other places"
    for own in made:
        as_before = after.rounds[own[0].index :][: USUAL_TURN.own]
        assert list(map(without_times, own)) == list(map(without_times, as_before))


def test_only_short_runs_settle_and_only_while_nothing_else_wants_the_pair(pair, monkeypatch):
    run = stream(pair, PROMPT, Params(**LONG))
    list(run)
    with stream(pair, PROMPT, Params(**LONG)) as other:
        next(other)
        assert list(time_in_turns(run, 60)) == []
    asked = iter([False] * 30)
    monkeypatch.setattr(turns, "NARROW", 1.0)
    assert list(time_in_turns(run, 60, lambda: next(asked, True)))
    assert not pair.lock.locked()
    monkeypatch.setattr(turns, "SETTLED_BELOW_MS", 0.0)
    run.trace.stats = replace(run.trace.stats, speedup=1.9, speedup_interval=(1.8, 2.0))
    assert list(settle(run)) == []
    run.trace.stats = claimed(replace(run.trace.stats, speedup_interval=(1.0, 2.0)))
    next(settle(run))
