"""What a suffix tree drafts, and that its text has the target's distribution. test_exact_table.py and
tests/models/test_greedy.py have no more of it than of any other drafter without a model."""

from collections import Counter

import pytest

from specdemo.drafters.suffix.drafter import SuffixDrafter
from specdemo.events import Params
from tests.oracle import CPU
from tests.toy.test_exact_table import RUNS, SOUND, exactness


def drafted(text, k=4):
    drafter = SuffixDrafter(10, CPU)
    return drafter.propose(list(text), k, [0.5] * k).ids.tolist()


@pytest.mark.parametrize(
    ("text", "k", "expected"),
    [
        ([1, 2, 3, 4, 1, 2], 4, [3, 4]),  # two tokens have matched, so at most two are drafted
        ([1, 2, 3, 4, 5, 1, 2, 3], 4, [4, 5, 1]),
        ([1, 2, 3, 4, 5, 1, 2, 3], 2, [4, 5]),
        ([1, 2, 3, 1, 2, 4, 1, 2, 4, 1, 2], 1, [4]),  # what has come most often
        ([7, 1, 5, 8, 1, 6, 8, 1, 6, 7, 1], 1, [5]),  # the longer match is as sure: it has one way on
        ([1, 2, 3, 4], 4, []),
        ([1], 4, []),
        ([3, 3, 3, 3], 4, [3, 3]),
        ([3, 4] * 40, 16, [3, 4] * 8),
    ],
)
def test_what_is_drafted(text, k, expected):
    assert drafted(text, k) == expected


def test_a_draft_ends_where_it_is_not_sure_enough():
    """After 9 each of 12 tokens has come once: one in twelve is less than a tenth."""
    text = [token for other in range(10, 22) for token in (9, other)]
    drafter = SuffixDrafter(30, CPU)
    assert drafter.propose([*text, 9], 4, [0.5] * 4).k == 0
    assert SuffixDrafter(30, CPU).propose([*text[:18], 9], 4, [0.5] * 4).k == 1


def test_the_text_is_read_once_as_it_grows():
    drafter, text = SuffixDrafter(10, CPU), [1, 2, 3, 1, 2, 3, 1]
    drafter.start(text[:3])
    for end in (3, 5, 7):
        drafter.propose(text[:end], 2, [0.5] * 2)
    assert {token: node.count for token, node in drafter.store.root.after.items()} == Counter(text)


def test_the_text_has_the_targets_distribution():
    fates = Counter()
    params = Params(draft_with="suffix", temperature=1.0, top_p=1.0, gamma=3, alternatives=0)
    assert exactness(params, RUNS, fates) > SOUND
    for fate in ("accepted", "rejected", "resampled"):
        assert fates[fate] > RUNS / 20, f"too few {fate}: the test shows little about them"
