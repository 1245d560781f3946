"""What is continued: beginnings of stories, as token ids."""

from collections.abc import Callable

from specdemo.loading.pair import Pair

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

Prompts = Callable[
    ..., list[list[int]]
]  # prompts(count, length): so many; of so many tokens each, or as long as they come (None)


def stories(pair: Pair) -> Prompts:
    """The beginnings, again from the first where more are asked for. One that is to be longer goes on with the others."""
    beginnings = [pair.tokenizer(text).input_ids for text in BEGINNINGS]

    def prompts(count: int, length: int | None = None) -> list[list[int]]:
        chosen = [beginnings[i % len(beginnings)] for i in range(count)]
        return chosen if length is None else [_going_on(i, length) for i in range(count)]

    def _going_on(first: int, length: int) -> list[int]:
        ids: list[int] = []
        while len(ids) < length:
            ids += beginnings[first % len(beginnings)]
            first += 1
        return ids[:length]

    return prompts
