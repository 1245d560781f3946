"""What the server sends to the page as JSON. tests/browser_types.py writes the same types for the browser,
static/view/messages.d.ts, which no browser loads.

Rounds are those of a trace file, with less of their alternatives: see `rounds_to_draw` in feed.py. For each
token of a run of 1,000 with five alternatives that leaves 910 bytes of 1,470; with 50, 4,700 of 10,600. At
most 1,200 with five are allowed (tests/web/test_visitors.py).
"""

from typing import Annotated, Any, Literal, NotRequired, TypedDict, get_args

from specdemo.events import Manner, Round
from specdemo.events.speedup import Checks, Estimate


class PromptToken(TypedDict):
    """A token of the prompt. Without a tokenizer the prompt is one piece, whose id is None."""

    id: int | None
    text: str
    fate: Literal["prompt"]


# A round as a reader of a trace file has it, and what is estimated from a run, as JSON objects.
RoundObject = Annotated[dict[str, Any], Round]
EstimateObject = Annotated[dict[str, Any], Estimate]
ChecksObject = Annotated[dict[str, Any], Checks]


class RunOutcome(TypedDict):
    """What is known of a run when it has ended. In words, empty where there is nothing to say: no_speedup,
    why the estimates have none, and experts, what checks read of a mixture of experts. best_gamma: of the
    estimates; None where they have no speed-up. seconds: how long each kind of measurement would take. text:
    as it was recorded, for the page to compare with its tokens. checks: None where they are not known."""

    no_speedup: str
    experts: str
    estimates: list[EstimateObject]
    checks: ChecksObject | None
    best_gamma: int | None
    seconds: dict[str, float]
    text: str


class Served(TypedDict):
    """A server that made a run: how it drafts, and how much at most; None where it does not tell."""

    method: str | None
    gamma: int | None


class WireRule(TypedDict):
    """What judged a run's drafts: its row in events/choices.py, and the row's words."""

    name: str
    symbol: str
    meaning: str
    residual: str | None
    accepted: str
    recorded: str
    about: str
    judges_whole_draft: bool
    threshold: str | None


class RunSetting(TypedDict):
    """How a run was made; names of Params mean what they mean there. manner, drafting: how its drafts come
    about, by name and in a sentence; None and empty where nothing is drafted or a server does not tell.
    adjusted: penalties and biases in words; empty where there are none, or where only a server knows. bound:
    whether the text has to follow a grammar of any kind. of_rule: the fields of Params that the rule uses.
    marks: those of the chat template, by their ids, which have no text in the run. machine: the device, as
    the pair named it. conditions: what a measurement must share to be drawn with this run. served: None for a
    run of the engine here."""

    draft_with: str
    manner: Manner | None
    drafting: str
    ngram: int
    gamma: int | str
    rule: WireRule
    of_rule: dict[str, float]
    lossy: bool
    greedy: bool
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    adjusted: str
    bound: bool
    chat: bool
    marks: dict[str, str]
    machine: str
    conditions: str
    served: Served | None


class Turn(TypedDict):
    """A turn of a conversation before the run's own: what was asked and what was answered. run: the name of
    the run that answered, where the server keeps it; else None."""

    asked: str
    answered: str
    run: str | None


class Update(TypedDict):
    """Rounds `since` to `until` (exclusive) of a run, its numbers as the page writes them, and whether
    speculation pays. A snapshot has since = 0, the prompt, the setting, whose run it is in words, and the
    query of the address that asks for the run. finish is None while the run goes on; with it comes the
    outcome. recorded: the run is played from a file. turns: those before it in its conversation."""

    since: int
    until: int
    finish: str | None
    rounds: list[RoundObject]
    numbers: dict[str, str]
    verdict: str
    tone: Literal["neutral", "faster", "slower", "lossy"]
    prompt: NotRequired[list[PromptToken]]
    whose: NotRequired[str]
    setting: NotRequired[RunSetting]
    link: NotRequired[str]
    outcome: NotRequired[RunOutcome]
    recorded: NotRequired[bool]
    turns: NotRequired[list[Turn]]


NoticeKind = Literal["wait", "note", "error", "recorded"]


class Notice(TypedDict):
    """Text next to the stage. share: the part of the loading that is done, from 0 to 1, if known."""

    kind: NoticeKind
    text: str
    share: float | None


class Lane(TypedDict):
    """One run of a race. ms: drafting and verifying of all rounds. Its tokens come without alternatives;
    one without a text has its own row."""

    title: str
    tokens: int
    ms: float
    prefill_ms: float
    rounds: list[RoundObject]


class Head(TypedDict):
    """What stands over a panel about one run: as in Update."""

    whose: str
    numbers: dict[str, str]
    verdict: str
    tone: Literal["neutral", "faster", "slower", "lossy"]


class Race(TypedDict):
    """Two runs of the same prompt and seed, the target alone and one with drafts, and what came out, in
    words. speedup: of the second over the first, with its interval; empty where it is not known. head: of
    the second run, measured against the first."""

    lanes: list[Lane]
    verdict: str
    speedup: str
    head: Head


class GammaPoint(TypedDict):
    """A measured draft length; gamma 0 is plain decoding. low, high: the speed-up's interval. speedup: None
    where the interval is wide, and says it alone."""

    gamma: int
    speedup: float | None
    low: float | None
    high: float | None
    tokens_per_round: float
    runs: int


