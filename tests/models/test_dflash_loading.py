"""Pairs whose drafter is a DFlash or a DSpark head: both formats, and what can be wrong with one."""

from dataclasses import replace

import pytest
import torch

from specdemo import PairError, Params, generate, load_pair
from specdemo.errors import LoadError
from specdemo.loading.load import plan
from specdemo.loading.request import resolve
from specdemo.runtime.dflash import DFlashHead, Markov, Sight
from tests.block_heads import LAYERS, save_authors_block_head, save_block_head, tiny_block_head
from tests.checkpoints import change_config, change_tensors, saved_in
from tests.heads import save_head, tiny_head
from tests.oracle import assert_nearly_the_same
from tests.sentences import refusal
from tests.tiny import greedy, tiny, tokenizer

PROMPT = "the cat sat"
SHAPE = dict(vocab_size=304, hidden_size=64, intermediate_size=128)
KINDS = {
    "dflash": {},
    "a draft vocabulary": dict(draft_ids=list(range(0, 304, 2))),
    "dspark": dict(samples_from_anchor=True, markov=Markov(8, "vanilla"), has_confidence=True),
    "dspark, rnn": dict(markov=Markov(8, "rnn"), has_confidence=True, confidence_sees_token=False),
    "dspark without a Markov head": dict(has_confidence=True, confidence_sees_token=False),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Directories of a target and a head, which must never be written to."""
    root = tmp_path_factory.mktemp("block_heads")
    target = tiny(**SHAPE)
    saved_in(root / "target", target)
    save_block_head(tiny_block_head(target), root / "head", str(root / "target"))
    return root


@pytest.fixture(scope="module")
def expected():
    return greedy(tiny(**SHAPE), tokenizer()(PROMPT).input_ids, 20)


@pytest.fixture(scope="module")
def shared(saved):
    """A pair with a head. A test may put another one on, but leaves the target as it is."""
    return load_pair(drafter=saved / "head")


def assert_runs(pair, expected):
    trace = generate(pair, PROMPT, Params(temperature=0, max_new_tokens=20), measure=False)
    assert list(trace.output_ids) == expected[: len(trace.output_ids)]
    assert trace.stats.drafted
    return trace


@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
def test_a_head_is_what_was_saved(saved, shared, expected, tmp_path, options):
    head = tiny_block_head(tiny(**SHAPE), **options)
    shared.attach(save_block_head(head, tmp_path / "head", str(saved / "target")))
    assert isinstance(shared.drafter, DFlashHead)
    assert replace(shared.drafter.config, layer=head.config.layer) == head.config
    assert all(map(torch.equal, shared.drafter.state_dict().values(), head.state_dict().values()))
    assert_runs(shared, expected)


def test_the_target_can_be_left_out_and_its_embeddings_are_not_counted(saved):
    pair = load_pair(drafter=saved / "head", dtype="bfloat16")
    assert pair.info.target == str(saved / "target") and pair.drafter.dtype == pair.target.dtype
    assert generate(pair, PROMPT, Params(temperature=0, max_new_tokens=20), measure=False).stats.drafted
    size = plan(resolve(target=saved / "target", drafter=saved / "head", dtype="bfloat16")).sizes[1]
    assert pair.bytes_held.drafter == pytest.approx(size, abs=200)
    assert not any("embed" in name or "lm_head" in name for name, _ in pair.drafter.named_parameters())


def test_a_head_in_its_authors_format_is_the_same_head(saved, shared, expected, tmp_path):
    """It names no target, has program code that is not run, and counts layers otherwise."""
    head = tiny_block_head(tiny(**SHAPE), layer_ids=(1,))
    folder = save_authors_block_head(head, tmp_path / "head")
    assert refusal(load_pair, drafter=folder).startswith("target must be given")
    sampled, traces = Params(temperature=1, seed=4, max_new_tokens=30), []
    for each in (save_block_head(head, tmp_path / "same", str(saved / "target")), folder):
        shared.attach(each)
        traces.append(generate(shared, PROMPT, sampled, measure=False))
    assert shared.drafter.config.layer_ids == (1,) and shared.drafter.config.places == 4
    assert_nearly_the_same(*(each.rounds for each in traces), apart=1e-5)
    assert_runs(shared, expected)


MIXED = {"layer_types": ["sliding_attention", "full_attention"], "use_sliding_window": True}


def test_sliding_windows_of_the_authors_are_counted_from_each_row(shared, expected, tmp_path):
    head = tiny_block_head(tiny(**SHAPE), layer_ids=(1,))
    folder = save_authors_block_head(head, tmp_path / "head", sliding_window=4, **MIXED)
    for own, sights in (
        ({}, (Sight(4, from_anchor=False, later=False), Sight())),
        ({"is_causal": False}, (Sight(4, from_anchor=False), Sight())),
        ({"is_causal": True}, (Sight(4, from_anchor=False, later=False), Sight(later=False))),
    ):
        change_config(folder, **own)
        shared.attach(folder)
        assert shared.drafter.config.sights == sights
        assert_runs(shared, expected)


def test_sliding_windows_of_speculators_are_counted_from_the_anchor(saved, shared, expected, tmp_path):
    folder = save_block_head(tiny_block_head(tiny(**SHAPE)), tmp_path / "head", str(saved / "target"))
    change_config(folder, LAYER, **MIXED, sliding_window=4)
    for later in (True, False):
        change_config(folder, sliding_window_non_causal=later)
        shared.attach(folder)
        assert shared.drafter.config.sights == (Sight(4, from_anchor=True, later=later), Sight())
        assert_runs(shared, expected)


def test_what_its_authors_scale_is_scaled(shared, expected, tmp_path):
    head = tiny_block_head(tiny(**SHAPE), layer_ids=(1,))
    changes = {"input_embedding_scale": 8.0, "output_multiplier": 0.5, "final_logit_softcapping": 30}
    own = {"mask_token_id": 2, "target_layer_ids": [0], "block_size": 3, **changes}
    shared.attach(save_authors_block_head(head, tmp_path / "head", block_size=None, dflash_config=own))
    config = shared.drafter.config
    assert (config.embedding_scale, config.logit_scale, config.logit_cap) == (8.0, 0.5, 30.0)
    assert (config.block_size, config.mask_token_id) == (3, 2)
    assert_runs(shared, expected)


def test_copies_of_the_target_s_weights_are_not_read(saved, shared, expected, tmp_path):
    """As older versions of speculators save them."""
    folder = save_block_head(tiny_block_head(tiny(**SHAPE)), tmp_path / "head", str(saved / "target"))
    copies = ("embed_tokens.weight", "lm_head.weight", "verifier_lm_head.weight")
    zeros = {name: torch.zeros(304, 64) for name in copies} | {"verifier_norm.weight": torch.zeros(64)}
    change_tensors(folder, lambda tensors: tensors.update(zeros))
    shared.attach(folder)
    assert_runs(shared, expected)


def test_it_drafts_for_a_quantised_target_takes_an_eagle_head_s_place_and_is_taken_off(saved, tmp_path):
    eagle = save_head(tiny_head(tiny(**SHAPE)), tmp_path / "eagle3")
    pair = load_pair(target=saved / "target", drafter=eagle, quantize={"target": "int8"})
    pair.attach(saved / "head")
    assert isinstance(pair.drafter, DFlashHead) and pair.drafter.dtype == pair.target.dtype
    assert generate(pair, PROMPT, Params(temperature=0, max_new_tokens=20), measure=False).stats.drafted
    pair.detach()
    assert pair.drafter is None and pair.target.generation_config is not None


LAYER = "transformer_layer_config"
WRONG = [  # changes of config.json, and words of the sentence
    (dict(mask_token_id=None), "mask_token_id must be a whole number from 0 to 303, not None"),
    (dict(mask_token_id=304), "mask_token_id must be a whole number"),
    (dict(aux_hidden_state_layer_ids=None), "aux_hidden_state_layer_ids must be a list"),
    (dict(aux_hidden_state_layer_ids=[0, 9]), "from 0 to 2"),
    (dict(block_size=1), "block_size must be at least 2, not 1"),
    (dict(block_size=10**9), "block_size must be a whole number from 1 to 1,000"),
    (dict(target_hidden_size=128), "target_hidden_size must be 64"),
    (
        dict(speculators_model_type="dspark", markov_head_type="hidden"),
        "markov_head_type must be one of vanilla, gated, rnn, not 'hidden'",
    ),
    (
        dict(speculators_model_type="dspark", markov_rank=10**9),
        "markov_rank must be a whole number from 1 to 1,000,000",
    ),
    (
        dict(speculators_model_type="dspark", markov_rank=0),
        "confidence_head_with_markov must be false where markov_rank is 0",
    ),
    (dict(draft_vocab_size=400), "draft_vocab_size must be at most vocab_size, 304"),
    (dict(speculators_model_type=["dflash"]), "must be eagle3, dflash or dspark"),
]
WRONG_LAYERS = [
    (dict(model_type="llama"), "its layers must be those of qwen3, not of llama"),
    (dict(num_hidden_layers=10**6), "num_hidden_layers must be a whole number from 1 to 64"),
    (dict(hidden_size=10**9), "hidden_size must be a whole number from 1 to 1,000,000"),
    (dict(hidden_size=32), "reads hidden states of size 32"),
    (dict(vocab_size=305), "vocabulary of 305 tokens"),
    (dict(MIXED, sliding_window=4, use_sliding_window=False), "use_sliding_window must be true"),
    (dict(model_type=["qwen3"]), "model_type must be llama or qwen3"),
    (dict(rms_norm_eps=-1.0), "rms_norm_eps must be a number above 0, not -1.0"),
    (dict(hidden_act="nope"), "hidden_act must be an activation of transformers, not 'nope'"),
    (dict(rope_parameters={"rope_type": "default", "rope_theta": 0}), "rope_theta must be a number"),
    (dict(max_position_embeddings=0), "max_position_embeddings must be a whole number from 1"),
]
UNFIT = ("from 0 to 2", "reads hidden states of size 32", "vocabulary of 305 tokens")
CASES = [(None, *case) for case in WRONG] + [(LAYER, *case) for case in WRONG_LAYERS]


@pytest.mark.parametrize("inside, changes, words", CASES, ids=str)
def test_a_wrong_config_gets_one_sentence_and_leaves_a_pair_that_runs(
    saved, shared, expected, tmp_path, inside, changes, words
):
    folder = save_block_head(tiny_block_head(tiny(**SHAPE)), tmp_path / "head", str(saved / "target"))
    change_config(folder, inside, **changes)
    kind = PairError if words in UNFIT else LoadError
    before = shared.info, shared.drafter
    assert words in refusal(shared.attach, folder, kind=kind)
    assert (shared.info, shared.drafter) == before
    if words in UNFIT:
        assert words in refusal(load_pair, drafter=folder)
        assert_runs(shared, expected)


def test_own_options_of_the_authors_that_cannot_be_used(shared, tmp_path):
    head = tiny_block_head(tiny(**SHAPE), layer_ids=(1,))
    for own, words in (
        ({"dflash_config": [1]}, "dflash_config must be an object, not list"),
        ({"output_multiplier": "2"}, "output_multiplier must be a number, not '2'"),
    ):
        folder = save_authors_block_head(head, tmp_path / "head", **own)
        assert words in refusal(shared.attach, folder, kind=LoadError)


@pytest.mark.parametrize("name", ["fc.weight", f"layers.{LAYERS - 1}.self_attn.q_norm.weight"])
def test_tensors_that_do_not_fit(saved, shared, tmp_path, name):
    folder = save_block_head(tiny_block_head(tiny(**SHAPE)), tmp_path / "head", str(saved / "target"))
    change_tensors(folder, lambda tensors: tensors.update({name: torch.zeros(3)}))
    assert f"{name} has the shape [3]" in refusal(shared.attach, folder, kind=LoadError)
    change_tensors(folder, lambda tensors: tensors.pop(name))
    assert f"lacks the tensor {name}" in refusal(shared.attach, folder, kind=LoadError)
