"""A model with another tokenizer drafts (Timor et al. 2025, "Accelerating LLM Inference with Lossless
Speculative Decoding Algorithms for Heterogeneous Vocabularies").

The drafter reads the text in its own tokens. Greedily it continues the text, and what it adds is tokenised by
the target's tokenizer (their string-level exact match, SLEM): q is one-hot. When sampling it drafts tokens
that both vocabularies have, by the target's ids (their token-level intersection, TLI): q is its distribution
over these, renormalised. Both are lossless whatever the way through text loses, because a draft is judged by
the q that it was drawn from."""

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, replace
from os.path import commonprefix
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specdemo.drafters.base import Drafting, Materials, PairModels, share_read
from specdemo.drafters.model import ModelDrafter
from specdemo.engine.detokenize import INCOMPLETE, Pieces
from specdemo.engine.draft import Draft, Drafter, is_unsure, one_hot_draft
from specdemo.engine.sampling import Sampler
from specdemo.events.speedup import DraftingCost
from specdemo.runtime.lm import CachedLM, check_writes_text, positional_cache
from specdemo.runtime.probe import agrees_with_itself
from specdemo.runtime.states import States

BACK = 16  # tokens at the end of a text that are made anew when it grows
TAIL_CHARACTERS = 40  # characters of the text before a draft that are tokenised with it


class SharedTokensDrafter(ModelDrafter):
    """Drafts tokens that both vocabularies have, after a text in the drafter's ids. own_ids: [V] int64, on
    the drafter's device: the drafter's id of each of the target's tokens, -1 where it has none. A captured
    step reads it where it is."""

    other_ids = True

    def __init__(self, given: Materials, own_ids: Tensor):
        super().__init__(given)
        self.own_ids = own_ids

    def seen(self, ids: list[int]) -> Tensor | None:
        """What Sampler.seen gives of a text in the drafter's ids, by the target's ids."""
        seen = self.sampler.seen(ids, self.lm.vocab_size, self.lm.device)
        if seen is None:
            return None
        return seen.index_select(0, self.own_ids.clamp(min=0)) * (self.own_ids >= 0)

    def in_targets_ids(self, logits: Tensor) -> Tensor:
        lacking = self.own_ids < 0
        return logits.index_select(1, self.own_ids.clamp(min=0)).masked_fill(lacking, -torch.inf)

    def in_own_ids(self, tokens: Tensor) -> Tensor:
        return self.own_ids.index_select(0, tokens).clamp(min=0)  # NaN can draw a token that it lacks


@dataclass(eq=False)
class OtherTokenizerDrafter(Drafter):
    """Drafts with a model that has another tokenizer. drafter: drafts in the target's ids, or,
    `through_text`, in its own. own_ids: the drafter's id of each of the target's tokens that it has."""

    drafter: ModelDrafter
    tokenizer: PreTrainedTokenizerBase  # the target's
    own_tokenizer: PreTrainedTokenizerBase
    own_ids: dict[int, int]
    vocab_size: int  # the target's
    device: torch.device  # the target's
    through_text: bool

    def __post_init__(self) -> None:
        self.pieces = Pieces(self.tokenizer)
        self.text = ""
        self.length = 0  # tokens of the target whose text that is
        self.encoded = GrowingText(self.own_tokenizer)
        self.held: list[int] = []  # the drafter's ids in its cache
        self.drafted = 0  # tokens that the last draft fed, after `held`; not known here which
        self.waits = self.through_text

    @property
    def states(self) -> States | None:
        return self.drafter.states

    def start(self, ids: list[int]) -> None:
        own = self._read(ids)
        self.drafter.sampler.prompt_tokens = len(own)
        self.drafter.start(own)
        self.held = own[:-2]

    def skip(self, ids: list[int]) -> None:
        self._note_accepted(ids)
        self._read(ids)

    def _note_accepted(self, ids: list[int]) -> None:
        """Notes that what was accepted of the last draft is in the cache."""
        accepted = ids[self.length : -1][: self.drafted]
        self.held += [self.own_ids[token_id] for token_id in accepted]
        self.drafted = 0

    def propose(self, ids: list[int], k: int, u: list[float]) -> Draft:
        self._note_accepted(ids)
        own = self._read(ids)
        room = self.drafter.context - len(own) + 1
        if k <= 0 or room <= 0 or not own or self.pieces.flush():  # a part of a character cannot be encoded
            return one_hot_draft([], self.vocab_size, self.device)
        # The draft itself feeds the last two tokens. commonprefix takes any lists, here of token ids.
        self.drafter.feed(own, len(commonprefix([self.held, own])), len(own) - 2)
        draft = self.drafter.propose(own, k, u)
        self.held = list(own)
        if not self.through_text:
            self.drafted = max(0, draft.k - 1)
            return draft
        # Waits for the drafter, whose text is needed.
        new = draft.ids[: draft.k].tolist()
        unsure = is_unsure(draft.raw_q[: draft.k], self.drafter.confidence).tolist()
        sure = new[: unsure.index(True)] if True in unsure else new
        self.held += sure[:-1]
        tokens = self._in_targets_tokens(own, sure)[:k]
        # Nothing was dropped where the draft is as long as it may be, or has the end of the text.
        dropped = min(len(new) - len(sure), k - len(tokens))
        dropped = 0 if self.own_tokenizer.eos_token_id in sure else dropped
        return replace(one_hot_draft(tokens, self.vocab_size, self.device), dropped=dropped)

    def _read(self, ids: list[int]) -> list[int]:
        """The text so far in the drafter's ids, without those that its tokenizer has and its model has
        not."""
        self.text += "".join(self.pieces.push(token_id) for token_id in ids[self.length :])
        self.length = len(ids)
        lm = self.drafter.lm
        known = min(lm.vocab_size, lm.known_ids)
        return [own_id for own_id in self.encoded.ids_of(self.text) if own_id < known]

    def _in_targets_tokens(self, own: list[int], new: list[int]) -> list[int]:
        """What `new` adds to the text, as the target's tokens; its end of the text is the target's."""
        end, targets_end = self.own_tokenizer.eos_token_id, self.tokenizer.eos_token_id
        ends = end in new and targets_end is not None
        new = new[: new.index(end)] if end in new else new
        before = _decoded(self.own_tokenizer, own[-BACK:])
        added = _decoded(self.own_tokenizer, own[-BACK:] + new).removeprefix(before).rstrip(INCOMPLETE)
        tail = self.text[-TAIL_CHARACTERS:]
        tokens, spans = _encode(self.tokenizer, tail + added)
        # Where a token reaches from the text into the draft, the draft is tokenised by itself.
        at = next((i for i, (start, _) in enumerate(spans) if start >= len(tail)), len(tokens))
        if not spans or (at and spans[at - 1][1] > len(tail)):
            at, (tokens, _) = 0, _encode(self.tokenizer, added)
        known = [token_id for token_id in tokens[at:] if token_id < self.vocab_size]
        return [*known, targets_end] if ends else known


