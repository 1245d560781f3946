"""Pairs whose drafter is a speculator: loading, what can be wrong with one, attaching and detaching."""

import gc
import json
import os
import weakref
from dataclasses import replace
from functools import partial

import pytest
import torch

from specdemo import PairError, Params, generate, load_pair, stream
from specdemo.bench.contestants import contestants
from specdemo.cli.main import main
from specdemo.drafters.dflash.head import WHOLE_BLOCK, DFlashHead, Markov
from specdemo.drafters.eagle3.head import Eagle3Head
from specdemo.drafters.formats import describes_head
from specdemo.drafters.speculators import read_head, read_speculator
from specdemo.errors import LoadError
from specdemo.loading.fetch import is_here
from specdemo.loading.load import load_planned, plan
from specdemo.loading.request import resolve
from specdemo.runtime.decoder import RowMask
from specdemo.runtime.weights import held_bytes, weight_bytes
from specdemo.ui.runs.models import Choice, Models
from tests.block_heads import DFLASH2, save_authors_block_head, save_block_head, tiny_block_head
from tests.block_heads import LAYERS as BLOCK_LAYERS
from tests.checkpoints import change_config, change_tensors, cut_in_half, saved_in
from tests.eagle_heads import save_eagle_head, tiny_eagle_head
from tests.heads import save_authors_head, save_head, tiny_head
from tests.oracle import assert_nearly_the_same
from tests.runners import with_head
from tests.sentences import refusal
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
    some = list(range(0, 304, 2))
    save_head(tiny_head(target), root / "head", str(root / "target"))
    save_block_head(tiny_block_head(target), root / "blocks", str(root / "target"))
    save_head(tiny_head(target, layer="qwen3", draft_ids=some, own_embeddings=False), root / "other")
    return root


@pytest.fixture(scope="module")
def expected():
    return greedy(tiny(**SHAPE), tokenizer()(PROMPT).input_ids, 20)


@pytest.fixture(scope="module")
def shared(saved):
    """A pair with a head, which each test must leave as it is."""
    return load_pair(target=saved / "target", drafter=saved / "head")


def assert_runs(pair, expected, draft_with="model"):
    how = Params(temperature=0, max_new_tokens=20, draft_with=draft_with)
    trace = generate(pair, PROMPT, how, measure=False)
    assert list(trace.output_ids) == expected[: len(trace.output_ids)]
    assert bool(trace.stats.drafted) == (draft_with == "model")
    return trace


def test_a_speculator_is_seen_from_its_config(saved, shared, expected):
    assert isinstance(shared.drafter, Eagle3Head)
    assert shared.info.drafter == str(saved / "head") and shared.info.dtype.drafter == "float32"
    assert assert_runs(shared, expected).pair.drafter == str(saved / "head")
    request = resolve(target=saved / "target", drafter=saved / "head")
    assert all(is_here(part) for part in request.parts)
    size = plan(request).sizes[1]
    assert shared.bytes_held.drafter == held_bytes(shared.drafter) == pytest.approx(size, abs=200)


def test_the_target_can_be_left_out_and_each_has_a_dtype(saved, expected):
    """The target is the verifier that the head names."""
    pair = load_pair(drafter=saved / "head", dtype={"target": "float32", "drafter": "bfloat16"})
    assert pair.info.target == str(saved / "target") and pair.info.name.endswith("head")
    assert (pair.info.dtype.target, pair.info.dtype.drafter) == ("float32", "bfloat16")
    assert_runs(pair, expected)


def test_a_drafter_that_names_no_verifier_needs_a_target(saved, tmp_path):
    own = save_authors_head(tiny_head(tiny(**SHAPE)), tmp_path / "authors")
    for drafter in (saved / "other", saved / "drafter", own):
        said = refusal(load_pair, drafter=drafter)
        assert said.startswith("target must be given")
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
    assert refusal(load_pair, drafter=head).startswith("target: there is no directory /private/x")


