"""Steps that are captured and replayed: what they say is what the steps themselves say, whatever has
happened in between.

`Graphs` is tried without CUDA, with recordings that are a step over its own static inputs into its own static
outputs; `TorchScriptLM` is the real one."""

import gc
import math
import random
import time
import warnings
from collections import Counter
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from specdemo import Params, Round, generate, load_pair, stream
from specdemo.engine.step import VerifyInput
from specdemo.runtime import device, graphs, heads, lm, runner
from specdemo.runtime.device import Clock
from specdemo.runtime.graphs import EagerSteps, Graph, Graphs, HostNumbers, tensors_of, with_tensors
from specdemo.runtime.lm import CachedLM
from specdemo.runtime.torchscript import TorchScriptLM
from tests.oracle import CPU, KINDS, TableLM, assert_nearly_the_same, decoding, random_table
from tests.runners import run_by
from tests.tiny import ARCHITECTURES, VOCAB, noisy, tiny, tokenizer

PROMPT = [5, 17, 3, 88, 5, 17, 3]
FAILURES = {  # what errors say, in the middle of which a line may end
    RuntimeError: "no kernel\nfor this",
    TypeError: "an argument of a compiler\nthat it does not know",
    torch.OutOfMemoryError: "CUDA out of memory.\nTried to allocate 2.00 GiB",
}


@pytest.fixture(scope="module", autouse=True)
def without_native_forwards():
    """TorchScript captures are for the models, and the machines, that have none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "NativeLM", TorchScriptLM)
        yield


class Filled(EagerSteps):
    """Every step as it is, but with as many rows as a recording has."""

    def rows(self, k, gamma):
        return gamma if k else 0


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
                tensor.fill_(
                    math.nan
                    if tensor.is_floating_point()
                    else -(10**9)
                    if tensor.dtype == torch.long
                    else False
                )
        for static, new in zip(tensors_of(self.output), output, strict=True):
            static.copy_(new)
        self.played += 1


class Recorder(Graphs):
    """Graphs that need no CUDA. `made`: the keys of all that were captured, in order."""

    def __init__(self, most=40, fails=None, error=RuntimeError):
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
    all memory is. (Those of `Recorder` would follow a sampler that has been widened since.)"""

    def _capture(self, key, step, value):
        static = with_tensors(value, (tensor.clone() for tensor in tensors_of(value)))
        output = step(static)  # warms up, as before a CUDA graph: caches come into being

        def flat(*tensors):
            return tuple(tensors_of(step(with_tensors(value, iter(tensors)))))

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a trace is what is wanted here, deprecated or not
            trace = torch.jit.trace(flat, tuple(tensors_of(static)), check_trace=False)

        def baked(value):
            with torch.jit.optimized_execution(False):
                return with_tensors(output, iter(trace(*tensors_of(value))))

        return super()._capture(key, baked, value)


def captured(target, drafter=None, graphs=None):
    """A pair in memory whose steps are run by `graphs`, as on CUDA."""
    return run_by(target, drafter, graphs or Recorder())


def rounds_of(pair, prompt=PROMPT, **params):
    rounds = [
        event
        for event in stream(pair, prompt, Params(**{"seed": 3, "max_new_tokens": 40} | params), measure=False)
        if isinstance(event, Round)
    ]
    return timeless(rounds)


def timeless(events):
    return [replace(event, draft_ms=0.0, verify_ms=0.0) for event in events if isinstance(event, Round)]


# Rows that only fill a recording up.

V = 6
TARGET, DRAFTER = random_table(1, V, never=[4]), 0.6 * random_table(1, V) + random_table(2, V, never=[3])
SHAPES = {
    "greedy": dict(temperature=0.0),
    "sampled": dict(temperature=0.9, top_p=1.0),
    "top-k": dict(temperature=1.3, top_k=3, top_p=1.0),
    "top-p": dict(temperature=1.2, top_p=0.8),
    "min-p": dict(temperature=1.2, top_p=1.0, min_p=0.2),
}


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_filled_rows_change_nothing(kind, shape):
    """To the last bit, at the end of the text, of the target's context and of the drafter's, and after an
    eos."""
    filled = 0
    for end in (dict(), dict(context=14), dict(drafter_context=9), dict(eos=[2])):
        for seed in range(6):
            params = Params(
                gamma=4,
                max_new_tokens=12,
                ngram=2,
                alternatives=3,
                seed=seed,
                draft_with=kind,
                **SHAPES[shape],
            )
            told = []
            for run in (EagerSteps(), Filled()):
                target, drafter = TableLM(TARGET), TableLM(DRAFTER) if kind == "model" else None
                told.append(timeless(decoding(target, drafter, params, [2, 0, 1, 2, 0], run_step=run, **end)))
                fed = target.fed
            assert told[0] == told[1]
            filled += len(fed) - 4 - sum(1 + len(this_round.draft) for this_round in told[0])
    assert (filled > 0) == (kind != "none"), "the test must show something"


