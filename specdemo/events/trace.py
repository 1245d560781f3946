"""The trace of a run: filled while the run goes on, saved and loaded as JSON (schema specdemo.trace/1)."""

import datetime
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from functools import reduce
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, ConfigDict, TypeAdapter, ValidationError

from specdemo.events import (
    FIRST,
    PARAMETERS,
    ChatMessage,
    Finish,
    Finished,
    Judged,
    JudgedInTree,
    Mark,
    PairInfo,
    Params,
    Round,
    Started,
    Stats,
    TokenId,
    TokenIds,
    is_tree,
    kept_tokens,
    ratio,
    total,
)
from specdemo.events.params import MOST_NODES
from specdemo.events.speedup import claimed

SCHEMA: Final = "specdemo.trace/1"


class NotATrace(ValueError):
    """The file is not a trace. where: the first place that is wrong, "it" for the whole. what: what is wrong
    there. is_json: whether it is JSON at all. refused: what the Params said, if that is it."""

    def __init__(self, where: str, what: str, is_json: bool = True, refused: ValueError | None = None):
        super().__init__(f"this is not a {SCHEMA} file: {where}: {what}")
        self.where, self.is_json, self.refused = where, is_json, refused


def read_params(values: object) -> object:
    """The Params of a trace, without fields that are gone; what is no object as it is, to be refused."""
    if not isinstance(values, dict):
        return values
    return Params(**{name: value for name, value in values.items() if name in PARAMETERS})


