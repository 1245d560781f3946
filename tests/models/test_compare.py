"""The comparison of drafters with models: turns, stopping, equal texts, and the command."""

import json
from dataclasses import replace

import pytest

from specdemo import Params, generate, load_pair
from specdemo.bench.compare import _generate, compare, methods_of, settings_for, with_trees
from specdemo.bench.methods import is_untimed
from specdemo.cli.main import main
from specdemo.errors import CannotReadTrees, PairError
from specdemo.events import METHODS
from specdemo.session import Run
from tests.small import small_model
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
    monkeypatch.setattr("specdemo.bench.compare.is_wide", lambda interval: False)


@pytest.fixture
def generated(monkeypatch) -> list[tuple[str, int, int]]:
    """Each run that begins: what drafts, the prompt's length, and how many tokens it may write."""
    begun, begin = [], Run.__init__

    def init(run, pair, started, measure, *more):
        assert not measure, "the comparison measures plain decoding itself"
        begun.append((started.params.draft_with, len(started.prompt_ids), started.params.max_new_tokens))
        begin(run, pair, started, measure, *more)

    monkeypatch.setattr(Run, "__init__", init)
    return begun


@pytest.mark.slow
def test_settings_take_turns_after_a_short_warm_up_on_the_longest_prompt(pair, generated):
    settings = methods_of(pair, ["lookup", "none"], GREEDY)
    every = list(compare(settings, PROMPTS, repeats=2))
    assert generated[:2] == [("lookup", 5, 48), ("none", 5, 48)]
    turn = [("lookup", 5, 60), ("none", 5, 60), ("lookup", 3, 60), ("none", 3, 60)]
    assert generated[2:] == turn * 2
    assert [(each.done, each.total) for each in every] == [(i + 1, 10) for i in range(10)]
    assert every[-1].left == 0 < min(each.left for each in every[:-1])
    assert [each.measuring for each in every] == ["target alone", "lookup"] * 4 + ["target alone", None]
    assert [len(each.rows) for each in every[:5]] == [0, 0, 1, 2, 2]
    assert [row.samples for row in every[-1].rows] == [4, 4]


@pytest.mark.slow
def test_greedy_rows_say_that_all_texts_are_equal(pair, unhurried):
    can = [name for name in METHODS if not pair.lacks(name)]
    *_, last = compare(methods_of(pair, can, GREEDY), PROMPTS, repeats=1)
    assert {row.draft_with for row in last.rows} == set(can) == set(METHODS) - {"mtp"}
    assert [row.texts_equal for row in last.rows] == ["2 of 2"] * len(can)
    speeds = [row.tokens_per_second for row in last.rows if not is_untimed(row)]
    assert speeds == sorted(speeds, reverse=True)
    by_kind = {row.draft_with: row for row in last.rows}
    plain, model = by_kind["none"], by_kind["model"]
    assert (plain.tokens_per_round, plain.drafted_per_round, plain.speedup) == (1, 0, 1)
    low, high = model.speedup_interval
    told = model.tokens_per_second / plain.tokens_per_second
    assert low <= told <= high and (is_untimed(model) or model.speedup == pytest.approx(told))
    assert model.drafter_bytes == pair.bytes_held.drafter


@pytest.mark.slow
def test_a_text_that_differs_from_the_targets_own_is_counted(pair):
    """Against another target, so that they do differ."""
    other = load_pair(target=tiny(seed=3))
    settings = [*methods_of(pair, ["none"], GREEDY), *methods_of(other, ["lookup"], GREEDY)]
    *_, last = compare(settings, PROMPTS, repeats=1)
    assert {row.draft_with: row.texts_equal for row in last.rows} == {"none": "2 of 2", "lookup": "0 of 2"}