def test_a_wide_look_with_filled_rows_after_it():
    """The rows after it hold nothing that anybody should wait for: a nucleus that is too wide there is no
    reason to look again."""
    flat = torch.randn(600, 600, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    flat[:, 5:] -= 30  # a text of four tokens
    flat[:, 0] = -math.inf
    flat[0] = 0.0  # token 0, which fills up, is followed by anything
    for kind in ("lookup", "ngram"):
        params = Params(
            temperature=1.0,
            top_p=0.9,
            gamma=4,
            ngram=1,
            max_new_tokens=30,
            seed=5,
            draft_with=kind,
            alternatives=2,
        )
        told, tasks = [], []
        for run in (EagerSteps(), Filled()):
            tasks.append(
                decoding(TableLM(flat.expand(601, 600, 600)), None, params, [3, 1, 3, 1, 3], run_step=run)
            )
            told.append(timeless(tasks[-1]))
        assert told[0] == told[1] and [task.decoder.verifier.sampler.nucleus.width for task in tasks] == [
            256,
            256,
        ]
        assert sum(token == 0 for _, token in tasks[1].decoder.verifier.target.fed) > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "gpt2", "opt", "gemma3"])
@pytest.mark.parametrize("shape", ["greedy", "top-p"])
def test_filled_rows_of_real_models_up_to_the_end_of_the_context(name, shape):
    """gpt2 and opt have learned positions: rows that fill up stand where there are none."""
    limits = [
        {"n_positions": limit} if name == "gpt2" else {"max_position_embeddings": limit} for limit in (40, 30)
    ]
    target, drafter = tiny(name, **limits[0]), tiny(name, seed=5, **limits[1])
    drafted = set()
    for kind, near in (("model", drafter), ("model", noisy(target)), ("lookup", None), ("none", None)):
        params = dict(SHAPES[shape], draft_with=kind, gamma=5, ngram=1, max_new_tokens=100, alternatives=3)
        rounds = rounds_of(load_pair(target=target, drafter=near), **params)
        assert_nearly_the_same(rounds, rounds_of(run_by(target, near, Filled()), **params))
        assert sum(len(this_round.emitted) for this_round in rounds) == 40 - len(PROMPT)
        drafted |= {len(this_round.draft) for this_round in rounds}
    assert drafted - {0, 5}, "some round must have drafted less"


# Graphs, but for CUDA.

llama = tiny("llama")
near = noisy(llama)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "shape"), [("model", shape) for shape in SHAPES] + [(kind, "top-p") for kind in KINDS[1:]]
)
def test_recorded_is_as_run(kind, shape):
    pair, eager, filled = (
        captured(llama, near),
        load_pair(target=llama, drafter=near),
        run_by(llama, near, Filled()),
    )
    for seed in (1, 2):
        params = dict(SHAPES[shape], draft_with=kind, gamma=4, ngram=1, max_new_tokens=60, seed=seed)
        rounds = rounds_of(pair, **params)
        assert rounds == rounds_of(filled, **params), "to the last bit"
        assert_nearly_the_same(rounds, rounds_of(eager, **params))
    verified = sum(
        played.played
        for played, key in zip(pair.runner.graphs.all, pair.runner.graphs.made, strict=True)
        if key[0] == "verify"
    )
    assert verified >= len(rounds) and pair.notes == [*pair.limits]
    assert any(key[0] == "draft" for key in pair.runner.graphs.made) == (kind == "model")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "mistral", "gemma2", "opt"])
def test_recorded_is_as_run_with_other_architectures(name):
    target = tiny(name)
    pair, filled = captured(target, noisy(target)), run_by(target, noisy(target), Filled())
    for params in (
        dict(temperature=0.0),
        dict(temperature=1.0, top_p=0.9, gamma=3),
        dict(temperature=0.0, gamma=1),
    ):
        assert rounds_of(pair, max_new_tokens=90, **params) == rounds_of(filled, max_new_tokens=90, **params)
    assert {key[2] if key[0] == "verify" else key[3] for key in pair.runner.graphs.made} == {64, 128}, "spans"


@pytest.mark.slow
def test_all_kinds_of_drafters_in_turn_over_one_set_of_recordings():
    """The verifying step's inputs come from recordings and from the host by turns."""
    pair, filled = captured(llama, near), run_by(llama, near, Filled())
    for seed, kind in enumerate([*KINDS, *KINDS[::-1], "model", "lookup", "model"]):
        for params in (dict(temperature=0.0), dict(temperature=1.1, top_p=0.8)):
            params |= dict(draft_with=kind, ngram=1, gamma=4, seed=seed)
            assert rounds_of(pair, **params) == rounds_of(filled, **params)