def test_a_head_does_not_choose_whose_program_code_is_run(saved):
    given = {"drafter": str(saved / "head"), "trust_remote_code": True}
    for said in (refusal(load_pair, **given), refusal(Models, given)):
        assert said.startswith("trust_remote_code: give the target, too")
    assert Models(given | {"target": str(saved / "target")}).default_request.parts[0].code


def test_a_head_is_no_target_and_is_not_quantised(saved):
    said = refusal(load_pair, target=saved / "head")
    assert said.startswith("target: ") and said.endswith(
        "is a head, which drafts for a target: give it as the drafter"
    )
    said = refusal(load_pair, drafter=saved / "head", quantize="int8")
    assert said.startswith("quantize must be none for drafter ")


def test_the_fit_is_checked_again_when_the_weights_are_here(saved, tmp_path):
    """Before, a head counts as one with embeddings of its own. An index comes before what it names."""
    head = save_head(tiny_head(tiny(**SHAPE), hidden_size=32, own_embeddings=False), tmp_path / "head")
    weights, file = (
        (head / "model.safetensors").rename(tmp_path / "later"),
        "model.safetensors-1-of-1.safetensors",
    )
    index = json.dumps({"metadata": {}, "weight_map": {"fc.weight": file}})
    (head / "model.safetensors.index.json").write_text(index)
    planned = plan(resolve(target=saved / "target", drafter=head))
    weights.rename(head / file)
    said = refusal(load_planned, planned)
    assert "it has no embeddings of its own and a hidden size of 32" in said


def test_the_embeddings_of_a_quantised_target_are_used_and_not_counted(saved):
    pair = load_pair(target=saved / "target", drafter=saved / "other", quantize={"target": "int8"})
    assert pair.drafter.dtype == pair.target.dtype
    trace = generate(pair, PROMPT, GREEDY, measure=False)
    assert trace.stats.drafted and trace.stats.tokens == len(trace.output_ids) > 3
    assert not any("embed" in name for name, _ in pair.drafter.named_parameters())
    assert pair.bytes_held.drafter < 4 * 304 * 64 * 8


def test_the_page_and_the_command_line_take_a_head_alone(saved, expected, capsys):
    default = {"name": None, "target": None, "drafter": str(saved / "head"), "device": "cpu"}
    models = Models(default)
    assert models.default == f"{saved / 'target'} + {saved / 'head'}"
    computed = models.needs(Choice())
    pair = models.get(Choice())
    text = assert_runs(pair, expected).text
    assert models.needs(Choice()).drafter_bytes == pair.bytes_held.drafter
    assert computed.drafter_bytes == pytest.approx(pair.bytes_held.drafter, abs=200)
    command = ["generate", PROMPT, "--drafter", str(saved / "head"), "--temperature", "0"]
    assert main([*command, "--max-new-tokens", "20"]) == 0
    assert capsys.readouterr().out == text + "\n"


def test_the_benchmark_leaves_out_what_transformers_cannot_do(shared):
    names = contestants(shared, GREEDY)
    assert "specdemo speculative" in names and "transformers assisted" not in names
    assert weight_bytes(shared.drafter) == held_bytes(shared.drafter) - 4 * 304 * 64  # without its embeddings


# Heads as their authors publish them


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, options",
    [
        ("LlamaForCausalLMEagle3", {}),
        ("Eagle3LlamaForCausalLM", {"draft_ids": list(range(1, 304, 3)), "own_embeddings": False}),
    ],
)
def test_a_head_in_its_authors_format_is_the_same_head(saved, expected, tmp_path, name, options):
    head = tiny_head(tiny(**SHAPE), **options)
    folder = save_authors_head(head, tmp_path / "authors", architectures=[name])
    pair = load_pair(target=saved / "target", drafter=folder)
    assert isinstance(pair.drafter, Eagle3Head) and pair.info.drafter == str(folder)
    assert_runs(pair, expected)
    sampled = Params(temperature=1, seed=4, max_new_tokens=30)
    trace = generate(pair, PROMPT, sampled, measure=False)
    pair.attach(save_head(head, tmp_path / "same"))
    same = generate(pair, PROMPT, sampled, measure=False)
    assert_nearly_the_same(trace.rounds, same.rounds, apart=1e-5)
    assert trace.stats.drafted


