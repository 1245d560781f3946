"""Both steps of a round on a GPU that is not there, over tensors without numbers: torch's meta device stands
in for it. An operation over tensors of two devices raises, and so does a look at numbers. Nothing is copied
from the CPU within a step, for which the host would wait."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM, Glm4MoeConfig

from specdemo.drafters.assistant import ASSISTANTS, CachedAssistant
from specdemo.drafters.base import Materials
from specdemo.drafters.early_exit import FirstLayersLM
from specdemo.drafters.heads import DraftHead
from specdemo.drafters.model import ModelDrafter
from specdemo.drafters.mtp import CachedMtp, MtpModel, as_mtp_owner
from specdemo.drafters.table import make_drafter
from specdemo.drafters.text import JoinedDrafter
from specdemo.engine.sampling import Sampler, uniforms
from specdemo.engine.tree import tree_of
from specdemo.events import DRAFTER_KINDS, LISTED, Params
from specdemo.runtime import cuda
from specdemo.runtime.cuda import Clock
from specdemo.runtime.graphs import Graph, Graphs
from specdemo.runtime.lm import CachedLM
from specdemo.runtime.steps import EagerSteps
from tests.block_heads import DFLASH2, tiny_block_head
from tests.checkpoints import gemma4, gemma4_assistant
from tests.eagle_heads import tiny_eagle_head
from tests.fake_cuda import Properties
from tests.heads import tiny_head
from tests.oracle import decoding
from tests.runners import cached
from tests.small import small_config
from tests.tiny import tiny

pytestmark = pytest.mark.slow
GPU = torch.device("meta")
TEXT = [3, 1, 4, 1, 5, 9, 3, 1]
EMITTED = [4, 1, 5, 9, 3]  # by a round after it
WIDE = 128_256  # tokens, as of a Llama; a head drafts at least a third of them
SETTINGS = dict(gamma=2, max_new_tokens=40, ngram=2, seed=1)
FILTERS = dict(temperature=0.8, top_k=50, top_p=0.9, min_p=0.05)
ADJUSTED = dict(repetition_penalty=1.1, frequency_penalty=0.5, logit_bias={5: 1.0}, confidence=0.3)


class OnGPU(TorchDispatchMode):
    """Fails where something is copied from or to the CPU, or is float64 and as wide as a vocabulary: consumer
    GPUs compute that at a 64th of the speed."""

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None):
        output = function(*args, **(kwargs or {}))
        source = {"_to_copy": 0, "copy_": 1}.get(function.overloadpacket.__name__)
        if source is not None and output.numel():
            assert (args[source].device == GPU) == (output.device == GPU), "the host would wait for it"
        for one in tree_leaves(output):
            is_tensor = isinstance(one, torch.Tensor)
            assert not (is_tensor and one.dtype == torch.float64 and one.shape[-1:] >= (WIDE // 3,)), function
        return output


class Checked(Graphs):
    """A graph's step is checked when it is captured; its replay does nothing. All else is the engine's
    own."""

    def _add(self, key, step, value, expected):
        static = self._static_input(value)
        with OnGPU():
            output = step(static)
        self.graphs[key] = Graph(SimpleNamespace(replay=lambda: None), static, output)
        return True


class CheckedSteps(EagerSteps):
    """For what drafts uncaptured."""

    def __call__(self, key, step, value, expected=None):
        value = value.on_device()
        with OnGPU():
            return value, step(value)


def check_rounds(models: Callable, params: Params) -> None:
    """Two rounds of a text: the second one replays what the first has captured."""
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        with GPU:  # the default here only, so that what a round leaves on the CPU is found there
            target, drafter = models()
        if isinstance(drafter, DraftHead):
            drafter.rotary.to(GPU)  # its angles are made on the CPU
        lm = ready(CachedLM(target))
        drafting = drafting_with(lm, drafter, params)
        graphs, sampler = Checked(Clock()), Sampler(params, len(TEXT))
        run_drafting = graphs if drafting is None or drafting.is_captured else CheckedSteps()
        limits = dict(context=1000, drafter_context=1000, tree=tree_of(params) if params.tree else None)
        materials = Materials(params, sampler, lm, drafting, run_drafting, **limits)
        drafts = make_drafter(materials)
        verifier = decoding(lm, drafts, params, TEXT, run_step=graphs, sampler=sampler).decoder.verifier
        for model in (lm, drafting):
            if isinstance(model, CachedLM):
                begin_text(model)
        starts = drafts.first if isinstance(drafts, JoinedDrafter) else drafts
        if not isinstance(starts, ModelDrafter):
            starts.start(TEXT)
        for index, ids in enumerate((TEXT, TEXT + EMITTED)):
            captured, u = [*graphs.graphs], uniforms(1, index, verifier.gamma)
            draft = drafts.propose(ids, verifier.gamma, u.draft)
            verifier.launch(ids, draft, u)
    assert captured and [*graphs.graphs] == captured


def drafting_with(lm, drafter, params):
    if params.draft_with == "early-exit":
        return ready(FirstLayersLM(lm, params.exit_layer))
    if isinstance(drafter, DraftHead):
        head = cached(drafter, lm.model)
        head.check_alike = lambda *_: None  # as in `ready`
        head.begin_run(static=True)
        return head
    if drafter is None or isinstance(drafter, CachedMtp):
        return drafter
    is_assistant = drafter.config.model_type in ASSISTANTS
    return CachedAssistant(drafter, lm.model) if is_assistant else ready(CachedLM(drafter))


def ready(lm):
    lm._check_fused = lambda: None  # numbers cannot be compared here
    lm.begin_run(static=True)
    return lm


def begin_text(lm):
    """In place of LM.prefill, which looks at the numbers of its tensor. The first static forward makes what
    the later ones use."""
    ids = torch.tensor(TEXT[:-1], device=GPU)
    if not isinstance(lm, FirstLayersLM):  # whose cache is the target's
        lm.static = False
        lm.reserve(0, len(TEXT))
        lm._plain_forward(ids)
        lm.static = True
    lm.reserve(len(ids), len(TEXT))
    lm.static_forward(ids[-1:], ids[-1])


def with_head(head, **options):
    def models():
        target = tiny(vocab_size=WIDE)
        return target, head(target, **options)

    return models


def with_model(pard_token=None):
    drafter = tiny(seed=1, vocab_size=WIDE)
    drafter.config.pard_token = pard_token
    return tiny(vocab_size=WIDE), drafter


def with_assistant():
    target = gemma4(vocab_size=WIDE)
    return target, gemma4_assistant(target)


def with_mtp():
    if MtpModel is None:
        pytest.skip("this version of transformers cannot run such layers")
    torch.set_default_dtype(torch.bfloat16)  # in which torch multiplies by a GPU's experts
    try:
        config = small_config(Glm4MoeConfig, 2)
        config.vocab_size = WIDE
        target = AutoModelForCausalLM.from_config(config).eval()
        return target, CachedMtp(MtpModel(as_mtp_owner(target), 1).eval(), target)
    finally:
        torch.set_default_dtype(torch.float32)


def alone():
    return tiny(vocab_size=WIDE), None


# A row of LISTED (of which all that copy from the text do the same), or of DRAFTER_KINDS: the models, and
# what Params say.
DRAFTERS = {
    "lookup": (alone, dict(draft_with="lookup")),
    "lookup+model": (with_model, dict(draft_with="lookup+model")),
    "none": (alone, dict(draft_with="none", alternatives=0)),
    "early-exit": (alone, dict(draft_with="early-exit", exit_layer=1)),
    "mtp": (with_mtp, dict(draft_with="mtp")),
    "assistant": (with_assistant, {}),
    "model": (with_model, {}),
    "pard": (lambda: with_model(pard_token=7), {}),
    "eagle": (with_head(tiny_eagle_head), {}),
    "eagle3": (with_head(tiny_head, draft_ids=list(range(0, WIDE, 3))), {}),
    "peagle": (with_head(tiny_head, mask_token_id=7), {}),
    "dflash": (with_head(tiny_block_head), {}),
    "dflash2": (with_head(tiny_block_head, **DFLASH2), {}),
    "dspark": (with_head(tiny_block_head, markov_rank=6, has_confidence=True), {}),
}
RUNS = [(name, {}) for name in DRAFTERS]
RUNS += [(name, dict(tree=(2, 1))) for name in ("model", "eagle3")]


@pytest.fixture(autouse=True)
def there_is_a_gpu(monkeypatch):
    monkeypatch.setattr(cuda, "is_cuda", lambda device: torch.device(device) == GPU)
    monkeypatch.setattr(cuda, "has_triton", lambda device: False)
    monkeypatch.setattr(cuda, "can_pin", lambda: False)  # these tensors have no memory
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device=None: Properties())


@pytest.mark.parametrize(("name", "changes"), RUNS, ids=str)
def test_steps_find_all_on_the_gpu_and_look_at_no_numbers(name, changes):
    models, how = DRAFTERS[name]
    adjusted = not changes and name in ("model", "eagle3", "dspark")
    check_rounds(models, Params(**SETTINGS | (ADJUSTED if adjusted else FILTERS) | changes | how))


def test_no_way_of_drafting_is_left_out():
    copying = {name for name, one in LISTED.items() if one.manner == "copy" and "+" not in name}
    assert DRAFTERS.keys() - copying == (LISTED.keys() | DRAFTER_KINDS.keys()) - copying
