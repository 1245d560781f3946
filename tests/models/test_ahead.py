"""Rounds that are launched before the last one is written down: a run says what it says without that, but for
its times. On a CPU this is forced on, since there the device waits for nothing."""

import json
from dataclasses import replace

import pytest

from specdemo import Params, Round, generate, load_pair, session, stream
from specdemo.engine.emit import Emitter
from specdemo.engine.loop import Decoder
from specdemo.engine.step import Verifier
from specdemo.events import RULES
from tests.models.test_capture import PROMPT, Recorder
from tests.oracle import KINDS
from tests.runners import run_by
from tests.tiny import noisy, tiny, tokenizer

llama = tiny("llama")
near = noisy(llama)
SAMPLED = dict(temperature=0.9, top_p=0.9)


@pytest.fixture(scope="module")
def embedded():
    """Its forwards are compiled for a number of rows when that has been seen a few times, which changes how
    they round. Here they are compiled before."""
    pair = load_pair(device="cpu")
    for gamma in range(1, 8):
        for _ in range(2):
            generate(pair, "Once", Params(gamma=gamma, temperature=0.0, max_new_tokens=40), measure=False)
    return pair


@pytest.fixture(scope="module")
def small():
    return load_pair(target=llama, drafter=near)


class Launches:
    """`texts`: those that the run has launched rounds after. fails_at: the index of the round whose launch
    fails."""

    def __init__(self, monkeypatch):
        self.monkeypatch, self.texts, self.fails_at = monkeypatch, [], None
        launch = Decoder._launch

        def counting(decoder, ids, index, u=None):
            self.texts.append((tuple(ids), index))
            if index == self.fails_at:
                raise RuntimeError("it cannot be launched")
            return launch(decoder, ids, index, u)

        monkeypatch.setattr(Decoder, "_launch", counting)

    @property
    def count(self):
        return len(self.texts)

    def run(self, pair, prompt, ahead, params, measure=False, events=None):
        """Its trace. events: after how many the run is closed."""
        run = self.begin(pair, prompt, ahead, params, measure)
        with run:
            for i, _ in enumerate(run, 1):
                if i == events:
                    break
        return run.trace

    def begin(self, pair, prompt, ahead, params, measure=False):
        self.texts = []
        self.monkeypatch.setattr(session, "Decoder", lambda *args: replace(Decoder(*args), ahead=ahead))
        return stream(pair, prompt, Params(**{"seed": 3, "max_new_tokens": 40} | params), measure=measure)


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
    *(dict(draft_with=kind, ngram=1, **SAMPLED) for kind in KINDS),
    *(dict(rule=rule, temperature=1.0, top_p=1.0) for rule in RULES),
    *(dict(gamma=gamma, temperature=0.9) for gamma in (1, 7, "auto")),
    dict(gamma="auto", draft_with="early-exit", temperature=0.0),
    dict(confidence=0.4, top_k=20, min_p=0.05),
    dict(repetition_penalty=1.3, presence_penalty=0.5, draft_with="ngram", ngram=2),
    dict(temperature=0.0, alternatives=0),
]


@pytest.mark.parametrize("params", RUNS, ids=str)
def test_the_same_run(embedded, launches, params):
    traces = [launches.run(embedded, "Once upon a time", ahead, params) for ahead in (False, True)]
    assert timeless(traces[0]) == timeless(traces[1])
    assert launches.count == len(traces[1].rounds), "nothing was thrown away: the length was known"


@pytest.mark.parametrize("draft_with", KINDS)
@pytest.mark.parametrize("stop", [(), ("b",)])
def test_the_same_run_over_recorded_steps(launches, draft_with, stop):
    """They write their outputs where those of the round before are."""
    pair = run_by(llama, near, Recorder())
    pair = replace(pair, tokenizer=tokenizer())
    for gamma in (4, "auto"):
        params = dict(SAMPLED, draft_with=draft_with, gamma=gamma, ngram=1, stop=stop)
        traces = [launches.run(pair, PROMPT, ahead, params) for ahead in (False, True)]
        assert timeless(traces[0]) == timeless(traces[1])
        assert launches.count - len(traces[1].rounds) == (traces[1].finish == "stop")
    assert pair.runner.begin_run().runs_ahead and pair.runner.graphs.made


@pytest.mark.parametrize("draft_with", KINDS)
def test_the_same_run_where_an_eos_ends_it(small, launches, draft_with, monkeypatch):
    """Each token that the run has emitted in turn is its eos."""
    params = dict(draft_with=draft_with, ngram=1, temperature=0.9)
    ends = {token for one in launches.run(small, PROMPT, False, params).rounds for token in one.emitted}
    finished = 0
    for eos in sorted(ends)[:6]:
        monkeypatch.setattr(small.target.generation_config, "eos_token_id", eos)
        traces = [launches.run(small, PROMPT, ahead, params) for ahead in (False, True)]
        assert timeless(traces[0]) == timeless(traces[1])
        assert launches.count == len(traces[1].rounds)
        finished += traces[1].finish == "eos"
    assert finished >= 2


