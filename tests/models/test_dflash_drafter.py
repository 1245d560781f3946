"""DFlash, DFlash 2 and DSpark heads: each option of their configs, the confidence head, and compiled. What
they owe as every drafter does is in test_drafter_contract.py."""

import copy
from dataclasses import replace

import pytest
import torch

from specdemo import Params, Round, generate, stream
from specdemo.drafters.dflash import CachedDFlash, DFlashDrafter
from specdemo.engine.sampling import Sampler, uniforms
from specdemo.runtime.decoder import RowMask
from specdemo.runtime.lm import CachedLM
from tests.block_heads import (
    DFLASH2,
    block_logits,
    save_authors_block_head,
    save_block_head,
    tiny_block_head,
)
from tests.drafters import DSPARK, PROMPT, drawn_as_said
from tests.heads import read_head
from tests.models.test_no_sync import TEXT
from tests.oracle import materials
from tests.runners import with_head
from tests.tiny import tiny

WINDOWED = (RowMask(3, from_first=True), RowMask(4, from_first=True, later=True))
HEADS = {
    "a draft vocabulary": dict(draft_ids=[token for token in range(48) if token % 3]),
    "the anchor drafts": dict(samples_from_anchor=True),
    "windows from the anchor": dict(masks=WINDOWED),
    "windows from each row": dict(masks=(RowMask(3), RowMask())),
    "scale and cap": dict(embedding_scale=2.0, logit_scale=0.5, logit_cap=3.0),
    "dspark": DSPARK,
    "dspark, the anchor drafts nothing": dict(markov_rank=8),
    "dflash2, three taps": DFLASH2 | dict(taps=3, masks=WINDOWED, logit_cap=3.0, embedding_scale=2.0, seed=8),
    "dflash2, the anchor drafts": DFLASH2 | dict(samples_from_anchor=True, candidates=16),
}


@pytest.mark.slow
@pytest.mark.parametrize("options", HEADS.values(), ids=HEADS)
def test_each_option_counts_where_it_drafts(options):
    """By torch's operations and compiled, after rejections and after drafts that were accepted."""
    target = tiny(vocab_size=48, seed=2)
    head = tiny_block_head(target, **options)
    params = Params(temperature=2.0, top_p=1.0, gamma=3, max_new_tokens=30, seed=1, alternatives=3)

    def says(text, drafted):
        return block_logits(head, target, text, drafted).softmax(-1)

    for capture in ("off", "auto"):
        pair = with_head(target, head, capture)
        trace = generate(pair, PROMPT, params, measure=False)
        assert {0, 1} <= set(drawn_as_said(says, PROMPT, trace))
    assert (pair.runner.lms[1].native is None) == (head.kind == "dflash2")


@pytest.mark.parametrize("published_by", ["authors", "authors, with a factor", "speculators"])
def test_embeddings_that_the_target_scales(tmp_path, published_by):
    """The authors of DFlash call the target's module, which multiplies by the root of the width in Gemma;
    speculators trains its heads on the raw weight."""
    target = tiny("gemma3", vocab_size=12, seed=2)
    own = tiny_block_head(target, layer_ids=(1,))
    factor = {"input_embedding_scale": 3.0} if "factor" in published_by else {}
    if published_by == "speculators":
        save_block_head(own, tmp_path)
    else:
        save_authors_block_head(own, tmp_path, **factor)
    head = read_head(tmp_path)
    module = target.get_input_embeddings()
    raw = module.weight.detach() * (3.0 if factor else 1.0)
    embed = module if published_by == "authors" else raw.__getitem__

    def says(text, drafted):
        return block_logits(own, target, text, drafted, embed).softmax(-1)

    params = Params(temperature=2.0, top_p=1.0, gamma=2, max_new_tokens=20, seed=1, alternatives=3)
    trace = generate(with_head(target, head), TEXT, params, measure=False)
    assert len(drawn_as_said(says, TEXT, trace)) > 5


def test_the_confidence_head_ends_a_draft():
    """Before the first place that it finds unlikely to be accepted, whatever is drawn there."""
    target = tiny(vocab_size=12, seed=2)
    head = tiny_block_head(target, **DSPARK)
    params = Params(temperature=1.0, top_p=1.0, gamma=4, max_new_tokens=9, seed=1)
    lm, counts = CachedLM(target), set()
    drafter = DFlashDrafter(materials(Sampler(params), lm, CachedDFlash(head, target)))
    with torch.no_grad():
        lm.prefill(torch.tensor(TEXT[:-1]))
        drafter.start(TEXT)
        sure = drafter.propose(TEXT, 4, uniforms(1, 0, 4).draft).sure.tolist()
    assert len(set(sure)) == 4 and all(0 < one < 1 for one in sure)
    for confidence in (0.01, *(one + 1e-4 for one in sure), 0.999):
        expected = next((i for i, one in enumerate(sure) if one < confidence), 4)
        events = stream(with_head(target, head), TEXT, replace(params, confidence=confidence), measure=False)
        first = next(event for event in events if isinstance(event, Round))
        assert len(first.draft) == expected and first.ended_by == ("gamma" if expected == 4 else "confidence")
        counts.add(expected)
    assert len(counts) > 2


