"""Runs that have ended and trace files that visitors open, compressed as they are kept and sent. Without
torch and without Gradio.

A large file is read in a process of its own: the one call that reads it would keep everybody waiting, and
what it needs is free again when the process has ended. python -m specdemo.ui.view.kept reads a file from
standard input and writes an OpenedTrace as JSON.
"""

import asyncio
import gzip
import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar, cast

from pydantic import ConfigDict, TypeAdapter

from specdemo.events import ChatMessage, Params
from specdemo.events.trace import NotATrace, Trace
from specdemo.loading.catalog import ROOT
from specdemo.ui.view.feed import MOST_PROMPT_TOKENS, RunFeed, conversation, prompt_tokens
from specdemo.ui.view.settings import Values, in_words, values_of
from specdemo.ui.view.wire import Notice, PageMessage, Update
from specdemo.words.catalogue import LANGUAGES, say, speaking, spoken

COMPRESSED = {"Content-Encoding": "gzip", "Cache-Control": "no-store"}  # headers of what is sent of it
SMALL_FILE = 256 * 1024  # bytes of a file that is read within 0.02 s, in a thread
T = TypeVar("T")


def file_name(params: Params) -> str:
    return f"specdemo-seed-{params.seed}.json" if params.temperature else "specdemo-greedy.json"


def json_of(update: Update) -> str:
    """The update as json.dumps would write it, but round by round: in one call it would keep all other
    threads waiting."""
    rest = {key: value for key, value in update.items() if key != "rounds"}
    rounds = ", ".join(json.dumps(one) for one in update["rounds"])
    return f'{json.dumps(rest)[:-1]}, "rounds": [{rounds}]}}'


@dataclass(frozen=True)
class KeptRun:
    """A run that has ended or was opened, compressed: by language, the message that shows all of it, and its
    trace. values: what the page's controls then hold, if it was opened. link: the query of the address that
    asks for it. conversation: see `conversation`."""

    messages: dict[str, bytes]
    trace: bytes
    file_name: str
    seed: int | None
    values: dict[str, Any] = field(default_factory=dict)
    conversation: tuple[ChatMessage, ...] | None = None
    link: str = ""

    @property
    def size(self) -> int:
        return len(self.trace) + sum(map(len, self.messages.values()))


def as_recorded(kept: KeptRun, tag: str) -> str:
    """The JSON of the message in this language, as a file shows it elsewhere and on another day."""
    message = json.loads(gzip.decompress(kept.messages[tag]))
    feed = RunFeed(Trace.from_json(gzip.decompress(kept.trace).decode()), recorded=True)
    with speaking(tag):
        message["update"] |= feed.words_of(message["update"])
    return json.dumps(message)


def kept_run(feed: RunFeed, said: Callable[[], Notice] | None = None) -> KeptRun:
    """The feed's run, compressed. said: makes the notice that the message has, in the language that is
    spoken."""
    trace, (words, rest) = feed.trace, in_parts(feed)
    messages = packed_messages(lambda: {"notice": said()} if said else {}, words, json_of(rest))
    file, name = packed(trace.to_json()), file_name(trace.params)
    return KeptRun(messages, file, name, trace.params.seed, conversation=conversation(trace), link=feed.link)


def in_parts(feed: RunFeed) -> tuple[dict[str, Update], Update]:
    """The parts of a snapshot that have words, by language, and its other parts."""
    snapshot = feed.snapshot()
    words = in_each_language(lambda: feed.words_of(snapshot))
    rest = {key: value for key, value in snapshot.items() if key not in words[spoken()]}
    return words, cast(Update, rest)


def in_each_language(make: Callable[[], T]) -> dict[str, T]:
    found = {}
    for tag in LANGUAGES:
        with speaking(tag):
            found[tag] = make()
    return found


