"""Drafting with Medusa heads: what they say in each round is what they say when everything is computed anew,
the text is the target's own, and what can be wrong with them in files."""

import pytest
import torch
from safetensors.torch import save_file

from specdemo import Params, generate, load_pair
from specdemo.drafters.medusa.drafter import MedusaDrafter
from specdemo.engine.sampling import Sampler
from specdemo.errors import LoadError
from specdemo.runtime.device import Clock
from specdemo.runtime.files import weight_files
from specdemo.runtime.graphs import Graphs
from specdemo.runtime.lm import CachedLM
from specdemo.runtime.steps import EagerSteps
from tests.checkpoints import saved_in
from tests.fake_cuda import FakeCuda, install
from tests.medusa_heads import (
    medusa_logits,
    save_authors_medusa_head,
    save_medusa_head,
    tiny_medusa_head,
)
from tests.models.test_capture import Filled, timeless
from tests.models.test_eagle3_drafter import said_anew
from tests.models.test_exact_stream import check, tiny_llama
from tests.models.test_greedy import NEW, PROMPT, assert_same, expected_of, target_of
from tests.models.test_no_sync import TEXT
from tests.runners import drafts_after, run_by, with_head
from tests.sentences import refusal
from tests.tiny import tiny, tokenizer

HEADS = [{}, {"layers": 2, "bias": True}, {"shares_output": True}]


@pytest.mark.parametrize("options", HEADS, ids=str)
def test_what_the_heads_say_is_what_they_say_anew(options):
    """After rejections of every length and after full acceptance."""
    target = tiny(vocab_size=12, seed=2)
    heads = tiny_medusa_head(target, **options)
    params = Params(temperature=1.5, top_p=1.0, gamma=2, max_new_tokens=90, seed=1, alternatives=3)
    trace = generate(with_head(target, heads), [3, 1, 4, 1, 5], params, measure=False)
    assert set(said_anew(heads, target, [3, 1, 4, 1, 5], trace.rounds, medusa_logits)) == {0, 1, 2}


@pytest.mark.parametrize("gamma", [1, 4, 8])
def test_greedy_text_is_the_target_s_and_a_draft_has_no_more_tokens_than_there_are_heads(gamma):
    target, expected = target_of("gemma3"), expected_of("gemma3")
    pair = with_head(target, tiny_medusa_head(target, heads=3), "off")
    trace = generate(pair, PROMPT, Params(temperature=0, gamma=gamma, max_new_tokens=NEW), measure=False)
    assert_same(target, trace.output_ids, expected)
    assert max(len(one.draft) for one in trace.rounds) == min(gamma, 3)
    alone = generate(pair, PROMPT[:1], Params(temperature=0, max_new_tokens=3), measure=False)
    assert not alone.rounds[0].draft and alone.rounds[1].draft


