"""Runs a pair's models: their caches, the CPU threads, whether steps are captured, and what a user should
know about it."""

from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Literal

import torch
from torch.nn import Module
from transformers import PreTrainedModel

from specdemo.runtime import cuda
from specdemo.runtime.cache import Cached
from specdemo.runtime.cuda import Clock
from specdemo.runtime.graphs import Graphs
from specdemo.runtime.lm import CachedLM, OfTarget
from specdemo.runtime.native import is_small
from specdemo.runtime.shared import active, in_training
from specdemo.runtime.steps import EagerSteps, RunStep
from specdemo.runtime.weights import in_this_thread
from specdemo.words.message import Message, message

# "auto": on CUDA steps are captured, and on a CPU forwards are compiled, where the models allow it. "off":
# every forward runs as transformers would run it.
Capture = Literal["auto", "off"]
# Makes the model with its cache that drafts, of a drafter that is loaded, for its target.
CacheDrafter = Callable[[Module, PreTrainedModel], Cached]


@dataclass(frozen=True)
class RunSetup:
    """What one run works with. `drafter`: the pair's, or a part of the target (`OfTarget`). `run_drafting`
    differs from `run_step` where the drafter is on another device, and where drafting is not captured.
    on_cpu: whether verdicts are computed on the CPU, by steps that are not captured. active: the context of
    each step."""

    target: CachedLM
    drafter: Cached | None
    run_step: RunStep
    run_drafting: RunStep
    on_cpu: bool = False
    active: Callable[[], AbstractContextManager[None]] = nullcontext

    @property
    def runs_ahead(self) -> bool:
        """Whether the host launches both steps of a round without waiting for the device."""
        return self.run_step.captures and self.run_drafting is self.run_step

    def make_room(self, length: int) -> None:
        """Makes room for so many tokens in both caches, where steps are captured: a cache that grows in the
        middle of a text needs all its graphs again. Where there is no memory for that, the caches grow with
        the text, which may end early."""
        for lm in (self.target, self.drafter):
            if self.run_step.captures and lm is not None and lm.is_captured:
                with suppress(torch.OutOfMemoryError):
                    lm.make_room(length)


