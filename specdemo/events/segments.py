"""A run by segments: what was thought, what was answered, and calls of tools.

They are told by the marks of the pair's chat template, which are found by their ids, since a special token
has no text in a trace."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from specdemo.events import Mark, MarkRole, Opened, Round, SegmentKind, Started, kept_tokens, places_of

# The marks of published templates: those that open each kind of segment, and what closes it. Other ends
# (<|end|>, and the tokens that end a text) close all.
PAIRS: dict[SegmentKind, dict[str, str | None]] = {
    "thinking": {
        "<think>": "</think>",
        "[THINK]": "[/THINK]",
        "<seed:think>": "</seed:think>",
        "<|START_THINKING|>": "<|END_THINKING|>",
        "<|channel>": "<channel|>",
    },
    "tool call": {
        "<tool_call>": "</tool_call>",
        "[TOOL_CALLS]": None,
        "<seed:tool_call>": "</seed:tool_call>",
        "<|START_ACTION|>": "<|END_ACTION|>",
        "<|tool_call>": "<tool_call|>",
        "<|tool_calls_section_begin|>": "<|tool_calls_section_end|>",
        "<｜tool▁calls▁begin｜>": "<｜tool▁calls▁end｜>",
        "<|python_tag|>": None,
    },
}
CLOSED = {end: kind for kind, pairs in PAIRS.items() for end in pairs.values() if end}
# The marks by what they do: see Mark.
ROLES: dict[MarkRole, Iterable[str]] = {
    "thinking": PAIRS["thinking"],
    "tool call": PAIRS["tool call"],
    "end": (*CLOSED, "<|end|>"),
    "header": ("<|start|>", "<|channel|>"),
    "body": ("<|message|>",),
}
MARKS: dict[str, MarkRole] = {text: role for role, texts in ROLES.items() for text in texts}


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
        return self.accepted / (self.accepted + self.rejected) if self.accepted or self.rejected else None

    @property
    def tokens_per_round(self) -> float:
        return self.tokens / self.rounds

    @property
    def tokens_per_second(self) -> float | None:
        return 1000 * self.tokens / self.ms if self.ms else None


def segments_of(run: Started, rounds: Sequence[Round]) -> list[Segment]:
    """The rounds by kinds of segments, in the order in which they began; one where no mark has parted the
    text."""
    segments: dict[SegmentKind, Segment] = {}
    kinds = _kinds(run, rounds)
    for a_round in rounds:
        of_round = [next(kinds) for _ in a_round.emitted]
        accepted = sum(token.fate == "accepted" for token in a_round.draft)
        for place, kind in enumerate(of_round):
            segment = segments.setdefault(kind, Segment(kind))
            segment.tokens += 1
            segment.accepted += place < accepted
            segment.rounds += 1 / len(of_round)
            segment.ms += a_round.ms / len(of_round)
        for place, token in zip(places_of(a_round.draft), a_round.draft, strict=True):
            if of_round and token.fate == "rejected":  # its place is that of the one that replaced it
                segments[of_round[min(place, len(of_round) - 1)]].rejected += 1
    return [*segments.values()]


def opened_by(run: Started) -> Opened:
    """What the run's prompt has opened and not closed; by all marks in it where the run does not tell that,
    as older traces do not."""
    return opened_in(run.prompt_ids, run.marks) if run.opened is None else run.opened


def opened_in(
    ids: Iterable[int], marks: Iterable[Mark], text_of: Callable[[int], str] = lambda _: ""
) -> Opened:
    """What a text of these ids has opened and not closed. text_of: of the tokens in a header."""
    opened, by_id = Opened(), {mark.id: mark for mark in marks}
    for token_id in ids if by_id else ():
        mark = by_id.get(token_id)
        opened = after(opened, mark, text_of(token_id) if opened.header is not None and not mark else "")
    return opened


def after(opened: Opened, mark: Mark | None, text: str = "") -> Opened:
    """What is open after one more token. mark: the token's, if it is one. text: the token's."""
    role = mark.role if mark else None
    if opened.header is not None or role == "header":
        header = (opened.header or "") + text
        if role == "body":
            kind = _named(header)
            return Opened(() if kind == "answer" else (kind,))
        return Opened() if role == "end" else Opened(opened.segments, header)
    if role in ("thinking", "tool call"):
        return opened if opened.kind == role else Opened((*opened.segments, role))
    if mark is None or role != "end":
        return opened
    closed = CLOSED.get(mark.text)
    if closed is None:
        return Opened()
    at = [place for place, kind in enumerate(opened.segments) if kind == closed]
    still_open = opened.segments[: at[-1]] if at else opened.segments
    return Opened(still_open, has_thought=closed == "thinking")


@dataclass(frozen=True)
class Thoughts:
    """A place of a text before its answer.

    marks: those of the chat template, by their ids. opened: what is open there. openers: which marks may come
    here in place of the answer's first token, to open a thought or a header."""

    marks: Mapping[int, Mark] = field(default_factory=dict)
    opened: Opened = Opened()
    openers: frozenset[int] = frozenset()

    @classmethod
    def at_first(cls, run: Started) -> "Thoughts":
        """Where the output of a run begins. A model may open a thought there itself, but not where the prompt
        has just closed one, as a template does when it is asked for no thinking."""
        marks, opened = {mark.id: mark for mark in run.marks}, opened_by(run)
        roles = ("header",) if opened.has_thought else ("thinking", "header")
        if "thinking" not in opened.segments and opened.header is None:  # a call of a tool is no thought
            opened = Opened()
        return cls(marks, opened, _with_roles(marks, roles))

    @property
    def are_open(self) -> bool:
        """Whether the place is in a thought, in a call of a tool or in a header."""
        return bool(self.opened.segments) or self.opened.header is not None

    def after(self, token_id: int, text: str) -> "Thoughts | None":
        """After one more token; None if that belongs to the answer. text: the token's, read in headers."""
        if not self.are_open and token_id not in self.openers:
            return None
        opened = after(self.opened, self.marks.get(token_id), text)
        is_named = self.opened.header is not None and opened == Opened()  # the header of the answer
        openers = frozenset[int]() if is_named else _with_roles(self.marks, ("header",))
        return replace(self, opened=opened, openers=openers)


def _with_roles(marks: Mapping[int, Mark], roles: Collection[MarkRole]) -> frozenset[int]:
    return frozenset(token_id for token_id, mark in marks.items() if mark.role in roles)


def _kinds(run: Started, rounds: Iterable[Round]) -> Iterator[SegmentKind]:
    """The kind of each token that the rounds added. A mark belongs to the segment that it begins or ends; a
    header to the one that it names."""
    opened, marks = opened_by(run), {mark.id: mark for mark in run.marks}
    in_header = 0  # tokens of a header so far
    for token in (token for one in rounds for token in kept_tokens(one)):
        before, mark = opened, None if token.id is None else marks.get(token.id)
        opened = after(before, mark, token.text)
        if opened.header is not None:
            in_header += 1
        elif before.header is not None:
            yield from [_named(before.header + token.text)] * (in_header + 1)
            in_header = 0
        elif mark and mark.role == "end" and opened.segments != before.segments:
            yield CLOSED.get(mark.text, before.kind)
        else:
            yield opened.kind
    yield from ("answer" for _ in range(in_header))


def _named(header: str) -> SegmentKind:
    """What follows a header: "analysis" is thought, and what is meant for somebody else is a call."""
    if "to=" in header:
        return "tool call"
    return "thinking" if "analysis" in header else "answer"
