"""Steps that are captured and replayed: what they say is what the steps themselves say, whatever has
happened in between.

`Graphs` is tried without CUDA, with recordings that are a step over its own static inputs into its own static
outputs."""

import math
import time
import warnings
from dataclasses import replace
from functools import partial

import pytest
import torch

import specdemo.runtime.cache
from specdemo import Params, Round, generate, load_pair, stream
from specdemo.runtime import native
from specdemo.runtime.cuda import Clock
from specdemo.runtime.graphs import Graph, Graphs, tensors_of, with_tensors
from specdemo.runtime.lm import CachedLM
from specdemo.runtime.steps import AUTO_ROWS, EagerSteps
from tests.oracle import TableLM, assert_nearly_the_same, decoding, random_table
from tests.runners import run_by
from tests.tiny import noisy, tiny, tokenizer

PROMPT = [5, 17, 3, 88, 5, 17, 3]
FAILURES = {  # what errors say, in the middle of which a line may end
    RuntimeError: "no kernel\nfor this",
    TypeError: "an argument of a compiler\nthat it does not know",
    torch.OutOfMemoryError: "CUDA out of memory.\nTried to allocate 2.00 GiB",
}


@pytest.fixture(scope="module", autouse=True)
def without_native_forwards():
    """Graphs are for CUDA, where there are none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "can_be_native", lambda model: False)
        yield


class Filled(EagerSteps):
    """Every step as it is, but with as many rows as a recording has."""

    def rows(self, k, gamma):
        if not k or gamma != "auto":
            return gamma if k else 0
        return next(rows for rows in AUTO_ROWS if rows >= k)


class Played:
    """Stands in for a CUDA graph: the step again, over an input and into an output whose memory never moves.
    As in a memory pool, running it spoils the outputs of graphs that were captured later."""

    def __init__(self, step, static, output):
        self.step, self.static, self.output = step, static, output
        self.later = []
        self.played = 0

    def replay(self):
        output = tensors_of(self.step(self.static))
        for other in self.later:
            for tensor in tensors_of(other.output):
                spoiled = -(10**9) if tensor.dtype == torch.long else False
                tensor.fill_(math.nan if tensor.is_floating_point() else spoiled)
        for static, new in zip(tensors_of(self.output), output, strict=True):
            static.copy_(new)
        self.played += 1


class Recorder(Graphs):
    """Graphs that need no CUDA. `made`: the keys of all that were captured, in order."""

    def __init__(self, fails=None, error=RuntimeError, most=40):
        super().__init__(Clock(), most)
        self.made, self.all = [], []
        self.fails, self.error = fails, error  # which capture fails, and how

    def _capture(self, key, step, value):
        if len(self.made) + 1 == self.fails:
            raise self.error(FAILURES[self.error])
        static = self._static_input(value)
        output = step(static)
        output = with_tensors(output, (tensor.clone() for tensor in tensors_of(output)))
        played = Played(step, static, output)
        for earlier in self.all:
            earlier.later.append(played)
        self.all.append(played)
        self.made.append(key)
        return Graph(played, static, output)


class Baked(Recorder):
    """Its graphs hold everything but their inputs as it was, as CUDA graphs do: settings, shapes, and where
    all memory is. (Those of `Recorder` would follow what has changed since.)"""

    def _capture(self, key, step, value):
        static = with_tensors(value, (tensor.clone() for tensor in tensors_of(value)))
        output = step(static)  # warms up, as before a CUDA graph: caches come into being

        def flat(*tensors):
            return tuple(tensors_of(step(with_tensors(value, iter(tensors)))))

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # As torch.jit.trace, which also registers the function with the process: that never frees it.
            inputs = tuple(tensors_of(static))
            graph, _ = torch._C._create_graph_by_tracing(flat, inputs, lambda _: "", True, False)
            trace = torch._C._create_function_from_graph("flat", graph)

        def baked(value):
            with torch.jit.optimized_execution(False):
                return with_tensors(output, iter(trace(*tensors_of(value))))

        return super()._capture(key, baked, value)


def captured(target, drafter=None, graphs=None):
    """A pair in memory whose steps are run by `graphs`, as on CUDA."""
    return run_by(target, drafter, graphs or Recorder())


def rounds_of(pair, prompt=PROMPT, **params):
    params = Params(**{"seed": 3, "max_new_tokens": 40} | params)
    return timeless(stream(pair, prompt, params, measure=False))


def the_same(pair, other, prompt=PROMPT, **params):
    """The rounds of both pairs, which are equal to the last bit."""
    rounds = rounds_of(pair, prompt, **params)
    assert rounds == rounds_of(other, prompt, **params), (params, prompt)
    return rounds


def timeless(events):
    return [replace(event, draft_ms=0.0, verify_ms=0.0) for event in events if isinstance(event, Round)]


llama = tiny("llama")
near = noisy(llama)
V = 6
TARGET, DRAFTER = random_table(1, V, never=[4]), 0.6 * random_table(1, V) + random_table(2, V, never=[3])
SHAPES = {
    "greedy": dict(temperature=0.0),
    "top-k": dict(temperature=1.3, top_k=3, top_p=1.0),
    "top-p": dict(temperature=1.2, top_p=0.8),
    "min-p": dict(temperature=1.2, top_p=1.0, min_p=0.2),
}


@pytest.mark.parametrize("kind", ["model", "lookup"])
def test_filled_rows_change_nothing(kind):
    """To the last bit, at the end of the text, of the target's context and of the drafter's, and after an
    eos."""
    filled = 0
    for end in (dict(), dict(context=14), dict(drafter_context=9), dict(eos=[2])):
        for shape in ("greedy", "top-p"):
            params = dict(gamma=4, max_new_tokens=12, ngram=2, alternatives=3, draft_with=kind)
            params, told = Params(**params, **SHAPES[shape], seed=1), []
            for run in (EagerSteps(), Filled()):
                target, drafter = TableLM(TARGET), TableLM(DRAFTER) if kind == "model" else None
                told.append(timeless(decoding(target, drafter, params, [2, 0, 1, 2, 0], run_step=run, **end)))
            assert told[0] == told[1]
            filled += len(target.fed) - 4 - sum(1 + len(this_round.draft) for this_round in told[0])
    assert filled, "else the test shows nothing"


@pytest.mark.slow
def test_the_key_of_a_recording_names_all_that_it_depends_on():
    """Runs that differ in one thing each, over one set of recordings: whatever is not in the key would be
    played as it was in another run. Numbers that are inputs of the steps need no other recording."""
    target = tiny("gpt2", n_positions=200).requires_grad_(False)
    pair, filled = captured(target, noisy(target), Baked()), run_by(target, noisy(target), Filled())
    graphs, usual = pair.runner.graphs, dict(temperature=1.0, top_p=0.9, gamma=4, ngram=1, alternatives=3)
    numbers = [dict(temperature=0.5, top_p=0.5, seed=8)]
    others = [dict(top_k=4), dict(top_k=5), dict(alternatives=0), dict(temperature=0.0)]
    others += [dict(draft_with="lookup")]
    for changes in (dict(), *numbers, *others):
        made = [key for key in graphs.made if key[1]]  # but for rounds without a draft
        for prompt in (PROMPT, PROMPT[:1]) if not changes else (PROMPT,):
            the_same(pair, filled, prompt, **{**usual, "max_new_tokens": 8, **changes})
        assert changes not in numbers or [key for key in graphs.made if key[1]] == made
    with torch.no_grad():
        for parameter in target.parameters():
            parameter *= 1.1  # in place: what lies there is read, not what lay there
    the_same(pair, filled, **usual, max_new_tokens=8)
    assert len(graphs.made) == len(set(graphs.made)) and not (graphs.blocker or graphs.refused), "none twice"


def test_what_a_grammar_allows_is_an_input_of_verifying_and_such_drafts_are_not_recorded():
    target = tiny(vocab_size=300).requires_grad_(False)
    how = dict(temperature=1.0, top_p=1.0, gamma=3, max_new_tokens=12)
    pair, filled, eager = (
        replace(pair, tokenizer=tokenizer())
        for pair in (
            captured(target, noisy(target), Baked()),
            run_by(target, noisy(target), Filled()),
            load_pair(target=target, drafter=noisy(target)),
        )
    )
    assert {key[0] for key in recorded(pair, filled, eager, **how)} == {"draft", "verify"}
    made = recorded(pair, filled, eager, regex="(the|cat){3,9}", **how)
    assert {key[0] for key in made} == {"verify"}, "one more, with the mask"
    assert not recorded(pair, filled, eager, regex="[a-d]{9,12}", **how), "another mask, and another text"
    assert not recorded(pair, filled, eager, **how)


def test_trees_are_recorded_by_their_shape():
    """The end of a text has room for their first depths only, and needs no recording of its own."""
    how = dict(temperature=0.9, top_p=0.8, max_new_tokens=16)
    pair, filled = captured(llama, near), run_by(llama, near, Filled())
    eager = load_pair(target=llama, drafter=near)

    def made(*tree, **more):
        keys = recorded(pair, filled, eager, tree=tree, **how, **more)
        return {key[:2] for key in keys if key[1]}  # not a round in which there is no room for a draft

    assert made(2, 2, 1) == {("draft", 10), ("verify", 10)}
    assert made(1, 2, 1, 1) == {("draft", 7), ("verify", 7)}
    assert made(2, 1, 1, 1, 1) == {("draft", 10), ("verify", 10)}, "as many tokens in another shape"
    grown = recorded(pair, filled, eager, tree="auto", **how)
    assert {key[:2] for key in grown if key[1]} == {("draft", 16), ("verify", 16)}
    assert not pair.runner.graphs.refused and pair.runner.graphs.blocker is None


def recorded(pair, filled, eager, **how):
    """What was recorded in runs of one pair, which are those of the others."""
    before = set(pair.runner.graphs.made)
    assert_nearly_the_same(the_same(pair, filled, **how), rounds_of(eager, **how))
    return set(pair.runner.graphs.made) - before


def test_a_recording_that_is_rounded_otherwise_decides_from_its_first_round_on(monkeypatch):
    """As far as a graph may be from the step itself: what was tried is in no round and in no cache, so the
    run that has made the recordings has the trace of those that find them."""
    own, replay, playing = CachedLM.static_forward, Played.replay, []

    def played(self):
        playing.append(1)
        replay(self)
        playing.pop()

    def rounded(self, *given):
        return own(self, *given) * (1 + 2e-6 * len(playing))

    monkeypatch.setattr(Played, "replay", played)
    monkeypatch.setattr(CachedLM, "static_forward", rounded)
    pair = captured(llama, near, Recorder())
    first = rounds_of(pair, temperature=0.9)
    assert len(pair.runner.graphs.made) >= 2 and not pair.runner.graphs.refused
    assert rounds_of(pair, temperature=0.9) == first
    monkeypatch.setattr(Played, "replay", replay)
    assert rounds_of(pair, temperature=0.9) != first, "the recordings say something else than the steps"


@pytest.mark.slow
def test_weights_that_lie_elsewhere_are_recorded_anew():
    models = tiny("llama"), noisy(llama)
    pair = captured(*models)
    first, made = rounds_of(pair), [*pair.runner.graphs.made]
    last = models[1].model.layers[1].mlp.down_proj
    before = last.weight  # kept, or the new one could come to lie where it lay
    last.weight = torch.nn.Parameter(before.data * 0.5, requires_grad=False)
    assert the_same(pair, run_by(*models, Filled())) != first
    assert pair.runner.graphs.made == 2 * made and len(pair.runner.graphs.graphs) == len(made)


@pytest.mark.slow
def test_no_cache_moves_in_the_middle_of_a_text_and_a_second_one_captures_nothing(monkeypatch):
    """With the lengths of the cache that a GPU has: two graphs for each, and for one more where the last
    round's rows lie beyond the text."""
    as_on_gpu = partial(specdemo.runtime.cache.kv_length_for, device=torch.device("cuda"))
    monkeypatch.setattr(specdemo.runtime.cache, "kv_length_for", lambda length, device: as_on_gpu(length))
    target = tiny("llama", max_position_embeddings=1024, num_hidden_layers=1)
    pair = captured(target, noisy(target, 0.001), Recorder(most=100))
    params = dict(temperature=0.0, max_new_tokens=300 - len(PROMPT), ignore_eos=True, alternatives=0)
    epochs = []
    for _ in range(2):
        for event in stream(pair, PROMPT, Params(gamma=4, **params), measure=False):
            if isinstance(event, Round):
                epochs.append([one.buffer_epoch for one in pair.runner.lms])
    made = pair.runner.graphs.made
    assert all(one == epochs[0] for one in epochs)
    assert len(made) == len(set(made)) <= 6


