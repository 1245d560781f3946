"""The pairs that come with the project: their sizes, and that one drafter is good and the other poor."""

import pytest

from specdemo import Params, generate, load_pair
from specdemo.loading.catalog import DFLASH, EAGLE3, EMBEDDED, POOR

PROMPTS = "Once upon a time, there was a little", "One day, a boy named Ben went", "Lily saw a big ball. She"


@pytest.mark.slow
def test_greedy_text_is_the_targets_with_a_good_and_with_a_poor_drafter():
    good, poor = load_pair(), load_pair(POOR)
    texts = [(EMBEDDED / role / "tokenizer.json").read_bytes() for role in ("target", "drafter", "poor")]
    assert texts[0] == texts[1] == texts[2] and good.context >= 1024
    plain = [trace.output_ids for trace in run(good, temperature=0, draft_with="none")]
    heads = [(load_pair(name), 0.65, 1) for name in (EAGLE3, DFLASH)]
    for pair, lowest, highest in ((good, 0.65, 1), (poor, 0.05, 0.4), *heads):
        traces = run(pair, temperature=0)
        assert [trace.output_ids for trace in traces] == plain
        assert lowest < acceptance_rate(traces) < highest
    assert acceptance_rate(run(good, temperature=0.8, top_p=0.9)) > 0.6
    assert 0.05 < acceptance_rate(run(poor, temperature=0.8, top_p=0.9)) < 0.4


def run(pair, **how):
    """One trace for each prompt."""
    params = Params(gamma=4, seed=1, max_new_tokens=40, **how)
    return [generate(pair, prompt, params, measure=False) for prompt in PROMPTS]


def acceptance_rate(traces) -> float:
    stats = [trace.stats for trace in traces]
    return sum(one.accepted for one in stats) / sum(one.accepted + one.rejected for one in stats)
