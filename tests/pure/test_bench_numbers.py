"""The benchmark without its models: statistics, turns, rows, tables, prompts and options."""

import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from specdemo.bench.measure import (
    Sample,
    acceptance_rate,
    cost_ratio,
    differences,
    drafting,
    in_turns,
    spread,
    tokens_per_round,
)
from specdemo.bench.prompts import prompt_sets, prompts_for, story_prompts
from specdemo.bench.report import result_table
from specdemo.bench.results import (
    Differences,
    Ratio,
    Result,
    Row,
)
from specdemo.bench.run import ratios, row
from specdemo.cli.main import main
from specdemo.events import METHODS
from specdemo.events.metrics import fresh
from tests.tiny import tokenizer


def sample(ids=(1, 2), rounds=(), seconds=1.0, processor_seconds=1.0, **stats) -> Sample:
    stats = replace(fresh(), rounds=len(rounds), **stats)
    times = [
        SimpleNamespace(draft=range(drafted), draft_ms=draft_ms, verify_ms=verify_ms)
        for drafted, draft_ms, verify_ms in rounds
    ]
    trace = SimpleNamespace(stats=stats, rounds=times)
    return Sample(seconds, processor_seconds, list(ids), trace)


# Statistics


def test_spread_is_the_10th_percentile_the_median_and_the_90th():
    assert spread(range(101)) == (10, 50, 90)
    assert spread([3, 1, 2]) == pytest.approx((1.2, 2, 2.8))
    assert spread([5.0]) == (5, 5, 5)


def test_only_full_rounds_count():
    plain = [sample(rounds=[(0, 0.0, 10.0), (0, 0.0, 12.0)]), sample(rounds=[(0, 0.0, 50.0)])]
    drafted = [
        sample(rounds=[(4, 8.0, 12.0), (4, 4.0, 16.0), (1, 99.0, 99.0)]),
        sample(rounds=[(4, 6.0, 30.0)]),
    ]
    assert cost_ratio(plain, drafted, 4) == 6 / 4 / 12
    assert cost_ratio(plain, drafted, 5) is None


def test_rates_are_those_of_all_samples_together():
    counts = ({"accepted": 3, "rejected": 1, "tokens": 6}, {"accepted": 1, "rejected": 3, "tokens": 4})
    some = [sample(rounds=[(4, 1.0, 1.0)] * n, **one) for n, one in zip((2, 3), counts, strict=True)]
    assert acceptance_rate(some) == 4 / 8 and tokens_per_round(some) == 10 / 5
    assert acceptance_rate([sample()]) is None and tokens_per_round([sample()]) is None


def test_the_formula_needs_an_acceptance_rate_and_a_cost_ratio():
    plain = [sample(rounds=[(0, 0.0, 10.0)])]
    drafted = sample(rounds=[(4, 2.0, 10.0)], accepted=4, rejected=1)
    found = drafting(plain, [drafted], 4)
    assert (found.acceptance_rate, found.cost_ratio) == (0.8, 0.05)
    assert found.expected_x_plain == pytest.approx((1 - 0.8**5) / (0.2 * 1.2))
    assert drafting(plain, [drafted], 5).expected_x_plain is None, "no full round"
    unjudged = sample(rounds=[(4, 2.0, 10.0)])
    assert drafting(plain, [unjudged], 4).expected_x_plain is None


def test_where_texts_first_differ():
    texts = [sample(ids=[1, 2, 3]), sample(ids=[1, 9, 9]), sample(ids=[7, 2, 3])]
    assert differences(texts, [sample(ids=[1, 2, 3])] * 3) == Differences(2, [None, 1, 0])


# Turns


def test_contestants_take_turns_after_warm_ups_on_the_longest_and_the_shortest_prompt():
    calls = []

    def contestant(name):
        def run(ids):
            calls.append((name, len(ids)))
            return [1, 2, 3], None

        return run

    samples = in_turns({name: contestant(name) for name in "ac"}, [[0], [0] * 3, [0] * 2], 2)
    assert calls[:4] == [("a", 3), ("a", 1), ("c", 3), ("c", 1)]
    assert calls[4:] == [(name, length) for _ in range(2) for length in (1, 3, 2) for name in "ac"]
    assert {name: len(some) for name, some in samples.items()} == {"a": 6, "c": 6}
    assert samples["a"][0].ids == [1, 2, 3] and samples["a"][0].trace is None


