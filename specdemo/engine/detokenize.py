"""Token ids to text, piece by piece, never showing half a character."""

from copy import copy
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the page reads traces without torch
    from transformers import PreTrainedTokenizerBase

INCOMPLETE = "\N{REPLACEMENT CHARACTER}"  # decoders write it for bytes that are no character (yet)


class Pieces:
    """Gives what each token adds to the text, such that the pieces join to the decoded whole.

    A character split over tokens belongs to the token that completes it; special tokens add nothing. It
    decodes a window that starts at a finished token, and takes what is new in it. That is right for every
    kind of tokenizer (byte-level, sentencepiece with its swallowed first space, word pieces), except for
    bytes that never become a character in a tokenizer that decodes such runs anew each time (byte fallback).
    Without a tokenizer every piece is empty."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase | None"):
        self.tokenizer = tokenizer
        self.window: list[int] = []  # the last finished tokens, and what followed them
        self.finished = 0  # how many tokens of the window are finished
        self.given = ""  # the window's text that has been given out

    def push(self, token_id: int) -> str:
        """The piece of the next token."""
        if self.tokenizer is None:
            return ""
        self.window = [*self.window, token_id]
        whole = self._decode(self.window)
        text = whole.rstrip(INCOMPLETE)
        piece = text[len(self.given) :]
        self.given += piece
        if whole == text:  # no incomplete character at the end: a later window may start here
            new = self.window[self.finished :]
            if start := self._decode(new):  # special tokens alone would not keep a swallowed first space away
                self.window, self.given = new, start
            self.finished = len(self.window)
        return piece

    def flush(self) -> str:
        """What remains at the end of the text: incomplete characters that nothing will complete."""
        if self.tokenizer is None:
            return ""
        return self._decode(self.window)[len(self.given) :]

    def preview(self, token_ids: list[int]) -> list[str]:
        """The pieces of these tokens if they came next, without pushing them. An incomplete character is
        U+FFFD."""
        fork = copy(self)
        return [fork.push(token_id) + fork.flush() for token_id in token_ids]

    def _decode(self, token_ids: list[int]) -> str:
        assert self.tokenizer is not None
        options = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
        return str(self.tokenizer.decode(token_ids, **options))