def test_layers_that_the_authors_name_are_read(saved, tmp_path):
    head = tiny_head(tiny(**SHAPE))
    named = {"eagle_aux_hidden_state_layer_ids": [1, 2]}
    folder = save_authors_head(head, tmp_path / "named", eagle_config=named)
    assert read_speculator(folder).config.layer_ids == (1, 2)
    folder = save_authors_head(
        tiny_head(tiny(**SHAPE), features=3), tmp_path / "usual", eagle_aux_hidden_state_layer_ids=None
    )
    deep = tiny(**SHAPE, num_hidden_layers=8)
    config = load_pair(target=deep, drafter=folder, tokenizer=tokenizer()).drafter.config
    assert config.layer_ids is None and config.layer_ids_for(8) == (2, 4, 5)


def test_what_is_wrong_with_a_tensor_is_said_by_its_name_in_the_file(shared, tmp_path):
    folder = save_authors_head(tiny_head(tiny(**SHAPE)), tmp_path / "head")
    key = "midlayer.mlp.up_proj.weight"
    change_tensors(folder, lambda tensors: tensors.pop(key))
    said = refusal(shared.attach, folder, kind=LoadError)
    assert said.endswith(f"lacks the tensor {key}, which its config.json asks for")


@pytest.mark.parametrize(
    "name, how",
    [("LlamaForCausalLMEagle3", "load"), ("LlamaForCausalLM", "load"), ("LlamaForCausalLM", "attach")],
)
def test_pickled_heads_are_refused_for_that(saved, shared, tmp_path, name, how):
    """Those of EAGLE-1 and 2 have the config of a small Llama, and no tokenizer."""
    folder = save_authors_head(tiny_head(tiny(**SHAPE)), tmp_path / "head", architectures=[name])
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    call = partial(load_pair, target=saved / "target") if how == "load" else shared.attach
    said = refusal(call, drafter=folder, kind=LoadError)
    assert said.startswith(f"drafter: {folder} has only pickled weights (pytorch_model.bin)")


OTHER_HEADS = [
    ({"model_type": "mlp_speculator"}, "MLP speculator"),
    ({"architectures": ["MedusaModel"], "model_type": "medusa"}, "Medusa"),
    ({"medusa_num_heads": 3, "medusa_num_layers": 1}, "Medusa"),
    (
        {"architectures": ["LlamaForCausalLMEagle3"], "pard_token": 7},
        "P-EAGLE outside of the speculators format",
    ),
]
NO_HEADS = [
    {"architectures": ["Eagle2_5_VLForConditionalGeneration"], "model_type": "eagle_2_5_vl"},
    {"architectures": "Eagle3", "model_type": None},
    {"architectures": [3, None]},
    [],
]


def test_other_kinds_of_heads_are_refused_by_name_and_other_models_are_no_heads(shared, tmp_path):
    for config, kind in OTHER_HEADS:
        (tmp_path / "config.json").write_text(json.dumps(config))
        assert refusal(shared.attach, tmp_path, kind=LoadError) == (
            f"drafter: {tmp_path} cannot be loaded, because of its config.json: heads of the kind {kind} "
            "cannot be run here, only those of EAGLE, EAGLE-3, DFlash and DFlash 2"
        )
    for config in NO_HEADS:
        (tmp_path / "config.json").write_text(json.dumps(config))
        assert not describes_head(tmp_path)