class ComparisonTable(TypedDict):
    """The table so far, as text, the fastest drafter first; who wins, in words; and the same as files to
    save. abouts: what each row's drafter does; empty where that is not known. firsts: which rows are shown
    at first."""

    columns: list[str]
    rows: list[list[str]]
    abouts: list[str]
    firsts: list[bool]
    winner: str
    csv: str
    json: str


class Game(TypedDict):
    """A game in which the visitor drafts, after a round. name: to be repeated with each guess. most: tokens
    that a guess can have. link: the query of the address that begins the same game. prompt, setting: at its
    opening. guessed, drafted: the round with the visitor's draft, and what would have come of the drafter's
    own one. suggestions: words for the next round. finish: why the text has ended, if it has."""

    name: str
    seed: int
    most: int
    link: str
    suggestions: list[str]
    finish: str | None
    prompt: NotRequired[list[PromptToken]]
    setting: NotRequired[RunSetting]
    guessed: NotRequired[RoundObject]
    drafted: NotRequired[RoundObject]


class TrialsCell(TypedDict):
    """The first tokens of a run: in which share of the runs they came out, and in which they are due: p of
    the tiny pair's target, or the share of runs without drafts. others: how many rarer ones this stands for;
    0 if it is one."""

    text: str
    came: float
    due: float
    others: int


TrialsVerdict = Literal["few", "alike", "fits", "unclear", "differs"]


class Counts(TypedDict):
    """Short runs so far, counted by their first two tokens. judged, accepted: drafted tokens. distance: total
    variation; by_chance: its mean where there is no difference. statistic: of the chi-square test, None where
    it is infinite. found: "alike" where only one text came or can come, so that the test finds nothing."""

    runs: int
    judged: int
    accepted: int
    cells: list[TrialsCell]
    distance: float
    by_chance: float
    statistic: float | None
    freedom: int
    p_value: float
    found: TrialsVerdict


class Trials(Counts):
    """The trials so far, of `most` runs at the most. trial: "none", a mistake, or "pair". guesses: of the
    tiny pair, how many at each place. lossy: the rule, if it is one."""

    trial: str
    guesses: int
    most: int
    greedy: bool
    lossy: str


class WorldsDraft(TypedDict):
    """A drafted token, as it is drawn."""

    id: int
    text: str
    fate: str


class WorldsNext(TypedDict):
    """The token that a round adds itself, as it is drawn."""

    id: int
    text: str
    source: str


class WorldsRound(TypedDict):
    """A round, as it is drawn."""

    draft: list[WorldsDraft]
    next: WorldsNext | None


class WorldsStop(TypedDict):
    """What is known of a stop so far. texts: the rounds of the two runs of a prompt. counts: of the tiny
    pair's runs with its drafter."""

    texts: dict[Literal["sampled", "greedy"], list[WorldsRound]] | None
    counts: Counts | None


class Worlds(TypedDict):
    """All stops, from noise to the target itself. most: runs of the tiny pair at each."""

    most: int
    stops: list[WorldsStop]


class Advised(TypedDict):
    """What to set for a kind of work, in words. pays: whether it is to speculate."""

    work: str
    setting: str
    reason: str
    pays: bool


class Typed(TypedDict):
    """A setting as it is typed into a server. command: None where the server has no such method. notes: what
    it means otherwise, or lacks."""

    server: str
    command: str | None
    notes: list[str]


class Advice(TypedDict):
    """What the adviser has found so far, in words. ended: why, and after how long. requests: what several at
    once bring. typed: the setting for all of the work. columns, rows: all that was measured."""

    advised: list[Advised]
    ended: str
    requests: list[str]
    typed: list[Typed]
    columns: list[str]
    rows: list[list[str]]


MeasurementKind = Literal["race", "gamma", "compare", "advise", "guess", "trials", "worlds"]
MEASUREMENT_KINDS: tuple[MeasurementKind, ...] = get_args(MeasurementKind)


class Measurement(TypedDict):
    """What an instrument measures: all of it so far. id: another one for each measurement. whose: what is
    measured, in words. text: what goes on or what went wrong. share: of its time, from 0 to 1. left: seconds
    until its end. conditions: of gammas, as in RunSetting."""

    id: str
    kind: MeasurementKind
    state: Literal["waiting", "running", "ended", "stopped", "failed"]
    whose: str
    text: str
    share: float | None
    left: float | None
    race: NotRequired[Race]
    gammas: NotRequired[list[GammaPoint]]
    conditions: NotRequired[str]
    comparison: NotRequired[ComparisonTable]
    advice: NotRequired[Advice]
    guess: NotRequired[Game]
    trials: NotRequired[Trials]
    worlds: NotRequired[Worlds]


class PageMessage(TypedDict):
    """One message, with any of these parts. name: of what has been opened. controls, hints: what is put into
    and beside them, by name. follow, measure: the name of a run or a measurement that has begun; at (ns)
    orders such answers. stored: the whole run is to be fetched. ended: nothing more will come."""

    update: NotRequired[Update]
    notice: NotRequired[Notice]
    measurement: NotRequired[Measurement]
    name: NotRequired[str]
    controls: NotRequired[dict[str, str | float | bool | None]]
    hints: NotRequired[dict[str, dict[str, str | bool | None]]]
    follow: NotRequired[str]
    measure: NotRequired[str]
    at: NotRequired[int]
    stored: NotRequired[bool]
    ended: NotRequired[bool]
