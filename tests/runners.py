"""Pairs on a CPU whose steps are run as on CUDA: by static forwards."""

from dataclasses import replace
from pathlib import Path

from transformers import PreTrainedModel

from specdemo import load_pair
from specdemo.drafters.heads import DraftHead
from specdemo.drafters.table import HEAD, MTP, cached_drafter
from specdemo.runtime.graphs import Graphs
from specdemo.runtime.lm import CachedLM
from specdemo.runtime.runner import Runner, RunSetup


class RunnerOn(Runner):
    """Runs static forwards of models on a CPU by the given graphs, or other `RunStep`."""

    def __init__(self, target, drafter, run_step):
        super().__init__(target, drafter, cached_drafter)
        self.lms = tuple(model and cached(model, target) for model in (target, drafter))
        self.run_step = run_step
        if isinstance(run_step, Graphs):
            self.graphs = run_step
            self.graphs.clock = self.clock

    def _on_gpu(self, lm):
        return isinstance(self.run_step, Graphs)

    def _begin_run(self, own):
        if isinstance(self.run_step, Graphs):
            return super()._begin_run(own)
        target, drafter = self.lms
        target.features = None
        if own is not None:
            drafter = self._made(own)
        for lm in filter(None, (target, drafter)):
            lm.begin_run(static=True)
        return RunSetup(target, drafter, self.run_step, self.run_step)


def cached(model, target, *compiled):
    is_head = isinstance(model, DraftHead)
    return HEAD.kinds[model.kind].cached(model, target, *compiled) if is_head else CachedLM(model)


def run_by(target, drafter, run_step):
    """A pair in memory whose steps are those that can be captured, run by `run_step`."""
    return untried(target, drafter, RunnerOn(target, drafter, run_step))


def with_head(target, head, capture="off"):
    """A pair in memory whose drafter is an EAGLE-3 head."""
    return untried(target, head, Runner(target, head, cached_drafter, capture))


def untried(target, drafter, runner):
    """A pair in memory whose drafter nobody has tried, nor is to. It has the layers for multi-token
    prediction of a target that came from a folder."""
    layers: PreTrainedModel | str = "there is no checkpoint"
    if target.name_or_path:
        layers = MTP.read_carried(target, Path(target.name_or_path))
        layers = layers if isinstance(layers, str) else MTP.tried(layers, target)
    pair = replace(load_pair(target=target), drafter=drafter, runner=runner, carried=layers)
    pair.states = pair.present_states
    return pair