@pytest.mark.slow
@pytest.mark.parametrize(("fails", "error"), [(2, torch.OutOfMemoryError), (3, TypeError)], ids=str)
def test_what_cannot_be_recorded_is_run_as_it_is(fails, error):
    """The verifying step, and that of another span in the middle of the text."""
    pair, plain = (
        captured(llama, near, Recorder(fails=fails, error=error)),
        load_pair(target=llama, drafter=near),
    )
    params, graphs = dict(max_new_tokens=70, temperature=0.9), pair.runner.graphs
    assert_nearly_the_same(rounds_of(pair, **params), rounds_of(plain, **params))
    assert len(graphs.made) == fails - 1 and not graphs.graphs, "nothing is tried again, and nothing kept"
    (note,) = map(str, set(pair.notes) - set(pair.limits))
    assert FAILURES[error].replace("\n", " ") in note and "\n" not in note
    again, own = (rounds_of(each, max_new_tokens=16) for each in (pair, plain))
    assert len(graphs.made) == fails - 1
    assert_nearly_the_same(again, own)  # after an error of memory, capturing is tried in each run
    assert error is torch.OutOfMemoryError or again == own


def test_an_error_of_the_step_itself_is_told_as_one():
    """It is no failure of the recording, and running it as it is says so."""
    broken = tiny("llama")
    pair = captured(broken, near)
    broken.lm_head.weight.data.fill_(math.nan)
    with pytest.raises(RuntimeError, match="the target's probabilities are not numbers"):
        rounds_of(pair)


