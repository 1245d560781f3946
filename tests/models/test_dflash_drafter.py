"""Drafting with DFlash and DSpark heads: the text is the target's own, and what the head says in each round
is what it says when everything is computed anew, by other code."""

import copy
from dataclasses import replace
from functools import cache

import pytest
import torch

import specdemo.runtime.dflash
import specdemo.runtime.lm
from specdemo import Params, Round, generate, load_pair, stream
from specdemo.engine.drafters.dflash import DFlashDrafter
from specdemo.engine.sampling import Sampler, uniforms
from specdemo.engine.step import NEXT
from specdemo.runtime.device import Clock
from specdemo.runtime.dflash import CachedDFlash, Markov, Sight
from specdemo.runtime.graphs import EagerSteps, Graphs
from specdemo.runtime.lm import CachedLM
from specdemo.runtime.native_block import NativeDFlash
from tests.block_heads import block_logits, tiny_block_head
from tests.fake_cuda import FakeCuda, install
from tests.models.test_capture import Filled, timeless
from tests.models.test_eagle3_drafter import Launches
from tests.models.test_exact_stream import RUNS, check, tiny_llama
from tests.models.test_greedy import NEW, PROMPT, assert_same, expected_of, target_of
from tests.models.test_no_sync import SAMPLERS, TEXT, Kept, Waits, recordable
from tests.oracle import decoding
from tests.runners import run_by, with_head
from tests.tiny import tiny

WINDOWED = (Sight(3, later=False), Sight(4))
HEADS = {
    "dflash": {},
    "a draft vocabulary": dict(draft_ids=[1, 3, 5, 7, 9, 11]),
    "the anchor drafts": dict(samples_from_anchor=True),
    "windows from the anchor": dict(sights=WINDOWED),
    "windows from each row": dict(sights=(Sight(3, False, False), Sight(None, later=False))),
    "one layer's input": dict(layer_ids=(1,)),
    "scale and cap": dict(embedding_scale=2.0, logit_scale=0.5, logit_cap=3.0),
    "dspark": dict(samples_from_anchor=True, markov=Markov(6, "vanilla")),
    "dspark, gated": dict(markov=Markov(6, "gated"), draft_ids=[1, 2, 4, 8]),
    "dspark, rnn": dict(samples_from_anchor=True, markov=Markov(6, "rnn"), has_confidence=True),
}


def said_anew(head, target, prompt, rounds):
    """Asserts that every q in the rounds is what the head says, computed anew. Returns how many drafted
    tokens each round has accepted."""
    text, accepted = list(prompt), []
    for this_round in rounds:
        drafted = [token.id for token in this_round.draft]
        if drafted:
            raw_q = block_logits(head, target, text, drafted).softmax(-1)
            for row, token in zip(raw_q, this_round.draft, strict=True):
                assert token.raw_q == pytest.approx(row[token.id].item(), abs=2e-5)
                for alternative in token.top:
                    assert alternative[5] == pytest.approx(row[alternative[0]].item(), abs=2e-5)
            accepted.append(sum(token.fate == "accepted" for token in this_round.draft))
        text += this_round.emitted
    return accepted


@pytest.mark.parametrize("options", HEADS.values(), ids=HEADS)
def test_what_the_head_says_is_what_it_says_when_computed_anew(options):
    """After rejections of every length and after full acceptance."""
    target = tiny(vocab_size=12, seed=2)
    head = tiny_block_head(target, **options)
    params = Params(temperature=2.0, top_p=1.0, gamma=2, max_new_tokens=50, seed=1, alternatives=3)
    trace = generate(with_head(target, head), [3, 1, 4, 1, 5], params, measure=False)
    assert set(said_anew(head, target, [3, 1, 4, 1, 5], trace.rounds)) == {0, 1, 2}


