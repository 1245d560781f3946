"""Trace files that visitors open. A large file is read in a process of its own: the one call that reads it
would keep everybody waiting, and what it needs is free again when the process has ended.

python -m specdemo.ui.opening: reads a file from standard input, writes an Opened as JSON.
"""

import asyncio
import gzip
import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter

from specdemo.events.trace import Trace
from specdemo.ui.feed import MOST_PROMPT_TOKENS, RunFeed, prompt_tokens
from specdemo.ui.settings import about_file
from specdemo.ui.shelf import packed, update_text

SMALL = 256 * 1024  # bytes of a file that is read within 0.02 s, in a thread
ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Opened:
    """A trace that has been read. head: without rounds, output, and most of a very long prompt's tokens.
    update, file: the JSON of the page's update but for its prompt, and of the trace; both compressed. wrong:
    the sentence about a file that is no trace."""

    __pydantic_config__ = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

    head: Trace | None
    update: bytes
    file: bytes
    wrong: str = ""


def opened(body: bytes) -> Opened:
    try:
        trace = Trace.from_json(body.decode())
    except UnicodeDecodeError:
        return Opened(None, b"", b"", about_file("this is not a file: it is not UTF-8 text"))
    except ValueError as error:
        return Opened(None, b"", b"", about_file(str(error)))
    ids = trace.prompt_ids[: MOST_PROMPT_TOKENS + 1]
    head = replace(trace, prompt_ids=ids, rounds=[], output_ids=[], text="")
    update = RunFeed(0, trace, recorded=True).snapshot()["update"]
    update.pop("prompt", None)
    return Opened(head, packed(update_text(update)), packed(trace.to_json()))


def with_prompt(one: Opened, tokenizer: Any) -> bytes:
    """The compressed update, with the prompt's tokens."""
    assert one.head is not None
    prompt = json.dumps(prompt_tokens(one.head, tokenizer, recorded=True))
    return packed(f'{{"prompt": {prompt}, {gzip.decompress(one.update).decode()[1:]}')


async def read(body: bytes) -> Opened:
    """The trace in a visitor's file, without keeping others waiting."""
    if len(body) <= SMALL:
        return await asyncio.to_thread(opened, body)
    reader = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "specdemo.ui.opening"),
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
        return Opened(None, b"", b"", "The file cannot be opened: reading it failed")
    return await asyncio.to_thread(_JSON.validate_json, said)


def packed_head(head: Trace) -> bytes:
    """A head, small: its prompt's tokens are in the update."""
    return packed(_HEAD.dump_json(replace(head, prompt_ids=())).decode())


def head_of(data: bytes) -> Trace:
    return _HEAD.validate_json(gzip.decompress(data))


_JSON, _HEAD = TypeAdapter(Opened), TypeAdapter(Trace)

if __name__ == "__main__":
    sys.stdout.buffer.write(_JSON.dump_json(opened(sys.stdin.buffer.read())))
