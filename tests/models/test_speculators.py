"""Pairs whose drafter is a speculator: loading, what can be wrong with one, attaching and detaching."""

import gc
import json
import os
import weakref

import pytest
import torch
from safetensors.torch import load_file, save_file

from specdemo import PairError, Params, generate, load_pair, stream
from specdemo.bench.contestants import contestants
from specdemo.cli.main import main
from specdemo.errors import LoadError
from specdemo.loading.fetch import is_here
from specdemo.loading.heads import describes_head
from specdemo.loading.load import load_planned, plan
from specdemo.loading.pair import held_bytes, weight_bytes
from specdemo.loading.pool import ModelPool
from specdemo.loading.request import resolve
from specdemo.runtime.eagle3 import Eagle3Head
from specdemo.ui.runs.models import Choice, Models
from tests.heads import save_authors_head, save_head, tiny_head
from tests.oracle import assert_nearly_the_same
from tests.sentences import assert_one_sentence
from tests.tiny import greedy, shorter, tiny, tokenizer

PROMPT = "the cat sat"
GREEDY = Params(temperature=0, max_new_tokens=20)
SHAPE = dict(vocab_size=304, hidden_size=64, intermediate_size=128)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Directories of a target, a smaller model and heads, which must never be written to."""
    root = tmp_path_factory.mktemp("speculators")
    target = tiny(**SHAPE)
    for name, model in (("target", target), ("drafter", shorter(target))):
        model.save_pretrained(root / name)
        tokenizer().save_pretrained(root / name)
    some = list(range(0, 304, 2))
    save_head(tiny_head(target), root / "head", str(root / "target"))
    save_head(tiny_head(target, layer="qwen3", draft_ids=some, own_embeddings=False), root / "other")
    return root


@pytest.fixture(scope="module")
def expected(saved):
    target = load_pair(target=saved / "target").target
    return greedy(target, tokenizer()(PROMPT).input_ids, 20)


def assert_runs(pair, expected, draft_with="model"):
    trace = generate(pair, PROMPT, Params(temperature=0, max_new_tokens=20, draft_with=draft_with))
    assert list(trace.output_ids) == expected[: len(trace.output_ids)]
    assert bool(trace.stats.drafted) == (draft_with == "model")
    return trace


def rejected(call, kind=PairError):
    with pytest.raises(PairError) as error:
        call()
    assert type(error.value) is kind, str(error.value)
    assert_one_sentence(str(error.value))
    return str(error.value)


def test_a_speculator_is_seen_from_its_config(saved, expected):
    pair = load_pair(target=saved / "target", drafter=saved / "head")
    assert isinstance(pair.drafter, Eagle3Head)
    assert pair.info.drafter == str(saved / "head") and pair.info.dtype.drafter == "float32"
    trace = assert_runs(pair, expected)
    assert trace.pair.drafter == str(saved / "head")
    size = plan(resolve(target=saved / "target", drafter=saved / "head")).sizes[1]
    assert pair.bytes_held.drafter == held_bytes(pair.drafter) == pytest.approx(size, abs=200)


def test_the_target_can_be_left_out(saved, expected):
    """It is the verifier that the head names."""
    pair = load_pair(drafter=saved / "head")
    assert pair.info.target == str(saved / "target") and pair.info.name.endswith("head")
    assert_runs(pair, expected)


def test_a_drafter_that_names_no_verifier_needs_a_target(saved):
    for drafter in ("other", "drafter"):
        assert rejected(lambda name=drafter: load_pair(drafter=saved / name)).startswith(
            "target must be given"
        )
    assert "does-not-exist" in rejected(lambda: load_pair(drafter="./does-not-exist"))


@pytest.mark.parametrize("verifier", ["", f"own/{'v' * 300}", f"/{'v' * 300}/x", "a\0b"])
def test_a_verifier_s_name_that_is_no_name(saved, tmp_path, verifier):
    head = save_head(tiny_head(tiny(**SHAPE)), tmp_path / "head", verifier)
    start = "target: " if verifier else "target must be given"
    said = rejected(lambda: load_pair(drafter=head), LoadError if "own/" in verifier else PairError)
    assert said.startswith(start)


def test_a_verifier_that_may_not_be_looked_at(saved, tmp_path, monkeypatch):
    real = os.stat

    def stat(path, *args, **options):
        if str(path).endswith("private/x"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *args, **options)

    monkeypatch.setattr(os, "stat", stat)
    head = save_head(tiny_head(tiny(**SHAPE)), tmp_path / "head", "/private/x")
    assert rejected(lambda: load_pair(drafter=head)).startswith("target: there is no directory /private/x")


def test_a_head_does_not_choose_whose_program_code_is_run(saved):
    given = {"drafter": str(saved / "head"), "trust_remote_code": True}
    for call in (lambda: load_pair(**given), lambda: Models(given)):
        assert rejected(call).startswith("trust_remote_code: give the target, too")
    assert Models(given | {"target": str(saved / "target")}).default_request.parts[0].code


def test_a_head_is_no_target(saved):
    said = rejected(lambda: load_pair(target=saved / "head"))
    assert said.startswith("target: ") and said.endswith(
        "is a head, which drafts for a target: give it as the drafter"
    )


@pytest.mark.parametrize("file", ["model.safetensors", "model.safetensors-1-of-1.safetensors"])
def test_the_fit_is_checked_again_when_the_weights_are_here(saved, tmp_path, file):
    """Before, a head counts as one with embeddings of its own. An index comes before what it names."""
    head = save_head(tiny_head(tiny(**SHAPE), hidden_size=32, own_embeddings=False), tmp_path / "head")
    weights = (head / "model.safetensors").rename(tmp_path / "later")
    if file != "model.safetensors":
        index = json.dumps({"metadata": {}, "weight_map": {"fc.weight": file}})
        (head / "model.safetensors.index.json").write_text(index)
    planned = plan(resolve(target=saved / "target", drafter=head))
    weights.rename(head / file)
    assert "it has no embeddings of its own and a hidden size of 32" in rejected(
        lambda: load_planned(planned)
    )


def test_the_target_s_embeddings_are_used_and_not_counted(saved, expected):
    pair = load_pair(target=saved / "target", drafter=saved / "other")
    assert_runs(pair, expected)
    own = [name for name, _ in pair.drafter.named_parameters()]
    assert not any("embed" in name for name in own)
    assert pair.bytes_held.drafter < 4 * 304 * 64 * 8


@pytest.mark.parametrize("options", [dict(dtype="bfloat16"), dict(quantize={"target": "int8"})], ids=str)
def test_dtypes_and_quantised_targets(saved, options):
    pair = load_pair(target=saved / "target", drafter=saved / "head", **options)
    assert pair.drafter.dtype == pair.target.dtype
    trace = generate(pair, PROMPT, GREEDY)
    assert trace.stats.drafted and trace.stats.tokens == len(trace.output_ids) > 3


def test_another_dtype_for_each(saved, expected):
    pair = load_pair(drafter=saved / "head", dtype={"target": "float32", "drafter": "bfloat16"})
    assert (pair.info.dtype.target, pair.info.dtype.drafter) == ("float32", "bfloat16")
    assert_runs(pair, expected)


def test_a_head_is_not_quantised(saved):
    message = rejected(lambda: load_pair(drafter=saved / "head", quantize="int8"))
    assert message.startswith("quantize must be none for drafter ")


def test_a_pool_loads_it(saved, expected):
    pool = ModelPool()
    request = resolve(target=saved / "target", drafter=saved / "head")
    assert all(is_here(part) for part in request.parts)
    assert_runs(pool.get(request), expected)
    assert pool.bytes_held() > 0


def test_the_page_and_the_command_line_take_a_head_alone(saved, expected, capsys):
    default = {"name": None, "target": None, "drafter": str(saved / "head"), "device": "cpu"}
    models = Models(default)
    assert models.default == f"{saved / 'target'} + {saved / 'head'}"
    computed = models.needs(Choice())
    pair = models.get(Choice())
    assert_runs(pair, expected)
    assert models.needs(Choice()).drafter_bytes == pair.bytes_held.drafter
    assert computed.drafter_bytes == pytest.approx(pair.bytes_held.drafter, abs=200)
    command = ["generate", PROMPT, "--drafter", str(saved / "head"), "--temperature", "0"]
    assert main([*command, "--max-new-tokens", "20"]) == 0
    assert capsys.readouterr().out == generate(pair, PROMPT, GREEDY).text + "\n"


def test_the_benchmark_leaves_out_what_transformers_cannot_do(saved):
    pair = load_pair(drafter=saved / "head")
    names = [each.name for each in contestants(pair, GREEDY, peers=None)]
    assert "specdemo speculative" in names and "transformers assisted" not in names
    assert weight_bytes(pair.drafter) == held_bytes(pair.drafter) - 4 * 304 * 64  # without its embeddings


# Heads as their authors publish them


@pytest.mark.parametrize("name", ["LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM"])
@pytest.mark.parametrize("options", [{}, {"draft_ids": list(range(1, 304, 3)), "own_embeddings": False}])
def test_a_head_in_its_authors_format_is_the_same_head(saved, expected, tmp_path, name, options):
    head = tiny_head(tiny(**SHAPE), **options)
    same = load_pair(target=saved / "target", drafter=save_head(head, tmp_path / "same"))
    folder = save_authors_head(head, tmp_path / "authors", architectures=[name])
    pair = load_pair(target=saved / "target", drafter=folder)
    assert isinstance(pair.drafter, Eagle3Head) and pair.info.drafter == str(folder)
    sampled = Params(temperature=1, seed=4, max_new_tokens=30)
    traces = [generate(each, PROMPT, sampled) for each in (pair, same)]
    assert_nearly_the_same(*(each.rounds for each in traces), apart=1e-5)
    assert traces[0].stats.drafted
    assert_runs(pair, expected)


def test_layers_that_the_authors_name_are_read(saved, tmp_path):
    head = tiny_head(tiny(**SHAPE))
    folder = save_authors_head(
        head, tmp_path / "named", eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 2]}
    )
    pair = load_pair(target=saved / "target", drafter=folder)
    assert pair.drafter.config.layer_ids == (1, 2)
    folder = save_authors_head(
        tiny_head(tiny(**SHAPE), features=3), tmp_path / "usual", eagle_aux_hidden_state_layer_ids=None
    )
    deep = tiny(**SHAPE, num_hidden_layers=8)
    config = load_pair(target=deep, drafter=folder, tokenizer=tokenizer()).drafter.config
    assert config.layer_ids is None and config.layer_ids_for(8) == (2, 4, 5)


def test_what_is_wrong_with_a_tensor_is_said_by_its_name_in_the_file(saved, tmp_path):
    folder = save_authors_head(tiny_head(tiny(**SHAPE)), tmp_path / "head")
    tensors = load_file(folder / "model.safetensors")
    key = "midlayer.mlp.up_proj.weight"
    save_file({name: value for name, value in tensors.items() if name != key}, folder / "model.safetensors")
    said = rejected(lambda: load_pair(target=saved / "target", drafter=folder), LoadError)
    assert said.endswith(f"lacks the tensor {key}, which its config.json asks for")


def test_a_head_of_its_authors_needs_a_target(tmp_path):
    folder = save_authors_head(tiny_head(tiny(**SHAPE)), tmp_path / "head")
    assert rejected(lambda: load_pair(drafter=folder)).startswith("target must be given")


@pytest.mark.parametrize("name", ["LlamaForCausalLMEagle3", "LlamaForCausalLM"])
@pytest.mark.parametrize("how", ["load", "attach"])
def test_pickled_heads_are_refused_for_that(saved, tmp_path, name, how):
    """Those of EAGLE-1 and 2 have the config of a small Llama, and no tokenizer."""
    folder = save_authors_head(tiny_head(tiny(**SHAPE)), tmp_path / "head", architectures=[name])
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    pair = load_pair(target=saved / "target")
    given = {"load": lambda: load_pair(target=saved / "target", drafter=folder)}
    said = rejected(given.get(how, lambda: pair.attach(folder)), LoadError)
    assert said.startswith(f"drafter: {folder} has only pickled weights (pytorch_model.bin)")


@pytest.mark.parametrize(
    "config, kind",
    [
        ({"architectures": ["EagleLlamaForCausalLM"], "model_type": "llama"}, "EAGLE"),
        ({"architectures": ["LlamaForCausalLMEagle"], "model_type": "eagle"}, "EAGLE"),
        ({"medusa_num_heads": 3, "medusa_num_layers": 1}, "Medusa"),
        ({"architectures": ["MLPSpeculatorPreTrainedModel"]}, "MLP speculator"),
        ({"model_type": "mlp_speculator"}, "MLP speculator"),
        ({"architectures": ["DFlash2DraftModel"], "model_type": "qwen3"}, "DFlash 2"),
    ],
)
def test_other_kinds_of_heads_are_refused_by_name(saved, tmp_path, config, kind):
    (tmp_path / "config.json").write_text(json.dumps(config))
    said = rejected(lambda: load_pair(target=saved / "target", drafter=tmp_path), LoadError)
    assert said == (
        f"drafter: {tmp_path} cannot be loaded, because of its config.json: heads of the kind {kind} cannot "
        "be run here, only those of EAGLE-3 and DFlash"
    )


def test_heads_of_eagle_2_are_told_by_their_tensors(saved, tmp_path):
    """Their config.json is that of a Llama with one layer."""
    names = ("fc.weight", "embed_tokens.weight", "layers.0.self_attn.q_proj.weight")
    save_file({name: torch.zeros(2, 2) for name in names}, tmp_path / "model.safetensors")
    config = shorter(tiny(**SHAPE)).config.to_dict() | {"architectures": ["LlamaForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    pair = load_pair(target=saved / "target")
    for call in (lambda: load_pair(target=saved / "target", drafter=tmp_path), lambda: pair.attach(tmp_path)):
        said = rejected(call, LoadError)
        assert "heads of the kind EAGLE, EAGLE-2 or HASS cannot be run here, only those of EAGLE-3" in said
    assert not describes_head(saved / "drafter"), "a small model is none"


@pytest.mark.parametrize(
    "config",
    [
        {"architectures": ["LlamaForCausalLM"], "model_type": "llama"},
        {"architectures": ["Eagle2_5_VLForConditionalGeneration"], "model_type": "eagle_2_5_vl"},
        {"architectures": "Eagle3", "model_type": None},
        {"architectures": [3, None]},
        [],
        "eagle3",
    ],
)
def test_other_models_are_no_heads(tmp_path, config):
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert not describes_head(tmp_path)


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
    assert rejected(lambda: pair.attach(None)).startswith("drafter must be a hub id or a directory, not None")


@pytest.mark.slow
def test_attach_puts_anything_on_without_loading_the_target_again(saved, expected):
    pair = load_pair(target=saved / "target")
    target, lm = pair.target, pair.runner.lms[0]
    for name in ("head", "drafter", "other", "head"):
        pair.attach(saved / name)
        assert pair.target is target and pair.runner.lms[0] is lm
        assert pair.info.drafter == str(saved / name) and pair.info.dtype.drafter == "float32"
        assert pair.info.name == f"{pair.info.target} + {saved / name}"
        assert_runs(pair, expected)
        assert pair.notes == [*pair.limits]


def test_models_in_memory_can_have_a_head_too(saved):
    target = tiny(**SHAPE)
    pair = load_pair(target=target, tokenizer=tokenizer())
    pair.attach(saved / "head")
    assert_runs(pair, greedy(target, tokenizer()(PROMPT).input_ids, 20))
    assert not any(module._forward_pre_hooks for module in target.modules())


def test_both_refuse_while_a_run_goes_on(saved, expected):
    pair = load_pair(target=saved / "target", drafter=saved / "head")
    with stream(pair, PROMPT, GREEDY) as run:
        next(run)
        for change in (pair.detach, lambda: pair.attach(saved / "other")):
            assert "busy" in rejected(change)
    assert_runs(pair, expected)


# What can be wrong with a speculator


def config_with(**changes):
    def change(path):
        config = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps(config | changes))

    return change


def layer_with(**changes):
    def change(path):
        config = json.loads((path / "config.json").read_text())
        config["transformer_layer_config"] |= changes
        (path / "config.json").write_text(json.dumps(config))

    return change


def tensors_with(change_tensors):
    def change(path):
        tensors = load_file(path / "model.safetensors")
        change_tensors(tensors)
        save_file(tensors, path / "model.safetensors")

    return change


def cut(path):
    whole = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(whole[: len(whole) // 2])


def pickled(path):
    (path / "model.safetensors").unlink()
    torch.save({"fc.weight": torch.zeros(2)}, path / "pytorch_model.bin")


def set_to(name, value):
    return lambda tensors: tensors.__setitem__(name, value)


FLOAT8 = torch.float8_e4m3fn
# What was done to it, the kind of error, and words that the message must hold.
BROKEN = {
    "another type": (config_with(speculators_model_type="mlp"), LoadError, "mlp"),
    "P-EAGLE": (config_with(speculators_model_type="peagle"), LoadError, "peagle"),
    "no layer": (config_with(transformer_layer_config=None), LoadError, "transformer_layer_config"),
    "many layers": (
        layer_with(num_hidden_layers=10**9),
        LoadError,
        "num_hidden_layers must be a whole number from 1 to 64, not 1000000000",
    ),
    "a huge vocabulary": (
        layer_with(vocab_size=10**12),
        LoadError,
        "vocab_size must be a whole number from 1 to 10,000,000, not 1000000000000",
    ),
    "a huge draft vocabulary": (
        config_with(draft_vocab_size=10**10),
        LoadError,
        "draft_vocab_size must be a whole number from 1 to 10,000,000, not 10000000000",
    ),
    "no draft vocabulary": (config_with(draft_vocab_size=None), LoadError, "to 10,000,000, not None"),
    "huge heads": (
        layer_with(head_dim=10**10),
        LoadError,
        "head_dim must be a whole number from 1 to 1,000,000",
    ),
    "no heads": (layer_with(num_attention_heads=0), LoadError, "num_attention_heads must be a whole number"),
    "layers that the target lacks": (
        config_with(eagle_aux_hidden_state_layer_ids=[0, 9]),
        PairError,
        "layers 0, 9",
    ),
    "a layer id far out": (
        config_with(eagle_aux_hidden_state_layer_ids=[0, 10**6]),
        LoadError,
        "a list of at most 1,000 whole numbers from 0 to 1,000, not [0, 1000000]",
    ),
    "a million layer ids": (
        config_with(eagle_aux_hidden_state_layer_ids=list(range(10**6))),
        LoadError,
        "a list of at most 1,000 whole numbers from 0 to 1,000, not [0, 1, 2, ",
    ),
    "a long type": (
        config_with(speculators_model_type="x" * 10**6),
        LoadError,
        "the types that can be run here, not 'xxx",
    ),
    "another hidden size": (config_with(target_hidden_size=32), PairError, "hidden states of size 32"),
    "more layers than fit": (
        config_with(eagle_aux_hidden_state_layer_ids=[0, 1, 2]),
        LoadError,
        "fc.weight",
    ),
    "a wrong shape": (tensors_with(set_to("fc.weight", torch.zeros(64, 64))), LoadError, "fc.weight"),
    "a missing tensor": (
        tensors_with(lambda tensors: tensors.pop("layers.0.mlp.up_proj.weight")),
        LoadError,
        "layers.0.mlp.up_proj.weight",
    ),
    "NaN": (tensors_with(set_to("norm.weight", torch.full((64,), torch.nan))), LoadError, "norm.weight"),
    "numbers that need a scale": (
        tensors_with(lambda tensors: tensors.update({"fc.weight": tensors["fc.weight"].to(FLOAT8)})),
        LoadError,
        "its tensor fc.weight cannot be of torch.float8_e4m3fn",
    ),
    "a scale": (tensors_with(set_to("fc.weight_scale", torch.ones(1))), LoadError, "fc.weight_scale"),
    "cut in half": (cut, LoadError, "model.safetensors"),
    "a pickle": (pickled, LoadError, "pytorch_model.bin"),
    "a config that is cut off": (
        lambda path: (path / "config.json").write_text('{"speculators_model_type": "eag'),
        LoadError,
        "config",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_bad_checkpoint_gets_one_sentence_and_leaves_a_pair_that_runs(name, saved, expected, tmp_path):
    change, kind, words = BROKEN[name]
    head = save_head(tiny_head(tiny(**SHAPE)), tmp_path / "broken", str(saved / "target"))
    change(head)
    assert words in rejected(lambda: load_pair(target=saved / "target", drafter=head), kind)

    pair = load_pair(target=saved / "target", drafter=saved / "head")
    before = pair.info, pair.drafter, pair.limits
    assert words in rejected(lambda: pair.attach(head), kind)
    assert (pair.info, pair.drafter, pair.limits) == before
    assert_runs(pair, expected)


def test_a_head_for_another_vocabulary(saved, tmp_path):
    head = save_head(tiny_head(tiny(**SHAPE | {"vocab_size": 300})), tmp_path / "head")
    assert "304" in rejected(lambda: load_pair(target=saved / "target", drafter=head))


@pytest.mark.slow
def test_a_drafter_model_with_another_tokenizer_can_be_attached(saved, expected, tmp_path):
    shorter(tiny(**SHAPE)).save_pretrained(tmp_path)
    tokenizer(sentences=["a wholly different text"] * 5).save_pretrained(tmp_path)
    pair = load_pair(target=saved / "target", drafter=saved / "head")
    pair.attach(tmp_path)
    assert pair.other_tokenizer is not None and "another tokenizer" in pair.limits[-1]
    assert_runs(pair, expected)
    pair.attach(saved / "head")
    assert pair.other_tokenizer is None and not pair.limits
    assert_runs(pair, expected)


def test_a_target_whose_layers_cannot_be_found(saved):
    target = tiny(**SHAPE)
    target.extra = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)])
    pair = load_pair(target=target)
    assert "one list" in rejected(lambda: pair.attach(saved / "head"))
    assert generate(pair, [1, 2, 3], Params(draft_with="none", max_new_tokens=4)).stats.tokens == 4