def packed_messages(rest: Callable[[], PageMessage], words: dict[str, Any], update: str) -> dict[str, bytes]:
    """The compressed message in each language. rest: makes its parts besides the update in the language that
    is spoken. words: by language, those of the update. update: the JSON of its other parts."""
    starts = in_each_language(lambda: json.dumps({**rest(), "update": words[spoken()]}))
    return {tag: packed(f"{start[:-2]}, {update[1:]}}}") for tag, start in starts.items()}


def with_update(message: PageMessage, update: Update) -> str:
    """The message's JSON with an update in it."""
    rest = json.dumps(message)
    return f'{rest[:-1]}{", " if message else ""}"update": {json_of(update)}}}'


def packed(text: str | bytes) -> bytes:
    """The text, compressed as HTTP sends it; other threads go on meanwhile."""
    return gzip.compress(text.encode() if isinstance(text, str) else text, compresslevel=1, mtime=0)


@dataclass
class OpenedTrace:
    """A trace that has been read. head: without rounds, output ids, the text of what is no chat, and most of
    a very long prompt's tokens. update, file: the JSON of the page's update but for its words and its prompt,
    and of the trace, compressed. words: by language, the update's words. wrong: by language, why a file is no
    trace."""

    __pydantic_config__ = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

    head: Trace | None
    update: bytes
    file: bytes
    wrong: dict[str, str] = field(default_factory=dict)
    words: dict[str, dict[str, Any]] = field(default_factory=dict)


def opened(body: bytes) -> OpenedTrace:
    try:
        trace = Trace.from_json(body.decode())
    except UnicodeDecodeError:
        return _wrong(lambda: say("traces.no_json"))
    except NotATrace as error:
        return _wrong(partial(what_is_wrong, error))
    ids = trace.prompt_ids[: MOST_PROMPT_TOKENS + 1]
    text = trace.text if trace.params.chat else ""
    head = replace(trace, prompt_ids=ids, rounds=[], output_ids=[], text=text)
    words, update = in_parts(RunFeed(trace, recorded=True))
    update.pop("prompt", None)
    return OpenedTrace(head, packed(json_of(update)), packed(trace.to_json()), words=words)


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


def _wrong(why: Callable[[], str]) -> OpenedTrace:
    return OpenedTrace(None, b"", b"", in_each_language(why))


def values_of_trace(trace: Trace, weights: Values | None) -> Values:
    """What the controls hold beside a trace. weights: those of its pair; None where it cannot be chosen."""
    asked = trace.messages[-1].content if trace.messages else trace.prompt
    chosen = {} if weights is None else {"pair": trace.pair.name, "server": "", **weights}
    return {"prompt": asked, **values_of(trace.params), **chosen}


def kept_trace(
    one: OpenedTrace, rest: Callable[[], PageMessage], tokenizer: Any, weights: Values | None = None
) -> KeptRun:
    """The opened trace as it is kept. rest: makes the parts of its message besides the update, in the
    language that is spoken. weights: as `values_of_trace` takes them."""
    assert one.head is not None
    prompt = json.dumps(prompt_tokens(one.head, tokenizer, recorded=True))
    update = gzip.decompress(one.update).decode()
    messages = packed_messages(rest, one.words, f'{{"prompt": {prompt}, {update[1:]}')
    params, values = one.head.params, values_of_trace(one.head, weights)
    return KeptRun(messages, one.file, file_name(params), params.seed, values, conversation(one.head))


async def read_file(body: bytes) -> OpenedTrace:
    """The trace in a visitor's file, without keeping others waiting."""
    if len(body) <= SMALL_FILE:
        return await asyncio.to_thread(opened, body)
    reader = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "specdemo.ui.view.kept"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    try:
        said, _ = await reader.communicate(body)
    finally:
        if reader.returncode is None:
            reader.kill()
    if reader.returncode:
        return _wrong(lambda: say("traces.unread"))
    return await asyncio.to_thread(_JSON.validate_json, said)


_JSON = TypeAdapter(OpenedTrace)

if __name__ == "__main__":
    sys.stdout.buffer.write(_JSON.dump_json(opened(sys.stdin.buffer.read())))
