"""The prompts: texts of each kind of work in assets/prompts, and one's own, from a file."""

import json
from collections.abc import Sequence
from functools import cache
from itertools import chain, cycle, islice
from pathlib import Path

from specdemo.events import Prompt, check_prompt
from specdemo.events.params import check_messages
from specdemo.loading.catalog import EMBEDDED, ROOT, WORKS
from specdemo.loading.pair import AnyPair
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


def prompts_of(kinds: Sequence[str]) -> dict[str, list[Prompt]]:
    """The prompts of each kind of work. ValueError for a kind that there is not."""
    sets = prompt_sets()
    for kind in kinds:
        if SPEED_BENCH.get(kind, kind) not in sets:
            raise ValueError(refusal("work", "choice", kind, names=", ".join((*sets, *SPEED_BENCH))))
    return {kind: list(sets[kind]) for kind in (SPEED_BENCH.get(kind, kind) for kind in kinds)}


def read_prompts(path: str | Path) -> list[Prompt]:
    """The prompts of a file in UTF-8: one a line, or, where the first line begins with { or the file's name
    is one of JSON, an object with "prompt" (text) or "messages" a line. Empty lines are skipped, and an
    assistant's messages at the end are what was answered, and left off.

    ValueError, in one sentence, for a file or a line that cannot be taken."""
    file, prompts = str(path), []
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:  # ValueError: another encoding, and a path with a NUL
        why = getattr(error, "strerror", None) or str(error)
        raise ValueError(about("prompts", "prompts_unread", file=file, why=why)) from None
    is_json = text.lstrip().startswith("{") or file.lower().endswith((".json", ".jsonl", ".ndjson"))
    for number, line in enumerate(text.split("\n"), 1):  # a JSON string may hold other ends of lines
        if not line.strip():
            continue
        try:
            prompts.append(_of_object(line) if is_json else _text(line))
        except ValueError as error:
            what = message_of(error)
            raise ValueError(about("prompts", "prompts_line", file=file, line=number, what=what)) from None
    if not prompts:
        raise ValueError(about("prompts", "prompts_none", file=file))
    return prompts


def _text(text: str) -> str:
    check_prompt(text)
    return text


def _of_object(line: str) -> Prompt:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict) and isinstance(found.get("prompt"), str):
        return _text(found["prompt"])
    asked = found.get("messages", found.get("prompt")) if isinstance(found, dict) else None
    if not isinstance(asked, list):
        raise ValueError(given(message("prompts_object", forms=FORMS), line))
    while asked and isinstance(asked[-1], dict) and asked[-1].get("role") == "assistant":
        asked.pop()
    if not asked:
        raise ValueError(message("prompts_unasked"))
    return list(check_messages(asked))
