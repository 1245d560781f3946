"""Token ids to text, piece by piece, never showing half a character."""

from copy import copy
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the page reads traces without torch
    from transformers import PreTrainedTokenizerBase

INCOMPLETE = "\N{REPLACEMENT CHARACTER}"  # decoders write it for bytes that are no character (yet)
LONGEST_INCOMPLETE = 16  # tokens without a complete character in the window
LONGEST_CHARACTER = 4  # bytes of the longest character, so that it cannot reach over as many tokens


class Pieces:
    """Gives what each token adds to the text, such that the pieces join to the decoded whole.

    A character split over tokens belongs to the token that completes it; special tokens add nothing. It
    decodes a window that starts at a finished token, and takes what is new in it. That is right for every
    kind of tokenizer (byte-level, sentencepiece with its swallowed first space, word pieces), except for
    bytes that never become a character in a tokenizer that decodes such runs anew each time (byte fallback).
    The window stays short, whatever the tokens. Without a tokenizer every piece is empty."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase | None"):
        self.tokenizer = tokenizer
        self.window: list[int] = []  # the last finished tokens, and what followed them
        self.finished = 0  # how many tokens of the window are finished
        self.last_finished = 0  # how many of them were finished one piece before
        self.whole = ""  # the window's text
        self.given = ""  # what of it has been given out

    def push(self, token_id: int) -> str:
        """Takes the next token, and gives its piece."""
        if self.tokenizer is None:
            return ""
        window = [*self.window, token_id]
        whole = self._decode(window)
        if whole == self.whole and self._adds_nothing(token_id):
            return ""  # in the window such tokens would add up
        self.window, self.whole = window, whole
        text = whole.rstrip(INCOMPLETE)
        piece = text[len(self.given) :]
        self.given += piece
        if whole == text:  # no incomplete character at the end: a later window may start here
            self._shorten()
        elif len(window) - self.finished > LONGEST_INCOMPLETE:
            piece += self._drop_middle()
        return piece

    def _adds_nothing(self, token_id: int) -> bool:
        """Says whether the decoder leaves the token out, wherever it stands (a special token, or an id
        without a token). Spaces are tried twice, since a decoder can swallow the first one."""
        start = self.window[: self.finished]
        without, between = self._decode([*start, *start]), [*start, token_id, token_id, *start]
        return self._decode(between) == without

    def _shorten(self) -> None:
        """Starts the window at its last finished tokens. They must have a text, since a decoder keeps a first
        space only after other text."""
        for start in (self.finished, self.last_finished):
            if text := self._decode(self.window[start:]):
                self.last_finished = max(0, self.finished - start)
                self.window, self.whole, self.given = self.window[start:], text, text
                break
        else:
            self.last_finished = self.finished
        self.finished = len(self.window)

    def _drop_middle(self) -> str:
        """Shortens a window that ends with many incomplete characters, and gives them out but for the last
        one, since only that one can be completed. The first ones stay: where one broken byte breaks all next
        to it, they do that."""
        rest = self.whole[len(self.given) : -1]
        self.window = self.window[: self.finished + LONGEST_CHARACTER] + self.window[-2 * LONGEST_CHARACTER :]
        self.whole = self._decode(self.window)
        self.given = self.whole[:-1]
        return rest

    def flush(self) -> str:
        """Gives what remains at the end of the text: incomplete characters that nothing will complete."""
        if self.tokenizer is None:
            return ""
        return self.whole[len(self.given) :]

    def preview(self, token_id: int) -> tuple[str, "Pieces"]:
        """Gives the piece of this token if the text ended with it, and the pieces after it, without pushing
        it here. An incomplete character is U+FFFD."""
        fork = copy(self)
        return fork.push(token_id) + fork.flush(), fork

    def _decode(self, token_ids: list[int]) -> str:
        assert self.tokenizer is not None
        options = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
        return str(self.tokenizer.decode(token_ids, **options))
