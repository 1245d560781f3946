"""Token ids to text, piece by piece, never showing half a character."""

from copy import copy

HALF = "\N{REPLACEMENT CHARACTER}"  # what decoders make of bytes that are no character (yet)


class Pieces:
    """Says what each token adds to the text, such that the pieces join to the decoded whole.

    A character split over tokens belongs to the token that completes it; special tokens add nothing. Decoding
    a window that starts at a finished token, and taking what is new in it, is right for every kind of
    tokenizer (byte-level, sentencepiece with its swallowed first space, word pieces), but for bytes that
    never become a character in a tokenizer that decodes such runs anew each time (byte fallback). Without a
    tokenizer every piece is empty."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.window: list[int] = []  # the last finished tokens, and what came behind them
        self.finished = 0  # how many tokens of the window are finished
        self.shown = ""  # the window's text that has been handed out

    def push(self, id: int) -> str:
        """The piece of token `id` as the next one."""
        if self.tokenizer is None:
            return ""
        self.window = [*self.window, id]
        whole = self._decode(self.window)
        text = whole.rstrip(HALF)
        piece = text[len(self.shown) :]
        self.shown += piece
        if whole == text:  # no half character at the end: this is where a later window may start
            behind = self.window[self.finished :]
            if start := self._decode(
                behind
            ):  # special tokens alone would not keep a swallowed first space away
                self.window, self.shown = behind, start
            self.finished = len(self.window)
        return piece

    def flush(self) -> str:
        """What is left at the end of the text: half characters that nothing will complete."""
        if self.tokenizer is None:
            return ""
        return self._decode(self.window)[len(self.shown) :]

    def preview(self, ids: list[int]) -> list[str]:
        """The pieces of `ids` if they came next, without pushing them; an incomplete character shows as
        U+FFFD."""
        fork = copy(self)
        pieces = []
        for id in ids:
            piece = fork.push(id)
            pieces.append(piece + fork.flush())
        return pieces

    def _decode(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
