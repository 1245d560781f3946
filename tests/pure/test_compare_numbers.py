"""The comparison of drafters without its models: rows, intervals, settings, and who wins."""

import csv
from dataclasses import fields, replace
from io import StringIO
from types import SimpleNamespace

import pytest

from specdemo.drafters.table import drafting_by
from specdemo.events import ByModel, PairInfo, Params, Round, Stats
from specdemo.loading.catalog import others_at_hand
from specdemo.measure.compare import Text, result_of, rows_of
from specdemo.measure.settings import Setting, settings_for
from specdemo.measure.table import MethodRow, csv_of, methods_text, winner

GREEDY = Params(temperature=0)


def pair(name="some", drafter=True, kind="model"):
    info = PairInfo(
        name, "a target", "a drafter", "cpu", "a CPU", ByModel("float32", "float32"), ByModel(None, None)
    )
    info = replace(info, drafter_kind=kind)
    model = object() if drafter else None
    made = SimpleNamespace(info=info, drafter=model, carried=model, drafter_bytes=2_500_000, notes=["a note"])
    made.lacks = lambda method: drafting_by(method).lacks(made)
    return made


def setting(draft_with, params=GREEDY, name=None) -> Setting:
    return Setting(name or draft_with, pair(), replace(params, draft_with=draft_with))


TOKENS = 32


