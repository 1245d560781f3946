"""What cannot be loaded: each breakage of a small checkpoint or of its adapter, and each wrong request, is
refused in a sentence that names the role, the place and what is wrong. No program of a checkpoint runs."""

import copy
import json
import os
import shutil

import pytest
import torch
from peft import LoraConfig, PrefixTuningConfig, get_peft_model
from safetensors.torch import load_file
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    LlamaModel,
    LlamaPreTrainedModel,
)

from specdemo import PairError, Params, generate, load_pair
from specdemo.errors import LoadError
from specdemo.loading import checkpoints
from tests.checkpoints import change_adapter, change_config, change_tensors, cut_in_half, saved_in
from tests.heads import save_head, tiny_head
from tests.sentences import assert_one_sentence, refusal
from tests.tiny import random_weights, tiny, tokenizer

ROLES = ("target", "drafter")
SHAPE = dict(vocab_size=304, hidden_size=64, intermediate_size=256)
FLOAT8 = torch.float8_e4m3fn
UP = "model.layers.1.mlp.up_proj.weight"
LORA = LoraConfig(r=4, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM", init_lora_weights=False)
PREFIX = PrefixTuningConfig(num_virtual_tokens=4, task_type="CAUSAL_LM")
A = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
ADAPTER = "adapter_model.safetensors"


def save_adapter(folder, model, config=LORA):
    torch.manual_seed(0)
    get_peft_model(copy.deepcopy(model), copy.deepcopy(config)).save_pretrained(folder)
    change_adapter(folder, base_model_name_or_path="../base")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A base and an adapter beside it, which must never be written to."""
    folder = tmp_path_factory.mktemp("whole")
    save_adapter(folder / "adapter", tiny(**SHAPE))
    saved_in(folder / "base", tiny(**SHAPE))
    return folder


def config_with(**changes):
    return lambda path: change_config(path, **changes)


def adapter_with(**changes):
    return lambda path: change_adapter(path, **changes)


def cut(name):
    return lambda path: cut_in_half(path / name)


def without(pattern):
    return lambda path: [file.unlink() for file in path.glob(pattern)]


def written(name, content):
    return lambda path: (path / name).write_bytes(content)


def linked(name):
    return lambda path: [(path / name).unlink(), (path / name).symlink_to("x" * 300)]  # raises when followed


def tensors_with(change, file="model.safetensors"):
    return lambda path: change_tensors(path, change, file)


def not_finite(name):
    return lambda tensors: tensors[name][1].fill_(torch.nan)


def another(model, **how):
    """Its weights and its config become those of another model."""
    return lambda path: model().save_pretrained(path, **how)


def scaled(dtype, name="weight_scale", method=None):
    """Each weight of a linear layer gets a scale beside it, by which a program has to multiply it. A dtype of
    8 bits becomes the weight's own; with any other the weight stays as it is."""

    def change(tensors):
        for weight in [one for one in tensors if one.endswith("_proj.weight")]:
            scale = tensors[weight].abs().max() / (448 if dtype.is_floating_point else 127)
            if dtype.itemsize == 1:
                tensors[weight] = (tensors[weight] / scale).to(dtype)
            tensors[weight.removesuffix("weight") + name] = scale

    def change_all(path):
        change_tensors(path, change)
        if method is not None:
            change_config(path, quantization_config={"quant_method": method})

    return change_all


def as_gguf(path):
    (path / "model.safetensors").rename(path / "small-Q4_K_M.gguf")
    (path / "config.json").unlink()


def pickled(path):
    torch.save(load_file(path / ADAPTER), path / "adapter_model.bin")
    (path / ADAPTER).unlink()


def with_program(name, **more):
    """A program of its own, which leaves a trace if it runs."""

    def change(path):
        (path / "own.py").write_text(f"open({str(path / 'ran')!r}, 'w')\nfrom transformers import *\n")
        file = path / name
        file.write_text(json.dumps(json.loads(file.read_text()) | more))

    return change


def base_with(change):
    """The adapter's base becomes a copy that is changed."""

    def change_base(path):
        shutil.copytree(path.parent / "base", path / "own-base")
        change(path / "own-base")
        change_adapter(path, base_model_name_or_path="own-base")

    return change_base


def with_head(path):
    shutil.rmtree(path)
    save_head(tiny_head(tiny(**SHAPE)), path)


def embeds_tokens_that_it_cannot_predict(path):
    """The output layer, which was tied to the embeddings, gets none for them."""
    tied = tiny(**SHAPE, tie_word_embeddings=True)
    tied.save_pretrained(path.parent / "base")
    tied.resize_token_embeddings(312, mean_resizing=False)
    save_adapter(path, tied, LoraConfig(target_modules=["q_proj"], modules_to_save=["embed_tokens"]))


def unfit(kind, model_type, **more):
    shape = dict(vocab_size=304, hidden_size=32, intermediate_size=32, num_hidden_layers=2)
    return lambda: random_weights(kind.from_config(AutoConfig.for_model(model_type, **shape | more)))


def lora_of(**shape):
    return lambda path: save_adapter(path, tiny(**SHAPE | shape))


TINY, CAUSAL, CLASSIFIER = tiny(**SHAPE).config, AutoModelForCausalLM, AutoModelForSequenceClassification
OWN_MODEL = {"auto_map": {"AutoConfig": "own.Own"}, "model_type": "own"}
OWN_WORDS = {"auto_map": {"AutoTokenizer": ["own.Own", "own.Own"]}, "tokenizer_class": "Own"}
TIED = {"num_attention_heads": 4, "tie_word_embeddings": True}
BOTH_WAYS = dict(num_attention_heads=4, num_key_value_heads=2, head_dim=8, use_bidirectional_attention=True)
BASE = {  # what was done to a model, and words of what is said of it
    "a method that is not known": (scaled(FLOAT8, method="modelopt"), "'modelopt'"),
    "scaled weights of no method": (scaled(FLOAT8), "names no method"),
    "scales that nothing multiplies": (scaled(torch.float32), "down_proj.weight_scale"),
    "a known method's scales by another name": (scaled(FLOAT8, method="fp8"), "weight_scale"),
    "a config that is cut off": (cut("config.json"), "not a valid JSON"),
    "a config that is a list": (written("config.json", b"[]"), "model_type"),
    "a config of wrong types": (config_with(hidden_size="many"), "hidden_size"),
    "a config of other shapes": (config_with(intermediate_size=128), "shape"),
    "a config of more layers": (config_with(num_hidden_layers=3), "lacks 9 weights, first"),
    "a config beyond all memory": (config_with(vocab_size=10**10), "GB"),
    "no head": (another(lambda: LlamaModel(TINY)), "a LlamaModel, lacks 1 weights, first lm_head.weight"),
    "a weight that is missing": (tensors_with(lambda tensors: tensors.pop(UP)), f"1 weights, first {UP}"),
    "weights that are cut off": (cut("model.safetensors"), "deserializing header"),
    "no weights": (without("*.safetensors"), "model.safetensors"),
    "weights in a folder that is closed": (linked("model.safetensors"), "because of its weights: "),
    "no tokenizer": (without("tok*"), "no tokenizer files"),
    "a tokenizer that is cut off": (cut("tokenizer.json"), "tokenizer: Expecting value"),
    "a tokenizer config that is cut off": (cut("tokenizer_config.json"), "tokenizer: Unterminated string"),
    "an unknown architecture": (config_with(model_type="nonsense"), "nonsense"),
    "a model that writes no text": (written("config.json", b'{"model_type": "vit"}'), "vit"),
    "its own program": (with_program("config.json", **OWN_MODEL), "its own program code"),
    "its words' own program": (with_program("tokenizer_config.json", **OWN_WORDS), "its own program code"),
}
UNFIT = {  # the same where the files are whole
    "no config": (without("config.json"), "config.json"),
    "GGUF": (as_gguf, "(small-Q4_K_M.gguf)"),
    "a classifier": (another(unfit(CLASSIFIER, "llama", num_attention_heads=4)), "LlamaForSequence"),
    "one with tied embeddings": (another(unfit(CLASSIFIER, "llama", **TIED)), "LlamaForSequence"),
    "a state that cannot be put back": (another(unfit(CAUSAL, "rwkv", attention_hidden_size=32)), "RwkvFor"),
    "a BERT that is no decoder": (another(unfit(CAUSAL, "bert", num_attention_heads=4)), "without one"),
    "a Gemma that embeds texts": (another(unfit(CAUSAL, "gemma3_text", **BOTH_WAYS)), "Gemma3ForCausalLM"),
}
OF_ADAPTER = {
    "another rank": (adapter_with(r=8), f"{A} has the shape [4, 64], and [8, 64]"),
    "more layers": (lora_of(num_hidden_layers=3), "has 4 tensors"),
    "fewer layers": (lora_of(num_hidden_layers=1), "lacks 4 tensors"),
    "layers of another family": (adapter_with(target_modules=["c_attn"]), "c_attn"),
    "a head that is not there": (adapter_with(modules_to_save=["lm_head"]), "lacks a tensor"),
    "weights that are not numbers": (tensors_with(not_finite(A), ADAPTER), f"{A} holds"),
    "pickled weights": (pickled, "(adapter_model.bin)"),
    "no weights": (without(ADAPTER), ADAPTER),
    "weights that are cut off": (cut(ADAPTER), "deserializing header"),
    "a config that is cut off": (cut("adapter_config.json"), "adapter_config.json"),
    "what a newer peft knows": (adapter_with(use_magic=True), "'use_magic'"),
    "a base of too few layers": (base_with(config_with(num_hidden_layers=3)), "lacks 9 weights, first"),
    "tokens that it cannot predict": (embeds_tokens_that_it_cannot_predict, "[312, 64], and [304, 64]"),
}
UNFIT_ADAPTER = {
    "no base": (adapter_with(base_model_name_or_path=None), "not None"),
    "a base that is not there": (adapter_with(base_model_name_or_path="/no/where"), "'/no/where'"),
    "a base that is an adapter": (adapter_with(base_model_name_or_path="."), "adapter_config.json"),
    "a base that is a head": (base_with(with_head), "is a head"),
    "a base in few bits": (base_with(config_with(quantization_config={"quant_method": "fp8"})), "quantised"),
    "a kind that is not merged": (lambda path: save_adapter(path, tiny(**SHAPE), PREFIX), "'PREFIX_TUNING'"),
    "a model beside it": (another(lambda: tiny(**SHAPE)), "both a model and a PEFT adapter"),
}
BROKEN = [
    (folder, kind, *row)
    for folder, kind, table in (
        ("base", LoadError, BASE),
        ("base", PairError, UNFIT),
        ("adapter", LoadError, OF_ADAPTER),
        ("adapter", PairError, UNFIT_ADAPTER),
    )
    for row in table.items()
]


QUICK = "a weight that is missing", "its own program", "its words' own program"


@pytest.mark.parametrize(
    ("folder", "kind", "what", "broken"),
    [pytest.param(*row, marks=[pytest.mark.slow] * (row[2] not in QUICK), id=row[2]) for row in BROKEN],
)
def test_a_broken_checkpoint(root, tmp_path, monkeypatch, folder, kind, what, broken):
    change, words = broken
    shutil.copytree(root, tmp_path, dirs_exist_ok=True)
    path, role = tmp_path / folder, ROLES[len(what) % 2]
    change(path)
    monkeypatch.setattr("builtins.input", lambda *_: "y")  # who would run a program
    said = refusal(load_pair, **{"target": root / "base", role: path}, kind=kind)
    assert said.startswith(role) and str(path) in said and words in said.replace(str(path), "")
    assert not (path / "ran").exists()


@pytest.mark.slow
@pytest.mark.parametrize("role", ROLES)
def test_whose_weights_are_not_numbers_is_said_by_the_first_round(root, tmp_path, role):
    path = shutil.copytree(root / "base", tmp_path / "base")
    change_tensors(path, not_finite(UP))
    pair = load_pair(**{"target": root / "base", "drafter": root / "base", role: path})
    for temperature in (0, 1):
        with pytest.raises(RuntimeError, match=f"^the {role}'s probabilities are not numbers") as error:
            generate(pair, "the cat", Params(temperature=temperature))
        assert_one_sentence(str(error.value))


def test_what_needs_a_package_that_is_not_installed_is_refused_before_the_weights_are_read(
    root, tmp_path, monkeypatch
):
    monkeypatch.setattr(checkpoints, "find_spec", lambda name: None)
    assert refusal(load_pair, target=root / "adapter").endswith("pip install peft")
    path = shutil.copytree(root / "base", tmp_path / "base")
    (path / "model.safetensors").unlink()
    flags = {"bitsandbytes": {"load_in_4bit": True}}
    for method, packages in checkpoints.NEEDED.items():
        change_config(path, quantization_config={"quant_method": method} | flags.get(method, {}))
        said = refusal(load_pair, target=path, kind=LoadError)
        assert f"by {method}, " in said and f"pip install {' '.join(packages.values())} " in said


# Requests


class DoesNotGenerate(LlamaPreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
        self.model, self.lm_head = LlamaModel(config), torch.nn.Linear(64, 304)


def test_wrong_requests(root, tmp_path):
    model, base, linear = tiny(**SHAPE), root / "base", torch.nn.Linear(2, 2)
    elsewhere, by_role = tiny(**SHAPE).to("meta"), {"target": tokenizer(), "drafter": tokenizer()}
    options = {"device": "cpu", "dtype": "float32", "quantize": "none", "tokenizer": tokenizer()}
    wrong = [
        *((dict(name="embedded") | one, "pair") for one in (dict(target=model), dict(drafter=model))),
        *((dict(drafter=one), "target must be given") for one in (model, root / "adapter")),
        *((dict(target=one), "target") for one in (5, linear, LlamaModel(TINY), DoesNotGenerate(TINY))),
        *((dict(target=model, drafter=one), "drafter") for one in (5, ["x"], linear)),
        *((dict(target=base, drafter=one), "drafter") for one in (model, 5, ["x"])),
        *((dict(target=one), "target") for one in (tmp_path / "missing", "a/b/c", "owner/name/x.gguf")),
        (dict(target=model, drafter=base, tokenizer=by_role), "tokenizer must be the target's alone"),
        (dict(target=model, drafter=tmp_path / "missing"), "drafter"),
        (dict(target=model, tokenizer="gpt2"), "tokenizer"),
        (dict(target=base, tokenizer=options["tokenizer"]), "tokenizer must be left out"),
        (dict(target=base, device="mps"), "device"),
        (dict(target=base, dtype="int3"), "dtype"),
        (dict(target=elsewhere), "device must be cpu or cuda, and target "),
        (dict(target=model, drafter=elsewhere), "device must be cpu or cuda, and drafter "),
    ]
    del options["tokenizer"]
    wrong += [(dict(target=model) | {name: one}, f"{name} must be left out") for name, one in options.items()]
    for request, words in wrong:
        assert refusal(load_pair, **request).startswith(words), request


def test_no_permission(root, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    said = refusal(load_pair, target=root / "base")
    assert said.startswith("target") and str(root / "base") in said and "permission" in said
