"""An EAGLE-3 head drafts from the target's own hidden states (Li et al. 2025, "EAGLE-3: Scaling up Inference
Acceleration of Large Language Models via Training-Time Test")."""

from collections.abc import Callable

import torch

from specdemo.engine.drafters import Draft, is_unsure, one_hot_draft
from specdemo.engine.drafters.model import DraftInput
from specdemo.engine.sampling import Sampler, Settings, probabilities
from specdemo.events import LIMITS, Gamma
from specdemo.runtime.cached_head import CachedHead
from specdemo.runtime.device import to_device
from specdemo.runtime.lm import LM
from specdemo.runtime.values import RunStep

MOST = int(LIMITS["gamma"][2])  # tokens in a draft


class Eagle3Drafter:
    """Drafts token by token, each from the token before it and the head's own output for that one.

    Each round begins with the target's true features of the tokens that the last round has accepted: of
    gamma + 1 tokens where steps are captured, so that the shapes are the same however many they were. What
    they leave in the head's cache replaces what drafting had left there. Beyond the head's own context, and
    after a single token, nothing is drafted."""

    wants_top = 0

    def __init__(
        self,
        head: CachedHead,
        target: LM,
        sampler: Sampler,
        run_step: RunStep,
        gamma: Gamma,
        is_over: Callable[[], bool] = lambda: False,  # of Decoder
        confidence: float = 0.0,
    ):
        self.head = head
        self.target = target
        self.sampler = sampler
        self.run_step = run_step
        self.gamma = gamma
        self.is_over = is_over
        # As of ModelDrafter: a GPU is not waited for.
        self.stops_below = confidence if head.device.type == "cpu" else 0.0
        self.filled = 0  # rows of the head's cache that hold true features
        target.features = head.features

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
        more = min(max(1, len(ids) - 2 - self.filled), MOST)  # new tokens besides the last
        tokens = ids[1:][-(1 + self.run_step.rows(more, self.gamma)) :]
        start = len(ids) - 1 - len(tokens)
        self._fill(ids, start)  # nothing, unless rounds have drafted nothing
        self.head.reserve(len(ids) - 2 + rows)
        numbers = [start, *tokens, *self.sampler.numbers, *u[:rows]]
        on_device = to_device(numbers, torch.float64, self.head.device)
        position, last, settings, u_draft = on_device.split([1, len(tokens), 3, rows])
        value = DraftInput(position, last, u_draft, Settings.of(settings))
        buffers = (self.head.kv_length, self.head.buffer_epoch, self.target.buffer_epoch)
        key = ("draft", rows, len(tokens), *buffers, self.sampler.key)
        _, draft = self.run_step(key, self.step, value)
        self.filled = len(ids) - 1
        parts = (part.to(self.target.device) for part in (draft.ids, draft.q, draft.raw_q, draft.exact))
        return Draft(min(k, len(draft.ids)), *parts)

    def step(self, value: DraftInput) -> Draft:
        start, tokens = value.position[0].long(), value.last.long()
        y = self.head.forward_true(tokens, start)[-1:]  # [1, H]
        start = start + len(tokens)
        g, logits = self.head.predict(y)  # [1, H], [1, V]
        drafted, qs, raw_logits, exact = [], [], [], []
        for u in value.u.split(1):
            if drafted:
                g, logits = self.head.predict(self.head.forward(drafted[-1], g, start))
                start = start + 1
            tokens, q, is_exact = self.sampler.sample(logits, u, value.settings)  # [1], [1, V], [1]
            drafted.append(tokens)
            qs.append(q)
            raw_logits.append(logits)
            exact.append(is_exact)
            if self.stops_below and is_unsure(probabilities(logits), self.stops_below):
                break  # the verifier drops this token
        raw_q = probabilities(torch.cat(raw_logits))  # [B, V]
        return Draft(len(drafted), torch.cat(drafted), torch.cat(qs), raw_q, torch.cat(exact))

    def learn(self, ids: list[int], draft: list[int], likely: list[list[tuple[int, float]]]) -> None:
        pass
