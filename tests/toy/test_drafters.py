"""What drafters propose on sequences made by hand, and that each reads and forgets what it should."""

from collections import Counter

import pytest
import torch

from specdemo.engine.sampling import Sampler
from specdemo.engine.tree import Tree
from specdemo.events import Params
from tests.oracle import TableLM, make_drafter, pick, random_table, shaped

V = 10


def ids_of(drafter, text, k=4):
    draft = drafter.propose(list(text), k, [0.0] * k)
    assert draft.q.shape == draft.raw_q.shape == (draft.k, V) and len(draft.ids) == draft.k
    assert draft.q.dtype == torch.float32 and draft.ids.dtype == torch.long
    assert torch.equal(draft.q.argmax(-1), draft.ids) and torch.equal(draft.q, draft.raw_q), "q is one-hot"
    assert (draft.q.sum(-1) == 1).all() and (draft.q.amax(-1) == 1).all() if len(draft.ids) else True
    return draft.ids.tolist()


@pytest.mark.parametrize(
    ("text", "longest", "k", "expected"),
    [
        ([1, 2, 3, 4, 1, 2], 2, 2, [3, 4]),
        ([1, 2, 3, 4, 1, 2], 2, 4, [3, 4, 1, 2]),  # up to the end of the text
        ([1, 2, 3, 1, 2], 3, 6, [3, 1, 2, 3, 1, 2]),  # and on into the copy itself
        ([7, 7], 3, 4, [7, 7, 7, 7]),
        ([5, 7, 7, 7], 1, 3, [7, 7, 7]),
        ([1, 2, 9, 1, 2, 8, 1, 2], 2, 1, [8]),  # the latest occurrence
        ([1, 2, 9, 3, 2, 8, 1, 2], 2, 1, [9]),  # the longest match wins over a later, shorter one
        ([1, 2, 9, 3, 2, 8, 1, 2], 1, 1, [8]),
        ([1, 2, 3, 4], 3, 4, []),  # nothing has occurred before
        ([1], 3, 4, []),
        ([1, 1], 3, 0, []),
    ],
)
def test_lookup(text, longest, k, expected):
    drafter = make_drafter("lookup", None, V, ngram=longest)
    drafter.start(text)
    assert ids_of(drafter, text, k) == expected


def test_lookup_round_by_round_is_lookup_at_once():
    text = torch.randint(0, 4, (60,), generator=torch.Generator().manual_seed(1)).tolist()
    drafter, drafted = make_drafter("lookup", None, V, ngram=3), 0
    for end in (1, 2, 3, 7, 8, 20, 21, 40, 60):
        draft, anew = ids_of(drafter, text[:end], 5), make_drafter("lookup", None, V, ngram=3)
        assert draft == ids_of(anew, text[:end], 5) == slow_lookup(text[:end], 3, 5)
        drafted += len(draft)
    assert drafted >= 25


def slow_lookup(text, longest, k):
    for n in range(min(longest, len(text) - 1), 0, -1):
        for start in range(len(text) - n - 1, -1, -1):
            if text[start : start + n] == text[-n:]:
                copy = list(text)
                for i in range(k):
                    copy.append(copy[start + n + i])
                return copy[len(text) :]
    return []


@pytest.mark.parametrize(
    ("text", "longest", "all_levels", "k", "expected"),
    [
        ([1, 2, 3, 1, 2, 3, 1, 2, 4, 1, 2], 2, True, 3, [3, 1, 2]),  # 1 2 -> 3 twice, -> 4 once
        ([1, 2, 3, 5, 2], 2, True, 2, [3, 5]),  # "5 2" is new, "2" is not
        ([1, 2, 3, 5, 2], 2, False, 2, []),
        ([1, 2, 3, 1, 2], 2, False, 4, [3, 1, 2, 3]),
        ([1, 2, 3, 5, 2], 1, False, 2, [3, 5]),
        ([4, 1, 2, 9, 1, 3, 1, 3, 1, 3, 4, 1], 3, True, 1, [2]),  # "4 1" -> 2, though 1 -> 3 thrice
        ([4, 1, 2, 9, 5, 1, 2, 7, 5, 1, 2, 7, 4, 1, 2], 3, True, 1, [9]),  # the longest context decides
        ([4, 1, 2, 9, 5, 1, 2, 7, 5, 1, 2, 7, 4, 1, 2], 2, True, 1, [7]),  # "1 2" is followed by 7 twice
        ([1], 3, True, 4, []),
        ([1, 2, 3], 3, False, 4, []),
    ],
)
def test_ngrams(text, longest, all_levels, k, expected):
    kind = "ngram" if all_levels else "ngram-one-level"
    assert ids_of(make_drafter(kind, None, V, ngram=longest), text, k) == expected


def drafted_tree(drafter, text, tree):
    """{the path to each token: its place among its siblings}"""
    draft, paths = drafter.propose(text, tree.size, [0.5] * tree.size), {-1: ()}
    for number, (token, parent) in enumerate(zip(draft.ids.tolist(), draft.parents.tolist(), strict=True)):
        paths[number] = (*paths[parent], token)
    return [*paths.values()][1:]


def test_a_tree_has_the_likeliest_of_a_store_first_and_no_more_than_it_has():
    text = [1, 2, 3, 1, 2, 4, 1, 2, 4, 5, 1, 2]
    drafter = make_drafter("ngram", None, V, tree=(3, 2))
    assert drafted_tree(drafter, text, Tree((3, 2))) == [(4,), (3,), (4, 1), (4, 5), (3, 1)]
    drafter.learn([1, 2], [], [[(3, 1.5), (6, 0.1)]])
    assert drafted_tree(drafter, text, Tree((3,))) == [(3,), (4,), (6,)]
    assert make_drafter("ngram", None, V, tree=(3, 2)).propose([1], 9, [0.5] * 9).k == 0


