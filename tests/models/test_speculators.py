"""Pairs whose drafter is a head in a folder: who its target is, the formats, attaching and detaching. That
each kind is loaded, fits and is refused where it is broken is in test_drafter_contract.py."""

import gc
import json
import os
import weakref
from dataclasses import replace

import pytest
import torch

from specdemo import PairError, Params, generate, load_pair, stream
from specdemo.drafters.configs import kind_in
from specdemo.drafters.dflash import WHOLE_BLOCK
from specdemo.drafters.table import HEAD
from specdemo.errors import LoadError
from specdemo.runtime.decoder import RowMask
from specdemo.runtime.weights import held_bytes
from specdemo.ui.runs.models import Choice, Models
from tests.block_heads import save_authors_block_head, save_block_head, tiny_block_head
from tests.checkpoints import change_config, change_tensors, saved_in
from tests.eagle_heads import save_eagle_head, tiny_eagle_head
from tests.heads import read_head, save_authors_head, save_head, tiny_head
from tests.runners import with_head
from tests.sentences import refusal, refused
from tests.tiny import greedy, shorter, tiny, tokenizer

PROMPT = "the cat sat"
GREEDY = Params(temperature=0, max_new_tokens=20)
SHAPE = dict(vocab_size=304, hidden_size=64, intermediate_size=128)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Directories of a target, a smaller model and heads, which must never be written to."""
    root = tmp_path_factory.mktemp("speculators")
    target = tiny(**SHAPE)
    saved_in(root / "target", target)
    saved_in(root / "drafter", shorter(target))
    save_head(tiny_head(target), root / "head", str(root / "target"))
    save_block_head(tiny_block_head(target), root / "blocks", str(root / "target"))
    save_head(tiny_head(target, layer="qwen3", own_embeddings=False), root / "other")
    return root


@pytest.fixture(scope="module")
def expected():
    return greedy(tiny(**SHAPE), tokenizer()(PROMPT).input_ids, 20)


@pytest.fixture(scope="module")
def shared(saved):
    """A pair with a head, which each test must leave as it is."""
    return load_pair(target=saved / "target", drafter=saved / "head")


def assert_runs(pair, expected, draft_with="model"):
    trace = generate(pair, PROMPT, replace(GREEDY, draft_with=draft_with), measure=False)
    assert list(trace.output_ids) == expected[: len(trace.output_ids)]
    assert bool(trace.stats.drafted) == (draft_with == "model")
    return trace


# Who its target is


def test_the_target_can_be_left_out_and_each_has_a_dtype(saved, expected):
    """The target is the verifier that the head names."""
    pair = load_pair(drafter=saved / "head", dtype={"target": "float32", "drafter": "bfloat16"})
    assert pair.info.target == str(saved / "target") and pair.info.name.endswith("head")
    assert (pair.info.dtype.target, pair.info.dtype.drafter) == ("float32", "bfloat16")
    assert_runs(pair, expected)


def test_a_drafter_that_names_no_verifier_needs_a_target(saved, tmp_path):
    own = save_authors_head(tiny_head(tiny(**SHAPE)), tmp_path / "authors")
    blocks = save_authors_block_head(tiny_block_head(tiny(**SHAPE), layer_ids=(1,)), tmp_path / "blocks")
    for drafter in (saved / "other", saved / "drafter", own, blocks):
        assert refusal(load_pair, drafter=drafter).startswith("target must be given")
    assert "does-not-exist" in refusal(load_pair, drafter="./does-not-exist")


def test_a_verifier_s_name_that_is_no_name(saved, tmp_path, monkeypatch):
    head = save_head(tiny_head(tiny(**SHAPE)), tmp_path / "head", "")
    for verifier in ("", f"own/{'v' * 300}", f"/{'v' * 300}/x", "a\0b"):
        change_config(head, "speculators_config", verifier={"name_or_path": verifier})
        said = refusal(load_pair, drafter=head, kind=LoadError if "own/" in verifier else PairError)
        assert said.startswith("target: " if verifier else "target must be given")
    real = os.stat

    def stat(path, *args, **options):
        if str(path).endswith("private/x"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *args, **options)

    monkeypatch.setattr(os, "stat", stat)
    change_config(head, "speculators_config", verifier={"name_or_path": "/private/x"})
    assert refusal(load_pair, drafter=head).startswith("target: ")


def test_a_head_is_no_target_and_is_not_quantised(saved):
    said = refusal(load_pair, target=saved / "head")
    assert said.startswith("target: ") and "is a head" in said
    said = refusal(load_pair, drafter=saved / "head", quantize="int8")
    assert said.startswith("quantize must be none for drafter ")


def test_a_target_whose_layers_cannot_be_found(saved):
    target = tiny(**SHAPE)
    target.extra = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)])
    pair = load_pair(target=target)
    assert "one list" in refusal(pair.attach, saved / "head")
    assert generate(pair, [1, 2, 3], Params(draft_with="none", max_new_tokens=4)).stats.tokens == 4


@pytest.mark.slow
def test_it_drafts_with_the_embeddings_of_a_quantised_target_which_are_not_counted(saved):
    pair = load_pair(target=saved / "target", drafter=saved / "other", quantize={"target": "int8"})
    for folder in (saved / "other", saved / "blocks"):
        pair.attach(folder)
        assert pair.drafter.dtype == pair.target.dtype
        assert generate(pair, PROMPT, GREEDY, measure=False).stats.drafted
        assert not any("embed" in name for name, _ in pair.drafter.named_parameters())
        assert pair.bytes_held.drafter == held_bytes(pair.drafter)


def test_the_page_takes_a_head_alone(saved, expected):
    models = Models({"name": None, "target": None, "drafter": str(saved / "head"), "device": "cpu"})
    assert models.default == f"{saved / 'target'} + {saved / 'head'}"
    assert_runs(models.get(Choice()), expected)


# What the formats say


def test_layers_that_the_authors_name_are_read(saved, tmp_path):
    head = tiny_head(tiny(**SHAPE))
    named = {"eagle_aux_hidden_state_layer_ids": [1, 2]}
    folder = save_authors_head(head, tmp_path / "named", eagle_config=named)
    assert HEAD.config(folder).layer_ids == (1, 2)
    head = tiny_head(tiny(**SHAPE), layer_ids=None)
    folder = save_authors_head(head, tmp_path / "usual")
    deep = tiny(**SHAPE, num_hidden_layers=8)
    config = load_pair(target=deep, drafter=folder, tokenizer=tokenizer()).drafter.config
    assert config.layer_ids is None and config.layer_ids_for(8) == (2, 4, 5)


@pytest.mark.parametrize("name", ["LlamaForCausalLMEagle3", "LlamaForCausalLM"])
def test_pickled_heads_are_refused_for_that(saved, shared, tmp_path, name):
    """Those of EAGLE-1 and 2 have the config of a small Llama, and no tokenizer."""
    folder = save_authors_head(tiny_head(tiny(**SHAPE)), tmp_path / "head", architectures=[name])
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    said = refusal(shared.attach, folder, kind=LoadError)
    assert said.startswith(f"drafter: {folder} ") and "pytorch_model.bin" in said


NO_HEADS = [
    {"architectures": ["Eagle2_5_VLForConditionalGeneration"], "model_type": "eagle_2_5_vl"},
    {"architectures": "Eagle3", "model_type": None},
    {"architectures": [3, None]},
    [],
]


def test_other_models_are_no_heads(saved, tmp_path):
    for config in NO_HEADS:
        (tmp_path / "config.json").write_text(json.dumps(config))
        assert kind_in(tmp_path) == "model"
    assert kind_in(saved / "drafter") == "model"


@pytest.mark.parametrize(
    ("options", "changes"),
    [
        ({"qkv_bias": True}, {"model_type": "qwen2"}),
        ({"fc_bias": False, "layers": 2}, {"architectures": ["EagleLlamaForCausalLM"]}),
    ],
    ids=str,
)
def test_heads_of_eagle_are_told_by_their_tensors_or_their_class(tmp_path, options, changes):
    """Their config.json is that of a small model, whose layers are Llama's whatever it says."""
    target = tiny(**SHAPE)
    head = tiny_eagle_head(target, **options)
    found = read_head(save_eagle_head(head, tmp_path, target, **changes))
    assert found.kind == "eagle" and replace(found.config, layer=head.config.layer) == head.config
    assert all(map(torch.equal, found.state_dict().values(), head.state_dict().values()))