class GrowingText:
    """A text that grows, as the ids of a tokenizer; only its end is tokenised again, where the tokenizer says
    which characters a token stands for. Texts that are not a part of the next one are tokenised in full."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self.tokenizer = tokenizer
        self.text = ""
        self.ids: list[int] = []
        self.spans: list[tuple[int, int]] = []  # of characters, one for each id, or none at all

    def ids_of(self, text: str) -> list[int]:
        if text != self.text or not self.ids:
            if not (text.startswith(self.text) and self._grow(text)):
                self.ids, self.spans = _encode(self.tokenizer, text, add_special_tokens=True)
            self.text = text
        return self.ids

    def _grow(self, text: str) -> bool:
        """Tokenises the end of the text anew; False if it cannot be joined to what is there."""
        start = next((i for i in range(len(self.spans) - BACK, 0, -1) if _splits(self.spans, i)), None)
        if start is None:
            return False
        begin = self.spans[start - 1][1]
        new, spans = _encode(self.tokenizer, text[begin:])
        spans = [(first + begin, end + begin) for first, end in spans]
        # The first tokens of a text can be others than those of the same characters inside of one.
        joints = {
            self.spans[i - 1][1]: i for i in range(start + 2, len(self.spans)) if _splits(self.spans, i)
        }
        for at in range(1, len(new)):
            if _splits(spans, at) and spans[at - 1][1] in joints:
                old = joints[spans[at - 1][1]]
                self.ids, self.spans = self.ids[:old] + new[at:], self.spans[:old] + spans[at:]
                return True
        return False


def _splits(spans: list[tuple[int, int]], i: int) -> bool:
    """Whether the tokens before i and those from i on have no character in common."""
    return spans[i - 1][1] <= spans[i][0]


def _encode(
    tokenizer: PreTrainedTokenizerBase, text: str, add_special_tokens: bool = False
) -> tuple[list[int], list[tuple[int, int]]]:
    """Token ids, without an end of the text that a tokenizer may add, and the characters of each; none of
    these where the tokenizer does not tell."""
    read = tokenizer(text, add_special_tokens=add_special_tokens, return_offsets_mapping=tokenizer.is_fast)
    ids, spans = list(read["input_ids"]), list(read.get("offset_mapping", ()))
    while ids and ids[-1] in tokenizer.all_special_ids:
        ids.pop()
    return ids, spans[: len(ids)]


def _decoded(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> str:
    return str(tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))


class ModelDrafting(Drafting[PreTrainedModel]):
    """A model of transformers as a pair's drafter, with the target's tokenizer or another one. When greedy,
    with another one it drafts in its own ids, which go through text."""

    kind = "model"

    def describes(self, config: Mapping[str, Any]) -> bool:
        return True

    def cached(self, model: PreTrainedModel, target: PreTrainedModel) -> CachedLM:
        return CachedLM(model, compiled=True)

    def cost(self, pair: PairModels, params: object) -> DraftingCost:
        return DraftingCost(token=share_read(pair))

    def check_cache(self, model: PreTrainedModel) -> None:
        check_writes_text(model)
        positional_cache(model)

    def agrees(self, model: PreTrainedModel, target: PreTrainedModel) -> bool:
        return agrees_with_itself(model)

    def build(self, given: Materials) -> Drafter:
        other, lm, greedy = given.other_tokenizer, given.drafter, given.sampler.greedy
        if other is None:
            return super().build(given)
        if greedy:
            bias = given.params.logit_bias or {}
            its_own = {theirs: bias[ours] for ours, theirs in other.shared if ours in bias}
            sampler = Sampler(replace(given.params, logit_bias=its_own))
            drafter = ModelDrafter(replace(given, sampler=sampler, target=lm))
        else:
            sampler = copy(given.sampler)  # of its own: its text's prompt has another number of tokens
            own_ids = other.own_ids(given.target.vocab_size, lm.device)
            drafter = SharedTokensDrafter(replace(given, sampler=sampler), own_ids)
        assert given.tokenizer is not None, "two tokenizers were compared"
        theirs = (given.tokenizer, other.tokenizer, dict(other.shared))
        return OtherTokenizerDrafter(drafter, *theirs, *given.of_target, greedy)
