"""Adapters of the package PEFT, which are merged into their bases."""

import copy
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
    get_peft_model,
)

from specdemo import Params, generate, load_pair
from specdemo.loading import checkpoints
from specdemo.loading.request import resolve
from tests.checkpoints import change_adapter, saved_in
from tests.sentences import refusal
from tests.tiny import shorter, tiny, tokenizer

SHAPE = dict(vocab_size=304, hidden_size=64, intermediate_size=256)
IDS = torch.arange(5, 40)[None]
LAYERS = ["q_proj", "v_proj", "down_proj"]
GREEDY = Params(temperature=0, max_new_tokens=20)


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
    told = {"name": "base", "reason": str(folder)}
    assert [(one.key, told.items() <= one.values.items()) for one in pair.limits] == [
        ("adapter_merged", True)
    ] * 2
    trace = generate(pair, "the cat sat", GREEDY, measure=False)
    assert trace.stats.accepted == trace.stats.drafted > 0
    pair.attach(root / "drafter")
    assert len(pair.limits) == 1
    pair.attach(folder)
    assert len(pair.limits) == 2
    assert (root / "base" / "model.safetensors").read_bytes() == before


OTHERS = dict(target_modules=LAYERS, task_type="CAUSAL_LM")
FEED = dict(target_modules=["k_proj", "up_proj"], feedforward_modules=["up_proj"], task_type="CAUSAL_LM")
KINDS = {  # of adapters, and the base
    "dora": ("base", lora(use_dora=True, use_rslora=True)),
    "adalora": ("base", AdaLoraConfig(total_step=9, **OTHERS)),
    "loha": ("base", LoHaConfig(**OTHERS)),
    "lokr": ("base", LoKrConfig(**OTHERS)),
    "ia3": ("base", IA3Config(**FEED)),
    "oft": ("base", OFTConfig(oft_block_size=4, r=0, **OTHERS)),
    "layers trained as a whole": ("base", lora(modules_to_save=["lm_head", "embed_tokens"])),
    "a few tokens": ("base", lora(trainable_token_indices=[5, 9])),
    "a tied output layer": ("tied", lora(layers=["q_proj", "lm_head"])),
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


def test_an_adapter_that_brings_tokens_and_their_tokenizer(root, tmp_path):
    model = tiny(**SHAPE, **TIED)
    model.resize_token_embeddings(312, mean_resizing=False)
    wanted = save_adapter(tmp_path, model, lora(), str(root / "tied"), save_embedding_layers=True)
    words = tokenizer(extra=8)
    words.save_pretrained(tmp_path)
    pair = load_pair(target=tmp_path)
    torch.testing.assert_close(logits_of(pair.target), wanted, atol=1e-3, rtol=1e-3)
    assert len(pair.tokenizer) == len(words) and pair.vocab_size == 312


def test_an_adapter_of_a_hub_names_no_directory_of_this_machine(root, tmp_path):
    """Its author would choose what is read here."""
    part = resolve(target="own/adapter").parts[0]
    for name in (str(root / "base"), "../base", "./base"):
        change_adapter(
            shutil.copytree(root / "adapter", root / "of-hub", dirs_exist_ok=True),
            base_model_name_or_path=name,
        )
        assert ascii(name) in refusal(checkpoints.base_of, part, root / "of-hub")
    change_adapter(root / "of-hub", base_model_name_or_path="own/base", revision="v2")
    base = checkpoints.base_of(part, root / "of-hub")
    assert (base.place, base.revision, base.given) == ("own/base", "v2", "own/adapter")