@pytest.mark.slow
def test_the_key_of_a_recording_names_all_that_it_depends_on():
    """Runs that differ in one thing each, over one set of recordings: whatever is not in the key would be
    played as it was in another run."""
    target = tiny("gpt2", n_positions=200).requires_grad_(False)
    drafter = noisy(target)
    pair, filled = captured(target, drafter, Baked()), run_by(target, drafter, Filled())
    runs = [
        dict(),
        dict(seed=8),
        dict(max_new_tokens=90),
        dict(temperature=0.5),
        dict(top_p=0.5),
        dict(top_k=4),
        dict(top_k=5),
        dict(min_p=0.1),
        dict(min_p=0.3),
        dict(gamma=2),
    ]
    runs += [
        dict(alternatives=0),
        dict(temperature=0.0),
        dict(draft_with="ngram"),
        dict(draft_with="lookup"),
        dict(draft_with="none"),
        dict(),
    ]
    for changes in runs:
        for prompt in (PROMPT, PROMPT[:1]):
            params = (
                dict(temperature=1.0, top_p=0.9, gamma=4, ngram=1, alternatives=3, max_new_tokens=20)
                | changes
            )
            assert rounds_of(pair, prompt, **params) == rounds_of(filled, prompt, **params), (changes, prompt)
    with torch.no_grad():
        for parameter in target.parameters():
            parameter *= 1.1  # in place: what lies there is read, not what lay there
    assert rounds_of(pair) == rounds_of(filled)
    assert (
        len(pair.runner.graphs.made) == len(set(pair.runner.graphs.made)) and pair.runner.graphs.fault is None
    ), "none was made twice"


@pytest.mark.slow
def test_a_recording_that_is_rounded_otherwise_decides_from_its_first_round_on(monkeypatch):
    """As far as a graph may be from the step itself: what was tried is in no round and in no cache, so the
    run that has made the recordings has the trace of those that find them."""
    own, replay, playing = CachedLM.static_forward, Played.replay, []

    def played(self):
        playing.append(1)
        replay(self)
        playing.pop()

    def rounded(self, ids, start):
        return own(self, ids, start) * (1 + 2e-6 * len(playing))

    monkeypatch.setattr(Played, "replay", played)
    monkeypatch.setattr(CachedLM, "static_forward", rounded)
    pair = captured(llama, near, Recorder())
    first = rounds_of(pair, temperature=0.9)
    assert len(pair.runner.graphs.made) >= 2 and not pair.runner.graphs.refused
    assert rounds_of(pair, temperature=0.9) == first
    monkeypatch.setattr(Played, "replay", replay)
    assert rounds_of(pair, temperature=0.9) != first, "the recordings say something else than the steps"


def test_other_numbers_of_the_sampler_need_no_other_recording():
    """Temperature, top-p and min-p are inputs of the steps, like the uniform numbers."""
    target = tiny("gpt2").requires_grad_(False)
    drafter = noisy(target)
    pair, filled = captured(target, drafter, Baked()), run_by(target, drafter, Filled())
    numbers = [(1.0, 0.9, 0.05), (0.6, 0.7, 0.2), (1.7, 0.99, 0.01), (1.0, 0.9, 0.05)]
    texts, made = [], []
    for temperature, top_p, min_p in numbers:
        for seed in (1, 2):
            params = dict(temperature=temperature, top_p=top_p, min_p=min_p, seed=seed, max_new_tokens=30)
            rounds = rounds_of(pair, **params)
            assert rounds == rounds_of(filled, **params), "to the last bit"
            texts.append([this_round.emitted for this_round in rounds])
            made.append(
                [key[0] for key in pair.runner.graphs.made if key[1]]
            )  # but for rounds without a draft
    assert all(steps == ["draft", "verify"] for steps in made) and pair.runner.graphs.fault is None
    assert texts[:2] == texts[6:] and len({str(text) for text in texts}) == 6, "each has its own text"


def test_how_many_recordings_a_run_makes():
    """One of each step; a round at the end without a draft, and a text of one token, have other shapes."""
    pair = captured(llama, near)
    params = dict(gamma=4, temperature=0.9, top_p=0.9, seed=4, max_new_tokens=40)
    rounds = rounds_of(pair, **params)
    made = pair.runner.graphs.made
    shapes = {4 if this_round.draft else 0 for this_round in rounds}
    assert {len(this_round.draft) for this_round in rounds[:-4]} == {4} and 0 < len(rounds[-1].draft) < 4, (
        "the last rounds draft less"
    )
    assert [key[:2] for key in made] == [("draft", 4), ("verify", 4)] and shapes == {4}

    assert rounds_of(pair, **params) == rounds and len(made) == 2, "none for what was recorded"
    rounds_of(pair, **params | {"seed": 9, "draft_with": "lookup"})
    assert {key[:2] for key in made[2:]} <= {("verify", 0)}, "whoever drafts"
    before = len(made)
    rounds_of(pair, **params | {"alternatives": 2})
    assert [key[0] for key in made[before:]] == ["verify"]
    before = len(made)
    rounds_of(pair, **params | {"top_k": 9})
    assert {key[:2] for key in made[before:]} == {("draft", 4), ("verify", 4)} | {
        key[:2] for key in made[before:] if key[1] == 0
    }
    before = len(made)
    rounds_of(pair, [7], **params)
    assert [(key[0], key[2]) for key in made[before:] if key[0] == "draft"] == [("draft", 1)]