def test_a_block_head_is_what_was_saved(tmp_path):
    """Copies of the target's weights, which older versions of speculators save, are not read."""
    options = dict(draft_ids=[*range(0, 304, 2)], has_confidence=True)
    head = tiny_block_head(tiny(**SHAPE), **options)
    folder = save_block_head(head, tmp_path)
    copies = {name: torch.zeros(304, 64) for name in ("embed_tokens.weight", "verifier_lm_head.weight")}
    change_tensors(folder, lambda tensors: tensors.update(copies))
    found = read_head(folder)
    with pytest.raises(ValueError, match="attach its target first"):
        found.targets_embedding()
    assert replace(found.config, layer=head.config.layer) == head.config
    assert all(map(torch.equal, found.state_dict().values(), head.state_dict().values()))


MIXED = {"layer_types": ["sliding_attention", "full_attention"], "use_sliding_window": True}


def test_sliding_windows_are_counted_from_each_row_by_the_authors_and_else_from_the_anchor(tmp_path):
    head = tiny_block_head(tiny(**SHAPE), layer_ids=(1,))
    folder = save_authors_block_head(head, tmp_path / "head", sliding_window=4, **MIXED)
    for own, masks in (
        ({}, (RowMask(4), WHOLE_BLOCK)),
        ({"is_causal": False}, (RowMask(4, later=True), WHOLE_BLOCK)),
        ({"is_causal": True, "sliding_window_non_causal": True}, (RowMask(4), RowMask())),
    ):
        change_config(folder, **own)
        assert HEAD.config(folder).masks == masks
    folder = save_block_head(tiny_block_head(tiny(**SHAPE)), tmp_path / "other")
    assert HEAD.config(folder).masks == (WHOLE_BLOCK,) * 2, "no layer slides"
    change_config(folder, "transformer_layer_config", **MIXED, sliding_window=4)
    for later in (True, False):
        change_config(folder, sliding_window_non_causal=later)
        assert HEAD.config(folder).masks == (RowMask(4, from_first=True, later=later), WHOLE_BLOCK)