def test_nothing_is_recorded_on_zerogpu_nor_where_it_was_not_asked_for(monkeypatch):
    plain = load_pair(target=llama, drafter=near)
    assert plain.runner.capture == "off" and isinstance(plain.runner.begin_run().run_step, EagerSteps)
    rounds = rounds_of(plain)
    # Models in memory may have hooks of their owner.
    assert plain.notes == [*plain.limits]
    monkeypatch.setenv("SPACES_ZERO_GPU", "1")
    pair = captured(llama, near, Recorder())
    assert rounds_of(pair) == rounds
    assert not pair.runner.graphs.made and any("ZeroGPU" in str(note) for note in pair.notes)


def test_recording_is_in_no_rounds_time(monkeypatch):
    """The engine's clock jumps by an hour in each recording."""
    pair, calls, own, seconds = captured(llama, near), [], Recorder._capture, time.perf_counter

    def slow(*args, **kwargs):
        calls.append(args)
        return own(*args, **kwargs)

    monkeypatch.setattr(Recorder, "_capture", slow)
    monkeypatch.setattr("specdemo.runtime.cuda.perf_counter", lambda: seconds() + 3600 * len(calls))
    params = Params(max_new_tokens=40, ignore_eos=True, gamma=6, temperature=0.0)
    trace = generate(pair, PROMPT, params, measure=False)
    assert len(calls) >= 2
    assert max(max(each.draft_ms, each.verify_ms) for each in trace.rounds) < 600_000
