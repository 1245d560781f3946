"""The prompts: texts of each kind of work in assets/prompts, beginnings of stories as token ids, and one's
own, from a file."""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import chain, cycle, islice
from pathlib import Path
from typing import Any

from specdemo.events import Prompt, check_prompt
from specdemo.events.params import check_messages
from specdemo.loading.catalog import EMBEDDED, ROOT, WORKS
from specdemo.loading.pair import AnyPair, Pair
from specdemo.words.message import about, given, message, message_of, refusal

FOLDER = ROOT / "assets" / "prompts"
# The categories of SPEED-Bench (arXiv 2604.09557) that four of them are like. The others there (humanities,
# math, QA, RAG, reasoning, roleplay, STEM) have no prompts here.
SPEED_BENCH = {
    "coding": "code",
    "summarization": "summary",
    "writing": "story",
    "multilingual": "translation",
}
JSON_FILES = (".json", ".jsonl", ".ndjson")
PROMPTS = ("messages", "prompt", "input")  # the names under which a request has its prompt
WRAPPERS = ("body", "request")  # the names under which a log has a request
LARGEST_FILE = 64  # MB
FORMS = '{"prompt": "..."} or {"messages": [...]}'  # of a line, as sentences name them


@cache
def prompt_sets() -> dict[str, tuple[str, ...]]:
    """The texts of each kind of work: "story" for the embedded pair, too, the others for larger ones."""
    files = {kind: FOLDER / f"{kind}.json" for kind in WORKS}
    return {kind: tuple(json.loads(file.read_text(encoding="utf-8"))) for kind, file in files.items()}


def prompts_for(pair: AnyPair, count: int) -> list[str]:
    """`count` texts that suit the pair: stories for embedded pairs, for others one text of each other kind in
    turn. After the last text the first comes again."""
    sets = prompt_sets()
    others = [texts for kind, texts in sets.items() if kind != "story"]
    is_embedded = pair.info.name.startswith(EMBEDDED.name)
    texts = sets["story"] if is_embedded else chain.from_iterable(zip(*others, strict=True))
    return list(islice(cycle(texts), count))


def story_prompts(pair: Pair, count: int, length: int | None = None) -> list[list[int]]:
    """`count` prompts; after the last beginning the first comes again. For prompts of `length` tokens, the
    beginnings that come next are appended."""
    beginnings = [pair.tokenizer(text).input_ids for text in prompt_sets()["story"]]
    starts = [i % len(beginnings) for i in range(count)]
    if length is None:
        return [beginnings[start] for start in starts]
    following = (cycle(beginnings[start:] + beginnings[:start]) for start in starts)
    return [list(islice(chain.from_iterable(texts), length)) for texts in following]


def prompts_of(kinds: Sequence[str]) -> dict[str, list[Prompt]]:
    """The prompts of each kind of work. ValueError for a kind that there is not."""
    sets = prompt_sets()
    for kind in kinds:
        if SPEED_BENCH.get(kind, kind) not in sets:
            raise ValueError(refusal("work", "choice", kind, names=", ".join((*sets, *SPEED_BENCH))))
    return {kind: list(sets[kind]) for kind in (SPEED_BENCH.get(kind, kind) for kind in kinds)}


def read_prompts(path: str | Path) -> list[Prompt]:
    """The prompts of a file in UTF-8: one a line, or, where the first line begins with { or the name ends
    like one of JSON_FILES, a JSON object a line. Empty lines are skipped.

    An object has "prompt" (text or messages), "messages", or "input" and "instructions" as OpenAI's Responses
    API takes them; or it has such an object as "body" or "request". A text as "input" is a user's message. An
    assistant's messages at the end are what was answered, and are left off.

    ValueError, in one sentence, for a file or a line that cannot be taken."""
    file, prompts = str(path), []
    try:
        size = Path(path).stat().st_size / 1e6
        content = Path(path).read_bytes() if size <= LARGEST_FILE else b""
    except (OSError, ValueError) as error:  # ValueError: for a path with a NUL
        why = getattr(error, "strerror", None) or str(error)
        raise ValueError(about("prompts", "prompts_unread", file=file, why=why)) from None
    if size > LARGEST_FILE:
        raise ValueError(about("prompts", "prompts_large", file=file, most=LARGEST_FILE, size=round(size)))
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ValueError(about("prompts", "prompts_encoding", file=file, line=line)) from None
    is_json = file.lower().endswith(JSON_FILES) or text.lstrip().startswith("{")
    for number, line in enumerate(text.split("\n"), 1):  # a JSON string may hold other ends of lines
        if not line.strip():
            continue
        try:
            prompts.append(_of_object(_request(line)) if is_json else _text(line.removesuffix("\r")))
        except ValueError as error:
            what = message_of(error)
            raise ValueError(about("prompts", "prompts_line", file=file, line=number, what=what)) from None
    if not prompts:
        raise ValueError(about("prompts", "prompts_none", file=file))
    return prompts


def _text(text: str) -> str:
    check_prompt(text)
    return text


def _request(line: str) -> Mapping[str, Any]:
    """The object of a line that has the prompt."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        found = None
    while isinstance(found, Mapping) and not any(name in found for name in PROMPTS):
        found = next((found[name] for name in WRAPPERS if name in found), None)
    if not isinstance(found, Mapping):
        raise ValueError(given(message("prompts_object", forms=FORMS), line))
    return found


def _of_object(request: Mapping[str, Any]) -> Prompt:
    name = next(name for name in PROMPTS if name in request)
    value = request[name]
    if name == "prompt" and isinstance(value, str):
        return _text(value)
    if name == "input" and isinstance(value, str):
        value = [{"role": "user", "content": value}]
    if not isinstance(value, list) or not all(isinstance(one, Mapping) for one in value):
        key = "prompts_messages" if name == "messages" else "prompts_text_or_messages"
        raise ValueError(given(message(key, name=name), value))
    asked = list(value)
    while asked and asked[-1].get("role") == "assistant":
        asked.pop()
    if not asked:
        raise ValueError(message("prompts_unasked", name=name))
    if request.get("instructions") is not None:
        asked.insert(0, {"role": "system", "content": request["instructions"]})
    return list(check_messages([_message(one) for one in asked]))


def _message(logged: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a chat template reads of a logged message. "developer" is a newer name of "system"."""
    if logged.get("tool_calls") or logged.get("function_call"):
        raise ValueError(message("prompts_tools"))
    role, content = logged.get("role"), logged.get("content")
    if isinstance(content, list):
        texts = [part.get("text") if isinstance(part, Mapping) else None for part in content]
        if not all(isinstance(text, str) for text in texts):
            raise ValueError(message("prompts_part"))
        content = "".join(texts)
    return {"role": "system" if role == "developer" else role, "content": content}