@pytest.mark.parametrize(
    "options, changes",
    [
        ({"qkv_bias": True}, {"model_type": "qwen2"}),
        ({"fc_bias": False, "layers": 2}, {"architectures": ["EagleLlamaForCausalLM"]}),
    ],
    ids=str,
)
def test_heads_of_eagle_are_told_by_their_tensors_or_their_class(saved, expected, tmp_path, options, changes):
    """Their config.json is that of a small model, whose layers are Llama's whatever it says."""
    target = tiny(**SHAPE)
    head = tiny_eagle_head(target, **options)
    folder = save_eagle_head(head, tmp_path / "eagle", target, **changes)
    pair = load_pair(target=saved / "target", drafter=folder)
    assert pair.info.drafter_kind == "eagle"
    for name, value in head.state_dict().items():
        assert torch.equal(pair.drafter.state_dict()[name], value)
    assert_runs(pair, expected)
    assert not describes_head(saved / "drafter"), "a small model is none"


WRONG_EAGLE = {
    "a bias that is not there": (dict(bias=True), "lacks the tensor fc.bias, which its config.json asks for"),
    "sizes elsewhere": (dict(model={}), "must stand beside each other, not in model"),
    "another flag": (dict(qkv_bias=1), "qkv_bias must be true or false, not 1"),
    "other sizes": (dict(intermediate_size=32), "has the shape"),
}


@pytest.mark.parametrize("name", WRONG_EAGLE)
def test_what_is_wrong_with_a_head_of_eagle_is_said(shared, tmp_path, name):
    changes, words = WRONG_EAGLE[name]
    target = tiny(**SHAPE)
    folder = save_eagle_head(tiny_eagle_head(target, fc_bias=False), tmp_path / "eagle", target, **changes)
    assert words in refusal(shared.attach, folder, kind=LoadError)


def test_a_head_of_eagle_needs_to_know_its_target_s_last_norm(tmp_path):
    """GPT-2's has another name."""
    target = tiny("gpt2")
    folder = save_eagle_head(tiny_eagle_head(target), tmp_path / "eagle", target)
    said = refusal(load_pair, target=target, drafter=folder, tokenizer=tokenizer())
    assert said.endswith("after the last norm, which is not known of a GPT2LMHeadModel")


# Attaching and detaching


@pytest.mark.slow
def test_detach_gives_the_memory_back_and_leaves_a_target_that_runs(saved, expected):
    pair = load_pair(target=saved / "target", drafter=saved / "head")
    target, held = pair.target, weakref.ref(pair.drafter.fc.weight)
    assert_runs(pair, expected)
    pair.detach()
    gc.collect()
    assert held() is None and pair.drafter is None and pair.target is target
    assert pair.info.drafter is pair.info.dtype.drafter is pair.bytes_held.drafter is None
    assert pair.info.name == pair.info.target and pair.drafter_context == 0
    assert_runs(pair, expected, "none")
    with pytest.raises(ValueError, match="no drafter model"):
        stream(pair, PROMPT, GREEDY)
    pair.detach()
    assert refusal(pair.attach, None).startswith("drafter must be a hub id or a directory, not None")


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


# What can be wrong with a speculator


def config_with(**changes):
    return lambda path: change_config(path, **changes)


def layer_with(**changes):
    return lambda path: change_config(path, "transformer_layer_config", **changes)


def layer_ids(ids):
    return config_with(eagle_aux_hidden_state_layer_ids=ids)


def set_to(name, value):
    return lambda path: change_tensors(path, lambda tensors: tensors.update({name: value}))


def without(name):
    return lambda path: change_tensors(path, lambda tensors: tensors.pop(name))


