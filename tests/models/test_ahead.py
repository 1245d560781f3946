"""Rounds that are launched before the last one is written down: a run says what it says without that, but for
its times. On a CPU this is forced on, since there the device waits for nothing."""

import json
from dataclasses import replace

import pytest
import torch

from specdemo import Params, Round, session, stream
from specdemo.engine.emit import Emitter
from specdemo.engine.loop import Loop
from specdemo.engine.step import Verified, Verifier
from specdemo.runtime import cuda
from specdemo.runtime.steps import EagerSteps
from tests.models.test_capture import PROMPT, Recorder
from tests.runners import run_by
from tests.tiny import noisy, tiny, tokenizer

llama = tiny("llama")
near = noisy(llama)
SAMPLED = dict(temperature=0.9, top_p=0.9)
STOP = ("b",)


def pair_by(run_step):
    return replace(run_by(llama, near, run_step), tokenizer=tokenizer(eos=None))


@pytest.fixture(scope="module")
def pair():
    """Nothing is compiled when it has run a few times, which would change how it rounds."""
    return pair_by(EagerSteps())


class Launches:
    """`texts`: those that the run has launched rounds after. fails_at: the index of the round whose launch
    fails."""

    def __init__(self, monkeypatch):
        self.monkeypatch, self.texts, self.fails_at = monkeypatch, [], None
        launch = Loop._launch

        def counting(decoder, ids, index, u):
            self.texts.append((tuple(ids), index))
            if index == self.fails_at:
                raise RuntimeError("it cannot be launched")
            return launch(decoder, ids, index, u)

        monkeypatch.setattr(Loop, "_launch", counting)

    def run(self, pair, ahead, params, measure=False, events=None):
        """Its trace. events: after how many the run is closed."""
        with self.begin(pair, ahead, params, measure) as run:
            for i, _ in enumerate(run, 1):
                if i == events:
                    break
        return run.trace

    def run_both(self, pair, params):
        """The trace of the run, which is the same ahead, and how many rounds that has launched."""
        trace, ahead = (self.run(pair, ahead, params) for ahead in (False, True))
        assert timeless(trace) == timeless(ahead)
        return trace, len(self.texts)

    def begin(self, pair, ahead, params, measure=False):
        self.texts = []
        self.monkeypatch.setattr(session, "Loop", lambda *args: replace(Loop(*args), ahead=ahead))
        return stream(pair, PROMPT, Params(**{"seed": 3, "max_new_tokens": 40} | params), measure=measure)


@pytest.fixture
def launches(monkeypatch):
    return Launches(monkeypatch)


def timeless(trace):
    """As it is saved, without what follows from times."""
    saved = json.loads(trace.to_json())
    counted = ("tokens", "rounds", "drafted", "accepted", "target_forwards", "finish", "acceptance_rate")
    saved["stats"] = {name: saved["stats"][name] for name in counted if name in saved["stats"]}
    for this_round in saved["rounds"]:
        assert this_round.pop("draft_ms") >= 0 and this_round.pop("verify_ms") >= 0
    assert saved["rounds"] and saved["stats"]
    return json.dumps(saved)


RUNS = [
    dict(rule="block", gamma=7, temperature=1.0, top_p=1.0),
    dict(gamma="auto", draft_with="early-exit", temperature=0.0),
    dict(confidence=0.4, top_k=20, min_p=0.05),
    dict(repetition_penalty=1.3, presence_penalty=0.5, draft_with="ngram", ngram=2),
    dict(temperature=0.0, alternatives=0),
]


@pytest.mark.slow
@pytest.mark.parametrize("params", RUNS, ids=str)
def test_the_same_run(pair, launches, params):
    trace, launched = launches.run_both(pair, params)
    assert launched == len(trace.rounds), "nothing was thrown away: the length was known"


@pytest.mark.slow
@pytest.mark.parametrize("draft_with", ["model", "lookup"])
def test_the_same_run_over_recorded_steps(launches, draft_with):
    """They write their outputs where those of the round before are. A stop string throws one round away."""
    recorded, finishes = pair_by(Recorder()), set()
    for gamma, stop in ((4, ()), ("auto", STOP)):
        trace, launched = launches.run_both(
            recorded, dict(SAMPLED, draft_with=draft_with, gamma=gamma, ngram=1, stop=stop)
        )
        assert launched - len(trace.rounds) == (trace.finish == "stop")
        finishes.add(trace.finish)
    assert finishes == {"length", "stop"}
    assert recorded.runner.begin_run().runs_ahead and recorded.runner.graphs.made


def test_numbers_that_came_home_hold_when_a_graph_writes_again():
    numbers = torch.zeros(3)
    home = cuda.on_host(numbers)
    numbers.fill_(1)
    assert home.tolist() == [0, 0, 0]


