"""Loading pairs from directories and from memory, and everything that can be wrong with them."""

import json
import os
import shutil
from contextlib import suppress
from dataclasses import replace

import pytest
import torch
from optimum.quanto import QTensor, freeze, library, qfloat8, qint2, qint4, qint8, quantize
from optimum.quanto.nn import QModuleMixin
from optimum.quanto.tensor import QBitsTensor, QBytesTensor
from optimum.quanto.tensor.weights.tinygemm import TinyGemmWeightQBitsTensor
from safetensors.torch import load_file
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    LlamaModel,
    LlamaPreTrainedModel,
)
from transformers.modeling_outputs import CausalLMOutput
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.models.gemma2.modeling_gemma2 import Gemma2PreTrainedModel

from specdemo import PairError, Params, generate, load_pair, stream
from specdemo.errors import LoadError, failure, no_mistakes
from specdemo.events import ByModel
from specdemo.loading import quantised
from specdemo.loading.load import _load, plan
from specdemo.loading.plan import check_depth
from specdemo.loading.request import Part, dtype_name, resolve
from specdemo.runtime import weights
from specdemo.runtime.capturable import capture_blocker
from specdemo.runtime.linear import CACHE_LINE
from specdemo.runtime.runner import has_hooks
from specdemo.runtime.weights import held_bytes, stored, weights_address
from tests.checkpoints import change_config, change_tensors, cut_in_half, saved_in
from tests.heads import save_head, tiny_head
from tests.sentences import assert_one_sentence, refusal
from tests.small import small_model
from tests.tiny import WIDE, greedy, noisy, random_weights, shorter, tiny, tokenizer

# 4 ids of padding; large enough for int4's groups of weights
SHAPE = dict(vocab_size=304, hidden_size=64, intermediate_size=256)
PROMPT = "the cat sat"
GREEDY = Params(temperature=0, max_new_tokens=20)
ROLES = ("target", "drafter")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Directories of a target and a drafter of half its layers, which must never be written to."""
    root = tmp_path_factory.mktemp("pairs")
    target = tiny(**SHAPE)
    saved_in(root / "target", target)
    saved_in(root / "drafter", shorter(target))
    return root


@pytest.fixture(scope="module")
def unquantised(saved):
    return load_pair(target=saved / "target", drafter=str(saved / "drafter"))


@pytest.fixture
def broken(saved, tmp_path):
    """Makes a copy of the target's directory and breaks it with a function."""

    def make(change, name="broken"):
        shutil.copytree(saved / "target", tmp_path / name)
        change(tmp_path / name)
        return tmp_path / name

    return make


def rejected(*name, **request) -> str:
    """With `kind`: of the error."""
    return refusal(load_pair, *name, **request)


def trace_of(pair, **params):
    return generate(pair, PROMPT, replace(GREEDY, **params), measure=False)


# What works


def test_a_pair_from_two_directories(saved, unquantised):
    pair = unquantised
    assert pair.info.target == str(saved / "target") and pair.info.drafter == str(saved / "drafter")
    assert pair.info.device == "cpu" and pair.info.dtype.target == pair.info.dtype.drafter == "float32"
    assert pair.info.quantize.target is None and pair.info.quantize.drafter is None
    assert str(pair.dtype_reason).startswith("float32: ")
    weights = sum(one.numel() for one in pair.target.parameters())
    buffers = {one.data_ptr(): one.numel() for one in pair.target.buffers()}
    assert pair.bytes_held.target == 4 * (weights + sum(buffers.values()))
    assert pair.bytes_held.drafter < pair.bytes_held.target
    for model in (pair.target, pair.drafter):
        assert not [name for name, weight in model.named_parameters() if weight.data_ptr() % CACHE_LINE]
    trace = trace_of(pair)
    assert trace.output_ids == greedy(pair.target, trace.prompt_ids, 20)[: len(trace.output_ids)]
    assert trace.finish in ("length", "eos") and trace.stats.drafted


def test_a_target_alone(saved):
    pair = load_pair(target=saved / "target")
    assert pair.drafter is None and pair.info.drafter is None and pair.bytes_held.drafter is None
    assert trace_of(pair, draft_with="lookup").output_ids == trace_of(pair, draft_with="none").output_ids
    with pytest.raises(ValueError, match='^draft_with must not be "model"') as error:
        stream(pair, PROMPT, GREEDY)
    assert_one_sentence(str(error.value))