@pytest.mark.slow
def test_the_rows_and_traces_are_those_of_the_runs(pair, unhurried):
    settings = methods_of(pair, ["model", "none"], GREEDY)
    *_, last = compare(settings, PROMPTS[:1], repeats=1)
    model = next(row for row in last.rows if row.draft_with == "model")
    trace, stats = last.traces["drafter model"], last.traces["drafter model"].stats
    alone = generate(pair, PROMPTS[0], replace(GREEDY, draft_with="model"))
    assert trace.output_ids == alone.output_ids and trace.finish == "length" and stats.tokens == 60
    assert (
        model.accepted_per_round == stats.accepted / stats.rounds == alone.stats.accepted / alone.stats.rounds
    )
    assert model.draft_ms_per_round == stats.draft_ms / stats.rounds
    assert model.tokens_per_second == pytest.approx(1000 * 60 / (stats.draft_ms + stats.verify_ms))
    assert set(last.traces) == {"drafter model", "target alone"}
    plain = last.traces["target alone"].stats
    assert model.speedup == pytest.approx(plain.run_ms / stats.run_ms), "both have 60 tokens"
    low, high = model.speedup_interval
    assert low <= model.speedup <= high, "of one run each, as of a race"


@pytest.mark.slow
def test_stopping_half_way_leaves_the_rows_so_far_and_frees_the_pair(pair, generated):
    comparison = compare(methods_of(pair, ["model", "lookup", "none"], GREEDY), PROMPTS, repeats=2)
    so_far = next(each for each in comparison if each.done == 7)
    comparison.close()
    assert len(generated) == 7, "nothing runs after that"
    assert [row.samples for row in so_far.rows] == [1, 1, 1], "the second turn is not finished"
    assert so_far.measuring == "lookup" and len(so_far.traces["drafter model"].prompt_ids) == 3
    assert generate(pair, PROMPTS[0], GREEDY, measure=False).finish == "length"


