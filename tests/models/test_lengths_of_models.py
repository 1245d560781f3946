"""Drafts of changing length with real models: greedy text is the target's own, a second pair writes the same
rounds, and what a run cost is counted."""

from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest

from specdemo import Params, generate, load_pair, stream
from specdemo.bench.compare import compare, methods_of
from specdemo.cli.main import main
from specdemo.drafters.dflash.head import Markov
from specdemo.drafters.ways import ByDrafter
from specdemo.engine import loop
from specdemo.events.speedup import DraftingCost
from specdemo.events.trace import Trace
from specdemo.runtime.weights import weight_bytes
from tests.block_heads import tiny_block_head
from tests.runners import with_head
from tests.tiny import noisy, tiny

PROMPT = [5, 17, 3, 88, 42, 9, 9, 17, 61, 30, 2, 71]
SETTINGS = [dict(gamma=6, confidence=0.5), dict(gamma="auto", confidence=0.3)]


@pytest.fixture
def cheap(monkeypatch):
    """The drafters of `pair_of` have the target's size, and pass for small ones."""
    monkeypatch.setattr(ByDrafter, "cost", lambda *_: DraftingCost(token=0.05))


def pair_of():
    return load_pair(target=tiny(), drafter=noisy(tiny()))


def rounds_of(pair, **params):
    trace = generate(pair, PROMPT, Params(max_new_tokens=50, **params), measure=False)
    assert Trace.from_json(trace.to_json()) == trace
    return [replace(one, draft_ms=0, verify_ms=0) for one in trace.rounds]


def emitted(rounds):
    return [token for one in rounds for token in one.emitted]


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS)
def test_greedy_text_is_the_targets_own_and_another_pair_writes_the_same_rounds(cheap, setting):
    pair, other = pair_of(), pair_of()
    rounds = rounds_of(pair, temperature=0.0, **setting)
    assert emitted(rounds) == emitted(rounds_of(pair, temperature=0.0, draft_with="none"))
    assert len({len(one.draft) for one in rounds}) > 1
    first = rounds_of(pair, seed=3, **setting)
    assert first == rounds_of(other, seed=3, **setting)
    assert setting["gamma"] != "auto" or len({one.gamma for one in first}) > 1


def cost_of(pair):
    return ByDrafter().cost(pair, Params())


def test_drafting_costs_the_share_of_weights_that_it_reads():
    pair = load_pair(target=tiny(num_hidden_layers=4), drafter=tiny())
    share = weight_bytes(pair.drafter) / weight_bytes(pair.target)
    assert share < 1 and cost_of(pair) == DraftingCost(token=share)


def test_a_block_costs_what_it_reads_however_long_it_is():
    """The target's output layer is read, and a Markov head's once for each token."""
    target = tiny(num_hidden_layers=4)
    kinds = {"block": {}, "some": {"draft_ids": [1, 2, 3]}, "markov": {"markov": Markov(8, "vanilla")}}
    for name, options in kinds.items():
        head = tiny_block_head(target, **options)
        head.attach_verifier(target)
        cost = cost_of(with_head(target, head))
        own = 4 * sum(weight.numel() for key, weight in head.named_parameters() if "markov" not in key)
        read = own + (4 * target.lm_head.weight.numel() if name != "some" else 0)
        assert cost.draft == read / weight_bytes(target)
        assert cost.token == (4 * 8 * 96 / weight_bytes(target) if name == "markov" else 0)


def test_the_comparison_takes_it_and_a_plain_round_after_a_run_drafts_nothing():
    pair = pair_of()
    settings = methods_of(pair, ["model", "none"], Params(gamma="auto", max_new_tokens=8, seed=1))
    *_, last = compare(settings, [PROMPT], 1)
    assert {row.draft_with: row.gamma for row in last.rows} == {"model": "auto", "none": None}
    with stream(pair, PROMPT, Params(gamma="auto", seed=1, max_new_tokens=60)) as run:
        *_, finished = run
    step = finished.stats.target_step_ms
    assert step is None or step > 0
    assert all(one.gamma in (0, 1, 2, 4, 8, 16) for one in run.trace.rounds)


@pytest.mark.parametrize(
    ("load", "draft_with"),
    [
        *((pair_of, method) for method in ("model", "suffix+model", "early-exit")),
        pytest.param(partial(load_pair, "embedded-eagle3"), "model", marks=pytest.mark.slow),
        pytest.param(partial(load_pair, "embedded-dflash"), "model", marks=pytest.mark.slow),
    ],
)
def test_what_is_drafted_after_a_pause_is_what_is_drafted_after_the_whole_text(load, draft_with, monkeypatch):
    """The first draft of another run, whose prompt the text is so far."""
    monkeypatch.setattr(loop, "PAUSE", 3)
    monkeypatch.setattr(loop, "ROW_COST", 2.0)  # so that it never pays
    pair, ids = load(), PROMPT
    params = Params(draft_with=draft_with, gamma="auto", max_new_tokens=80, temperature=0, ignore_eos=True)
    rounds, after = generate(pair, ids, params, measure=False).rounds, 0
    for before, one in pairwise(rounds):
        ids = [*ids, *before.emitted]
        if before.ended_by == "pause" and one.draft:
            fresh = replace(params, gamma=one.gamma, max_new_tokens=one.gamma + 1)
            again = generate(pair, ids, fresh, measure=False).rounds[0]
            assert [token.id for token in one.draft] == [token.id for token in again.draft]
            raw = [[token.raw_q for token in each.draft] for each in (one, again)]
            assert raw[0] == pytest.approx(raw[1], abs=1e-4)
            after += 1
    assert after >= 3


@pytest.mark.parametrize(
    "options, sentence",
    [
        (["--gamma", "auto"], "gamma must be a whole number here: auto goes with --methods"),
        (["--confidence", "0.4"], "confidence must be 0 here, since transformers drafts gamma tokens"),
    ],
)
def test_the_table_beside_transformers_has_one_length(options, sentence, capsys):
    assert main(["bench", *options]) == 2
    assert sentence in capsys.readouterr().err