def test_a_suffix_tree_drafts_a_tree_of_what_has_followed():
    text = [1, 2, 3, 1, 2, 4, 5, 1, 2, 4, 1, 2]  # two tokens have matched, so that no path is longer
    drafted = drafted_tree(make_drafter("suffix", None, V, tree=(2, 2, 1)), text, Tree((2, 2, 1)))
    assert drafted == [(4,), (3,), (4, 5), (4, 1), (3, 1)]


def test_ngrams_count_each_token_once_and_the_new_ones_of_a_longer_text():
    drafter = make_drafter("ngram", None, V)
    text = [1, 2, 3, 1, 2, 3, 1, 2, 4, 1, 2]
    assert ids_of(drafter, text, 1) == [3]
    assert ids_of(drafter, text + [4, 1, 2, 4, 1, 2], 1) == [4]


def test_learning_teaches_several_continuations_of_one_forward():
    """Also after drafts that were refused: the target has said what it thinks there."""
    drafter = make_drafter("ngram", None, V)
    assert ids_of(drafter, [1, 2]) == []
    drafter.learn([1, 2], [3], [[(7, 0.6), (8, 0.3)], [(9, 0.8), (1, 0.1)]])
    assert ids_of(drafter, [1, 2], 1) == [7]
    assert ids_of(drafter, [1, 2, 3], 1) == [9]
    drafter.learn([1, 2], [], [[(8, 0.9)]])
    assert ids_of(drafter, [1, 2], 1) == [8], "weights add up: 0.3 + 0.9 over 0.6"


def test_one_level_learns_full_contexts_only():
    drafter = make_drafter("ngram-one-level", None, V, ngram=3)
    drafter.learn([1, 2], [3], [[(7, 0.6)], [(9, 0.8)]])
    assert ids_of(drafter, [1, 2]) == []
    assert ids_of(drafter, [1, 2, 3], 1) == [9]


TABLE = random_table(4, V)


def proposal(lm, text, k, draws, params, width=V, context=100):
    drafter = make_drafter("model", Sampler(params), width, lm, context)
    drafter.start(list(text))
    return drafter, drafter.propose(list(text), k, draws)


@pytest.mark.parametrize(("context", "expected"), [(100, 4), (7, 4), (6, 3), (4, 1), (3, 0), (1, 0)])
def test_a_model_drafts_inside_its_context_only(context, expected):
    """With 4 tokens of text: its last forward sees the text and all drafts but the last."""
    lm = TableLM(TABLE)
    _, draft = proposal(lm, [3, 1, 4, 1], 4, [0.5] * 4, Params(), context=context)
    assert len(draft.ids) == expected
    assert max((position for position, _ in lm.fed), default=0) < context


def test_a_model_reads_each_token_at_most_twice_and_its_cache_follows_the_text():
    """Two tokens are fed every round: one of them is the last draft of a fully accepted round, which was
    never fed."""
    lm, text = TableLM(TABLE), [3, 1, 4]
    drafter, draft = proposal(lm, text, 2, [0.3, 0.6], Params())
    text += [*draft.ids.tolist(), 5]  # accepted in full, and a bonus
    drafter.propose(list(text), 2, [0.3, 0.6])
    assert lm.ids[: len(text)] == text
    text += [6]  # refused at once
    drafter.propose(list(text), 1, [0.3])
    assert lm.ids[: len(text)] == text
    assert max(lm.fed.count((i, token_id)) for i, token_id in enumerate(text)) <= 2


@pytest.mark.parametrize("width", [4, V + 6])
def test_a_wider_drafter_is_cut_and_renormalised_and_a_narrower_one_padded(width):
    table, params = random_table(5, V, width), Params(temperature=2.0, top_p=1.0)
    table[..., V:] += 20  # it would draw nothing but what the target does not know
    draws = [0.2, 0.5, 0.999]
    _, draft = proposal(TableLM(table), [3, 1], 3, draws, params)
    text, known = [3, 1], min(width, V)
    assert draft.q.shape == draft.raw_q.shape == (3, V)
    assert (draft.q[:, known:] == 0).all() and (draft.raw_q[:, known:] == 0).all()
    for token_id, q, u in zip(draft.ids.tolist(), draft.q, draws, strict=True):
        assert q[:known].numpy() == pytest.approx(shaped(TableLM(table).row(text)[:known], params))
        assert token_id == pick(q.numpy(), u) < known
        text.append(token_id)


def suffix(text, k, width=V):
    drafter = make_drafter("suffix", None, width)
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
def test_suffixes(text, k, expected):
    assert suffix(text, k) == expected


def test_a_draft_of_suffixes_ends_where_it_is_not_sure_enough():
    """After 9 each of 12 tokens has come once: one in twelve is less than a tenth."""
    text = [token for other in range(10, 22) for token in (9, other)]
    assert suffix([*text, 9], 4, 30) == [] and len(suffix([*text[:18], 9], 4, 30)) == 1


def test_suffixes_are_read_once_as_the_text_grows():
    drafter, text = make_drafter("suffix", None, V), [1, 2, 3, 1, 2, 3, 1]
    drafter.start(text[:3])
    for end in (3, 5, 7):
        drafter.propose(text[:end], 2, [0.5] * 2)
    assert {token: node.count for token, node in drafter.root.after.items()} == Counter(text)