def test_a_cap_on_attention_scores_is_not_left_out(tmp_path, monkeypatch):
    """transformers before 5.21 chooses an attention for Gemma 2 that ignores it."""
    capped = tiny("gemma2", vocab_size=304)
    uncapped = tiny("gemma2", vocab_size=304, attn_logit_softcapping=None)
    monkeypatch.setattr(Gemma2PreTrainedModel, "_supports_sdpa", True)  # as before 5.21
    pair = load_pair(target=saved_in(tmp_path, capped), device="cpu", dtype="float32")
    with torch.no_grad():
        ids = torch.arange(40)[None]
        assert not torch.allclose(uncapped(ids).logits, capped(ids).logits, atol=0.01)
        torch.testing.assert_close(pair.target(ids).logits, capped(ids).logits)
    trace_of(pair, draft_with="lookup")
    assert not pair.notes


def test_a_choice_for_each_model(saved, unquantised):
    """Quantised weights are smaller and still write."""
    plain = unquantised.bytes_held
    pair = load_pair(
        target=saved / "target",
        drafter=saved / "drafter",
        dtype={"target": "float32", "drafter": "bfloat16"},
        quantize={"target": "int8", "drafter": "none"},
        device={"target": "cpu", "drafter": None},
    )
    assert (pair.info.dtype.target, pair.info.dtype.drafter) == ("float32", "bfloat16")
    assert (pair.info.quantize.target, pair.info.quantize.drafter) == ("int8", None)
    names = unquantised.target.named_parameters()
    linear = 4 * sum(weights.numel() for name, weights in names if "_proj" in name)
    rest = plain.target - linear  # embeddings, norms and the head stay as they are
    assert rest < pair.bytes_held.target < rest + 0.27 * linear
    assert 0.45 * plain.drafter < pair.bytes_held.drafter < 0.55 * plain.drafter
    trace = trace_of(pair)
    assert trace.stats.drafted and trace.output_ids == trace_of(pair, draft_with="none").output_ids


@pytest.mark.slow
def test_tokenizers_that_differ_by_ids_at_the_end_only_and_in_how_they_split(saved, broken):
    def change(path):
        content = json.loads((path / "tokenizer.json").read_text())
        content["model"]["merges"] = content["model"]["merges"][:10]
        (path / "tokenizer.json").write_text(json.dumps(content))

    longer = broken(lambda path: tokenizer(extra=4).save_pretrained(path), "longer")
    for target, drafter in ((saved / "target", longer), (longer, saved / "drafter")):
        pair = load_pair(target=target, drafter=drafter)
        assert pair.other_tokenizer is None and trace_of(pair).stats.drafted
    pair.attach(broken(change))
    assert len(pair.other_tokenizer.shared) == len(tokenizer())
    assert trace_of(pair).output_ids == trace_of(pair, draft_with="none").output_ids


# Quantised weights


def test_weights_are_quantised_on_their_device(saved, monkeypatch):
    """The meta device stands for a GPU: what is loaded onto it was never on the CPU as a whole."""
    quantised_on = set()

    def freeze(layer, freeze=QModuleMixin.freeze):
        quantised_on.add(layer.weight.device.type)
        freeze(layer)

    monkeypatch.setattr(QModuleMixin, "freeze", freeze)
    moved = []
    monkeypatch.setattr(torch.nn.Linear, "_apply", lambda layer, *_: moved.append(layer.weight.device.type))
    target = str(saved / "target")
    part = Part("target", target, target, device="meta", dtype=None, quantize="int8")
    model = _load(part, torch.bfloat16, lambda *_: None)
    assert quantised_on == set(moved) == {"meta"}
    assert model.device.type == "meta" and not has_hooks(model)


@pytest.fixture
def never_dequantised(monkeypatch):
    """On CUDA, optimum-quanto compiles code for minutes when it writes out a weight of less than 8 bits."""

    def refuse(weight):
        raise AssertionError("a weight was dequantised")

    for kind in (TinyGemmWeightQBitsTensor, QBitsTensor, QBytesTensor):
        monkeypatch.setattr(kind, "dequantize", refuse)