UP, IDS = "layers.0.mlp.up_proj.weight", "a list of at most 1,000 whole numbers from 0 to 1,000, not"
# What was done to it, and words that the message must hold.
BROKEN = {
    "another type": (
        config_with(speculators_model_type="mtp"),
        "must be eagle3, peagle, dflash, dflash2 or dspark",
    ),
    "no layer": (config_with(transformer_layer_config=None), "transformer_layer_config"),
    "a huge vocabulary": (
        layer_with(vocab_size=10**12),
        "vocab_size must be a whole number from 1 to 10,000,",
    ),
    "no draft vocabulary": (config_with(draft_vocab_size=None), "to 10,000,000, not None"),
    "huge heads": (layer_with(head_dim=10**10), "head_dim must be a whole number from 1 to 1,000,000"),
    "no heads": (layer_with(num_attention_heads=0), "num_attention_heads must be a whole number"),
    "a million layer ids": (layer_ids(list(range(10**6))), f"{IDS} [0, 1, 2, "),
    "more layers than fit": (layer_ids([0, 1, 2]), "fc.weight"),
    "a wrong shape": (set_to("fc.weight", torch.zeros(64, 64)), "fc.weight"),
    "a missing tensor": (without(UP), UP),
    "NaN": (set_to("norm.weight", torch.full((64,), torch.nan)), "norm.weight"),
    "numbers that need a scale": (
        set_to("fc.weight", torch.zeros(64, 128, dtype=torch.float8_e4m3fn)),
        "its tensor fc.weight cannot be of torch.float8_e4m3fn",
    ),
    "a scale": (set_to("fc.weight_scale", torch.ones(1)), "fc.weight_scale"),
    "cut in half": (lambda path: cut_in_half(path / "model.safetensors"), "its safetensors file is broken"),
    "a config that is cut off": (lambda path: cut_in_half(path / "config.json"), "config"),
}
UNFIT = {
    "layers that the target lacks": (layer_ids([0, 9]), "layers 0, 9"),
    "another hidden size": (config_with(target_hidden_size=32), "hidden states of size 32"),
    "another vocabulary": (
        layer_with(vocab_size=310),
        "a vocabulary of 310 tokens, and the target's has 304",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*BROKEN, *UNFIT])
def test_a_bad_checkpoint_gets_one_sentence_and_leaves_a_pair_that_runs(
    name, saved, shared, expected, tmp_path
):
    change, words = (BROKEN | UNFIT)[name]
    head = save_head(tiny_head(tiny(**SHAPE)), tmp_path / "broken", str(saved / "target"))
    change(head)
    before, kind = (shared.info, shared.drafter, shared.limits), PairError if name in UNFIT else LoadError
    assert words in refusal(shared.attach, head, kind=kind)
    assert (shared.info, shared.drafter, shared.limits) == before
    if name in UNFIT:
        assert words in refusal(load_pair, target=saved / "target", drafter=head)
        assert_runs(shared, expected)


def test_a_target_whose_layers_cannot_be_found(saved):
    target = tiny(**SHAPE)
    target.extra = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)])
    pair = load_pair(target=target)
    assert "one list" in refusal(pair.attach, saved / "head")
    assert generate(pair, [1, 2, 3], Params(draft_with="none", max_new_tokens=4)).stats.tokens == 4


# DFlash, DFlash 2 and DSpark heads, which draft a block at once

BLOCK_KINDS = {
    "dflash": {},
    "a draft vocabulary": dict(draft_ids=list(range(0, 304, 2))),
    "dflash2": DFLASH2,
    "dspark": dict(samples_from_anchor=True, markov=Markov(8, "vanilla"), has_confidence=True),
    "dspark, rnn": dict(markov=Markov(8, "rnn"), has_confidence=True, confidence_sees_token=False),
    "dspark without a Markov head": dict(has_confidence=True, confidence_sees_token=False),
}


@pytest.fixture(scope="module")
def with_blocks(saved):
    """A pair with such a head. A test may put another one on, but leaves the target as it is."""
    return load_pair(drafter=saved / "blocks")