def test_a_turn_is_timed_by_the_wall_and_by_the_processor():
    def sleeps(ids):
        time.sleep(0.05)
        return [1], None

    def computes(ids):
        end = time.process_time() + 0.05
        while time.process_time() < end:
            pass
        return [1], None

    samples = in_turns({"sleeps": sleeps, "computes": computes}, [[0]], 1)
    (slept,), (computed,) = samples["sleeps"], samples["computes"]
    assert slept.seconds >= 0.05 > slept.processor_seconds
    assert computed.seconds >= 0.05 <= computed.processor_seconds


# Rows


def test_a_row_compares_with_transformers():
    samples = {
        "transformers plain": [sample(seconds=0.008), sample(seconds=0.016), sample(seconds=0.012)],
        "transformers assisted": [sample(seconds=0.006)] * 3,
        "specdemo plain": [
            sample(seconds=0.004, processor_seconds=0.008),
            sample(seconds=0.004, processor_seconds=0.001),
            sample([1, 3], seconds=0.002, processor_seconds=0.016),
        ],
    }
    found = row("specdemo plain", samples, greedy=True)
    assert (found.ms_per_token, found.tokens_per_second) == (2, 500)
    assert found.ms_per_token_10_90 == pytest.approx((1.2, 2))
    assert found.tokens_per_processor_second == 250
    assert (found.x_plain, found.x_assisted) == (3, 1.5)
    assert (found.equal_to_plain, found.differs_at) == ("2 of 3", 1)
    sampled = row("specdemo plain", samples, greedy=False)
    assert sampled.equal_to_plain is sampled.differs_at is None
    del samples["transformers assisted"]
    assert row("specdemo plain", samples, greedy=True).x_assisted is None


def test_ratios_are_those_of_contestants_that_were_measured():
    samples = {
        "transformers plain": [sample(seconds=0.012, processor_seconds=0.02)] * 3,
        "specdemo speculative": [sample(seconds=0.004, processor_seconds=0.004)] * 3,
        "specdemo plain": [sample(seconds=0.008, processor_seconds=0.008)] * 3,
    }
    assert ratios(samples) == [
        Ratio("specdemo speculative", "transformers plain", 3, 5),
        Ratio("specdemo speculative", "specdemo plain", 2, 2),
    ]


# Tables


def result(**changes) -> Result:
    def made(name, ms, x):
        middle, ends = dict(ms_per_token=ms, tokens_per_second=1000 / ms), (ms * 0.8, ms * 1.25)
        speed = dict(middle, ms_per_token_10_90=ends, tokens_per_processor_second=500 / ms)
        texts = dict(equal_to_plain="2 of 2", differs_at=None)
        return Row(name=name, **speed, x_plain=x, x_assisted=None, **texts)

    none = dict.fromkeys(("acceptance_rate", "mean_tokens_per_round", "cost_ratio"))
    values = dict(pair="small + smaller", device="cuda", device_name="Some GPU", dtype="bfloat16")
    values |= dict(date="2026-01-02", threads=2, notes=["a note"], prompt_tokens=None)
    values |= dict(gamma=4, temperature=0.0, top_p=0.9, max_new_tokens=8, prompts=2, repeats=1)
    values |= none | dict(expected_x_plain=None, differing_argmaxes=Differences(0, [None, None]))
    values["rows"] = [
        made("transformers plain", 10.0, 1.0),
        made("specdemo speculative", 4.0, 2.5),
    ]
    values["ratios"] = [Ratio("specdemo speculative", "transformers plain", 2.5, 1.25)]
    return Result(**values | changes)


def words(text: str) -> list[str]:
    """The lines, with single spaces between words."""
    return [" ".join(line.split()) for line in text.splitlines()]