def test_features_read_at_the_end_of_their_memory_say_the_same():
    """A block of rows would reach beyond it. How much memory there is depends on the texts before."""
    target = tiny()
    head = tiny_block_head(target)
    short, long = (CachedDFlash(head, target, True) for _ in range(2))
    states = torch.randn(9, short.reads.states.shape[1], generator=torch.Generator().manual_seed(0))
    for cached, room in ((short, 9), (long, 64)):
        cached.begin_run(static=True)
        cached.grow(64)
        cached.reads.states = torch.cat([states, states.new_zeros(room - 9, states.shape[1])])
        cached.read(torch.tensor(0), 9)
    assert short.native is not None
    for one, other in zip(short.layers, long.layers, strict=True):
        assert torch.equal(one.keys[..., :9, :], other.keys[..., :9, :])


def test_a_weight_that_no_longer_fits_16_bits_between_runs():
    """Products of another kind are needed then: one that was not compiled would be called at address 0."""
    target = tiny()
    head = tiny_block_head(target)
    for weight in (*target.parameters(), *head.parameters()):
        weight.data = weight.data.bfloat16().float()
    fast, plain = CachedDFlash(head, target, True), CachedDFlash(head, target)
    fast.begin_run(static=True)
    target.lm_head.weight.data.mul_(1.0001)
    fast.begin_run(static=True)
    assert fast.native is not None
    with torch.no_grad():
        found, expected = (one.block(torch.tensor([5]), torch.tensor(0), 5) for one in (fast, plain))
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=1e-4)


def test_what_cannot_be_compiled_is_said():
    target = tiny(hidden_size=64)
    pair = with_head(target, tiny_block_head(target, intermediate_size=40, head_dim=16), "auto")
    generate(pair, TEXT, Params(max_new_tokens=8, seed=0))
    (note,) = map(str, pair.runner.notes)
    assert "drafter" in note and "40" in note


def test_transformers_own_candidates_are_the_same():
    """With the same weights in the only DFlash model that transformers has, and its generator of candidates
    for assisted generation. Newer than the oldest transformers that can be used here."""
    candidates = pytest.importorskip("transformers.generation.candidate_generator")
    transformers = pytest.importorskip("transformers")
    if not hasattr(candidates, "DFlashTokenCandidateGenerator"):
        pytest.skip("this transformers has no DFlash")
    target = tiny(vocab_size=96, seed=2)
    head = tiny_block_head(target, layer_ids=(1,))
    own = head.config.layer
    kind = transformers.models.auto.configuration_auto.CONFIG_MAPPING["muse_glimmer_assistant"]
    shared = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    shared += ("num_key_value_heads", "head_dim", "rms_norm_eps", "rope_parameters")
    config = kind(
        **{name: getattr(own, name) for name in shared},
        layer_types=["full_attention"] * own.num_hidden_layers,
        block_size=head.config.block_size,
        mask_token_id=head.config.mask_token_id,
        target_layer_ids=[0],
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id")),
    )
    assistant = transformers.AutoModel.from_config(config).eval()
    places = {"fc.": "encoder.fc.", "hidden_norm.": "encoder.output_norm_enc."}
    weights = {}
    for name, value in head.state_dict().items():
        start = next((start for start in places if name.startswith(start)), "")
        weights[places.get(start, "") + name.removeprefix(start)] = value
    assistant.load_state_dict(weights)
    generation = transformers.GenerationConfig(max_length=100, do_sample=False)
    generator = candidates.DFlashTokenCandidateGenerator(
        assistant, target.get_input_embeddings(), target.get_output_embeddings(), generation
    )
    text = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6, 5, 3]])
    with torch.no_grad():
        outputs = copy.deepcopy(target)(text[:, :-1], output_hidden_states=True)
        positions = torch.arange(text.shape[1])[None]
        given = {"position_ids": positions, "attention_mask": torch.ones_like(text)}
        ids, logits = generator.get_candidates(text, given, outputs, False, 0)
    expected = block_logits(head, target, text[0].tolist(), [0] * head.config.places)
    assert (logits[0].double() - expected).abs().max() < 1e-4 and logits.std() > 0.1
    assert ids[0, -head.config.places :].tolist() == expected.argmax(-1).tolist()
