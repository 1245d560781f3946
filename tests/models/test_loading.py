"""Loading pairs from directories and from memory."""

import shutil
from dataclasses import replace

import pytest
import torch
from optimum.quanto import freeze, library, qfloat8, qint4, quantize
from optimum.quanto.nn import QModuleMixin
from optimum.quanto.tensor import QBitsTensor, QBytesTensor
from optimum.quanto.tensor.weights.tinygemm import TinyGemmWeightQBitsTensor
from safetensors.torch import load_file
from transformers import LlamaModel
from transformers.models.gemma2.modeling_gemma2 import Gemma2PreTrainedModel

from specdemo import PairError, Params, generate, load_pair, stream
from specdemo.events import ByModel
from specdemo.loading.load import plan
from specdemo.loading.read import read_model
from specdemo.loading.request import Part, dtype_name, resolve
from specdemo.runtime.linear import CACHE_LINE
from specdemo.runtime.runner import has_hooks
from specdemo.runtime.weights import held_bytes, weights_address
from tests.checkpoints import change_config, change_tensors, saved_in
from tests.heads import save_head, tiny_head
from tests.tiny import WIDE, greedy, shorter, tiny, tokenizer

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
    alone = load_pair(target=saved / "target")
    assert alone.drafter is None and alone.info.drafter is None and alone.bytes_held.drafter is None
    assert trace_of(alone, draft_with="lookup").output_ids == trace.output_ids
    with pytest.raises(ValueError, match="^draft_with "):
        stream(alone, PROMPT, GREEDY)


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


def test_tokenizers_that_differ_by_ids_at_the_end_only_are_one(saved, broken):
    longer = broken(lambda path: tokenizer(extra=4).save_pretrained(path))
    for target, drafter in ((saved / "target", longer), (longer, saved / "drafter")):
        pair = load_pair(target=target, drafter=drafter)
        assert pair.other_tokenizer is None and trace_of(pair).stats.drafted


# Quantised weights


def test_weights_are_quantised_on_their_device(saved, monkeypatch):
    """The meta device stands for a GPU: what is loaded onto it was never on the CPU as a whole."""
    quantised_on = set()

    def freeze(layer, freeze=QModuleMixin.freeze):
        quantised_on.add(layer.weight.device.type)
        freeze(layer)

    monkeypatch.setattr(QModuleMixin, "freeze", freeze)
    target = str(saved / "target")
    part = Part("target", target, target, device="meta", dtype=None, quantize="int8")
    model = read_model(part, torch.bfloat16)
    assert quantised_on == {"meta"} == {model.device.type} and not has_hooks(model)


@pytest.fixture
def never_dequantised(monkeypatch):
    """On CUDA, optimum-quanto compiles code for minutes when it writes out a weight of less than 8 bits."""

    def refuse(weight):
        raise AssertionError("a weight was dequantised")

    for kind in (TinyGemmWeightQBitsTensor, QBitsTensor, QBytesTensor):
        monkeypatch.setattr(kind, "dequantize", refuse)


@pytest.mark.parametrize("kind", [qint4, qfloat8], ids=str)
def test_quantised_weights_are_looked_at_as_they_are_stored(never_dequantised, kind):
    model = tiny(**WIDE).bfloat16()
    quantize(model, weights=kind, exclude="lm_head")
    freeze(model)
    assert held_bytes(model) and weights_address(model)


@pytest.mark.parametrize("kind", ["int4", "int2"])
def test_packed_weights_are_unpacked_on_a_cpu_without_a_compiler(tmp_path, monkeypatch, kind):
    def compile_it(**_):
        raise AssertionError("optimum-quanto compiled code")

    monkeypatch.setattr(library.extensions.extension, "load", compile_it)
    monkeypatch.setattr(library.extensions.get_extension("quanto_cpp"), "_lib", None)
    saved_in(tmp_path, tiny(**WIDE))
    how = dict(target=tmp_path, drafter=tmp_path, device="cpu", quantize=kind)
    pair = load_pair(**how)
    assert plan(resolve(**how)).sizes == (pair.bytes_held.target, pair.bytes_held.drafter)
    assert pair.target.model.layers[1].mlp.up_proj.weight.qtype.name == f"q{kind}"
    bits, packed = int(kind[-1]), torch.arange(256, dtype=torch.uint8)
    each = [[number >> shift & 2**bits - 1 for number in range(256)] for shift in range(0, 8, bits)]
    assert torch.ops.quanto.unpack(packed, bits).tolist() == sum(each, [])
    assert trace_of(pair).stats.tokens


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


def test_a_target_in_memory_takes_a_drafter_from_a_directory(saved, unquantised):
    target = tiny(**SHAPE)
    pair = load_pair(target=target, drafter=saved / "drafter", tokenizer=tokenizer())
    assert pair.target is target and pair.info.drafter == str(saved / "drafter")
    assert trace_of(pair).output_ids == trace_of(unquantised).output_ids
    target.bfloat16()  # after a run
    pair.attach(saved / "drafter")
    assert trace_of(pair, max_new_tokens=3).pair.dtype == ByModel("bfloat16", "bfloat16")


