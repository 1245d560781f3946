"""The two steps of a round never wait for the device, which is what lets a CUDA graph record them. On a CPU
nothing waits, so the operations are counted that would make the host wait on a GPU. Every way of drafting
runs in test_rounds_without_numbers.py, over tensors that nobody can look at."""

from dataclasses import replace

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from specdemo.engine.sampling import Sampler, uniforms
from specdemo.events import RULES, Params
from specdemo.runtime.lm import CachedLM
from specdemo.runtime.steps import EagerSteps
from tests.oracle import TableLM, decoding, make_drafter, random_table
from tests.tiny import ARCHITECTURES, tiny

WAITS = {
    "_local_scalar_dense", "item", "nonzero", "nonzero_static", "masked_select", "_unique2", "unique_dim",
    "unique_consecutive", "equal", "is_nonzero", "bincount",
}  # fmt: skip


class Reads(TorchFunctionMode):
    """Notes what reads a tensor's memory on a CPU without any operation."""

    def __init__(self, found):
        super().__init__()
        self.found = found

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if getattr(function, "__name__", "") in ("tolist", "numpy", "__array__"):
            self.found.append(function.__name__)
        return function(*args, **(kwargs or {}))


class Waits(TorchDispatchMode):
    """Notes what would make the host wait."""

    def __init__(self):
        super().__init__()
        self.found = []
        self.reads = Reads(self.found)

    def __enter__(self):
        self.reads.__enter__()
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self.reads.__exit__(*error)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        output = function(*args, **(kwargs or {}))
        indices = [one for argument in args if isinstance(argument, (list, tuple)) for one in argument]
        masks = [one for one in indices if getattr(one, "dtype", None) in (torch.bool, torch.uint8)]
        by_mask = bool(masks) and name.startswith(("index", "_index"))
        repeats = name == "repeat_interleave" and not (kwargs or {}).get("output_size")
        if name in WAITS or by_mask or repeats:
            self.found.append(name)
        return output


class Kept(EagerSteps):
    """Runs the steps, and keeps them with what they were given. With rows as a recording has them."""

    def __init__(self):
        self.steps = {}

    def rows(self, k, gamma):
        return gamma if k else 0

    def __call__(self, key, step, value, expected=None):
        self.steps[key[0]] = (step, value)
        return value, step(value)


SAMPLERS = {
    "greedy": dict(temperature=0.0),
    "temperature and top-p": dict(temperature=0.8, top_p=0.9),
    "top-k": dict(temperature=1.0, top_k=5, top_p=1.0),
    "min-p": dict(temperature=1.0, top_p=1.0, min_p=0.1),
    "all": dict(temperature=1.3, top_k=20, top_p=0.9, min_p=0.05),
    "adjusted": dict(repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.2, logit_bias={5: 1}),
}
TEXT = [3, 1, 4, 1, 5, 9, 3, 1]
WIDE = 400  # tokens: more than top-p looks at first


def recordable(model):
    lm = CachedLM(model)
    lm.begin_run(static=True)
    return lm


@torch.no_grad()
def steps_of(target, drafter, kind, sampler, k=4, **settings):
    """One round's two steps, which have run once before: {"draft": (step, inputs), "verify": ...}."""
    settings = SAMPLERS[sampler] | settings
    params = Params(gamma=4, max_new_tokens=40, alternatives=3, seed=1, **settings)
    run, shared = Kept(), Sampler(params)
    if kind != "model":
        params = replace(params, tree=(2, 1) if kind == "tree" else "auto")
    drafting = make_drafter("model", shared, target.vocab_size, drafter, run_step=run, tree=params.tree)
    verifier = decoding(target, drafting, params, TEXT, run_step=run, sampler=shared).decoder.verifier
    target.prefill(torch.tensor(TEXT[:-1]))
    drafting.start(TEXT)
    u = uniforms(1, 0, 16)
    verifier.launch(TEXT, drafting.propose(TEXT, k, u.draft), u)
    assert run.steps.keys() == NOTHING.keys()
    return run.steps


def waits_of(steps):
    found = {}
    for name, (step, value) in steps.items():
        with torch.no_grad(), Waits() as waits:
            step(value)
        found[name] = waits.found
    return found


NOTHING = {"draft": [], "verify": []}


@pytest.fixture(scope="module")
def wide():
    """A vocabulary that is wider than top-p's first look, and a drafter of another width."""
    return tiny("llama", vocab_size=WIDE), tiny("llama", vocab_size=WIDE + 8)


def check_nothing_waits(models, kind, sampler, **how):
    assert waits_of(steps_of(*map(recordable, models), kind, sampler, **how)) == NOTHING


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_no_sampler_waits(wide, sampler):
    check_nothing_waits(wide, "model", sampler)


@pytest.mark.parametrize("rule", RULES)
def test_no_rule_waits(wide, rule):
    check_nothing_waits(wide, "model", "all", rule=rule)


@pytest.mark.parametrize("kind", ["model", "tree", "grown tree"])
def test_rows_that_fill_up_wait_no_more_nor_does_a_measure_of_confidence(wide, kind):
    """A drafter on a CPU reads numbers to stop early; on a GPU the verifying step alone ends the draft."""
    check_nothing_waits(wide, kind, "adjusted", k=2)
    if kind == "model":
        check_nothing_waits(wide, kind, "all", confidence=0.5)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_no_architecture_waits(name):
    model = tiny(name)
    check_nothing_waits((model, model), "model", "all")


def test_a_model_that_looks_is_noticed_in_both_steps():
    table = random_table(1, 10)
    target, drafter = TableLM(table), TableLM(table)  # they look at the position that they are told
    steps = steps_of(target, drafter, "model", "greedy")
    target.next, drafter.next = len(TEXT) - 1, len(TEXT) - 2
    found = waits_of(steps)
    assert found["draft"].count("_local_scalar_dense") >= 4 and "_local_scalar_dense" in found["verify"]