@pytest.mark.parametrize("length", [1, 2, 3, 30])
@pytest.mark.parametrize("gamma", [1, 4, 8])
def test_prompts_of_any_length(length, gamma, monkeypatch):
    """Also longer than the parts that a prefill reads, and drafts longer than a block."""
    monkeypatch.setattr(specdemo.runtime.lm, "PREFILL_CHUNK", 7)
    monkeypatch.setattr(specdemo.runtime.dflash, "HEAD_PREFILL_CHUNK", 5)
    target = tiny(vocab_size=12, seed=2)
    head, prompt = tiny_block_head(target), (TEXT * 4)[:length]
    params = Params(temperature=1.0, top_p=1.0, gamma=gamma, max_new_tokens=20, seed=1)
    trace = generate(with_head(target, head), prompt, params, measure=False)
    said_anew(head, target, prompt, trace.rounds)
    assert len(trace.rounds[0].draft) == min(gamma, 4)
    assert trace.rounds[0].ended_by == ("gamma" if gamma <= 4 else "drafter")


@cache
def near(name, **options):
    """A head that is right now and then: with a target of few tokens."""
    return tiny_block_head(target_of(name), **options)


@pytest.mark.parametrize("capture", ["off", "auto"])
@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2"])
@pytest.mark.parametrize("options", [{}, HEADS["dspark, rnn"]], ids=["dflash", "dspark"])
def test_greedy_text_is_the_target_s(name, capture, options):
    target, expected = target_of(name), expected_of(name)
    pair = with_head(target, near(name, **options), capture)
    for gamma in (1, 4):
        trace = generate(pair, PROMPT, Params(temperature=0, gamma=gamma, max_new_tokens=NEW))
        assert_same(target, trace.output_ids, expected)
        assert trace.stats.drafted
    if capture == "off" or (name == "llama" and not options):
        assert not pair.runner.notes


def test_rounds_that_draft_nothing_leave_no_hole():
    """As where the length of drafts is chosen round by round."""
    target = tiny(vocab_size=12, seed=2)
    head = tiny_block_head(target)
    lm, cached = CachedLM(target), CachedDFlash(head, target)
    params = Params(gamma=2, temperature=1.0, top_p=1.0, seed=0)
    drafter = DFlashDrafter(cached, lm, Sampler(params), EagerSteps(), 2)
    verifier = decoding(lm, drafter, params, TEXT).decoder.verifier
    text = list(TEXT)
    with torch.no_grad():
        lm.prefill(torch.tensor(text[:-1]))
        drafter.start(text)
        for index in range(12):
            u = uniforms(0, index, 2)
            draft = drafter.propose(text, 2 if index % 6 == 5 else 0, u.draft)
            if draft.k:
                anew = block_logits(head, target, text, draft.ids.tolist()).softmax(-1)
                torch.testing.assert_close(draft.raw_q, anew.float(), rtol=0, atol=1e-5)
            verdict = verifier.verify(text, draft, u)
            text += verdict.drafted(verdict.accepted)
            text.append(verdict.token_ids[verdict.accepted][NEXT])
    assert len(text) >= len(TEXT) + 12


def test_beyond_the_head_s_context_nothing_is_drafted():
    head = tiny_block_head(target_of("llama"), context=40)
    trace = generate(
        with_head(target_of("llama"), head), PROMPT, Params(temperature=0, gamma=4, max_new_tokens=NEW)
    )
    assert trace.output_ids == expected_of("llama")
    length = len(PROMPT)
    for this_round in trace.rounds:
        assert len(this_round.draft) == max(0, min(4, 40 - length)) or trace.rounds[-1] is this_round
        length += len(this_round.emitted)


def test_a_penalty_counts_the_drafts_before():
    """q of each place is penalised for the tokens that were drafted before it in the block."""
    target = tiny(vocab_size=12, seed=2)
    head = tiny_block_head(target)
    params = Params(temperature=1.0, top_p=1.0, gamma=4, max_new_tokens=40, seed=1, repetition_penalty=1.5)
    trace = generate(with_head(target, head), [3, 1, 4], params, measure=False)
    text, found = [3, 1, 4], 0
    for this_round in trace.rounds:
        drafted = [token.id for token in this_round.draft]
        logits = block_logits(head, target, text, drafted)
        for i, token in enumerate(this_round.draft):
            before = text + drafted[:i]
            scaled = torch.where(logits[i] < 0, logits[i] * 1.5, logits[i] / 1.5)
            known = torch.zeros(12, dtype=torch.bool)
            known[before] = True
            q = torch.where(known, scaled, logits[i]).softmax(-1)
            assert token.q == pytest.approx(q[token.id].item(), abs=2e-5)
            found += token.id not in text and token.id in drafted[:i]
        text += this_round.emitted
    assert found  # a token that was new in its block, and came twice


