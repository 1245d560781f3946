"""What a drafter owes. A `Way` answers for a drafting method, a `Kind` for what a pair's drafter can be.
Their rows, which need no torch, stand in the folders' `__init__.py`; the tables of both in ways.py and
kinds.py."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import torch
from torch.nn import Module
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specdemo.drafters.vocabulary import OtherTokenizer
from specdemo.engine.draft import Drafter
from specdemo.engine.sampling import Sampler
from specdemo.engine.tree import AnyTree, GrownTree, Tree, tree_of
from specdemo.events import Gamma, Params
from specdemo.events.speedup import NO_COST, DraftingCost
from specdemo.runtime.cache import Cached
from specdemo.runtime.device import Clock
from specdemo.runtime.lm import LM, OfTarget
from specdemo.runtime.steps import RunStep
from specdemo.runtime.weights import weight_bytes
from specdemo.words.message import Message, about

M = TypeVar("M", bound=Module)  # the model of a kind


@dataclass(frozen=True)
class Materials:
    """What a drafter is built from: a run's settings, and what its pair has. drafter: the pair's drafter with
    its cache, or the part of the target that drafts (`Way.own`). run_step: runs steps on the drafter's
    device. context, drafter_context: the most tokens of a text. tokenizer: the target's. other_tokenizer:
    the drafter's, None where it is the same."""

    params: Params
    sampler: Sampler
    target: LM
    drafter: Any
    run_step: RunStep
    context: float
    drafter_context: float
    tokenizer: PreTrainedTokenizerBase | None = None
    other_tokenizer: OtherTokenizer | None = None
    is_over: Callable[[], bool] = lambda: False  # of Decoder

    @property
    def of_target(self) -> tuple[int, torch.device]:
        """V, and the device on which drafts are verified."""
        return self.target.vocab_size, self.target.device

    @property
    def how_to_draft(self) -> tuple[RunStep, Gamma, Callable[[], bool], float]:
        """What each drafter that is a model takes."""
        most = self.params.gamma if self.tree is None else self.tree.size
        return self.run_step, most, self.is_over, self.params.confidence

    @property
    def tree(self) -> AnyTree | None:
        """What is drafted in each round, if not a chain."""
        return tree_of(self.params)


def regular(tree: AnyTree | None) -> Tree | None:
    """The tree of a drafter that grows none by probabilities."""
    assert not isinstance(tree, GrownTree), "Pair.check refuses it"
    return tree


class Models(Protocol):
    """What a drafting method looks at of a pair. carried: what `Way.read` gives, by the method's name."""

    target: PreTrainedModel
    drafter: Module | None
    carried: Mapping[str, PreTrainedModel | str]


class Way:
    """A drafting method for the pairs here. What this class says holds for a method without a model."""

    def read(
        self, target: PreTrainedModel, folder: Path | None, quantised_here: bool
    ) -> PreTrainedModel | str | None:
        """What a target's checkpoint carries for this method beside the target's own layers; or, in a part of
        a sentence, why nothing of it can be used. None for a method that needs nothing. folder: the
        checkpoint; None where it is not known. quantised_here: whether the target was quantised when it was
        loaded."""
        return None

    def count_parameters(self, skeleton: PreTrainedModel, folder: Path | None) -> int:
        """How many parameters `read` will give. folder: None before the checkpoint is on this machine."""
        return 0

    def tried(self, carried: PreTrainedModel, target: PreTrainedModel) -> PreTrainedModel | str:
        """What `read` has given, as the target is now; or why it cannot be used. Raises what says that there
        is not enough memory, or no GPU any more."""
        return carried

    def lacks(self, pair: Models) -> Message | str | None:
        """Why the pair cannot draft by this method, if it cannot."""
        return None

    def largest(self, pair: Models, field: str) -> int | None:
        """The largest value of a field of Params that the pair takes; None where it sets no limit."""
        return None

    def check(self, pair: Models, params: Params) -> Params:
        """The Params as this pair takes them. ValueError if it cannot draft by this method."""
        if why := self.lacks(pair):
            raise ValueError(about("draft_with", "method_unfit", name=params.draft_with, reason=why))
        return params

    def own(self, pair: Models, params: Params) -> OfTarget | None:
        """The part of the target that drafts in place of the pair's drafter; None where there is none."""
        return None

    def cost(self, pair: Models, params: Params) -> DraftingCost:
        """What drafting costs: the bytes of weights that it reads, divided by those that the target reads.
        Counted and not timed, because times differ from run to run, and `gamma="auto"` would choose other
        lengths each time."""
        return NO_COST

    def longest_draft(self, pair: Models) -> int | None:
        """The most tokens that the method can draft at once; None where there is no such limit."""
        return None

    def build(self, given: Materials) -> Drafter:
        raise NotImplementedError


class Kind(Generic[M]):
    """What a pair's drafter can be. What this class says holds for a model of transformers."""

    is_head: ClassVar[bool] = False  # whether it is small, stays in its dtype, and is read as a whole
    is_for_a_target: ClassVar[str | None] = None  # "an assistant": what is no target itself
    has_tokenizer: ClassVar[bool] = False  # of its own; else it reads the target's tokens
    takes_other_tokenizer: ClassVar[bool] = True  # whether it can draft for a target with another one
    reads_hidden_states: ClassVar[bool] = False  # of the target's layers

    def describes(self, folder: Path) -> bool:
        """Whether the model in this folder is of this kind, by its config.json."""
        raise NotImplementedError

    def verifier(self, folder: Path, shown: str) -> str | None:
        """The target that the model in this folder was trained for, where its config.json names one. shown:
        what a sentence calls the model in place of its folder."""
        return None

    def skeleton(self, folder: Path, shown: str) -> Module:
        """The head in this folder without its weights, on torch's default device; as `read`, only where the
        kind `is_head`: other models are made by transformers."""
        raise NotImplementedError

    def read(self, folder: Path, dtype: torch.dtype, shown: str) -> Module:
        """The head in this folder on the CPU. LoadError if it cannot be run."""
        raise NotImplementedError

    def is_one(self, model: Module) -> bool:
        """Whether the model, or its skeleton, is of this kind."""
        raise NotImplementedError

    def name_of(self, model: M) -> str:
        """The name of the model's kind in DRAFTER_KINDS."""
        raise NotImplementedError

    def cached(self, model: M, target: PreTrainedModel, clock: Clock) -> Cached:
        """The model with a cache, drafting for this target."""
        raise NotImplementedError

    def build(self, given: Materials) -> Drafter:
        raise NotImplementedError

    def check_fit(self, model: M, target: PreTrainedModel, drafter_id: str, target_id: str) -> None:
        """PairError unless the model, or its skeleton, can draft for the target, or for the target's
        skeleton."""

    def notes(self, model: M, target: PreTrainedModel) -> list[Message]:
        """What a user should know of the model as a drafter for this target."""
        return []

    def needs_targets_device(self, model: M) -> str | None:
        """Why the model must be where its target is: the words after "drafter X"."""
        return None

    def check_cache(self, model: M) -> None:
        """ValueError if the model cannot have a cache that is written by position."""

    def agrees(self, model: M, target: PreTrainedModel) -> bool:
        """Whether the model's cache changes nothing in what the model predicts. Raises what its forward
        raises."""
        raise NotImplementedError

    def cost(self, model: M, target: PreTrainedModel) -> DraftingCost:
        """What drafting with the model costs, see Way."""
        return DraftingCost(token=weight_bytes(model) / weight_bytes(target))

    def longest_draft(self, model: M) -> int | None:
        """The most tokens that the model can draft at once; None where there is no such limit."""
        return None
