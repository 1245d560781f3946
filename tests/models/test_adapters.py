"""Adapters of the package PEFT, which are merged into their bases."""

import copy
import json
import shutil

import pytest
import torch
from peft import (
    AdaLoraConfig,
    IA3Config,
    LoHaConfig,
    LoKrConfig,
    LoraConfig,
    OFTConfig,
    PeftConfig,
    PrefixTuningConfig,
    get_peft_model,
)
from safetensors.torch import load_file, save_file

from specdemo import Params, generate, load_pair
from specdemo.errors import LoadError
from specdemo.loading import adapters
from specdemo.loading.load import plan
from specdemo.loading.request import resolve
from tests.checkpoints import change_config, saved_in
from tests.heads import save_head, tiny_head
from tests.sentences import refusal
from tests.tiny import shorter, tiny, tokenizer

SHAPE = dict(vocab_size=304, hidden_size=64, intermediate_size=256)
IDS = torch.arange(5, 40)[None]
LAYERS = ["q_proj", "v_proj", "down_proj"]
GREEDY = Params(temperature=0, max_new_tokens=20)
A = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


def lora(rank: int = 4, layers=LAYERS, **more) -> LoraConfig:
    return LoraConfig(r=rank, lora_alpha=16, target_modules=layers, task_type="CAUSAL_LM", **more)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Bases, a drafter, and an adapter beside them, which must never be written to."""
    root = tmp_path_factory.mktemp("adapters")
    base = tiny(**SHAPE)
    for name, model in (("base", base), ("drafter", shorter(base)), ("tied", tiny(**SHAPE, **TIED))):
        saved_in(root / name, model)
    save_adapter(root / "adapter", base, lora())
    return root


TIED = {"tie_word_embeddings": True}


def save_adapter(folder, model, config: PeftConfig, base: str | None = "../base", **how):
    """Saves an adapter with random weights. Returns the logits of the model with it."""
    torch.manual_seed(0)
    trained = get_peft_model(copy.deepcopy(model), config).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in trained.parameters():
            if weight.requires_grad:
                weight += 0.05 * torch.randn(weight.shape, generator=generator)
        logits = trained(IDS).logits
    trained.save_pretrained(folder, **how)
    change_adapter(folder, base_model_name_or_path=base)
    return logits


def change_adapter(folder, **changes):
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def logits_of(model):
    with torch.no_grad():
        return model(IDS).logits


def test_an_adapter_is_its_base_with_the_adapter_merged_in(root, tmp_path):
    base, folder = tiny(**SHAPE), root / "adapter"
    before = (root / "base" / "model.safetensors").read_bytes()
    plain = load_pair(target=root / "base").target
    pair = load_pair(target=folder, drafter=folder)
    wanted = save_adapter(tmp_path / "again", base, lora())
    for model in (pair.target, pair.drafter):
        torch.testing.assert_close(logits_of(model), wanted, atol=1e-3, rtol=1e-3)
        assert [*map(type, model.modules())] == [*map(type, plain.modules())]
    assert (wanted - logits_of(base)).abs().max() > 1
    assert pair.info.target == pair.info.drafter == str(folder)
    told = f"is base with the adapter {folder} merged in"
    assert [*map(str, pair.limits)] == [f"the target {told}", f"the drafter {told}"]
    trace = generate(pair, "the cat sat", GREEDY, measure=False)
    assert trace.stats.accepted == trace.stats.drafted > 0
    pair.attach(root / "drafter")
    assert [*map(str, pair.limits)] == [f"the target {told}"]
    pair.attach(folder)
    assert len(pair.limits) == 2
    assert (root / "base" / "model.safetensors").read_bytes() == before


KINDS = {  # of adapters, and the base
    "dora": ("base", lora(use_dora=True, use_rslora=True)),
    "adalora": ("base", AdaLoraConfig(total_step=9, target_modules=LAYERS, task_type="CAUSAL_LM")),
    "loha": ("base", LoHaConfig(target_modules=LAYERS, task_type="CAUSAL_LM")),
    "lokr": ("base", LoKrConfig(target_modules=LAYERS, task_type="CAUSAL_LM")),
    "ia3": (
        "base",
        IA3Config(
            target_modules=["k_proj", "up_proj"], feedforward_modules=["up_proj"], task_type="CAUSAL_LM"
        ),
    ),
    "oft": ("base", OFTConfig(oft_block_size=4, r=0, target_modules=LAYERS, task_type="CAUSAL_LM")),
    "layers trained as a whole": ("base", lora(modules_to_save=["lm_head", "embed_tokens"])),
    "a few tokens": ("base", lora(trainable_token_indices=[5, 9])),
    "a tied output layer": ("tied", lora(layers=["q_proj", "lm_head"])),
    "tied embeddings": ("tied", lora(layers=["q_proj", "embed_tokens"])),
    "embeddings that stay tied": ("tied", lora(layers=["q_proj", "embed_tokens"], ensure_weight_tying=True)),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_merged_computes_as_the_adapter_does(root, tmp_path, kind):
    base, config = KINDS[kind]
    model = tiny(**SHAPE, **(TIED if base == "tied" else {}))
    wanted = save_adapter(tmp_path / "adapter", model, copy.deepcopy(config), str(root / base))
    pair = load_pair(target=tmp_path / "adapter", device="cpu", dtype="float32")
    torch.testing.assert_close(logits_of(pair.target), wanted, atol=1e-3, rtol=1e-3)
    assert (wanted - logits_of(model)).abs().max() > 0.05


@pytest.mark.parametrize("base", ["base", "tied"])
def test_an_adapter_that_brings_tokens_and_their_tokenizer(root, tmp_path, base):
    model = tiny(**SHAPE, **(TIED if base == "tied" else {}))
    model.resize_token_embeddings(312, mean_resizing=False)
    config = lora() if base == "tied" else lora(modules_to_save=["embed_tokens", "lm_head"])
    wanted = save_adapter(tmp_path, model, config, str(root / base), save_embedding_layers=base == "tied")
    words = tokenizer(extra=8)
    words.save_pretrained(tmp_path)
    pair = load_pair(target=tmp_path)
    torch.testing.assert_close(logits_of(pair.target), wanted, atol=1e-3, rtol=1e-3)
    assert len(pair.tokenizer) == len(words) and pair.vocab_size == 312


def test_tokens_that_an_adapter_cannot_predict_are_not_made_up(root, tmp_path):
    """It has embeddings of its own for them; the output layer, which was tied, got none."""
    model = tiny(**SHAPE, **TIED)
    model.resize_token_embeddings(312, mean_resizing=False)
    save_adapter(tmp_path, model, lora(modules_to_save=["embed_tokens"]), str(root / "tied"))
    said = refusal(load_pair, target=tmp_path, kind=LoadError)
    assert said.endswith("embed_tokens.weight has the shape [312, 64], and [304, 64] is expected")


def test_an_adapter_is_merged_before_weights_are_quantised(root):
    """And memory is needed for the weights as they are then."""
    how, int8 = dict(device="cpu", dtype="bfloat16"), {"quantize": "int8"}
    whole, base = dict(target=root / "adapter", **how), dict(target=root / "base", **how)
    exact, got, other = load_pair(**whole), load_pair(**whole, **int8), load_pair(**base, **int8)
    assert got.bytes_held.target == pytest.approx(other.bytes_held.target, rel=1e-3)
    assert [*map(type, got.target.modules())] == [*map(type, other.target.modules())]
    exact, got, other = (logits_of(one.target).float() for one in (exact, got, other))
    assert 5 * (got - exact).abs().mean() < (other - exact).abs().mean()
    assert plan(resolve(**whole, **int8)).sizes == plan(resolve(**base)).sizes


def test_an_adapter_of_a_hub_names_no_directory_of_this_machine(root, tmp_path):
    """Its author would choose what is read here."""
    part = resolve(target="own/adapter").parts[0]
    for name in (str(root / "base"), "../base", "./base"):
        change_adapter(
            shutil.copytree(root / "adapter", root / "of-hub", dirs_exist_ok=True),
            base_model_name_or_path=name,
        )
        said = refusal(adapters.base_of, part, root / "of-hub")
        assert said.endswith("is no hub id of the form owner/name")
    change_adapter(root / "of-hub", base_model_name_or_path="own/base", revision="v2")
    base = adapters.base_of(part, root / "of-hub")
    assert (base.place, base.revision, base.given) == ("own/base", "v2", "own/adapter")


def tensors_with(change):
    def changed(folder):
        tensors = load_file(folder / "adapter_model.safetensors")
        change(tensors)
        save_file(tensors, folder / "adapter_model.safetensors")

    return changed


def config_with(**changes):
    return lambda folder: change_adapter(folder, **changes)


def another(config=None, **shape):
    return lambda folder: save_adapter(folder, tiny(**SHAPE | shape), config or lora(), "../base")


def base_with(**changes):
    """Its base becomes a copy that is changed."""

    def change(folder):
        shutil.copytree(folder.parent / "base", folder / "own-base")
        change_config(folder / "own-base", **changes)
        change_adapter(folder, base_model_name_or_path="own-base")

    return change


def on_a_head(folder):
    save_head(tiny_head(tiny(**SHAPE)), folder / "head")
    change_adapter(folder, base_model_name_or_path="head")


def pickled(folder):
    torch.save(load_file(folder / "adapter_model.safetensors"), folder / "adapter_model.bin")
    (folder / "adapter_model.safetensors").unlink()


def nan(tensors):
    tensors[A][1, 2] = torch.nan


OTHER = "it was made for another model"
WRONG = {  # what was done to it, and words that the sentence holds
    "another rank": (config_with(r=8), f"its tensor {A} has the shape [4, 64], and [8, 64] is expected"),
    "another width": (another(hidden_size=32), f"its tensor {A} has the shape [4, 32], and [4, 64]"),
    "more layers": (another(num_hidden_layers=3), "has 6 tensors for which its base has no place, first "),
    "fewer layers": (another(num_hidden_layers=1), "lacks 6 tensors for its base, first "),
    "layers of another family": (config_with(target_modules=["c_attn"]), "modules {'c_attn'} not found"),
    "a head that is not there": (config_with(modules_to_save=["lm_head"]), "lacks a tensor for its base"),
    "weights that are not numbers": (tensors_with(nan), f"its tensor {A} holds values that are not finite"),
    "pickled weights": (pickled, "has only pickled weights (adapter_model.bin), which can hold program"),
    "no weights": (
        lambda path: (path / "adapter_model.safetensors").unlink(),
        "has no adapter_model.safetensors, so there are no weights to load",
    ),
    "weights that are cut off": (
        lambda path: (path / "adapter_model.safetensors").write_bytes(b"x"),
        "cannot be merged into its base: its safetensors file is broken",
    ),
    "a config that is cut off": (
        lambda path: (path / "adapter_config.json").write_text("{"),
        "because of its adapter_config.json",
    ),
    "what a newer peft knows": (config_with(use_magic=True), "does not know 'use_magic', which it asks for"),
    "no base": (config_with(base_model_name_or_path=None), "must be a hub id or a directory, not None"),
    "a base that is not there": (
        config_with(base_model_name_or_path="/nowhere/at/all"),
        "its base '/nowhere/at/all' is no directory, seen from ",
    ),
    "a base that is an adapter": (
        config_with(base_model_name_or_path="."),
        "is a PEFT adapter (adapter_config.json) itself, and the base of an adapter must be a whole model",
    ),
    "a base that is a head": (on_a_head, "is a head, and an adapter's base must be a model"),
    "a base in few bits": (
        base_with(quantization_config={"quant_method": "fp8"}),
        "are quantised, and an adapter can be merged only into weights that are not",
    ),
    "a base of too few layers": (base_with(num_hidden_layers=3), "lacks 9 weights"),
    "a kind that is not merged": (
        another(PrefixTuningConfig(num_virtual_tokens=4, task_type="CAUSAL_LM")),
        "of the kind 'PREFIX_TUNING', and only those of the kinds LORA, ",
    ),
    "a model beside it": (
        lambda path: shutil.copy(path.parent / "base" / "model.safetensors", path),
        "holds both a model and a PEFT adapter",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", WRONG)
def test_adapters_that_cannot_be_merged(root, tmp_path, what):
    shutil.copytree(root / "base", tmp_path / "base")
    shutil.copytree(root / "adapter", tmp_path / "adapter")
    change, words = WRONG[what]
    change(tmp_path / "adapter")
    role = ("target", "drafter")[list(WRONG).index(what) % 2]
    with pytest.raises(Exception) as error:
        load_pair(**{"target": root / "base", role: tmp_path / "adapter"})
    said = refusal(load_pair, **{"target": root / "base", role: tmp_path / "adapter"}, kind=type(error.value))
    assert said.startswith(role) and str(tmp_path / "adapter") in said and words in said


def test_without_peft_an_adapter_is_refused(root, monkeypatch):
    monkeypatch.setattr(adapters, "find_spec", lambda name: None)
    said = refusal(load_pair, target=root / "adapter")
    assert said.startswith(
        f"target: {root / 'adapter'} is a PEFT adapter (adapter_config.json), and the package"
    )
    assert said.endswith("is not installed: pip install peft")


def test_an_adapter_alone_is_no_speculator(root):
    assert refusal(load_pair, drafter=root / "adapter").startswith("target must be given with a drafter")
