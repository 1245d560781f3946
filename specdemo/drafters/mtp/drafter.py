"""The target's own layers for multi-token prediction draft (DeepSeek-AI 2024, "DeepSeek-V3 Technical Report";
see layers.py)."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from specdemo.drafters.model.drafter import DraftInput
from specdemo.drafters.mtp.layers import CachedMtp
from specdemo.engine.draft import Draft, Drafter, draft_in_turn, one_hot_draft
from specdemo.engine.sampling import Sampler
from specdemo.events import LIMITS, Gamma
from specdemo.runtime.lm import LM
from specdemo.runtime.steps import RunStep

MOST_ROWS_FED = int(
    LIMITS["gamma"].largest
)  # rows of the text that a draft begins with, besides one for each layer


@dataclass(eq=False)
class MtpDrafter(Drafter):
    """The token at depth d of a draft comes from layer d, which reads what layer d - 1 has made of the same
    rows, and the row's next token. Beyond the last layer it begins anew with the first one: layer d mod L is
    given the last token and the last output alone, one slot further in its own cache.

    A layer's slots are true up to the last one whose token was in the text. Each round begins there: all
    layers read these rows again, with the target's true hidden states."""

    layers: CachedMtp
    target: LM
    sampler: Sampler
    run_step: RunStep
    gamma: Gamma
    is_over: Callable[[], bool] = lambda: False  # of Decoder
    confidence: float = 0.0
    filled: int = field(default=0, init=False)  # slots that are true in all layers that draft

    def __post_init__(self) -> None:
        # As in ModelDrafter, a GPU is not waited for at each token.
        self.stops_below = self.confidence if self.layers.device.type == "cpu" else 0.0
        longest = self.gamma if isinstance(self.gamma, int) else self.layers.count
        self.used = min(self.layers.count, longest)  # the layers that draft in this run
        self.target.features = self.layers.reads

    def start(self, ids: list[int]) -> None:
        self._fill(ids, len(ids) - self.used - 1)  # a draft begins with one row at least

    def _fill(self, ids: list[int], end: int) -> None:
        if end > self.filled:
            self.layers.prefill(ids, self.filled, end, self.used, self.is_over)
            self.filled = end

    def propose(self, ids: list[int], k: int, u: list[float]) -> Draft:
        if k <= 0 or len(ids) == 1:  # the first token has no hidden state before it
            return one_hot_draft([], self.target.vocab_size, self.target.device)
        self._fill(ids, len(ids) - self.used - MOST_ROWS_FED)  # nothing, unless rounds have drafted nothing
        rows = self.run_step.rows(k, self.gamma)
        self.layers.grow(len(ids) + rows)
        seen = self.sampler.seen(ids, self.target.vocab_size, self.layers.device)
        value = DraftInput.of(
            self.layers.device, self.filled, ids[self.filled + 1 :], self.sampler, u[:rows], seen
        )
        _, draft = self.run_step(("draft", rows), self.step, value)
        if len(draft.ids) >= self.used:
            self.filled = max(self.filled, len(ids) - self.used)
        return replace(draft, k=min(k, len(draft.ids)))

    def step(self, value: DraftInput) -> Draft:
        """The draft made from `value`. The step runs uncaptured: it begins at `filled`."""
        layers, start = self.layers, self.filled
        tokens = value.last.long()  # [N]: those after the rows, and then those drafted
        end, depth = start + len(tokens), 0
        hidden = layers.hidden(start, end)  # [N, H], and [1, H] beyond the last layer

        def predict(drafted: Tensor | None) -> Tensor:
            nonlocal tokens, hidden, depth
            if drafted is not None:
                tokens = torch.cat([tokens, drafted])
            turn, layer = divmod(depth, layers.count)
            if turn == 0:
                hidden = layers.forward(layer, tokens[depth:], hidden, start, start + 1 + depth)
            else:
                hidden = layers.forward(layer, tokens[-1:], hidden[-1:], end - 1 + turn, end + depth)
            depth += 1
            return layers.predict(hidden[-1:])

        return draft_in_turn(predict, value.u, self.sampler, value.settings, value.seen, self.stops_below)