class Copies(TorchDispatchMode):
    """Counts the copies that are launched."""

    def __init__(self, counted):
        super().__init__()
        self.counted = counted

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.counted["filled"] += operation.overloadpacket.__name__ == "copy_"
        return operation(*args, **(kwargs or {}))


# Of a round: the host's numbers of each step. A draft that is made on the host is ids, and q twice.
@pytest.mark.parametrize(
    ("kind", "told", "filled"), [("model", 2, 2), ("early-exit", 2, 2), ("lookup", 2, 4), ("none", 1, 1)]
)
def test_a_step_gets_the_hosts_numbers_in_one_copy(monkeypatch, kind, told, filled):
    """From the host to where its graph reads them, which is no copy to the device and another one there."""
    pair, counted = captured(llama, near), Counter()
    monkeypatch.setattr(runner.RunSetup, "runs_ahead", False)  # each round's copies before its event
    params = dict(draft_with=kind, gamma=4, ngram=1, max_new_tokens=40, temperature=0.9, top_p=0.9)
    rounds_of(pair, **params)
    fill, for_device, on_device = graphs._fill, device.for_device, HostNumbers.on_device

    def counting_fill(static, value):
        with Copies(counted):
            fill(static, value)

    def counting_numbers(*args):
        counted["told"] += 1
        return for_device(*args)

    def counting_moves(self):
        counted["moved"] += 1
        return on_device(self)

    monkeypatch.setattr(graphs, "_fill", counting_fill)
    for module in (device, graphs):
        monkeypatch.setattr(module, "for_device", counting_numbers)
    monkeypatch.setattr(HostNumbers, "on_device", counting_moves)
    of_rounds = []
    for event in stream(pair, PROMPT, Params(seed=3, **params), measure=False):
        if isinstance(event, Round) and (event.draft or kind == "none"):
            of_rounds.append(counted.copy())
        counted.clear()
    assert len(of_rounds) > 10
    assert all(of_one == dict(told=told, filled=filled) for of_one in of_rounds[1:])


@pytest.mark.slow
def test_another_gamma_is_recorded_in_its_first_round():
    pair = captured(llama, near)
    rounds_of(pair, gamma=4)
    for gamma in (2, 6, 2, 4):
        at = []
        for event in stream(pair, PROMPT, Params(gamma=gamma, seed=3, max_new_tokens=40)):
            at += [(len(pair.runner.graphs.made), bool(event.draft))] if isinstance(event, Round) else []
        full = [made for made, drafted in at if drafted]
        assert len(set(full)) == 1, "none during the later rounds"
    assert [key[:2] for key in pair.runner.graphs.made if key[1]] == [
        (step, gamma) for gamma in (4, 2, 6) for step in ("draft", "verify")
    ]


@pytest.mark.slow
def test_the_most_that_are_kept():
    pair, filled = captured(llama, near, Recorder(most=3)), run_by(llama, near, Filled())
    held = set()
    for gamma in (4, 2, 3, 4, 2):
        for event in stream(pair, PROMPT, Params(gamma=gamma, seed=3, max_new_tokens=70)):
            held.add(len(pair.runner.graphs.graphs))
            assert event
        assert (
            timeless(pair_events := rounds_of(pair, gamma=gamma)) == rounds_of(filled, gamma=gamma)
            and pair_events
        )
    assert max(held) == 3
    assert len(pair.runner.graphs.made) > len(set(pair.runner.graphs.made)), (
        "what was let go is recorded anew"
    )
    latest = list(pair.runner.graphs.graphs)
    assert all(key[1] in (0, 2) for key in latest[-2:]), "the latest used are kept"


def test_only_what_a_recording_gives_out_is_read_where_it_lies():
    """Not another tensor that happens to lie there, as one may when a recording was let go; and never one
    place for two inputs (a lookup's q and raw q are one tensor)."""
    graphs, output = Recorder(), torch.rand(3)
    graphs.graphs["draft",] = Graph(None, None, output)
    same_memory = output.view(3)
    drawn = (same_memory, output, same_memory, same_memory, same_memory)
    static = graphs._static_input(
        VerifyInput(HostNumbers(same_memory, {"last": 3}, CPU), *drawn, same_memory)
    )
    assert static.q is output
    assert len({tensor.data_ptr() for tensor in tensors_of(static)}) == 7


