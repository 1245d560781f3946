"""A smaller model of the same vocabulary drafts (Leviathan et al. 2023), or the target's own first layers
(LayerSkip, Elhoushi et al. 2024; see early_exit.py). And what all drafters that are models have in common: a
step, which may be captured, makes the draft."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.functional import pad
from transformers import PreTrainedModel

from specdemo.drafters.base import Drafting, Materials, Models, share_read
from specdemo.engine.draft import Draft, Drafter, draft_in_turn, one_hot_draft
from specdemo.engine.sampling import Sampler, Settings
from specdemo.engine.tree import AnyTree, Shown, draft_tree
from specdemo.events import Gamma
from specdemo.events.speedup import DraftingCost
from specdemo.runtime.device import Clock, to_device
from specdemo.runtime.lm import LM, CachedLM, check_writes_text, positional_cache
from specdemo.runtime.native import cached_lm
from specdemo.runtime.probe import agrees_with_itself
from specdemo.runtime.states import States
from specdemo.runtime.steps import HostNumbers, RunStep, varied_ids, varied_uniforms

MOST_FED = 64  # tokens of the text in one forward, which has logits for each


@dataclass(frozen=True)
class DraftInput:
    """What drafting reads, on the drafter's device."""

    host: HostNumbers  # the properties below, by their names
    seen: Tensor | None  # see Sampler.seen

    @property
    def position(self) -> Tensor:
        """[1] float64: the position of the first of the last tokens."""
        return self.host.parts["position"]

    @property
    def last(self) -> Tensor:
        """[N] float64: the last tokens of the text, and what a drafter feeds after them."""
        return self.host.parts["last"]

    @property
    def settings(self) -> Settings:
        return Settings(self.host.parts)

    @property
    def u(self) -> Tensor:
        """[B] float64: the uniform numbers."""
        return self.host.parts["u"]

    def on_device(self) -> "DraftInput":
        return replace(self, host=self.host.on_device())

    def varied(self) -> "DraftInput":
        host = self.host.with_parts(last=varied_ids(self.last), u=varied_uniforms(self.u))
        return replace(self, host=host)


class Fed(NamedTuple):
    """What a step begins with: tokens from a position on. buffers: what its capture holds for."""

    start: int
    tokens: list[int]
    buffers: tuple = ()


class StepDrafter(Drafter):
    """Drafts by a step over a model. Its subclasses are dataclasses, which set these."""

    model_device: torch.device
    vocab_size: int  # V, the target's
    device: torch.device  # the target's
    sampler: Sampler
    run_step: RunStep
    gamma: Gamma  # the most tokens of a draft
    confidence: float
    tree: AnyTree | None  # what is drafted; None: chains
    stops_early = True  # whether a draft may end where the drafter is unsure, before all of it is made

    @cached_property
    def stops_below(self) -> float:
        """See draft_in_turn. A GPU would have to be waited for at each token: there the draft is only cut
        when it is verified."""
        return self.confidence if self.stops_early and self.model_device.type == "cpu" else 0.0

    def propose(self, ids: list[int], k: int, u: list[float]) -> Draft:
        k = self.room(ids, k)
        if k <= 0:
            return one_hot_draft([], self.vocab_size, self.device)
        rows = self.rows(k)
        fed = self.begin(ids, rows)
        numbers = {"position": [fed.start], "last": fed.tokens, **self.sampler.numbers, "u": u[:rows]}
        value = DraftInput(HostNumbers.of(self.model_device, **numbers), self.seen(ids))
        key = ("draft", rows, len(fed.tokens), *fed.buffers, self.sampler.key, self.tree)
        _, draft = self.run_step(key, self.step, value, self.expected)
        self.end(ids, draft)
        return replace(draft.on(self.device), k=min(k, len(draft.ids)))

    def room(self, ids: list[int], k: int) -> int:
        """How many of k tokens can be drafted after this text."""
        raise NotImplementedError

    def rows(self, k: int) -> int:
        """How many rows a step has for k tokens."""
        return self.run_step.rows(k, self.gamma)

    def begin(self, ids: list[int], rows: int) -> Fed:
        """What the step is given, after room has been made for so many rows beyond the text."""
        raise NotImplementedError

    def end(self, ids: list[int], draft: Draft) -> None:
        """Called with the step's draft after this text."""

    def seen(self, ids: list[int]) -> Tensor | None:
        """What Sampler.seen gives of the text."""
        return self.sampler.seen(ids, self.vocab_size, self.model_device)

    def expected(self, value: DraftInput, said: Draft) -> Draft:
        """What the step should have said, see RunStep: the model's own logits after the tokens that a graph
        has drawn."""
        return self.step(value, said.logits)

    def step(self, value: DraftInput, told: Tensor | None = None) -> Draft:
        """The draft made from `value`. told: see draft_in_turn."""
        raise NotImplementedError


