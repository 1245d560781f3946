"""What everything that drafts owes, by itself, from the target, or as a pair's drafter. The rows of methods
and kinds, which need no torch, stand in events; which class here stands for which row, in table.py."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import torch
from torch import Tensor
from torch.nn import Module
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specdemo.drafters.vocabulary import OtherTokenizer
from specdemo.engine.draft import Drafter
from specdemo.engine.sampling import Sampler
from specdemo.errors import PairError, is_out_of_memory, reason_of
from specdemo.events import Params
from specdemo.events.speedup import NO_COST, DraftingCost
from specdemo.runtime.agreement import agree
from specdemo.runtime.cache import Cached
from specdemo.runtime.lm import LM, CachedLM, OfTarget, context_of
from specdemo.runtime.probe import TRIED_TOKENS, tried_tokens
from specdemo.runtime.shared import evaluating, in_training
from specdemo.runtime.steps import RunStep
from specdemo.runtime.weights import weight_bytes
from specdemo.words.message import Message, about

M = TypeVar("M", bound=Module)  # the model of a pair's drafter


@dataclass(frozen=True)
class Materials:
    """What a drafter is built from: a run's settings, and what its pair has. drafter: the pair's drafter with
    its cache, or the part of the target that drafts (`Drafting.own`). run_step: runs steps on the drafter's
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
    is_over: Callable[[], bool] = lambda: False  # of Loop
    tree: Any = None  # an AnyTree: what is drafted in each round; None: chains

    @property
    def of_target(self) -> tuple[int, torch.device]:
        """V, and the device on which drafts are verified."""
        return self.target.vocab_size, self.target.device


class PairModels(Protocol):
    """What drafting looks at of a pair. carried: what `MTP.read_carried` gives."""

    target: PreTrainedModel
    drafter: Module | None
    carried: PreTrainedModel | str


class Drafting(Generic[M]):
    """How something drafts for the pairs here: a method of METHODS, or what a pair's drafter can be. What
    this class says holds where nothing else is known of it: it needs no model and costs nothing. make: makes
    the drafter of a run."""

    def __init__(self, make: Callable[[Materials], Drafter] | None = None):
        self.make = make

    # As a method

    def lacks(self, pair: PairModels) -> Message | str | None:
        """Why the pair cannot draft so, if it cannot."""
        return None

    def check(self, pair: PairModels, params: Params) -> Params:
        """The Params as this pair takes them. ValueError if it cannot draft so."""
        if why := self.lacks(pair):
            raise ValueError(about("draft_with", "method_unfit", name=params.draft_with, reason=why))
        return params

    def own(self, pair: PairModels, params: Params) -> OfTarget | None:
        """The part of the target that drafts in place of the pair's drafter; None where there is none."""
        return None

    def cost(self, pair: PairModels, params: Params) -> DraftingCost:
        """What drafting costs: the bytes of weights that it reads, divided by those that the target reads.
        Counted and not timed, because times differ from run to run, and `gamma="auto"` would choose other
        lengths each time."""
        return NO_COST

    def build(self, given: Materials) -> Drafter:
        assert self.make is not None
        return self.make(given)

    # As a pair's drafter

    kind: ClassVar[str]  # its name in DRAFTER_KINDS
    # "an assistant": what reads the hidden states and the tokens of a target, and is none itself. None: it is
    # a model, with a tokenizer of its own.
    is_for_a_target: ClassVar[str | None] = None
    takes_other_tokenizer: ClassVar[bool] = True  # whether it can draft for a target with another tokenizer

    def name_of(self, model: M) -> str:
        """The name in DRAFTER_KINDS of what the model is."""
        return self.kind

    def longest_draft(self, model: M) -> int | None:
        """The most tokens that it can draft at once; None where there is no such limit."""
        return None

    def cached(self, model: M, target: PreTrainedModel) -> Cached:
        """The model with a cache, drafting for this target."""
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


def why_not_used(its: str, check: Callable[[], str | None]) -> str | None:
    """Why a model cannot be used: what `check` returns, or that its forward fails. its: "its" or "their".
    Raises what says that there is not enough memory."""
    try:
        return check()
    except PairError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        return f"{its} forward fails: {reason_of(error)}"


def share_read(pair: PairModels) -> float:
    """The bytes of weights that the pair's drafter reads, divided by those that its target reads."""
    assert pair.drafter is not None
    return weight_bytes(pair.drafter) / weight_bytes(pair.target)


def check_sizes(where: str, sizes: Sequence[tuple[str, int, int]]) -> None:
    """PairError for the first size that differs: what it is of, with a place for the size, the drafter's and
    the target's."""
    for what, asked, found in sizes:
        if asked != found:
            raise PairError(f"{where}: it was made for {what.format(asked)}, and the target has {found:,}")


def agrees_with_target(
    target: PreTrainedModel,
    make: Callable[[], Any],
    compare: Callable[[CachedLM, Any, Any, Tensor], Sequence[tuple[Tensor, Tensor]]],
    context: float,
    dtype: torch.dtype,
    mostly: bool = False,
) -> bool:
    """Whether a model predicts the same from the target's hidden states in two ways. make: the model with a
    cache of its own; it is called twice. compare: is given the target's LM, which has read all of a text [N]
    but its last token, both models and the text, and returns pairs of logits. context: the most tokens that
    the model reads. mostly: see `agree`."""
    with torch.no_grad(), evaluating(in_training(target)):
        lm, one, other = CachedLM(target), make(), make()
        lm.features = one.reads = other.reads
        ids = tried_tokens(lm, int(min(TRIED_TOKENS, context_of(target), context)))
        lm.prefill(ids[:-1])
        pairs = compare(lm, one, other, ids)
        for each in (lm, one, other):
            each.free()
    return agree(pairs, dtype, mostly)


def by_rows(whole: Any, cached: Any, ids: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """The logits of the first n rows of ids [N]: by a model at once, and by its like in parts with rejected
    drafts between them."""
    parts = [cached.logits_of(ids, 0, n // 2)]
    for start in range(n // 2, n, 2):
        cached.logits_of(ids.flip(0), start, min(start + 3, n))  # a rejected draft
        parts.append(cached.logits_of(ids, start, min(start + 2, n)))
    expected = whole.logits_of(ids, 0, n)
    return expected, torch.cat(parts)[-len(expected) :]
