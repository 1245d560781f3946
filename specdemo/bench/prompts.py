"""The prompts: sets of texts in assets/prompts, and beginnings of stories as token ids."""

import json
from collections.abc import Callable
from functools import cache
from itertools import chain, cycle, islice

from specdemo.loading.catalog import EMBEDDED, ROOT
from specdemo.loading.pair import AnyPair, Pair

Prompts = Callable[[int, int | None], list[list[int]]]  # (how many, tokens each; None: as they are) -> [N][T]

PROMPTS = ROOT / "assets" / "prompts"


@cache
def prompt_sets() -> dict[str, tuple[str, ...]]:
    """The texts by the name of their set: "stories" for the embedded pair, the others for larger ones."""
    files = [(PROMPTS / name).read_text(encoding="utf-8") for name in ("stories.json", "general.json")]
    return {name: tuple(texts) for file in files for name, texts in json.loads(file).items()}


def prompts_for(pair: AnyPair, count: int) -> list[str]:
    """`count` texts that suit the pair: stories for embedded pairs, for others one text of each general set
    in turn. After the last text the first comes again."""
    stories, *general = prompt_sets().values()
    is_embedded = pair.info.name.startswith(EMBEDDED.name)
    texts = stories if is_embedded else chain.from_iterable(zip(*general, strict=True))
    return list(islice(cycle(texts), count))


def story_prompts(pair: Pair, count: int, length: int | None = None) -> list[list[int]]:
    """`count` prompts; after the last beginning the first comes again. For prompts of `length` tokens, the
    beginnings that come next are appended."""
    beginnings = [pair.tokenizer(text).input_ids for text in prompt_sets()["stories"]]
    starts = [i % len(beginnings) for i in range(count)]
    if length is None:
        return [beginnings[start] for start in starts]
    following = (cycle(beginnings[start:] + beginnings[:start]) for start in starts)
    return [list(islice(chain.from_iterable(texts), length)) for texts in following]
