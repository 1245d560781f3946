"""What a round gives a CUDA device that is not there. torch's CUDA build computes every operation's shape,
dtype and device without one (FakeTensorMode). An operation over tensors of two devices raises, and so does a
look at numbers."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedModel

from specdemo.drafters.assistant.model import CachedAssistant, is_assistant
from specdemo.drafters.base import Materials
from specdemo.drafters.chain.drafter import ChainDrafter
from specdemo.drafters.early_exit.layers import FirstLayersLM
from specdemo.drafters.heads import DraftHead
from specdemo.drafters.model.drafter import ModelDrafter
from specdemo.drafters.ways import way_called
from specdemo.engine.sampling import Sampler, uniforms
from specdemo.events import Params
from specdemo.runtime import cuda
from specdemo.runtime.cache import Cached
from specdemo.runtime.device import Clock
from specdemo.runtime.graphs import Graph, Graphs
from specdemo.runtime.linear import join_weights
from specdemo.runtime.lm import CachedLM
from specdemo.runtime.steps import EagerSteps
from tests.oracle import decoding

CUDA = torch.device("cuda:0")
TEXT = [3, 1, 4, 1, 5, 9, 3, 1]
EMITTED = [4, 1, 5, 9, 3]  # by a round after it
# Operations that only look at memory in another way.
VIEWS = {
    "_reshape_alias", "_unsafe_view", "alias", "as_strided", "detach", "device", "expand", "lift_fresh",
    "permute", "select", "slice", "split", "split_with_sizes", "squeeze", "t", "transpose", "unbind",
    "unsqueeze", "view",
}  # fmt: skip
NOTHING_WRITTEN = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
SEVERAL_KERNELS = {"few_rows_attention": 2, "qbytes_mm": 2}  # operations that launch more than one
FROM_HOST, ON_DEVICE = "from the host", "copy_"


class Launches(TorchDispatchMode):
    """Notes by name what the device is given, for each part of a round. Attention is one operation, which
    without a device is computed from its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.names: dict[str, list[str]] = {}
        self.part = ""
        self.attention = Attention(self)

    @contextmanager
    def of(self, part: str) -> Iterator[None]:
        """Notes what follows as this part's, in place of what was noted of it before."""
        before, self.part, self.names[part] = self.part, part, []
        try:
            yield
        finally:
            self.part = before

    def __enter__(self) -> "Launches":
        self.attention.__enter__()
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self.attention.__exit__(*error)

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        output = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        written = [one for one in tree_leaves(output) if isinstance(one, Tensor) and one.numel()]
        if name not in VIEWS | NOTHING_WRITTEN and any(one.is_cuda for one in written):
            source = {"_to_copy": 0, "copy_": 1}.get(name)
            self.note(name if source is None or args[source].is_cuda else FROM_HOST)
        return output

    def note(self, name: str) -> None:
        self.names[self.part] += [name] * SEVERAL_KERNELS.get(name, 1)


