"""What the server sends to the page as JSON. static/messages.js has the same types for the browser.

The names are those of a trace file, and so is the form of a token's alternatives: they are lists, because
with names they would be most of what is sent. Bytes for each token, in a run of 200 tokens with five
alternatives each: 840 as it is, 1,170 if the alternatives had names, 670 if every token were a list. In a run
of 1,000 tokens tests/web/test_flow.py counts 920. At most 1,200 are allowed.
"""

from typing import Literal, NotRequired, TypedDict

from specdemo.events import Alternative


class PromptToken(TypedDict):
    """A token of the prompt. Without a tokenizer the prompt is one piece, whose id is None."""

    id: int | None
    text: str
    fate: Literal["prompt"]


class DraftToken(TypedDict):
    """A drafted token. One that was never judged has no u, no accept_prob and no alternatives."""

    id: int
    text: str
    fate: Literal["accepted", "rejected", "discarded"]
    p: float
    q: float
    raw_p: float
    raw_q: float
    u: float | None
    accept_prob: float | None
    top: list[Alternative]


class NextToken(TypedDict):
    """The target's own token of a round. It has a q only if it was resampled."""

    id: int
    text: str
    fate: Literal["resampled", "bonus", "sampled"]
    p: float
    q: float | None
    raw_p: float
    raw_q: float | None
    u: float
    residual_mass: float | None
    top: list[Alternative]


class WireRound(TypedDict):
    """One draft and the target forward that judged it. Times are the engine's, in milliseconds."""

    draft: list[DraftToken]
    next: NextToken | None
    draft_ms: float
    verify_ms: float


class Update(TypedDict):
    """Rounds `since` to `until` (exclusive) of a run, and its numbers as the page writes them.

    A snapshot has since = 0 and the prompt. finish is None while the run goes on. recorded: the run is played
    from a file.
    """

    since: int
    until: int
    finish: str | None
    rounds: list[WireRound]
    numbers: dict[str, str]
    prompt: NotRequired[list[PromptToken]]
    recorded: NotRequired[bool]


Kind = Literal["wait", "note", "error", "recorded"]


class Notice(TypedDict):
    """Text next to the stage. share: the part of the loading that is done, from 0 to 1, if known."""

    kind: Kind
    text: str
    share: float | None


class TraceFile(TypedDict):
    """A file for the visitor to save. requested_at (ns) makes two requests two different messages."""

    name: str
    text: str
    requested_at: int


class Message(TypedDict):
    """One message: the number of its run, which grows from run to run, and any of three parts."""

    run: int
    update: NotRequired[Update]
    notice: NotRequired[Notice]
    file: NotRequired[TraceFile]
