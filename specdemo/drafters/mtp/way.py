"""The target's own layers for multi-token prediction draft."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specdemo.drafters.base import Materials, Way
from specdemo.drafters.mtp.drafter import MtpDrafter
from specdemo.drafters.mtp.layers import CachedMtp, follow_target
from specdemo.events import Params
from specdemo.events.speedup import DraftingCost
from specdemo.runtime.lm import CachedLM, context_of, evaluating, in_training
from specdemo.runtime.probe import TRIED_TOKENS, alike, mostly, tried_tokens
from specdemo.runtime.runner import OfTarget
from specdemo.runtime.weights import held_bytes, weight_bytes

if TYPE_CHECKING:
    from specdemo.loading.pair import Pair


class MtpWay(Way):
    def lacks(self, pair: "Pair") -> str | None:
        return pair.mtp if isinstance(pair.mtp, str) else None

    def own(self, pair: "Pair", params: Params) -> OfTarget:
        def make(target: CachedLM) -> CachedMtp:
            follow_target(pair.mtp, target.model)
            return CachedMtp(pair.mtp, target.model)

        return OfTarget("mtp", make)

    def cost(self, pair: "Pair", params: Params) -> DraftingCost:
        """What drafting costs: one of the layers and the output layer for each token."""
        target = pair.target
        own = held_bytes(target, pair.mtp) - held_bytes(target)
        output = held_bytes(target.get_output_embeddings())
        return DraftingCost(token=(own / len(pair.mtp.layers) + output) / weight_bytes(target))

    def build(self, given: Materials) -> MtpDrafter:
        return MtpDrafter(given.drafter, given.target, given.sampler, *given.how_to_draft)


def mtp_agrees_with_itself(layers: PreTrainedModel, target: PreTrainedModel) -> bool:
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
