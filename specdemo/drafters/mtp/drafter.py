"""The target's own layers for multi-token prediction draft (DeepSeek-AI 2024, "DeepSeek-V3 Technical Report";
see layers.py)."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specdemo.drafters.base import Materials, Models, Way
from specdemo.drafters.model.drafter import DraftInput
from specdemo.drafters.mtp.checkpoint import NONE, UNUSABLE, mtp_parameters, read_mtp
from specdemo.drafters.mtp.layers import CachedMtp, follow_target, own_modules
from specdemo.engine.draft import Draft, Drafter, draft_in_turn, one_hot_draft
from specdemo.engine.sampling import Sampler
from specdemo.errors import is_out_of_memory, reason_of
from specdemo.events import LIMITS, Gamma, Params
from specdemo.events.speedup import DraftingCost
from specdemo.runtime import cuda
from specdemo.runtime.lm import LM, CachedLM, OfTarget, context_of, evaluating, in_training
from specdemo.runtime.probe import TRIED_TOKENS, alike, mostly, tried_tokens
from specdemo.runtime.steps import RunStep
from specdemo.runtime.weights import expert_weights, held_bytes, not_finite, weight_bytes

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


class MtpWay(Way):
    def read(
        self, target: PreTrainedModel, folder: Path | None, quantised_here: bool
    ) -> PreTrainedModel | str:
        return read_mtp(target, folder, quantised_here)

    def count_parameters(self, skeleton: PreTrainedModel, folder: Path | None) -> int:
        return mtp_parameters(skeleton, folder)

    def tried(self, carried: PreTrainedModel, target: PreTrainedModel) -> PreTrainedModel | str:
        follow_target(carried, target)
        try:
            if name := next(filter(None, map(not_finite, own_modules(carried))), None):
                reason = f"the tensor {name} holds values that are not finite"
            elif _agrees_with_itself(carried, target):
                return carried
            else:
                reason = "what they predict with a cache differs from what they predict without one"
        except Exception as error:
            if is_out_of_memory(error):
                raise
            if cuda.is_cuda(target.device) and isinstance(error, RuntimeError):
                cuda.raise_if_lost(error, target.device)
            reason = f"their forward fails: {reason_of(error)}"
        return f"{UNUSABLE}: {reason}"

    def lacks(self, pair: Models) -> str | None:
        layers = pair.carried.get("mtp", NONE)
        return layers if isinstance(layers, str) else None

    def own(self, pair: Models, params: Params) -> OfTarget:
        layers = _layers_of(pair)

        def make(target: CachedLM) -> CachedMtp:
            follow_target(layers, target.model)
            return CachedMtp(layers, target.model)

        return OfTarget("mtp", make)

    def cost(self, pair: Models, params: Params) -> DraftingCost:
        """What drafting costs: one of the layers and the output layer for each token."""
        target, layers = pair.target, _layers_of(pair)
        own, output = held_bytes(target, layers) - held_bytes(target), target.get_output_embeddings()
        assert output is not None
        read = (own - expert_weights(layers).unread) / len(layers.layers) + held_bytes(output)
        return DraftingCost(token=read / weight_bytes(target))

    def build(self, given: Materials) -> MtpDrafter:
        return MtpDrafter(given.drafter, given.target, given.sampler, *given.how_to_draft)


def _layers_of(pair: Models) -> Any:
    """The layers, an MtpModel, of a pair that has them."""
    return pair.carried["mtp"]


def _agrees_with_itself(layers: PreTrainedModel, target: PreTrainedModel) -> bool:
    """Whether a target's layers for multi-token prediction predict the same with a cache that is written by
    position, also where rejected drafts were, as without one. Also whether what they are given are the
    target's last hidden states."""
    with torch.no_grad(), evaluating(in_training(target)):
        lm, cached, whole = CachedLM(target), CachedMtp(layers, target), CachedMtp(layers, target)
        lm.features = cached.reads = whole.reads
        ids = tried_tokens(lm, int(min(TRIED_TOKENS, context_of(target))))
        lm.prefill(ids)
        n = len(ids) - cached.count  # rows whose tokens are known for each of the layers
        last = target.get_decoder()(input_ids=ids[None], use_cache=False).last_hidden_state[0]
        agrees = [alike(last, cached.hidden(0, len(ids)), target.dtype)]
        expected = _of_rows(whole, ids, 0, n)
        said = _of_rows(cached, ids, 0, n // 2)
        for start in range(n // 2, n, 2):
            _of_rows(cached, ids.flip(0), start, min(start + 3, n))  # a rejected draft
            after = _of_rows(cached, ids, start, min(start + 2, n))
            said = [torch.cat(pair) for pair in zip(said, after, strict=True)]
        agrees += [alike(*pair, target.dtype) for pair in zip(expected, said, strict=True)]
        for each in (lm, cached, whole):
            each.free()
    return mostly(torch.cat(agrees), target.dtype)


def _of_rows(cached: CachedMtp, ids: Tensor, start: int, end: int) -> list[Tensor]:
    """The logits [end - start, V] of each layer for these positions of the target."""
    cached.grow(end)
    hidden, logits = cached.hidden(start, end), []
    for layer in range(cached.count):
        first = start + 1 + layer
        hidden = cached.forward(layer, ids[first : first + end - start], hidden, start, first)
        logits.append(cached.predict(hidden))
    return logits