@dataclass
class Trace:
    """Everything that happened so far, with the JSON's keys as names. `finish` is None while the run goes
    on."""

    # JSON has no NaN and no infinity; pydantic's parser accepts them by default.
    __pydantic_config__ = ConfigDict(allow_inf_nan=False)

    schema: Literal["specdemo.trace/1"]
    pair: PairInfo
    versions: dict[str, str]
    params: Annotated[Params, BeforeValidator(read_params)]
    prompt: str
    prompt_ids: TokenIds
    rounds: Annotated[list[Round], FIRST] = field(default_factory=list)
    finish: Finish | None = None
    error: str | None = None
    output_ids: Annotated[list[TokenId | None], FIRST] = field(default_factory=list)
    text: str = ""
    stats: Stats = field(default_factory=Stats)
    messages: Annotated[tuple[ChatMessage, ...], FIRST] | None = None  # see Started
    marks: Annotated[tuple[Mark, ...], FIRST] = ()  # see Started
    date: datetime.date | None = None  # on which it was recorded; only of the run that the page plays first

    @classmethod
    def begin(cls, started: Started) -> "Trace":
        return cls(SCHEMA, **{one.name: getattr(started, one.name) for one in fields(Started)})

    @property
    def started(self) -> Started:
        """The first event."""
        return Started(**{one.name: getattr(self, one.name) for one in fields(Started)})

    revised = False  # whether rounds have changed that were there before; not in the JSON
    unfinished = ""  # an incomplete character at the end, which the next token may complete; not in the JSON
    held = ""  # what the rounds have after `text`: a stop string, or what may become one; not in the JSON

    def add(self, a_round: Round, unfinished: str = "") -> None:
        """Takes the next round. Its text is held back as far as a stop string may begin in it."""
        self.rounds.append(a_round)
        self.output_ids += a_round.emitted
        self._write("".join(pieces(a_round)))
        self.unfinished = unfinished
        self.stats = after_round(self.stats, a_round)

    def revise(self, rounds: list[Round]) -> None:
        """Takes the same tokens in the same rounds, of which a server has told more since."""
        self.stats = reduce(after_round, rounds, Stats())
        self.rounds, self.revised = rounds, True

    def so_far(self) -> "Trace":
        """Itself once it has ended; else a copy whose parts fit together while another thread adds to it."""
        if self.finish:
            return self
        stats, copy = self.stats, Trace.begin(self.started)
        for a_round in self.rounds[: stats.rounds]:  # the stats count a round after it has been added
            copy.add(a_round)
        copy.stats = stats
        return copy

    def end(self, finish: Finish, error: str | None = None) -> None:
        """Ends the trace, whose text then has all that comes before a stop string. If the run was interrupted
        inside a character, its last token gets the incomplete character."""
        rest = ""
        if finish in ("cancelled", "error") and self.unfinished:
            last = self.rounds[-1]
            assert last.next is not None  # without it the text had ended
            rest = self.unfinished
            self.rounds[-1] = replace(last, next=replace(last.next, text=last.next.text + rest))
        self._write(rest, is_last=True)
        self.finish, self.error = finish, error

    @property
    def finished(self) -> Finished | None:
        """The last event, None while the run goes on."""
        if self.finish is None:
            return None
        return Finished(self.finish, self.error, tuple(self.output_ids), self.text, self.stats)

    def _write(self, more: str, is_last: bool = False) -> None:
        """Adds to the text what cannot belong to a stop string, and holds back the rest."""
        rest = self.held + more

        def may_stop(at: int) -> bool:
            return any(
                rest.startswith(stop, at) or (not is_last and stop.startswith(rest[at:]))
                for stop in self.params.stop
            )

        end = next(filter(may_stop, range(len(rest))), len(rest))
        self.held = rest[end:]
        self.text += rest[:end]

    def events(self) -> Iterator[Started | Round | Finished]:
        """The run's events again, without its models."""
        yield from filter(None, (self.started, *self.rounds, self.finished))

    def to_json(self) -> str:
        """The trace as JSON, written some rounds at a time, so that other threads can go on meanwhile."""
        rest = _JSON.dump_json(replace(self, rounds=[])).decode()
        before, after = rest.split(NO_ROUNDS)  # no text has it, since JSON writes \" for its quotes
        return f"{before}{ROUNDS}{rounds_json(self.rounds)}{after}"

    @classmethod
    def from_json(cls, text: str) -> "Trace":
        """Raises ValueError: one sentence that names the first place in `text` that is wrong."""
        try:
            trace = _JSON.validate_json(text, strict=True)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            refused = first["ctx"]["error"] if first["type"] == "value_error" else None
            places = (str(place) for place in first["loc"] if place not in OF_DRAFT)
            where, is_json = ".".join(places), first["type"] != "json_invalid"
            raise NotATrace(where or "it", str(refused or first["msg"]), is_json, refused) from None
        _check(trace)
        trace.stats = claimed(trace.stats)  # older traces tell wide intervals
        return trace

    def save(self, path: str | Path) -> None:
        Path(path).write_text(self.to_json(), encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> "Trace":
        try:
            text = Path(path).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise ValueError(f"this is not a {SCHEMA} file: it is not UTF-8 text") from None
        return cls.from_json(text)


COUNTED = ("tokens", "rounds", "drafted", "accepted", "rejected")
SUM = "must be what the rounds add up to"


def _check(trace: Trace) -> None:
    """Refuses a file that has the right types, and whose rounds do not make its text and its numbers."""
    for index, a_round in enumerate(trace.rounds):
        where, kept_ids = f"rounds.{index}", [token.id for token in kept_tokens(a_round)]
        if a_round.index != index:
            raise NotATrace(f"{where}.index", f"must be {index}")
        if is_tree(draft := a_round.draft):
            parents = [token.parent if isinstance(token, JudgedInTree) else MOST_NODES for token in draft]
            follow = all(parent is None or parent < place for place, parent in enumerate(parents))
            if len(draft) > MOST_NODES or not follow:
                wanted = f"a tree of at most {MOST_NODES} tokens, each with the index of its parent before it"
                raise NotATrace(f"{where}.draft", f"must be {wanted}")
        is_ours = trace.pair.server is None  # a server may tell no ids
        if len(a_round.emitted) != len(kept_ids) or (is_ours and [*a_round.emitted] != kept_ids):
            raise NotATrace(f"{where}.emitted", "must be the ids of what it kept")
    if trace.output_ids != [token_id for a_round in trace.rounds for token_id in a_round.emitted]:
        raise NotATrace("output_ids", SUM)
    counted = reduce(after_round, trace.rounds, Stats())
    if any(getattr(trace.stats, name) != getattr(counted, name) for name in COUNTED):
        raise NotATrace("stats", SUM)
    if (interval := trace.stats.speedup_interval) and not 0 < interval[0] <= interval[1]:
        raise NotATrace("stats.speedup_interval", "must be above 0, with its lower end first")


def after_round(stats: Stats, a_round: Round) -> Stats:
    """Adds one round. The acceptance rate counts judged drafts only: accepted / (accepted + rejected). In a
    tree these are all tokens that the path has come to, several at a place, so that its rate is lower than
    that of a chain which keeps as many tokens; `drafted` counts all of its tokens."""
    fates, is_told = [token.fate for token in a_round.draft], a_round.drafts_told
    tokens, rounds = stats.tokens + len(a_round.emitted), stats.rounds + 1
    accepted = stats.accepted + fates.count("accepted")
    rejected = total(stats.rejected, fates.count("rejected") if is_told else None)
    drafted = total(stats.drafted, len(fates) if is_told else None)
    return replace(
        stats,
        tokens=tokens,
        rounds=rounds,
        drafted=drafted,
        accepted=accepted,
        rejected=rejected,
        acceptance_rate=ratio(accepted, total(accepted, rejected)),
        mean_tokens_per_round=ratio(tokens, rounds),
        target_forwards=stats.target_forwards + a_round.target_forwards,
        distance=_distance(stats, a_round),
        **_times(stats, a_round, tokens, drafted),
    )


def _times(stats: Stats, a_round: Round, tokens: int, drafted: int | None) -> dict[str, Any]:
    """The times with one more round, by name. tokens, drafted: with this round's. A server's first round
    comes after the network and the prefill; the others give the speed."""
    is_first = stats.rounds == 0
    if a_round.arrival_ms is not None:
        if is_first:
            untold = dict.fromkeys(("prefill_ms", "draft_ms", "verify_ms"))
            return untold | {"ttft_ms": a_round.arrival_ms, "arrival_ms": 0.0}
        arrival_ms = (stats.arrival_ms or 0.0) + a_round.arrival_ms
        return {"arrival_ms": arrival_ms, "tokens_per_second": ratio(1000 * (tokens - 1), arrival_ms)}
    draft_ms, verify_ms = total(stats.draft_ms, a_round.draft_ms), total(stats.verify_ms, a_round.verify_ms)
    run_ms = total(draft_ms, verify_ms)
    return {
        "draft_ms": draft_ms,
        "verify_ms": verify_ms,
        "ttft_ms": total(stats.prefill_ms, run_ms) if is_first else stats.ttft_ms,
        "tokens_per_second": ratio(1000 * tokens, run_ms),
        # A tree's tokens come several to a forward.
        "drafter_step_ms": None if is_tree(a_round.draft) else ratio(draft_ms, drafted),
    }


def _distance(stats: Stats, a_round: Round) -> float | None:
    """The mean distance over all tokens so far. A token that the target drew after a rejection has the
    distance of the rejected one's place; a bonus has none, because it is drawn from p."""
    of_places = [token.distance for token in a_round.draft[: len(a_round.emitted)]]
    known = [distance for distance in of_places if distance is not None]
    if not known and stats.distance is None:
        return None
    before = (stats.distance or 0.0) * stats.tokens
    return (before + sum(known)) / (stats.tokens + len(a_round.emitted))


def pieces(a_round: Round) -> Iterator[str]:
    """The texts of the tokens that the round added, in order."""
    return (token.text for token in kept_tokens(a_round))


def rounds_json(rounds: list[Round]) -> str:
    """The rounds as a trace file has them."""
    portions = (_ROUNDS.dump_json(rounds[at : at + PORTION]) for at in range(0, len(rounds), PORTION))
    return f"[{','.join(portion[1:-1].decode() for portion in portions)}]"


def round_objects(rounds: list[Round]) -> list[dict[str, Any]]:
    """What `rounds_json` writes, as its reader has it."""
    return [_ROUND.dump_python(a_round, mode="json") for a_round in rounds]


OF_DRAFT = (Judged.__name__, JudgedInTree.__name__)  # pydantic names which of them it has tried
ROUNDS = '"rounds":'
NO_ROUNDS = f"{ROUNDS}[]"
PORTION = 10  # rounds that are written at once: 5 ms for the largest
_JSON, _ROUND, _ROUNDS = TypeAdapter(Trace), TypeAdapter(Round), TypeAdapter(list[Round])
