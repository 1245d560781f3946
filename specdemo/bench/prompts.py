"""The prompts: beginnings of stories, as token ids."""

from collections.abc import Callable

from specdemo.loading.pair import Pair

Prompts = Callable[[int, int | None], list[list[int]]]  # (how many, tokens each; None: as they are) -> [N][T]

BEGINNINGS = (
    "Once upon a time, there was a little girl named Lily. She loved to",
    "One day, a small dog found a shiny red ball in the park. He",
    "Tom and his sister wanted to build a big tower with their blocks. First,",
    "The old farmer had a horse that would not eat. Every morning",
    "It was raining, and Ben was sad because he could not play outside. His mom said,",
    "A tiny bird fell out of its nest. It was scared and",
    "Mia had a secret box under her bed. Inside the box",
    "The bear and the rabbit were best friends, but one day they",
    "There was a big boat on the lake. The captain looked at the sky and",
    "Sam found a key in the garden. He did not know",
)


def story_prompts(pair: Pair, count: int, length: int | None = None) -> list[list[int]]:
    """`count` prompts; after the last beginning the first comes again. For prompts of `length` tokens, the
    beginnings that come next are appended."""
    beginnings = [pair.tokenizer(text).input_ids for text in BEGINNINGS]
    starts = [i % len(beginnings) for i in range(count)]
    if length is None:
        return [beginnings[start] for start in starts]
    prompts = []
    for start in starts:
        joined = [token_id for ids in beginnings[start:] + beginnings[:start] for token_id in ids]
        prompts.append((joined * (length // len(joined) + 1))[:length])
    return prompts
