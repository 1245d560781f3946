"""What the tokenizers of a target and its drafter have in common."""

import math
import re
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

from specdemo.errors import PairError

PROBE_TEXT = "Once upon a time, 3.14 für naïve 日本語 🙂\n\n\tdef f(x):  return x\n"
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"  # decoders write it for bytes that are no character
ONE_BYTE = re.compile(r"<0x([0-9A-F]{2})>")  # how sentencepiece spells a byte that is no token otherwise
LONGEST_TOKEN = 128  # bytes of the drafter's tokens that make up one of the target's
# How byte-level tokenizers spell each byte: as one printable character.
BYTE_OF = {sign: byte for byte, sign in bytes_to_unicode().items()}


@dataclass(frozen=True)
class OtherTokenizer:
    """A drafter's tokenizer that is not the target's. shared: the drafter's id of each of the target's tokens
    that both have. ours: what each of the target's adds to a text. theirs: the drafter's ids, by what they
    add. known: the drafter's model has the ids below it."""

    tokenizer: PreTrainedTokenizerBase
    shared: dict[int, int]
    ours: dict[int, bytes | str]
    theirs: dict[bytes | str, int]
    known: float = math.inf
    _own_ids: dict[tuple[int, torch.device], Tensor] = field(default_factory=dict, init=False, compare=False)

    def own_ids(self, width: int, device: torch.device) -> Tensor:
        """[V] int64: the drafter's id of each of the target's tokens, -1 where it has none. width: V. It is
        always the same tensor, because captured steps read it where it is."""
        if (width, device) not in self._own_ids:
            own_ids = torch.full((width,), -1)
            own_ids[list(self.shared)] = torch.tensor(list(self.shared.values()))
            self._own_ids[width, device] = own_ids.to(device)
        return self._own_ids[width, device]

    def read(self, text: str) -> list[int]:
        """A text in the drafter's ids, without an end that its tokenizer may add."""
        ids = list(self.tokenizer(text).input_ids)
        while ids and ids[-1] in self.tokenizer.all_special_ids:
            ids.pop()
        return [own_id for own_id in ids if own_id < self.known]

    def own(self, token_id: int) -> list[int]:
        """One of the target's tokens in the drafter's ids: where it has another one, those of the same bytes,
        each as long as can be."""
        if token_id in self.shared:
            return [self.shared[token_id]]
        content, ids, at = self.ours.get(token_id), [], 0
        while isinstance(content, bytes) and at < len(content):
            ends = range(min(len(content), at + LONGEST_TOKEN), at, -1)
            known = (end for end in ends if self.theirs.get(content[at:end], self.known) < self.known)
            if end := next(known, 0):
                ids.append(self.theirs[content[at:end]])
            at = end or at + 1
        return ids


def other_tokenizer(
    target: PreTrainedTokenizerBase, drafter: PreTrainedTokenizerBase, target_id: str, drafter_id: str
) -> OtherTokenizer | None:
    """The drafter's tokenizer; None if it is the target's. PairError if they have no token in common."""
    if is_same(target, drafter):
        return None
    other = compared(target, drafter)
    check_shared(other, target_id, drafter_id)
    return other


def compared(target: PreTrainedTokenizerBase, drafter: PreTrainedTokenizerBase) -> OtherTokenizer:
    """Both have a token in common if it is the same bytes of text, however they are spelled, or the same
    special token. The two that end a text are the same, whatever they are called."""
    ours, theirs = contents(target), contents(drafter)
    shared = {ours[content]: theirs[content] for content in ours if content in theirs}
    ends = target.eos_token_id, drafter.eos_token_id
    if None not in ends and ends[0] not in shared and ends[1] not in shared.values():
        shared[ends[0]] = ends[1]
    return OtherTokenizer(drafter, shared, {token_id: content for content, token_id in ours.items()}, theirs)


def check_shared(other: OtherTokenizer, target_id: str, drafter_id: str) -> None:
    """PairError if they have no token in common."""
    if not other.shared:
        raise PairError(
            f"drafter {drafter_id} must have at least one token in common with target {target_id}, but their "
            "tokenizers have none"
        )


def is_same(target: PreTrainedTokenizerBase, drafter: PreTrainedTokenizerBase) -> bool:
    """Whether both tokenizers have the same token for every id that both have, and split text alike."""
    ours = {token_id: word for word, token_id in target.get_vocab().items()}
    theirs = {token_id: word for word, token_id in drafter.get_vocab().items()}
    same = all(ours[token_id] == theirs[token_id] for token_id in ours.keys() & theirs.keys())
    return same and target(PROBE_TEXT).input_ids == drafter(PROBE_TEXT).input_ids


def contents(tokenizer: PreTrainedTokenizerBase) -> dict[bytes | str, int]:
    """Each token's id by what it adds to a text: bytes, or the name of a special token."""
    words = {token_id: word for word, token_id in tokenizer.get_vocab().items()}
    special = special_tokens(tokenizer).keys()
    ordinary = sorted(words.keys() - special)
    found: dict[bytes | str, int] = {words[token_id]: token_id for token_id in sorted(special & words.keys())}
    texts = dict(zip(ordinary, _texts(tokenizer, ordinary), strict=True))
    # A letter that is a token and a byte is the token.
    for token_id in sorted(ordinary, key=lambda token_id: bool(ONE_BYTE.fullmatch(words[token_id]))):
        if content := _bytes(texts[token_id], words[token_id]):
            found.setdefault(content, token_id)
    return found


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> dict[int, str]:
    """The tokens that a text is decoded without: the text that each is written as, by its id."""
    named = ((token_id, tokenizer.convert_ids_to_tokens(token_id)) for token_id in tokenizer.all_special_ids)
    added = tokenizer.added_tokens_decoder.items()
    every = (*named, *((token_id, token.content) for token_id, token in added if token.special))
    return {token_id: str(text) for token_id, text in every if text}


def _bytes(text: str, word: str) -> bytes | None:
    """The bytes that a token adds to a text. text: what it adds, as decoded. word: its spelling. None if they
    do not say which bytes."""
    if REPLACEMENT not in text:
        return text.encode()
    if spelled := ONE_BYTE.fullmatch(word):
        return bytes([int(spelled[1], 16)])
    return bytes(BYTE_OF[sign] for sign in word) if BYTE_OF.keys() >= set(word) else None


def _texts(tokenizer: PreTrainedTokenizerBase, token_ids: list[int]) -> list[str]:
    """What each token adds to a text that has begun."""
    before = tokenizer("a", add_special_tokens=False).input_ids[:1]
    sequences = [before, *([*before, token_id] for token_id in token_ids)]
    if tokenizer.is_fast:
        start, *whole = tokenizer.backend_tokenizer.decode_batch(sequences, skip_special_tokens=False)
    else:
        start, *whole = tokenizer.batch_decode(sequences, clean_up_tokenization_spaces=False)
    return [text.removeprefix(start) for text in whole]
