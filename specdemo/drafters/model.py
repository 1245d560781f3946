"""A smaller model of the same vocabulary drafts (Leviathan et al. 2023), also one that drafts in parallel, or
the target's own first layers (early_exit.py). And what all drafters that are models have in common: a step,
which may be captured, makes the draft."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.functional import pad
from transformers import PreTrainedConfig, PreTrainedModel

from specdemo.drafters.base import Drafting, Materials, Models, share_read
from specdemo.drafters.configs import MASKS, known_config
from specdemo.engine.draft import LONGEST_DRAFT, Draft, Drafter, draft_at_once, draft_in_turn, one_hot_draft
from specdemo.engine.sampling import Settings
from specdemo.engine.tree import AnyTree, Shown, draft_tree
from specdemo.errors import PairError
from specdemo.events.speedup import DraftingCost
from specdemo.runtime.device import to_device
from specdemo.runtime.lm import LM, CachedLM, check_writes_text, embedded_ids, positional_cache
from specdemo.runtime.probe import agrees_with_itself
from specdemo.runtime.states import States
from specdemo.runtime.steps import HostNumbers, varied_ids, varied_uniforms

MOST_FED = 64  # tokens of the text in one forward, which has logits for each


@dataclass(frozen=True)
class DraftInput(HostNumbers):
    """What drafting reads, on the drafter's device: the numbers below, by their names."""

    seen: Tensor | None = None  # see Sampler.seen

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

    model_device: torch.device
    stops_early = True  # whether a draft may end where the drafter is unsure, before all of it is made

    def __init__(self, given: Materials):
        self.vocab_size, self.device = given.of_target
        self.sampler, self.run_step, self.is_over = given.sampler, given.run_step, given.is_over
        self.confidence = given.params.confidence
        self.tree = given.tree  # what is drafted; None: chains
        self.gamma = given.params.gamma if self.tree is None else self.tree.size  # the most tokens of a draft

    @property
    def alone(self) -> bool:
        """Whether a model that can draw tokens by itself may do so."""
        return self.tree is None and self.sampler.grammar is None

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
        return self.step(value, said.logits)

    def step(self, value: DraftInput, told: Tensor | None = None) -> Draft:
        """The draft made from `value`. told: see draft_in_turn."""
        raise NotImplementedError

    def shape_of(self, value: DraftInput) -> AnyTree | None:
        return None if self.tree is None else self.tree.first(len(value.u))

    def in_shape(
        self, predict: Callable[[Shown | None], Tensor], value: DraftInput, told: Tensor | None = None
    ) -> Draft:
        """A chain or a tree whose tokens depend on those before them. predict: see draft_tree."""
        how = (self.sampler, value.settings, value.seen)
        if (shape := self.shape_of(value)) is not None:
            return draft_tree(predict, value.u, shape, *how, told)

        def after(token: Tensor | None) -> Tensor:
            return predict(None if token is None else Shown(token))

        return draft_in_turn(after, value.u, *how, self.stops_below, told)

    def at_once(self, logits: Tensor, value: DraftInput, told: Tensor | None) -> Draft:
        """A draft whose tokens do not depend on those before them: logits [K, V], of each place."""
        if self.tree is None:
            return draft_at_once(logits, value.u, self.sampler, value.settings, value.seen, told)
        places = iter(logits.split(1))

        def predict(shown: Shown | None) -> Tensor:
            return next(places).expand(1 if shown is None else len(shown.tokens), -1)

        return self.in_shape(predict, value, told)

    def drawn_by(self, model: Any, tokens: Tensor, start: Tensor, value: DraftInput) -> Draft:
        """A chain that the model, an LM or a head that `drafts_itself`, draws after tokens [N]."""
        drawing = self.sampler.drawing(value.settings, value.u, value.seen, self.stops_below)
        drafted, q, logits = model.draft(tokens, start, drawing)
        return Draft.drawn(drafted, q, None, logits)


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
    def model_device(self) -> torch.device:
        return self.lm.device

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

    def step(self, value: DraftInput, told: Tensor | None = None) -> Draft:
        slot, last = value.position[0].long(), value.last.long()
        is_same = self.lm.vocab_size == self.vocab_size and not self.other_ids
        if told is None and is_same and self.alone and self.lm.drafts_itself:
            return self.drawn_by(self.lm, last, slot, value)

        def predict(shown: Shown | None) -> Tensor:
            nonlocal slot
            fed = last if shown is None else self.in_own_ids(shown.tokens)
            logits = self.lm.forward(fed, slot, None if shown is None else shown.branches)
            slot = slot + len(fed)
            return self.in_targets_ids(logits[-1:] if shown is None else logits)

        return self.in_shape(predict, value, told)

    def in_targets_ids(self, logits: Tensor) -> Tensor:
        """logits [N, of the drafter's width] -> [N, V]"""
        missing = self.vocab_size - self.lm.vocab_size
        return pad(logits, (0, missing), value=-torch.inf) if missing else logits  # a negative number cuts

    def in_own_ids(self, tokens: Tensor) -> Tensor:
        """Drafted tokens [N], in the drafter's ids, to be fed."""
        return tokens


