"""A smaller model of the same vocabulary drafts (Leviathan et al. 2023), or the target's own first layers
(LayerSkip, Elhoushi et al. 2024; see early_exit/layers.py)."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from specdemo.engine.draft import Draft, Drafter, draft_in_turn, one_hot_draft
from specdemo.engine.sampling import Sampler, Settings
from specdemo.engine.tree import AnyTree
from specdemo.events import Gamma
from specdemo.runtime.device import to_device
from specdemo.runtime.lm import LM
from specdemo.runtime.states import States
from specdemo.runtime.steps import HostNumbers, RunStep, varied_ids, varied_uniforms

MOST_FED = 64  # tokens of the text in one forward, which has logits for each


@dataclass(frozen=True)
class DraftInput:
    """What drafting reads, on the drafter's device."""

    host: HostNumbers  # the properties below, by their names
    seen: Tensor | None  # see Sampler.seen

    @classmethod
    def of(
        cls,
        device: torch.device,
        position: int,
        last: list[int],
        sampler: Sampler,
        u: list[float],
        seen: Tensor | None,
    ) -> "DraftInput":
        numbers = {"position": [position], "last": last, **sampler.numbers, "u": u}
        return cls(HostNumbers.of(device, **numbers), seen)

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


@dataclass(eq=False)
class ModelDrafter(Drafter):
    """Drafts token by token. A vocabulary wider than the target's is cut and renormalised,
    a narrower one padded with q = 0. Beyond the drafter's own context nothing is drafted.

    exit_layer: how many of the target's layers `lm` has, over the target's own cache; None: it is another
    model, with a cache of its own."""

    lm: LM
    context: float
    sampler: Sampler
    vocab_size: int  # the target's
    device: torch.device  # the target's
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
        # A GPU would have to be waited for at each token: there the draft is only cut when it is verified.
        self.stops_below = self.confidence if self.lm.device.type == "cpu" else 0.0

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

    def propose(self, ids: list[int], k: int, u: list[float]) -> Draft:
        k = self.room(ids, k)
        if k <= 0:
            return one_hot_draft([], self.vocab_size, self.device)
        self._feed_skipped(ids)
        rows = self.run_step.rows(k, self.gamma)
        # After a fully accepted round the cache lacks the last draft, which was never fed. Feeding the last
        # two tokens in every round keeps the shapes the same whatever was accepted. The target's cache lacks
        # the last token only.
        last = ids[-2:] if self.exit_layer is None else ids[-1:]
        start = len(ids) - len(last)
        self.lm.reserve(start, len(ids) + rows)
        value = DraftInput.of(self.lm.device, start, last, self.sampler, u[:rows], self.seen(ids))
        shapes = (rows, len(last), self.lm.kv_length, self.lm.buffer_epoch)
        key = ("draft", *shapes, self.sampler.key, self.exit_layer, self.tree)
        _, draft = self.run_step(key, self.step, value, self.expected)
        return replace(draft.on(self.device), k=min(k, len(draft.ids)))

    def room(self, ids: list[int], k: int) -> int:
        """How many of k tokens its context has room for."""
        return int(min(k, self.context - len(ids) + 1))

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

    def expected(self, value: DraftInput, said: Draft) -> Draft:
        """What the step should have said, see RunStep: the drafter's own logits after the tokens that a graph
        has drawn."""
        return self.step(value, said.logits)

    def step(self, value: DraftInput, told: Tensor | None = None) -> Draft:
        """The draft made from `value`. told: see draft_in_turn."""
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

    def seen(self, ids: list[int]) -> Tensor | None:
        """What Sampler.seen gives of the text."""
        return self.sampler.seen(ids, self.vocab_size, self.lm.device)

    def in_targets_ids(self, logits: Tensor) -> Tensor:
        """logits [N, of the drafter's width] -> [N, V]"""
        missing = self.vocab_size - self.lm.vocab_size
        return pad(logits, (0, missing), value=-torch.inf) if missing else logits  # a negative number cuts

    def in_own_ids(self, tokens: Tensor) -> Tensor:
        """Drafted tokens [N], in the drafter's ids, to be fed."""
        return tokens