@pytest.mark.parametrize("kind", [qint8, qint4, qint2, qfloat8], ids=str)
def test_quantised_weights_are_looked_at_as_they_are_stored(never_dequantised, kind):
    model = tiny(**WIDE).bfloat16()
    quantize(model, weights=kind, exclude="lm_head")
    freeze(model)
    assert weights.not_finite(model) is None and held_bytes(model) and weights_address(model)
    parts = stored(model.model.layers[1].mlp.up_proj.weight)
    with torch.no_grad():
        next(part for part in parts if part.dtype == torch.bfloat16).view(-1)[3] = torch.nan
    assert weights.not_finite(model) == "model.layers.1.mlp.up_proj.weight"


def test_int4_weights_that_torch_has_a_kernel_for_are_only_multiplied(never_dequantised, tmp_path):
    """From loading to the end of a run."""
    model = tiny(**WIDE)
    both = ("target", model), ("drafter", noisy(model))
    paths = {role: saved_in(tmp_path / role, one) for role, one in both}
    pair = load_pair(**paths, device="cpu", dtype="bfloat16", quantize="int4")
    assert type(pair.target.model.layers[1].mlp.up_proj.weight) is TinyGemmWeightQBitsTensor
    assert trace_of(pair).stats.drafted
    assert capture_blocker(pair.target) is None


@pytest.mark.parametrize("kind", ["int4", "int2"])
def test_packed_weights_are_unpacked_on_a_cpu_without_a_compiler(tmp_path, monkeypatch, kind):
    def compile_it(**_):
        raise AssertionError("optimum-quanto compiled code")

    monkeypatch.setattr(library.extensions.extension, "load", compile_it)
    monkeypatch.setattr(library.extensions.get_extension("quanto_cpp"), "_lib", None)
    saved_in(tmp_path, tiny(**WIDE))
    pair = load_pair(target=tmp_path, drafter=tmp_path, device="cpu", quantize=kind)
    assert pair.target.model.layers[1].mlp.up_proj.weight.qtype.name == f"q{kind}"
    bits, packed = int(kind[-1]), torch.arange(256, dtype=torch.uint8)
    each = [[number >> shift & 2**bits - 1 for number in range(256)] for shift in range(0, 8, bits)]
    assert torch.ops.quanto.unpack(packed, bits).tolist() == sum(each, [])
    assert trace_of(pair).stats.tokens


@pytest.mark.parametrize("kind, unit", [("int8", 1 / 127), ("float8", 1 / 14)])
def test_the_layers_of_gpt_2_are_quantised_as_linear_ones(tmp_path, kind, unit):
    """transformers' Conv1D is a linear layer whose weight is transposed."""
    model = tiny("gpt2", vocab_size=304, n_embd=64)
    saved_in(tmp_path, model)
    how = dict(target=tmp_path, drafter=tmp_path, quantize=kind)
    pair = load_pair(**how)
    for loaded in (pair.target, pair.drafter):
        for block, own in zip(loaded.transformer.h, model.transformer.h, strict=True):
            for part in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"):
                weight, whole = block.get_submodule(part).weight, own.get_submodule(part).weight.T
                assert isinstance(weight, QTensor)
                limit = whole.abs().amax(1, keepdim=True).detach() * unit
                assert ((weight.dequantize() - whole).abs() <= limit).all()
        assert not isinstance(loaded.lm_head.weight, QTensor)
    assert not pair.limits and pair.bytes_held.target < 0.6 * held_bytes(model)
    assert plan(resolve(**how)).sizes == pytest.approx((pair.bytes_held.target,) * 2, rel=0.01)
    assert trace_of(pair).stats.accepted


@pytest.mark.slow
def test_a_share_of_the_weights_that_is_small_is_told(tmp_path):
    """The experts of a mixture are not in linear layers."""
    saved_in(tmp_path, small_model("qwen3_moe"))
    how = dict(target=tmp_path, drafter=tmp_path, quantize={"target": "int8"})
    pair = load_pair(**how)
    weights = dict(pair.target.named_parameters())
    share = sum(one.numel() for one in weights.values() if isinstance(one, QTensor))
    share /= sum(one.numel() for one in weights.values())
    assert 0 < share < 0.5
    assert plan(resolve(**how)).sizes[0] == pytest.approx(pair.bytes_held.target, rel=0.01)
    rest = "the rest, such as model.layers.0.mlp.experts.gate_up_proj, stays in float32"
    told = f"int8 holds {100 * share:.0f} % of the target's weights: {rest}"
    assert [*map(str, pair.limits)] == [told]
    pair.detach()
    assert [*map(str, pair.limits)] == [told]