@pytest.mark.slow
def test_a_wider_look_is_another_recording():
    wide = tiny("llama", vocab_size=600, scale=0.5).requires_grad_(False)
    pair, filled = captured(wide, noisy(wide), Baked()), run_by(wide, noisy(wide), Filled())
    made = []
    for _ in range(2):
        params = dict(temperature=1.5, top_p=0.95, gamma=4)
        assert rounds_of(pair, **params) == rounds_of(filled, **params)
        made.append(len(pair.runner.graphs.made))
    looks = [
        next(part[-1] for part in key if isinstance(part, tuple))
        for key in pair.runner.graphs.made
        if key[0] == "draft"
    ]
    assert looks == [256, 2048] and made[0] == made[1] and pair.runner.graphs.fault is None


@pytest.mark.slow
def test_judging_again_after_a_recording_that_has_spoiled_the_draft():
    """The verifying step was recorded first, by a run that looked things up; the drafting one's outputs lie
    in what it uses."""
    target = tiny("llama", vocab_size=600).requires_grad_(False)
    drafter = tiny("llama", vocab_size=600, seed=3).requires_grad_(False)
    with torch.no_grad():
        drafter.lm_head.weight *= (
            6  # its nuclei are small, the target's are not: the look is widened when the draft is judged
        )
    again = 0
    for seed in range(2):
        pair, filled = captured(target, drafter, Baked()), run_by(target, drafter, Filled())
        for kind in ("lookup", "model"):
            params = dict(draft_with=kind, temperature=2.0, top_p=0.98, gamma=4, ngram=1, seed=seed)
            assert rounds_of(pair, [5, 5, 5, 5], **params) == rounds_of(filled, [5, 5, 5, 5], **params)
        made = [key[0] for key in pair.runner.graphs.made if key[1]]
        again += "draft" in made and made.index("verify") < made.index("draft")
    assert again


def moved(model, how):
    before = [parameter.data_ptr() for parameter in model.parameters()]
    if how == "replaced":
        for parameter in model.parameters():
            parameter.data = parameter.data.clone()
    elif how == "there and back":
        kept = [
            parameter.data for parameter in model.parameters()
        ]  # or the weights could come to lie where they lay
        model.double().float()
        assert len(kept) == len(before)
    else:
        last = model.model.layers[1].mlp.down_proj
        last.weight = torch.nn.Parameter(last.weight.data * 0.5, requires_grad=False)
    assert before != [parameter.data_ptr() for parameter in model.parameters()]


@pytest.mark.slow
@pytest.mark.parametrize("role", ["target", "drafter"])
@pytest.mark.parametrize("how", ["replaced", "there and back", "another parameter"])
def test_weights_that_lie_elsewhere_are_recorded_anew(how, role):
    target, drafter = tiny("llama"), noisy(llama)
    pair = captured(target, drafter)
    first = rounds_of(pair)
    made = len(pair.runner.graphs.made)
    moved(target if role == "target" else drafter, how)
    again = rounds_of(pair)
    assert (
        pair.runner.graphs.made[made:] == pair.runner.graphs.made[:made]
        and len(pair.runner.graphs.graphs) == made
    )
    assert again == rounds_of(run_by(target, drafter, Filled()))
    assert (again == first) == (how != "another parameter")


@pytest.mark.parametrize(
    ("length", "most"),
    [
        (512, 6),
        pytest.param(4096, 10, marks=pytest.mark.slow),
        pytest.param(32768, 20, marks=pytest.mark.long),
    ],
)
def test_no_cache_moves_in_the_middle_of_a_text_and_a_second_one_captures_nothing(monkeypatch, length, most):
    """With the lengths of the cache that a GPU has: two graphs for each, and for one more where the last
    round's rows lie beyond the text."""
    as_on_gpu = partial(lm.kv_length_for, device=torch.device("cuda"))
    for module in (lm, heads):
        monkeypatch.setattr(module, "kv_length_for", lambda length, device: as_on_gpu(length))
    target = tiny("llama", max_position_embeddings=2 * length, num_hidden_layers=1)
    pair = captured(target, noisy(target, 0.001), Recorder(most=100))
    params = Params(
        gamma=4, temperature=0.0, max_new_tokens=length - len(PROMPT), ignore_eos=True, alternatives=0
    )
    epochs = []
    for _ in range(2):
        for event in stream(pair, PROMPT, params, measure=False):
            if isinstance(event, Round):
                epochs.append([one.buffer_epoch for one in pair.runner.lms])
    made = pair.runner.graphs.made
    assert all(one == epochs[0] for one in epochs)
    assert len(made) == len(set(made)) <= most


@pytest.mark.slow
def test_a_cache_that_has_moved_is_recorded_anew():
    """A text beyond the buffers of both caches, and then a short one: what was recorded over the old ones is
    not played."""
    pair = captured(tiny("llama", max_position_embeddings=1024), noisy(llama))
    short = rounds_of(pair)
    made, places = len(pair.runner.graphs.made), [lm.layers[0].keys.data_ptr() for lm in pair.runner.lms]
    assert rounds_of(pair, max_new_tokens=300) == rounds_of(
        run_by(pair.target, pair.drafter, Filled()), max_new_tokens=300
    )
    assert all(
        lm.layers[0].keys.data_ptr() != place for lm, place in zip(pair.runner.lms, places, strict=True)
    )
    grown = len(pair.runner.graphs.made)
    assert grown > made and rounds_of(pair) == short
    assert [key[:2] for key in pair.runner.graphs.made[grown:]] in (
        [],
        [key[:2] for key in pair.runner.graphs.made[:made]],
    )
    old = pair.runner.graphs.all[:made]
    played = [recording.played for recording in old]
    rounds_of(pair)
    assert [recording.played for recording in old] == played


