"""Drafts of changing length with real models: greedy text is the target's own, a second pair writes the same
rounds, and what a run cost is counted."""

from dataclasses import replace

import pytest

from specdemo import Params, generate, load_pair, stream
from specdemo.bench.compare import compare, methods_of
from specdemo.cli.main import main
from specdemo.events.trace import Trace
from specdemo.loading.pair import Pair, weight_bytes
from tests.tiny import noisy, tiny

PROMPT = [5, 17, 3, 88, 42, 9, 9, 17, 61, 30, 2, 71]
SETTINGS = [dict(gamma="auto"), dict(gamma=6, confidence=0.5), dict(gamma="auto", confidence=0.3)]


@pytest.fixture
def cheap(monkeypatch):
    """The drafters of `pair_of` have the target's size, and pass for small ones."""
    monkeypatch.setattr(Pair, "drafting_cost", 0.05)


def pair_of():
    return load_pair(target=tiny(), drafter=noisy(tiny()))


def rounds_of(pair, params):
    trace = generate(pair, PROMPT, params, measure=False)
    assert Trace.from_json(trace.to_json()) == trace
    return [replace(one, draft_ms=0, verify_ms=0) for one in trace.rounds]


def test_greedy_text_is_the_targets_own(cheap):
    pair = pair_of()
    greedy = Params(temperature=0.0, max_new_tokens=60)
    alone = generate(pair, PROMPT, replace(greedy, draft_with="none"), measure=False).output_ids
    for setting in SETTINGS:
        rounds = rounds_of(pair, replace(greedy, **setting))
        assert [token for one in rounds for token in one.emitted] == alone
        assert len({len(one.draft) for one in rounds}) > 1


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_same_seed_and_settings_give_the_same_rounds_in_another_pair(cheap, setting):
    params = Params(seed=3, max_new_tokens=60, **setting)
    first, again = rounds_of(pair_of(), params), rounds_of(pair_of(), params)
    assert first == again
    if params.gamma == "auto":
        assert len({one.gamma for one in first}) > 1


def test_drafting_costs_the_share_of_weights_that_it_reads():
    pair = load_pair(target=tiny(num_hidden_layers=4), drafter=tiny())
    assert pair.drafting_cost == weight_bytes(pair.drafter) / weight_bytes(pair.target) < 1
    assert load_pair(target=tiny()).drafting_cost == 0


def test_the_comparison_takes_it():
    params = Params(gamma="auto", max_new_tokens=8, seed=1)
    settings = methods_of(pair_of(), ["model", "none"], params)
    *_, last = compare(settings, [PROMPT], 1)
    assert {row.draft_with: row.gamma for row in last.rows} == {"model": "auto", "none": None}


def test_a_plain_round_after_the_run_drafts_nothing():
    with stream(pair_of(), PROMPT, Params(gamma="auto", seed=1, max_new_tokens=150)) as run:
        *_, finished = run
    step = finished.stats.target_step_ms
    assert step is None or step > 0
    assert all(one.gamma in (1, 2, 4, 8, 16) for one in run.trace.rounds)


@pytest.mark.parametrize(
    "options, sentence",
    [
        (["--gamma", "auto"], "gamma must be a whole number here: auto goes with --methods"),
        (["--confidence", "0.4"], "confidence must be 0 here, since transformers drafts gamma tokens"),
        (["--gamma", "often"], "gamma must be a whole number from 1 to 16 or auto, not 'often'"),
    ],
)
def test_the_table_beside_transformers_has_one_length(options, sentence, capsys):
    assert main(["bench", *options]) == 2
    assert sentence in capsys.readouterr().err
