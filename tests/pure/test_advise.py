"""The adviser without a model: estimates, what is clear, what is recommended and why, and its reports."""

import json
from dataclasses import asdict, replace
from math import log
from random import Random

import pytest

from specdemo.events import Params
from specdemo.events.speedup import TimedRound, expected_speedup, is_wide, plain
from specdemo.measure.decide import (
    PROBED,
    by_setting,
    concurrent,
    estimates_of,
    finalists,
    is_clear,
    recommendations,
    rows_of,
    still_in,
)
from specdemo.measure.report import advice_in_words, advice_object, advice_text, page_of
from specdemo.measure.results import (
    ALL,
    ALONE,
    Candidate,
    Contender,
    Measured,
    Sample,
    Together,
)
from specdemo.measure.samples import TimedTurn, speed_up_on_prompts
from specdemo.words.catalogue import speaking
from specdemo.words.message import message

MODEL, HEAD = (
    Contender("the model", "model", "a/drafter", "model"),
    Contender("a head", "model", "a/head", "dflash", True, 7),
)
PLAIN_MS = 10.0


def sample(
    work: str, prompt: int, setting: Candidate, alpha: float, draft_ms: float, rounds=60, row_ms=0.0
) -> Sample:
    """A text whose drafts are accepted with `alpha` each, and take draft_ms a token, and row_ms to check."""
    dice, gamma = Random(f"{work} {prompt} {setting}"), setting.gamma
    accepted = [next((i for i in range(gamma) if dice.random() >= alpha), gamma) for _ in range(rounds)]
    ms = PLAIN_MS + gamma * (draft_ms + row_ms)
    fast = [TimedRound(0, gamma, ms)]
    turns = [TimedTurn(plain([PLAIN_MS * dice.uniform(0.99, 1.01)]), fast) for _ in range(rounds // 5)]
    counts = {"drafted": (gamma,) * rounds, "accepted": (*accepted,)}
    judged = sum(min(one + 1, gamma) for one in accepted)
    emitted, draft_ms = tuple(one + 1 for one in accepted), rounds * gamma * draft_ms
    more = {"emitted": emitted, "judged": judged, "draft_ms": draft_ms, "turns": tuple(turns)}
    return Sample(work, prompt, setting, **counts, **more)


def measured(*samples: Sample, works=("chat",), **more) -> Measured:
    about = ("a/<target>", "cpu", "a processor", "float32", {"target": None}, {"torch": "2"}, "2026-11-28")
    params = asdict(Params(temperature=0, max_new_tokens=96))
    return Measured(*about, "advise", params, tuple(works), (ALONE, MODEL, HEAD), samples=samples, **more)


@pytest.mark.parametrize(("alpha", "cost"), [(0.8, 0.05), (0.6, 0.2), (0.3, 0.3)])
def test_estimates_are_leviathans_where_checks_cost_nothing(alpha, cost):
    probe = sample("chat", 0, Candidate(MODEL.name, PROBED), alpha, cost * PLAIN_MS, rounds=8_000)
    found = estimates_of(measured(probes=(probe,)), ["chat"])
    for setting, speedup in found.items():
        assert speedup == pytest.approx(expected_speedup(alpha, setting.gamma, cost), rel=0.05), setting
    assert finalists(found)[0] == max(found, key=lambda one: found[one])


def test_a_speed_up_is_tokens_over_cost_and_its_interval_is_for_other_prompts_too():
    setting = Candidate(MODEL.name, 4)
    alike = {("chat", at): sample("chat", at, setting, 0.75, 0.5) for at in range(8)}
    unlike = {("chat", at): sample("chat", at, setting, 0.95 if at % 2 else 0.4, 0.5) for at in range(8)}
    row = rows_of(measured(*alike.values()), "chat")[0]
    assert row.speedup.value == pytest.approx(row.tokens_per_round / row.cost)
    assert row.cost == pytest.approx(1.2, rel=0.01)
    narrow, wide = (Together((*texts.values(),)).speedup for texts in (alike, unlike))
    assert log(wide.high / wide.low) > 2 * log(narrow.high / narrow.low)
    assert Together((*alike.values(),)[:2]).speedup is None, "two prompts tell nothing of a third"
    timed = Together((*alike.values(),)).by_place
    same = speed_up_on_prompts(timed, timed)
    assert same.value == same.low == same.high == 1


def test_what_several_requests_gain_is_counted_from_what_one_was_measured_to_gain():
    """Another row adds a twentieth to a forward, so 19 rows take as long as what all of them share."""
    texts, free = (
        [sample("chat", at, Candidate(MODEL.name, 4), 0.9, 0.3, row_ms=row_ms) for at in range(6)]
        for row_ms in (0.5, 0.0)
    )
    (best,) = recommendations(own := measured(*texts))
    (alone, *more), even = concurrent(own, best)
    assert (alone.rows, alone.speedup) == (5, pytest.approx(best.speedup))
    assert even == pytest.approx(19, rel=0.05)
    assert [one.requests for one in more] == [4, 16, 64] and more[-1].speedup < 1
    draft = 4 * 0.3 / PLAIN_MS
    for one in more:
        longer = (even + 5 * one.requests) / (even + one.requests) + draft
        longer /= (even + 5) / (even + 1) + draft
        assert one.speedup == pytest.approx(best.speedup / longer, rel=0.01)
    assert concurrent(measured(*free), best) == ([], None), "rows that take no time"
    assert "hardly took longer" in advice_text(measured(*free))
    nothing = [replace(one, drafted=(0,) * 60, accepted=(0,) * 60) for one in free]
    assert "hardly took longer" not in advice_text(measured(*nothing, ended="all")), "no drafts"


def test_what_is_surely_slower_is_out_and_the_answer_is_clear_when_nothing_else_is_left():
    good, bad, twin = Candidate(MODEL.name, 4), Candidate(MODEL.name, 16), Candidate(MODEL.name, 5)
    texts = [sample("chat", at, good, 0.8, 0.3) for at in range(12)]
    texts += [sample("chat", at, bad, 0.8, 3.0) for at in range(12)]
    found = by_setting(texts, ["chat"])
    assert still_in(found, [good, bad]) == [good]
    assert is_clear(found, [good]) and not is_clear(found, [good, twin]), "nothing is known of the third"
    few = by_setting([one for one in texts if one.prompt < 2], ["chat"])
    assert still_in(few, [good, bad]) == [good, bad] and not is_clear(few, [good, bad])


def test_what_was_dropped_early_is_not_recommended_for_its_lucky_prompts():
    lucky, steady = Candidate(MODEL.name, 8), Candidate(MODEL.name, 4)
    texts = [sample("chat", at, lucky, 0.99, 0.2) for at in range(3)]
    texts += [sample("chat", at, steady, 0.8, 0.2) for at in range(9)]
    (one,) = recommendations(measured(*texts))
    assert one.best == steady and one.prompts == 9 and one.gamma == 4 and one.draft_with == "model"
    dropped = "Rows with fewer prompts were dropped"
    assert dropped in advice_text(measured(*texts)) and dropped not in advice_text(measured(*texts[3:]))


def test_each_kind_of_work_weighs_alike_in_the_one_setting_for_all():
    setting, only_chat = Candidate(MODEL.name, 4), Candidate(MODEL.name, 2)
    texts = [sample("chat", at, setting, 0.95, 0.3) for at in range(12)]
    texts += [sample("chat", at, only_chat, 0.99, 0.0) for at in range(12)]
    alone = recommendations(measured(*texts, works=("chat", "code")))[-1]
    assert alone.best is None, "one kind says nothing of all"
    texts += [sample("code", at, setting, 0.3, 0.3) for at in range(4)]
    *_, of_all = recommendations(measured(*texts, works=("chat", "code")))
    assert of_all.work == ALL and of_all.best == setting and of_all.prompts == 8
    both = measured(*texts, works=("chat", "code"))
    rows = ({row.setting: row for row in rows_of(both, work)} for work in ("chat", "code", ALL))
    of_chat, of_code, of_both = (row[setting].tokens_per_round for row in rows)
    assert of_code < of_both < of_chat
    three = recommendations(measured(*texts, works=("chat", "code", "json")))
    assert three[-1].best == setting and (three[2].draft_with, three[2].prompts) == (None, 0), (
        "not measured is not told to be slow"
    )


@pytest.mark.parametrize(("alpha", "draft_ms"), [(0.3, 3.0), (0.5, 12.0), (0.0, 1.0)])
def test_where_it_does_not_pay_the_reason_says_what_a_round_brings_and_takes(alpha, draft_ms):
    setting = Candidate(MODEL.name, 4)
    texts = [sample("chat", at, setting, alpha, draft_ms, rounds=400) for at in range(6)]
    (one,) = recommendations(measured(*texts))
    assert (one.draft_with, one.gamma, one.drafter) == ("none", None, None) and one.best == setting
    assert one.speedup < 1 and f"as long as {1 + 4 * draft_ms / PLAIN_MS:.1f}" in one.reason


def test_too_few_prompts_are_not_known_which_is_not_none():
    setting = Candidate(MODEL.name, 4)
    texts = [sample("chat", at, setting, 0.8, 0.3) for at in range(2)]
    (few,), (none,) = (recommendations(measured(*some)) for some in (texts, []))
    assert few.draft_with is none.draft_with is None
    assert "2 prompts" in few.reason and "turn" in none.reason
    texts += [sample("code", at, setting, 0.8, 0.3) for at in range(2)]
    both = measured(*texts, works=("chat", "code"))
    assert recommendations(both)[-1].best is None
    assert [row.beside for row in rows_of(both, ALL)] == [None], "nor is it recommended in the table"


def test_a_wide_interval_that_reaches_below_1_is_no_figure_and_decides_nothing():
    unlike = [sample("chat", at, Candidate(MODEL.name, 8), 0.97 if at % 2 else 0.2, 1.5) for at in range(4)]
    (one,) = recommendations(own := measured(*unlike))
    assert (one.draft_with, one.best, one.speedup, one.interval) == (None, None, None, None)
    row = rows_of(own, "chat")[0]
    figure = f"{row.speedup.value:.2f}"
    assert is_wide(row.speedup.interval)
    assert figure not in advice_text(own) and figure not in page_of(own)
    assert not is_clear(by_setting(unlike, ["chat"]), [Candidate(MODEL.name, 8)])
    sure = [sample("chat", at, Candidate(HEAD.name, 4), 0.5, 0.1) for at in range(4)]
    (other,) = recommendations(measured(*unlike, *sure))
    assert other.best == Candidate(HEAD.name, 4), "nor hides one told"


def test_a_wide_interval_above_1_is_told_and_the_larger_speed_up_recommended():
    unlike = [sample("chat", at, Candidate(MODEL.name, 8), 0.97 if at % 2 else 0.2, 0.1) for at in range(4)]
    sure = [sample("chat", at, Candidate(HEAD.name, 4), 0.5, 0.1) for at in range(4)]
    (one,) = recommendations(measured(*unlike, *sure))
    assert is_wide(one.interval) and one.interval[0] > 1 and one.best == Candidate(MODEL.name, 8)


def test_a_report_has_what_is_recommended_and_how_it_was_measured():
    texts = [sample("chat", at, Candidate(MODEL.name, 4), 0.8, 0.3) for at in range(4)]
    notes = ("</script><b>", message("advice_quantized", kind="int4"))
    own = measured(*texts, notes=notes, ended="clear", seconds=12.3)
    page = page_of(own)
    assert "script>" not in page and "<b>" not in page and "serve &#39;a/&lt;target&gt;" in page
    json.dumps(advice_object(own))
    best, of_all = (advice_object(own)["recommendation"][work] for work in ("chat", "all"))
    assert best["draft_with"] == "model" and best["gamma"] == 4 and best["interval"][0] > 1
    assert of_all == best, "one kind of work is all of it"
    assert f"{best['speedup']:.2f}" in advice_text(own)
    with speaking("de"):
        page = page_of(own)
        assert f"<p>{notes[1].said()}</p>" in page and notes[1].said() != notes[1]
    assert advice_in_words(own)["typed"][0]["notes"][0] not in page
    assert f"<td>{best['speedup']:.2f} (".replace(".", ",") in page and "<td>the model, γ 4</td>" in page