# Models in memory


def test_models_in_memory_are_left_as_they_are():
    target = tiny().to(torch.bfloat16).train()
    before = {name: weights.clone() for name, weights in target.state_dict().items()}
    pair = load_pair(target=target, drafter=target)
    assert pair.target is target and pair.info.target == "LlamaForCausalLM"
    assert pair.info.dtype.target == "bfloat16" and str(pair.dtype_reason) == "as given"
    list(stream(pair, [1, 2, 3], GREEDY))
    assert target.training and target.dtype == torch.bfloat16
    assert all(torch.equal(weights, before[name]) for name, weights in target.state_dict().items())


def test_small_models_are_tried_with_one_thread():
    """With more it takes ten times as long on a busy machine."""
    target, drafter, before, seen = tiny(**SHAPE), shorter(tiny(**SHAPE)), torch.get_num_threads(), []
    for model in (target, drafter):
        model.register_forward_pre_hook(lambda *_: seen.append(torch.get_num_threads()))
    torch.set_num_threads(3)
    try:
        load_pair(target=target, drafter=drafter)
        assert set(seen) == {1} and torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_a_target_in_memory_takes_a_drafter_from_a_directory(saved, unquantised):
    target = tiny(**SHAPE)
    pair = load_pair(target=target, drafter=saved / "drafter", tokenizer=tokenizer())
    assert pair.target is target and pair.info.drafter == str(saved / "drafter")
    assert trace_of(pair).output_ids == trace_of(unquantised).output_ids
    assert "no directory" in rejected(target=target, drafter="/nowhere/at/all")
    by_role = {"target": tokenizer(), "drafter": tokenizer()}
    said = rejected(target=target, drafter=saved / "drafter", tokenizer=by_role)
    assert said.startswith("tokenizer must be the target's alone")


def test_a_drafter_is_attached_to_a_target_that_was_cast_after_a_run(saved):
    target = tiny(**SHAPE)
    pair = load_pair(target=target, tokenizer=tokenizer())
    trace_of(pair, draft_with="none", max_new_tokens=3)
    target.bfloat16()
    pair.attach(saved / "drafter")
    assert trace_of(pair, max_new_tokens=3).pair.dtype == ByModel("bfloat16", "bfloat16")


def tied(model):
    model.lm_head.weight = model.get_input_embeddings().weight


def another_layer(model):
    model.model.layers[0] = tiny(seed=5, **SHAPE).model.layers[0]


CHANGES = {  # what the owner of models in memory can do to one between two runs
    "larger": ("target", lambda model: model.resize_token_embeddings(320, mean_resizing=False)),
    "smaller": ("drafter", lambda model: model.resize_token_embeddings(280)),
    "tied": ("drafter", tied),
    "another layer": ("target", another_layer),
    "float64": ("target", lambda model: model.double()),
}


@pytest.mark.slow
def test_models_in_memory_are_read_anew_when_a_run_begins():
    target = tiny(**SHAPE)
    models = {"target": target, "drafter": shorter(target)}
    pair = load_pair(**models, tokenizer=tokenizer())
    params, prompt = replace(GREEDY, repetition_penalty=1.1), [5, 17, 200, 88]
    target.generation_config.repetition_penalty = 1.1
    for what, (role, change) in {"nothing": ("target", lambda model: None), **CHANGES}.items():
        change(models[role])
        for draft_with in ("model", "early-exit"):
            how = replace(params, draft_with=draft_with, exit_layer=1)
            trace = generate(pair, prompt, how, measure=False)
            assert trace.output_ids == greedy(target, prompt, 20) and trace.stats.drafted, what
            assert trace.pair.dtype == ByModel(*(dtype_name(models[one].dtype) for one in ROLES))
    assert pair.vocab_size == pair.known_ids == 320
    with pytest.raises(ValueError, match="from 0 to 319, not 320"):
        stream(pair, [5, 320])


