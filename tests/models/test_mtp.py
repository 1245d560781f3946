"""The layers for multi-token prediction that a target's checkpoint carries: each kind of them, how they are
loaded and counted, and what can be wrong with them. What they owe as every drafter does is in
test_drafter_contract.py."""

import json
import shutil
from functools import cache

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import softmax
from transformers import cache_utils

import specdemo.drafters.mtp
from specdemo import Params, Trace, generate, load_pair
from specdemo.drafters.mtp import CachedMtp, own_modules
from specdemo.drafters.table import BY_METHOD
from specdemo.measure.settings import settings_for
from specdemo.runtime.weights import held_bytes, weight_bytes
from tests.checkpoints import MTP_KINDS, change_tensors, model_with_mtp, with_tokenizer
from tests.drafters import PROMPT, drawn_as_said, formula_of, layers_of_kind, loaded, with_mtp
from tests.runners import with_head
from tests.sentences import assert_one_sentence
from tests.tiny import tiny

if specdemo.drafters.mtp.MtpModel is None:
    pytest.skip("this version of transformers cannot run such layers", allow_module_level=True)
MtpModel, MtpCache = specdemo.drafters.mtp.MtpModel, cache_utils.MtpCache

# One for each way in which a config and a checkpoint name their layers; the second's target keeps a state.
LINE = ["deepseek_v3", "qwen3_5_text", "glm4_moe_lite"]
# The sliding window of Mellum's is compared with transformers' own.
OTHERS = [kind for kind in MTP_KINDS if kind not in (*LINE, "mellum")]


@cache
def pair_of(kind, **changes):
    return with_head(loaded(with_mtp(kind, **changes)), None)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*LINE, *(pytest.param(kind, marks=pytest.mark.long) for kind in OTHERS)])
def test_what_the_first_layer_says_is_the_formula_s(kind):
    """After rejections of every length, and whether others stand beside it or not."""
    params = Params(draft_with="mtp", temperature=1.5, top_p=1.0, gamma=4, max_new_tokens=40, seed=1)
    pair = pair_of(kind)
    trace = generate(pair, PROMPT, params, measure=False)
    assert {0, 1} <= set(drawn_as_said(formula_of(pair.target, kind).says, PROMPT, trace))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["deepseek_v3", "mellum"])
def test_what_the_layer_says_is_what_transformers_own_says(kind):
    """Loaded and run by transformers alone: a token. The text is longer than Mellum's sliding window."""
    pair, count = pair_of(kind), layers_of_kind(kind)
    target = loaded(with_mtp(kind))
    depth = target.config.num_hidden_layers
    target.config.num_mtp_layers = count
    # transformers knows the depths of published checkpoints alone.
    target._keys_to_ignore_on_load_unexpected = [
        r"^mtp\.",
        *(rf"layers\.{depth + i}\." for i in range(count)),
    ]
    theirs = MtpModel.from_pretrained(target).eval()

    @torch.no_grad()
    def says(ids, drafted):
        hidden = target(torch.tensor([ids[:-1]]), output_hidden_states=True).hidden_states[-1]
        store, at = MtpCache(config=target.config.get_mtp_config()), torch.arange(1, len(ids))[None]
        hidden = theirs.forward_layer(0, hidden, at, store, input_ids=torch.tensor([ids[1:]]))
        return softmax(theirs._project_to_logits(hidden[0, -1:]).double(), -1)

    params = Params(draft_with="mtp", temperature=1.5, top_p=1.0, gamma=1, max_new_tokens=40, seed=1)
    trace = generate(pair, PROMPT, params, measure=False)
    assert set(drawn_as_said(says, PROMPT, trace)) == {0, 1}


def test_of_a_layer_s_experts_a_token_costs_those_that_it_goes_through():
    pair = pair_of("glm4_moe")
    layers, target = pair.carried, pair.target
    own = dict(one for module in own_modules(layers) for one in module.named_parameters())
    experts = [one.numel() for name, one in own.items() if ".experts." in name]
    chosen = target.config.num_experts_per_tok / target.config.n_routed_experts
    assert experts and chosen < 1
    read = sum(one.numel() for one in own.values()) - sum(experts) * (1 - chosen)
    expected = 4 * (read + target.lm_head.weight.numel()) / weight_bytes(target)
    assert BY_METHOD["mtp"].cost(pair, Params()).token == pytest.approx(expected, rel=0.01)


