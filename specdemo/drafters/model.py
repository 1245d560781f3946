"""What drafts by a step over a model, which may be captured: a smaller model of the same vocabulary
(Leviathan et al. 2023), the target's own first layers (early_exit.py), and what reads the target's hidden
states: a head (heads.py), layers for MTP, an assistant."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedModel

from specdemo.drafters.base import Drafting, Materials, PairModels, share_read
from specdemo.engine.draft import LONGEST_DRAFT, Draft, Drafter, draft_at_once, draft_in_turn, one_hot_draft
from specdemo.engine.sampling import Settings
from specdemo.engine.tree import AnyTree, GrownTree, Shown, draft_tree
from specdemo.events.speedup import DraftingCost
from specdemo.runtime.cuda import to_device
from specdemo.runtime.lm import LM, CachedLM, check_writes_text, positional_cache
from specdemo.runtime.probe import agrees_with_itself
from specdemo.runtime.states import States
from specdemo.runtime.steps import HostNumbers, varied_ids, varied_uniforms

MOST_FED = 64  # tokens of the text in one forward, which has logits for each


@dataclass(frozen=True)
class DraftInput(HostNumbers):
    """What drafting reads, on the drafter's device: the numbers below, by their names."""

    seen: Tensor | None = None  # see Sampler.seen
    of_graph: Tensor | None = None  # see draft_in_turn

    @property
    def position(self) -> Tensor:
        """[1] float64: the position of the first of the last tokens."""
        return self.parts["position"]

    @property
    def last(self) -> Tensor:
        """[N] float64: the last tokens of the text, and what a drafter feeds after them."""
        return self.parts["last"]

    @property
    def settings(self) -> Settings:
        return Settings(self.parts)

    @property
    def u(self) -> Tensor:
        """[B] float64: the uniform numbers."""
        return self.parts["u"]

    def varied(self) -> "DraftInput":
        return self.with_parts(last=varied_ids(self.last), u=varied_uniforms(self.u))


class Fed(NamedTuple):
    """What a step begins with: tokens from a position on. buffers: what its capture holds for."""

    start: int
    tokens: list[int]
    buffers: tuple = ()


class StepDrafter(Drafter):
    """Drafts by a step over a model."""

    stops_early = True  # whether a draft may end where the drafter is unsure, before all of it is made

    def __init__(self, given: Materials):
        self.vocab_size, self.device = given.of_target
        self.model_device: torch.device = given.drafter.device
        self.sampler, self.run_step, self.is_over = given.sampler, given.run_step, given.is_over
        self.confidence = given.params.confidence
        self.tree: AnyTree | None = given.tree  # what is drafted; None: chains
        self.gamma = given.params.gamma if self.tree is None else self.tree.size  # the most tokens of a draft

    def may_draw(self, value: DraftInput) -> bool:
        """Whether a model that can draw tokens by itself may do so."""
        return self.tree is None and self.sampler.grammar is None and value.of_graph is None

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
        value = replace(DraftInput.of(self.model_device, **numbers), seen=self.seen(ids))
        key = ("draft", rows, len(fed.tokens), *fed.buffers, self.sampler.key, self.tree)
        _, draft = self.run_step(key, self.step, value, self.expected)
        self.end(ids, draft)
        return replace(draft.on(self.device), k=min(k, len(draft.ids)))

    def room(self, ids: list[int], k: int) -> int:
        """How many of k tokens can be drafted after this text."""
        longest = int(max(0, min(self.longest(ids), k)))
        return longest if self.tree is None else self.tree.first(k).in_room(longest).size

    def longest(self, ids: list[int]) -> float:
        """How many drafted tokens can follow each other after this text."""
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
        return self.sampler.seen(ids, self.vocab_size, self.model_device)

    def expected(self, value: DraftInput, said: Draft) -> Draft:
        """What the step should have said, see RunStep: the model's own logits after the tokens that a graph
        has drawn."""
        return self.step(replace(value, of_graph=said.logits))

    def step(self, value: DraftInput) -> Draft:
        """The draft made from `value`."""
        raise NotImplementedError

    def shape_of(self, value: DraftInput) -> AnyTree | None:
        return None if self.tree is None else self.tree.first(len(value.u))

    def in_shape(self, predict: Callable[[Shown | None], Tensor], value: DraftInput) -> Draft:
        """A chain or a tree whose tokens depend on those before them. predict: see draft_tree."""
        how = (self.sampler, value.settings, value.seen)
        if (shape := self.shape_of(value)) is not None:
            return draft_tree(predict, value.u, shape, *how, value.of_graph)

        def after(token: Tensor | None) -> Tensor:
            return predict(None if token is None else Shown(token))

        return draft_in_turn(after, value.u, *how, self.stops_below, value.of_graph)

    def at_once(self, logits: Tensor, value: DraftInput) -> Draft:
        """A draft whose tokens do not depend on those before them: logits [K, V], of each place."""
        if self.tree is None:
            how = (self.sampler, value.settings, value.seen, value.of_graph)
            return draft_at_once(logits, value.u, *how)
        places = iter(logits.split(1))

        def predict(shown: Shown | None) -> Tensor:
            return next(places).expand(1 if shown is None else len(shown.tokens), -1)

        return self.in_shape(predict, value)

    def drawn_by(self, model: Any, tokens: Tensor, start: Tensor, value: DraftInput) -> Draft:
        """A chain that the model, an LM or a head that `drafts_itself`, draws after tokens [N]."""
        drawing = self.sampler.drawing(value.settings, value.u, value.seen, self.stops_below)
        drafted, q, logits = model.draft(tokens, start, drawing)
        return Draft.drawn(drafted, q, logits)