def sample(ms_per_token=1.0, ids=(1, 2, 3, 4), rounds=16, **counts) -> Text:
    """Of 32 tokens, a quarter of whose time is drafting."""
    ms = TOKENS * ms_per_token
    stats = replace(Stats(), tokens=TOKENS, rounds=rounds, draft_ms=ms / 4, verify_ms=3 * ms / 4, **counts)
    each = (1,) * (TOKENS // rounds)
    made = [Round(at, (), None, each, ms / rounds / 4, 3 * ms / rounds / 4) for at in range(rounds)]
    return Text(SimpleNamespace(stats=stats, output_ids=list(ids), rounds=made))


def test_the_figures_of_a_row_follow_from_each_other():
    plain = [sample(ms, rounds=32, prefill_ms=1e6) for ms in (12.1, 11.9, 12)]
    drafted = [
        sample(4.4, drafted=48, accepted=16, rejected=8),
        sample(4.35, drafted=32, accepted=8, rejected=16),
        sample(4.25, drafted=40, accepted=24),
    ]
    first, last = rows_of([setting("none"), setting("model")], {"none": plain, "model": drafted}, False)
    assert (first.name, first.draft_with, first.gamma, first.samples) == ("model", "model", 4, 3)
    assert (first.drafted_per_round, first.accepted_per_round) == (120 / 48, 48 / 48)
    assert first.tokens_per_round == 96 / 48 and first.acceptance_rate == 48 / 72
    round_ms = first.draft_ms_per_round + first.verify_ms_per_round
    assert round_ms == pytest.approx(TOKENS * (4.4 + 4.35 + 4.25) / 48)
    assert first.tokens_per_second == pytest.approx(1000 * first.tokens_per_round / round_ms)
    assert first.speedup == pytest.approx(first.tokens_per_second / last.tokens_per_second)
    assert first.speedup == pytest.approx(36 / 13)
    low, high = first.speedup_interval
    assert low < first.speedup < high, "the runs took 4.25 to 4.4 ms a token"
    assert first.drafter_bytes == 2_500_000 and first.texts_equal == "3 of 3"
    assert first.speedup == pytest.approx(first.tokens_per_round / first.plain_rounds_per_round)
    assert (last.gamma, last.speedup, last.speedup_interval, last.drafter_bytes) == (None, 1, None, None)
    assert last.tokens_per_second == pytest.approx(1000 / 12), "prefill is left out"
    assert last.acceptance_rate is None and last.plain_rounds_per_round == pytest.approx(1)


def test_greedy_texts_are_compared_with_those_of_the_target_alone_and_sampled_ones_are_not():
    samples = {"none": [sample(), sample(ids=[5, 6, 7, 8])], "lookup": [sample(), sample(ids=[5, 6, 7, 9])]}
    for temperature, expected in ((0, "1 of 2"), (0.5, None)):
        both = [setting("none"), setting("lookup", replace(GREEDY, temperature=temperature))]
        equal = {row.name: row.texts_equal for row in rows_of(both, samples, False)}
        assert equal == {"none": "2 of 2", "lookup": expected}


def test_what_is_not_sure_has_no_speedup():
    """Not in a file either: the cost of a round would tell it."""
    unsteady = sample(2)
    trace = unsteady.trace
    trace.rounds = [replace(one, verify_ms=0.5 + 40 * (one.index % 8 == 0)) for one in trace.rounds]
    samples = {"none": [sample(8, rounds=32)], "model": [sample(4)], "lookup": [unsteady]}
    rows = rows_of([setting(name) for name in samples], samples, False)
    assert [row.name for row in rows] == ["model", "none", "lookup"], "fastest first, and it comes last"
    low, high = rows[-1].speedup_interval
    assert high > 1.6 * low and rows[-1].tokens_per_round == 2
    assert rows[-1].speedup is rows[-1].plain_rounds_per_round is None
    del samples["none"]
    for row in rows_of([setting(name) for name in samples], samples, False):
        assert row.speedup is row.speedup_interval is row.texts_equal is row.plain_rounds_per_round is None


def test_rows_of_an_unfinished_comparison_are_over_the_same_prompts():
    settings = [setting("lookup"), setting("none")]
    assert rows_of(settings, {"lookup": [], "none": []}, False) == []
    (only,) = rows_of(settings, {"lookup": [sample(2)], "none": []}, False)
    assert only.name == "lookup" and only.speedup is None, "the first turn shows what it has"
    rows = rows_of(settings, {"lookup": [sample(2), sample(100)], "none": [sample(4)]}, False)
    found = [(row.samples, row.tokens_per_second, row.speedup) for row in rows]
    assert found == [(1, pytest.approx(500), pytest.approx(2)), (1, pytest.approx(250), 1)]


# Settings


def test_several_pairs_give_several_drafter_models_and_each_other_method_once():
    one, two = pair("one"), pair("two")
    settings = settings_for([one, two], ["lookup", "model", "none", "lookup"], GREEDY)
    assert [(each.name, each.pair) for each in settings] == [
        ("drafter model (one)", one),
        ("drafter model (two)", two),
        ("lookup", one),
        ("target alone", one),
    ]
    alone = pair(drafter=False)
    with pytest.raises(ValueError, match='^methods .*"model"'):
        settings_for([alone], ["lookup", "model"], GREEDY)
    assert others_at_hand("embedded-poor") == ["embedded", "embedded-eagle3", "embedded-dflash"]
    assert others_at_hand("some/target + some/drafter") == []


# Who wins


def rows_at(**ms_per_token: float) -> list[MethodRow]:
    """Of methods that take so long, and vary by a tenth."""
    samples = {name: [sample(ms * each) for each in (0.95, 1.0, 1.05)] for name, ms in ms_per_token.items()}
    return rows_of([setting(name) for name in ms_per_token], samples, False)


@pytest.mark.parametrize(
    ("ms", "named", "said", "unsaid"),
    [
        ({"none": 8, "model": 4, "lookup": 6}, ["model"], "Model is fastest: 2.00 ×", "No drafter"),
        (
            {"none": 8, "model": 4, "lookup": 4.1},
            ["model", "lookup"],
            "but lookup may be as fast",
            "fastest: 2",
        ),
        ({"none": 8, "model": 8.1}, ["model"], "No drafter is clearly faster", "is fastest"),
        ({"none": 8, "model": 12}, ["model"], "Nothing beats the target alone", "is fastest"),
        ({"model": 4, "lookup": 6}, ["model"], "So far", "×"),
        ({"model": 4}, ["model"], "tokens/s", "×"),
    ],
)
def test_who_wins_is_said_by_the_tables_numbers_and_never_surer_than_they_are(ms, named, said, unsaid):
    rows = rows_at(**ms)
    assert said in winner(rows) and unsaid not in winner(rows)
    assert all(name in winner(rows).lower() for name in named)


def test_a_file_has_every_value_unrounded_and_the_table_a_line_for_each():
    rows = [replace(row, name='a "b", c') for row in rows_at(model=4)] + rows_at(none=8, lookup=6)[1:]
    first, second = csv.DictReader(StringIO(csv_of(rows)))
    expected = [field.name for field in fields(MethodRow) if field.name != "speedup_interval"]
    assert set(first) == {*expected, "speedup_low", "speedup_high"}
    assert first["name"] == 'a "b", c' and float(first["tokens_per_second"]) == rows[0].tokens_per_second
    assert second["name"] == "none" and second["gamma"] == second["speedup_low"] == ""
    settings = [setting(name, replace(GREEDY, rule="typical")) for name in ("none", "model")]
    rows = [replace(row, name=f"[b]{row.name:->300}") for row in rows_at(none=8, model=4)]
    table = methods_text(result_of(settings, ["one"], 3, rows))
    assert f"\n{rows[0].name}  " in table and "rule typical" in table and "is fastest: 2.00 ×" in table
