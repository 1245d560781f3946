"""The pairs that come with the project: what their sizes are, and that the good drafter is good and the poor one poor."""

import json

import pytest

from specdemo import Params, load_pair, stream
from specdemo.loading.catalog import EMBEDDED, POOR

MB = 10**6
PROMPTS = [
    "Once upon a time, there was a little",
    "One day, a boy named Ben went",
    "Lily saw a big red ball. She",
]


@pytest.fixture(scope="module")
def good():
    return load_pair()


@pytest.fixture(scope="module")
def poor():
    return load_pair(POOR)


def test_the_files_are_small_enough_to_come_with_the_project():
    weights = {
        role: [file.stat().st_size for file in (EMBEDDED / role).glob("*.safetensors")]
        for role in ("target", "drafter", "poor")
    }
    assert all(size < 10 * MB for sizes in weights.values() for size in sizes)
    assert 20 * MB < sum(weights["target"]) < 36 * MB
    assert 0.2 * MB < sum(weights["poor"]) < 0.8 * MB < sum(weights["drafter"]) < 5 * MB


def test_models_and_tokenizers_fit_together(good, poor):
    assert good.context >= 1024 and poor.context >= 1024
    assert good.tokenizer.get_vocab() == poor.tokenizer.get_vocab()
    texts = [(EMBEDDED / role / "tokenizer.json").read_bytes() for role in ("target", "drafter", "poor")]
    assert texts[0] == texts[1] == texts[2]
    assert json.loads((EMBEDDED / "target" / "config.json").read_text())["dtype"] == "bfloat16"


@pytest.mark.parametrize(
    "sampler, good_at_least, poor_at_most",
    [({"temperature": 0}, 0.65, 0.4), ({"temperature": 0.8, "top_p": 0.9}, 0.6, 0.4)],
)
def test_one_drafter_is_good_and_the_other_poor(good, poor, sampler, good_at_least, poor_at_most):
    assert acceptance_rate(good, sampler) > good_at_least
    assert 0.05 < acceptance_rate(poor, sampler) < poor_at_most


@pytest.mark.slow
def test_the_text_is_the_targets_whoever_drafts(good, poor):
    for prompt in PROMPTS:
        alone, *others = (
            run(pair, prompt, {"temperature": 0, "draft_with": drafting}).output_ids
            for pair, drafting in ((good, "none"), (good, "model"), (poor, "model"))
        )
        assert all(ids == alone for ids in others)


def acceptance_rate(pair, sampler) -> float:
    stats = [run(pair, prompt, sampler).stats for prompt in PROMPTS]
    return sum(one.accepted for one in stats) / sum(one.accepted + one.rejected for one in stats)


def run(pair, prompt, how):
    with stream(pair, prompt, Params(gamma=4, seed=1, max_new_tokens=80, **how)) as events:
        for _ in events:
            pass
    return events.trace