class PardDrafter(ModelDrafter):
    """Drafts all tokens of a round at once (An et al. 2025, "PARD: Accelerating LLM Inference with Low-Cost
    PARallel Draft Model Adaptation"), by a model that was trained to read a mask token where a token is not
    known yet: the first from the text's last token, each other from a mask token in the place before it.

    The masks leave keys and values where the next tokens come, so each round feeds all tokens that the last
    round has added: gamma + 1 tokens where steps are captured, so that the shapes are the same however many
    they were. q of a place does not depend on the tokens drafted before it, except through a penalty of the
    sampler's and through a grammar."""

    filled = 0  # tokens of the text that its cache holds

    def __init__(self, given: Materials):
        super().__init__(given)
        self.mask, *_ = _masks(given.drafter.model.config).values()

    def start(self, ids: list[int]) -> None:
        super().start(ids)
        self.filled = max(0, len(ids) - 2)

    def begin(self, ids: list[int], rows: int) -> Fed:
        more = min(max(1, len(ids) - 1 - self.filled), LONGEST_DRAFT)  # new tokens besides the last
        start = max(0, len(ids) - 1 - self.run_step.rows(more, self.gamma))
        self.feed(ids, self.filled, start)  # nothing, unless rounds have drafted nothing
        self.lm.reserve(start, len(ids) + rows - 1)
        fed = ids[start:] + [self.mask] * (rows - 1)
        return Fed(start, fed, (self.lm.kv_length, self.lm.buffer_epoch))

    def end(self, ids: list[int], draft: Draft) -> None:
        self.filled = len(ids)

    def skip(self, ids: list[int]) -> None:
        """`filled` tells what the cache lacks."""

    def step(self, value: DraftInput, told: Tensor | None = None) -> Draft:
        logits = self.lm.forward(value.last.long(), value.position[0].long())  # [N, of the drafter's width]
        return self.at_once(self.in_targets_ids(logits[-len(value.u) :]), value, told)


class ModelDrafting(Drafting[PreTrainedModel]):
    """What holds of a model of transformers as a pair's drafter; with the target's tokenizer. For any other
    one see TokenizedDrafting."""

    kind = "model"
    has_tokenizer = True
    takes_other_tokenizer = False

    def describes(self, folder: Path) -> bool:
        return True

    def is_one(self, model: Module) -> bool:
        return isinstance(model, PreTrainedModel)

    def cached(self, model: PreTrainedModel, target: PreTrainedModel) -> CachedLM:
        return CachedLM(model, compiled=True)

    def cost(self, pair: Models, params: object) -> DraftingCost:
        return DraftingCost(token=share_read(pair))

    def build(self, given: Materials) -> Drafter:
        return ModelDrafter(given)

    def check_cache(self, model: PreTrainedModel) -> None:
        check_writes_text(model)
        positional_cache(model)

    def agrees(self, model: PreTrainedModel, target: PreTrainedModel) -> bool:
        return agrees_with_itself(model)


class PardDrafting(ModelDrafting):
    kind = "pard"

    def describes(self, folder: Path) -> bool:
        return any((known_config(folder) or {}).get(name) is not None for name in MASKS)

    def is_one(self, model: Module) -> bool:
        return isinstance(model, PreTrainedModel) and bool(_masks(model.config))

    def cost(self, pair: Models, params: object) -> DraftingCost:
        return DraftingCost(draft=share_read(pair))

    def build(self, given: Materials) -> PardDrafter:
        return PardDrafter(given)

    def check_fit(
        self, model: PreTrainedModel, target: PreTrainedModel, drafter_id: str, target_id: str
    ) -> None:
        known = embedded_ids(model)
        for name, mask in _masks(model.config).items():
            if type(mask) is not int or not 0 <= mask < known:
                raise PairError(
                    f"drafter {drafter_id}: {name} in its config.json must be the id of one of its {known:,} "
                    f"tokens, not {ascii(mask)[:60]}"
                )


def _masks(config: PreTrainedConfig) -> dict[str, Any]:
    """What a config names as the mask token, by the name that it has there; nothing of a model that does not
    draft in parallel."""
    found = {name: getattr(config, name, None) for name in MASKS}
    return {name: mask for name, mask in found.items() if mask is not None}
