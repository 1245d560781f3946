"""An EAGLE-3 head drafts from the target's own hidden states (Li et al. 2025, "EAGLE-3: Scaling up Inference
Acceleration of Large Language Models via Training-Time Test")."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn import Module

from specdemo.drafters.base import Materials
from specdemo.drafters.eagle3.head import CachedEagle3, Eagle3Head
from specdemo.drafters.head_kind import HeadKind
from specdemo.drafters.heads import DraftHead
from specdemo.drafters.model.drafter import DraftInput
from specdemo.engine.draft import LONGEST_DRAFT, Draft, Drafter, draft_in_turn, one_hot_draft
from specdemo.engine.sampling import Sampler
from specdemo.events import Gamma
from specdemo.runtime.lm import LM
from specdemo.runtime.steps import RunStep


@dataclass(eq=False)
class Eagle3Drafter(Drafter):
    """Drafts token by token, each from the token before it and the head's own output for that one.

    Each round begins with the target's true features of the tokens that the last round has accepted: of
    gamma + 1 tokens where steps are captured, so that the shapes are the same however many they were. What
    they leave in the head's cache replaces what drafting had left there. Beyond the head's own context, and
    after a single token, nothing is drafted."""

    head: CachedEagle3
    target: LM
    sampler: Sampler
    run_step: RunStep
    gamma: Gamma
    is_over: Callable[[], bool] = lambda: False  # of Decoder
    confidence: float = 0.0
    filled: int = field(default=0, init=False)  # rows of the head's cache that hold true features

    def __post_init__(self) -> None:
        # As in ModelDrafter, a GPU is not waited for at each token.
        self.stops_below = self.confidence if self.head.device.type == "cpu" else 0.0
        self.target.features = self.head.reads

    def start(self, ids: list[int]) -> None:
        self._fill(ids, len(ids) - 1)

    def _fill(self, ids: list[int], end: int) -> None:
        if len(ids) <= self.head.context:
            self.head.prefill(ids, self.filled, end, self.is_over)
            self.filled = max(self.filled, end)

    def propose(self, ids: list[int], k: int, u: list[float]) -> Draft:
        k = int(min(k, self.head.context - len(ids) + 1))
        if k <= 0 or len(ids) == 1:  # the first token has no feature before it
            return one_hot_draft([], self.target.vocab_size, self.target.device)
        rows = self.run_step.rows(k, self.gamma)
        more = min(max(1, len(ids) - 2 - self.filled), LONGEST_DRAFT)  # new tokens besides the last
        tokens = ids[1:][-(1 + self.run_step.rows(more, self.gamma)) :]
        start = len(ids) - 1 - len(tokens)
        self._fill(ids, start)  # nothing, unless rounds have drafted nothing
        self.head.grow(len(ids) - 2 + rows)
        seen = self.sampler.seen(ids, self.target.vocab_size, self.head.device)
        value = DraftInput.of(self.head.device, start, tokens, self.sampler, u[:rows], seen)
        buffers = (self.head.kv_length, self.head.buffer_epoch, self.target.buffer_epoch)
        key = ("draft", rows, len(tokens), *buffers, self.sampler.key)
        _, draft = self.run_step(key, self.step, value, self.expected)
        self.filled = len(ids) - 1
        return replace(draft.on(self.target.device), k=min(k, len(draft.ids)))

    def expected(self, value: DraftInput, said: Draft) -> Draft:
        """What the step should have said, see RunStep: the head's own logits after the tokens that a graph
        has drawn."""
        return self.step(value, said.logits)

    def step(self, value: DraftInput, told: Tensor | None = None) -> Draft:
        """The draft made from `value`. told: see draft_in_turn."""
        start, last = value.position[0].long(), value.last.long()
        if told is None and self.head.drafts_itself and self.sampler.grammar is None:
            drawing = self.sampler.drawing(value.settings, value.u, value.seen, self.stops_below)
            tokens, q, logits = self.head.draft(last, start, drawing)
            return Draft.drawn(tokens, q, None, logits)
        g = None  # [1, H]: what the head has made of the token before

        def predict(drafted: Tensor | None) -> Tensor:
            nonlocal start, g
            if drafted is None or g is None:
                g, logits = self.head.begin(last, start)
                start = start + len(last)
            else:
                g, logits = self.head.go_on(drafted, g, start)
                start = start + 1
            return logits  # [1, V]

        how = (self.sampler, value.settings, value.seen, self.stops_below)
        return draft_in_turn(predict, value.u, *how, told)


class Eagle3Kind(HeadKind[DraftHead, CachedEagle3]):
    def is_one(self, model: Module) -> bool:
        return isinstance(model, Eagle3Head)

    def build(self, given: Materials) -> Eagle3Drafter:
        return Eagle3Drafter(given.drafter, given.target, given.sampler, *given.how_to_draft)

    def compared(self, whole: CachedEagle3, cached: CachedEagle3, ids: Tensor) -> tuple[Tensor, Tensor]:
        """What an EAGLE-3 head says of ids [N] at once, and in parts: logits [N - 1, V]."""
        n = len(ids) - 1  # pairs of a token and the feature before it
        expected, said = _of_pairs(whole, ids, 0, n), _of_pairs(cached, ids, 0, n // 2)
        for start in range(n // 2, n, 2):
            _of_pairs(cached, ids.flip(0), start, min(start + 3, n))  # a rejected draft
            said = torch.cat([said, _of_pairs(cached, ids, start, min(start + 2, n))])
        return expected, said


def _of_pairs(cached: CachedEagle3, ids: Tensor, start: int, end: int) -> Tensor:
    """The logits [end - start, V] of the pairs in these rows of the head's cache."""
    cached.grow(end)
    tokens = ids[start + 1 : end + 1].to(cached.device)
    return cached.predict(cached.true_rows(tokens, torch.tensor(start, device=cached.device)))[1]
