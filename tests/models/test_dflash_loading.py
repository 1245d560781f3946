"""Pairs whose drafter is a DFlash or a DSpark head: both formats, and what can be wrong with one."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from specdemo import PairError, Params, generate, load_pair
from specdemo.errors import LoadError
from specdemo.loading.load import plan
from specdemo.loading.request import resolve
from specdemo.runtime.dflash import DFlashHead, Markov, Sight
from tests.block_heads import LAYERS, save_authors_block_head, save_block_head, tiny_block_head
from tests.heads import save_head, tiny_head
from tests.oracle import assert_nearly_the_same
from tests.sentences import assert_one_sentence
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
    target.save_pretrained(root / "target")
    tokenizer().save_pretrained(root / "target")
    save_block_head(tiny_block_head(target), root / "head", str(root / "target"))
    return root


@pytest.fixture(scope="module")
def expected(saved):
    target = load_pair(target=saved / "target").target
    return greedy(target, tokenizer()(PROMPT).input_ids, 20)


def assert_runs(pair, expected):
    trace = generate(pair, PROMPT, Params(temperature=0, max_new_tokens=20))
    assert list(trace.output_ids) == expected[: len(trace.output_ids)]
    assert trace.stats.drafted
    return trace


def rejected(call, kind=PairError):
    with pytest.raises(PairError) as error:
        call()
    assert type(error.value) is kind, str(error.value)
    assert_one_sentence(str(error.value))
    return str(error.value)


@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
def test_a_head_is_what_was_saved(saved, expected, tmp_path, options):
    head = tiny_block_head(tiny(**SHAPE), **options)
    folder = save_block_head(head, tmp_path / "head", str(saved / "target"))
    pair = load_pair(drafter=folder)
    assert isinstance(pair.drafter, DFlashHead)
    assert replace(pair.drafter.config, layer=head.config.layer) == head.config
    assert all(map(torch.equal, pair.drafter.state_dict().values(), head.state_dict().values()))
    assert pair.info.target == str(saved / "target")
    assert_runs(pair, expected)


def test_a_head_in_its_authors_format_is_the_same_head(saved, expected, tmp_path):
    """It names no target, has program code that is not run, and counts layers otherwise."""
    head = tiny_block_head(tiny(**SHAPE), layer_ids=(1,))
    folder = save_authors_block_head(head, tmp_path / "head")
    assert rejected(lambda: load_pair(drafter=folder)).startswith("target must be given")
    pair = load_pair(target=saved / "target", drafter=folder)
    assert pair.drafter.config.layer_ids == (1,) and pair.drafter.config.places == 4
    same = load_pair(
        target=saved / "target", drafter=save_block_head(head, tmp_path / "same", str(saved / "target"))
    )
    sampled = Params(temperature=1, seed=4, max_new_tokens=30)
    traces = [generate(each, PROMPT, sampled) for each in (pair, same)]
    assert_nearly_the_same(*(each.rounds for each in traces), apart=1e-5)
    assert_runs(pair, expected)


MIXED = {"layer_types": ["sliding_attention", "full_attention"], "use_sliding_window": True}


@pytest.mark.parametrize(
    ("own", "sights"),
    [
        ({}, (Sight(4, from_anchor=False, later=False), Sight())),
        ({"is_causal": False}, (Sight(4, from_anchor=False), Sight())),
        ({"is_causal": True}, (Sight(4, from_anchor=False, later=False), Sight(later=False))),
    ],
    ids=str,
)
def test_sliding_windows_of_the_authors_are_counted_from_each_row(saved, expected, tmp_path, own, sights):
    folder = save_authors_block_head(
        tiny_block_head(tiny(**SHAPE), layer_ids=(1,)), tmp_path / "head", sliding_window=4, **MIXED, **own
    )
    pair = load_pair(target=saved / "target", drafter=folder)
    assert pair.drafter.config.sights == sights
    assert_runs(pair, expected)


@pytest.mark.parametrize("later", [True, False])
def test_sliding_windows_of_speculators_are_counted_from_the_anchor(saved, expected, tmp_path, later):
    head = tiny_block_head(tiny(**SHAPE))
    layer = head.config.layer.to_dict() | MIXED | {"sliding_window": 4}
    folder = save_block_head(
        head,
        tmp_path / "head",
        str(saved / "target"),
        transformer_layer_config=layer,
        sliding_window_non_causal=later,
    )
    pair = load_pair(drafter=folder)
    assert pair.drafter.config.sights == (Sight(4, from_anchor=True, later=later), Sight())
    assert_runs(pair, expected)


def test_what_its_authors_scale_is_scaled(saved, expected, tmp_path):
    head = tiny_block_head(tiny(**SHAPE), layer_ids=(1,))
    changes = {"input_embedding_scale": 8.0, "output_multiplier": 0.5, "final_logit_softcapping": 30}
    own = {"mask_token_id": 2, "target_layer_ids": [0], "block_size": 3, **changes}
    folder = save_authors_block_head(head, tmp_path / "head", block_size=None, dflash_config=own)
    pair = load_pair(target=saved / "target", drafter=folder)
    config = pair.drafter.config
    assert (config.embedding_scale, config.logit_scale, config.logit_cap) == (8.0, 0.5, 30.0)
    assert (config.block_size, config.mask_token_id) == (3, 2)
    assert_runs(pair, expected)


def test_the_target_s_embeddings_are_used_and_not_counted(saved):
    pair = load_pair(drafter=saved / "head")
    size = plan(resolve(target=saved / "target", drafter=saved / "head")).sizes[1]
    assert pair.bytes_held.drafter == pytest.approx(size, abs=200)
    assert not any("embed" in name or "lm_head" in name for name, _ in pair.drafter.named_parameters())


def test_copies_of_the_target_s_weights_are_not_read(saved, expected, tmp_path):
    """As older versions of speculators save them."""
    head = tiny_block_head(tiny(**SHAPE))
    folder = save_block_head(head, tmp_path / "head", str(saved / "target"))
    tensors = load_file(folder / "model.safetensors")
    copies = ("embed_tokens.weight", "lm_head.weight", "verifier_lm_head.weight")
    tensors |= {name: torch.zeros(304, 64) for name in copies} | {"verifier_norm.weight": torch.zeros(64)}
    save_file(tensors, folder / "model.safetensors")
    assert_runs(load_pair(drafter=folder), expected)


@pytest.mark.parametrize("options", [dict(dtype="bfloat16"), dict(quantize={"target": "int8"})], ids=str)
def test_dtypes_and_quantised_targets(saved, options):
    pair = load_pair(target=saved / "target", drafter=saved / "head", **options)
    assert pair.drafter.dtype == pair.target.dtype
    assert generate(pair, PROMPT, Params(temperature=0, max_new_tokens=20)).stats.drafted


def test_it_can_be_attached_and_taken_off(saved, expected, tmp_path):
    pair = load_pair(
        target=saved / "target", drafter=save_head(tiny_head(tiny(**SHAPE)), tmp_path / "eagle3")
    )
    pair.attach(saved / "head")
    assert isinstance(pair.drafter, DFlashHead)
    assert_runs(pair, expected)
    pair.detach()
    assert pair.drafter is None and pair.target.generation_config is not None


LAYER = "transformer_layer_config"
WRONG = {
    "no mask token": (
        dict(mask_token_id=None),
        "mask_token_id must be a whole number from 0 to 303, not None",
    ),
    "a mask token that the target has not": (dict(mask_token_id=304), "mask_token_id must be a whole number"),
    "no layers": (dict(aux_hidden_state_layer_ids=None), "aux_hidden_state_layer_ids must be a list"),
    "a layer beyond the target's": (dict(aux_hidden_state_layer_ids=[0, 9]), "from 0 to 2"),
    "a block of one": (dict(block_size=1), "block_size must be at least 2, not 1"),
    "an endless block": (dict(block_size=10**9), "block_size must be a whole number from 1 to 1,000"),
    "another size than the target's": (dict(target_hidden_size=128), "target_hidden_size must be 64"),
    "an unknown Markov head": (
        dict(speculators_model_type="dspark", markov_head_type="hidden"),
        "markov_head_type must be one of vanilla, gated, rnn, not 'hidden'",
    ),
    "a Markov head of gigabytes": (
        dict(speculators_model_type="dspark", markov_rank=10**9),
        "markov_rank must be a whole number from 1 to 1,000,000",
    ),
    "a confidence head without the Markov head that it reads": (
        dict(speculators_model_type="dspark", markov_rank=0),
        "confidence_head_with_markov must be false where markov_rank is 0",
    ),
    "too many tokens": (dict(draft_vocab_size=400), "draft_vocab_size must be at most vocab_size, 304"),
    "another kind": (dict(speculators_model_type="peagle"), "must be eagle3, dflash or dspark"),
    "no kind": (dict(speculators_model_type=["dflash"]), "must be eagle3, dflash or dspark"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_config_gets_one_sentence_and_leaves_a_pair_that_runs(name, saved, expected, tmp_path):
    changes, words = WRONG[name]
    folder = save_block_head(
        tiny_block_head(tiny(**SHAPE)), tmp_path / "head", str(saved / "target"), **changes
    )
    pair = load_pair(drafter=saved / "head")
    before = pair.info, pair.drafter
    assert words in rejected(lambda: pair.attach(folder), PairError if "beyond" in name else LoadError)
    assert (pair.info, pair.drafter) == before
    assert_runs(pair, expected)


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (dict(model_type="llama"), "its layers must be those of qwen3, not of llama"),
        (dict(num_hidden_layers=10**6), "num_hidden_layers must be a whole number from 1 to 64"),
        (dict(hidden_size=10**9), "hidden_size must be a whole number from 1 to 1,000,000"),
        (dict(hidden_size=32), "reads hidden states of size 32"),
        (dict(vocab_size=300), "draft_vocab_size must be at most vocab_size, 300, not 304"),
        (dict(vocab_size=305), "vocabulary of 305 tokens"),
        (dict(MIXED, sliding_window=4, use_sliding_window=False), "use_sliding_window must be true"),
        (dict(model_type=["qwen3"]), "model_type must be llama or qwen3"),
        (dict(rms_norm_eps=-1.0), "rms_norm_eps must be a number above 0, not -1.0"),
        (dict(hidden_act="nope"), "hidden_act must be an activation of transformers, not 'nope'"),
        (dict(rope_parameters={"rope_type": "default", "rope_theta": 0}), "rope_theta must be a number"),
        (dict(max_position_embeddings=0), "max_position_embeddings must be a whole number from 1"),
        (dict(layer_types=["full_attention"]), "layer_types"),
        (dict(layer_types=["full_attention", "chunked_attention"]), "layer_types"),
        (dict(rope_parameters={"rope_type": "spiral", "rope_theta": 1e4}), "rope_parameters must be"),
    ],
    ids=str,
)
def test_wrong_layers(saved, tmp_path, layer, words):
    head = tiny_block_head(tiny(**SHAPE))
    config = head.config.layer.to_dict() | layer
    folder = save_block_head(head, tmp_path / "head", str(saved / "target"), transformer_layer_config=config)
    with pytest.raises(PairError) as error:
        load_pair(target=saved / "target", drafter=folder)
    assert words in str(error.value)
    assert_one_sentence(str(error.value))


@pytest.mark.parametrize("name", ["fc.weight", f"layers.{LAYERS - 1}.self_attn.q_norm.weight"])
def test_tensors_that_do_not_fit(saved, tmp_path, name):
    folder = save_block_head(tiny_block_head(tiny(**SHAPE)), tmp_path / "head", str(saved / "target"))
    tensors = load_file(folder / "model.safetensors")
    for change, words in ((None, "lacks the tensor"), (torch.zeros(3), "has the shape [3]")):
        changed = {key: value for key, value in tensors.items() if key != name}
        save_file(changed | ({} if change is None else {name: change}), folder / "model.safetensors")
        said = rejected(lambda: load_pair(target=saved / "target", drafter=folder), LoadError)
        assert words in said and name in said


def test_own_options_of_the_authors_that_are_no_object(saved, tmp_path):
    head = tiny_block_head(tiny(**SHAPE), layer_ids=(1,))
    folder = save_authors_block_head(head, tmp_path / "head", dflash_config=[1])
    said = rejected(lambda: load_pair(target=saved / "target", drafter=folder), LoadError)
    assert "dflash_config must be an object, not list" in said
    folder = save_authors_block_head(head, tmp_path / "head", output_multiplier="2")
    said = rejected(lambda: load_pair(target=saved / "target", drafter=folder), LoadError)
    assert "output_multiplier must be a number, not '2'" in said
    assert json.loads((folder / "config.json").read_text())["output_multiplier"] == "2"
