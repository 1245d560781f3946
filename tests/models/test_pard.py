"""PARD models of two architectures. What they owe as every drafter does is in test_drafter_contract.py."""

from dataclasses import replace

import pytest

from specdemo import Params, generate, load_pair
from tests.checkpoints import saved_in
from tests.drafters import PROMPT, drawn_as_said, parallel, pard_says
from tests.small import small_model
from tests.tiny import tiny

FREE = Params(temperature=1.5, top_p=1.0, gamma=3, max_new_tokens=60, seed=1, alternatives=3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gemma3", "qwen3_5_text"])
def test_models_of_other_kinds(name):
    """With windows, and with states that the masks move on."""
    drafter = parallel(small_model(name) if name == "qwen3_5_text" else tiny(name))
    pair = load_pair(target=tiny(), drafter=drafter)
    assert pair.info.drafter_kind == "pard" and pair.info.longest_draft is None
    trace = generate(pair, PROMPT, FREE, measure=False)
    assert drawn_as_said(lambda *after: pard_says(drafter, None, *after), PROMPT, trace)


def test_its_vocabulary_can_be_wider_than_the_target_s(tmp_path):
    target = saved_in(tmp_path / "target", tiny(vocab_size=304))
    drafter = saved_in(tmp_path / "drafter", parallel(tiny(vocab_size=310, seed=1), 308))
    pair = load_pair(target=target, drafter=drafter)
    trace = generate(pair, "the dog", replace(FREE, max_new_tokens=12), measure=False)
    assert not pair.notes and pair.runner.lms[1].native is not None and trace.stats.drafted
