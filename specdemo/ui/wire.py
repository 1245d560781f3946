"""What the server sends to the page as JSON. static/messages.js has the same types for the browser.

The names are those of a trace file, and so is the form of a token's alternatives: they are lists, because
with names they would be most of what is sent. Bytes for each token, in a run of 200 tokens with five
alternatives each: 840 as it is, 1,170 if the alternatives had names, 670 if every token were a list. In a run
of 1,000 tokens tests/web/test_flow.py counts 920. At most 1,200 are allowed.
"""

from typing import Literal, NotRequired, TypedDict

from specdemo.events.rounds import Alternative


class PromptToken(TypedDict):
    """A token of the prompt. Without a tokenizer the prompt is one piece, whose id is None."""

    id: int | None
    text: str
    fate: Literal["prompt"]


class DraftToken(TypedDict):
    """A drafted token. One that was never judged has no u, no accept_prob and no alternatives. A server tells
    no p and q, and nothing of what it refused: that has no id and no text."""

    id: int | None
    text: str
    fate: Literal["accepted", "rejected", "discarded"]
    p: float | None
    q: float | None
    raw_p: float | None
    raw_q: float | None
    u: float | None
    accept_prob: float | None
    distance: float | None
    top: list[Alternative]


class NextToken(TypedDict):
    """The target's own token of a round. It has a q only if it was resampled. A server tells raw_p only."""

    id: int
    text: str
    fate: Literal["resampled", "bonus", "sampled"]
    p: float | None
    q: float | None
    raw_p: float | None
    raw_q: float | None
    u: float | None
    residual_mass: float | None
    top: list[Alternative]


class Kept(TypedDict):
    """How many of one draft's tokens each lossless rule keeps."""

    speculative: int
    block: int


class WireRound(TypedDict):
    """One draft and the target forward that judged it. Times are the engine's, in milliseconds. gamma and
    ended_by: as in a trace file; None in older ones. Of a server's round only the time until it arrived is
    known, and without drafts_told only the drafts that were accepted."""

    draft: list[DraftToken]
    next: NextToken | None
    draft_ms: float | None
    verify_ms: float | None
    kept: Kept | None
    gamma: int | None
    ended_by: str | None
    arrival_ms: float | None
    drafts_told: bool


class Estimate(TypedDict):
    """What a draft length would bring, estimated from one run; see events/estimate.py."""

    gamma: int
    formula_tokens: float | None
    formula_speedup: float | None
    seen_tokens: float
    seen_speedup: float | None


class Outcome(TypedDict):
    """What is known of a run when it has ended. best_gamma: of the estimates; None where they have no
    speed-up. noisy: its times vary too much for one. text: as it was recorded, for the page to compare with
    its tokens."""

    estimates: list[Estimate]
    best_gamma: int | None
    noisy: bool
    text: str


class Served(TypedDict):
    """A server that made a run. method, gamma: how it drafts, and how much at most; None where it does not
    tell."""

    method: str | None
    gamma: int | None


class Counted(TypedDict):
    """What a server's counters added up to during a run. alone: whether that was this run's doing only.
    drafts: how many were judged; by_place: how many were accepted up to each place."""

    alone: bool
    drafts: int
    by_place: list[int]


class Setting(TypedDict):
    """How a run was made. top_k 0, top_p 1 and min_p 0 are off. gamma: "auto" where it was chosen round by
    round. served: None for a run of the engine here."""

    draft_with: str
    gamma: int | str
    rule: str
    lenience: float
    lossy: bool
    greedy: bool
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    served: Served | None


class Update(TypedDict):
    """Rounds `since` to `until` (exclusive) of a run, its numbers as the page writes them, and whether
    speculation pays.

    A snapshot has since = 0, the prompt, the setting, whose run it is in words, and the query of the address
    that asks for the run. finish is None while the run goes on; with it comes the outcome. recorded: the run
    is played from a file. counted: by the server that made the run, so far.
    """

    since: int
    until: int
    finish: str | None
    rounds: list[WireRound]
    numbers: dict[str, str]
    verdict: str
    tone: Literal["neutral", "faster", "slower", "lossy"]
    prompt: NotRequired[list[PromptToken]]
    whose: NotRequired[str]
    setting: NotRequired[Setting]
    link: NotRequired[str]
    outcome: NotRequired[Outcome]
    recorded: NotRequired[bool]
    counted: NotRequired[Counted]


Kind = Literal["wait", "note", "error", "recorded"]


class Notice(TypedDict):
    """Text next to the stage. share: the part of the loading that is done, from 0 to 1, if known. at (ns)
    makes the same error twice two different messages."""

    kind: Kind
    text: str
    share: float | None
    at: NotRequired[int]


class TraceFile(TypedDict):
    """A file for the visitor to save, which the page fetches. stored: the name that it is kept under.
    requested_at (ns) makes two requests two different messages."""

    name: str
    stored: str
    requested_at: int


class Lane(TypedDict):
    """One run of a race. ms: drafting and verifying of all rounds. Its tokens come without alternatives."""

    title: str
    tokens: int
    ms: float
    prefill_ms: float
    rounds: list[WireRound]


class Race(TypedDict):
    """Two runs of the same prompt and seed, and what came out, in words."""

    lanes: list[Lane]
    verdict: str


class GammaPoint(TypedDict):
    """A measured draft length; gamma 0 is plain decoding. low, high: the speed-up's interval. speedup: None
    where there is no interval yet, or a wide one."""

    gamma: int
    speedup: float | None
    low: float | None
    high: float | None
    tokens_per_round: float
    runs: int


class Comparison(TypedDict):
    """The table so far, as text, the fastest drafter first; who wins, in words; and the same as files to
    save."""

    columns: list[str]
    rows: list[list[str]]
    winner: str
    csv: str
    json: str


class Measurement(TypedDict):
    """What an instrument measures: all of it so far. id: another one for each measurement. whose: what is
    measured, in words. text: what goes on or what went wrong. share: done, from 0 to 1."""

    id: int
    kind: Literal["race", "gamma", "compare"]
    state: Literal["waiting", "running", "ended", "stopped", "failed"]
    whose: str
    text: str
    share: float | None
    race: NotRequired[Race]
    gammas: NotRequired[list[GammaPoint]]
    comparison: NotRequired[Comparison]


class Message(TypedDict):
    """One message: the number of its run, which grows from run to run, and any of four parts. stored: the
    name under which a long update is kept, for the page to fetch."""

    run: int
    update: NotRequired[Update]
    stored: NotRequired[str]
    notice: NotRequired[Notice]
    file: NotRequired[TraceFile]
    measurement: NotRequired[Measurement]