@dataclass(eq=False)
class ModelDrafter(StepDrafter):
    """Drafts token by token. A vocabulary wider than the target's is cut and renormalised, a narrower one
    padded with q = 0. Beyond the drafter's own context nothing is drafted.

    exit_layer: how many of the target's layers `lm` has, over the target's own cache; None: it is another
    model, with a cache of its own."""

    lm: LM
    context: float
    sampler: Sampler
    vocab_size: int
    device: torch.device
    run_step: RunStep
    gamma: Gamma
    is_over: Callable[[], bool] = lambda: False  # of Decoder
    confidence: float = 0.0
    exit_layer: int | None = None
    tree: AnyTree | None = None  # see TreeDrafter
    other_ids: ClassVar[bool] = False  # whether its ids are not the target's
    follows_any = True

    def __post_init__(self) -> None:
        self.lacks_from: int | None = None  # where the text begins that its cache lacks; None: nowhere

    @property
    def model_device(self) -> torch.device:
        return self.lm.device

    @property
    def states(self) -> States | None:
        return self.lm.states

    @property
    def drafts_at_once(self) -> bool:
        """Whether the LM draws the tokens by itself."""
        same = self.lm.vocab_size == self.vocab_size and not self.other_ids
        return same and self.lm.drafts_itself and self.sampler.grammar is None

    def start(self, ids: list[int]) -> None:
        if len(ids) <= self.context:
            self.lm.prefill(torch.tensor(ids[:-2], dtype=torch.long), self.is_over)

    def room(self, ids: list[int], k: int) -> int:
        return int(min(k, self.context - len(ids) + 1))

    def begin(self, ids: list[int], rows: int) -> Fed:
        self._feed_skipped(ids)
        # After a fully accepted round the cache lacks the last draft, which was never fed. Feeding the last
        # two tokens in every round keeps the shapes the same whatever was accepted. The target's cache lacks
        # the last token only.
        last = ids[-2:] if self.exit_layer is None else ids[-1:]
        start = len(ids) - len(last)
        self.lm.reserve(start, len(ids) + rows)
        return Fed(start, last, (self.lm.kv_length, self.lm.buffer_epoch, self.exit_layer))

    def skip(self, ids: list[int]) -> None:
        if self.lacks_from is None:  # of the text, the cache has all but the tokens that a draft begins with
            self.lacks_from = len(ids) - 2

    def _feed_skipped(self, ids: list[int]) -> None:
        if self.lacks_from is not None and self.exit_layer is None:
            self.feed(ids, max(0, self.lacks_from), len(ids) - 2)
        self.lacks_from = None

    def feed(self, ids: list[int], start: int, end: int) -> None:
        """Leaves the tokens from `start` to before `end` in the cache. ids: the drafter's text, in its own
        ids."""
        for at in range(start, end, MOST_FED):
            part = ids[at : min(at + MOST_FED, end)]
            numbers = to_device([at, *part], torch.long, self.lm.device)
            self.lm.reserve(at, at + len(part))
            self.lm.forward(numbers[1:], numbers[0])

    def step(self, value: DraftInput, told: Tensor | None = None) -> Draft:
        position, last = value.position[0].long(), value.last.long()
        if told is None and self.drafts_at_once:
            drawing = self.sampler.drawing(value.settings, value.u, value.seen, self.stops_below)
            tokens, q, logits = self.lm.draft(last, position, drawing)
            return Draft.drawn(tokens, q, None, logits)

        def predict(drafted: Tensor | None) -> Tensor:
            nonlocal position
            fed = last if drafted is None else self.in_own_ids(drafted)
            logits = self.lm.forward(fed, position)[-1:]
            position = position + len(fed)
            return self.in_targets_ids(logits)

        how = (self.sampler, value.settings, value.seen, self.stops_below)
        return draft_in_turn(predict, value.u, *how, told)

    def in_targets_ids(self, logits: Tensor) -> Tensor:
        """logits [N, of the drafter's width] -> [N, V]"""
        missing = self.vocab_size - self.lm.vocab_size
        return pad(logits, (0, missing), value=-torch.inf) if missing else logits  # a negative number cuts

    def in_own_ids(self, tokens: Tensor) -> Tensor:
        """Drafted tokens [N], in the drafter's ids, to be fed."""
        return tokens


