"""CachedLM: whatever was fed before and wherever, its logits are those of a fresh forward. And which models
it refuses."""

import random

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

import specdemo.runtime.cache
import specdemo.runtime.lm
from specdemo import Params, generate, load_pair
from specdemo.runtime.attention import MAX_GROUPED_QUERIES
from specdemo.runtime.lm import CachedLM, positional_cache
from specdemo.runtime.probe import capture_blocker
from tests.sentences import refusal
from tests.small import small_model
from tests.tiny import ARCHITECTURES, VOCAB, WINDOW, greedy, longrope, random_weights, tiny, tokenizer


def fresh(model, ids):
    """Logits [N, V] of the whole text at once, without a cache."""
    with torch.no_grad():
        return model(torch.tensor([ids]), use_cache=False).logits[0]


def assert_close(logits, expected):
    scale = expected.abs().max()
    torch.testing.assert_close(logits / scale, expected / scale, atol=1e-5, rtol=0)


modes = pytest.mark.parametrize("mode", ["plain", "static"])


def lm_of(model, mode):
    lm = CachedLM(model)
    lm.begin_run(static=mode == "static")
    return lm


def at(lm, start, ids, reach=0):
    """The logits of a forward of `ids` at `start`, with room for `reach` tokens more."""
    lm.reserve(start, start + len(ids) + reach)
    return lm.forward(torch.tensor(ids), torch.tensor(start))


@pytest.mark.slow
@modes
@pytest.mark.parametrize("name", ["gemma3", "gpt2", "opt"])
@torch.no_grad()
def test_any_sequence_of_forwards_at_earlier_positions(name, mode):
    model = tiny(name)
    lm, held = lm_of(model, mode), []
    draw = random.Random(name)
    # How many tokens are fed, and how many are kept: beyond the sliding window, far back, back to nothing, by
    # nothing; then at random (None); then into the next spans, and back.
    plan = [(3 * WINDOW, 3 * WINDOW - 5), (4, 2 * WINDOW + 3), (9, WINDOW - 2), (1, WINDOW - 1)]
    plan += [(7, 0), (1, 1), (1, 0)]
    plan += [(n, None) for n in draw.choices(range(1, 10), k=12)]
    plan += [(40, None)] * 4 + [(n, None) for n in draw.choices(range(1, 6), k=6)] + [(3, 50), (2, None)]
    spans = set()
    for n, keep in plan:
        ids = draw.choices(range(VOCAB), k=n)
        logits = at(lm, len(held), ids, reach=draw.choice([0, 0, 5]))
        held += ids
        assert logits.shape == (n, VOCAB)
        assert_close(logits, fresh(model, held)[-n:])
        spans.add(lm.kv_length)
        keep = draw.randrange(max(0, len(held) - 6), len(held) + 1) if keep is None else keep
        held = held[:keep]
    assert spans >= {64, 128, 192} if mode == "static" else len(spans) > 20


@modes
@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2"])
@torch.no_grad()
def test_what_stands_after_the_text_never_shows(name, mode):
    """Even where it is far from any number that a model would put there."""
    model = tiny(name)
    lm, ids = lm_of(model, mode), random.Random(2).choices(range(VOCAB), k=40)
    at(lm, 0, ids)
    for layer in lm.layers:
        layer.keys[:, :, 22:] = 1e4
        layer.values[:, :, 22:] = -1e4
    text = ids[:20] + [7, 8]
    assert_close(at(lm, 20, [7, 8], reach=30), fresh(model, text)[-2:])
    assert_close(at(lm, 22, [9], reach=30), fresh(model, [*text, 9])[-1:])


@modes
@pytest.mark.parametrize("name", ["mistral", "starcoder2"])  # by a fused forward, and by transformers' own
@torch.no_grad()
def test_keys_that_several_queries_share(name, mode):
    """For any number of rows: few are attended to without copying keys, many (a prefill) are not."""
    model = small_model(name)
    assert model.config.num_key_value_heads < model.config.num_attention_heads and model.config.sliding_window
    for n in (1, 2, 5, 17, MAX_GROUPED_QUERIES, MAX_GROUPED_QUERIES + 1):
        ids = random.Random(n).choices(range(VOCAB), k=25 + n)
        lm = lm_of(model, mode)
        at(lm, 0, ids[:25])
        assert_close(at(lm, 25, ids[25:], reach=n % 4), fresh(model, ids)[25:])


@pytest.mark.parametrize("own", ["eager", "sdpa"])
@torch.no_grad()
def test_the_models_own_attention_is_back_after_every_forward(own):
    for name in ("llama", "gpt2"):
        model = tiny(name)
        model.set_attn_implementation(own)
        lm, held = lm_of(model, "static"), random.Random(3).choices(range(VOCAB), k=30)
        assert_close(at(lm, 0, held), fresh(model, held))
        assert model.config._attn_implementation == own
        with pytest.raises(IndexError):  # an id that no embedding has
            at(lm, 20, [-VOCAB - 1])
        assert model.config._attn_implementation == own
        assert_close(at(lm, 20, held[:6]), fresh(model, held[:20] + held[:6])[-6:])


