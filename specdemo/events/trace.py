"""The trace of a run: filled while the run goes on, saved and loaded as JSON (schema specdemo.trace/1)."""

import datetime
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, field, fields, replace
from functools import cache, reduce
from pathlib import Path
from secrets import token_hex
from shutil import copymode
from typing import Annotated, Any, Final, Literal, get_type_hints

from pydantic import BeforeValidator, ConfigDict, TypeAdapter, ValidationError

from specdemo.events import (
    ENGINES,
    FIRST,
    LIMITS,
    MOST,
    PARAMETERS,
    Alternative,
    ChatMessage,
    Count,
    Finish,
    Finished,
    Judged,
    JudgedInTree,
    Mark,
    Next,
    Opened,
    PairInfo,
    Params,
    Round,
    Started,
    Stats,
    TokenId,
    TokenIds,
    is_tree,
    kept_tokens,
    metrics,
)
from specdemo.events.params import MOST_NODES, DraftTree, nodes_of, widths_of
from specdemo.events.speedup import claimed

SCHEMA: Final = "specdemo.trace/1"
ROUNDING = 1e-3  # more than a sum of float32 can be above 1


class NotATrace(ValueError):
    """The file is not a trace. where: the first place that is wrong, "it" for the whole. what: what is wrong
    there. is_json: whether it is JSON at all. refused: what the Params said, if that is it."""

    def __init__(
        self, where: str, what: str, is_json: bool = True, refused: ValueError | None = None
    ) -> None:
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
    stats: Stats = field(default_factory=metrics.fresh)
    messages: Annotated[tuple[ChatMessage, ...], FIRST] | None = None  # see Started
    marks: Annotated[tuple[Mark, ...], FIRST] = ()  # see Started
    opened: Opened | None = None  # see Started
    # How many tokens of the output come before the first one that has to follow a JSON schema, a regular
    # expression or a grammar, which begins after what is thought; None where none has had to yet.
    grammar_from: Count | None = None
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
        self._find_grammar(a_round, len(self.output_ids))
        self.output_ids += a_round.emitted
        self._write("".join(pieces(a_round)))
        self.unfinished = unfinished
        self.stats = metrics.after_round(self.stats, a_round)

    def _find_grammar(self, a_round: Round, before: int) -> None:
        """Sets `grammar_from` by the round, which comes after `before` tokens."""
        for at, token in enumerate(kept_tokens(a_round), before):
            if token.allowed is None:
                self.grammar_from = None
            elif self.grammar_from is None:
                self.grammar_from = at

    def revise(self, rounds: list[Round]) -> None:
        """Takes the same tokens in the same rounds, of which a server has told more since."""
        self.stats = reduce(metrics.after_round, rounds, metrics.fresh())
        self.rounds, self.revised = rounds, True

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
        trace.grammar_from, before = None, 0
        for a_round in trace.rounds:  # older traces do not tell it
            trace._find_grammar(a_round, before)
            before += len(a_round.emitted)
        return trace

    def save(self, path: str | Path) -> None:
        save_text(path, self.to_json())

    @classmethod
    def load(cls, path: str | Path) -> "Trace":
        try:
            text = Path(path).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise ValueError(f"this is not a {SCHEMA} file: it is not UTF-8 text") from None
        return cls.from_json(text)


def save_text(path: str | Path, text: str) -> None:
    """Writes a file beside it and renames it, so that a kill leaves the old file or the new one."""
    file = Path(path).resolve()
    is_other = file.exists() and not file.is_file()  # a pipe, or a device
    if is_other or not os.access(file.parent, os.W_OK):
        file.write_text(text, encoding="utf-8")
        return
    beside = file.with_name(f".{token_hex(8)}.part")
    try:
        with beside.open("x", encoding="utf-8") as writing:
            if file.exists():
                copymode(file, beside)
            writing.write(text)
            writing.flush()
            os.fsync(writing.fileno())
        beside.replace(file)
    finally:
        beside.unlink(missing_ok=True)


COUNTED = ("tokens", "rounds", "drafted", "accepted", "rejected")
SUM = "must be what the rounds add up to"


def _check(trace: Trace) -> None:
    """Refuses a file that has the right types, and cannot be the trace of a run."""
    is_ours, stats = trace.pair.server is None, trace.stats
    for index, a_round in enumerate(trace.rounds):
        if a_round.index != index:
            raise NotATrace(f"rounds.{index}.index", f"must be {index}")
        _check_round(f"rounds.{index}", a_round, trace.params, is_ours)
    if trace.output_ids != [token_id for a_round in trace.rounds for token_id in a_round.emitted]:
        raise NotATrace("output_ids", SUM)
    if is_ours:
        _check_told("stats", stats)
    counted = reduce(metrics.after_round, trace.rounds, metrics.fresh())
    counts = COUNTED if stats.made is None else (*COUNTED, "made")
    if any(getattr(stats, name) != getattr(counted, name) for name in counts):
        raise NotATrace("stats", SUM)
    for name in ("target_step_spread", "speedup_interval"):
        interval = getattr(stats, name)
        if interval and interval[0] > interval[1]:
            raise NotATrace(f"stats.{name}", "must have its lower end first")
    if stats.target_step_spread and stats.target_step_ms is None:
        raise NotATrace("stats.target_step_ms", "must be there, as its spread is")