CHANGES = {  # what the owner of models in memory can do to one between two runs
    "larger": ("target", lambda model: model.resize_token_embeddings(320, mean_resizing=False)),
    "smaller": ("drafter", lambda model: model.resize_token_embeddings(280)),
    "float64": ("target", lambda model: model.double()),
}


@pytest.mark.slow
def test_models_in_memory_are_read_anew_when_a_run_begins():
    target = tiny(**SHAPE)
    models = {"target": target, "drafter": shorter(target)}
    pair = load_pair(**models, tokenizer=tokenizer())
    how, prompt = replace(GREEDY, repetition_penalty=1.1), [5, 17, 200, 88]
    target.generation_config.repetition_penalty = 1.1
    for what, (role, change) in CHANGES.items():
        change(models[role])
        trace = generate(pair, prompt, how, measure=False)
        assert trace.output_ids == greedy(target, prompt, 20) and trace.stats.drafted, what
        assert trace.pair.dtype == ByModel(*(dtype_name(models[one].dtype) for one in ROLES))
    assert pair.vocab_size == pair.known_ids == 320
    with pytest.raises(ValueError, match="^prompt .*319, not 320"):
        stream(pair, [5, 320])


def test_models_in_memory_are_tried_again_when_they_have_changed(tmp_path):
    """What load_pair would refuse, the next run refuses; and a model that is whole again runs."""
    target = tiny(**SHAPE)
    pair = load_pair(target=target, drafter=shorter(target))
    whole = generate(pair, [5, 17], GREEDY).output_ids
    head, ahead = target.lm_head, shorter(target).lm_head
    target.lm_head = ahead
    ahead.register_forward_hook(lambda module, given, logits: logits + given[0].shape[1] * logits.abs().max())
    with pytest.raises(PairError, match="^target "):
        stream(pair, [5, 17])
    target.lm_head = head
    assert generate(pair, [5, 17], GREEDY).output_ids == whole
    pair = load_pair(target=target, drafter=save_head(tiny_head(target), tmp_path))
    target.resize_token_embeddings(320, mean_resizing=False)
    with pytest.raises(PairError, match="^drafter .*304.*320"):
        stream(pair, [5, 17])
    target.to("meta")
    with pytest.raises(PairError, match="^device .*target .*meta$"):
        stream(pair, [5, 17])


def test_a_drafter_with_another_tokenizer_is_read_anew_too():
    """Its model, and both tokenizers."""
    ours, theirs = tokenizer(), tokenizer(sentences=["a wholly different text"] * 5)
    target, drafter = tiny(vocab_size=294), tiny("gpt2", vocab_size=320)
    pair = load_pair(target=target, drafter=drafter, tokenizer={"target": ours, "drafter": theirs})
    drafter.resize_token_embeddings(200)
    target.resize_token_embeddings(304, mean_resizing=False)
    for words in (ours, theirs):
        words.add_tokens(["the cat"])
    trace = trace_of(pair, temperature=0.8, seed=1, repetition_penalty=1.1)
    assert trace.stats.drafted and trace.prompt_ids[0] == 294
    assert max(pair.other_tokenizer.shared.values()) < 200
    drafter.resize_token_embeddings(320)
    assert trace_of(pair).stats.drafted
    assert pair.other_tokenizer.shared[294] == len(theirs) - 1


def test_scales_of_a_method_that_is_known_are_used(saved, broken):
    """Those of activations, keys and values may be left out: they are not quantised here."""

    def rescale(tensors):
        for name in [name for name in tensors if name.endswith("_proj.weight")]:
            scale = tensors[name].abs().max() / 448
            tensors[name] = (tensors[name] / scale).to(torch.float8_e4m3fn)
            rows, columns = (-(-size // 128) for size in tensors[name].shape)
            tensors[f"{name}_scale_inv"] = torch.full((rows, columns), scale)
            tensors[name.replace("weight", "input_scale")] = scale
        tensors["model.layers.0.self_attn.k_proj.k_scale"] = torch.ones(1)

    def change(path):
        change_tensors(path, rescale)
        change_config(path, quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]})

    loaded, plain = load_pair(target=broken(change)), load_file(saved / "target" / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    torch.testing.assert_close(loaded.target.get_parameter(name), plain[name], atol=0.05, rtol=0.1)
    assert [(note.key, note.values["name"]) for note in loaded.limits] == [("written_out", "fp8")]


def test_a_model_whose_embeddings_are_its_head_is_whole_without_one(broken):
    config = tiny(**SHAPE, tie_word_embeddings=True).config
    base = broken(LlamaModel(config).save_pretrained)
    assert trace_of(load_pair(target=base), draft_with="none").stats.tokens