@pytest.mark.slow
@pytest.mark.parametrize("options", BLOCK_KINDS.values(), ids=BLOCK_KINDS)
def test_a_block_head_is_what_was_saved(saved, with_blocks, expected, tmp_path, options):
    head = tiny_block_head(tiny(**SHAPE), **options)
    with_blocks.attach(save_block_head(head, tmp_path / "head", str(saved / "target")))
    assert isinstance(with_blocks.drafter, DFlashHead)
    assert replace(with_blocks.drafter.config, layer=head.config.layer) == head.config
    assert all(map(torch.equal, with_blocks.drafter.state_dict().values(), head.state_dict().values()))
    assert_runs(with_blocks, expected)


def test_a_block_head_uses_the_target_s_embeddings_which_are_not_counted(saved):
    pair = load_pair(drafter=saved / "blocks", dtype="bfloat16")
    assert pair.info.target == str(saved / "target") and pair.drafter.dtype == pair.target.dtype
    assert generate(pair, PROMPT, Params(temperature=0, max_new_tokens=20), measure=False).stats.drafted
    size = plan(resolve(target=saved / "target", drafter=saved / "blocks", dtype="bfloat16")).sizes[1]
    assert pair.bytes_held.drafter == pytest.approx(size, abs=200)
    assert not any("embed" in name or "lm_head" in name for name, _ in pair.drafter.named_parameters())


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, DFLASH2], ids=["dflash", "dflash2"])
def test_a_block_head_in_its_authors_format_is_the_same_head(saved, with_blocks, expected, tmp_path, options):
    """It names no target, has program code that is not run, and counts layers otherwise."""
    head = tiny_block_head(tiny(**SHAPE), layer_ids=(1,), **options)
    folder = save_authors_block_head(head, tmp_path / "head")
    assert refusal(load_pair, drafter=folder).startswith("target must be given")
    sampled, traces = Params(temperature=1, seed=4, max_new_tokens=30), []
    for each in (save_block_head(head, tmp_path / "same", str(saved / "target")), folder):
        with_blocks.attach(each)
        traces.append(generate(with_blocks, PROMPT, sampled, measure=False))
    assert with_blocks.drafter.config.layer_ids == (1,) and with_blocks.drafter.config.places == 4
    assert_nearly_the_same(*(each.rounds for each in traces), apart=1e-5)
    assert_runs(with_blocks, expected)


MIXED = {"layer_types": ["sliding_attention", "full_attention"], "use_sliding_window": True}


@pytest.mark.slow
def test_sliding_windows_are_counted_from_each_row_by_the_authors_and_else_from_the_anchor(
    saved, with_blocks, expected, tmp_path
):
    head = tiny_block_head(tiny(**SHAPE), layer_ids=(1,))
    folder = save_authors_block_head(head, tmp_path / "head", sliding_window=4, **MIXED)
    for own, masks in (
        ({}, (RowMask(4), WHOLE_BLOCK)),
        ({"is_causal": False}, (RowMask(4, later=True), WHOLE_BLOCK)),
        ({"is_causal": True}, (RowMask(4), RowMask())),
    ):
        change_config(folder, **own)
        assert read_speculator(folder).config.masks == masks
    with_blocks.attach(folder)
    assert_runs(with_blocks, expected)
    folder = save_block_head(tiny_block_head(tiny(**SHAPE)), tmp_path / "other", str(saved / "target"))
    change_config(folder, LAYER, **MIXED, sliding_window=4)
    for later in (True, False):
        change_config(folder, sliding_window_non_causal=later)
        assert read_speculator(folder).config.masks == (RowMask(4, from_first=True, later=later), WHOLE_BLOCK)
    with_blocks.attach(folder)
    assert_runs(with_blocks, expected)