def test_the_confidence_head_ends_a_draft():
    """Before the first place that it finds unlikely to be accepted, whatever is drawn there."""
    target = tiny(vocab_size=12, seed=2)
    head = tiny_block_head(target, **HEADS["dspark, rnn"])
    expected, counts = [], set()

    def run(confidence):
        params = Params(temperature=1.0, top_p=1.0, gamma=4, max_new_tokens=1, ignore_eos=True, seed=1)
        return generate(
            with_head(target, head), TEXT, Params(**{**params.to_dict(), "confidence": confidence})
        )

    cached, lm = CachedDFlash(head, target), CachedLM(target)
    drafter = DFlashDrafter(cached, lm, Sampler(Params(temperature=1.0, top_p=1.0)), EagerSteps(), 4)
    with torch.no_grad():
        lm.prefill(torch.tensor(TEXT[:-1]))
        drafter.start(TEXT)
        draft = drafter.propose(TEXT, 4, uniforms(1, 0, 4).draft)
    sure = draft.sure.tolist()
    assert len(set(sure)) == 4 and all(0 < one < 1 for one in sure)
    for confidence in (0.01, *(one + 1e-4 for one in sure), 0.999):
        expected = next((i for i, one in enumerate(sure) if one < confidence), 4)
        rounds = stream(
            with_head(target, head),
            TEXT,
            Params(temperature=1.0, top_p=1.0, gamma=4, max_new_tokens=9, seed=1, confidence=confidence),
        )
        first = next(event for event in rounds if isinstance(event, Round))
        assert len(first.draft) == expected and first.ended_by == ("gamma" if expected == 4 else "confidence")
        counts.add(expected)
    assert len(counts) > 2


@pytest.mark.parametrize(
    "dtypes", [("bfloat16", "bfloat16"), ("float32", "bfloat16"), ("bfloat16", "float32")]
)
def test_16_bits(dtypes):
    """The features come in the target's dtype, and the head computes in its own."""
    of_target, of_head = (getattr(torch, name) for name in dtypes)
    target = tiny(vocab_size=12).to(of_target)
    head = tiny_block_head(target, **HEADS["dspark"]).to(of_head)
    trace = generate(with_head(target, head), TEXT, Params(gamma=3, max_new_tokens=20, seed=0))
    assert trace.stats.drafted and trace.stats.tokens == 20


@pytest.mark.parametrize("options", [{}, HEADS["dspark, rnn"]], ids=["dflash", "dspark"])
@pytest.mark.parametrize("params", [dict(temperature=0.0), dict(temperature=0.9, top_p=0.9)], ids=str)
def test_a_run_over_captured_steps_is_the_run(monkeypatch, params, options):
    """Both steps as CUDA graphs, without a GPU: features pass from one graph to the other."""
    params = Params(**params, seed=3, max_new_tokens=30)
    monkeypatch.setattr(Clock, "ms_between", lambda *_: 0.0)
    head = near("llama", **options)

    def rounds_of(pair):
        return timeless(
            [event for event in stream(pair, PROMPT, params, measure=False) if isinstance(event, Round)]
        )

    expected = rounds_of(run_by(target_of("llama"), head, Filled()))
    fake = install(monkeypatch, FakeCuda())
    graphs = Graphs(Clock())
    rounds = rounds_of(run_by(target_of("llama"), head, graphs))
    assert graphs.fault is None and {key[0] for key in graphs.graphs} == {"draft", "verify"}
    assert fake.log.count("replay") > len(rounds) and not fake.violations
    assert rounds == expected


