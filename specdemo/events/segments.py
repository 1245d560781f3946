"""A run by segments: what was thought, what was answered, and calls of tools.

They are told by the marks of the pair's chat template, which are found by their ids, since a special token
has no text in a trace."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from specdemo.events import Mark, MarkRole, Round, places_of
from specdemo.events.metrics import ratio
from specdemo.events.trace import Trace, pieces

SegmentKind = Literal["thinking", "answer", "tool call"]

# The marks of published templates, by what they do: see Mark.
TEXTS: dict[MarkRole, tuple[str, ...]] = {
    "thinking": ("<think>", "[THINK]", "<seed:think>", "<|START_THINKING|>", "<|channel>"),
    "tool call": (
        *("<tool_call>", "[TOOL_CALLS]", "<seed:tool_call>", "<|START_ACTION|>", "<|tool_call>"),
        *("<|tool_calls_section_begin|>", "<｜tool▁calls▁begin｜>", "<|python_tag|>"),
    ),
    "end": (
        *("</think>", "[/THINK]", "</seed:think>", "<|END_THINKING|>", "<channel|>", "<|end|>"),
        *("</tool_call>", "</seed:tool_call>", "<|END_ACTION|>", "<tool_call|>"),
        *("<|tool_calls_section_end|>", "<｜tool▁calls▁end｜>"),
    ),
    "header": ("<|start|>", "<|channel|>"),
    "body": ("<|message|>",),
}
MARKS: dict[str, MarkRole] = {text: role for role, texts in TEXTS.items() for text in texts}


@dataclass(slots=True)
class Segment:
    """The numbers of all segments of one kind. rounds, ms: a round whose tokens are in several segments
    counts in each by its share of them. accepted, rejected: drafts, by the segment of their place in the
    text."""

    kind: SegmentKind
    tokens: int = 0
    accepted: int = 0
    rejected: int = 0
    rounds: float = 0.0
    ms: float = 0.0

    @property
    def acceptance_rate(self) -> float | None:
        return ratio(self.accepted, self.accepted + self.rejected)

    @property
    def tokens_per_round(self) -> float | None:
        return ratio(self.tokens, self.rounds)

    @property
    def tokens_per_second(self) -> float | None:
        return ratio(1000 * self.tokens, self.ms)


def segments_of(trace: Trace) -> list[Segment]:
    """The run by kinds of segments, in the order in which they began; one where no mark has parted it."""
    found: dict[SegmentKind, Segment] = {}
    kinds = iter(_kinds_of(trace.marks, trace.prompt_ids, trace.rounds))
    for a_round in trace.rounds:
        own = [next(kinds) for _ in a_round.emitted]
        accepted = sum(token.fate == "accepted" for token in a_round.draft)
        for place, kind in enumerate(own):
            segment = found.setdefault(kind, Segment(kind))
            segment.tokens += 1
            segment.accepted += place < accepted
            segment.rounds += 1 / len(own)
            segment.ms += a_round.ms / len(own)
        for place, token in zip(places_of(a_round.draft), a_round.draft, strict=True):
            if own and token.fate == "rejected":  # its place is that of the one that replaced it
                found[own[min(place, len(own) - 1)]].rejected += 1
    return [*found.values()]


def _kinds_of(marks: Iterable[Mark], prompt_ids: Sequence[int], rounds: Iterable[Round]) -> list[SegmentKind]:
    """The kind of each token of the output. The prompt's marks count, too: it can end in an open segment."""
    read: list[tuple[int | None, str]] = [(token_id, "") for token_id in prompt_ids]
    read += [pair for one in rounds for pair in zip(one.emitted, pieces(one), strict=True)]
    return [*_kinds({mark.id: mark.role for mark in marks}, read)][len(prompt_ids) :]


def _kinds(roles: Mapping[int, MarkRole], tokens: Iterable[tuple[int | None, str]]) -> Iterator[SegmentKind]:
    """The kind of each token, which is its id, if that is told, and its text. A mark belongs to the segment
    that it begins or ends; a header to the one that it names."""
    kind: SegmentKind = "answer"
    header: list[str] = []  # the texts of its tokens so far
    for token_id, text in tokens:
        role = None if token_id is None else roles.get(token_id)
        if header or role == "header":
            header.append(text)
            if role in ("body", "end"):
                kind = _named("".join(header))
                yield from [kind] * len(header)
                header = []
        else:
            kind = role if role in ("thinking", "tool call") else kind
            yield kind
        if role == "end":
            kind = "answer"
    yield from ("answer" for _ in header)


def _named(header: str) -> SegmentKind:
    """What follows a header: "analysis" is thought, and what is meant for somebody else is a call."""
    if "to=" in header:
        return "tool call"
    return "thinking" if "analysis" in header else "answer"
