"""Drafts of changing length with real models: greedy text is the target's own, a second pair writes the same
rounds, and what a run cost is counted."""

from dataclasses import replace

import pytest

from specdemo import Params, generate, load_pair, stream
from specdemo.bench.compare import compare, methods_of
from specdemo.cli.main import main
from specdemo.events.speedup import NO_COST, DraftingCost
from specdemo.events.trace import Trace
from specdemo.loading.pair import Pair, weight_bytes
from specdemo.runtime.dflash import Markov
from tests.block_heads import tiny_block_head
from tests.runners import with_head
from tests.tiny import noisy, tiny

PROMPT = [5, 17, 3, 88, 42, 9, 9, 17, 61, 30, 2, 71]
SETTINGS = [dict(gamma="auto"), dict(gamma=6, confidence=0.5), dict(gamma="auto", confidence=0.3)]


@pytest.fixture
def cheap(monkeypatch):
    """The drafters of `pair_of` have the target's size, and pass for small ones."""
    monkeypatch.setattr(Pair, "drafting_cost", DraftingCost(token=0.05))


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
    share = weight_bytes(pair.drafter) / weight_bytes(pair.target)
    assert share < 1 and pair.drafting_cost == DraftingCost(token=share)
    assert load_pair(target=tiny()).drafting_cost == NO_COST


def test_a_block_costs_what_it_reads_however_long_it_is():
    """The target's output layer is read, and a Markov head's once for each token."""
    target = tiny(num_hidden_layers=4)
    sizes = {}
    for name, options in (
        ("block", {}),
        ("some", {"draft_ids": [1, 2, 3]}),
        ("markov", {"markov": Markov(8, "vanilla")}),
    ):
        head = tiny_block_head(target, **options)
        head.attach_verifier(target)
        sizes[name] = with_head(target, head).drafting_cost
        own = 4 * sum(weight.numel() for key, weight in head.named_parameters() if "markov" not in key)
        read = own + (4 * target.lm_head.weight.numel() if name != "some" else 0)
        assert sizes[name].draft == read / weight_bytes(target)
    assert sizes["block"].token == sizes["some"].token == 0
    assert sizes["markov"].token == 4 * 8 * 96 / weight_bytes(target)


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
