"""Trace files that visitors open. A large file is read in a process of its own: the one call that reads it
would keep everybody waiting, and what it needs is free again when the process has ended.

python -m specdemo.ui.runs.opening: reads a file from standard input, writes an Opened as JSON.
"""

import asyncio
import gzip
import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from pydantic import ConfigDict, TypeAdapter

from specdemo.events.trace import NotATrace, Trace
from specdemo.loading.catalog import ROOT
from specdemo.ui.view.feed import (
    MOST_PROMPT_TOKENS,
    RunFeed,
    in_each_language,
    json_of,
    kept_message,
    packed,
    prompt_tokens,
    start_of,
    without_words,
)
from specdemo.ui.view.settings import in_words
from specdemo.ui.view.wire import Message
from specdemo.words.catalogue import say, spoken

SMALL_FILE = 256 * 1024  # bytes of a file that is read within 0.02 s, in a thread


@dataclass
class Opened:
    """A trace that has been read. head: without rounds, output ids, the text of what is no chat, and most of
    a very long prompt's tokens. words: by language, the JSON of the words of the page's update. update,
    file: the JSON of the update but for its words and its prompt, and of the trace. All are compressed.
    wrong: by language, why a file is no trace."""

    __pydantic_config__ = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

    head: Trace | None
    update: bytes
    file: bytes
    wrong: dict[str, str] = field(default_factory=dict)
    words: dict[str, bytes] = field(default_factory=dict)


def opened(body: bytes) -> Opened:
    try:
        trace = Trace.from_json(body.decode())
    except UnicodeDecodeError:
        return _wrong(lambda: say("traces.no_json"))
    except NotATrace as error:
        return _wrong(partial(what_is_wrong, error))
    ids = trace.prompt_ids[: MOST_PROMPT_TOKENS + 1]
    text = trace.text if trace.params.chat else ""
    head = replace(trace, prompt_ids=ids, rounds=[], output_ids=[], text=text)
    feed = RunFeed(trace, recorded=True)
    snapshot = feed.snapshot()
    words = in_each_language(lambda: json.dumps(feed.words_of(snapshot)))
    update = without_words(snapshot)
    update.pop("prompt", None)
    said = {tag: packed(text) for tag, text in words.items()}
    return Opened(head, packed(json_of(update)), packed(trace.to_json()), words=said)


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


def _wrong(why: Callable[[], str]) -> Opened:
    return Opened(None, b"", b"", in_each_language(why))


def message_of(one: Opened, rest: Callable[[], Message], tokenizer: Any) -> tuple[bytes, dict[str, bytes]]:
    """The compressed message that shows the opened trace, and its starts; see KeptRun. rest: makes the
    message's other parts in the language that is spoken."""
    assert one.head is not None
    words = {tag: json.loads(gzip.decompress(said)) for tag, said in one.words.items()}
    starts = in_each_language(lambda: start_of(rest(), words[spoken()]))
    prompt = json.dumps(prompt_tokens(one.head, tokenizer, recorded=True))
    update = gzip.decompress(one.update).decode()
    return kept_message(starts, f'{{"prompt": {prompt}, {update[1:]}')


async def read_file(body: bytes) -> Opened:
    """The trace in a visitor's file, without keeping others waiting."""
    if len(body) <= SMALL_FILE:
        return await asyncio.to_thread(opened, body)
    reader = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "specdemo.ui.runs.opening"),
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


_JSON = TypeAdapter(Opened)

if __name__ == "__main__":
    sys.stdout.buffer.write(_JSON.dump_json(opened(sys.stdin.buffer.read())))