@pytest.mark.parametrize("shape", [{}, {"sliding_window": 8}], ids=str)
def test_a_cache_that_was_made_anew_shares_no_recording_with_the_one_before(shape):
    """As when a model in memory was moved and moved back: its weights lie where they were."""
    pair = captured(tiny("mistral" if shape else "llama", **shape), noisy(llama))
    before = rounds_of(pair)
    made = len(pair.runner.graphs.made)
    del pair.runner.lms
    assert rounds_of(pair) == before
    keys = pair.runner.graphs.made
    assert len(keys) == 2 * made and not {*keys[:made]} & {*keys[made:]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fails", "error"), [(1, RuntimeError), (2, torch.OutOfMemoryError), (3, TypeError), (4, RuntimeError)]
)
def test_what_cannot_be_recorded_is_run_as_it_is(fails, error):
    """The drafting step, the verifying one, and those of another span in the middle of the text."""
    pair = captured(llama, near, Recorder(fails=fails, error=error))
    params = dict(max_new_tokens=80, temperature=0.9)
    assert_nearly_the_same(
        rounds_of(pair, **params), rounds_of(load_pair(target=llama, drafter=near), **params)
    )
    assert len(pair.runner.graphs.made) == fails - 1 and not pair.runner.graphs.graphs, (
        "nothing is tried again, and nothing kept"
    )
    (note,) = set(pair.notes) - set(pair.limits)
    assert FAILURES[error].replace("\n", " ") in note and "\n" not in note
    again, plain = rounds_of(pair), rounds_of(load_pair(target=llama, drafter=near))
    assert len(pair.runner.graphs.made) == fails - 1
    if error is torch.OutOfMemoryError:  # there may be room by now, so capturing is tried in each run
        assert_nearly_the_same(again, plain)
    else:
        assert again == plain


def test_a_recording_that_fails_in_the_last_round():
    """Its drafts have more rows than are drafted, and the verifying step that was to take them is run as it
    is."""
    params = dict(gamma=4, max_new_tokens=3, temperature=0.9, top_p=1.0)
    for fails in (1, 2):
        pair = captured(llama, near, Recorder(fails=fails))
        rounds = rounds_of(pair, **params)
        assert_nearly_the_same(rounds, rounds_of(load_pair(target=llama, drafter=near), **params))
        assert len(rounds[0].draft) == 2 and pair.runner.graphs.blocker


def test_an_error_of_the_step_itself_is_told_as_one():
    """It is no failure of the recording, and running it as it is says so."""
    broken = tiny("llama")
    pair = captured(broken, near)
    broken.lm_head.weight.data.fill_(math.nan)
    with pytest.raises(RuntimeError, match="the target's probabilities are not numbers"):
        rounds_of(pair)


def test_nothing_is_recorded_on_zerogpu(monkeypatch):
    monkeypatch.setenv("SPACES_ZERO_GPU", "1")
    pair = captured(llama, near, Recorder())
    assert rounds_of(pair) == rounds_of(load_pair(target=llama, drafter=near))
    assert not pair.runner.graphs.made and any("ZeroGPU" in note for note in pair.notes)
    monkeypatch.delenv("SPACES_ZERO_GPU")
    assert Graphs(Clock()).blocker is None


def test_asked_not_to_record():
    pair = load_pair(target=llama, drafter=near)
    assert pair.runner.capture == "off" and isinstance(pair.runner.begin_run().run_step, EagerSteps)
    rounds_of(pair, max_new_tokens=60)
    assert not any(lm._seen or lm.captures for lm in pair.runner.lms), (
        "models in memory may have hooks of their owner"
    )
    assert pair.notes == [*pair.limits]


# TorchScriptLM: the forward of a model on a CPU.