class Runner:
    """Runs the models of one pair, in one run at a time."""

    def __init__(
        self,
        target: PreTrainedModel,
        drafter: Module | None,
        cache_drafter: CacheDrafter,
        capture: Capture = "auto",
    ):
        self.target = target
        self.drafter = drafter
        self.cache_drafter = cache_drafter
        self.capture = capture
        self.clock = Clock()
        self.graphs = Graphs(self.clock)
        self._own: dict[Hashable, Cached] = {}  # made when it is first used
        self._hooked = False  # whether a model has forward hooks, as of the last run

    @cached_property
    def lms(self) -> tuple[CachedLM, Cached | None]:
        return CachedLM(self.target, compiled=True), self._drafting(self.drafter)

    def _drafting(self, drafter: Module | None) -> Cached | None:
        return None if drafter is None else self.cache_drafter(drafter, self.target)

    def _made(self, own: OfTarget) -> Cached:
        if own.key not in self._own:
            self._own[own.key] = own.make(self.lms[0])
        return self._own[own.key]

    def begin_run(self, own: OfTarget | None = None) -> RunSetup:
        """Chooses how the steps of the next run are run. own: what drafts in place of the pair's drafter."""
        running = self._active(in_training(*self._models))
        with running():
            return replace(self._begin_run(own), active=running)

    def _begin_run(self, own: OfTarget | None) -> RunSetup:
        target, drafter = self.lms
        if own is not None:
            drafter = self._made(own)
        lms = [lm for lm in (target, drafter) if lm]
        self.clock.devices = {lm.device for lm in lms}
        target.features = None  # a drafter that needs them sets it
        hooked = {lm for lm in lms if self.capture != "off" and has_hooks(lm.model)}
        self._hooked = bool(hooked)
        on_gpu = [lm for lm in lms if self._on_gpu(lm)]
        use_graphs = self.capture != "off" and not self._hooked and target in on_gpu
        if use_graphs:
            # The graphs are given the same models in each run, or they would be dropped.
            captured = [lm for lm in self.lms if lm and lm.is_captured and self._on_gpu(lm)]
            self.graphs.begin_run(captured)
            use_graphs = self.graphs.blocker is None
        for lm in lms:
            if lm.compiles_itself:
                lm.begin_run(static=self.capture != "off" and lm not in hooked)
            else:
                lm.begin_run(static=use_graphs and lm in on_gpu)
        run_step = self.graphs if use_graphs else EagerSteps()
        eager = drafter is not None and (drafter.device != target.device or not drafter.is_captured)
        run_drafting = EagerSteps() if eager else run_step
        return RunSetup(
            target, drafter, run_step, run_drafting, on_cpu=not use_graphs and target.device.type == "cpu"
        )

    def _active(self, training: list[Module]) -> Callable[[], AbstractContextManager[None]]:
        """The context of each step of a run, with which GPUs its models are on now: seeing that in each round
        would take long."""
        on_gpu = [model for model in self._models if cuda.is_cuda(model.device)]
        has_float32 = any(model.dtype == torch.float32 for model in on_gpu)
        return partial(active, training, self._one_thread, bool(on_gpu), has_float32)

    def forget(self) -> None:
        """Lets go of all that holds for the models as they were, because their owner has changed them."""
        for kept in ("lms", "_one_thread"):
            vars(self).pop(kept, None)
        self._own.clear()
        self._drop_graphs()

    def change_drafter(self, drafter: Module | None) -> None:
        """Takes another drafter, and lets go of the one before, of captured steps and of what has kept steps
        from being captured. What is captured of the target's forwards stays. After an error nothing has
        changed."""
        if "lms" in vars(self):
            with cuda.alone_on(self.target.device):
                new = self._drafting(drafter)
                target, before = self.lms
                target.features = None
                if before is not None:
                    before.free()
            self.lms = target, new
        self.drafter = drafter
        self._drop_graphs()

    def _drop_graphs(self) -> None:
        self.graphs.drop()
        self.graphs = Graphs(self.clock)

    def torch_settings(self) -> AbstractContextManager[None]:
        """A context with what a run needs of torch's settings for the whole process. They are put back in the
        end."""
        return self._active([])()

    @cached_property
    def _one_thread(self) -> bool:
        return is_small(self.target)

    def _on_gpu(self, lm: Cached) -> bool:
        return cuda.is_cuda(lm.device)

    @property
    def _models(self) -> list[Module]:
        return [self.target] if self.drafter is None else [self.target, self.drafter]

    @property
    def notes(self) -> list[Message]:
        """Why steps are not captured, or forwards not fused, a sentence each; empty where they are, or were
        not meant to be."""
        if self.capture == "off":
            return []
        lms = [(role, lm) for role, lm in zip(("target", "drafter"), self.lms, strict=True) if lm]
        notes = []
        if self._on_gpu(self.lms[0]) and (blocker := self.graphs.blocker):
            notes.append(message("not_captured", who=message("a_round"), why=blocker))
        if self._hooked:
            notes.append(message("not_captured", who=message("a_model"), why=message("has_hooks")))
        refused = {key[:2]: why for key, why in self.graphs.refused.items()}  # the latest of each length
        notes += [
            message("step_not_captured", name=step, rows=rows, why=why)
            for (step, rows), why in refused.items()
        ]
        return notes + [note for role, lm in lms for note in lm.notes_as(role)]

    @property
    def warming_up(self) -> Message | None:
        """What is being captured or compiled right now."""
        compiling = (lm.warming_up for lm in (*self.lms, *self._own.values()) if lm)
        return self.graphs.warming_up or next((what for what in compiling if what), None)

    @torch.no_grad()
    def warm_up(self, gamma: int) -> None:
        """Runs the forwards of a run with this gamma a few times, for what happens at their first use: on a
        CPU they are compiled."""
        setup = self.begin_run()
        target, drafter = setup.target, setup.drafter
        with setup.active():
            for lm, rows in ((target, 1 + gamma), (drafter, 2)):
                if lm is not None:
                    with cuda.alone_on(lm.device):
                        lm.warm_up(rows)
            if drafter is not None and drafter.reads is not None:
                target.features = drafter.reads
                with cuda.alone_on(target.device):
                    target.warm_up(1 + gamma)


def has_hooks(model: Module) -> bool:
    """Whether forward hooks are registered on the model or globally, or a forward was replaced. A captured
    step would call none of them. What another pair that shares the model watches it with does not count."""
    globally, modules = torch.nn.modules.module, list(model.modules())
    kept = [each for module in modules for each in (module._forward_hooks, module._forward_pre_hooks) if each]
    hooks = [hook for each in kept for hook in list(each.values())]
    return (
        bool(globally._global_forward_hooks or globally._global_forward_pre_hooks)
        or any("forward" in vars(module) for module in modules)
        or any(getattr(hook, "__module__", None) != in_this_thread.__module__ for hook in hooks)
    )
