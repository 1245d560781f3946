"""The record of a run: written as it happens, saved and loaded as JSON (schema specdemo.trace/1), replayed without models."""

from collections.abc import Iterator
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError

from specdemo.events import Finished, PairInfo, Params, Round, Started, Stats, metrics

SCHEMA = "specdemo.trace/1"
LONGEST = 1e12  # ms, thirty years; no count comes near it, either


@dataclass
class Trace:
    """Everything that happened so far, under the JSON's own names. `finish` is None while the run goes on."""

    schema: Literal["specdemo.trace/1"]
    pair: PairInfo
    versions: dict[str, str]
    params: Params
    prompt: str
    prompt_ids: tuple[int, ...]
    rounds: list[Round] = field(default_factory=list)
    finish: Literal["eos", "stop", "length", "cancelled", "error"] | None = None
    error: str | None = None
    output_ids: list[int] = field(default_factory=list)
    text: str = ""
    stats: Stats = field(default_factory=metrics.fresh)

    @classmethod
    def begin(cls, started: Started, stats: Stats) -> "Trace":
        return cls(
            SCHEMA, started.pair, started.versions, started.params, started.prompt, started.prompt_ids, stats=stats
        )  # fmt: skip

    unfinished = ""  # half a character at the end, which the next token may complete; no part of the record

    def add(self, round: Round, unfinished: str = "") -> None:
        self.rounds.append(round)
        self.output_ids += round.emitted
        self.text = self._cut(self.text + "".join(pieces(round)))
        self.unfinished = unfinished
        self.stats = metrics.after_round(self.stats, round)

    def end(self, finish: str, error: str | None = None) -> Finished:
        """Closes the record. Half a character that a run left behind when it was stopped belongs to its last token."""
        if finish in ("cancelled", "error") and self.unfinished:
            last = self.rounds[-1]
            self.rounds[-1] = replace(last, next=replace(last.next, text=last.next.text + self.unfinished))
            self.text = self._cut(self.text + self.unfinished)
        self.finish, self.error = finish, error
        return Finished(finish, error, tuple(self.output_ids), self.text, self.stats)

    def _cut(self, text: str) -> str:
        """Before the first stop string."""
        return text[
            : min((at for stop in self.params.stop if (at := text.find(stop)) >= 0), default=len(text))
        ]

    def events(self) -> Iterator[Started | Round | Finished]:
        """The run again, event by event, as it was."""
        yield Started(self.pair, self.versions, self.params, self.prompt, self.prompt_ids)
        yield from self.rounds
        if self.finish:
            yield Finished(self.finish, self.error, tuple(self.output_ids), self.text, self.stats)

    def to_json(self) -> str:
        return _JSON.dump_json(self).decode()

    @classmethod
    def from_json(cls, text: str) -> "Trace":
        """ValueError says in one sentence what in `text` is not a trace, and where."""
        try:
            trace = _JSON.validate_json(text, strict=True)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where, what = ".".join(map(str, first["loc"])) or "it", first["msg"]
        else:
            where, what = next(_faults(trace), (None, None))
        if where:
            raise ValueError(f"this is not a {SCHEMA} file: {where}: {what}") from None
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


def _faults(trace: Trace) -> Iterator[tuple[str, str]]:
    """Where a file has the right types, but cannot be the record of a run, and what is wrong there."""
    ids = range(2**31)
    if not all(id in ids for id in trace.prompt_ids):
        yield "prompt_ids", "must be token ids"
    for index, round in enumerate(trace.rounds):
        if round.index != index:
            yield f"rounds.{index}.index", f"must be {index}"
        tokens = [(f"draft.{place}", token) for place, token in enumerate(round.draft)] + [
            ("next", round.next)
        ] * (round.next is not None)
        for place, token in tokens:
            where = f"rounds.{index}.{place}"
            decided = token.residual_mass if place == "next" else token.accept_prob
            numbers = [
                token.p,
                token.q,
                token.raw_p,
                token.raw_q,
                token.u,
                decided,
                *(number for row in token.top for number in row[2:]),
            ]
            if token.id not in ids or not all(row[0] in ids for row in token.top):
                yield where, "its ids must be token ids"
            if not all(
                number is None or 0 <= number <= 1.000001 for number in numbers
            ):  # sums of floats may be a little above 1
                yield where, "its probabilities and its u must be from 0 to 1"
            judged = place != "next" and token.fate != "discarded"
            if judged and None in (token.u, token.accept_prob):
                yield where, "a token that was judged has a u and an accept_prob"
        if not (0 <= round.draft_ms < LONGEST and 0 <= round.verify_ms < LONGEST):
            yield f"rounds.{index}", "its times must be milliseconds"
    emitted = [id for round in trace.rounds for id in round.emitted]
    if trace.output_ids != emitted:
        yield "output_ids", "must be what the rounds add up to"
    counted = metrics.fresh()
    for round in trace.rounds:
        counted = metrics.after_round(counted, round)
    if any(
        getattr(trace.stats, name) != getattr(counted, name)
        for name in ("tokens", "rounds", "drafted", "accepted", "rejected")
    ):
        yield "stats", "must be what the rounds add up to"
    if not all(number is None or 0 <= number < LONGEST for number in astuple(trace.stats)):
        yield "stats", "must be numbers that a run can have"


def pieces(round: Round) -> Iterator[str]:
    """The text of the tokens that the round added, in order."""
    kept = len(round.emitted) - (round.next is not None)
    yield from (token.text for token in round.draft[:kept])
    if round.next:
        yield round.next.text


# JSON has no NaN and no infinity; pydantic's parser would let them through.
Trace.__pydantic_config__ = ConfigDict(allow_inf_nan=False)
_JSON = TypeAdapter(Trace)
