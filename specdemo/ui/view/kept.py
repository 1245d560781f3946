"""Runs that have ended and trace files that visitors open, compressed as they are kept and sent; and the
recorded runs that the page shows without models. Without torch and without Gradio."""

import gzip
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from specdemo.events import ChatMessage, Params
from specdemo.events.trace import NotATrace, Trace
from specdemo.loading.catalog import ROOT
from specdemo.ui.view.feed import RunFeed, conversation, notice, prompt_tokens
from specdemo.ui.view.settings import Values, in_words, values_of
from specdemo.words.catalogue import say, spoken

# Recorded runs, in the order of the examples; tests/recorded_runs.py records them again. "greedy", "warm"
# and "hot" are one prompt at three temperatures. "poor", "long" and "tree" differ from "warm" in one setting
# each, and the first two are shorter. Their questions are in the catalogues, under "recorded".
RECORDINGS = ("poor", "long", "greedy", "warm", "hot", "tree", "lookup", "ngram")
TRACES_FOLDER = ROOT / "assets" / "traces"
WORLDS = ROOT / "assets" / "worlds.json"  # of "Two worlds", with the prompt and Params of "warm"
COMPRESSED = {"Content-Encoding": "gzip", "Cache-Control": "no-store"}  # headers of what is sent of it


def recorded_trace(name: str) -> Trace:
    return Trace.load(TRACES_FOLDER / f"{name}.json")


def json_of(update: dict[str, Any]) -> str:
    """The update as json.dumps would write it, but round by round: in one call it would keep all other
    threads waiting."""
    rest = {key: value for key, value in update.items() if key != "rounds"}
    rounds = ", ".join(json.dumps(one) for one in update["rounds"])
    return f'{json.dumps(rest)[:-1]}, "rounds": [{rounds}]}}'


@dataclass(frozen=True, eq=False)
class KeptRun:
    """A run that has ended or was opened, compressed. trace: the run's file. prompt: the prompt's tokens as
    JSON. ended, recorded, link: see RunFeed. name: by which its message says that it has been opened;
    empty where it has not. values: what the page's controls then hold. conversation: see `conversation`."""

    trace: bytes
    prompt: bytes
    params: Params
    ended: bool
    recorded: bool
    link: str
    name: str
    values: Values
    conversation: tuple[ChatMessage, ...] | None

    @property
    def size(self) -> int:
        return len(self.trace) + len(self.prompt)

    @property
    def file_name(self) -> str:
        return f"specdemo-seed-{self.params.seed}.json" if self.params.temperature else "specdemo-greedy.json"

    def message(self) -> bytes:
        """The compressed message that shows all of it, in the language that is spoken."""
        return _message(self, spoken())

    def as_recorded(self) -> str:
        """The message's JSON as a file shows it elsewhere and on another day."""
        return with_update({}, self.snapshot(recorded=True))

    def snapshot(self, recorded: bool) -> dict[str, Any]:
        """All of the run as a page draws it."""
        trace = Trace.from_json(gzip.decompress(self.trace).decode())
        feed = RunFeed(trace, recorded=recorded, link=self.link)
        feed.ended = self.ended
        return feed.snapshot() | {"prompt": json.loads(gzip.decompress(self.prompt))}


@lru_cache(maxsize=16)  # a hall opens the same run
def _message(kept: KeptRun, language: str) -> bytes:
    update = kept.snapshot(kept.recorded)
    message: dict[str, Any] = {"name": kept.name} if kept.name else {}
    if kept.recorded:
        message["notice"] = notice("recorded", "" if update["finish"] else say("said.unfinished"))
    return packed(with_update(message, update))


def kept_run(feed: RunFeed, name: str = "", values: Values | None = None) -> KeptRun:
    """The feed's run, compressed. name, values: see KeptRun."""
    ended = feed.ended
    trace = feed.trace if ended else feed.trace.so_far()
    prompt = prompt_tokens(trace, feed.texts_of, feed.recorded)
    return KeptRun(
        packed(trace.to_json()),
        packed(json.dumps(prompt)),
        trace.params,
        ended,
        feed.recorded,
        feed.link,
        name,
        values or {},
        conversation(trace),
    )


def with_update(message: dict[str, Any], update: dict[str, Any]) -> str:
    """The message's JSON with an update in it."""
    rest = json.dumps(message)
    return f'{rest[:-1]}{", " if message else ""}"update": {json_of(update)}}}'


def packed(text: str | bytes) -> bytes:
    """The text, compressed as HTTP sends it; other threads go on meanwhile."""
    return gzip.compress(text.encode() if isinstance(text, str) else text, compresslevel=1, mtime=0)


def opened(body: bytes, name: str, beside: Callable[[Trace], tuple[Any, Values]]) -> KeptRun | str:
    """The trace in a file as it is kept under this name; or, in the language that is spoken, why the file is
    no trace. beside: tells the `texts_of` of the trace's pair, if it is loaded here, and what the controls
    hold."""

    def kept() -> KeptRun:
        trace = Trace.from_json(body.decode())
        texts_of, values = beside(trace)
        return kept_run(RunFeed(trace, texts_of, recorded=True), name, values)

    try:
        one = kept()
        one.message()  # which is made before anybody is told that the file can be opened
    except UnicodeDecodeError:
        return say("traces.no_json")
    except NotATrace as error:
        return what_is_wrong(error)
    except Exception:
        return say("traces.unread")
    return one


def what_is_wrong(error: NotATrace) -> str:
    """What is wrong with a file that was to be opened, in plain words."""
    part = error.where.partition(".")[0]
    place = re.match(r"rounds\.(\d+)", error.where)
    if error.refused:
        return say("traces.wrong", what=in_words(error.refused))
    if not error.is_json:
        return say("traces.no_json")
    if part in ("it", "schema"):
        return say("traces.other_version")
    if place:
        return say("traces.wrong_round", round=int(place[1]) + 1)
    return say("traces.wrong_part", part=part.replace("_", " "))


def values_of_trace(trace: Trace, weights: Values | None) -> Values:
    """What the controls hold beside a trace. weights: those of its pair; None where it cannot be chosen."""
    asked = trace.messages[-1].content if trace.messages else trace.prompt
    chosen = {} if weights is None else {"pair": trace.pair.name, **weights}
    return {"prompt": asked, **values_of(trace.params), **chosen}