def test_what_its_authors_scale_is_scaled(tmp_path):
    head = tiny_block_head(tiny(**SHAPE), layer_ids=(1,))
    changes = {"input_embedding_scale": 8.0, "output_multiplier": 0.5, "final_logit_softcapping": 30}
    own = {"mask_token_id": 2, "target_layer_ids": [0], "block_size": 3, **changes}
    folder = save_authors_block_head(head, tmp_path, block_size=None, dflash_config=own)
    config = HEAD.config(folder)
    assert (config.embedding_scale, config.logit_scale, config.logit_cap) == (8.0, 0.5, 30.0)
    assert (config.block_size, config.mask_token_id) == (3, 2)


@pytest.mark.parametrize("layer_ids", [None, (1, 2, 3)])
def test_a_note_says_which_layers_are_guessed(tmp_path, layer_ids):
    """With the name in config.json and the value that is taken."""
    target = tiny(num_hidden_layers=8)
    folder = save_head(tiny_head(target, layer_ids=layer_ids), tmp_path)
    notes = [*map(str, with_head(target, read_head(folder)).notes)]
    assert len(notes) == (layer_ids is None)
    assert all("eagle_aux_hidden_state_layer_ids: 2, 4, 5" in note for note in notes)


# Attaching and detaching


@pytest.mark.slow
def test_detach_gives_the_memory_back_and_leaves_a_target_that_runs(saved, expected, monkeypatch):
    pair = load_pair(target=saved / "target", drafter=saved / "head")
    target, held = pair.target, weakref.ref(pair.drafter.fc.weight)
    assert_runs(pair, expected)
    monkeypatch.delattr("specdemo.loading.pair.device_name")  # a GPU that has failed may tell none
    pair.detach()
    gc.collect()
    assert held() is None and pair.drafter is None and pair.target is target
    assert pair.info.drafter is pair.info.dtype.drafter is pair.bytes_held.drafter is None
    assert pair.info.name == pair.info.target and pair.drafter_context == 0
    assert_runs(pair, expected, "none")
    with refused("method_unfit", field="draft_with"):
        stream(pair, PROMPT, GREEDY)
    pair.detach()
    assert all(refusal(put, None).startswith("drafter ") for put in (pair.attach, pair.with_drafter))


@pytest.mark.slow
def test_attach_puts_anything_on_without_loading_the_target_again(saved, expected, tmp_path):
    """Also a model with another tokenizer."""
    saved_in(tmp_path, shorter(tiny(**SHAPE)), tokenizer(sentences=["a wholly different text"] * 5))
    pair = load_pair(target=saved / "target")
    target, lm = pair.target, pair.runner.lms[0]
    for folder in (saved / "head", saved / "drafter", tmp_path, saved / "other"):
        pair.attach(folder)
        assert pair.target is target and pair.runner.lms[0] is lm
        assert pair.info.drafter == str(folder) and pair.info.dtype.drafter == "float32"
        assert pair.info.name == f"{pair.info.target} + {folder}"
        assert (pair.other_tokenizer is not None) == (folder == tmp_path)
        assert ["another tokenizer" in str(limit) for limit in pair.limits] == [True] * (folder == tmp_path)
        assert_runs(pair, expected)
        assert pair.notes == [*pair.limits]


def test_both_refuse_while_a_run_goes_on(saved, shared, expected):
    with stream(shared, PROMPT, GREEDY) as run:
        next(run)
        assert "busy" in refusal(shared.detach) and "busy" in refusal(shared.attach, saved / "other")
    assert_runs(shared, expected)