class FeatureDrafter(StepDrafter):
    """Drafts from the target's hidden states. head: a head, the target's own layers or an assistant, with its
    cache."""

    head: Any

    def __init__(self, given: Materials):
        super().__init__(given)
        self.head, self.target = given.drafter, given.target
        self.target.features = self.head.reads


class HeadDrafter(FeatureDrafter):
    """Drafts by a head, which says in `step` what follows.

    Each round begins with the target's true features of the tokens that the last round has accepted: where
    steps are captured, of one more than can follow each other in a draft, so that the shapes are the same
    however many they were. What they leave in the head's cache replaces what drafting had left there."""

    filled = 0  # rows of the head's cache that hold true features
    stops_early = False

    def __init__(self, given: Materials):
        super().__init__(given)
        if isinstance(self.tree, GrownTree):
            self.tree = replace(self.tree, depth=int(min(self.tree.depth, self.places)))

    @property
    def places(self) -> float:
        """The most tokens that can follow each other in a draft."""
        return self.head.model.places or torch.inf

    def longest(self, ids: list[int]) -> float:
        """How many drafted tokens can follow each other after this text: none beyond the head's own context,
        and none after a single token, which has no feature before it."""
        return min(self.head.context - len(ids) + 1, self.places) if len(ids) > 1 else 0

    def start(self, ids: list[int]) -> None:
        self._fill(ids, len(ids) - 1)

    def _fill(self, ids: list[int], end: int) -> None:
        if len(ids) <= self.head.context:
            self.head.prefill(ids, self.filled, end, self.is_over)
            self.filled = max(self.filled, end)

    def rows(self, k: int) -> int:
        rows = super().rows(k)
        return rows if self.tree is not None else int(min(rows, self.places))

    def begin(self, ids: list[int], rows: int) -> Fed:
        # A step reads features; that of the last token is not known yet.
        most = self.gamma if self.tree is None else self.tree.depth
        more = min(max(1, len(ids) - 2 - self.filled), LONGEST_DRAFT)  # new tokens besides the last
        start = max(0, len(ids) - 2 - self.run_step.rows(more, most))
        self._fill(ids, start)  # nothing, unless rounds have drafted nothing
        self.head.grow(len(ids) + rows)
        buffers = (self.head.kv_length, self.head.buffer_epoch, self.target.buffer_epoch)
        return Fed(start, ids[start:], buffers)

    def end(self, ids: list[int], draft: Draft) -> None:
        self.filled = len(ids) - 1

    def depth_of(self, value: DraftInput) -> int:
        """How many tokens of its draft follow each other."""
        shape = self.shape_of(value)
        return len(value.u) if shape is None else shape.depth