def test_the_table_has_a_line_for_each_contestant():
    lines = words(result_table(result()))
    assert "transformers plain 10.00 8.00-12.50 100.0 50.0 1.00 – 2 of 2" in lines
    assert "specdemo speculative / transformers plain 2.50 1.25" in lines
    assert "note: a note" in lines


def test_the_table_tells_where_a_text_differs_whether_it_is_sampled_and_who_is_fastest():
    plain, ours = result().rows
    other = replace(ours, name="specdemo lookup", equal_to_plain="1 of 2", differs_at=37)
    other = replace(other, tokens_per_processor_second=130.0)
    text = result_table(result(rows=[plain, ours, other]))
    assert "1 of 2, differing from token 37 on\n" in text
    assert "fastest by wall time: specdemo speculative; by processor time: specdemo lookup\n" in text
    sampled = replace(ours, equal_to_plain=None)
    assert "–   – (temperature 0.8)\n" in result_table(result(rows=[sampled], temperature=0.8))


def test_differences_in_float32_are_called_a_bug():
    differing = result(differing_argmaxes=Differences(1, [None, 37]))
    said = "1 of 2 texts differ from plain, first at token 37"
    assert f"{said}\n" in result_table(differing)
    told = result_table(replace(differing, dtype="float32"))
    assert f"{said}; in float32 there must be none: this is a bug" in told


# Prompts


def test_stories_are_continued_with_the_next_ones_to_any_length():
    pair = SimpleNamespace(tokenizer=tokenizer())
    beginnings = [pair.tokenizer(text).input_ids for text in prompt_sets()["story"]]
    assert story_prompts(pair, 22) == beginnings + beginnings[:2]
    one, two = story_prompts(pair, 2, 2000)
    assert len(one) == len(two) == 2000
    joined = sum(beginnings, []) * 9
    assert one == joined[:2000] and two == joined[len(beginnings[0]) :][:2000]
    assert story_prompts(pair, 1, 5) == [beginnings[0][:5]]


def test_embedded_pairs_get_stories_and_others_each_other_kind_in_turn():
    def named(name):
        return SimpleNamespace(info=SimpleNamespace(name=name))

    sets = prompt_sets()
    stories, others = sets["story"], [texts for kind, texts in sets.items() if kind != "story"]
    assert prompts_for(named("embedded-poor"), 22) == [*stories, *stories[:2]]
    firsts, seconds = ([texts[i] for texts in others] for i in (0, 1))
    assert prompts_for(named("qwen3-8b"), 7) == [*firsts, *seconds[:2]]
    assert prompts_for(named("qwen3-8b"), 101)[100] == firsts[0]


# Options


def bench(capsys, options: str) -> tuple[int, str, str]:
    try:
        status = main(["bench", *options.split()])
    except SystemExit as stop:
        status = stop.code
    return status, *capsys.readouterr()


METHODS_ALLOWED = f"methods must be some of {', '.join(METHODS)}, separated by commas, or all, not"
WRONG = {
    "--methods all,model": f"{METHODS_ALLOWED} 'all'",
    "--methods none --prompt-tokens 64": "methods: give --methods or --prompt-tokens, not both",
    "--trees 2,1": "trees are rows of the table of --methods, so they need --methods",
    "--methods model --trees 2,1 9,9": "like 3,2,1, of at most 32 tokens, not '9,9'",
    "--methods model --trees=": "argument --trees: must be auto or at most 8 whole numbers",
    "--gammas 1,2": "unrecognized arguments: --gammas 1,2",
    "--prompts 0": "argument --prompts: must be a whole number from 1 to 1,000",
}


@pytest.mark.parametrize("options", WRONG)
def test_a_wrong_request_is_one_sentence_and_exit_status_2(capsys, monkeypatch, options):
    monkeypatch.setattr("specdemo.cli.main._load", lambda arguments: pytest.fail("loaded"))
    status, out, err = bench(capsys, options)
    assert status == 2 and out == ""
    assert WRONG[options] in err.splitlines()[-1] and "Traceback" not in err
