"""The prompts: texts of each kind of work in assets/prompts, and beginnings of stories as token ids."""

import json
from functools import cache
from itertools import chain, cycle, islice

from specdemo.loading.catalog import EMBEDDED, ROOT, WORKS
from specdemo.loading.pair import AnyPair, Pair

PROMPTS = ROOT / "assets" / "prompts"


@cache
def prompt_sets() -> dict[str, tuple[str, ...]]:
    """The texts of each kind of work: "story" for the embedded pair, too, the others for larger ones."""
    files = {kind: PROMPTS / f"{kind}.json" for kind in WORKS}
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