def test_a_run_in_progress_is_closed_when_the_measurement_is_interrupted(pair, monkeypatch):
    rounds, following = [], Run.__next__

    def interrupted(run):
        rounds.append(run)
        if len(rounds) == 60:
            raise KeyboardInterrupt
        return following(run)

    monkeypatch.setattr(Run, "__next__", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(compare(methods_of(pair, ["none"], GREEDY), PROMPTS, repeats=1))
    assert rounds[-1].trace.finish == "cancelled" and not pair.lock.locked()


def test_it_can_be_stopped_within_a_generation_which_then_does_not_count(pair):
    asked = iter(range(1_000))
    settings = methods_of(pair, ["none"], GREEDY)
    every = list(compare(settings, PROMPTS, repeats=1, is_stopped=lambda: next(asked) > 49 + 61 + 20))
    assert [each.done for each in every] == [1, 2], "the warm-up and one generation"
    assert every[-1].rows[0].samples == 1 and not pair.lock.locked()


def test_a_busy_pair_and_a_prompt_that_does_not_fit_are_refused(pair):
    settings = methods_of(pair, ["none"], GREEDY)
    with pair.lock, pytest.raises(PairError, match="busy"):
        next(compare(settings, PROMPTS, 1))
    with pytest.raises(ValueError, match="prompt must have at most"):
        next(compare(settings, [[5], [5] * 300], 1))
    assert not pair.lock.locked()


def test_the_usual_tree_of_models_that_read_none_is_left_out(generated):
    target = small_model("bloom")
    pair, params = load_pair(target=target, drafter=target), replace(GREEDY, max_new_tokens=8)
    settings = with_trees(settings_for([pair], ["model", "none"], params), params)
    assert [one.params.tree for one in settings] == [(), "auto", ()]
    *_, last = compare(settings, [[5, 6, 7]], repeats=1)
    assert {row.name for row in last.rows} == {"drafter model", "target alone"}
    assert last.done == last.total == 4
    wanted = with_trees(settings[:1], replace(params, tree=(2, 1)))
    with pytest.raises(CannotReadTrees, match="tree must be empty for this pair: the target"):
        list(compare(wanted, [[5, 6, 7]], repeats=1))


# The command

SHORT = ["bench", "--prompts", "1", "--max-new-tokens", "6"]


@pytest.mark.slow
def test_the_command_prints_the_table_the_sentence_and_json_last(capsys):
    assert main([*SHORT, "--repeats", "2", "--gamma", "2", "--methods", "model,lookup"]) == 0
    lines = capsys.readouterr().out.splitlines()
    result = json.loads(lines[-1])
    names = {row["name"] for row in result["rows"]}
    models = {"drafter model (embedded)", "drafter model (embedded-poor)"}
    models |= {"EAGLE-3 head (embedded-eagle3)", "DFlash head (embedded-dflash)"}
    trees = {f"{name}, tree auto" for name in models}
    assert names == {*models, *trees, "lookup", "target alone"}
    for row in result["rows"]:
        (line,) = (line for line in lines[:-2] if line.startswith(row["name"] + "  "))
        assert f"{row['tokens_per_second']:.1f}" in line and line.endswith("2 of 2")
        assert row["texts_equal"] == "2 of 2" and row["gamma"] in (2, None)
    assert lines[-2] == result["winner"] and (len(result["prompts"]), result["repeats"]) == (1, 2)


@pytest.mark.slow
def test_the_command_measures_the_trees_that_it_is_given(capsys):
    assert main([*SHORT, "--repeats", "1", "--methods", "ngram", "--trees", "2,1", "2"]) == 0
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
    assert sorted((row["draft_with"], row["tree"]) for row in rows) == [
        ("ngram", ""), ("ngram", "2"), ("ngram", "2,1"), ("none", "")
    ]  # fmt: skip


@pytest.mark.slow
def test_an_interrupted_command_prints_what_was_measured(capsys, monkeypatch):
    made = []

    def interrupted(*arguments):
        if len(made) == 5:  # two warm-ups, a turn, and half of another
            raise KeyboardInterrupt
        made.append(arguments)
        return _generate(*arguments)

    monkeypatch.setattr("specdemo.bench.compare._generate", interrupted)
    assert main([*SHORT, "--repeats", "3", "--methods", "lookup"]) == 130
    out, err = capsys.readouterr()
    assert [row["samples"] for row in json.loads(out.splitlines()[-1])["rows"]] == [1, 1]
    assert err.splitlines()[-1] == "specdemo: interrupted: this is what was measured before"
    made[:] = [None] * 5
    assert main([*SHORT, "--methods", "lookup"]) == 130, "and nothing where nothing was measured"
    assert capsys.readouterr().out == ""


@pytest.mark.slow
def test_a_quantised_drafter_is_compared_with_a_head_which_cannot_be(capsys):
    options = "bench --methods model --quantize-drafter int8 --prompts 1 --repeats 1 --max-new-tokens 4"
    assert main(options.split()) == 0
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
    assert any("eagle3" in row["name"] for row in rows)


@pytest.mark.slow
def test_what_was_captured_with_a_drafter_is_let_go_of_with_it():
    pair = load_pair()
    before = pair.runner.graphs
    before.blocker = "a drafter that is gone"
    pair.detach()
    assert pair.runner.graphs is not before and pair.runner.graphs.blocker is None
    assert pair.notes == [note for note in pair.notes if "gone" not in str(note)]


@pytest.mark.slow
def test_what_is_timed_in_turns_follows_from_each_other(pair, unhurried):
    settings = methods_of(pair, ["model", "lookup", "none"], GREEDY)
    *_, last = compare(settings, PROMPTS, repeats=5, in_turns=2)
    assert last.repeats == 2 and [row.samples for row in last.rows] == [4, 4, 4]
    alone = next(row for row in last.rows if row.draft_with == "none")
    assert alone.speedup == 1 == pytest.approx(alone.plain_rounds_per_round)
    for row in last.rows:
        assert row.speedup == pytest.approx(row.tokens_per_second / alone.tokens_per_second)
        assert row.speedup == pytest.approx(row.tokens_per_round / row.plain_rounds_per_round)
        if row is not alone:
            low, high = row.speedup_interval
            assert low < row.speedup < high