@pytest.mark.parametrize("k", [4, 2])
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("options", [{}, HEADS["dspark, rnn"]], ids=["dflash", "dspark"])
def test_no_step_waits(sampler, k, options):
    params = Params(gamma=4, max_new_tokens=40, alternatives=3, seed=1, **SAMPLERS[sampler])
    run, shared, target = Kept(), Sampler(params), target_of("llama")
    lm, cached = recordable(target), CachedDFlash(near("llama", **options), target)
    drafter = DFlashDrafter(cached, lm, shared, run, 4)
    verifier = decoding(lm, drafter, params, TEXT, run_step=run, sampler=shared).decoder.verifier
    with torch.no_grad():
        lm.prefill(torch.tensor(TEXT[:-1]))
        drafter.start(TEXT)
        u = uniforms(1, 0, 4)
        verifier.verify(TEXT, drafter.propose(TEXT, k, u.draft), u)
    assert set(run.steps) == {"draft", "verify"}
    for step, value in run.steps.values():
        with torch.no_grad(), Waits() as waits:
            step(value)
        assert not waits.found


EXACT = {
    "dflash": {},
    "some tokens": dict(draft_ids=[1, 3, 4, 6]),
    "dspark": dict(samples_from_anchor=True, markov=Markov(4, "rnn")),
}


@pytest.mark.slow
@pytest.mark.parametrize("runs", RUNS)
@pytest.mark.parametrize("options", EXACT.values(), ids=EXACT)
def test_the_text_is_distributed_as_the_target_s(options, runs):
    target = tiny_llama(3)
    head = tiny_block_head(target, block_size=4, **options | dict(layer_ids=(0,)))
    params = Params(gamma=2, temperature=0.8, top_p=1.0, max_new_tokens=6, alternatives=0)
    check(params, [3, 1, 4, 1, 5], runs, target=target, drafter=None, pair=with_head(target, head))


@pytest.mark.slow
@pytest.mark.parametrize("confidence", [0.3, 0.6])
def test_it_is_so_where_the_confidence_head_ends_drafts(confidence):
    target = tiny_llama(3)
    head = tiny_block_head(
        target,
        block_size=4,
        layer_ids=(0,),
        samples_from_anchor=True,
        markov=Markov(4, "gated"),
        has_confidence=True,
    )
    params = Params(
        gamma=2, temperature=0.8, top_p=1.0, max_new_tokens=6, alternatives=0, confidence=confidence
    )
    check(params, [3, 1, 4, 1, 5], 500, target=target, drafter=None, pair=with_head(target, head), wanted=())


WIDE = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2)  # as compiled code needs it


@pytest.mark.parametrize(
    "options", [{}, dict(draft_ids=list(range(0, 96, 3)))], ids=["all tokens", "some tokens"]
)
def test_compiled_blocks_say_what_the_head_says(options):
    """For every number of rows, after texts of several lengths, and after weights were changed."""
    target = tiny(**WIDE)
    head = tiny_block_head(target, intermediate_size=64, head_dim=16, **options)
    fast, plain = NativeDFlash(head, target), CachedDFlash(head, target)
    for cached in (fast, plain):
        cached.reserve(64)
        cached.features.reserve(64)
    fast.begin_run(static=True)
    assert fast.native is not None and fast.not_native is None
    for change in (1.0, 1.3):
        head.layers[1].mlp.down_proj.weight.data *= change
        fast.begin_run(static=True)
        for start in (0, 1, 9, 40):
            states = torch.randn(
                64, fast.features.states.shape[1], generator=torch.Generator().manual_seed(start)
            )
            for cached in (fast, plain):
                cached.features.states.copy_(states[: len(cached.features.states)])
                for at in range(0, start, 9):  # a whole block of rows, and less
                    cached.read_from(torch.tensor(at), min(9, start - at))
            for count in range(2, 6):
                anchor, at = torch.tensor([count]), torch.tensor(start)
                expected = plain.drafting_logits(anchor, at, count)
                torch.testing.assert_close(
                    fast.drafting_logits(anchor, at, count), expected, atol=2e-4, rtol=1e-4
                )


