"""Pairs whose drafter is a speculator: loading, what can be wrong with one, attaching and detaching."""

import gc
import json
import os
import weakref
from functools import partial

import pytest
import torch
from safetensors.torch import save_file

from specdemo import PairError, Params, generate, load_pair, stream
from specdemo.bench.contestants import contestants
from specdemo.cli.main import main
from specdemo.errors import LoadError
from specdemo.loading.fetch import is_here
from specdemo.loading.heads import describes_head
from specdemo.loading.load import load_planned, plan
from specdemo.loading.pair import held_bytes, weight_bytes
from specdemo.loading.request import resolve
from specdemo.loading.speculator import read_speculator
from specdemo.runtime.eagle3 import Eagle3Head
from specdemo.ui.runs.models import Choice, Models
from tests.checkpoints import change_config, change_tensors, cut_in_half, saved_in
from tests.heads import save_authors_head, save_head, tiny_head
from tests.oracle import assert_nearly_the_same
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
    names = [each.name for each in contestants(shared, GREEDY, peers=None)]
    assert "specdemo speculative" in names and "transformers assisted" not in names
    assert weight_bytes(shared.drafter) == held_bytes(shared.drafter) - 4 * 304 * 64  # without its embeddings


# Heads as their authors publish them


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
    ({"architectures": ["EagleLlamaForCausalLM"], "model_type": "llama"}, "EAGLE"),
    ({"architectures": ["LlamaForCausalLMEagle"], "model_type": "eagle"}, "EAGLE"),
    ({"medusa_num_heads": 3, "medusa_num_layers": 1}, "Medusa"),
    ({"architectures": ["MLPSpeculatorPreTrainedModel"]}, "MLP speculator"),
    ({"model_type": "mlp_speculator"}, "MLP speculator"),
    ({"architectures": ["DFlash2DraftModel"], "model_type": "qwen3"}, "DFlash 2"),
]
NO_HEADS = [
    {"architectures": ["LlamaForCausalLM"], "model_type": "llama"},
    {"architectures": ["Eagle2_5_VLForConditionalGeneration"], "model_type": "eagle_2_5_vl"},
    {"architectures": "Eagle3", "model_type": None},
    {"architectures": [3, None]},
    [],
    "eagle3",
]


def test_other_kinds_of_heads_are_refused_by_name_and_other_models_are_no_heads(shared, tmp_path):
    for config, kind in OTHER_HEADS:
        (tmp_path / "config.json").write_text(json.dumps(config))
        assert refusal(shared.attach, tmp_path, kind=LoadError) == (
            f"drafter: {tmp_path} cannot be loaded, because of its config.json: heads of the kind {kind} "
            "cannot be run here, only those of EAGLE-3 and DFlash"
        )
    for config in NO_HEADS:
        (tmp_path / "config.json").write_text(json.dumps(config))
        assert not describes_head(tmp_path)


