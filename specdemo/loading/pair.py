"""A loaded pair of models, and what is to be known of it."""

import threading
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

import torch
from transformers import PreTrainedModel

from specdemo.events import PairInfo
from specdemo.runtime.graphs import Eager, Graphs
from specdemo.runtime.lm import CachedLM, context_of, logits_width
from specdemo.runtime.torchscript import Traced, watched

SMALL = 50_000_000  # parameters


@dataclass(frozen=True)
class Bytes:
    target: int
    drafter: int | None


@dataclass(eq=False)
class Pair:
    """A target and, if any, a drafter, ready to run; one run at a time (`lock`)."""

    target: PreTrainedModel
    drafter: PreTrainedModel | None
    tokenizer: object | None
    info: PairInfo
    dtype_reason: str
    limits: list[str]  # what a user should know: what is not applied, what is limited
    target_step_ms: float | None = (
        None  # one-token forwards; None for models given in memory, which are left alone
    )
    drafter_step_ms: float | None = None
    record: bool = True  # whether steps are recorded and replayed; False runs them as they are
    compile: bool = False  # whether forwards that are recorded on CUDA are compiled first, which takes minutes and fuses small operations
    listened_to: bool = False  # whether somebody has put hooks on a model
    lock: threading.Lock = field(default_factory=threading.Lock)

    @cached_property
    def vocab_size(self) -> int:
        return logits_width(self.target)

    @cached_property
    def context(self) -> float:
        return context_of(self.target)

    @cached_property
    def drafter_context(self) -> float:
        return context_of(self.drafter)

    @cached_property
    def eos(self) -> frozenset[int]:
        """The ids that end a text: the target's generation config's and the tokenizer's."""
        ids = self.target.generation_config.eos_token_id
        ids = ids if isinstance(ids, list) else [ids]
        return frozenset(id for id in (*ids, getattr(self.tokenizer, "eos_token_id", None)) if id is not None)

    @cached_property
    def spell(self) -> Callable[[int], str]:
        """A token's text behind some other token, remembered."""
        known: dict[int, str] = {}
        decode = getattr(self.tokenizer, "decode", None)
        before = next(iter(decode and self.tokenizer("a", add_special_tokens=False).input_ids or ()), None)

        def spell(id: int) -> str:
            if id not in known:
                options = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
                known[id] = decode([before, id], **options)[len(decode([before], **options)) :]
            return known[id]

        return spell if before is not None else lambda id: ""

    @cached_property
    def one_thread(self) -> bool:
        return self.info.device == "cpu" and self.target.num_parameters() <= SMALL

    @contextmanager
    def threads(self):
        """For each step of a run: small models use one CPU thread. Several are hardly faster for them, and wait for each other
        when anybody else is busy, the browser that shows the run for instance (the embedded pair on two cores: 248 against
        242 tokens/s alone, 100 against 255 beside one busy program). The setting is torch's own and so the process's."""
        before = torch.get_num_threads()
        if self.one_thread:
            torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    @cached_property
    def lms(self) -> tuple[CachedLM, CachedLM | None]:
        return _lm(self.target), _lm(self.drafter) if self.drafter else None

    @cached_property
    def graphs(self) -> Graphs:
        return Graphs()

    def steps(self) -> tuple[CachedLM, CachedLM | None, Eager | Graphs]:
        """For one run: both models, and what its steps are run by."""
        if any(lm and not lm.fits for lm in self.lms):
            del self.lms
        lms = [lm for lm in self.lms if lm]
        self.listened_to = self.record and any(watched(lm.model) for lm in lms)
        on_gpu = [lm for lm in lms if lm.device.type == "cuda"]
        graphs = self.record and lms[0] in on_gpu and not self.listened_to
        if graphs:
            for lm in on_gpu:
                lm.compile(self.compile)
            self.graphs.begin(*(lm.model for lm in on_gpu), compiled=self.compile)
            graphs = not self.graphs.reason
        for lm in lms:
            if isinstance(lm, Traced):
                lm.begin(self.record)
            else:
                lm.exact = not graphs or lm not in on_gpu
        return *self.lms, self.graphs if graphs else Eager()

    @property
    def notes(self) -> list[str]:
        """What a user should know now: the limits, and why steps are not recorded."""
        recorders = {
            f"the {role}": lm
            for role, lm in zip(("target", "drafter"), self.lms, strict=True)
            if isinstance(lm, Traced)
        }
        if self.info.device.startswith("cuda"):
            recorders["a round"] = self.graphs
        reasons = [
            (what, recorder.reason) for what, recorder in recorders.items() if recorder.reason and self.record
        ]
        if self.listened_to:
            reasons.append(
                ("a model", "somebody listens to its forwards (hooks), which a recording would pass by")
            )
        return [
            *self.limits,
            *(
                f"{what} cannot be recorded, and runs step by step, which is slower: {reason}"
                for what, reason in reasons
            ),
        ]

    @property
    def doing(self) -> str | None:
        """What the engine does before it can go on, if anything."""
        return self.graphs.recording or next(
            (lm.recording for lm in self.lms if isinstance(lm, Traced) and lm.recording), None
        )

    @property
    def bytes_held(self) -> Bytes:
        """Of weights in memory (quantised ones as they lie there)."""
        return Bytes(held_bytes(self.target), held_bytes(self.drafter) if self.drafter else None)


def _lm(model: PreTrainedModel) -> CachedLM:
    """Beside a larger model's products Python's part is nothing, and a trace would spare nothing."""
    traced = model.device.type == "cpu" and model.num_parameters() <= SMALL
    return (Traced if traced else CachedLM)(model)


def held_bytes(model: PreTrainedModel) -> int:
    """Bytes of the model's parameters and buffers. A quantised weight is made of inner tensors; tied ones count once."""
    storages = {}
    todo = [*model.parameters(), *model.buffers()]
    while todo:
        tensor = todo.pop()
        if hasattr(tensor, "__tensor_flatten__") and type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            todo += [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
        else:
            storage = tensor.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def in_training(*models: PreTrainedModel | None) -> list[torch.nn.Module]:
    """The parts of models that are in training mode, where dropout is drawn."""
    return [module for model in models if model is not None for module in model.modules() if module.training]


@contextmanager
def at_rest(training: list[torch.nn.Module]):
    """Takes the parts out of training mode for a while: models given in memory are left as they were."""
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