@dataclass(eq=False)
class TreeDrafter(ModelDrafter):
    """Drafts a tree, by one forward for each depth over all tokens of the depth before, each of which sees
    the text and the tokens on its own path."""

    def room(self, ids: list[int], k: int) -> int:
        return self._tree(k).in_room(super().room(ids, k)).size

    def _tree(self, k: int) -> AnyTree:
        assert self.tree is not None, "ModelDrafting gives one"
        return self.tree.first(k)

    def keep(self, ids: list[int], path: list[int]) -> None:
        # Of the tokens of the last depth no row was fed. What is copied in its place is overwritten: a path
        # with such a token ends with it, and the next draft feeds it first.
        self.lm.keep(len(ids), path)

    def step(self, value: DraftInput, told: Tensor | None = None) -> Draft:
        slot, last = value.position[0].long(), value.last.long()

        def predict(shown: Shown | None) -> Tensor:
            nonlocal slot
            if shown is None:
                fed, logits = last, self.lm.forward(last, slot)[-1:]
            else:
                fed = shown.tokens
                logits = self.lm.forward(self.in_own_ids(fed), slot, shown.branches)
            slot = slot + len(fed)
            return self.in_targets_ids(logits)

        how = (self._tree(len(value.u)), self.sampler, value.settings, value.seen)
        return draft_tree(predict, value.u, *how, told)


class ModelDrafting(Drafting[PreTrainedModel]):
    """What holds of a model of transformers as a pair's drafter; with the target's tokenizer. For any other
    one see TokenizedDrafting."""

    has_tokenizer = True
    takes_other_tokenizer = False

    def describes(self, folder: Path) -> bool:
        return True

    def is_one(self, model: Module) -> bool:
        return isinstance(model, PreTrainedModel)

    def name_of(self, model: PreTrainedModel) -> str:
        return "model"

    def cached(self, model: PreTrainedModel, target: PreTrainedModel, clock: Clock) -> CachedLM:
        return cached_lm(model, clock)

    def cost(self, pair: Models, params: object) -> DraftingCost:
        return DraftingCost(token=share_read(pair))

    def build(self, given: Materials) -> Drafter:
        own = (given.drafter, given.drafter_context, given.sampler, *given.of_target, *given.how_to_draft)
        return ModelDrafter(*own) if given.tree is None else TreeDrafter(*own, tree=given.tree)

    def check_cache(self, model: PreTrainedModel) -> None:
        check_writes_text(model)
        positional_cache(model)

    def agrees(self, model: PreTrainedModel, target: PreTrainedModel) -> bool:
        return agrees_with_itself(model)