class Attention(TorchFunctionMode):
    def __init__(self, launches: Launches):
        super().__init__()
        self.launches = launches

    def __torch_function__(
        self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        if getattr(function, "__name__", "") != "scaled_dot_product_attention":
            return function(*args, **(kwargs or {}))
        self.launches.note("scaled_dot_product_attention")
        query, _, value = args[:3]
        return query.new_empty(*query.shape[:-1], value.shape[-1])


class CountedGraphs(Graphs):
    """What a graph would launch is noted when it is captured; its replay does nothing. All else, such as what
    is copied for a replay, is the engine's own."""

    def __init__(self, launches: Launches):
        super().__init__(Clock())
        self.launches = launches

    def _add(self, key: tuple, step: Callable, value: Any, expected: Callable | None) -> bool:
        static = self._static_input(value)
        with self.launches.of(key[0]):
            output = step(static)
        self.graphs[key] = Graph(SimpleNamespace(replay=lambda: None), static, output)
        return True


class CountedSteps(EagerSteps):
    """For what drafts uncaptured."""

    def __init__(self, launches: Launches):
        self.launches = launches

    def __call__(
        self, key: tuple, step: Callable, value: Any, expected: Callable | None = None
    ) -> tuple[Any, Any]:
        value = value.on_device()
        with self.launches.of(key[0]):
            return value, step(value)


@dataclass(frozen=True)
class Counted:
    """A round's operations by name. draft, verify: of the two steps. The host launches the others one by
    one."""

    draft: list[str]
    verify: list[str]
    host: list[str]

    @property
    def from_host(self) -> int:
        """Copies to the device outside of the steps."""
        return self.host.count(FROM_HOST)

    @property
    def on_device(self) -> int:
        """Copies on it to where a graph reads them."""
        return self.host.count(ON_DEVICE)

    @property
    def others(self) -> int:
        return len(self.host) - self.from_host - self.on_device


Models = Callable[[], Sequence[Any]]  # makes a target, and a drafter or None


def count_round(models: Models, params: Params, dtype: torch.dtype = torch.bfloat16) -> Counted:
    """The second round of a text, whose steps the first one has captured."""
    launches = Launches()
    unpinned = patch.object(cuda, "can_pin", lambda: False)  # fake tensors have no memory to look at
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad(), unpinned:
        # The device is the default one here only, so that what a round leaves on the CPU is found there.
        with CUDA, _default_dtype(dtype):
            target, drafter = models()
        if isinstance(drafter, DraftHead):
            drafter.rotary.to(CUDA)  # its angles are made on the CPU
        lm = _ready(CachedLM(target))
        drafting = _drafting(lm, drafter, params)
        graphs, sampler = CountedGraphs(launches), Sampler(params, len(TEXT))
        captured = drafting is None or drafting.is_captured
        run_drafting = graphs if captured else CountedSteps(launches)
        limits = dict(context=1000, drafter_context=1000)
        materials = Materials(params, sampler, lm, drafting, run_drafting, **limits)
        drafts = way_called(params.draft_with).build(materials)
        verifier = decoding(lm, drafts, params, TEXT, run_step=graphs, sampler=sampler).decoder.verifier
        for model in (lm, drafting):
            if isinstance(model, CachedLM):
                _begin_text(model)
        starts = drafts.first if isinstance(drafts, ChainDrafter) else drafts
        if not isinstance(starts, ModelDrafter):
            starts.start(TEXT)
        captured_before = {}
        with launches:
            for index, ids in enumerate((TEXT, TEXT + EMITTED)):
                captured_before, u = dict(graphs.graphs), uniforms(1, index, verifier.gamma)
                with launches.of("host"):
                    draft = drafts.propose(ids, verifier.gamma, u.draft)
                    verifier.launch(ids, draft, u)
    assert graphs.graphs.keys() == captured_before.keys(), "the second round replays"
    names = {"draft": []} | launches.names
    return Counted(**names)


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _drafting(lm: CachedLM, drafter: Any, params: Params) -> Cached | None:
    if params.draft_with == "early-exit":
        return _ready(FirstLayersLM(lm, params.exit_layer))
    if isinstance(drafter, DraftHead):
        join_weights(drafter)  # as loading does
        head = drafter.cached(lm.model)
        head.check_alike = lambda *_: None  # as in _ready
        head.begin_run(static=True)
        return head
    if is_assistant(drafter):
        return CachedAssistant(drafter, lm.model)
    return _ready(CachedLM(drafter)) if isinstance(drafter, PreTrainedModel) else drafter


def _ready(lm: CachedLM) -> CachedLM:
    join_weights(lm.model)
    lm._check_fused = lambda: None  # numbers cannot be compared here
    lm.begin_run(static=True)
    return lm


def _begin_text(lm: CachedLM) -> None:
    """As LM.prefill, which is given a tensor and looks at its numbers. A first static forward makes what
    later ones find."""
    ids = torch.tensor(TEXT[:-1], device=CUDA)
    if not isinstance(lm, FirstLayersLM):  # whose cache is the target's
        lm.static = False
        lm.reserve(0, len(TEXT))
        lm._plain_forward(ids)
        lm.static = True
    lm.reserve(len(ids), len(TEXT))
    lm.static_forward(ids[-1:], ids[-1])