@pytest.mark.parametrize(("chunk", "as_on_gpu"), [(1, False), (7, False), (7, True), (100, True)])
@torch.no_grad()
def test_prefill_in_chunks(monkeypatch, chunk, as_on_gpu):
    """On a GPU the later chunks of a prompt have no mask, in layers without a window."""
    for size in ("PREFILL_CHUNK", "LARGE_PREFILL_CHUNK"):
        monkeypatch.setattr(specdemo.runtime.lm, size, chunk)
    ids = random.Random(3).choices(range(VOCAB), k=40)
    for name in ("llama", "gemma3", "gpt2"):
        model = tiny(name)
        lm = lm_of(model, "static")
        for prompt in (ids, ids[5:]):  # the next run writes over what the last one left
            with monkeypatch.context() as gpu:
                if as_on_gpu:
                    gpu.setattr(specdemo.runtime.cuda, "is_cuda", lambda device: True)
                    gpu.setattr(
                        specdemo.runtime.lm, "to_device", lambda ids, dtype, device: torch.tensor(ids)
                    )
                assert lm.prefill(torch.tensor(prompt[:-1])) == -(-(len(prompt) - 1) // chunk)
            assert_close(at(lm, len(prompt) - 1, prompt[-1:], reach=4), fresh(model, prompt)[-1:])
        assert lm.prefill(torch.tensor([], dtype=torch.long)) == 0


@modes
@pytest.mark.parametrize("grown", [0, 3])  # keys and values of two layers
@torch.no_grad()
def test_a_cache_that_found_no_memory_to_grow_still_holds_what_it_held(mode, grown, monkeypatch):
    model = tiny()
    text, lm = random.Random(4).choices(range(VOCAB), k=60), lm_of(model, mode)
    at(lm, 0, text)
    really, calls = specdemo.runtime.cache.longer, []

    def longer(old, length):
        if len(calls) == grown:
            raise torch.OutOfMemoryError("CUDA out of memory")
        calls.append(length)
        return really(old, length)

    with monkeypatch.context() as full:
        full.setattr(specdemo.runtime.cache, "longer", longer)
        with pytest.raises(torch.OutOfMemoryError):
            lm.reserve(0, 400)
    assert len(calls) == grown
    for rows in (1, 5):
        assert_close(at(lm, len(text) - rows, text[-rows:]), fresh(model, text)[-rows:])
    for reach in (300, 400):  # and it grows when there is memory again
        assert_close(at(lm, len(text) - 2, text[-2:], reach), fresh(model, text)[-2:])
    assert {layer.keys.shape[-2] for layer in lm.layers} == {layer.values.shape[-2] for layer in lm.layers}


@torch.no_grad()
def test_rows_after_the_models_last_position():
    """They only fill a recording up, and what they say does not count; those before them do."""
    ends = {"max_position_embeddings": 32}
    for name, end in {"gpt2": {"n_positions": 32}, "opt": ends, "llama": ends, "phi3": longrope(32)}.items():
        model = tiny(name, **end)
        lm, ids = lm_of(model, "static"), random.Random(6).choices(range(VOCAB), k=32)
        at(lm, 0, ids[:30])
        assert_close(at(lm, 29, [*ids[29:], 0, 0, 0, 0, 0])[:3], fresh(model, ids)[29:])


def of_config(model_type, **shape):
    shape = {"vocab_size": VOCAB, "bos_token_id": 0, "eos_token_id": None} | shape
    return random_weights(AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **shape))).eval()


NEO = dict(num_layers=2, attention_types=[[["global", "local"], 1]], num_heads=4, hidden_size=32)


@torch.no_grad()
def test_models_that_make_masks_of_their_own_from_the_caches_length_are_run_exactly(tmp_path):
    """GPT-Neo counts its window, and Falcon its biases, from the end of what the cache shows."""
    falcon = dict(num_hidden_layers=2, num_attention_heads=4, alibi=True, hidden_size=32)
    for name, shape in {"gpt_neo": NEO | {"window_size": WINDOW}, "falcon": falcon}.items():
        model = of_config(name, vocab_size=300, max_position_embeddings=256, **shape)
        assert "length" in capture_blocker(model)
        model.generation_config.eos_token_id = None
        model.save_pretrained(tmp_path / name)
        tokenizer().save_pretrained(tmp_path / name)
        pair = load_pair(target=tmp_path / name)
        params = Params(temperature=0, max_new_tokens=40, draft_with="lookup", ngram=1, ignore_eos=True)
        assert generate(pair, [5, 17, 3], params).output_ids == greedy(model, [5, 17, 3], 40)
    # A window as wide as all that the first span shows: only a longer span tells.
    assert capture_blocker(of_config("gpt_neo", window_size=256, max_position_embeddings=1024, **NEO))


def test_all_architectures_but_one_that_looks_at_its_own_numbers_can_be_recorded():
    assert not any(capture_blocker(tiny(name)) for name in ARCHITECTURES)
    looks = [
        lambda x: x[0, 0, 0].item(), lambda x: bool((x > 1e9).any()), lambda x: x[x > 0], torch.Tensor.unique
    ]  # fmt: skip
    for look in looks:
        model = tiny("gpt_neox")
        model.gpt_neox.final_layer_norm.register_forward_hook(
            lambda module, args, output, look=look: (look(output), output)[1]
        )
        assert "reads tensor values on the host" in capture_blocker(model)


def encoder_decoder():
    sizes = dict(d_model=32, d_ff=32, d_kv=8, num_layers=1, num_heads=4, decoder_start_token_id=0)
    return AutoModelForSeq2SeqLM.from_config(AutoConfig.for_model("t5", vocab_size=VOCAB, **sizes))


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (encoder_decoder, "encoder-decoder"),
        # It would run, and predict every token from the last forward's few tokens alone.
        (lambda: of_config("openai-gpt", n_embd=32, n_layer=2, n_head=4, n_positions=64), "cache"),
    ],
    ids=["encoder-decoder", "without a cache"],
)
def test_a_model_that_cannot_be_fed_by_position_is_refused_in_both_roles(make, why):
    model = make()
    with pytest.raises(ValueError, match=why):
        positional_cache(model)
    for role, models in (("target", dict(target=model)), ("drafter", dict(target=tiny(), drafter=model))):
        message = refusal(load_pair, **models)
        assert message.startswith(role) and type(model).__name__ in message and why in message