def test_models_in_memory_are_tried_again_when_they_have_changed():
    """What load_pair would refuse, the next run refuses; and a model that is whole again runs."""
    target = tiny(**SHAPE)
    pair = load_pair(target=target, drafter=shorter(target))
    whole = generate(pair, [5, 17], GREEDY).output_ids
    head, ahead = target.lm_head, shorter(target).lm_head
    target.lm_head = ahead
    ahead.register_forward_hook(lambda module, given, logits: logits + given[0].shape[1] * logits.abs().max())
    with pytest.raises(PairError, match="^target .* cannot be used: its predictions with a cache differ"):
        stream(pair, [5, 17])
    target.lm_head = head
    assert generate(pair, [5, 17], GREEDY).output_ids == whole
    target.to("meta")
    with pytest.raises(PairError, match="^device must be cpu or cuda, and target .* is on meta$"):
        stream(pair, [5, 17])


def test_a_drafter_with_another_tokenizer_is_read_anew_too():
    """Its model, and both tokenizers."""
    ours, theirs = tokenizer(), tokenizer(sentences=["a wholly different text"] * 5)
    target, drafter = tiny(vocab_size=294), tiny("gpt2", vocab_size=320)
    pair = load_pair(target=target, drafter=drafter, tokenizer={"target": ours, "drafter": theirs})
    before = trace_of(pair, max_new_tokens=5)
    drafter.resize_token_embeddings(200)
    target.resize_token_embeddings(304, mean_resizing=False)
    for words in (ours, theirs):
        words.add_tokens(["the cat"])
    trace = trace_of(pair, temperature=0.8, seed=1, repetition_penalty=1.1)
    assert trace.stats.drafted and trace.prompt_ids[0] == 294 != before.prompt_ids[0]
    assert max(theirs for _, theirs in pair.other_tokenizer.shared) < 200
    drafter.resize_token_embeddings(320)
    assert trace_of(pair).stats.drafted
    assert (294, len(theirs) - 1) in pair.other_tokenizer.shared


@pytest.mark.slow
def test_a_head_whose_target_has_another_vocabulary_now(tmp_path):
    target = tiny(**SHAPE)
    pair = load_pair(target=target, drafter=save_head(tiny_head(target), tmp_path))
    assert generate(pair, [5, 17], GREEDY).stats.drafted
    target.resize_token_embeddings(320, mean_resizing=False)
    with pytest.raises(PairError, match="made for a vocabulary of 304 tokens, and the target's has 320$"):
        stream(pair, [5, 17])
    pair.detach()
    assert generate(pair, [5, 319], replace(GREEDY, draft_with="none")).stats.tokens == 20


def test_a_templates_error_is_cut(unquantised, monkeypatch):
    template = "{{ raise_exception('x' * 500000) }}"
    monkeypatch.setattr(unquantised.tokenizer, "chat_template", template, raising=False)
    with pytest.raises(ValueError, match="chat template says: xxx") as refused:
        stream(unquantised, "Once", Params(chat=True))
    assert len(str(refused.value)) < 500
    with pytest.raises(RuntimeError, match="y") as failed, no_mistakes():
        raise ValueError("y" * 500_000)
    assert len(str(failure(failed.value))) < 500


# What a request can get wrong


def test_wrong_requests_with_models_in_memory(saved):
    model, directory, linear = tiny(**SHAPE), saved / "target", torch.nn.Linear(2, 2)
    options = {"device": "cpu", "dtype": "float32", "quantize": "none", "tokenizer": tokenizer()}
    wrong = [
        (dict(name="embedded", target=model), "pair: give a name or a target and drafter"),
        (dict(name="embedded", drafter=model), "pair: give a name or a target and drafter"),
        (dict(drafter=model), "target must be given"),
        *((dict(target=model, drafter=one), "drafter must be ") for one in (5, ["x"], linear)),
        *((dict(target=directory, drafter=one), "drafter must be ") for one in (model, 5, ["x"])),
        *((dict(target=one), "target must be ") for one in (5, ["x"], linear)),
        (dict(target=model, tokenizer="gpt2"), "tokenizer must be "),
        (dict(target=directory, tokenizer=options.pop("tokenizer")), "tokenizer must be left out"),
        *((dict(target=model, **{name: one}), f"{name} must be left out") for name, one in options.items()),
    ]
    for request, words in wrong:
        assert rejected(**request).startswith(words)
    model.model.layers[0].self_attn.k_proj.weight.data[1] = float("inf")
    assert "k_proj.weight holds values that are not finite" in rejected(target=model, kind=LoadError)