def _check_round(where: str, a_round: Round, params: Params, is_ours: bool) -> None:
    """where: in the trace. is_ours: whether no server has made it, which tells what it likes."""
    draft, read = a_round.draft, a_round.experts_read
    own = [("next", a_round.next)] if a_round.next else []
    for name, token in [*((f"draft.{place}", token) for place, token in enumerate(draft)), *own]:
        if is_ours:
            _check_told(f"{where}.{name}", token)
            _check_top(f"{where}.{name}", token.top)
        if not isinstance(token, Judged):
            continue
        if token.forbidden and token.p != 0:
            raise NotATrace(f"{where}.{name}", "a token that the grammar forbids has a p of 0")
        if is_ours and token.fate != "discarded" and None in (token.u, token.accept_prob):
            raise NotATrace(f"{where}.{name}", "a token that was judged has a u and an accept_prob")
    if is_ours:
        _check_told(where, a_round)
    if a_round.kept and max(astuple(a_round.kept)) > len(draft):
        raise NotATrace(f"{where}.kept", "must be numbers of drafted tokens")
    if draft and is_tree(draft) != bool(params.tree):
        raise NotATrace(f"{where}.draft", "must be a tree where params.tree has one, and only there")
    if is_tree(draft):
        _check_tree(f"{where}.draft", draft, params.tree)
    longest = nodes_of(params.tree) or (int(LIMITS["gamma"].largest) if is_ours else MOST)
    for name, most in (("gamma", longest), ("made", longest if a_round.gamma is None else a_round.gamma)):
        length = getattr(a_round, name)
        if length is not None and not len(draft) <= length <= most:
            raise NotATrace(f"{where}.{name}", "must be a length that its draft can have")
    if read and read.row > read.check:
        raise NotATrace(f"{where}.experts_read", "must not be more experts for a row than for a check")
    kept_ids = [token.id for token in kept_tokens(a_round)]
    if len(a_round.emitted) != len(kept_ids) or (is_ours and [*a_round.emitted] != kept_ids):
        raise NotATrace(f"{where}.emitted", "must be the ids of what it has accepted and of its own token")


def _check_told(where: str, value: Round | Judged | Next | Stats) -> None:
    for name in _told_by_engine(type(value)):
        if getattr(value, name) is None:
            raise NotATrace(f"{where}.{name}", "must be there, since no server has made this run")


@cache
def _told_by_engine(kind: type) -> list[str]:
    """The fields that only the run of a server may leave out."""
    hints = get_type_hints(kind, include_extras=True)
    return [name for name, hint in hints.items() if ENGINES in getattr(hint, "__metadata__", ())]


def _check_top(where: str, top: Sequence[Alternative]) -> None:
    """Refuses alternatives that no distribution has."""
    ids, _, *columns = zip(*top, strict=True) if top else ((), ())
    if len({*ids}) < len(ids):
        raise NotATrace(where, "its top must have different tokens")
    if any(sum(one or 0 for one in column) > 1 + ROUNDING for column in columns):
        raise NotATrace(where, "the probabilities in its top must add up to at most 1")


def _check_tree(where: str, draft: Sequence[Judged], tree: DraftTree) -> None:
    if len(draft) > MOST_NODES:
        raise NotATrace(where, f"must not be a tree of more than {MOST_NODES} tokens")
    followed: set[int | None] = set()  # tokens after which one was accepted
    depths: dict[int | None, int] = {None: 0}
    children, most = Counter[int | None](), dict(enumerate(widths_of(tree)))
    for index, token in enumerate(draft):
        parent = token.parent if isinstance(token, JudgedInTree) else index  # where it is not told
        at = f"{where}.{index}"
        if parent is not None and parent >= index:
            raise NotATrace(f"{at}.parent", "must be the index of a token before it")
        depths[index] = depths[parent] + 1
        children[parent] += 1
        if children[parent] > most.get(depths[parent], 0):
            raise NotATrace(f"{at}.parent", "must be a token that can have so many children, by params.tree")
        if token.fate == "accepted":
            if parent in followed or (parent is not None and draft[parent].fate != "accepted"):
                raise NotATrace(f"{at}.fate", "must be accepted once after a token that is")
            followed.add(parent)


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
