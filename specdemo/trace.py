"""The record of a run: written as it happens, saved and loaded as JSON (schema specdemo.trace/1), replayed without models."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError

from specdemo import metrics
from specdemo.events import Finished, PairInfo, Params, Round, Started, Stats

SCHEMA = "specdemo.trace/1"


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
        return text[: min((at for stop in self.params.stop if (at := text.find(stop)) >= 0), default=len(text))]

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
            return _JSON.validate_json(text, strict=True)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"])) or "it"
            raise ValueError(f"this is not a {SCHEMA} file: {where}: {first['msg']}") from None

    def save(self, path: str | Path) -> None:
        Path(path).write_text(self.to_json(), encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> "Trace":
        try:
            text = Path(path).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise ValueError(f"this is not a {SCHEMA} file: it is not UTF-8 text") from None
        return cls.from_json(text)


def pieces(round: Round) -> Iterator[str]:
    """The text of the tokens that the round added, in order."""
    kept = len(round.emitted) - (round.next is not None)
    yield from (token.text for token in round.draft[:kept])
    if round.next:
        yield round.next.text


# JSON has no NaN and no infinity; pydantic's parser would let them through.
Trace.__pydantic_config__ = ConfigDict(allow_inf_nan=False)
_JSON = TypeAdapter(Trace)
