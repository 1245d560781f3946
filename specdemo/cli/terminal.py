"""A run on the terminal: the generated text on standard output, in the page's colours if it is a terminal.

Standard output gets the text and nothing else. Rejected tokens are not part of the text: they go to standard
error, and only where both are the same screen, so that each is shown before the token that replaced it.
"""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from specdemo.doctor.run import as_text
from specdemo.doctor.trials import Table
from specdemo.events import Finish, Params, Round, Stats, is_tree, rule_in_words
from specdemo.events.metrics import other_forwards
from specdemo.events.params import tree_text
from specdemo.events.segments import Segment, segments_of
from specdemo.events.trace import Trace
from specdemo.events.verdict import experts_in_words, verdict

if TYPE_CHECKING:
    from specdemo.trials.fork import Candidate, ForkReport

STYLES = {
    "accepted": "\033[4;32m",  # green, underlined
    "rejected": "\033[9;31m",  # red, struck through
    "resampled": "\033[1;31m",  # red, bold
    "bonus": "\033[1;34m",  # blue, bold
    "sampled": "\033[34m",  # blue
}
RESET = "\033[0m"


class Printer:
    """Writes a run's text as it comes. It keeps back what could be the beginning of a stop string."""

    def __init__(self, stops: tuple[str, ...], out: TextIO, err: TextIO):
        self.stops, self.out, self.err = stops, out, err if err.isatty() else None
        self.coloured = out.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self.pending: list[tuple[str, str]] = []  # (text, fate) of pieces that are not written yet
        self.written = 0  # characters of the text

    def round(self, a_round: Round) -> None:
        for token in a_round.draft:
            if token.fate == "accepted":
                self._add(token.text, "accepted")
            elif token.fate == "rejected" and self.coloured and self.err:
                self._write_pending(self._safe_length())
                self._write(self.err, token.text.replace("\n", "\N{RETURN SYMBOL}"), "rejected")
        if a_round.next:
            self._add(a_round.next.text, a_round.next.source)

    def finish(self, text: str) -> None:
        """Writes the rest of `text`, the whole text as it was cut before a stop string, and a newline."""
        self._write_pending(len(text) - self.written)
        rest = text[self.written :]  # an incomplete character, if the run was interrupted in one
        print(rest, file=self.out, flush=True)

    def _add(self, piece: str, fate: str) -> None:
        self.pending.append((piece, fate))
        self._write_pending(self._safe_length())

    def _safe_length(self) -> int:
        """How many of the pending characters come before anything that is or could become a stop string."""
        text = "".join(piece for piece, _ in self.pending)
        for start in range(len(text)):
            if any(stop.startswith(text[start:]) or text.startswith(stop, start) for stop in self.stops):
                return start
        return len(text)

    def _write_pending(self, length: int) -> None:
        """Writes that many characters of the pending pieces."""
        while self.pending and length > 0:
            piece, fate = self.pending.pop(0)
            self._write(self.out, piece[:length], fate)
            if rest := piece[length:]:
                self.pending.insert(0, (rest, fate))
            self.written += len(piece[:length])
            length -= len(piece[:length])

    def _write(self, file: TextIO, text: str, fate: str) -> None:
        if text:
            file.write(f"{STYLES[fate]}{text}{RESET}" if self.coloured else text)
            file.flush()


def by_segment(trace: Trace) -> list[str]:
    """A line for each kind of segment, where there are several."""
    segments = segments_of(trace)
    return [_segment_in_words(one) for one in segments] if len(segments) > 1 else []


def _segment_in_words(segment: Segment) -> str:
    numbers = (
        f"{segment.kind}: {segment.tokens} tokens ({_write(segment.tokens_per_round, '{:.2f}')} a round)",
        f"acceptance rate {_write(segment.acceptance_rate, '{:.0%}')}",
        f"{_write(segment.tokens_per_second, '{:.1f}')} tokens/s",
    )
    return ", ".join(numbers)


def _write(value: float | None, pattern: str) -> str:
    return "–" if value is None else pattern.format(value)


def summary(stats: Stats, finish: Finish | None, params: Params, rounds: Sequence[Round]) -> tuple[str, str]:
    """Two lines: whether speculation paid, with what checks read of a mixture of experts, and the run's
    numbers."""
    per_round = _write(stats.mean_tokens_per_round, "{:.2f}")
    is_auto = params.gamma == "auto" and not params.tree
    chosen = [one.gamma for one in rounds if one.gamma is not None] if is_auto else []
    by_arrival = stats.arrival_ms is not None  # a server's
    count = other_forwards(stats)
    fed_apart = any(one.target_forwards > 1 for one in rounds)
    what_was_read = "prompt, and text fed again or token by token, read" if fed_apart else "prompt read"
    numbers = (
        f"{stats.tokens} tokens in {stats.rounds} rounds ({per_round} a round)",
        f"gamma {min(chosen)} to {max(chosen)}" if chosen else "",
        f"tree {tree_text(params.tree)}" if any(is_tree(one.draft) for one in rounds) else "",
        f"acceptance rate {_write(stats.acceptance_rate, '{:.0%}')}",
        f"{_write(stats.tokens_per_second, '{:.1f}')} tokens/s{' by arrival' if by_arrival else ''}",
        "" if by_arrival else f"cost ratio {_write(stats.cost_ratio, '{:.3f}')}",
        f"first after {_write(stats.ttft_ms, '{:.0f}')} ms",
        "" if by_arrival else f"{what_was_read} in {count} other target forward{'' if count == 1 else 's'}",
        rule_in_words(params),
        f"ended by {finish}",
        f"seed {params.seed}" if params.temperature else "greedy",
    )
    paid = (verdict(stats, finish, rounds, params).text, experts_in_words(rounds, params))
    return " ".join(filter(None, paid)), ", ".join(filter(None, numbers))


def fork_report(report: "ForkReport") -> str:
    """Where the texts part and why, for a reader."""
    fork = report.fork
    if fork is None:
        return report.sentence
    lines = [f"The texts part at token {fork.place + 1}, after {fork.before!r}."]
    for text, candidate in (("plain", fork.plain), ("speculative", fork.speculative)):
        lines.append(f"  {text:<11}  {'has ended' if candidate is None else _named(candidate)}")
    if rounding := fork.rounding:
        title = "The logits there; apart: from those of the last line, at most"
        columns = ["forward", "plain", "speculative", "margin", "likeliest", "apart"]
        rows = []
        for said in fork.said:
            logits = [f"{value:.4f}" for value in (said.plain, said.speculative, said.margin)]
            several = f"{fork.rows} row{'s' * (fork.rows > 1)}"
            name = several if said.forward == "several rows" else said.forward
            rows.append([name, *logits, _named(said.likeliest), f"{said.apart:.2g}"])
        lines += ["", as_text(Table(title, columns, rows)), ""]
        measured = f"rows {rounding.rows:.2g}"
        if rounding.float32 is not None:
            measured += f", 16 bits {rounding.float32:.2g}"
        lines.append(
            f"What moves a logit of the model's own forwards, at {rounding.places} places: {measured}; "
            f"one unit of rounding is {rounding.unit:.2g}."
        )
        if rounding.not_float32:
            lines.append(f"Float32 was not compared: {rounding.not_float32}.")
    return "\n".join([*lines, report.sentence])


def _named(candidate: "Candidate") -> str:
    return f"{candidate.text!r} ({candidate.id})"
