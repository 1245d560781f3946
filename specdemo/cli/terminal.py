"""A run on the terminal: the generated text on standard output, in the page's colours if it is a terminal.

Standard output gets the text and nothing else. Rejected tokens are not part of the text: they go to standard
error, and only where both are the same screen, so that each is shown before the token that replaced it.
"""

import os
from typing import TextIO

from specdemo.events import Round, is_tree
from specdemo.events.params import as_text, rule_in_words
from specdemo.events.trace import Trace
from specdemo.events.verdict import verdict
from specdemo.words.message import harmless

STYLES = {
    "accepted": "\033[4;32m",  # green, underlined
    "rejected": "\033[9;31m",  # red, struck through
    "resampled": "\033[1;31m",  # red, bold
    "bonus": "\033[1;34m",  # blue, bold
    "sampled": "\033[34m",  # blue
}
RESET = "\033[0m"


class Printer:
    """Writes a run's text as its trace gets it."""

    def __init__(self, out: TextIO, err: TextIO):
        self.out, self.err = out, err
        self.coloured = out.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self.shows_rejected = self.coloured and err.isatty()
        self.pending: list[tuple[str, str]] = []  # (text, fate) of pieces that are not written yet
        self.written = 0  # characters of the text

    def round(self, a_round: Round, text: str) -> None:
        """text: the trace's, with this round."""
        judged = (token for token in a_round.draft if token.fate in ("accepted", "rejected"))
        self.pending += [(token.text, token.fate) for token in judged]
        if a_round.next:
            self.pending.append((a_round.next.text, a_round.next.source))
        self._write_until(len(text))

    def finish(self, text: str) -> None:
        """Writes the rest of `text`, the whole text, and a newline."""
        self._write_until(len(text))
        rest = text[self.written :]  # an incomplete character, if the run was interrupted in one
        print(harmless(rest) if self.out.isatty() else rest, file=self.out, flush=True)

    def _write_until(self, length: int) -> None:
        """Writes pending pieces until so many characters of the text are written."""
        while self.pending:
            piece, fate = self.pending.pop(0)
            if fate == "rejected":
                if self.shows_rejected:
                    self._write(self.err, piece.replace("\n", "\N{RETURN SYMBOL}"), fate)
                continue
            shown = piece[: length - self.written]
            self._write(self.out, shown, fate)
            self.written += len(shown)
            if rest := piece[len(shown) :]:
                self.pending.insert(0, (rest, fate))
                return

    def _write(self, file: TextIO, text: str, fate: str) -> None:
        if file.isatty():
            text = harmless(text)
        if text:
            file.write(f"{STYLES[fate]}{text}{RESET}" if self.coloured else text)
            file.flush()


def _write(value: float | None, pattern: str) -> str:
    return "–" if value is None else pattern.format(value)


def summary(trace: Trace) -> tuple[str, str]:
    """Two lines: whether speculation paid, and the run's numbers."""
    stats, params, rounds = trace.stats, trace.params, trace.rounds
    per_round = _write(stats.mean_tokens_per_round, "{:.2f}")
    is_auto = params.gamma == "auto" and not params.tree
    chosen = [one.gamma for one in rounds if one.gamma is not None] if is_auto else []
    by_arrival = stats.arrival_ms is not None  # a server's
    count = max(0, stats.target_forwards - stats.rounds)  # of the prompt, or of parts of the text again
    fed_apart = any(one.target_forwards > 1 for one in rounds)
    what_was_read = "prompt, and text fed again or token by token, read" if fed_apart else "prompt read"
    numbers = (
        f"{stats.tokens} tokens in {stats.rounds} rounds ({per_round} a round)",
        f"gamma {min(chosen)} to {max(chosen)}" if chosen else "",
        f"tree {as_text(params.tree)}" if any(is_tree(one.draft) for one in rounds) else "",
        f"acceptance rate {_write(stats.acceptance_rate, '{:.0%}')}",
        f"{_write(stats.tokens_per_second, '{:.1f}')} tokens/s{' by arrival' if by_arrival else ''}",
        "" if by_arrival else f"cost ratio {_write(stats.cost_ratio, '{:.3f}')}",
        f"first after {_write(stats.ttft_ms, '{:.0f}')} ms",
        "" if by_arrival else f"{what_was_read} in {count} other target forward{'' if count == 1 else 's'}",
        rule_in_words(params),
        f"ended by {trace.finish}",
        f"seed {params.seed}" if params.temperature else "greedy",
    )
    return verdict(trace, trace.finish).text, ", ".join(filter(None, numbers))