def test_rounds_that_draft_nothing_leave_no_hole():
    target, params = tiny(vocab_size=12, seed=2), Params(gamma=2, temperature=1.0, top_p=1.0, seed=0)
    heads, lm = tiny_medusa_head(target), CachedLM(target)
    drafter = MedusaDrafter(heads.cached(target), lm, Sampler(params), EagerSteps(), 2)
    for text, draft in drafts_after(TEXT, [0, 0, 2, 0, 1, 2], params, lm, drafter):
        anew = medusa_logits(heads, target, text, draft.ids.tolist()).softmax(-1)
        torch.testing.assert_close(draft.raw_q, anew.float(), rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("params", [dict(temperature=0.0), dict(temperature=0.9, top_p=0.9)], ids=str)
def test_a_run_over_captured_steps_is_the_run(monkeypatch, params):
    params = Params(**params, seed=3, max_new_tokens=30)
    monkeypatch.setattr(Clock, "ms_between", lambda *_: 0.0)
    target = target_of("llama")

    def rounds_of(run_step):
        trace = generate(run_by(target, tiny_medusa_head(target), run_step), PROMPT, params, measure=False)
        return timeless(trace.rounds)

    expected = rounds_of(Filled())
    fake = install(monkeypatch, FakeCuda())
    graphs = Graphs(Clock())
    assert rounds_of(graphs) == expected
    assert graphs.fault is None and {key[0] for key in graphs.graphs} == {"draft", "verify"}
    assert not fake.violations


@pytest.mark.slow
@pytest.mark.parametrize("runs", [150, pytest.param(4000, marks=pytest.mark.long)])
def test_the_text_is_distributed_as_the_target_s(runs):
    target = tiny_llama(3)
    pair = with_head(target, tiny_medusa_head(target))
    params = Params(gamma=2, temperature=0.8, top_p=1.0, max_new_tokens=6, alternatives=0)
    check(
        params, [3, 1, 4, 1, 5], runs, target=target, drafter=None, pair=pair, wanted=("accepted", "rejected")
    )


def test_they_are_read_from_files(tmp_path):
    target = tiny(vocab_size=304)
    heads = tiny_medusa_head(target, bias=True)
    pair = load_pair(target=target, drafter=save_medusa_head(heads, tmp_path), tokenizer=tokenizer())
    assert pair.info.drafter_kind == "medusa"
    for name, value in heads.state_dict().items():
        assert torch.equal(pair.drafter.state_dict()[name], value)
    trace = generate(pair, "the cat sat", Params(gamma="auto", max_new_tokens=20, seed=1), measure=False)
    assert trace.stats.drafted


@pytest.mark.parametrize("options", HEADS[:2], ids=str)
def test_they_are_read_as_their_authors_write_them(tmp_path, options):
    """Their config names the target, nothing of sizes, and fewer heads than there are."""
    target = saved_in(tmp_path / "target", tiny(vocab_size=304), tokenizer())
    heads = tiny_medusa_head(tiny(vocab_size=304), **options)
    folder = save_authors_medusa_head(heads, tmp_path / "heads", target, medusa_num_heads=2)
    pair = load_pair(drafter=folder, device="cpu")
    assert pair.info.target == str(target) and pair.drafter.config == heads.config
    assert all(map(torch.equal, pair.drafter.state_dict().values(), heads.state_dict().values()))
    trace = generate(pair, "the cat sat", Params(gamma="auto", max_new_tokens=20, seed=1), measure=False)
    assert trace.stats.drafted


@pytest.mark.parametrize("name", ["medusa_lm_head.pt", "other.safetensors"])
def test_heads_of_the_authors_without_safetensors_are_refused_for_that(tmp_path, name):
    target = tiny(vocab_size=304)
    folder = save_authors_medusa_head(tiny_medusa_head(target), tmp_path, tmp_path)
    (folder / "medusa_lm_head.safetensors").rename(folder / name)
    said = refusal(load_pair, target=target, drafter=folder, tokenizer=tokenizer(), kind=LoadError)
    assert "medusa_lm_head.safetensors must be here already (`hf download ID` gets it), with a tensor" in said


@pytest.mark.parametrize("shape, words", [((11_000_000, 0), "11,000,000 tokens"), ((304, 0), "0 units")])
def test_sizes_in_a_file_of_the_authors_are_checked_before_memory_is_taken(tmp_path, shape, words):
    target = tiny(vocab_size=304)
    folder = save_authors_medusa_head(tiny_medusa_head(target), tmp_path, tmp_path)
    save_file({"0.1.weight": torch.zeros(shape)}, folder / "medusa_lm_head.safetensors")
    said = refusal(load_pair, target=target, drafter=folder, tokenizer=tokenizer(), kind=LoadError)
    assert f"medusa_lm_head.safetensors is of {words}, where 1 to" in said


def test_a_model_s_own_files_come_before_a_file_of_medusa_heads(tmp_path):
    for name in ("medusa_lm_head.safetensors", "model.safetensors.index.json"):
        (tmp_path / name).write_text('{"weight_map": {"a": "model-1.safetensors"}}')
    assert weight_files(tmp_path) == [tmp_path / "model-1.safetensors"]


WRONG = {
    "no size": (
        dict(vocab_size=None),
        "vocab_size must be a whole number from 1 to 10,",
    ),
    "fewer tokens": (dict(truncated_vocab_size=99), "truncated_vocab_size must be vocab_size, 304, not 99"),
    "many heads": (dict(num_heads=65), "num_heads must be a whole number from 1 to 64, not 65"),
    "another bias": (dict(medusa_fc_bias=True), "lacks 4 tensors, first blocks.0.layers.0.bias"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said(tmp_path, name):
    changes, words = WRONG[name]
    target = tiny(vocab_size=304)
    folder = save_medusa_head(tiny_medusa_head(target), tmp_path, **changes)
    given = dict(target=target, drafter=folder, tokenizer=tokenizer())
    assert words in refusal(load_pair, **given, kind=LoadError)