@pytest.mark.slow
def test_the_same_run_where_an_eos_ends_it(pair, launches, monkeypatch):
    """Each of several tokens that the run has emitted in turn is its eos."""
    params = dict(temperature=0.9)
    ends = {token for one in launches.run(pair, False, params).rounds for token in one.emitted}
    finishes = []
    for eos in sorted(ends)[:4]:
        monkeypatch.setattr(pair.target.generation_config, "eos_token_id", eos)
        trace, launched = launches.run_both(pair, params)
        assert launched == len(trace.rounds)
        finishes.append(trace.finish)
    assert finishes.count("eos") >= 2


@pytest.mark.parametrize("events", [1, 3])
def test_the_same_run_where_a_visitor_stops_it(pair, launches, events):
    traces = [launches.run(pair, ahead, SAMPLED, events=events) for ahead in (False, True)]
    assert [one.finish for one in traces] == ["cancelled"] * 2
    assert traces[0].rounds == [] if events == 1 else timeless(traces[0]) == timeless(traces[1])
    assert len(launches.texts) == (0 if events == 1 else events), "one was launched ahead"
    assert pair.lock.acquire(blocking=False)
    pair.lock.release()


@pytest.mark.parametrize("fails_at", [0, 1, 5])
def test_an_error_follows_the_rounds_before_it(pair, launches, fails_at):
    for ahead in (False, True):
        launches.fails_at, rounds = fails_at, []
        run = launches.begin(pair, ahead, SAMPLED)
        with pytest.raises(RuntimeError, match="it cannot be launched"):
            for event in run:
                rounds += [event] if isinstance(event, Round) else []
        assert len(rounds) == len(run.trace.rounds) == fails_at and run.trace.finish == "error"


def test_an_error_of_what_is_thrown_away_is_none(pair, launches):
    params = dict(SAMPLED, stop=STOP)
    before = launches.run(pair, True, params)
    assert before.finish == "stop"
    launches.fails_at = len(before.rounds)
    assert timeless(launches.run(pair, True, params)) == timeless(before)


def test_the_rounds_end_with_the_text(pair):
    """Also for who asks for more, where a stop string has ended it and one was launched ahead."""
    started = session.prepare(pair, PROMPT, Params(stop=STOP, seed=3, max_new_tokens=40, **SAMPLED))
    decoder = replace(session.loop_of(pair, started, lambda: False), ahead=True)
    with decoder.active():
        assert decoder.prefill(list(PROMPT)) and [*decoder.rounds(list(PROMPT))] and decoder.finish == "stop"


class HourGlass:
    """Time as the engine's clock has it passes in some places only, an hour each time."""

    def __init__(self, monkeypatch):
        self.hours = 0
        self.monkeypatch = monkeypatch
        monkeypatch.setattr("specdemo.runtime.cuda.perf_counter", lambda: 3600.0 * self.hours)

    def passes_in(self, owner, name):
        own = getattr(owner, name)

        def takes_an_hour(*args, **kwargs):
            self.hours += 1
            return own(*args, **kwargs)

        self.monkeypatch.setattr(owner, name, takes_an_hour)


@pytest.mark.slow
@pytest.mark.parametrize("where", [(Emitter, "emit"), (Verifier, "launch"), (Verified, "of")], ids=str)
@pytest.mark.parametrize("stop", [(), STOP])
def test_each_hour_is_in_the_clock_once(pair, launches, monkeypatch, where, stop):
    """What is thrown away is not, nor is what a consumer does."""
    glass = HourGlass(monkeypatch)
    glass.passes_in(*where)
    glass.passes_in(session.Trace, "add")  # between two events
    for ahead in (False, True):
        trace = launches.run(pair, ahead, dict(SAMPLED, stop=stop))
        assert (trace.finish == "stop") == bool(stop)
        assert all(one.draft_ms >= 0 and one.verify_ms >= 0 for one in trace.rounds)
        hours = sum(one.draft_ms + one.verify_ms for one in trace.rounds) / 3.6e6
        assert hours == pytest.approx(len(trace.rounds))


@pytest.mark.slow
def test_the_plain_rounds_are_the_same(pair, launches, monkeypatch):
    """They are launched ahead as those of the run are, or plain decoding would be compared with something
    else. Where no time passes, there are as many of them as there may be."""
    glass = HourGlass(monkeypatch)
    texts = []
    for ahead in (False, True):
        trace = launches.run(pair, ahead, {}, measure=True)
        texts.append(launches.texts)
    assert glass.hours == 0 and texts[0] == texts[1] and len(texts[0]) == len(trace.rounds) + 40