def test_heads_of_eagle_2_are_told_by_their_tensors(saved, shared, tmp_path):
    """Their config.json is that of a Llama with one layer."""
    names = ("fc.weight", "embed_tokens.weight", "layers.0.self_attn.q_proj.weight")
    save_file({name: torch.zeros(2, 2) for name in names}, tmp_path / "model.safetensors")
    config = shorter(tiny(**SHAPE)).config.to_dict() | {"architectures": ["LlamaForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    for call in (partial(load_pair, target=saved / "target"), shared.attach):
        said = refusal(call, drafter=tmp_path, kind=LoadError)
        assert "heads of the kind EAGLE, EAGLE-2 or HASS cannot be run here, only those of EAGLE-3" in said
    assert not describes_head(saved / "drafter"), "a small model is none"


# Attaching and detaching


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
        assert ["another tokenizer" in limit for limit in pair.limits] == [True] * (folder == tmp_path)
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


def tensors_with(change):
    return lambda path: change_tensors(path, change)


def pickled(path):
    (path / "model.safetensors").unlink()
    torch.save({"fc.weight": torch.zeros(2)}, path / "pytorch_model.bin")


def set_to(name, value):
    return tensors_with(lambda tensors: tensors.__setitem__(name, value))


def layer_ids(ids):
    return config_with(eagle_aux_hidden_state_layer_ids=ids)


FLOAT8 = torch.float8_e4m3fn
WHOLE = "must be a whole number from 1 to"
# What was done to it, and words that the message must hold.
BROKEN = {
    "another type": (config_with(speculators_model_type="peagle"), "peagle"),
    "a long type": (
        config_with(speculators_model_type="x" * 10**6),
        "the types that can be run here, not 'xxx",
    ),
    "no layer": (config_with(transformer_layer_config=None), "transformer_layer_config"),
    "a huge vocabulary": (layer_with(vocab_size=10**12), f"vocab_size {WHOLE} 10,000,000, not 1000000000000"),
    "a huge draft vocabulary": (
        config_with(draft_vocab_size=10**10),
        f"draft_vocab_size {WHOLE} 10,000,000,",
    ),
    "no draft vocabulary": (config_with(draft_vocab_size=None), "to 10,000,000, not None"),
    "huge heads": (layer_with(head_dim=10**10), f"head_dim {WHOLE} 1,000,000"),
    "no heads": (layer_with(num_attention_heads=0), f"num_attention_heads {WHOLE}"),
    "a layer id far out": (
        layer_ids([0, 10**6]),
        "a list of at most 1,000 whole numbers from 0 to 1,000, not [0, 1000000]",
    ),
    "a million layer ids": (
        layer_ids(list(range(10**6))),
        "a list of at most 1,000 whole numbers from 0 to 1,000, not [0, 1, 2, ",
    ),
    "more layers than fit": (layer_ids([0, 1, 2]), "fc.weight"),
    "a wrong shape": (set_to("fc.weight", torch.zeros(64, 64)), "fc.weight"),
    "a missing tensor": (
        tensors_with(lambda tensors: tensors.pop("layers.0.mlp.up_proj.weight")),
        "layers.0.mlp.up_proj.weight",
    ),
    "NaN": (set_to("norm.weight", torch.full((64,), torch.nan)), "norm.weight"),
    "numbers that need a scale": (
        tensors_with(lambda tensors: tensors.update({"fc.weight": tensors["fc.weight"].to(FLOAT8)})),
        "its tensor fc.weight cannot be of torch.float8_e4m3fn",
    ),
    "a scale": (set_to("fc.weight_scale", torch.ones(1)), "fc.weight_scale"),
    "cut in half": (lambda path: cut_in_half(path / "model.safetensors"), "model.safetensors"),
    "a pickle": (pickled, "pytorch_model.bin"),
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


@pytest.mark.parametrize("name", [*BROKEN, *UNFIT])
def test_a_bad_checkpoint_gets_one_sentence_and_leaves_a_pair_that_runs(
    name, saved, shared, expected, tmp_path
):
    change, words = (BROKEN | UNFIT)[name]
    head = save_head(tiny_head(tiny(**SHAPE)), tmp_path / "broken", str(saved / "target"))
    change(head)
    before = shared.info, shared.drafter, shared.limits
    kind = PairError if name in UNFIT else LoadError
    assert words in refusal(shared.attach, head, kind=kind)
    assert (shared.info, shared.drafter, shared.limits) == before
    if name in UNFIT:
        assert words in refusal(load_pair, target=saved / "target", drafter=head, kind=kind)
        assert_runs(shared, expected)


def test_a_target_whose_layers_cannot_be_found(saved):
    target = tiny(**SHAPE)
    target.extra = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)])
    pair = load_pair(target=target)
    assert "one list" in refusal(pair.attach, saved / "head")
    assert generate(pair, [1, 2, 3], Params(draft_with="none", max_new_tokens=4)).stats.tokens == 4