def test_features_read_at_the_end_of_their_memory_say_the_same():
    """A block of rows would reach beyond it. How much memory there is depends on the texts before."""
    target = tiny(**WIDE)
    head = tiny_block_head(target, intermediate_size=64, head_dim=16)
    short, long = NativeDFlash(head, target), NativeDFlash(head, target)
    states = torch.randn(9, short.features.states.shape[1], generator=torch.Generator().manual_seed(0))
    for cached, room in ((short, 9), (long, 64)):
        cached.begin_run(static=True)
        cached.reserve(64)
        cached.features.states = torch.cat([states, states.new_zeros(room - 9, states.shape[1])])
        cached.read_from(torch.tensor(0), 9)
    assert torch.equal(short.keys[..., :9, :], long.keys[..., :9, :])


def test_what_cannot_be_compiled_is_said():
    target = tiny(**WIDE)
    pair = load_pair(target=target)
    pair.runner.capture = "auto"
    for options, words in (
        (dict(sights=(Sight(4), Sight())), "sliding windows"),
        (dict(markov=Markov(8, "gated")), "it has a Markov head"),
    ):
        pair.runner.change_drafter(tiny_block_head(target, intermediate_size=64, head_dim=16, **options))
        generate(replace(pair, drafter=pair.runner.drafter), TEXT, Params(max_new_tokens=8, seed=0))
        (note,) = pair.runner.notes
        assert note.startswith("the drafter runs operation by operation, which is slower: ") and words in note


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
    text, worst = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6, 5, 3]]), 0.0
    with torch.no_grad():
        outputs = copy.deepcopy(target)(text[:, :-1], output_hidden_states=True)
        positions = torch.arange(text.shape[1])[None]
        given = {"position_ids": positions, "attention_mask": torch.ones_like(text)}
        ids, logits = generator.get_candidates(text, given, outputs, False, 0)
    expected = block_logits(head, target, text[0].tolist(), [0] * head.config.places)
    worst = (logits[0].double() - expected).abs().max().item()
    assert worst < 1e-4 and logits.std() > 0.1
    assert ids[0, -head.config.places :].tolist() == expected.argmax(-1).tolist()


def test_a_round_launches_no_more_than_it_did():
    """Greedy drafts by two layers, of four tokens as of two. An EAGLE-3 head of one layer takes 289."""
    counts = {}
    for k in (4, 2):
        params = Params(gamma=k, max_new_tokens=40, alternatives=3, seed=1, temperature=0.0)
        run, shared, target = Kept(), Sampler(params), target_of("llama")
        lm, cached = recordable(target), CachedDFlash(near("llama"), target)
        drafter = DFlashDrafter(cached, lm, shared, run, k)
        with torch.no_grad():
            lm.prefill(torch.tensor(TEXT[:-1]))
            drafter.start(TEXT)
            drafter.propose(TEXT, k, uniforms(1, 0, k).draft)
        ((step, value),) = run.steps.values()
        with torch.no_grad(), Launches() as launches:
            step(value)
        counts[k] = launches.names.total()
    assert counts[2] == counts[4] <= 176  # on a GPU fewer: there a norm is one operation instead of five


def test_a_weight_that_no_longer_fits_16_bits_between_runs():
    """Products of another kind are needed then: one that was not compiled would be called at address 0."""
    target = tiny(**WIDE)
    for weight in target.parameters():
        weight.data = weight.data.bfloat16().float()
    head = tiny_block_head(target, intermediate_size=64, head_dim=16)
    for weight in head.parameters():
        weight.data = weight.data.bfloat16().float()
    fast, plain = NativeDFlash(head, target), CachedDFlash(head, target)
    fast.begin_run(static=True)
    target.lm_head.weight.data.mul_(1.0001)
    fast.begin_run(static=True)
    anchor, at = torch.tensor([5]), torch.tensor(0)
    expected = plain.drafting_logits(anchor, at, 5)
    torch.testing.assert_close(fast.drafting_logits(anchor, at, 5), expected, atol=2e-4, rtol=1e-4)
    assert fast.native is not None


def test_a_head_whose_context_is_short_is_compiled_too():
    target = tiny(**WIDE)
    head = tiny_block_head(target, intermediate_size=64, head_dim=16, context=10)
    fast = NativeDFlash(head, target)
    fast.begin_run(static=True)
    assert fast.not_native is None