@pytest.mark.slow
def test_copies_of_the_target_s_weights_are_not_read(saved, with_blocks, expected, tmp_path):
    """As older versions of speculators save them."""
    folder = save_block_head(tiny_block_head(tiny(**SHAPE)), tmp_path / "head", str(saved / "target"))
    copies = ("embed_tokens.weight", "lm_head.weight", "verifier_lm_head.weight")
    zeros = {name: torch.zeros(304, 64) for name in copies} | {"verifier_norm.weight": torch.zeros(64)}
    change_tensors(folder, lambda tensors: tensors.update(zeros))
    with_blocks.attach(folder)
    assert_runs(with_blocks, expected)


@pytest.mark.slow
def test_it_drafts_for_a_quantised_target_takes_an_eagle_head_s_place_and_is_taken_off(saved, tmp_path):
    eagle = save_head(tiny_head(tiny(**SHAPE)), tmp_path / "eagle3")
    pair = load_pair(target=saved / "target", drafter=eagle, quantize={"target": "int8"})
    pair.attach(saved / "blocks")
    assert isinstance(pair.drafter, DFlashHead) and pair.drafter.dtype == pair.target.dtype
    assert generate(pair, PROMPT, Params(temperature=0, max_new_tokens=20), measure=False).stats.drafted
    pair.detach()
    assert pair.drafter is None and pair.target.generation_config is not None


LAYER = "transformer_layer_config"
DSPARK = dict(speculators_model_type="dspark")
SECOND = dict(speculators_model_type="dflash2")
WRONG_BLOCKS = [  # which part of config.json, its changes, and words of the sentence
    (None, dict(mask_token_id=None), "mask_token_id must be a whole number from 0 to 303, not None"),
    (None, dict(mask_token_id=304), "mask_token_id must be a whole number"),
    (None, dict(aux_hidden_state_layer_ids=None), "aux_hidden_state_layer_ids must be a list"),
    (None, dict(block_size=1), "block_size must be at least 2, not 1"),
    (None, dict(target_hidden_size=128), "target_hidden_size must be 64"),
    (None, DSPARK | dict(markov_head_type="hidden"), "must be one of vanilla, gated, rnn, not 'hidden'"),
    (None, DSPARK | dict(markov_rank=0), "confidence_head_with_markov must be false where markov_rank is 0"),
    (None, dict(draft_vocab_size=400), "draft_vocab_size must be at most vocab_size, 304"),
    (None, SECOND | dict(draft_vocab_size=96), "draft_vocab_size must be vocab_size, 304, not 96"),
    (None, SECOND | dict(conv_group_size=24), "conv_group_size must divide hidden_size, 64, and 24 does not"),
    (None, SECOND | dict(conv_kernel_size=6), "conv_kernel_size must be a whole number from 1 to 5, not 6"),
    (None, SECOND | dict(selector_top_k=305), "selector_top_k must be a whole number from 1 to 304, not 305"),
    (LAYER, dict(model_type="llama"), "its layers must be those of qwen3, not of llama"),
    (LAYER, dict(MIXED, sliding_window=4, use_sliding_window=False), "use_sliding_window must be true"),
    (LAYER, dict(model_type=["qwen3"]), "model_type must be llama or qwen3"),
    (LAYER, dict(rms_norm_eps=-1.0), "rms_norm_eps must be a number above 0, not -1.0"),
    (LAYER, dict(hidden_act="nope"), "hidden_act must be an activation of transformers, not 'nope'"),
    (LAYER, dict(rope_parameters={"rope_theta": 0}), "rope_theta must be a number"),
    (LAYER, dict(max_position_embeddings=0), "max_position_embeddings must be a whole number from 1"),
]


@pytest.mark.parametrize("inside, changes, words", WRONG_BLOCKS, ids=str)
def test_a_wrong_config_of_blocks_gets_one_sentence(saved, with_blocks, tmp_path, inside, changes, words):
    folder = save_block_head(tiny_block_head(tiny(**SHAPE)), tmp_path / "head", str(saved / "target"))
    change_config(folder, inside, **changes)
    assert words in refusal(with_blocks.attach, folder, kind=LoadError)