@pytest.mark.parametrize("role", ROLES)
def test_a_model_in_memory_on_another_kind_of_device_is_refused(role):
    """As mps and xpu are; the meta device stands in for them."""
    models = {"target": tiny(**SHAPE), "drafter": tiny(**SHAPE)}
    models[role].to("meta")
    said = rejected(**models)
    assert said.startswith(f"device must be cpu or cuda, and {role} ") and said.endswith(" is on meta")
    assert rejected(device="mps") == "device must be cpu, cuda or cuda:N, not 'mps'"


CLASSIFIERS = (AutoModelForSequenceClassification, AutoModelForTokenClassification)


@pytest.mark.parametrize("role", ROLES)
def test_models_without_a_head_for_language(saved, broken, role):
    """In memory and in a directory. A classifier could take its embeddings for a head."""
    config = tiny(**SHAPE).config
    config_of_tied = tiny(**SHAPE, tie_word_embeddings=True).config
    for model in (LlamaModel(config), *(made.from_config(config_of_tied) for made in CLASSIFIERS)):
        kind, path = type(model).__name__, broken(model.save_pretrained, type(model).__name__)
        said = rejected(**{"target": tiny(**SHAPE)} | {role: model.eval()})
        assert said.startswith(f"{role} {kind} ({kind}) cannot be used: it has no output layer")
        said = rejected(**{"target": saved / "target"} | {role: path})
        assert said.startswith(f"{role}") and str(path) in said and kind in said
        assert said.endswith("predicts no next token: give a causal language model")
    base = broken(LlamaModel(config_of_tied).save_pretrained, "its embeddings are its head")
    assert trace_of(load_pair(target=base), draft_with="none").stats.tokens


def test_a_class_that_does_not_generate_is_no_target():
    class OfTarget(LlamaPreTrainedModel):
        def __init__(self, config):
            super().__init__(config)
            self.model, self.lm_head = LlamaModel(config), torch.nn.Linear(64, 304)

        def forward(self, input_ids=None, past_key_values=None, **options):
            states = self.model(input_ids, past_key_values=past_key_values, **options)[0]
            return CausalLMOutput(logits=self.lm_head(states))

    said = rejected(target=OfTarget(tiny(**SHAPE).config).eval())
    assert said.endswith("it has no generation_config, which classes have that inherit GenerationMixin")


# What a directory can get wrong


