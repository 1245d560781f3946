"""Heads as a pair's drafter: what all kinds of them have in common."""

from typing import ClassVar, Generic, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specdemo.drafters.base import Kind, Materials
from specdemo.drafters.head_drafter import HeadDrafter
from specdemo.drafters.heads import DraftHead
from specdemo.errors import PairError
from specdemo.runtime.cache import Cached
from specdemo.runtime.device import Clock
from specdemo.runtime.lm import CachedLM, context_of, evaluating, final_norm, in_training, logits_width
from specdemo.runtime.probe import TRIED_TOKENS, alike, tried_tokens
from specdemo.words.message import Message, message

H = TypeVar("H", bound=DraftHead)
C = TypeVar("C", bound=Cached)


class HeadKind(Kind[H], Generic[H, C]):
    is_head = True
    is_for_a_target = "a head"
    reads_hidden_states = True
    drafter: ClassVar[type[HeadDrafter]]

    def name_of(self, model: H) -> str:
        return model.kind

    def cached(self, model: H, target: PreTrainedModel, clock: Clock) -> Cached:
        is_here = model.device.type == target.get_input_embeddings().weight.device.type == "cpu"
        return model.compiled(target) if is_here else model.cached(target)

    def build(self, given: Materials) -> HeadDrafter:
        return self.drafter(given.drafter, given.target, given.sampler, *given.how_to_draft, given.tree)

    def check_fit(self, model: H, target: PreTrainedModel, drafter_id: str, target_id: str) -> None:
        config, of_target = model.config, target.config.get_text_config()
        depth, ids = of_target.num_hidden_layers, config.layer_ids_for(of_target.num_hidden_layers)
        where = f"drafter {drafter_id} does not fit target {target_id}"
        if config.feature_size != of_target.hidden_size:
            raise PairError(
                f"{where}: it reads hidden states of size {config.feature_size}, and the target's have "
                f"{of_target.hidden_size}"
            )
        if config.vocab_size != logits_width(target):
            raise PairError(
                f"{where}: it was made for a vocabulary of {config.vocab_size:,} tokens, and the "
                f"target's has {logits_width(target):,}"
            )
        if len(set(ids)) != len(ids) or min(ids) < 0 or max(ids) > depth:
            raise PairError(
                f"{where}: it reads the inputs of layers {', '.join(map(str, ids))}, which must be different "
                f"and from 0 to {depth}, the target's number of layers"
            )
        if model.uses_target_s_embeddings and config.hidden_size != of_target.hidden_size:
            raise PairError(
                f"{where}: it has no embeddings of its own and a hidden size of {config.hidden_size}, so the "
                f"target's embeddings of size {of_target.hidden_size} cannot be used"
            )

        if model.reads_normed:
            try:
                final_norm(target)
            except ValueError:
                raise PairError(
                    f"{where}: it reads the target's hidden states after the last norm, which is not known "
                    f"of a {type(target).__name__}"
                ) from None

    def notes(self, model: H, target: PreTrainedModel) -> list[Message]:
        guessed = model.guessed(target.config.get_text_config().num_hidden_layers)
        return [message("guessed", name=name, value=value) for name, value in guessed.items()]

    def needs_targets_device(self, model: H) -> str | None:
        if not model.uses_target_s_embeddings:
            return None
        return "has no embeddings of its own and uses the target's"

    def agrees(self, model: H, target: PreTrainedModel) -> bool:
        """Whether the head predicts the same with a cache that is written by position, also where rejected
        drafts were, as in one forward over a whole text, from the target's features of it."""
        with torch.no_grad(), evaluating(in_training(target)):
            lm, cached, whole = CachedLM(target), model.cached(target), model.cached(target)
            lm.features = cached.reads = whole.reads
            ids = tried_tokens(lm, int(min(TRIED_TOKENS, context_of(target), context_of(model))))
            lm.prefill(ids)
            expected, said = self.compared(whole, cached, ids)
            for each in (lm, cached, whole):
                each.free()
        return bool(alike(expected, said, model.dtype).all())

    def compared(self, whole: C, cached: C, ids: Tensor) -> tuple[Tensor, Tensor]:
        """What the head says of ids [N] at once, and in parts with rejected drafts between them: logits, the
        same in both."""
        raise NotImplementedError