def traced(model):
    lm = TorchScriptLM(model, Clock())
    lm.begin_run(static=True)
    return lm


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_trace_says_what_the_model_says(name):
    """Any positions, any of three numbers of rows, up to the fourth span and back."""
    model = tiny(name)
    lm, plain = traced(model), CachedLM(model)
    plain.begin_run(static=True)
    draw, held = random.Random(name), 0
    replayed = 0
    with torch.no_grad():
        for step in range(150):
            n = draw.choice([1, 2, 5])
            start = draw.randrange(max(0, held - 7), held + 1) if step % 40 else 0
            held = start + n
            ids = torch.tensor(draw.choices(range(VOCAB), k=n))
            for each in (lm, plain):
                each.reserve(start, held)
            replayed += ((n, ()), lm.kv_length) in lm.trusted
            assert torch.equal(lm.forward(ids, torch.tensor(start)), plain.forward(ids, torch.tensor(start)))
            if step == 75:
                prompt = torch.tensor(draw.choices(range(VOCAB), k=200))
                for each in (lm, plain):
                    each.prefill(prompt)
                held = 200
    assert lm.blocker is None
    assert (
        {n for (n, _), _ in lm.trusted} == {1, 2, 5}
        and {64, 256} <= {span for _, span in lm.trusted}
        and replayed > 80
    )


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory):
    """Directories of a target and a drafter, whose texts pass several spans."""
    places = [tmp_path_factory.mktemp(role) for role in ("target", "drafter")]
    target = tiny("llama", vocab_size=300, max_position_embeddings=300)
    for place, model in zip(places, (target, noisy(target)), strict=True):
        model.save_pretrained(place)
        tokenizer().save_pretrained(place)
    return {"target": places[0], "drafter": places[1]}


def untraced(pair, prompt, **params):
    """The same steps with no trace made of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TorchScriptLM, "CAPTURE_AFTER", 10**9)
        pair = pair.with_capture("auto")
        rounds = rounds_of(pair, prompt, **params)
    assert not any(lm.captures for lm in pair.runner.lms)
    return rounds


def as_it_is(pair, prompt, **params):
    return rounds_of(pair.with_capture("off"), prompt, **params)


LONG = dict(max_new_tokens=150, ignore_eos=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("which", "params"),
    [
        ("embedded", dict(temperature=0.8, top_p=0.9)),
        pytest.param("embedded", dict(temperature=0.0, draft_with="ngram"), marks=pytest.mark.slow),
        ("on disk", dict(temperature=0.0)),
        pytest.param(
            "on disk", dict(temperature=0.8, top_p=0.9, draft_with="lookup"), marks=pytest.mark.slow
        ),
        pytest.param("on disk", dict(temperature=1.1, top_k=9, gamma=7), marks=pytest.mark.slow),
        ("on disk", dict(draft_with="none", temperature=1.0)),
    ],
    ids=str,
)
def test_a_loaded_pair_writes_the_same_traced(which, params, embedded, on_disk):
    pair = embedded if which == "embedded" else load_pair(**on_disk)
    params = LONG | params
    kind = params.get("draft_with", "model")
    rounds = rounds_of(pair, "Once upon a time the cat sat", **params)
    assert sum(len(this_round.emitted) for this_round in rounds) == 150
    assert rounds == untraced(pair, "Once upon a time the cat sat", **params), "to the last bit"
    assert_nearly_the_same(rounds, as_it_is(pair, "Once upon a time the cat sat", **params))
    assert all(lm.blocker is None for lm in pair.runner.lms) and pair.notes == [*pair.limits]
    spans = [
        {span for (n, _), span in lm.trusted if n == rows}
        for lm, rows in zip(
            pair.runner.lms, (1 if kind == "none" else params.get("gamma", 4) + 1, 1), strict=True
        )
    ]
    assert spans[0] >= {128} and (kind != "model" or spans[1] >= {128})


@pytest.fixture(scope="module")
def embedded():
    return load_pair(device="cpu")


def listened(pair, part, how, calls):
    """Lets somebody listen to the target, and gives what ends that."""
    module = {"model": pair.target, "layer": pair.target.get_output_embeddings()}[part]
    if how == "hook":
        return module.register_forward_hook(lambda *_: calls.append(1)).remove
    if how == "pre-hook":
        return module.register_forward_pre_hook(lambda *_: calls.append(1)).remove
    own = module.forward

    def forward(*args, **kwargs):
        calls.append(1)
        return own(*args, **kwargs)

    module.forward = forward
    return lambda: vars(module).pop("forward")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["hook", "pre-hook", "patched"])
@pytest.mark.parametrize("part", ["model", "layer"])
def test_who_listens_hears_every_forward(on_disk, part, how):
    pair, calls = load_pair(**on_disk), []
    params = dict(max_new_tokens=60, temperature=0.0, ignore_eos=True)
    rounds = rounds_of(pair, "the cat", **params)
    assert pair.runner.lms[0].trusted
    ends = listened(pair, part, how, calls)
    assert_nearly_the_same(rounds_of(pair, "the cat", **params), rounds)
    assert len(calls) == len(rounds) + 1, "and the prefill"
    ends()
    rounds_of(pair, "the cat", **params)
    assert len(calls) == len(rounds) + 1 and pair.notes == [*pair.limits]


@pytest.mark.slow
@pytest.mark.parametrize("where", [0, 100], ids=["everywhere", "after the first span"])
def test_a_trace_that_lies_is_caught_before_it_is_believed(monkeypatch, on_disk, where):
    own = TorchScriptLM._capture

    def lies(self, ids, start):
        trace = own(self, ids, start)

        def a_little_off(ids, start, ruler, *tensors):
            logits = trace(ids, start, ruler, *tensors)
            if len(ruler) <= where:
                return logits
            tensors[-1][:, :, start : start + len(ids)] += 1  # values in the cache
            return logits + 1e-6 * logits.abs().max()

        return a_little_off

    monkeypatch.setattr(TorchScriptLM, "_capture", lies)
    pair = load_pair(**on_disk)
    rounds = rounds_of(pair, "the cat", temperature=0.9, **LONG)
    assert {bool(lm.trusted) for lm in pair.runner.lms} == {where > 0}
    assert all(span <= where for lm in pair.runner.lms for _, span in lm.trusted)
    notes = [note for note in pair.notes if note not in pair.limits]
    assert [note.split(" cannot")[0] for note in notes] == ["the target", "the drafter"]
    assert all("something other than the model" in note for note in notes)
    assert_nearly_the_same(rounds, as_it_is(pair, "the cat", temperature=0.9, **LONG))


def test_a_trace_that_cannot_be_made(monkeypatch, on_disk):
    def fails(self, ids, start):
        raise NotImplementedError("no tracing\nof this one")

    monkeypatch.setattr(TorchScriptLM, "_capture", fails)
    pair = load_pair(**on_disk)
    rounds = rounds_of(pair, "the cat", **LONG)
    assert any("no tracing of this one" in note for note in pair.notes)
    assert_nearly_the_same(rounds, as_it_is(pair, "the cat", **LONG))


@pytest.mark.slow
def test_a_pair_that_goes_leaves_no_weights_behind(on_disk):
    pair = load_pair(**on_disk)
    rounds_of(pair, "the cat", **LONG)
    assert all(lm.trusted for lm in pair.runner.lms)
    held = [
        tensor
        for lm in pair.runner.lms
        for tensor in (
            *lm.model.parameters(),
            *(t for layer in lm.layers for t in (layer.keys, layer.values)),
        )
    ]
    held = [StorageWeakRef(tensor.untyped_storage()) for tensor in held]
    assert len(held) > 40 and not any(storage.expired() for storage in held)
    del pair
    gc.collect()
    assert all(storage.expired() for storage in held)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["in place", "replaced", "another parameter"])
def test_weights_that_have_changed_are_used(on_disk, how):
    pair = load_pair(**on_disk)
    params = dict(LONG, temperature=0.0)
    first = rounds_of(pair, "the cat", **params)
    believed = set(pair.runner.lms[0].trusted)
    head = pair.target.get_output_embeddings()
    with torch.no_grad():
        if how == "in place":
            for parameter in pair.target.parameters():
                parameter.mul_(1.2)
        elif how == "replaced":
            head.weight.data = head.weight.data.flip(0)
        else:
            head.weight = torch.nn.Parameter(head.weight.flip(0))
    changed = rounds_of(pair, "the cat", **params)
    assert changed != first and changed == untraced(pair, "the cat", **params)
    assert believed <= pair.runner.lms[0].trusted and pair.notes == [*pair.limits]


def made_slow(monkeypatch, owner, name):
    """Lets the engine's clock jump by an hour in each call of a function; gives the list of its calls."""
    calls, own, seconds = [], getattr(owner, name), time.perf_counter

    def slow(*args, **kwargs):
        calls.append(args)
        return own(*args, **kwargs)

    monkeypatch.setattr(owner, name, slow)
    monkeypatch.setattr("specdemo.runtime.device.perf_counter", lambda: seconds() + 3600 * len(calls))
    return calls


