"""Where a text is in a thought, which no grammar binds.

That is told by the marks of the pair's chat template, which are found by their ids, since a special token
has no text in a trace."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from specdemo.events import Mark, MarkRole

# The marks of published templates that open a thought, and what closes it. Other ends (<|end|>, and the
# tokens that end a text) close all.
PAIRS = {
    "<think>": "</think>",
    "[THINK]": "[/THINK]",
    "<seed:think>": "</seed:think>",
    "<|START_THINKING|>": "<|END_THINKING|>",
    "<|channel>": "<channel|>",
}
CLOSING = frozenset(PAIRS.values())
# The marks by what they do: see Mark.
ROLES: dict[MarkRole, Iterable[str]] = {
    "thinking": PAIRS,
    "tool call": (
        *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<seed:tool_call>", "</seed:tool_call>"),
        *("<|START_ACTION|>", "<|END_ACTION|>", "<|tool_call>", "<tool_call|>", "<|python_tag|>"),
        *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        *("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    ),
    "end": (*PAIRS.values(), "<|end|>"),
    "header": ("<|start|>", "<|channel|>"),
    "body": ("<|message|>",),
}
MARKS: dict[str, MarkRole] = {text: role for role, texts in ROLES.items() for text in texts}


@dataclass(frozen=True, slots=True)
class Opened:
    """What a text has opened by its marks and not closed. thinking: whether a thought. header: the words so
    far of a header that is not complete. has_thought: whether its last mark has closed a thought."""

    thinking: bool = False
    header: str | None = None
    has_thought: bool = False


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
        if role == "body":  # what is meant for somebody else is no answer, either
            return Opened("analysis" in header or "to=" in header)
        return Opened() if role == "end" else Opened(opened.thinking, header)
    if role == "thinking":
        return opened if opened.thinking else Opened(thinking=True)
    if mark is None or role != "end":
        return opened
    return Opened(has_thought=mark.text in CLOSING)


@dataclass(frozen=True)
class Thoughts:
    """A place of a text before its answer.

    marks: those of the chat template, by their ids. opened: what is open there. openers: which marks may come
    here in place of the answer's first token, to open a thought or a header."""

    marks: Mapping[int, Mark] = field(default_factory=dict)
    opened: Opened = Opened()
    openers: frozenset[int] = frozenset()

    @classmethod
    def at_first(cls, marks: Iterable[Mark], opened: Opened) -> "Thoughts":
        """Where the output of a run begins. opened: by its prompt. A model may open a thought there itself,
        but not where the prompt has just closed one, as a template does when it is asked for no thinking."""
        by_id = {mark.id: mark for mark in marks}
        roles = ("header",) if opened.has_thought else ("thinking", "header")
        return cls(by_id, opened, _with_roles(by_id, roles))

    @property
    def are_open(self) -> bool:
        """Whether the place is in a thought or in a header."""
        return self.opened.thinking or self.opened.header is not None

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
