"""Trees that heads draft: what each token was drawn from is what the head says after the path before it, when
everything is computed anew, and the text is the target's own."""

import pytest
import torch

from specdemo import Params, generate
from specdemo.engine.tree import draw_children
from tests.block_heads import tiny_block_head
from tests.models.test_eagle3_drafter import KINDS
from tests.models.test_greedy import NEW, PROMPT, expected_of, target_of
from tests.oracle import leaves_of
from tests.runners import with_head
from tests.sentences import assert_one_sentence
from tests.tiny import tiny

TREE, TEXT = (2, 2, 1), [3, 1, 4, 1, 5]


@pytest.mark.parametrize("tree", [TREE, "auto"], ids=str)
@pytest.mark.parametrize("name", KINDS)
def test_what_each_token_was_drawn_from_is_what_the_head_says_after_its_path(name, tree):
    """Also after paths that are not the first ones, whose features have to be moved. A block of a tree that
    grows has all its places, however long a path is: what a place says depends on how many they are."""
    kind, target, text, moved = KINDS[name], tiny(vocab_size=12, seed=2), list(TEXT), 0
    head = kind.head(target)
    depth = 0 if tree == TREE else getattr(head.config, "places", 0)
    params = Params(temperature=1.5, top_p=1.0, tree=tree, max_new_tokens=24, seed=1, alternatives=0)
    for one in generate(with_head(target, head), TEXT, params, measure=False).rounds:
        for leaf in leaves_of(one.draft):
            ids = [one.draft[at].id for at in leaf]
            block = ids + [0] * (depth - len(ids))
            said = kind.says(head, target, text, block).double().softmax(-1)
            for at, row in zip(leaf, said, strict=False):
                assert one.draft[at].raw_q == pytest.approx(row[one.draft[at].id].item(), abs=3e-4)
        path = [at for at, token in enumerate(one.draft) if token.fate == "accepted"]
        moved += path != [*range(len(path))]
        text += one.emitted
    assert moved > 1


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_a_tree_changes_no_greedy_text(name):
    target = target_of("llama")
    pair = with_head(target, KINDS[name].head(target), "auto" if name in ("eagle3", "dspark") else "off")
    trace = generate(pair, PROMPT, Params(temperature=0, tree=TREE, max_new_tokens=NEW), measure=False)
    assert trace.output_ids == expected_of("llama") and not pair.runner.notes
    assert {len(one.draft) for one in trace.rounds[:-4]} == {10}


def test_a_tree_is_no_deeper_than_a_draft_can_be_long():
    target = tiny(vocab_size=12)
    pair = with_head(target, tiny_block_head(target, block_size=3))
    with pytest.raises(ValueError, match="tree must have at most 2 numbers for this pair") as error:
        pair.check(Params(tree=(1, 1, 1)))
    assert_one_sentence(str(error.value))
    pair.check(Params(tree=(3, 1)))


def test_a_head_that_can_draft_few_tokens_drafts_none_twice():
    logits = torch.tensor([[-torch.inf, -torch.inf, 2.0, 1.0, -torch.inf]])
    tokens, q = draw_children(logits.softmax(-1), logits, torch.zeros(1, 5, dtype=torch.float64))
    assert sorted(tokens[0].tolist()) == [0, 1, 2, 3, 4]
    assert (q.gather(2, tokens[..., None]) > 0).all()