class EagleDrafter(HeadDrafter):
    """Drafts each token from the token before it and the head's own output for that one: a tree by one
    forward for each depth."""

    stops_early = True

    def step(self, value: DraftInput) -> Draft:
        start, tokens = value.position[0].long(), value.last[1:].long()
        if self.may_draw(value) and self.head.drafts_itself:
            return self.drawn_by(self.head, tokens, start, value)
        row, g = start, None  # [P, H]: what the head has made of the tokens shown last

        def predict(shown: Shown | None) -> Tensor:
            nonlocal row, g
            if shown is None or g is None:
                fed = tokens
                g, logits = self.head.begin(fed, row)
            else:
                fed = shown.tokens
                g, logits = self.head.go_on(fed, shown.of_parents(g), row, shown.branches)
            row = row + len(fed)
            return logits  # [P, V]

        return self.in_shape(predict, value)


class ModelDrafter(StepDrafter):
    """Drafts token by token, or a tree by one forward for each depth over all tokens of the depth before,
    each of which sees the text and the tokens on its own path. A vocabulary wider than the target's is cut
    and renormalised, a narrower one padded with q = 0. Beyond the drafter's own context nothing is drafted.

    exit_layer: how many of the target's layers the drafter has, over the target's own cache; None: it is
    another model, with a cache of its own."""

    other_ids: ClassVar[bool] = False  # whether its ids are not the target's
    follows_any = True

    def __init__(self, given: Materials, exit_layer: int | None = None):
        super().__init__(given)
        self.lm: LM = given.drafter
        self.context, self.exit_layer = given.drafter_context, exit_layer
        self.lacks_from: int | None = None  # where the text begins that its cache lacks; None: nowhere

    @property
    def states(self) -> States | None:
        return self.lm.states

    def start(self, ids: list[int]) -> None:
        if len(ids) <= self.context:
            self.lm.prefill(torch.tensor(ids[:-2], dtype=torch.long), self.is_over)

    def longest(self, ids: list[int]) -> float:
        return self.context - len(ids) + 1

    def begin(self, ids: list[int], rows: int) -> Fed:
        if self.lacks_from is not None and self.exit_layer is None:
            self.feed(ids, max(0, self.lacks_from), len(ids) - 2)
        self.lacks_from = None
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

    def feed(self, ids: list[int], start: int, end: int) -> None:
        """Leaves the tokens from `start` to before `end` in the cache. ids: the drafter's text, in its own
        ids."""
        for at in range(start, end, MOST_FED):
            part = ids[at : min(at + MOST_FED, end)]
            numbers = to_device([at, *part], torch.long, self.lm.device)
            self.lm.reserve(at, at + len(part))
            self.lm.forward(numbers[1:], numbers[0])

    def keep(self, ids: list[int], path: list[int]) -> None:
        # Of the tokens of the last depth no row was fed. What is copied in its place is overwritten: a path
        # with such a token ends with it, and the next draft feeds it first.
        self.lm.keep(len(ids), path)

    def step(self, value: DraftInput) -> Draft:
        slot, last = value.position[0].long(), value.last.long()
        is_same = self.lm.vocab_size == self.vocab_size and not self.other_ids
        if is_same and self.may_draw(value) and self.lm.drafts_itself:
            return self.drawn_by(self.lm, last, slot, value)

        def predict(shown: Shown | None) -> Tensor:
            nonlocal slot
            fed = last if shown is None else self.in_own_ids(shown.tokens)
            logits = self.lm.forward(fed, slot, None if shown is None else shown.branches)
            slot = slot + len(fed)
            return self.in_targets_ids(logits[-1:] if shown is None else logits)

        return self.in_shape(predict, value)

    def in_targets_ids(self, logits: Tensor) -> Tensor:
        """logits [N, of the drafter's width] -> [N, V]"""
        missing = self.vocab_size - self.lm.vocab_size
        return pad(logits, (0, missing), value=-torch.inf) if missing else logits  # a negative number cuts

    def in_own_ids(self, tokens: Tensor) -> Tensor:
        """Drafted tokens [N], in the drafter's ids, to be fed."""
        return tokens


class ModelDrafting(Drafting[PreTrainedModel]):
    """A model of transformers as a pair's drafter, with the target's tokenizer or another one."""

    kind = "model"

    def cached(self, model: PreTrainedModel, target: PreTrainedModel) -> CachedLM:
        return CachedLM(model, compiled=True)

    def cost(self, pair: PairModels, params: object) -> DraftingCost:
        return DraftingCost(token=share_read(pair))

    def check_cache(self, model: PreTrainedModel) -> None:
        check_writes_text(model)
        positional_cache(model)

    def agrees(self, model: PreTrainedModel, target: PreTrainedModel) -> bool:
        return agrees_with_itself(model)
