"""What the experts of a mixture weigh, and that a draft's length is chosen by it."""

from dataclasses import replace

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from specdemo import Params, load_pair
from specdemo.events.speedup import DraftingCost
from specdemo.runtime.weights import expert_weights, held_bytes, weight_bytes
from specdemo.session import loop_of, prepare
from tests.small import PROMPT
from tests.tiny import COMMON, GROUPED, noisy, random_weights, tiny

EACH, COUNT = 2, 16


def mixture():
    settings = dict(num_local_experts=COUNT, num_experts_per_tok=EACH, num_hidden_layers=3)
    return random_weights(
        AutoModelForCausalLM.from_config(AutoConfig.for_model("mixtral", **COMMON | GROUPED | settings))
    )


def test_a_token_reads_the_weights_of_its_experts_alone():
    dense, model = tiny(), mixture()
    own = sum(4 * weight.numel() for name, weight in model.named_parameters() if ".experts." in name)
    assert expert_weights(model) == (own, EACH / COUNT) and expert_weights(dense) == (0, 1.0)
    tables = 4 * model.get_input_embeddings().weight.numel()
    assert weight_bytes(model) == held_bytes(model) - tables - own + own * EACH // COUNT


def test_dbrx_tells_in_its_ffn_config_through_how_many_a_token_goes():
    config = AutoConfig.for_model("dbrx", d_model=32, n_heads=4, n_layers=1, vocab_size=12)
    config.attn_config.rope_theta = 1e4
    config.ffn_config.moe_num_experts, config.ffn_config.moe_top_k = 8, 2
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert expert_weights(model).size > 0 and expert_weights(model).chosen == 2 / 8


def test_more_rows_of_a_mixture_cost_the_experts_that_they_are_expected_to_read():
    """128 experts, of which a row reads 8, by the chance that no row reads an expert."""
    cost = DraftingCost(token=0.1, draft=0.2, experts=0.6, chosen=8 / 128)
    for gamma in (1, 4, 16):
        read = 128 * (1 - (1 - 8 / 128) ** (gamma + 1))
        assert cost.of_a_draft(gamma) == pytest.approx(0.1 * gamma + 0.2 + 0.6 * (read / 8 - 1))
    assert replace(cost, experts=0.0, chosen=1.0).of_a_draft(4) == pytest.approx(0.1 * 4 + 0.2)


def test_the_length_is_chosen_by_what_the_experts_of_more_rows_weigh():
    """As counted: the same for each pair of the same models."""
    model = mixture()
    own, chosen = expert_weights(model)

    def cost():
        pair = load_pair(target=model, drafter=noisy(model))
        started = prepare(pair, PROMPT, Params(gamma="auto", seed=1))
        return loop_of(pair, started, lambda: False).length.cost

    assert cost() == cost()
    read = own * chosen
    by_five = own * (1 - (1 - chosen) ** 5)
    assert cost().of_a_draft(4) == pytest.approx(4 * cost().token + (by_five - read) / weight_bytes(model))
