"""CachedLM: whatever was fed and rewound before, its logits are those of a fresh forward. And which models it refuses."""

import random

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, BertConfig, BertLMHeadModel

import specdemo.lm
from specdemo import PairError, load_pair
from specdemo.lm import CachedLM, rewindable_cache
from tests.tiny import ARCHITECTURES, VOCAB, WINDOW, tiny


def fresh(model, ids):
    """Logits [N, V] of the whole text at once, without a cache."""
    with torch.inference_mode():
        return model(torch.tensor([ids]), use_cache=False).logits[0]


def assert_close(logits, expected):
    scale = expected.abs().max()
    torch.testing.assert_close(logits / scale, expected / scale, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ARCHITECTURES)
@torch.inference_mode()
def test_any_sequence_of_forwards_and_rewinds(name):
    model = tiny(name)
    lm, held = CachedLM(model), []
    draw = random.Random(name)
    # Beyond the sliding window, far back, back to nothing, by nothing; then at random.
    plan = [(3 * WINDOW, 3 * WINDOW - 5), (4, 2 * WINDOW + 3), (9, WINDOW - 2), (1, WINDOW - 1), (7, 0), (1, 1), (1, 0)]
    plan += [(n, None) for n in draw.choices(range(1, 10), k=20)]
    for n, keep in plan:
        ids = draw.choices(range(VOCAB), k=n)
        logits = lm.forward(torch.tensor(ids))
        held += ids
        assert logits.shape == (n, VOCAB) and lm.length == len(held)
        assert_close(logits, fresh(model, held)[-n:])
        keep = draw.randrange(max(0, len(held) - 6), len(held) + 1) if keep is None else keep
        lm.rewind(keep)
        held = held[:keep]
        assert lm.length == keep


@torch.inference_mode()
def test_a_rewind_to_beyond_the_end_changes_nothing():
    model = tiny("gemma3")
    lm = CachedLM(model)
    lm.rewind(0)
    lm.forward(torch.tensor([4, 5, 6]))
    lm.rewind(3)
    lm.rewind(50)
    assert lm.length == 3
    assert_close(lm.forward(torch.tensor([7, 8])), fresh(model, [4, 5, 6, 7, 8])[-2:])