def longest_ms(trace):
    return max(max(each.draft_ms, each.verify_ms) for each in trace.rounds)


def test_tracing_is_in_no_rounds_time(monkeypatch, on_disk):
    pair = load_pair(**on_disk)
    calls = made_slow(monkeypatch, torch._C, "_create_graph_by_tracing")
    trace = generate(pair, "the cat", Params(**LONG, gamma=6, temperature=0.0))
    assert len(calls) == 1, (
        "the target's forward of 7 rows; that of one drafted token was traced while loading"
    )
    assert longest_ms(trace) < 600_000


def test_capturing_is_in_no_rounds_time(monkeypatch):
    recorder = Recorder()
    calls = made_slow(monkeypatch, recorder, "_capture")
    trace = generate(captured(llama, near, recorder), PROMPT, Params(seed=3, max_new_tokens=20))
    assert len(calls) >= 2 and longest_ms(trace) < 600_000


@pytest.mark.slow
def test_weights_that_no_longer_lie_together_are_captured_anew():
    """Casting a model there and back moves each weight to memory of its own."""
    pair = load_pair(device="cpu")
    before = rounds_of(pair, "Once upon a time", temperature=0.0)
    assert pair.runner.lms[0].captures
    pair.target.double().float()
    assert_nearly_the_same(rounds_of(pair, "Once upon a time", temperature=0.0), before)
    assert pair.runner.lms[0].blocker is None