@pytest.mark.parametrize("gamma", [4, "auto"])
def test_a_stop_string_throws_one_launched_round_away(embedded, launches, gamma):
    thrown = 0
    for stop in ("a", "the", ". ", "little", "\n"):
        params = dict(SAMPLED, stop=(stop,), gamma=gamma)
        traces = [launches.run(embedded, "Once upon a time", ahead, params) for ahead in (False, True)]
        assert timeless(traces[0]) == timeless(traces[1])
        more = launches.count - len(traces[1].rounds)
        assert more == (traces[1].finish == "stop")
        thrown += more
    assert thrown >= 3
    again = [launches.run(embedded, "Once upon a time", ahead, SAMPLED) for ahead in (False, True)]
    assert timeless(again[0]) == timeless(again[1]), "and the next run knows nothing of it"


@pytest.mark.parametrize("events", [1, 2, 3, 6])
def test_the_same_run_where_a_visitor_stops_it(embedded, launches, events):
    traces = [
        launches.run(embedded, "Once upon a time", ahead, SAMPLED, events=events) for ahead in (False, True)
    ]
    assert [one.finish for one in traces] == ["cancelled"] * 2
    assert traces[0].rounds == [] if events == 1 else timeless(traces[0]) == timeless(traces[1])
    assert launches.count == (0 if events == 1 else events), "one was launched ahead"
    assert embedded.lock.acquire(blocking=False)
    embedded.lock.release()


@pytest.mark.parametrize("fails_at", [0, 1, 5])
def test_an_error_follows_the_rounds_before_it(embedded, launches, fails_at):
    for ahead in (False, True):
        launches.fails_at, rounds = fails_at, []
        run = launches.begin(embedded, "Once upon a time", ahead, SAMPLED)
        with pytest.raises(RuntimeError, match="it cannot be launched"):
            for event in run:
                rounds += [event] if isinstance(event, Round) else []
        assert len(rounds) == len(run.trace.rounds) == fails_at and run.trace.finish == "error"


def test_an_error_of_what_is_thrown_away_is_none(embedded, launches):
    params = dict(SAMPLED, stop=("a",))
    before = launches.run(embedded, "Once upon a time", True, params)
    assert before.finish == "stop"
    launches.fails_at = len(before.rounds)
    assert timeless(launches.run(embedded, "Once upon a time", True, params)) == timeless(before)


class HourGlass:
    """Time as the engine's clock has it passes in some places only, an hour each time."""

    def __init__(self, monkeypatch):
        self.hours = 0
        self.monkeypatch = monkeypatch
        monkeypatch.setattr("specdemo.runtime.device.perf_counter", lambda: 3600.0 * self.hours)

    def passes_in(self, owner, name):
        own = getattr(owner, name)

        def takes_an_hour(*args, **kwargs):
            self.hours += 1
            return own(*args, **kwargs)

        self.monkeypatch.setattr(owner, name, takes_an_hour)


@pytest.mark.parametrize("where", [(Emitter, "emit"), (Verifier, "launch"), (Verifier, "verdict")], ids=str)
@pytest.mark.parametrize("stop", [(), ("a",)])
def test_each_hour_is_in_the_clock_once(embedded, monkeypatch, where, stop):
    """What is thrown away is not, nor is what a consumer does."""
    launches, glass = Launches(monkeypatch), HourGlass(monkeypatch)
    glass.passes_in(*where)
    glass.passes_in(session.Trace, "add")  # between two events
    totals = []
    for ahead in (False, True):
        trace = launches.run(embedded, "Once upon a time", ahead, dict(SAMPLED, stop=stop))
        assert (trace.finish == "stop") == bool(stop)
        totals.append(sum(one.draft_ms + one.verify_ms for one in trace.rounds) / 3.6e6)
        assert all(one.draft_ms >= 0 and one.verify_ms >= 0 for one in trace.rounds)
    assert [round(total, 3) for total in totals] == [len(trace.rounds)] * 2


@pytest.mark.parametrize("draft_with", ["model", "none"])
def test_the_plain_rounds_are_the_same(embedded, monkeypatch, draft_with):
    """They are launched ahead as those of the run are, or plain decoding would be compared with something
    else. Where no time passes, there are as many of them as there may be."""
    launches, glass = Launches(monkeypatch), HourGlass(monkeypatch)
    texts = []
    for ahead in (False, True):
        trace = launches.run(embedded, "Once upon a time", ahead, dict(draft_with=draft_with), measure=True)
        texts.append(launches.texts)
    assert glass.hours == 0 and texts[0] == texts[1] and len(texts[0]) == len(trace.rounds) + 40
