"""Runs that have ended and trace files that visitors open, compressed as they are kept and sent. Without
torch and without Gradio.

A large file is read in a process of its own: the one call that reads it would keep everybody waiting, and
what it needs is free again when the process has ended. python -m specdemo.ui.view.kept NAME LANGUAGE reads a
file from standard input and writes what `opened` returns as JSON.
"""

import asyncio
import gzip
import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, TypeVar

from pydantic import ConfigDict, TypeAdapter

from specdemo.events import ChatMessage
from specdemo.events.trace import NotATrace, Trace
from specdemo.loading.catalog import ROOT
from specdemo.ui.view.feed import MOST_PROMPT_TOKENS, RunFeed, conversation, notice
from specdemo.ui.view.settings import Values, in_words, values_of
from specdemo.ui.view.texts import unfinished
from specdemo.words.catalogue import LANGUAGES, say, speaking, spoken

COMPRESSED = {"Content-Encoding": "gzip", "Cache-Control": "no-store"}  # headers of what is sent of it
SMALL_FILE = 256 * 1024  # bytes of a file that is read within 0.02 s, in a thread
T = TypeVar("T")


def json_of(update: dict[str, Any]) -> str:
    """The update as json.dumps would write it, but round by round: in one call it would keep all other
    threads waiting."""
    rest = {key: value for key, value in update.items() if key != "rounds"}
    rounds = ", ".join(json.dumps(one) for one in update["rounds"])
    return f'{json.dumps(rest)[:-1]}, "rounds": [{rounds}]}}'


@dataclass(frozen=True)
class KeptRun:
    """A run that has ended or was opened, compressed. The message that shows all of it is made of three JSON
    texts. starts: by language, the message with those parts of its update that have words. prompt: the
    prompt's tokens. rest: all else. trace: the run's file. values: what the page's controls then hold, if it
    was opened. link: the query of the address that asks for it. conversation: see `conversation`."""

    __pydantic_config__ = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

    starts: dict[str, bytes]
    prompt: bytes
    rest: bytes
    trace: bytes
    file_name: str
    seed: int | None
    values: dict[str, Any] = field(default_factory=dict)
    conversation: tuple[ChatMessage, ...] | None = None
    link: str = ""

    @property
    def size(self) -> int:
        return sum(map(len, (*self.starts.values(), self.prompt, self.rest, self.trace)))

    def message(self) -> bytes:
        """The compressed message in the language that is spoken."""
        return _joined(self.starts[spoken()], self.prompt, self.rest)

    def as_recorded(self) -> str:
        """The message's JSON as a file shows it elsewhere and on another day."""
        message = json.loads(gzip.decompress(self.message()))
        feed = RunFeed(Trace.from_json(gzip.decompress(self.trace).decode()), recorded=True)
        message["update"] |= feed.words_of(message["update"])
        return json.dumps(message)


@lru_cache(maxsize=8)  # a hall opens the same run
def _joined(*parts: bytes) -> bytes:
    start, prompt, rest = map(gzip.decompress, parts)
    return packed(b'%b, "prompt": %b, %b}' % (start[:-2], prompt, rest[1:]))


def kept_run(feed: RunFeed, name: str = "") -> KeptRun:
    """The feed's run, compressed. name: by which its message says that it has been opened."""
    trace, params, snapshot = feed.trace, feed.trace.params, feed.snapshot()

    def start() -> dict[str, Any]:
        message: dict[str, Any] = {"name": name} if name else {}
        if feed.recorded:
            message["notice"] = notice("recorded", unfinished(trace))
        return message | {"update": feed.words_of(snapshot)}

    messages = in_each_language(start)
    starts, words = {tag: packed(json.dumps(one)) for tag, one in messages.items()}, messages["en"]["update"]
    prompt = packed(json.dumps(snapshot.pop("prompt")))
    rest = packed(json_of({key: value for key, value in snapshot.items() if key not in words}))
    file_name = f"specdemo-seed-{params.seed}.json" if params.temperature else "specdemo-greedy.json"
    more = {"conversation": conversation(trace), "link": feed.link}
    return KeptRun(starts, prompt, rest, packed(trace.to_json()), file_name, params.seed, **more)


def in_each_language(make: Callable[[], T]) -> dict[str, T]:
    words = {}
    for tag in LANGUAGES:
        with speaking(tag):
            words[tag] = make()
    return words


def with_update(message: dict[str, Any], update: dict[str, Any]) -> str:
    """The message's JSON with an update in it."""
    rest = json.dumps(message)
    return f'{rest[:-1]}{", " if message else ""}"update": {json_of(update)}}}'


def packed(text: str | bytes) -> bytes:
    """The text, compressed as HTTP sends it; other threads go on meanwhile."""
    return gzip.compress(text.encode() if isinstance(text, str) else text, compresslevel=1, mtime=0)


def opened(body: bytes, name: str) -> tuple[Trace, KeptRun] | str:
    """The trace in a file, without rounds, texts of the output and most tokens of a very long prompt, and the
    run as it is kept under this name; or, in the language that is spoken, why the file is no trace."""
    try:
        trace = Trace.from_json(body.decode())
    except UnicodeDecodeError:
        return say("traces.no_json")
    except NotATrace as error:
        return what_is_wrong(error)
    ids = trace.prompt_ids[: MOST_PROMPT_TOKENS + 1]
    head = replace(trace, prompt_ids=ids, rounds=[], output_ids=[], text="")
    return head, kept_run(RunFeed(trace, recorded=True), name)


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


async def read_file(body: bytes, name: str) -> tuple[Trace, KeptRun] | str:
    """What `opened` returns for a visitor's file, without keeping others waiting."""
    if len(body) <= SMALL_FILE:
        return await asyncio.to_thread(opened, body, name)
    reader = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "specdemo.ui.view.kept", name, spoken()),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    try:
        written, _ = await reader.communicate(body)
    finally:
        if reader.returncode is None:
            reader.kill()
    if reader.returncode:
        return say("traces.unread")
    return await asyncio.to_thread(_OPENED.validate_json, written)


_OPENED = TypeAdapter(tuple[Trace, KeptRun] | str)

if __name__ == "__main__":
    with speaking(sys.argv[2]):
        sys.stdout.buffer.write(_OPENED.dump_json(opened(sys.stdin.buffer.read(), sys.argv[1])))
