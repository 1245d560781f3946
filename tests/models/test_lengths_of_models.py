"""What drafting costs, from which `gamma="auto"` chooses how long a draft is."""

import pytest

from specdemo import Params, load_pair
from specdemo.drafters.table import BY_METHOD, ByDrafter
from specdemo.events.speedup import DraftingCost
from specdemo.runtime.weights import weight_bytes
from tests.block_heads import tiny_block_head
from tests.runners import with_head
from tests.tiny import tiny


def cost_of(pair):
    return ByDrafter().cost(pair, Params())


def test_drafting_costs_the_share_of_weights_that_it_reads():
    pair = load_pair(target=tiny(num_hidden_layers=4), drafter=tiny())
    share = weight_bytes(pair.drafter) / weight_bytes(pair.target)
    assert share < 1 and cost_of(pair) == DraftingCost(token=share)


def test_a_block_costs_what_it_reads_however_long_it_is():
    """The target's output layer is read, and a Markov head's once for each token."""
    target = tiny(num_hidden_layers=4)
    kinds = {"block": {}, "some": {"draft_ids": [1, 2, 3]}, "markov": {"markov_rank": 8}}
    for name, options in kinds.items():
        head = tiny_block_head(target, **options)
        head.attach_verifier(target)
        cost = cost_of(with_head(target, head))
        own = 4 * sum(weight.numel() for key, weight in head.named_parameters() if "markov" not in key)
        read = own + (4 * target.lm_head.weight.numel() if name != "some" else 0)
        assert cost.draft == pytest.approx(read / weight_bytes(target), rel=0.01)
        assert cost.token == (4 * 8 * 96 / weight_bytes(target) if name == "markov" else 0)


def test_an_exit_costs_what_its_layers_read():
    pair = load_pair(target=tiny(num_hidden_layers=4))
    few, most = (BY_METHOD["early-exit"].cost(pair, Params(exit_layer=layers)).token for layers in (1, 3))
    assert 0 < few < most < 1
