"""Loading pairs from directories and from a hub, and everything that can be wrong with them."""

import functools
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from optimum.quanto.nn import QModuleMixin
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    Gemma3ForCausalLM,
    Gemma3ForConditionalGeneration,
    LlamaModel,
    LlamaPreTrainedModel,
)
from transformers.modeling_outputs import CausalLMOutput
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.models.gemma2.modeling_gemma2 import Gemma2PreTrainedModel

from specdemo import PairError, Params, generate, load_pair, stream
from specdemo.bench.shapes import shaped_pair
from specdemo.errors import LoadError, failure, no_mistakes
from specdemo.events import ByModel
from specdemo.loading.load import _load, load_planned, plan
from specdemo.loading.plan import check_depth
from specdemo.loading.request import Part, dtype_name, resolve
from specdemo.runtime.linear import CACHE_LINE
from specdemo.runtime.runner import has_hooks
from tests.heads import save_head, tiny_head
from tests.sentences import assert_one_sentence
from tests.tiny import greedy, random_weights, shorter, tiny, tokenizer

SECRET = "hf_nobodys-token"
SHAPE = dict(
    vocab_size=304, hidden_size=64, intermediate_size=256
)  # 4 ids of padding; large enough for int4's groups of weights
PROMPT = "the cat sat"
GREEDY = Params(temperature=0, max_new_tokens=20)
ROLES = ("target", "drafter")
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    """Directories of a target, a drafter of half its layers, and another that must never be written to."""
    root = tmp_path_factory.mktemp("pairs")
    target = tiny(**SHAPE)
    for name, model in (("target", target), ("drafter", shorter(target))):
        model.save_pretrained(root / name)
        tokenizer().save_pretrained(root / name)
    return root


@pytest.fixture(scope="module")
def unquantised(saved):
    return load_pair(target=saved / "target", drafter=saved / "drafter")


def test_a_drafter_is_attached_to_a_target_that_was_cast_after_a_run(saved):
    target = tiny(**SHAPE)
    pair = load_pair(target=target, tokenizer=tokenizer())
    list(stream(pair, PROMPT, Params(draft_with="none", max_new_tokens=3)))
    target.bfloat16()
    pair.attach(saved / "drafter")
    run = stream(pair, PROMPT, Params(max_new_tokens=3))
    list(run)
    assert (run.trace.pair.dtype.target, run.trace.pair.dtype.drafter) == ("bfloat16", "bfloat16")


def test_weights_of_small_models_begin_with_a_cache_line(unquantised):
    for model in (unquantised.target, unquantised.drafter):
        assert not [name for name, weight in model.named_parameters() if weight.data_ptr() % CACHE_LINE]


@pytest.fixture
def broken(saved, tmp_path):
    """Makes a copy of the target's directory and breaks it with a function."""

    def make(change, name="broken"):
        shutil.copytree(saved / "target", tmp_path / name)
        change(tmp_path / name)
        return tmp_path / name

    return make