@pytest.mark.slow
def test_they_are_loaded_with_the_target_and_counted(tmp_path):
    """And a target in memory has none."""
    model_with_mtp(tmp_path, "deepseek_v3", 2, vocab_size=300)
    folder = with_tokenizer(tmp_path)
    bare = tiny_copy(folder)
    pair, without = load_pair(target=folder), load_pair(target=bare)
    more = pair.bytes_held.target - without.bytes_held.target
    first = [tensor for name, tensor in tensors_of(folder).items() if ".layers.2." in name]
    assert more == sum(4 * tensor.numel() for tensor in first)
    assert 0 < BY_METHOD["mtp"].cost(pair, Params()).token < 1
    trace = generate(pair, "the cat", Params(draft_with="mtp", max_new_tokens=20, seed=0, gamma="auto"))
    assert trace.stats.drafted and Trace.from_json(trace.to_json()).params.draft_with == "mtp"
    with pytest.raises(ValueError, match="^methods .*mtp"):
        settings_for([without], ["mtp"], Params())
    assert "in memory" in why_not(load_pair(target=pair.target))


def test_in_a_checkpoint_that_also_sees_as_qwen_publishes_them(tmp_path):
    model_with_mtp(tmp_path, "qwen3_5_text", vocab_size=300)
    folder, config = with_tokenizer(tmp_path), tmp_path / "config.json"
    text = json.loads(config.read_text()) | {"mtp_num_hidden_layers": 1}
    whole = {"architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5"}
    config.write_text(json.dumps(whole | {"text_config": text, "tie_word_embeddings": False}))
    tensors = {
        name.replace("model.", "model.language_model.", 1) if name.startswith("model.") else name: tensor
        for name, tensor in tensors_of(folder).items()
    }
    tensors["model.visual.blocks.0.norm1.weight"] = torch.ones(4)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    pair = load_pair(target=folder)
    assert generate(pair, "the cat", Params(draft_with="mtp", max_new_tokens=9, seed=0)).stats.drafted


def tensors_of(folder):
    return load_file(folder / "model.safetensors")


def IN_MTP(name):
    return ".layers.2." in name or ".layers.3." in name


def rewritten(folder, to, changes):
    """The checkpoint with these tensors in it, without those that are None."""
    shutil.copytree(folder, to, ignore=shutil.ignore_patterns("donor-*"))
    tensors = {name: tensor for name, tensor in (tensors_of(folder) | changes).items() if tensor is not None}
    save_file(tensors, to / "model.safetensors", metadata={"format": "pt"})
    return to


def tiny_copy(folder):
    return rewritten(folder, folder / "without", dict.fromkeys(filter(IN_MTP, tensors_of(folder))))


NORM, SCALE = "model.layers.2.enorm.weight", "model.layers.2.eh_proj.weight_scale"
WRONG = {
    "a tensor is missing": (NORM, lambda norm: None, "missing"),
    "a tensor has another shape": (NORM, lambda norm: torch.ones(31), "shapes"),
    "numbers need a scale": (NORM, lambda norm: norm.to(torch.float8_e4m3fn), "quantised"),
    "a scale is beside them": (SCALE, lambda norm: torch.ones(1), "quantised"),
}


@pytest.mark.parametrize(("name", "change", "word"), WRONG.values(), ids=WRONG)
def test_layers_that_cannot_be_used_are_refused_and_the_pair_goes_on(name, change, word, tmp_path):
    folder = with_mtp("deepseek_v3")
    folder = rewritten(folder, tmp_path / "broken", {name: change(tensors_of(folder)[NORM])})
    pair = with_head(loaded(folder), None)
    said = why_not(pair)
    assert word in said and str(tmp_path) not in said
    assert pair.lacks("mtp") and pair.bytes_held.target == held_bytes(pair.target)
    assert generate(pair, PROMPT, Params(draft_with="none", max_new_tokens=5)).stats.tokens


def why_not(pair) -> str:
    """Why the pair cannot draft by its layers, in one sentence."""
    with pytest.raises(ValueError) as error:
        generate(pair, PROMPT, Params(draft_with="mtp"))
    said = str(error.value)
    assert_one_sentence(said)
    assert said.startswith("draft_with ")
    return said


def test_layers_of_a_kind_that_is_not_known(tmp_path):
    target = tiny(vocab_size=12)
    target.save_pretrained(tmp_path)
    change_tensors(tmp_path, lambda one: one.update({"mtp.layers.0.input_layernorm.weight": torch.ones(32)}))
    assert "llama" in why_not(with_head(loaded(tmp_path), None))


def test_layers_that_predict_something_else_with_a_cache(monkeypatch):
    monkeypatch.setattr(CachedMtp, "hidden", lambda self, start, end: self.reads.at(torch.arange(start, end)))
    assert "with a cache" in why_not(with_head(loaded(with_mtp("deepseek_v3")), None))
