"""Drafting with the layers for multi-token prediction that a target's checkpoint carries: they are loaded as
transformers loads them, the text is the target's own, and what they say in each round is what they say when
everything is computed anew."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import softmax
from transformers import AutoModelForCausalLM, cache_utils, logging

import specdemo.drafters.mtp.layers
from specdemo import Params, Trace, generate, load_pair
from specdemo.bench.compare import methods_of
from specdemo.drafters.mtp.checkpoint import read_mtp
from specdemo.drafters.mtp.drafter import MtpDrafter
from specdemo.drafters.mtp.layers import CachedMtp, own_parameters
from specdemo.drafters.ways import WAYS
from specdemo.engine.draft import NoDrafter, one_hot_draft
from specdemo.engine.sampling import Sampler, uniforms
from specdemo.loading.load import plan
from specdemo.loading.request import resolve
from specdemo.runtime import cuda
from specdemo.runtime.lm import CachedLM
from specdemo.runtime.steps import EagerSteps
from specdemo.runtime.weights import held_bytes, weight_bytes
from tests.checkpoints import DEEPSEEK, MTP_KINDS, model_with_mtp, with_tokenizer
from tests.oracle import decoding, said_anew
from tests.runners import drafts_after
from tests.sentences import assert_one_sentence
from tests.tiny import noisy, tiny

if specdemo.drafters.mtp.layers.MtpModel is None:
    pytest.skip("this version of transformers cannot run such layers", allow_module_level=True)
MtpModel, MtpCache = specdemo.drafters.mtp.layers.MtpModel, cache_utils.MtpCache

PROMPT = [3, 1, 4, 1, 5]
QUICK = ["deepseek_v3", "qwen3_5_text"]  # the second one's target keeps a state
LINE = [*QUICK, "glm4_moe_lite"]  # one for each way in which a config and a checkpoint name their layers
# The sliding window of Mellum's is compared with transformers' own.
OTHERS = [kind for kind in MTP_KINDS if kind not in (*LINE, "mellum")]


def layers_of_kind(kind):
    """Two where the kind allows it."""
    return 2 if MTP_KINDS[kind][1] is DEEPSEEK else 1


@cache
def saved(kind, count=None, vocab_size=12, **changes) -> Path:
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    folder = Path(mkdtemp(prefix="mtp-"))
    model_with_mtp(folder, kind, count or layers_of_kind(kind), seed=2, vocab_size=vocab_size, **changes)
    return folder


def loaded(folder):
    return AutoModelForCausalLM.from_pretrained(folder).eval()


@cache
def pair_of(kind, count=None, **changes):
    return load_pair(target=loaded(saved(kind, count, **changes)))


class Formula:
    """What the layers compute, from the tensors in the checkpoint, without a cache and without MtpModel. The
    decoder block of each is the last layer of the model that it was taken from."""

    def __init__(self, folder, target, kind):
        names, config = MTP_KINDS[kind][1], target.config.get_text_config()
        tensors = load_file(folder / "model.safetensors")
        self.target, self.norm_type = target, type(target.model.norm)
        self.eps, self.config, self.layers = config.rms_norm_eps, config, []
        for index in range(layers_of_kind(kind)):
            donor = loaded(folder / f"donor-{index}").model
            beside = f"model.layers.{config.num_hidden_layers + index}." if names is DEEPSEEK else "mtp."
            parts = {part: tensors[f"{beside}{name}.weight"] for part, name in names.items()}
            self.layers.append((parts, donor.layers[-1], donor.rotary_emb))
        # Qwen's norms multiply by one more than their weight.
        self.shift = 1.0 if kind.startswith("qwen") else 0.0

    def norm(self, x, weight):
        return x * (x.pow(2).mean(-1, keepdim=True) + self.eps).rsqrt() * (weight + self.shift)

    def layer(self, index, tokens, hidden, positions):
        """tokens [N], hidden [N, H], positions [N] -> [N, H]"""
        parts, block, rope = self.layers[index]
        e = self.target.get_input_embeddings()(tokens)
        x = (
            torch.cat([self.norm(e, parts["enorm"]), self.norm(hidden, parts["hnorm"])], -1)
            @ parts["eh_proj"].T
        )
        n = len(tokens)
        mask = torch.full((n, n), torch.finfo(x.dtype).min).triu(1)[None, None]
        angles = rope(x[None], positions[None])
        y = block(x[None], position_embeddings=angles, position_ids=positions[None], attention_mask=mask)
        y = y[0] if isinstance(y, tuple) else y
        return self.norm(y[0], parts["post_norm"])

    @torch.no_grad()
    def says(self, ids, drafted):
        """raw_q [k, V] of the drafted tokens behind the text."""
        target, n, count = self.target, len(ids), len(self.layers)
        hidden = target.model(torch.tensor([ids[:-1]])).last_hidden_state[0]  # [n - 1, H]
        text, rows, said = torch.tensor([*ids, *drafted]), {}, []
        for depth in range(len(drafted)):
            turn, layer = divmod(depth, count)
            if turn == 0:
                at = torch.arange(1 + depth, n + depth)
                rows[layer] = (text[at], hidden, at)
            else:  # one row more
                tokens, before, at = rows[layer]
                position = torch.tensor([n - 1 + depth])
                rows[layer] = (
                    torch.cat([tokens, text[position]]),
                    torch.cat([before, hidden[-1:]]),
                    torch.cat([at, position]),
                )
            hidden = self.layer(layer, *rows[layer])
            said.append(softmax(target.lm_head(hidden[-1]).double(), -1))
        return torch.stack(said)


@cache
def formula_of(kind):
    return Formula(saved(kind), pair_of(kind).target, kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*LINE, *(pytest.param(kind, marks=pytest.mark.long) for kind in OTHERS)])
def test_what_the_layers_say_is_the_formula_s_also_beyond_their_number(kind):
    """After rejections of every length. Four tokens are drafted by one or two layers."""
    params = Params(draft_with="mtp", temperature=1.5, top_p=1.0, gamma=4, max_new_tokens=40, seed=1)
    trace = generate(pair_of(kind), PROMPT, params, measure=False)
    assert {0, 1} <= set(said_anew(formula_of(kind).says, PROMPT, trace.rounds))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["deepseek_v3", "mellum"])
def test_what_the_layers_say_is_what_transformers_own_say(kind):
    """Loaded and run by transformers alone: one token for each layer. The text is longer than Mellum's
    sliding window."""
    pair, count = pair_of(kind), layers_of_kind(kind)
    target = loaded(saved(kind))
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
        store, said = MtpCache(config=target.config.get_mtp_config()), []
        text, n = torch.tensor([[*ids, *drafted]]), len(ids)
        for layer in range(len(drafted)):
            at = torch.arange(1 + layer, n + layer)[None]
            hidden = theirs.forward_layer(layer, hidden, at, store, input_ids=text[:, 1 + layer : n + layer])
            said.append(softmax(theirs._project_to_logits(hidden[0, -1]).double(), -1))
        return torch.stack(said)

    params = Params(draft_with="mtp", temperature=1.5, top_p=1.0, gamma=count, max_new_tokens=40, seed=1)
    trace = generate(pair, PROMPT, params, measure=False)
    assert set(said_anew(says, PROMPT, trace.rounds)) == set(range(count + 1))


CHOSEN = [dict(gamma=5), dict(gamma="auto", repetition_penalty=1.3), dict(confidence=0.3)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", QUICK)
def test_greedy_text_is_the_target_s(kind):
    pair, how = pair_of(kind, vocab_size=96), dict(temperature=0, max_new_tokens=25)
    for chosen in CHOSEN:
        alone = Params(draft_with="none", **how | chosen)
        expected = generate(pair, PROMPT, alone, measure=False).output_ids
        trace = generate(pair, PROMPT, replace(alone, draft_with="mtp"), measure=False)
        assert trace.output_ids == expected and trace.stats.rejected
        assert ("confidence" in {one.ended_by for one in trace.rounds}) == ("confidence" in chosen)


@pytest.mark.slow
@pytest.mark.parametrize(("length", "gamma"), [(1, 2), (2, 5), (3, 1), (4, 5), (30, 2)])
def test_prompts_of_any_length(length, gamma, monkeypatch):
    """Also longer than the parts that a prefill reads, and shorter than what a round reads again."""
    monkeypatch.setattr(specdemo.drafters.mtp.layers, "MTP_PREFILL_CHUNK", 5)
    prompt = (PROMPT * 6)[:length]
    params = Params(draft_with="mtp", temperature=1.0, top_p=1.0, gamma=gamma, max_new_tokens=16, seed=1)
    trace = generate(pair_of("glm4_moe"), prompt, params, measure=False)
    said_anew(formula_of("glm4_moe").says, prompt, trace.rounds)
    assert len(trace.rounds[0].draft) == (0 if length == 1 else gamma)


@pytest.mark.parametrize("lengths", [[0, 1, 3] * 4, ([0] * 29 + [3]) * 2])
def test_rounds_that_draft_little_or_nothing_leave_no_hole(lengths):
    """Of two layers the second has no new row after a draft of one token."""
    pair = pair_of("glm4_moe")
    lm, layers = CachedLM(pair.target), CachedMtp(pair.carried["mtp"], pair.target)
    params = Params(draft_with="mtp", gamma=3, temperature=1.0, top_p=1.0, seed=0)
    drafter = MtpDrafter(layers, lm, Sampler(params), EagerSteps(), 3)
    for text, draft in drafts_after(PROMPT, lengths, params, lm, drafter):
        anew = formula_of("glm4_moe").says(text, draft.ids.tolist())
        torch.testing.assert_close(draft.raw_q.double(), anew, rtol=0, atol=1e-4)


@pytest.mark.slow
def test_runs_with_and_without_the_layers_do_not_disturb_each_other():
    """One pair, and the one that it becomes with other captures and another drafter."""
    target = loaded(saved("glm4_moe", vocab_size=96))
    pair = load_pair(target=target, drafter=noisy(target))

    def trace_of(pair, draft_with):
        params = Params(draft_with=draft_with, temperature=0, max_new_tokens=12)
        return generate(pair, PROMPT, params, measure=draft_with == "mtp")

    expected = trace_of(pair, "none").output_ids
    for one in (pair, pair.with_capture("auto")):
        for draft_with in ("mtp", "model", "mtp"):
            assert trace_of(one, draft_with).output_ids == expected
    pair.detach()
    assert trace_of(pair, "mtp").output_ids == expected
    target.to(torch.bfloat16)  # a model in memory belongs to its owner
    assert trace_of(pair, "mtp").stats.drafted


def test_a_captured_step_is_of_one_drafter_s_features():
    """A replay writes to the features that it was captured with."""
    target = loaded(saved("glm4_moe"))
    lm, keys = CachedLM(target), set()

    class Keyed(EagerSteps):
        def __call__(self, key, *given):
            keys.add(key)
            return super().__call__(key, *given)

    params = Params(gamma=3, temperature=0, seed=0)
    verifier = decoding(lm, NoDrafter(12, lm.device), params, PROMPT, run_step=Keyed()).decoder.verifier
    kept = [None, *(CachedMtp(load_pair(target=target).carried["mtp"], target).reads for _ in range(2))]
    for features in (*kept, *kept):
        lm.features = features
        with torch.no_grad():
            lm.prefill(torch.tensor(PROMPT[:-1]))
            verifier.verify(PROMPT, one_hot_draft([1, 2], 12, lm.device), uniforms(0, 0, 3))
    assert len(keys) == 3


def test_16_bits():
    pair = load_pair(target=loaded(saved("qwen3_5_text")).to(torch.bfloat16))
    assert {one.dtype for one in pair.carried["mtp"].parameters()} == {torch.bfloat16}
    trace = generate(pair, PROMPT, Params(draft_with="mtp", gamma=3, max_new_tokens=20, seed=0))
    assert trace.stats.drafted and trace.stats.tokens == 20


def test_of_a_layer_s_experts_a_token_costs_those_that_it_goes_through():
    pair = pair_of("glm4_moe")
    layers, target = pair.carried["mtp"], pair.target
    own = own_parameters(layers, target)
    experts = [one.numel() for name, one in own.items() if ".experts." in name]
    chosen = target.config.num_experts_per_tok / target.config.n_routed_experts
    assert experts and chosen < 1
    read = sum(one.numel() for one in own.values()) - sum(experts) * (1 - chosen)
    read = read / len(layers.layers) + target.lm_head.weight.numel()
    expected = 4 * read / weight_bytes(target)
    assert WAYS["mtp"].cost(pair, Params()).token == pytest.approx(expected, rel=0.01)


@pytest.mark.slow
def test_they_are_loaded_with_the_target_and_counted(tmp_path):
    """The plan before loading, and the bytes held after it."""
    model_with_mtp(tmp_path, "deepseek_v3", 2, vocab_size=300)
    folder = with_tokenizer(tmp_path)
    bare = tiny_copy(folder)
    pair, planned, without = load_pair(target=folder), plan(resolve(target=folder)), load_pair(target=bare)
    more = pair.bytes_held.target - without.bytes_held.target
    [size] = planned.sizes
    assert size == pytest.approx(pair.bytes_held.target, abs=200)
    assert more == sum(4 * tensor.numel() for name, tensor in tensors_of(folder).items() if IN_MTP(name))
    assert 0 < WAYS["mtp"].cost(pair, Params()).token < 1
    trace = generate(pair, "the cat", Params(draft_with="mtp", max_new_tokens=20, seed=0, gamma="auto"))
    assert trace.stats.drafted and Trace.from_json(trace.to_json()).params.draft_with == "mtp"
    with pytest.raises(ValueError) as refused:
        generate(without, "the cat", Params(draft_with="mtp"))
    assert_one_sentence(str(refused.value))
    told = "for this pair: its target's checkpoint has no layers for multi-token prediction"
    assert str(refused.value) == f'draft_with must not be "mtp" {told}'
    with pytest.raises(ValueError, match='methods must not include "mtp" for this pair: its target'):
        methods_of(without, ["mtp"], Params())
    assert generate(without, "the cat", Params(draft_with="none", max_new_tokens=5)).stats.tokens


def test_they_are_read_while_another_thread_captures(monkeypatch):
    """The CPU stands for the GPU that the target is on. Only giving unused memory back waits."""
    target = loaded(saved("deepseek_v3"))
    monkeypatch.setattr(cuda, "is_cuda", lambda device: True)
    monkeypatch.setattr(cuda, "free_cache", lambda device: None)
    with ThreadPoolExecutor(1) as loader, cuda.ALONE:
        layers = loader.submit(read_mtp, target, saved("deepseek_v3")).result(30)
    assert isinstance(layers, MtpModel)


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
    pair, [size] = load_pair(target=folder), plan(resolve(target=folder)).sizes
    assert size == pytest.approx(pair.bytes_held.target, abs=200)
    assert generate(pair, "the cat", Params(draft_with="mtp", max_new_tokens=9, seed=0)).stats.drafted


@pytest.mark.slow
def test_they_stay_in_their_dtype_where_the_target_is_quantised(tmp_path):
    model_with_mtp(tmp_path, "qwen3_5_text", vocab_size=300)
    folder = with_tokenizer(tmp_path)
    asked = dict(target=folder, quantize="int8")
    pair, [size] = load_pair(**asked), plan(resolve(**asked)).sizes
    assert size == pytest.approx(pair.bytes_held.target, rel=0.01)
    own = own_parameters(pair.carried["mtp"], pair.target)
    assert {type(one) for one in own.values()} == {torch.nn.Parameter}
    trace = generate(pair, "the cat", Params(draft_with="mtp", max_new_tokens=20, seed=0))
    assert trace.stats.drafted


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
    "a tensor is missing": (NORM, lambda norm: None, "enorm"),
    "a tensor has another shape": (NORM, lambda norm: torch.ones(31), "other shapes"),
    "numbers need a scale": (NORM, lambda norm: norm.to(torch.float8_e4m3fn), "its weights are quantised"),
    "a scale is beside them": (SCALE, lambda norm: torch.ones(1), "its weights are quantised"),
    "a value is not finite": (NORM, lambda norm: norm * torch.nan, "not finite"),
}


@pytest.mark.parametrize(("name", "change", "words"), WRONG.values(), ids=WRONG)
def test_layers_that_cannot_be_used_are_refused_and_the_pair_goes_on(name, change, words, tmp_path):
    folder = saved("deepseek_v3")
    folder = rewritten(folder, tmp_path / "broken", {name: change(tensors_of(folder)[NORM])})
    pair = load_pair(target=loaded(folder))
    with pytest.raises(ValueError) as refused:
        generate(pair, PROMPT, Params(draft_with="mtp"))
    assert_one_sentence(str(refused.value))
    assert "layers for multi-token prediction cannot be used: " in str(refused.value)
    assert words in str(refused.value) and str(tmp_path) not in str(refused.value)
    assert pair.lacks("mtp") and pair.bytes_held.target == held_bytes(pair.target)
    assert generate(pair, PROMPT, Params(draft_with="none", max_new_tokens=5)).stats.tokens


def test_layers_of_a_kind_that_is_not_known(tmp_path):
    target = tiny(vocab_size=12)
    target.save_pretrained(tmp_path)
    tensors = tensors_of(tmp_path) | {"mtp.layers.0.input_layernorm.weight": torch.ones(32)}
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match="cannot be used: how those of llama compute is not known here$"):
        generate(load_pair(target=loaded(tmp_path)), PROMPT, Params(draft_with="mtp"))


def test_layers_that_predict_something_else_with_a_cache(monkeypatch):
    monkeypatch.setattr(CachedMtp, "hidden", lambda self, start, end: self.reads.at(torch.arange(start, end)))
    pair = load_pair(target=loaded(saved("deepseek_v3")))
    told = "what they predict with a cache differs from what they predict without one"
    assert pair.carried["mtp"].endswith(told)