@pytest.mark.parametrize("name", ["fc.weight", f"layers.{BLOCK_LAYERS - 1}.self_attn.q_norm.weight"])
def test_blocks_that_do_not_fit_leave_a_pair_that_runs(saved, with_blocks, expected, tmp_path, name):
    folder = save_block_head(tiny_block_head(tiny(**SHAPE)), tmp_path / "head", str(saved / "target"))
    before = with_blocks.info, with_blocks.drafter
    change_tensors(folder, lambda tensors: tensors.update({name: torch.zeros(3)}))
    assert f"{name} has the shape [3]" in refusal(with_blocks.attach, folder, kind=LoadError)
    change_tensors(folder, lambda tensors: tensors.pop(name))
    assert f"lacks the tensor {name}" in refusal(with_blocks.attach, folder, kind=LoadError)
    change_config(folder, aux_hidden_state_layer_ids=[0, 9])
    assert "from 0 to 2" in refusal(with_blocks.attach, folder)
    assert (with_blocks.info, with_blocks.drafter) == before
    assert_runs(with_blocks, expected)


LAYERS_LEFT_OUT = dict(features=3, layer_ids=None)
LAYERS_GUESSED = ("eagle_aux_hidden_state_layer_ids", "2, 4, 5")
GUESSED = {  # how a head is made and saved, what its config.json lacks then, and what is guessed
    "eagle3": (save_head, LAYERS_LEFT_OUT, (), LAYERS_GUESSED),
    "eagle3 of its authors": (save_authors_head, LAYERS_LEFT_OUT, (), LAYERS_GUESSED),
    "peagle": (save_head, LAYERS_LEFT_OUT | dict(mask_token_id=7), (), LAYERS_GUESSED),
    "dflash of its authors": (
        save_authors_block_head,
        dict(layer_ids=(1,)),
        ("block_size",),
        ("block_size", "16"),
    ),
    "eagle3 that says it": (save_head, {}, (), ()),
    "dflash that says it": (save_authors_block_head, dict(layer_ids=(1,)), (), ()),
    "dflash, by definition": (save_block_head, {}, ("block_size",), ()),
}


@pytest.mark.parametrize("save, options, left_out, guessed", GUESSED.values(), ids=GUESSED)
def test_a_note_says_what_is_guessed(tmp_path, save, options, left_out, guessed):
    """With the name in config.json and the value that is taken."""
    target = tiny(num_hidden_layers=8)
    make = tiny_head if save in (save_head, save_authors_head) else tiny_block_head
    folder = save(make(target, **options), tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k not in left_out}))
    head = read_head(folder, read_speculator(folder), torch.float32)
    notes = [*map(str, with_head(target, head).notes)]
    assert len(notes) == bool(guessed) and all(part in notes[0] for part in guessed)


@pytest.mark.slow
def test_what_its_authors_scale_is_scaled(with_blocks, expected, tmp_path):
    head = tiny_block_head(tiny(**SHAPE), layer_ids=(1,))
    changes = {"input_embedding_scale": 8.0, "output_multiplier": 0.5, "final_logit_softcapping": 30}
    own = {"mask_token_id": 2, "target_layer_ids": [0], "block_size": 3, **changes}
    with_blocks.attach(save_authors_block_head(head, tmp_path / "head", block_size=None, dflash_config=own))
    config = with_blocks.drafter.config
    assert (config.embedding_scale, config.logit_scale, config.logit_cap) == (8.0, 0.5, 30.0)
    assert (config.block_size, config.mask_token_id) == (3, 2)
    assert_runs(with_blocks, expected)
    for own, words in (
        ({"dflash_config": [1]}, "dflash_config must be an object, not list"),
        ({"output_multiplier": "2"}, "output_multiplier must be a number, not '2'"),
    ):
        folder = save_authors_block_head(head, tmp_path / "head", **own)
        assert words in refusal(with_blocks.attach, folder, kind=LoadError)