def test_directories_without_a_model(saved, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    for path, role in zip(("missing", "empty", "file", "a/b/c"), 2 * ROLES, strict=True):
        message = rejected(**{"target": saved / "target", role: tmp_path / path})
        assert role in message and str(tmp_path / path) in message
    assert "config.json" in rejected(target=tmp_path / "empty")


def test_what_is_no_checkpoint_is_named_for_what_it_is(broken, tmp_path):
    beside = broken(lambda path: (path / "model.safetensors").rename(path / "small-Q4_K_M.gguf"))
    said = rejected(target=beside, kind=LoadError)
    assert "has weights in the format GGUF (small-Q4_K_M.gguf), which is not loaded" in said
    for place in ("owner/name/x.gguf", str(tmp_path / "small.gguf")):
        assert f"{place} is a file in the format GGUF, which is not loaded" in rejected(target=place)


def test_no_permission(saved, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    said = rejected(target=saved / "target")
    assert said == f"target: the directory {saved / 'target'} cannot be read: permission denied"


def config_with(**changes):
    return lambda path: change_config(path, **changes)


def cut(name):
    return lambda path: cut_in_half(path / name)


def without(pattern):
    return lambda path: [file.unlink() for file in path.glob(pattern)]


def written(name, content):
    return lambda path: (path / name).write_bytes(content)


def tensors_with(change):
    return lambda path: change_tensors(path, change)


def not_finite(tensors):
    tensors[UP][3, 4] = torch.nan


def scaled(dtype, name="weight_scale", method=None):
    """The weights of linear layers become numbers of this dtype, each with a scale beside it that a program
    has to know of; no scale for None, and for another dtype than 8 bits nothing else."""

    def change(tensors):
        for weight in [one for one in tensors if one.endswith("_proj.weight")]:
            scale = tensors[weight].abs().max() / (448 if dtype.is_floating_point else 127)
            if dtype.itemsize == 1:
                tensors[weight] = (tensors[weight] / scale).to(dtype)
            if name is not None:
                tensors[weight.removesuffix("weight") + name] = scale

    def change_all(path):
        change_tensors(path, change)
        if method is not None:
            change_config(path, quantization_config={"quant_method": method})

    return change_all


FLOAT8 = torch.float8_e4m3fn
NO_METHOD = "its config.json names no method to scale it by that this version of transformers knows"
UP = "model.layers.1.mlp.up_proj.weight"
# What was done to it, and words that the message must hold.
BROKEN = {
    "a method that is not known": (scaled(FLOAT8, method="modelopt"), "knows, not 'modelopt'"),
    "a method that is no word": (scaled(FLOAT8, method=["fp8"]), "quant_method must be one that"),
    "weights of no method": (config_with(quantization_config={"bits": 8}), "knows, not None"),
    "scaled weights": (scaled(FLOAT8), NO_METHOD),
    "scaled weights in integers": (scaled(torch.int8, "scale_weight"), NO_METHOD),
    "weights of few bits": (scaled(torch.float8_e5m2, None), NO_METHOD),
    "scales that nothing multiplies": (
        scaled(torch.float32),
        "mlp.down_proj.weight_scale scales weights, and",
    ),
    "a known method's scales by another name": (scaled(FLOAT8, method="fp8"), "weight_scale"),
    "a config that is cut off": (cut("config.json"), "config"),
    "a config that is a list": (written("config.json", b"[]"), "config"),
    "a config that is no text": (written("config.json", b"\xff\xfe\x00"), "config"),
    "a config that says nothing": (written("config.json", b"{}"), "model_type"),
    "a config of wrong types": (config_with(hidden_size="many"), "hidden_size"),
    "a config of other shapes": (config_with(intermediate_size=128), "shape"),
    "a config of more layers": (config_with(num_hidden_layers=3), "lacks 9 weights"),
    "a config beyond all memory": (config_with(vocab_size=10**10), "GB"),
    "a config of very many layers": (config_with(num_hidden_layers=10**5), "must be at most 500, not 100000"),
    "weights that are not whole": (
        tensors_with(lambda tensors: tensors.pop(UP)),
        f"lacks 1 weights, first {UP}",
    ),
    "weights that are not numbers": (tensors_with(not_finite), f"{UP} holds values that are not finite"),
    "weights that are cut off": (cut("model.safetensors"), "its safetensors file is broken"),
    "weights that are empty": (written("model.safetensors", b""), "its safetensors file is broken"),
    "no weights": (without("*.safetensors"), "model.safetensors"),
    "no tokenizer": (without("tok*"), "tokenizer"),
    "a tokenizer that is cut off": (cut("tokenizer.json"), "tokenizer"),
    "a tokenizer that says nothing": (written("tokenizer.json", b"{}"), "tokenizer"),
    "a tokenizer config that is cut off": (cut("tokenizer_config.json"), "tokenizer"),
    "an unknown architecture": (config_with(model_type="nonsense"), "nonsense"),
    "a model that writes no text": (written("config.json", b'{"model_type": "vit"}'), "vit"),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", BROKEN)
def test_broken_directories(saved, broken, what):
    role = ROLES[list(BROKEN).index(what) % 2]
    change, words = BROKEN[what]
    path = broken(change)
    message = rejected(**{"target": saved / "target", role: path}, kind=LoadError)
    assert message.startswith(role) and str(path) in message
    assert words in message.replace(str(path), "")


TOO_DEEP = {  # what a config says, and how its sentence begins
    "num_local_experts must be at most 20,000, not 1000000": {"text_config": {"num_local_experts": 10**6}},
    "num_blocks must be at most 500, not 20000": {"num_hidden_layers": None, "num_blocks": 20_000},
    "hybrid_override_pattern must have a length of at most 500": {"hybrid_override_pattern": "M" * 10**5},
    "layers_block_type must have a length of at most 500": {"layers_block_type": ["moe"] * 20_000},
    "attention_types must be at most 500, not 1000000000": {"attention_types": [[["global"], 10**9]]},
}


def test_configs_that_would_take_minutes_are_refused_and_the_usual_ones_are_not():
    for words, config in TOO_DEEP.items():
        with pytest.raises(ValueError, match=f"^{words}"):
            check_depth(config)
    configs = []
    for name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        with suppress(Exception):  # some cannot be made without arguments
            configs.append(CONFIG_MAPPING[name]().to_json_string(use_diff=False))
    for config in configs:
        check_depth(json.loads(config))
    assert len(configs) > 100


def test_scales_of_a_method_that_is_known_are_used(saved, broken):
    """Those of activations, keys and values may be left out: they are not quantised here."""

    def rename(tensors):
        for name in [name for name in tensors if name.endswith("weight_scale")]:
            rows, columns = (-(-size // 128) for size in tensors[name.removesuffix("_scale")].shape)
            tensors[f"{name}_inv"] = torch.full((rows, columns), tensors[name])
            tensors[name.replace("weight_scale", "input_scale")] = tensors.pop(name)
        tensors["model.layers.0.self_attn.k_proj.k_scale"] = torch.ones(1)

    def change(path):
        scaled(FLOAT8)(path)
        change_tensors(path, rename)
        change_config(path, quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]})

    loaded, plain = load_pair(target=broken(change)), load_file(saved / "target" / "model.safetensors")
    torch.testing.assert_close(loaded.target.get_parameter(UP), plain[UP], atol=0.05, rtol=0.1)
    assert [note.split(" were")[0] for note in loaded.limits] == [
        "the target's weights, which are stored by fp8,"
    ]


def test_a_method_whose_package_is_not_installed_is_refused_before_the_weights_are_read(broken, monkeypatch):
    monkeypatch.setattr(quantised, "find_spec", lambda module: None)
    flags = {"bitsandbytes": {"load_in_4bit": True}}
    for method, packages in quantised.NEEDED.items():
        given = {"quant_method": method} | flags.get(method, {})
        path = broken(config_with(quantization_config=given), method)
        (path / "model.safetensors").unlink()
        said = rejected(target=path, kind=LoadError)
        names = " ".join(packages.values())
        assert said.endswith(
            f"its weights are quantised by {method}, for which pip install {names} is needed"
        )


def test_a_tokenizers_own_program_does_not_run_by_itself(broken, tmp_path, monkeypatch):
    """Nor is there an environment variable or an answer on the terminal that would run it."""
    ran = tmp_path / "ran"

    def change(path):
        (path / "own.py").write_text(f"open({str(ran)!r}, 'w')\nfrom transformers import *\n")
        file = path / "tokenizer_config.json"
        own = {"auto_map": {"AutoTokenizer": ["own.Own", "own.Own"]}, "tokenizer_class": "Own"}
        file.write_text(json.dumps(json.loads(file.read_text()) | own))

    monkeypatch.setattr("builtins.input", lambda *_: "y")
    assert "trust-remote-code" in rejected(target=broken(change), kind=LoadError) and not ran.exists()


UNFIT = {  # the model's type, what its config needs besides, and what is wrong with it
    "a state that cannot be put back": ("rwkv", dict(attention_hidden_size=32), "none can be put back"),
    "a BERT that is no decoder": ("bert", dict(num_attention_heads=4), "differ from those without one"),
    "a Gemma that embeds texts": (
        "gemma3_text",
        dict(num_attention_heads=4, num_key_value_heads=2, head_dim=8, use_bidirectional_attention=True),
        "cannot be used",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", UNFIT)
def test_models_that_would_judge_drafts_wrongly(saved, broken, what):
    """They would run, but without a state that can be put back, or by the tokens after a draft."""
    model_type, more, words = UNFIT[what]
    shape = dict(vocab_size=304, hidden_size=32, intermediate_size=32, num_hidden_layers=2)
    config = AutoConfig.for_model(model_type, **shape, **more)
    model = random_weights(AutoModelForCausalLM.from_config(config))
    path = broken(model.save_pretrained)
    for request in (dict(target=path), dict(target=saved / "target", drafter=path)):
        message = rejected(**request)
        assert str(path) in message and type(model).__name__ in message and words in message
