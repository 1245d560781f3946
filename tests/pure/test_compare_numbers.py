"""The comparison of drafters without its models: rows, intervals, who wins, and the table's texts."""

import csv
import json
import re
from dataclasses import asdict, fields, replace
from functools import partial
from io import StringIO
from types import SimpleNamespace

import pytest

from specdemo.bench.compare import (
    Setting,
    _seconds,
    methods_at_hand,
    methods_of,
    result_of,
    rows_of,
    settings_for,
    with_trees,
)
from specdemo.bench.methods import MethodRow, cells, comparison_csv, methods_table, spoken_of, winner
from specdemo.drafters.ways import way_called
from specdemo.events import DRAFTER_KINDS, METHODS, ByModel, PairInfo, Params, Round
from specdemo.events.metrics import fresh
from specdemo.loading.catalog import others_at_hand

GREEDY = Params(temperature=0)


def pair(name="some", drafter=True, kind="model"):
    info = PairInfo(
        name, "a target", "a drafter", "cpu", "a CPU", ByModel("float32", "float32"), ByModel(None, None)
    )
    info = replace(info, drafter_kind=kind)
    model = object() if drafter else None
    made = SimpleNamespace(
        info=info, drafter=model, carried={"mtp": model}, drafter_bytes=2_500_000, notes=["a note"]
    )
    made.lacks = lambda method: way_called(method).lacks(made)
    return made


def setting(draft_with, params=GREEDY, name=None) -> Setting:
    return Setting(name or draft_with, pair(), replace(params, draft_with=draft_with))


TOKENS = 32