@pytest.fixture(autouse=True)
def secret(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", SECRET)


def rejected(*args, kind=PairError, **request) -> str:
    """The message of the refusal, which must be one sentence that a person can read."""
    with pytest.raises(PairError) as error:
        load_pair(*args, **request)
    message = str(error.value)
    assert type(error.value) in (kind if isinstance(kind, tuple) else (kind,)), message
    assert SECRET not in message
    assert_one_sentence(message)
    return message


def text_of(pair, **params):
    run = stream(pair, PROMPT, Params(temperature=0, max_new_tokens=20, **params))
    list(run)
    return run.trace


# What works


def test_a_pair_from_two_directories(saved):
    pair = load_pair(target=saved / "target", drafter=str(saved / "drafter"))
    assert pair.info.target == str(saved / "target") and pair.info.drafter == str(saved / "drafter")
    assert pair.info.device == "cpu" and pair.info.dtype.target == pair.info.dtype.drafter == "float32"
    assert pair.info.quantize.target is None and pair.info.quantize.drafter is None
    assert pair.dtype_reason.startswith("float32: ")
    assert pair.bytes_held.target == 4 * sum(
        weights.numel() for weights in pair.target.parameters()
    ) + buffers(pair.target)
    assert pair.bytes_held.drafter < pair.bytes_held.target

    trace = text_of(pair)
    ids = tokenizer()(PROMPT).input_ids
    assert trace.output_ids == greedy(pair.target, ids, 20)[: len(trace.output_ids)]
    assert trace.finish in ("length", "eos") and trace.stats.drafted


def buffers(model):
    return sum(
        4 * buffer.numel() for buffer in {buffer.data_ptr(): buffer for buffer in model.buffers()}.values()
    )


def test_a_target_alone(saved):
    pair = load_pair(target=saved / "target")
    assert pair.drafter is None and pair.info.drafter is None and pair.bytes_held.drafter is None
    assert text_of(pair, draft_with="lookup").output_ids == text_of(pair, draft_with="none").output_ids
    with pytest.raises(ValueError, match='^draft_with must not be "model"') as error:
        stream(pair, PROMPT, GREEDY)
    assert_one_sentence(str(error.value))


def test_the_text_model_of_gemma_3_is_loaded_without_its_part_for_pictures(tmp_path):
    """As google/gemma-3-4b-pt is on the hub: its config names a text model and one for pictures."""
    sizes = dict(hidden_size=32, intermediate_size=64, num_attention_heads=4)
    text = dict(sizes, vocab_size=304, num_hidden_layers=6, num_key_value_heads=2, head_dim=8)
    text |= dict(model_type="gemma3_text", sliding_window=16, query_pre_attn_scalar=8)
    pictures = dict(sizes, num_hidden_layers=1, image_size=28, patch_size=14)
    config = AutoConfig.for_model("gemma3", text_config=text, vision_config=pictures, mm_tokens_per_image=4)
    whole = random_weights(AutoModelForCausalLM.from_config(config)).eval()
    assert type(whole) is Gemma3ForConditionalGeneration
    whole.save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    pair = load_pair(target=tmp_path)
    assert type(pair.target) is Gemma3ForCausalLM and not pair.notes
    assert sum(p.numel() for p in pair.target.parameters()) < sum(p.numel() for p in whole.parameters())
    with torch.no_grad():
        ids = torch.arange(40)[None]
        torch.testing.assert_close(pair.target(ids).logits, whole(ids).logits, rtol=1e-5, atol=1e-4)
    trace = text_of(pair, draft_with="lookup")
    ids = tokenizer()(PROMPT).input_ids
    assert trace.output_ids == greedy(whole, ids, 20)[: len(trace.output_ids)]


def test_a_cap_on_attention_scores_is_not_left_out(tmp_path, monkeypatch):
    """transformers before 5.21 chooses an attention for Gemma 2 that ignores it."""
    capped = tiny("gemma2", vocab_size=304)
    uncapped = tiny("gemma2", vocab_size=304, attn_logit_softcapping=None)
    capped.save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    monkeypatch.setattr(Gemma2PreTrainedModel, "_supports_sdpa", True)  # as before 5.21
    pair = load_pair(target=tmp_path, device="cpu", dtype="float32")
    with torch.no_grad():
        ids = torch.arange(40)[None]
        assert not torch.allclose(uncapped(ids).logits, capped(ids).logits, atol=0.01)
        torch.testing.assert_close(pair.target(ids).logits, capped(ids).logits)
    text_of(pair, draft_with="lookup")
    assert not pair.notes


def test_models_in_memory_are_left_as_they_are():
    target = tiny().to(torch.bfloat16)
    before = {name: weights.clone() for name, weights in target.state_dict().items()}
    target.train()
    pair = load_pair(target=target, drafter=target)
    assert (
        pair.target is target
        and pair.info.target == "LlamaForCausalLM"
        and pair.info.dtype.target == "bfloat16"
    )
    assert pair.dtype_reason == "as given"
    list(stream(pair, [1, 2, 3], GREEDY))
    assert target.training and target.dtype == torch.bfloat16
    assert all(torch.equal(weights, before[name]) for name, weights in target.state_dict().items())


@pytest.mark.parametrize("role", ROLES)
def test_a_model_in_memory_on_another_kind_of_device_is_refused(role):
    """As mps and xpu are; the meta device stands in for them."""
    models = {"target": tiny(**SHAPE), "drafter": tiny(**SHAPE)}
    models[role].to("meta")
    with pytest.raises(PairError, match=f"^device must be cpu or cuda, and {role} .* is on meta$") as error:
        load_pair(**models)
    assert_one_sentence(str(error.value))


def tied(model):
    model.lm_head.weight = model.get_input_embeddings().weight


def another_layer(model):
    last = len(model.model.layers) - 1
    model.model.layers[last] = tiny(seed=5, **SHAPE).model.layers[last]


CHANGES = {  # what the owner of models in memory can do to one between two runs
    "larger": lambda model: model.resize_token_embeddings(320, mean_resizing=False),
    "smaller": lambda model: model.resize_token_embeddings(280),
    "tied": tied,
    "another layer": another_layer,
    "float64": lambda model: model.double(),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("role", ROLES)
def test_a_model_in_memory_is_read_anew_when_a_run_begins(role, change):
    target = tiny(**SHAPE)
    models = {"target": target, "drafter": shorter(target)}
    pair = load_pair(**models, tokenizer=tokenizer())
    params, prompt = replace(GREEDY, repetition_penalty=1.1), [5, 17, 200, 88]
    target.generation_config.repetition_penalty = 1.1
    for _ in range(2):
        for draft_with in ("model", "early-exit"):
            trace = generate(pair, prompt, replace(params, draft_with=draft_with, exit_layer=1))
            assert trace.output_ids == greedy(target, prompt, 20) and trace.stats.drafted
            assert trace.pair.dtype == ByModel(*(dtype_name(models[one].dtype) for one in ROLES))
        CHANGES[change](models[role])
    width = models["target"].get_output_embeddings().weight.shape[0]
    assert pair.vocab_size == pair.known_ids == width
    with pytest.raises(ValueError, match=f"from 0 to {width - 1}, not {width}"):
        stream(pair, [5, width])


def test_a_trace_tells_the_dtype_that_a_model_has_now():
    target = tiny(**SHAPE)
    pair = load_pair(target=target, drafter=shorter(target))
    assert generate(pair, [5, 17], GREEDY).pair.dtype == ByModel("float32", "float32")
    target.half()
    trace = generate(pair, [5, 17], GREEDY)
    assert trace.pair.dtype == ByModel("float16", "float32") and trace.stats.drafted


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
    before = generate(pair, PROMPT, Params(max_new_tokens=5, seed=1))
    drafter.resize_token_embeddings(200)
    target.resize_token_embeddings(304, mean_resizing=False)
    for words in (ours, theirs):
        words.add_tokens(["the cat"])
    for temperature in (0, 0.8):
        how = Params(temperature=temperature, max_new_tokens=20, seed=1, repetition_penalty=1.1)
        trace = generate(pair, PROMPT, how)
        assert trace.stats.drafted and trace.prompt_ids[0] == 294 != before.prompt_ids[0]
    assert max(theirs for _, theirs in pair.other_tokenizer.shared) < 200
    drafter.resize_token_embeddings(320)
    assert generate(pair, PROMPT, GREEDY).stats.drafted
    assert (294, len(theirs) - 1) in pair.other_tokenizer.shared


def test_a_head_whose_target_has_another_vocabulary_now(tmp_path):
    target = tiny(**SHAPE)
    pair = load_pair(target=target, drafter=save_head(tiny_head(target), tmp_path))
    assert generate(pair, [5, 17], GREEDY).stats.drafted
    target.resize_token_embeddings(320, mean_resizing=False)
    with pytest.raises(PairError, match="made for a vocabulary of 304 tokens, and the target's has 320$"):
        stream(pair, [5, 17])
    pair.detach()
    assert generate(pair, [5, 319], replace(GREEDY, draft_with="none")).stats.tokens == 20


@pytest.mark.parametrize("device", ["mps", "xpu", "mps:0"])
def test_other_devices_than_cpu_and_cuda_are_refused(device):
    with pytest.raises(PairError, match=f"^device must be cpu, cuda or cuda:N, not '{device}'$"):
        load_pair(device=device)


def test_a_target_in_memory_takes_a_drafter_from_a_directory(saved):
    target = tiny(**SHAPE)
    pair = load_pair(target=target, drafter=saved / "drafter", tokenizer=tokenizer())
    both = load_pair(target=saved / "target", drafter=saved / "drafter")
    assert pair.target is target and pair.info.drafter == str(saved / "drafter")
    assert text_of(pair).output_ids == text_of(both).output_ids
    assert "no directory" in rejected(target=target, drafter="/nowhere/at/all")
    by_role = {"target": tokenizer(), "drafter": tokenizer()}
    said = rejected(target=target, drafter=saved / "drafter", tokenizer=by_role)
    assert said.startswith("tokenizer must be the target's alone")


def test_a_templates_error_is_cut(saved):
    pair = load_pair(target=saved / "target", drafter=saved / "drafter")
    pair.tokenizer.chat_template = "{{ raise_exception('x' * 500000) }}"
    with pytest.raises(ValueError, match="chat template says: xxx") as refused:
        stream(pair, "Once", Params(chat=True))
    assert len(str(refused.value)) < 500
    with pytest.raises(RuntimeError, match="y") as failed, no_mistakes():
        raise ValueError("y" * 500_000)
    assert len(failure(failed.value)) < 500


def test_a_dtype_for_both_models(saved):
    pair = load_pair(target=saved / "target", drafter=saved / "drafter", dtype="bfloat16")
    assert pair.info.dtype.target == pair.info.dtype.drafter == "bfloat16"
    assert pair.target.dtype == pair.drafter.dtype == torch.bfloat16
    assert len(text_of(pair).output_ids) > 3


def test_a_choice_for_each_model(saved):
    request = dict(target=saved / "target", drafter=saved / "drafter")
    plain = load_pair(**request).bytes_held
    pair = load_pair(
        **request,
        dtype={"target": "float32", "drafter": "bfloat16"},
        quantize={"target": "int8"},
        device={"target": "cpu", "drafter": None},
    )
    assert (pair.info.dtype.target, pair.info.dtype.drafter) == ("float32", "bfloat16")
    assert (pair.info.quantize.target, pair.info.quantize.drafter) == ("int8", None)
    assert pair.bytes_held.target < 0.6 * plain.target
    assert 0.45 * plain.drafter < pair.bytes_held.drafter < 0.55 * plain.drafter
    assert text_of(pair).stats.tokens > 3
    assert load_pair(**request, quantize={"target": "none", "drafter": "none"}).bytes_held == plain


@pytest.mark.slow
@pytest.mark.parametrize(
    ("quantize", "share"),
    [
        ("int8", 0.27),
        pytest.param("float8", 0.27, marks=pytest.mark.long),
        pytest.param("int4", 0.2, marks=pytest.mark.long),  # it compiles a kernel
        pytest.param("int2", 0.15, marks=pytest.mark.long),
    ],
)
def test_quantised_weights_are_smaller_and_still_write(saved, unquantised, quantize, share):
    request = dict(target=saved / "target", drafter=saved / "drafter")
    pair, plain = load_pair(**request, quantize=quantize), unquantised
    assert pair.info.quantize.target == pair.info.quantize.drafter == quantize
    linear = 4 * sum(weights.numel() for name, weights in plain.target.named_parameters() if "_proj" in name)
    rest = plain.bytes_held.target - linear  # embeddings, norms and the head stay as they are
    assert rest < pair.bytes_held.target < rest + share * linear
    trace = text_of(pair)
    assert trace.stats.tokens > 3 and trace.stats.drafted
    assert trace.output_ids == text_of(pair, draft_with="none").output_ids


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


@pytest.mark.parametrize("wanted", [False, True])
def test_the_attention_that_is_asked_for_reaches_every_kind_of_pair(saved, wanted):
    for pair in (
        load_pair(target=tiny(), cudnn_attention=wanted),
        load_pair(target=saved / "target", cudnn_attention=wanted),
        shaped_pair("tiny", "cpu", torch.float32, cudnn_attention=wanted)[0],
    ):
        assert pair.runner.cudnn_attention == pair.with_capture("off").runner.cudnn_attention == wanted


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


def test_tokenizers_that_differ_by_ids_at_the_end_only(saved, broken):
    longer = broken(lambda path: tokenizer(extra=4).save_pretrained(path))
    for target, drafter in ((saved / "target", longer), (longer, saved / "drafter")):
        assert text_of(load_pair(target=target, drafter=drafter)).stats.tokens > 3


# What a request can get wrong


def test_a_name_and_models_in_memory_do_not_mix():
    model = tiny()
    for request in (dict(target=model), dict(drafter=model)):
        assert "name" in rejected("embedded", **request)
    assert rejected(drafter=model).startswith("target must be given")


@pytest.mark.parametrize(
    ("option", "value"), [("device", "cpu"), ("dtype", "float32"), ("quantize", "int8"), ("quantize", "none")]
)
def test_models_in_memory_take_no_options(option, value):
    assert rejected(target=tiny(), **{option: value}).startswith(f"{option} must be left out")


def test_models_that_are_loaded_bring_their_tokenizer(saved):
    assert rejected(target=saved / "target", tokenizer=tokenizer()).startswith("tokenizer must be left out")


def test_things_that_are_no_models(saved):
    model, directory = tiny(), saved / "target"
    wrong = [dict(target=model, drafter=drafter) for drafter in (5, object(), ["x"])]
    wrong += [dict(target=directory, drafter=drafter) for drafter in (model, 5, object(), ["x"])]
    for request in wrong:
        assert rejected(**request).startswith("drafter must be ")
    for target in (5, object(), torch.nn.Linear(2, 2), ["x"]):
        assert rejected(target=target).startswith("target must be ")
    assert rejected(target=model, tokenizer="gpt2").startswith("tokenizer must be ")


HEADLESS = {
    "no head": lambda config: LlamaModel(config),
    "a head that classifies texts": AutoModelForSequenceClassification.from_config,
    "a head that classifies tokens": AutoModelForTokenClassification.from_config,
}


@pytest.mark.parametrize("make", HEADLESS.values(), ids=HEADLESS)
@pytest.mark.parametrize("role", ROLES)
def test_models_without_a_head_for_language(saved, broken, role, make):
    """In memory and in a directory. A classifier could take its embeddings for a head."""
    for tied in (False, True):
        model = make(tiny(**SHAPE, tie_word_embeddings=tied).config).eval()
        kind, path = type(model).__name__, broken(model.save_pretrained, f"{role}-{tied}")
        said = rejected(**{"target": tiny(**SHAPE)} | {role: model})
        assert said.startswith(f"{role} {kind} ({kind}) cannot be used: it has no output layer")
        if not tied or kind != "LlamaModel":
            said = rejected(**{"target": saved / "target"} | {role: path})
            assert said.startswith(f"{role}") and str(path) in said and kind in said
            assert said.endswith("predicts no next token: give a causal language model")
    base = load_pair(**{"target": saved / "target"} | {role: path}) if kind == "LlamaModel" else None
    assert base is None or text_of(base, draft_with="none").stats.tokens  # its embeddings are its head


def test_a_class_that_does_not_generate_is_no_target():
    class Own(LlamaPreTrainedModel):
        def __init__(self, config):
            super().__init__(config)
            self.model, self.lm_head = LlamaModel(config), torch.nn.Linear(64, 304)

        def forward(self, input_ids=None, past_key_values=None, **options):
            states = self.model(input_ids, past_key_values=past_key_values, **options)[0]
            return CausalLMOutput(logits=self.lm_head(states))

    said = rejected(target=Own(tiny(**SHAPE).config).eval())
    assert said.endswith("it has no generation_config, which classes have that inherit GenerationMixin")


# What a directory can get wrong


@pytest.mark.parametrize("role", ROLES)
def test_directories_without_a_model(saved, tmp_path, role):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    for path in ("missing", "empty", "file", "a/b/c"):
        message = rejected(**{"target": saved / "target", role: tmp_path / path})
        assert role in message and str(tmp_path / path) in message
    assert "config.json" in rejected(target=tmp_path / "empty")


MERGE = (
    "is a PEFT adapter (adapter_config.json), and adapters cannot be run yet: merge it into its base model"
)
OTHER_KINDS = {
    "adapter_config.json": MERGE,
    "small-Q4_K_M.gguf": "has weights in the format GGUF (small-Q4_K_M.gguf), which is not loaded",
}


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("file, words", OTHER_KINDS.items(), ids=OTHER_KINDS)
def test_what_is_no_checkpoint_is_named_for_what_it_is(saved, broken, tmp_path, file, words, role):
    """Alone, beside a config, and for GGUF by the file itself."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / file).write_text("{}")
    beside = broken(lambda path: (path / "model.safetensors").rename(path / file), name="beside")
    places = [tmp_path / "other", beside]
    places += [tmp_path / "other" / file, "owner/name/x.gguf"] if file.endswith(".gguf") else []
    for place in places:
        said = rejected(**{"target": saved / "target"} | {role: place}, kind=(PairError, LoadError))
        assert said.startswith(role) and str(place) in said
        assert words in said or "is a file in the format GGUF, which is not loaded: give a check" in said


@pytest.mark.parametrize("what", [".", "config.json", "model.safetensors", "tokenizer.json"])
def test_no_permission(broken, what):
    path = broken(lambda path: (path / what).chmod(0))
    if os.access(path / what, os.R_OK):
        pytest.skip("this user may read everything")
    try:
        message = rejected(target=path, kind=PairError if what == "." else LoadError)
        assert str(path) in message and "permission" in message.lower()
    finally:
        (path / what).chmod(0o755)


def config_with(**changes):
    def change(path):
        config = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps({**config, **changes}))

    return change


def cut_in_half(name):
    def change(path):
        whole = (path / name).read_bytes()
        (path / name).write_bytes(whole[: len(whole) // 2])

    return change


def without(pattern):
    def change(path):
        for file in path.glob(pattern):
            file.unlink()

    return change


def written(name, content):
    return lambda path: (path / name).write_bytes(content)


def not_finite(value):
    def change(path):
        weights = load_file(path / "model.safetensors")
        weights["model.layers.1.mlp.up_proj.weight"][3, 4] = value
        save_file(weights, path / "model.safetensors", metadata={"format": "pt"})

    return change


def scaled(dtype, name="weight_scale", method=None):
    """The weights of linear layers become numbers of this dtype, each with a scale beside it that a program
    has to know of; no scale for None, and for another dtype than 8 bits nothing else."""

    def change(path):
        tensors = load_file(path / "model.safetensors")
        for weight in [one for one in tensors if one.endswith("_proj.weight")]:
            scale = tensors[weight].abs().max() / (448 if dtype.is_floating_point else 127)
            if dtype.itemsize == 1:
                tensors[weight] = (tensors[weight] / scale).to(dtype)
            if name is not None:
                tensors[weight.removesuffix("weight") + name] = scale
        save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
        if method is not None:
            config_with(quantization_config={"quant_method": method})(path)

    return change


FLOAT8 = torch.float8_e4m3fn
NO_METHOD = "its config.json names no method to scale it by that this version of transformers knows"
# What was done to it, and words that the message must hold.
BROKEN = {
    "weights of a method that is not known": (
        scaled(FLOAT8, method="modelopt"),
        "quant_method must be one that this version of transformers knows, not 'modelopt'",
    ),
    "a method that is no word": (scaled(FLOAT8, method=["fp8"]), "quant_method must be one that"),
    "weights of no method": (
        config_with(quantization_config={"bits": 8}),
        "quant_method must be one that this version of transformers knows, not None",
    ),
    "scaled weights": (scaled(FLOAT8), NO_METHOD),
    "scaled weights in integers": (scaled(torch.int8, "scale_weight"), NO_METHOD),
    "weights of few bits": (scaled(torch.float8_e5m2, None), NO_METHOD),
    "scales that nothing multiplies": (
        scaled(torch.float32),
        "its tensor model.layers.0.mlp.down_proj.weight_scale scales weights, and this version of",
    ),
    "scales that a known method calls by another name": (scaled(FLOAT8, method="fp8"), "weight_scale"),
    "a config that is cut off": (cut_in_half("config.json"), "config"),
    "a config that is a list": (written("config.json", b"[]"), "config"),
    "a config that is no text": (written("config.json", b"\xff\xfe\x00"), "config"),
    "a config that says nothing": (written("config.json", b"{}"), "model_type"),
    "a config of wrong types": (config_with(hidden_size="many"), "hidden_size"),
    "a config of other shapes": (config_with(intermediate_size=128), "shape"),
    "a config of more layers": (config_with(num_hidden_layers=3), "lacks 9 weights"),
    "a config beyond all memory": (config_with(vocab_size=10**10), "GB"),
    "a config of very many layers": (
        config_with(num_hidden_layers=100_000),
        "num_hidden_layers must be at most 500, not 100000",
    ),
    "a config of more layers than memory": (
        config_with(model_type="qwen2", num_hidden_layers=10**10),
        "num_hidden_layers must be at most 500, not 10000000000",
    ),
    "a config of very many experts": (
        config_with(model_type="mixtral", text_config={"num_local_experts": 10**6}),
        "num_local_experts must be at most 20,000, not 1000000",
    ),
    "a config of very many blocks": (
        config_with(model_type="xlstm", num_hidden_layers=None, num_blocks=20_000),
        "num_blocks must be at most 500, not 20000",
    ),
    "a config with a letter for each of very many layers": (
        config_with(model_type="nemotron_h", hybrid_override_pattern="M" * 10**5),
        "hybrid_override_pattern must have a length of at most 500, not 100000",
    ),
    "a config with a list of very many layers": (
        config_with(model_type="nemotron_h", layers_block_type=["moe"] * 20_000),
        "layers_block_type must have a length of at most 500, not 20000",
    ),
    "a config that repeats its layers very often": (
        config_with(model_type="gpt_neo", attention_types=[[["global"], 10**9]]),
        "attention_types must be at most 500, not 1000000000",
    ),
    "a config of layers each of which asks for the types of all": (
        config_with(model_type="jamba", num_hidden_layers=1_000, num_experts=10_000),
        "num_hidden_layers must be at most 500, not 1000",
    ),
    "weights that are not numbers": (
        not_finite(float("nan")),
        "model.layers.1.mlp.up_proj.weight holds values that are not finite",
    ),
    "weights that are infinite": (
        not_finite(float("-inf")),
        "model.layers.1.mlp.up_proj.weight holds values that are not finite",
    ),
    "weights that are cut off": (cut_in_half("model.safetensors"), "model.safetensors"),
    "weights that are no weights": (written("model.safetensors", b"x" * 1000), "model.safetensors"),
    "weights that are empty": (written("model.safetensors", b""), "model.safetensors"),
    "no weights": (without("*.safetensors"), "model.safetensors"),
    "no tokenizer": (without("tok*"), "tokenizer"),
    "a tokenizer that is cut off": (cut_in_half("tokenizer.json"), "tokenizer"),
    "a tokenizer that says nothing": (written("tokenizer.json", b"{}"), "tokenizer"),
    "a tokenizer config that is cut off": (cut_in_half("tokenizer_config.json"), "tokenizer"),
}
UNFIT = {
    "an unknown architecture": (config_with(model_type="nonsense"), "nonsense"),
    "a model that writes no text": (written("config.json", b'{"model_type": "vit"}'), "vit"),
    "a program of its own": (
        config_with(model_type="own", auto_map={"AutoConfig": "c.C", "AutoModelForCausalLM": "m.M"}),
        "code",
    ),
    "an encoder-decoder": (written("config.json", b'{"model_type": "t5"}'), "t5"),
}


@pytest.mark.parametrize("what", [*BROKEN, *UNFIT])
@pytest.mark.parametrize("role", ROLES)
def test_broken_directories(saved, broken, role, what):
    change, words = (BROKEN | UNFIT)[what]
    kind = LoadError if what in BROKEN else (LoadError, PairError)
    path = broken(change)
    message = rejected(**{"target": saved / "target", role: path}, kind=kind)
    assert message.startswith(role) and str(path) in message
    assert words in message.replace(str(path), "")


def test_scales_of_a_method_that_is_known_are_used(saved, broken):
    """Those of activations, keys and values may be left out: they are not quantised here."""
    method = {"quant_method": "fp8", "weight_block_size": [128, 128]}

    def change(path):
        scaled(FLOAT8)(path)
        tensors = load_file(path / "model.safetensors")
        for name in [name for name in tensors if name.endswith("weight_scale")]:
            tensors[f"{name}_inv"] = torch.full((-(-tensors[name[:-6]].shape[0] // 128), 1), tensors[name])
            tensors[f"{name}_inv"] = tensors[f"{name}_inv"].repeat(1, -(-tensors[name[:-6]].shape[1] // 128))
            tensors[name.replace("weight_scale", "input_scale")] = tensors.pop(name)
        tensors["model.layers.0.self_attn.k_proj.k_scale"] = torch.ones(1)
        save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
        config_with(quantization_config=method)(path)

    name = "model.layers.1.mlp.up_proj.weight"
    loaded, plain = load_pair(target=broken(change)), load_file(saved / "target" / "model.safetensors")
    torch.testing.assert_close(loaded.target.get_parameter(name), plain[name], atol=0.05, rtol=0.1)


def test_the_usual_sizes_of_every_architecture_are_allowed():
    configs = []
    for name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        with suppress(Exception):  # some cannot be made without arguments
            configs.append(CONFIG_MAPPING[name]().to_json_string(use_diff=False))
    for config in configs:
        check_depth(json.loads(config))
    assert len(configs) > 100


@pytest.mark.parametrize("where", ["config", "tokenizer"])
def test_a_models_own_program_does_not_run_by_itself(broken, tmp_path, monkeypatch, where):
    """Nor is there an environment variable or an answer on the terminal that would run it."""
    ran = tmp_path / "ran"
    program = f"open({str(ran)!r}, 'w')\nfrom transformers import *\nclass Own(LlamaConfig): pass\n".encode()
    classes = ("AutoConfig", "AutoModelForCausalLM", "AutoTokenizer")
    own = {"auto_map": dict.fromkeys(classes, "own.Own"), "model_type": "own"}
    if where == "tokenizer":
        own = {"auto_map": {"AutoTokenizer": ["own.Own", "own.Own"]}, "tokenizer_class": "Own"}

    def change(path):
        (path / "own.py").write_bytes(program)
        file = path / ("config.json" if where == "config" else "tokenizer_config.json")
        file.write_text(json.dumps({**json.loads(file.read_text()), **own}))

    path = broken(change)
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    assert "trust-remote-code" in rejected(target=path, kind=LoadError) and not ran.exists()


def test_weights_that_are_not_whole(broken):
    def change(path):
        weights = load_file(path / "model.safetensors")
        del weights["model.layers.1.mlp.up_proj.weight"]
        save_file(weights, path / "model.safetensors", metadata={"format": "pt"})

    message = rejected(target=broken(change), kind=LoadError)
    assert "lacks 1 weight" in message and "model.layers.1.mlp.up_proj.weight" in message


def test_weights_in_memory_that_are_not_numbers():
    target = tiny()
    target.model.layers[0].self_attn.k_proj.weight.data[1] = float("inf")
    assert "k_proj.weight holds values that are not finite" in rejected(target=target, kind=LoadError)


@pytest.mark.slow
def test_quantised_weights_that_are_not_numbers(broken):
    message = rejected(target=broken(not_finite(float("nan"))), quantize="int8", kind=LoadError)
    assert "model.layers.1.mlp.up_proj.weight holds values that are not finite" in message


def test_models_whose_state_cannot_be_put_back(saved, broken):
    shape = dict(vocab_size=304, hidden_size=32, attention_hidden_size=32, num_hidden_layers=2)
    rwkv = broken(
        AutoModelForCausalLM.from_config(AutoConfig.for_model("rwkv", **shape)).save_pretrained, "rwkv"
    )
    for request in (dict(target=rwkv), dict(target=saved / "target", drafter=rwkv)):
        message = rejected(**request)
        assert str(rwkv) in message and "RwkvForCausalLM" in message and "none can be put back" in message


@pytest.mark.parametrize("model_type", ["bert", "gemma3_text"])
def test_models_that_look_ahead(saved, broken, model_type):
    """A BERT that is no decoder, a Gemma that embeds texts: they would run, and judge drafts by the tokens
    after them."""
    shape = dict(
        vocab_size=304, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4
    )
    more = (
        dict(num_key_value_heads=2, head_dim=8, use_bidirectional_attention=True)
        if model_type == "gemma3_text"
        else {}
    )
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **shape, **more))
    path = broken(random_weights(model).save_pretrained)
    for request in (dict(target=path), dict(target=saved / "target", drafter=path)):
        message = rejected(**request)
        assert str(path) in message and type(model).__name__ in message


def test_tokenizers_that_differ(saved, broken):
    other = tokenizer(sentences=["zebra quagga unicorn"] * 9)
    path = broken(other.save_pretrained)
    pair = load_pair(target=saved / "target", drafter=path)
    assert "another tokenizer" in " ".join(pair.limits)
    assert text_of(pair).output_ids == text_of(pair, draft_with="none").output_ids


def test_tokenizers_of_the_same_words_that_split_differently(saved, broken):
    def change(path):
        content = json.loads((path / "tokenizer.json").read_text())
        content["model"]["merges"] = content["model"]["merges"][:10]
        (path / "tokenizer.json").write_text(json.dumps(content))

    pair = load_pair(target=saved / "target", drafter=broken(change))
    assert len(pair.other_tokenizer.shared) == len(tokenizer())
    assert text_of(pair).output_ids == text_of(pair, draft_with="none").output_ids


# The hub


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """Makes the hub's library use an endpoint of ours, and an empty cache. It reads its settings once, on
    import."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))

    @contextmanager
    def serve(handler):
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
            endpoint = f"http://127.0.0.1:{server.server_port}"
            monkeypatch.setattr(constants, "ENDPOINT", endpoint)
            template = f"{endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
            monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
            yield
            server.shutdown()

    return serve


def test_the_hub_out_of_reach(hub, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    for request in ({"target": "some/model"}, {"name": "gpt2-xl"}):
        message = rejected(**request, kind=LoadError)
        assert message.startswith("target: ") and "hub cannot be reached" in message
    assert rejected(target="model").startswith("target: there is no directory model, and no model")


class Hub(http.server.BaseHTTPRequestHandler):
    """Answers as the model hub does for ids that one may not read, and keeps the token that it was shown."""

    ANSWERS = {"gated": (403, "GatedRepo"), "missing": (401, "RepoNotFound"), "refused": (401, "")}
    shown = set()

    def do_HEAD(self):
        self.shown.add(self.headers.get("Authorization"))
        status, code = self.ANSWERS[next((word for word in self.ANSWERS if word in self.path), "missing")]
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", f"no access with {self.headers.get('Authorization')}")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_HEAD

    def log_message(self, *_):
        pass


def test_what_the_hub_does_not_give(hub):
    with hub(Hub):
        gated = rejected(target="own/gated", kind=LoadError)
        missing = rejected(target="own/missing", kind=PairError)
        denied = rejected(target="own/refused", kind=LoadError)
    assert f"Bearer {SECRET}" in Hub.shown  # it was really sent, so a message could have repeated it
    assert gated.startswith("target: own/gated is gated") and "HF_TOKEN" in gated
    assert missing.startswith("target: ") and "own/missing" in missing
    assert denied.startswith("target: ") and "own/refused" in denied and "HF_TOKEN" in denied


@pytest.mark.parametrize("request_", [{"name": "llama-3.2-3b"}, {"target": "google/gemma-3-4b-pt"}])
def test_a_gated_model_without_a_token_is_refused_before_any_request(hub, monkeypatch, request_):
    from specdemo.loading import load

    Hub.shown.clear()
    monkeypatch.setattr(load, "get_token", lambda: None)
    with hub(Hub):
        monkeypatch.setattr(constants, "_HF_DEFAULT_ENDPOINT", constants.ENDPOINT)
        said = rejected(**request_, kind=LoadError)
    assert "is gated: accept its terms" in said and "HF_TOKEN" in said and not Hub.shown


class Files(http.server.SimpleHTTPRequestHandler):
    """Hands out the files of a directory as the model hub does: slowly where they are weights."""

    def respond(self, send: bool):
        if model := re.fullmatch(r"/api/models/own/(\w+)", self.path.split("?")[0]):
            return self.list(Path(self.directory, model[1]))
        found = re.fullmatch(r"/own/(\w+)/resolve/\w+/([\w.]+)", self.path)
        file = Path(self.directory, *(found.groups() if found else ["nothing"]))
        size = file.stat().st_size if file.is_file() else 0
        self.send_response(200 if size else 404)
        headers = {
            "X-Repo-Commit": "a" * 40,
            "ETag": f'"{file.parent.name}-{file.name}"',
            "Content-Length": str(size),
        }
        for header, value in (
            headers if size else {"X-Error-Code": "EntryNotFound", "Content-Length": "0"}
        ).items():
            self.send_header(header, value)
        self.end_headers()
        if send and size:
            whole, pieces = file.read_bytes(), 20 if file.suffix == ".safetensors" else 1
            for at in range(0, size, size // pieces + 1):
                self.wfile.write(whole[at : at + size // pieces + 1])
                time.sleep(0.15 if pieces > 1 else 0)

    def list(self, folder: Path):
        files = [{"rfilename": file.name, "size": file.stat().st_size} for file in folder.iterdir()]
        answer = json.dumps({"id": f"own/{folder.name}", "sha": "a" * 40, "siblings": files}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def do_HEAD(self):
        self.respond(send=False)

    def do_GET(self):
        self.respond(send=True)

    def log_message(self, *_):
        pass


@pytest.mark.slow
def test_a_download_is_reported_and_can_be_left(saved, tmp_path):
    """In a process of its own: the hub's library reads its endpoint on import, in more than one place."""
    code = """
import asyncio, json, time
from huggingface_hub import constants
from specdemo import Params
from specdemo.ui.runs.models import Choice, Models
from specdemo.ui.runs.queue import RunQueue
from specdemo.ui.runs.limits import Visitor
from specdemo.ui.runs.run import Waiting, follow

constants.DOWNLOAD_CHUNK_SIZE = 10_000  # else a file this small comes in one piece

params = Params(temperature=0, max_new_tokens=5, ignore_eos=True)

async def main():
    models, queue = Models({"target": "own/target", "drafter": "own/drafter"}), RunQueue()
    visit = lambda: follow(
        models, queue.join(Visitor("page", "10.0.0.1"), "run"), Choice(), "the cat sat", params
    )
    impatient = visit()
    async for waiting in impatient:
        if waiting.share:
            break
    start = time.monotonic()
    await impatient.aclose()
    left = time.monotonic() - start
    reports = [report async for report in visit()]
    news = [(report.sentence, report.share) for report in reports if isinstance(report, Waiting)]
    finish, needs = reports[-1].run.trace.finish, models.needs(Choice()).total
    print(json.dumps({"left": left, "news": news, "finish": finish, "needs": needs}))

asyncio.run(main())
"""
    handler = functools.partial(Files, directory=saved)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        environment = {
            "PYTHONPATH": str(ROOT),
            "HF_HOME": str(tmp_path),
            "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
        }
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=300,
        )
        server.shutdown()
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["left"] < 3 and seen["finish"] == "length"  # the files take twice as long
    for role in ROLES:
        shares = [share for sentence, share in seen["news"] if sentence.startswith(f"Downloading {role}")]
        assert len(shares) > 1 and shares == sorted(shares) and shares[0] < 1
    size = (saved / "target" / "model.safetensors").stat().st_size / 1e6
    pattern = rf"Downloading target own/target: \d\.\d of {size:.1f} MB … \d s"
    assert any(re.fullmatch(pattern, sentence) for sentence, _ in seen["news"])
    assert load_pair(target=saved / "target", drafter=saved / "drafter").bytes_held.target < seen["needs"]


def test_a_load_says_its_steps_in_order(saved):
    told = []
    load_planned(
        plan(resolve(target=saved / "target", drafter=saved / "drafter")), lambda *step: told.append(step)
    )
    assert [sentence.split(" of ")[0] for sentence, _ in told] == [
        "Reading the tokenizers",
        "Loading the weights",
        "Loading the weights",
        "Checking that the caches can be rewound",
        "Warming up",
    ]
    assert all(share is None for _, share in told)
