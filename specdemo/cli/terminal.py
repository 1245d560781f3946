"""A run on the terminal: the generated text on standard output, in the page's colours where it is a terminal.

Standard output gets the text and nothing else. What is not part of the text (rejected tokens) goes to standard error,
and only where both are the same screen, so that a reader sees each refusal beside what replaced it.
"""

import os
from typing import TextIO

from specdemo.events import Round, Stats

STYLES = {
    "accepted": "\033[4;32m",  # green, underlined
    "rejected": "\033[9;31m",  # red, struck through
    "resampled": "\033[1;31m",  # red, bold
    "bonus": "\033[1;34m",  # blue, bold
    "sampled": "\033[34m",  # blue
}
RESET = "\033[0m"


class Printer:
    """Writes a run's text as it comes. What may turn out to be the beginning of a stop string is held back."""

    def __init__(self, stops: tuple[str, ...], out: TextIO, aside: TextIO):
        self.stops = stops
        self.out = out
        self.aside = aside if aside.isatty() else None
        self.coloured = out.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self.held: list[tuple[str, str]] = []  # (piece, fate) of what is not written yet
        self.written = 0  # characters

    def round(self, round: Round) -> None:
        for token in round.draft:
            if token.fate == "accepted":
                self._text(token.text, "accepted")
            elif token.fate == "rejected" and self.coloured and self.aside:
                self._write_held(upto=self._safe())
                self._write(self.aside, token.text.replace("\n", "\N{RETURN SYMBOL}"), "rejected")
        if round.next:
            self._text(round.next.text, round.next.source)

    def finish(self, text: str) -> None:
        """`text` is the whole of it, cut before a stop string: what is held back is written as far as that."""
        self._write_held(upto=len(text) - self.written)
        self.out.write(text[self.written :])  # half a character, where a run was stopped inside one
        self.out.write("\n")
        self.out.flush()

    def _text(self, piece: str, fate: str) -> None:
        self.held.append((piece, fate))
        self._write_held(upto=self._safe())

    def _safe(self) -> int:
        """How many of the held characters cannot belong to a stop string that has begun."""
        held = "".join(piece for piece, _ in self.held)
        starts = [
            at
            for at in range(len(held))
            if any(stop.startswith(held[at:]) or held.startswith(stop, at) for stop in self.stops)
        ]
        return starts[0] if starts else len(held)

    def _write_held(self, upto: int) -> None:
        while self.held and upto > 0:
            piece, fate = self.held.pop(0)
            self._write(self.out, piece[:upto], fate)
            if piece[upto:]:
                self.held.insert(0, (piece[upto:], fate))
            self.written += len(piece[:upto])
            upto -= len(piece[:upto])

    def _write(self, file: TextIO, text: str, fate: str) -> None:
        if text:
            file.write(f"{STYLES[fate]}{text}{RESET}" if self.coloured else text)
            file.flush()


def summary(stats: Stats, finish: str, seed: int) -> str:
    """A run's numbers in one line."""

    def show(value: float | None, pattern: str) -> str:
        return "–" if value is None else pattern.format(value)

    return (
        f"{stats.tokens} tokens in {stats.rounds} rounds ({show(stats.mean_tokens_per_round, '{:.2f}')} a round), "
        f"acceptance rate {show(stats.acceptance_rate, '{:.0%}')}, {show(stats.tokens_per_second, '{:.1f}')} tokens/s, "
        f"first after {show(stats.ttft_ms, '{:.0f}')} ms, {stats.target_forwards} target forwards, ended by {finish}, seed {seed}"
    )