def sample(ms_per_token=1.0, ids=(1, 2, 3, 4), rounds=16, **counts) -> SimpleNamespace:
    """Of 32 tokens, a quarter of whose time is drafting."""
    ms = TOKENS * ms_per_token
    stats = replace(fresh(), tokens=TOKENS, rounds=rounds, draft_ms=ms / 4, verify_ms=3 * ms / 4, **counts)
    each = (1,) * (TOKENS // rounds)
    made = [Round(at, (), None, each, ms / rounds / 4, 3 * ms / rounds / 4) for at in range(rounds)]
    return SimpleNamespace(stats=stats, output_ids=list(ids), rounds=made)


# Rows


def test_the_figures_of_a_row_follow_from_each_other():
    plain = [sample(ms, rounds=32, prefill_ms=1e6) for ms in (12.1, 11.9, 12)]
    drafted = [
        sample(4.4, drafted=48, accepted=16, rejected=8),
        sample(4.35, drafted=32, accepted=8, rejected=16),
        sample(4.25, drafted=40, accepted=24),
    ]
    first, last = rows_of([setting("none"), setting("model")], {"none": plain, "model": drafted})
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
    plain_ms = last.draft_ms_per_round + last.verify_ms_per_round
    assert first.plain_rounds_per_round == pytest.approx(round_ms / plain_ms)
    assert first.speedup == pytest.approx(first.tokens_per_round / first.plain_rounds_per_round)
    assert (first.manner, last.manner, last.plain_rounds_per_round) == ("chain", None, pytest.approx(1))
    assert (last.gamma, last.speedup, last.speedup_interval, last.drafter_bytes) == (None, 1, None, None)
    assert last.tokens_per_second == pytest.approx(1000 / 12), "prefill is left out"
    assert last.acceptance_rate is None


def test_rows_come_fastest_first():
    times = {"none": 5, "lookup": 7, "ngram": 3, "model": 4}
    rows = rows_of([setting(name) for name in times], {name: [sample(ms)] for name, ms in times.items()})
    assert [row.name for row in rows] == ["ngram", "model", "none", "lookup"]
    assert [row.drafter_bytes for row in rows] == [None, 2_500_000, None, None]


def test_greedy_texts_are_compared_with_those_of_the_target_alone_and_sampled_ones_are_not():
    samples = {"none": [sample(), sample(ids=[5, 6, 7, 8])], "lookup": [sample(), sample(ids=[5, 6, 7, 9])]}
    for temperature, expected in ((0, "1 of 2"), (0.5, None)):
        both = [setting("none"), setting("lookup", replace(GREEDY, temperature=temperature))]
        equal = {row.name: row.texts_equal for row in rows_of(both, samples)}
        assert equal == {"none": "2 of 2", "lookup": expected}


def test_a_row_whose_interval_is_wide_has_tokens_a_round_and_no_speedup_and_comes_last():
    """Neither in a file: the cost of a round would tell it."""
    unsteady = sample(2)
    unsteady.rounds = [replace(one, verify_ms=0.5 + 40 * (one.index % 8 == 0)) for one in unsteady.rounds]
    samples = {"none": [sample(8, rounds=32)], "model": [sample(4)], "lookup": [unsteady]}
    *_, last = rows_of([setting(name) for name in samples], samples)
    low, high = last.speedup_interval
    assert high > 1.6 * low and last.draft_with == "lookup" and last.tokens_per_round == 2
    assert last.speedup is last.plain_rounds_per_round is None


def test_without_the_target_alone_there_are_no_speedups():
    both = [setting("lookup"), setting("ngram")]
    for row in rows_of(both, {"lookup": [sample()] * 3, "ngram": [sample(2)] * 3}):
        assert row.speedup is row.speedup_interval is row.texts_equal is row.plain_rounds_per_round is None


def test_rows_of_an_unfinished_comparison_are_over_the_same_prompts():
    settings = [setting("lookup"), setting("none")]
    assert rows_of(settings, {"lookup": [], "none": []}) == []
    (only,) = rows_of(settings, {"lookup": [sample(2)], "none": []})
    assert only.name == "lookup" and only.speedup is None, "the first turn shows what it has"
    rows = rows_of(settings, {"lookup": [sample(2), sample(100)], "none": [sample(4)]})
    found = [(row.samples, row.tokens_per_second, row.speedup) for row in rows]
    assert found == [(1, pytest.approx(500), pytest.approx(2)), (1, pytest.approx(250), 1)]


def test_what_is_left_is_told_by_what_such_texts_have_taken():
    one, two = (setting(name, replace(GREEDY, max_new_tokens=96)) for name in ("none", "lookup"))
    texts = [(one, "a"), (two, "a")]
    left = partial(_seconds, longer=1.5)
    cold = left([(two, "a"), *texts], {"none": [2.0], "lookup": []})
    assert cold == 2.0 + 2 * (1.5 * 2 * 2.0), "a warm-up and two texts of twice its length, in turns"
    assert left(texts, {"none": [2.0], "lookup": [4.0]}) == 1.5 * 2 * (2.0 + 4.0)
    assert left([texts[1]], {"none": [2.0, 5.0], "lookup": [9.0, 7.0, 8.0]}) == 7.5, "no warm-up counts then"
    assert left([], {"none": [2.0, 5.0], "lookup": [9.0, 7.0]}) == 0


# Settings


def test_a_pair_without_a_drafter_cannot_be_compared_by_its_model():
    alone = pair(drafter=False)
    words = r'methods must not include "model" for this pair: it has no drafter'
    with pytest.raises(ValueError, match=words):
        methods_of(alone, ["lookup", "model"], GREEDY)
    assert [each.name for each in methods_of(alone, ["lookup", "none"], GREEDY)] == ["lookup", "target alone"]
    with pytest.raises(ValueError, match="draft_with must be one of"):
        methods_of(alone, ["magic"], GREEDY)


def test_several_pairs_give_several_drafter_models_and_each_other_method_once():
    one, two = pair("one"), pair("two")
    settings = settings_for([one, two], ["lookup", "model", "none"], GREEDY)
    assert [(each.name, each.pair) for each in settings] == [
        ("drafter model (one)", one),
        ("drafter model (two)", two),
        ("lookup", one),
        ("target alone", one),
    ]
    assert [each.name for each in settings_for([one, two], ["lookup"], GREEDY)] == ["lookup"]
    assert [each.name for each in settings_for([one], ["model"], GREEDY)] == ["drafter model"]


def taking(*kinds):
    """What a pair makes of Params, of which only these kinds draft trees."""

    def check(made, params):
        if made.info.drafter_kind not in kinds:
            raise ValueError("tree must be empty")
        return params

    return check


def test_what_drafts_trees_is_compared_with_trees_too():
    pairs = [pair("one"), pair("two", kind="eagle3")]
    for one in pairs:
        one.check = partial(taking("model"), one)
    settings = settings_for(pairs, ["model", "lookup"], replace(GREEDY, tree=(2, 2)))
    assert not any(each.params.tree for each in settings)
    found = with_trees(settings, replace(GREEDY, tree=(2, 2)))
    assert [each.name for each in found if each.params.tree] == [
        f"drafter model (one), tree {tree}" for tree in ("auto", "2,2")
    ]
    assert [each for each in found if not each.params.tree] == settings
    shown = with_trees(settings, GREEDY, [(2, 1), "auto"])
    assert [(each.params.tree, each.is_extra) for each in shown if each.params.tree] == [
        ((2, 1), False), ("auto", False)
    ]  # fmt: skip
    with pytest.raises(ValueError, match="^trees must not include auto here: none of these"):
        with_trees(settings[-1:], GREEDY, ["auto"])
    row = rows_of(found, {each.name: [sample()] for each in found})[1]
    assert (row.gamma, row.tree, cells(row)["gamma"]) == (None, "auto", "–")
    lossy = settings_for(pairs, ["model"], replace(GREEDY, rule="typical"))
    assert with_trees(lossy, replace(GREEDY, rule="typical")) == lossy, "the rule is one of chains"
    pairs[0].check = partial(taking(), pairs[0])
    assert with_trees(settings, GREEDY) == settings
    for asked in ((replace(GREEDY, tree=(2, 2)),), (GREEDY, [(2, 1)])):
        with pytest.raises(ValueError, match="tree must be empty"):
            with_trees(settings, *asked)


def test_a_row_is_named_by_the_kind_of_its_drafter_and_tells_how_it_drafts():
    pairs = [pair(f"of {kind}", kind=kind) for kind in DRAFTER_KINDS]
    settings = settings_for(pairs, ["model", "lookup"], GREEDY)
    labels = [f"{kind.label} (of {name})" for name, kind in DRAFTER_KINDS.items()]
    assert [each.name for each in settings] == [*labels, "lookup"]
    rows = rows_of(settings, {each.name: [sample()] for each in settings})
    manners = {row.name: row.manner for row in rows}
    assert list(map(manners.get, labels)) == [kind.manner for kind in DRAFTER_KINDS.values()]
    assert manners["lookup"] == "copy"


def test_all_are_the_methods_that_the_pair_can_have():
    one_layer = SimpleNamespace(get_text_config=lambda: SimpleNamespace(num_hidden_layers=1))
    target = SimpleNamespace(config=one_layer)
    pair = SimpleNamespace(target=target, drafter=None, carried={"mtp": "it has none"})
    pair.lacks = lambda method: way_called(method).lacks(pair)
    no_model = [name for name in METHODS if name not in ("model", "lookup+model", "mtp", "early-exit")]
    assert methods_at_hand(pair) == no_model
    pair.drafter = object()
    assert methods_at_hand(pair) == ["model", "lookup", "lookup+model", *no_model[1:]]


def test_other_drafters_for_the_same_target_that_need_no_download():
    assert others_at_hand("embedded") == ["embedded-poor", "embedded-eagle3", "embedded-dflash"]
    assert others_at_hand("embedded-poor") == ["embedded", "embedded-eagle3", "embedded-dflash"]
    assert others_at_hand("qwen3-8b") == others_at_hand("some/target + some/drafter") == []


# Who wins


def made(name, speedup=1.0, interval=None, **changes) -> MethodRow:
    kind = next((kind for kind, method in METHODS.items() if name.startswith(method.label)), "lookup")
    values = dict(
        name=name,
        draft_with=kind,
        manner=None if kind == "none" else "chain",
        gamma=None if kind == "none" else 4,
        tree="",
        drafted_per_round=0.0 if kind == "none" else 4.0,
        rounds_with_draft=0.0 if kind == "none" else 1.0,
        accepted_per_round=0.0 if kind == "none" else 2.104,
        tokens_per_round=1.0 if kind == "none" else 3.104,
        acceptance_rate=None if kind == "none" else 0.7,
        draft_ms_per_round=0.0 if kind == "none" else 1.9,
        verify_ms_per_round=6.0 if kind == "none" else 8.1,
        plain_rounds_per_round=1.0 if kind == "none" else 1.667,
        tokens_per_second=100 * (speedup or 1),
        speedup=speedup,
        speedup_interval=interval,
        drafter_bytes=5_000_000 if kind == "model" else None,
        texts_equal="6 of 6",
        samples=6,
    )
    return MethodRow(**values | changes)


PLAIN = made("target alone")
WIDE = {"speedup": None, "interval": (1.0, 1.7), "tokens_per_second": 300, "plain_rounds_per_round": None}
MODEL = made("drafter model", 1.9, (1.8, 2.0))

BRINGS = "brings 3.10 tokens a round, and a round takes as long as 1.67 rounds of the target alone."
WHY = f"The drafter model {BRINGS}"
TIED = "No drafter is clearly fastest: "
NONE = "Nothing beats the target alone here: lookup, the fastest drafter, is"
SLOWER = "0.93 × as fast as it (0.90 to 0.96 ×, 90%)"
BY = "because its rounds bring"
SENTENCES = {
    "Nothing has been measured yet.": [],
    "Only the drafter model has been measured: 190.0 tokens/s.": [MODEL],
    "Gamma 4 is fastest, with 20.0 tokens/s; gamma 2 reaches 10.0 tokens/s. The target alone has not been "
    "measured, so there is no interval, and a small lead can be noise.": [
        made("gamma 4", None, tokens_per_second=20.04),
        made("gamma 2", None, tokens_per_second=10),
    ],
    "So far lookup is the fastest drafter, with 123.4 tokens/s. A speed-up needs at least 24 tokens.": [
        made("lookup", None, tokens_per_second=123.4),
        PLAIN,
    ],
    f"The drafter model is fastest: 1.90 × as fast as the target alone (1.80 to 2.00 ×, 90%). {WHY} "
    "This machine was too busy to time 1 more.": [MODEL, PLAIN, made("lookup", **WIDE)],
    f"The drafter model is fastest: 1.90 × as fast as the target alone (1.80 to 2.00 ×, 90%). {WHY} Lookup "
    "found something to copy in 12% of its rounds, and 0.10 copied tokens a round were accepted: little in "
    "this text repeats.": [
        MODEL,
        PLAIN,
        made("lookup", 0.9, (0.8, 0.95), rounds_with_draft=0.124, accepted_per_round=0.1),
    ],
    "This machine was too busy to time the drafters. Most tokens a round: 3.10, by lookup.": [
        PLAIN,
        made("lookup", **WIDE),
    ],
    "The drafter model is fastest: 1.90 × as fast as the target alone (1.80 to 2.00 ×, 90%). " + WHY: [
        MODEL,
        made("lookup", 1.2, (1.1, 1.3)),
        PLAIN,
    ],
    TIED
    + "the drafter model is 1.90 × as fast as the target alone (1.80 to 2.00 ×, 90%), but lookup may be as "
    f"fast. {WHY}": [MODEL, made("lookup", 1.8, (1.7, 1.85)), made("n-gram store", 1.2, (1.1, 1.3)), PLAIN],
    TIED
    + "the n-gram store is 1.20 × as fast as the target alone (1.10 to 1.30 ×, 90%), but lookup may be as "
    "fast. Of these 2, only the n-gram store is clearly faster than the target alone. The n-gram store "
    + BRINGS: [
        made("lookup", 1.3, (0.95, 1.4)),
        made("n-gram store", 1.2, (1.1, 1.3)),
        PLAIN,
    ],
    "No drafter is clearly faster than the target alone: the fastest, lookup, is 1.02 × as fast as it (1.00 "
    "to 1.08 ×, 90%).": [
        made("lookup", 1.02, (1.003, 1.08)),  # above 1 only before rounding
        PLAIN,
        made("n-gram store", 0.9, (0.8, 0.95)),
    ],
    f"{NONE} {SLOWER}, {BY} 1.50 tokens and take 1.67 times as long.": [
        PLAIN,
        made("lookup", 0.93, (0.9, 0.96), tokens_per_round=1.5),
    ],
    f"{NONE} {SLOWER}, {BY} 1.00 tokens and take 1.67 times as long. It found nothing to draft.": [
        PLAIN,
        made("lookup", 0.93, (0.9, 0.96), tokens_per_round=1.0, drafted_per_round=0.001),
    ],
}


def test_nobody_wins_before_the_target_alone_is_measured():
    drafters = [MODEL, made("lookup", 1.8, (1.7, 1.85))]
    assert winner(drafters, goes_on=True).startswith("So far the drafter model is the fastest drafter, with ")
    assert " is fastest, with " in winner(drafters)


@pytest.mark.parametrize("sentence", SENTENCES)
def test_who_wins_and_why_with_the_tables_factors(sentence):
    rows = SENTENCES[sentence]
    assert winner(rows) == sentence
    if PLAIN in rows:
        assert winner(rows, goes_on=True) == sentence
    table = " ".join(text for row in rows for text in cells(row).values())
    for factors in re.findall(r"([\d.]+)(?: (?:and|to) ([\d.]+))? ×", sentence):
        assert all(factor in table for factor in factors)


# Texts


def test_what_the_sentence_on_who_wins_names_or_counts_is_known():
    plain, busy, fast = (
        made("plain", draft_with="none"),
        made("d", None, (0.5, 4.0)),
        made("a", 1.9, (1.7, 2)),
    )
    near, slow = made("b", 1.7, (1.6, 1.8)), made("e", 0.8, (0.7, 0.9))
    for rows, names, said in (
        ([fast, made("c", 1.3, (1.2, 1.4)), near, slow, plain, busy], "acb", "but b may be as fast"),
        ([plain, busy, slow], "de", "here: e, the fastest drafter, is 0.80"),
        ([plain, busy, replace(busy, name="f", tokens_per_round=9.0)], "df", "9.00, by f"),
    ):
        assert {row.name for row in spoken_of(rows)} - {"plain"} == {*names} and said in winner(rows)


def test_cells_are_rounded_and_a_wide_interval_is_no_number():
    told = cells(MODEL)
    assert told.items() >= {"drafts as": "chain", "accepted/round": "2.10", "acceptance": "0.700"}.items()
    assert told["speed-up (90%)"] == "1.90 (1.80–2.00)" and told["memory"] == "5.0 MB"
    assert cells(made("lookup", **WIDE))["speed-up (90%)"] == "too busy to time"
    assert cells(replace(MODEL, speedup_interval=(1.3, 2.08)))["speed-up (90%)"] == "1.90 (1.30–2.08)"
    assert cells(replace(MODEL, tree="3,2,1"))["drafts as"] == "depth"
    assert cells(replace(MODEL, tree="3,2,1", manner="copy"))["drafts as"] == "copy"
    plain = cells(PLAIN)
    assert plain["gamma"] == plain["memory"] == plain["drafts as"] == "–"
    assert plain["speed-up (90%)"] == plain["plain rounds/round"] == "1.00"


def test_the_csv_has_every_value_unrounded():
    text = comparison_csv([MODEL, replace(PLAIN, name='a "b", c')])
    first, second = csv.DictReader(StringIO(text))
    expected = [field.name for field in fields(MethodRow) if field.name != "speedup_interval"]
    assert set(first) == {*expected, "speedup_low", "speedup_high"}
    assert [first[name] for name in ("accepted_per_round", "speedup_low", "speedup_high")] == [
        *("2.104", "1.8", "2.0")
    ]
    assert (second["name"], second["gamma"], second["speedup_low"]) == ('a "b", c', "", "")
    assert comparison_csv([]) == text.splitlines()[0] + "\r\n"


def test_a_rule_is_noted_wherever_the_target_alone_stands():
    for names in (("none", "model"), ("model", "none")):
        settings = [setting(name, replace(GREEDY, rule="typical")) for name in names]
        assert "rule typical" in result_of(settings, ["one"], 1, []).notes[0]


def test_the_table_has_a_line_for_each_drafter_the_notes_and_the_sentence():
    result = result_of([setting("model"), setting("none")], ["one", "two"], 3, [MODEL, PLAIN])
    lines = methods_table(result).splitlines()
    assert len({len(line) for line in lines[2:5]}) == 1, "columns end below each other"
    assert lines[5:] == ["", "note: a note", "", winner(result.rows)]
    assert json.loads(json.dumps(asdict(result)))["rows"][0]["speedup_interval"] == [1.8, 2.0]
