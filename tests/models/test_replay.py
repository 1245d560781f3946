"""Runs over CUDA graphs that are replayed as strictly as CUDA's memory is used (tests/strict_replay.py),
drawn at random: their texts are those of the same steps uncaptured. And faults that must be found."""

from dataclasses import replace
from functools import partial
from random import Random

import pytest

import specdemo.runtime.cache
from specdemo import Params, Round, stream
from specdemo.drafters.model import EagleDrafter, ModelDrafter
from specdemo.runtime import attention
from specdemo.runtime.cuda import Clock
from specdemo.runtime.graphs import Graphs
from specdemo.runtime.lm import CachedLM
from tests.block_heads import DFLASH2, tiny_block_head
from tests.eagle_heads import tiny_eagle_head
from tests.gpu.test_graphs import random_params
from tests.heads import tiny_head
from tests.models.test_capture import Filled
from tests.runners import run_by
from tests.strict_replay import install_strict
from tests.tiny import VOCAB, noisy, tiny

pytestmark = pytest.mark.slow
DRAFTERS = {
    "model": noisy,
    "EAGLE-3": tiny_head,
    "P-EAGLE": partial(tiny_head, mask_token_id=7),
    "DFlash 2": partial(tiny_block_head, **DFLASH2),
    "DSpark": partial(tiny_block_head, markov_rank=6, has_confidence=True),
    "EAGLE": tiny_eagle_head,
}


@pytest.fixture
def fake(monkeypatch):
    """Caches begin as small as they can, so that they often grow; attention to few keys is split, too; and no
    drafter looks at its numbers to stop early, as on a GPU."""
    monkeypatch.setattr(Clock, "ms_between", lambda *_: 0.0)
    monkeypatch.setattr(specdemo.runtime.cache, "MIN_CAPACITY", 1)
    monkeypatch.setattr(attention, "SPLIT_FROM", 64)
    monkeypatch.setattr(attention, "SMALLEST_PART", 32)
    for kind in (ModelDrafter, EagleDrafter):
        monkeypatch.setattr(kind, "stops_below", property(lambda _: 0.0, lambda *_: None), raising=False)
    return install_strict(monkeypatch)


def difference(pair, plain, prompt, params):
    """What a run has other than its uncaptured steps, or the error that it ends with; None if nothing."""

    def rounds_of(pair):
        events = stream(pair, prompt, params, measure=False)
        return [replace(one, draft_ms=0.0, verify_ms=0.0) for one in events if isinstance(one, Round)]

    try:
        return None if rounds_of(pair) == rounds_of(plain) else "another text"
    except (RuntimeError, IndexError) as error:
        return str(error)


def wrong_runs(seed, runs=4):
    """Random runs of one pair, of two settings in turns: what was wrong with which; and the graphs."""
    draw, kind = Random(seed), [*DRAFTERS][seed % len(DRAFTERS)]
    target = tiny(draw.choice(["llama", "gemma3", "mistral", "qwen3", "phi3"]))
    drafter = DRAFTERS[kind](target)
    graphs = Graphs(Clock(), draw.choice([2, 3, 4, 64]))
    pair, plain = run_by(target, drafter, graphs), run_by(target, drafter, Filled())
    methods = ["model", "model", "lookup", "none", *["early-exit"] * (kind == "model")]
    settings = [random_params(draw, methods) for _ in range(2)]
    wrong = []
    for _ in range(runs):
        params = replace(draw.choice(settings), max_new_tokens=draw.choice([8, 20, 60]))
        prompt = [draw.randrange(2, VOCAB) for _ in range(draw.choice([1, 2, 7, 70]))]
        if draw.random() < 0.3:  # what their owner may do to models in memory between two runs
            for parameter in pair.target.parameters():
                parameter.data = parameter.data.clone()
            graphs.most = draw.choice([2, 3, 64])
        if how := difference(pair, plain, prompt, params):
            wrong.append((how, kind, graphs.most, prompt, params))
    return wrong, graphs


SEEDS = [*range(2), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 60))]


@pytest.mark.parametrize("seed", SEEDS)
def test_texts_are_those_of_uncaptured_steps(fake, seed):
    wrong, graphs = wrong_runs(seed)
    assert not wrong and not fake.faults and not fake.violations
    assert not graphs.blocker and not graphs.refused and fake.replays > 0


# Faults that are planted, and must be found.


def short_long_short(**params):
    """A text, one for which the caches grow, and the first one again: the graphs, and what was wrong."""
    target, graphs, wrong = tiny("llama"), Graphs(Clock()), set()
    drafter = noisy(target)
    pair, plain = run_by(target, drafter, graphs), run_by(target, drafter, Filled())
    for length in (8, 48, 8):
        run = Params(max_new_tokens=length, gamma=4, seed=3, temperature=0.7, **params)
        wrong.add(difference(pair, plain, [5, 17, 3], run))
    return graphs, wrong - {None}


def test_a_key_without_the_epoch_of_its_buffers_is_found(fake, monkeypatch):
    always = property(lambda self: 0, lambda self, epoch: None)
    monkeypatch.setattr(CachedLM, "buffer_epoch", always, raising=False)
    _, wrong = short_long_short()
    assert set(fake.faults) == {"use after free"} and all("use after free" in how for how in wrong)


def test_an_output_that_is_a_part_of_an_input_is_found(fake, monkeypatch):
    step = ModelDrafter.step

    def giving_its_input_back(self, value, *told):
        return replace(step(self, value, *told), sure=value.u)

    monkeypatch.setattr(ModelDrafter, "step", giving_its_input_back)
    _, wrong = short_long_short(confidence=0.3)
    assert set(fake.faults) == {"an output outside of the graph's own memory"} and wrong == {"another text"}
