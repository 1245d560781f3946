"""EAGLE, EAGLE-3 and P-EAGLE heads: each option of their configs. What they owe as every drafter does is in
test_drafter_contract.py."""

import pytest
import torch

from specdemo import Params, generate
from tests.block_heads import tiny_block_head
from tests.drafters import PROMPT, drawn_as_said, eagle3_says, softmaxed
from tests.eagle_heads import eagle_logits, tiny_eagle_head
from tests.heads import parallel_logits, tiny_head
from tests.runners import cached, with_head
from tests.tiny import tiny

SOME = [token for token in range(48) if token % 3]
TWO = ["sliding_attention", "full_attention"]
HALF = dict(rope_type="default", rope_theta=500.0, partial_rotary_factor=0.5)
YARN = dict(rope_type="yarn", rope_theta=100.0, factor=4.0)
EAGLE3, PEAGLE, EAGLE = (
    (tiny_head, eagle3_says),
    (tiny_head, softmaxed(parallel_logits)),
    (tiny_eagle_head, softmaxed(eagle_logits)),
)
OPTIONS = {
    "layers in another order": (*EAGLE3, dict(layer_ids=(1, 0), norm_output=True)),
    "qwen3's layer": (*EAGLE3, dict(layer="qwen3", draft_ids=SOME, norm_before_residual=True)),
    "the target's embeddings": (*EAGLE3, dict(norm_before_fc=True, own_embeddings=False)),
    "a hidden size of its own": (*EAGLE3, dict(fc_norm=True, hidden_size=48)),
    "one layer's input": (*EAGLE3, dict(layer_ids=(1,), shape=dict(rope_parameters=YARN))),
    "two layers": (*EAGLE3, dict(layers=2, shape=dict(sliding_window=4, layer_types=TWO))),
    "half of the channels rotated": (*EAGLE3, dict(layers=3, shape=dict(rope_parameters=HALF))),
    "dynamic": (*EAGLE3, dict(context=30, shape=dict(rope_parameters=YARN | dict(rope_type="dynamic")))),
    "parallel": (*PEAGLE, dict(mask_token_id=7, draft_ids=SOME, norm_before_fc=True)),
    "parallel, two layers": (*PEAGLE, dict(mask_token_id=7, layers=2, own_embeddings=False)),
    "eagle, two layers": (*EAGLE, dict(fc_bias=False, layers=2)),
    "eagle, qkv_bias": (*EAGLE, dict(qkv_bias=True)),
}


@pytest.mark.slow
@pytest.mark.parametrize(("make", "says", "options"), OPTIONS.values(), ids=OPTIONS)
def test_each_option_counts_where_it_drafts(make, says, options):
    """By torch's operations and compiled, after rejections and after drafts that were accepted."""
    target = tiny(vocab_size=48, seed=2)
    head = make(target, **options)
    params = Params(temperature=2.0, top_p=1.0, gamma=2, max_new_tokens=30, seed=1, alternatives=3)
    for capture in ("off", "auto"):
        pair = with_head(target, head, capture)
        trace = generate(pair, PROMPT, params, measure=False)
        assert {0, 1} <= set(drawn_as_said(lambda *after: says(head, target, *after), PROMPT, trace))
    assert (getattr(pair.runner.lms[1], "native", None) is None) == (head.kind == "peagle")


@pytest.mark.parametrize("make", [tiny_head, tiny_block_head])
def test_a_head_whose_target_is_in_float16_says_why_it_is_not_compiled(make):
    target = tiny().to(torch.float16)
    fast = cached(make(target).float(), target, True)
    fast.begin_run(static=True)
    assert fast.native is None and "float16" in fast.faults["by_operation"]