@pytest.mark.parametrize("chunk", [1, 4, 7, 8, 100])
@torch.inference_mode()
def test_prefill_in_chunks(monkeypatch, chunk):
    monkeypatch.setattr(specdemo.lm, "PREFILL_CHUNK", chunk)
    ids = random.Random(3).choices(range(VOCAB), k=40)
    for name in ("mistral", "gpt2", "gpt_neox"):
        model = tiny(name)
        lm = CachedLM(model)
        assert lm.prefill(torch.tensor(ids[:-1])) == -(-39 // chunk)
        assert lm.length == 39
        assert_close(lm.forward(torch.tensor(ids[-1:])), fresh(model, ids)[-1:])
        assert lm.prefill(torch.tensor([], dtype=torch.long)) == 0
        assert lm.length == 40


@torch.inference_mode()
def test_two_caches_over_one_model_know_nothing_of_each_other():
    model = tiny("phi3")
    one, other = CachedLM(model), CachedLM(model)
    one.forward(torch.tensor([1, 2, 3]))
    other.forward(torch.tensor([9, 8]))
    assert_close(one.forward(torch.tensor([4])), fresh(model, [1, 2, 3, 4])[-1:])
    assert_close(other.forward(torch.tensor([7])), fresh(model, [9, 8, 7])[-1:])


@torch.inference_mode()
def test_logits_that_were_handed_out_stay_as_they_are():
    model = tiny("olmo2")
    lm = CachedLM(model)
    logits = lm.forward(torch.tensor([1, 2, 3]))
    before = logits.clone()
    lm.rewind(1)
    lm.forward(torch.tensor([40, 41, 42, 43]))
    assert torch.equal(logits, before)


@torch.inference_mode()
def test_ids_that_the_model_does_not_know_are_taken_without_a_crash():
    lm = CachedLM(tiny("gpt2"))
    assert lm.forward(torch.tensor([VOCAB, VOCAB + 1000, 3])).isfinite().all()


@torch.inference_mode()
def test_a_growing_cache_is_not_copied_at_every_step():
    """Its keys stay where they are while the buffer has room: the point of a cache layer of our own."""
    lm = CachedLM(tiny("llama"))
    places = set()
    for id in range(64):
        lm.forward(torch.tensor([id]))
        places.add(lm.cache.layers[0].keys.data_ptr())
    assert len(places) <= 7  # it doubles


RECURRENT = {
    "mamba": dict(hidden_size=32, state_size=4, num_hidden_layers=2),
    "mamba2": dict(hidden_size=32, state_size=4, num_hidden_layers=2, num_heads=4, head_dim=16, n_groups=1),
    "rwkv": dict(hidden_size=32, attention_hidden_size=32, num_hidden_layers=2, context_length=64),
    "jamba": dict(
        hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        attn_layer_period=2, attn_layer_offset=1, num_experts=2, mamba_d_state=4, use_mamba_kernels=False,
    ),
    "qwen3_next": dict(
        hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        layer_types=["linear_attention", "full_attention"], num_experts=2, num_experts_per_tok=1, moe_intermediate_size=16,
        shared_expert_intermediate_size=16, linear_num_key_heads=2, linear_num_value_heads=2, linear_key_head_dim=8,
        linear_value_head_dim=8,
    ),
    "falcon_h1": dict(
        hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        mamba_d_ssm=32, mamba_n_heads=4, mamba_d_head=8, mamba_d_state=4,
    ),
    "lfm2": dict(
        hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        layer_types=["conv", "full_attention"],
    ),
}  # fmt: skip


def assert_refused(model, why):
    with pytest.raises(ValueError, match=why) as refusal:
        rewindable_cache(model)
    assert_one_sentence(str(refusal.value))
    for role, models in (("target", dict(target=model)), ("drafter", dict(target=tiny(), drafter=model))):
        with pytest.raises(PairError) as refusal:
            load_pair(**models)
        message = str(refusal.value)
        assert message.startswith(role) and type(model).__name__ in message and why in message
        assert_one_sentence(message)


def assert_one_sentence(message):
    assert message and "\n" not in message and ". " not in message and len(message) < 200, message


@pytest.mark.parametrize("model_type", RECURRENT)
def test_models_with_a_state_are_refused(model_type):
    config = AutoConfig.for_model(model_type, vocab_size=VOCAB, pad_token_id=0, bos_token_id=0, eos_token_id=1, **RECURRENT[model_type])
    model = AutoModelForCausalLM.from_config(config)
    assert_refused(model, "cannot be rewound")


def test_encoder_decoders_are_refused():
    config = AutoConfig.for_model("t5", vocab_size=VOCAB, d_model=32, d_ff=32, d_kv=8, num_layers=1, num_heads=4, decoder_start_token_id=0)
    assert_refused(AutoModelForSeq2SeqLM.from_config(config), "encoder-decoder")


@pytest.mark.parametrize("model_type", ["openai-gpt", "xlm"])
def test_models_that_take_no_cache_are_refused(model_type):
    """They would run, and predict every token from the last forward's few tokens alone."""
    shapes = {
        "openai-gpt": dict(n_embd=32, n_layer=2, n_head=4, n_positions=64, vocab_size=VOCAB),
        "xlm": dict(emb_dim=32, n_layers=2, n_heads=4, n_words=VOCAB),
    }
    assert_refused(AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **shapes[model_type])), "cache")


def test_a_bert_that_is_a_decoder_will_do():
    shape = dict(hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, vocab_size=VOCAB)
    model = BertLMHeadModel(BertConfig(is_decoder=True, **shape)).eval()
    with torch.inference_mode():
        lm = CachedLM(model)
        lm.forward(torch.tensor([1, 2, 3, 4]))
        lm.rewind(2)
        assert_close(lm.forward(torch.tensor([5, 6])), fresh(model, [1, 2, 5, 6])[-2:])
