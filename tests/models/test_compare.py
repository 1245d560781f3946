"""The comparison of drafters with models: equal texts, figures, stopping, and the command."""

import json
from dataclasses import replace

import pytest

from specdemo import Params, generate, load_pair
from specdemo.cli.main import main
from specdemo.errors import PairError
from specdemo.events import LISTED
from specdemo.measure.compare import compare, run_in_turns
from specdemo.measure.settings import settings_for
from specdemo.measure.table import is_untimed, winner
from tests.tiny import noisy, tiny

GREEDY = Params(temperature=0, max_new_tokens=60, gamma=3, seed=0)
PROMPTS = [[5, 9, 5, 9, 5], [7, 8, 9]]


@pytest.fixture(scope="module")
def pair():
    target = tiny()
    return load_pair(target=target, drafter=noisy(target))


@pytest.fixture
def unhurried(monkeypatch):
    """However busy the machine is."""
    monkeypatch.setattr("specdemo.measure.compare.is_wide", lambda interval: False)


@pytest.mark.slow
def test_greedy_rows_say_that_all_texts_are_equal(pair, unhurried):
    can = [name for name in LISTED if not pair.lacks(name)]
    short = replace(GREEDY, max_new_tokens=30, gamma="auto")
    *_, last = compare(settings_for([pair], can, short), PROMPTS, 1, 1, False)
    assert {row.draft_with for row in last.rows} == set(can) == set(LISTED) - {"mtp"}
    assert [row.texts_equal for row in last.rows] == ["2 of 2"] * len(can)
    speeds = [row.tokens_per_second for row in last.rows if not is_untimed(row)]
    assert speeds == sorted(speeds, reverse=True)
    by_kind = {row.draft_with: row for row in last.rows}
    plain, model = by_kind["none"], by_kind["model"]
    assert (plain.tokens_per_round, plain.drafted_per_round, plain.speedup) == (1, 0, 1)
    assert (plain.gamma, model.gamma) == (None, "auto")
    low, high = model.speedup_interval
    told = model.tokens_per_second / plain.tokens_per_second
    assert low <= told <= high and (is_untimed(model) or model.speedup == pytest.approx(told))
    assert model.drafter_bytes == pair.bytes_held.drafter
    assert set(last.traces) == {row.name for row in last.rows}
    trace = last.traces["drafter model"]
    assert trace.output_ids == generate(pair, trace.prompt_ids, short, measure=False).output_ids


def test_it_can_be_stopped_within_a_generation_which_then_does_not_count(pair):
    asked = iter(range(1_000))
    settings = settings_for([pair], ["none"], GREEDY)
    every = list(compare(settings, PROMPTS, 1, 1, False, is_stopped=lambda: next(asked) > 49 + 61 + 20))
    assert [each.done for each in every] == [0, 1], "one generation after the warm-up"
    assert every[-1].rows[0].samples == 1 and not pair.lock.locked()


def test_a_busy_pair_and_a_prompt_that_does_not_fit_are_refused(pair):
    settings = settings_for([pair], ["none"], GREEDY)
    with pair.lock, pytest.raises(PairError, match="busy"):
        next(compare(settings, PROMPTS, 1, 1, False))
    with pytest.raises(ValueError, match="prompt must have at most"):
        next(compare(settings, [[5], [5] * 300], 1, 1, False))
    assert not pair.lock.locked()


# The command

SHORT = ["bench", "--prompts", "1", "--max-new-tokens", "6"]


@pytest.mark.slow
def test_the_command_prints_the_table_the_sentence_and_json_last(capsys):
    """Also with heads, which are not quantised with a drafter."""
    how = "--repeats 1 --gamma 2 --methods model,lookup --quantize-drafter int8 --trees 2,1 auto"
    assert main([*SHORT, *how.split()]) == 0
    lines = capsys.readouterr().out.splitlines()
    result = json.loads(lines[-1])
    names = {row["name"] for row in result["rows"]}
    models = {"drafter model (embedded)", "drafter model (embedded-poor)"}
    models |= {"EAGLE-3 head (embedded-eagle3)", "DFlash head (embedded-dflash)"}
    trees = {f"{name}, tree {tree}" for name in models for tree in ("2,1", "auto")}
    assert names == {*models, *trees, "lookup", "target alone"}
    for row in result["rows"]:
        (line,) = (line for line in lines[:-2] if line.startswith(row["name"] + "  "))
        assert f"{row['tokens_per_second']:.1f}" in line and line.endswith("1 of 1")
        assert row["gamma"] in (2, None)
    assert lines[-2] == result["winner"] and (len(result["prompts"]), result["repeats"]) == (1, 1)


@pytest.mark.slow
def test_an_interrupted_command_prints_what_was_measured(capsys, monkeypatch):
    made = []

    def interrupted(*arguments):
        if made:  # there is a text of each, and another one of the target alone
            raise KeyboardInterrupt
        made.append(arguments)
        return run_in_turns(*arguments)

    monkeypatch.setattr("specdemo.measure.compare.run_in_turns", interrupted)
    assert main([*SHORT, "--repeats", "3", "--methods", "lookup"]) == 130
    out, err = capsys.readouterr()
    assert [row["samples"] for row in json.loads(out.splitlines()[-1])["rows"]] == [1, 1]
    assert err.splitlines()[-1] == "specdemo: interrupted: this is what was measured before"


@pytest.mark.slow
@pytest.mark.parametrize(("enough", "passes"), [(1, 1), (2, 2), (9, 3)])
def test_a_prompt_is_written_again_where_its_turns_are_too_few(pair, monkeypatch, enough, passes):
    params = replace(GREEDY, max_new_tokens=24)
    one = len(run_in_turns(pair, PROMPTS[0], params).turns)
    for module in ("compare", "samples"):
        monkeypatch.setattr(f"specdemo.measure.{module}.FEWEST_TURNS", enough * one)
    settings = settings_for([pair], ["model", "none"], params)
    *_, last = compare(settings, PROMPTS[:1], 3, 1, True)
    assert one and last.repeats == passes and [row.samples for row in last.rows] == [passes, passes]
    assert last.is_too_short == (enough > passes)


def test_a_text_that_is_too_short_for_a_turn_is_written_once_and_has_no_speed_up(pair):
    params = replace(GREEDY, max_new_tokens=4)
    *_, last = compare(settings_for([pair], ["model", "none"], params), PROMPTS, 5, 1, True)
    assert last.repeats == 1 and last.is_too_short
    assert [row.speedup for row in last.rows if row.draft_with == "model"] == [None]
    assert "too short" in winner(last.rows)


@pytest.mark.slow
def test_what_is_timed_in_turns_follows_from_each_other(pair, unhurried):
    settings = settings_for([pair], ["model", "none"], replace(GREEDY, max_new_tokens=40))
    *_, last = compare(settings, PROMPTS, 1, 1, True)
    assert last.repeats == 1 and [row.samples for row in last.rows] == [2, 2]
    alone = next(row for row in last.rows if row.draft_with == "none")
    assert alone.speedup == 1 == pytest.approx(alone.plain_rounds_per_round)
    for row in last.rows:
        assert row.speedup == pytest.approx(row.tokens_per_second / alone.tokens_per_second)
        assert row.speedup == pytest.approx(row.tokens_per_round / row.plain_rounds_per_round)
        if row is not alone:
            low, high = row.speedup_interval
            assert low < row.speedup < high
