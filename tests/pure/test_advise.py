"""The adviser without a model: estimates, what is clear, what is recommended and why, and its reports."""

import json
import re
from dataclasses import replace
from math import log
from random import Random
from statistics import fmean
from types import SimpleNamespace

import pytest

from specdemo.advise.decide import (
    PROBED,
    by_setting,
    estimates_of,
    finalists,
    is_clear,
    recommendations,
    rows_of,
    speed_up_of,
    still_in,
    strictly,
    times_as_fast,
)
from specdemo.advise.report import (
    advice_object,
    advice_of,
    advice_table,
    compared,
    html_report,
    read_report,
    setting_in_words,
)
from specdemo.advise.results import (
    ALL,
    ALONE,
    CheckTime,
    Contender,
    Measured,
    Sample,
    Setting,
    Turn,
    check_ratio,
    from_object,
    to_object,
)
from specdemo.advise.run import LOOKS, OutOfTime, Task, advise, begin
from specdemo.advise.typed import Typed
from specdemo.cli.main import main
from specdemo.events import ByModel, PairInfo, Params
from specdemo.events.speedup import expected_speedup, is_wide
from specdemo.words.message import message

MODEL, HEAD = (
    Contender("the model", "model", "a/drafter", "model"),
    Contender("a head", "model", "a/head", "dflash", True, 7),
)
INFO = PairInfo("a", "a/target", None, "cpu", "a processor", ByModel("float32", None), ByModel(None, None))
FREE = tuple(CheckTime(64, rows, 10.0, 1.0, 1.0, 1.0) for rows in (1, 17))
PLAIN_MS = 10.0


def sample(
    work: str, prompt: int, setting: Setting, alpha: float, draft_ms: float, rounds: int = 60
) -> Sample:
    """A text whose drafts are accepted with `alpha` each, and take draft_ms a token."""
    dice, gamma = Random(f"{work} {prompt} {setting}"), setting.gamma
    accepted = [next((i for i in range(gamma) if dice.random() >= alpha), gamma) for _ in range(rounds)]
    ms = PLAIN_MS + gamma * draft_ms
    turns = [Turn(PLAIN_MS * dice.uniform(0.99, 1.01), gamma, ms) for _ in range(rounds // 5)]
    judged = sum(accepted) + sum(one < gamma for one in accepted)
    emitted = tuple(one + 1 for one in accepted)
    return Sample(
        work, prompt, setting, 100, (gamma,) * rounds, tuple(accepted), emitted, judged,
        rounds * gamma * draft_ms, tuple(turns),
    )  # fmt: skip


def measured(*samples: Sample, works=("chat",), **more) -> Measured:
    about = ("a/target", "cpu", "a processor", "float32", {"target": None}, {"torch": "2"}, "2026-11-28")
    params = {"temperature": 0.0, "max_new_tokens": 96}
    prompts = dict.fromkeys(works, ("",) * 20)
    who = (tuple(works), (ALONE, MODEL, HEAD), prompts)
    return Measured(*about, "advise", params, *who, samples=samples, **more)


@pytest.mark.parametrize(("alpha", "cost"), [(0.8, 0.05), (0.6, 0.2), (0.3, 0.3)])
def test_estimates_are_leviathans_where_checks_cost_nothing(alpha, cost):
    probe = sample("chat", 0, Setting(MODEL.name, PROBED), alpha, cost * PLAIN_MS, rounds=20_000)
    found = {one.setting.gamma: one for one in estimates_of(measured(probes=(probe,), checks=FREE), ["chat"])}
    for gamma, one in found.items():
        assert one.speedup == pytest.approx(expected_speedup(alpha, gamma, cost), rel=0.05), gamma
    best = max(found.values(), key=lambda one: one.speedup).setting
    assert finalists(found.values())[0] == best


def test_estimates_charge_for_the_rows_of_a_check_and_for_a_block_as_a_whole():
    dear = tuple(CheckTime(64, rows, 10.0 * rows, float(rows), 1.0, 1.0) for rows in (1, 17))
    assert check_ratio(dear, 5) == pytest.approx(5.0) and check_ratio(dear, 2.5) == pytest.approx(2.5)
    model = sample("chat", 0, Setting(MODEL.name, PROBED), 0.9, 1.0, rounds=5000)
    head = sample("chat", 0, Setting(HEAD.name, 7), 0.9, 1.0, rounds=5000)
    costly = estimates_of(measured(probes=(model,), checks=dear), ["chat"])
    assert max(one.speedup for one in costly) < 1, "a check of two rows takes as long as two rounds"
    block = estimates_of(measured(probes=(head,), checks=FREE), ["chat"])
    assert {one.setting.gamma for one in block} == {1, 2, 3, 4, 5, 6, 7}, "no longer than it can draft"
    assert block[0].tokens / block[0].speedup == pytest.approx(1.7, rel=0.01), (
        "all of its 7 ms, for one token"
    )


TREE = Contender("the model, tree 3,2,1", "model", "a/drafter", "model", tree=(3, 2, 1))


def test_a_tree_is_a_contender_of_one_shape():
    chain = sample("chat", 0, Setting(TREE.name, 3), 0.8, 0.2, rounds=2000)
    probe = replace(chain, setting=Setting(TREE.name, 0), drafted=(15,) * 2000, judged=9 * 2000)
    rows = tuple(CheckTime(64, count, 10.0, 1 + (count - 1) / 16, 1.0, 1.0) for count in (1, 17))
    own = replace(measured(probes=(probe,), checks=rows), contenders=(ALONE, MODEL, TREE))
    (one,) = estimates_of(own, ["chat"])
    assert one.setting == Setting(TREE.name, 0) and one.tokens == fmean(probe.emitted)
    assert one.tokens / one.speedup == pytest.approx(1 + 15 / 16 + 3 * 0.2 / PLAIN_MS, rel=0.01), "16 rows"
    texts = [
        replace(sample("chat", at, Setting(TREE.name, 3), 0.8, 0.2), setting=Setting(TREE.name, 0))
        for at in range(8)
    ]
    advice = advice_of(replace(own, samples=tuple(texts), finalists={"chat": (Setting(TREE.name, 0),)}))
    (found,) = advice.recommended
    assert (found.draft_with, found.gamma, found.tree) == ("model", None, (3, 2, 1))
    assert "the model, tree 3,2,1" in advice_table(advice) and "γ 0" not in advice_table(advice)
    assert from_object(json.loads(json.dumps(to_object(own)))) == own


def test_a_speed_up_is_tokens_over_cost_and_its_interval_is_for_other_prompts_too():
    setting = Setting(MODEL.name, 4)
    alike = {("chat", at): sample("chat", at, setting, 0.75, 0.5) for at in range(8)}
    unlike = {("chat", at): sample("chat", at, setting, 0.95 if at % 2 else 0.4, 0.5) for at in range(8)}
    row = rows_of(measured(*alike.values()), "chat")[0]
    assert row.speedup.value == pytest.approx(row.tokens_per_round / row.cost)
    assert row.cost == pytest.approx(1.2, rel=0.01)
    narrow, wide = speed_up_of(alike), speed_up_of(unlike)
    assert log(wide.high / wide.low) > 2 * log(narrow.high / narrow.low)
    assert speed_up_of(dict(list(alike.items())[:2])) is None, "two prompts tell nothing of a third"
    same = times_as_fast(alike, alike)
    assert same.value == same.low == same.high == 1


def test_what_is_surely_slower_is_out_and_the_answer_is_clear_when_nothing_else_is_left():
    good, bad, twin = Setting(MODEL.name, 4), Setting(MODEL.name, 16), Setting(MODEL.name, 5)
    texts = [sample("chat", at, good, 0.8, 0.3) for at in range(12)]
    texts += [sample("chat", at, bad, 0.8, 3.0) for at in range(12)]
    found = by_setting(texts, ["chat"])
    assert still_in(found, [good, bad]) == [good]
    assert is_clear(found, [good]) and not is_clear(found, [good, twin]), "nothing is known of the third"
    few = by_setting([one for one in texts if one.prompt < 2], ["chat"])
    assert still_in(few, [good, bad]) == [good, bad] and not is_clear(few, [good, bad])


def test_chance_rarely_ends_it_where_nothing_pays():
    """Looked at as `run.py` looks, at a speed-up of 1."""
    ended = 0
    for run in range(200):
        setting = Setting(f"{MODEL.name} {run}", 4)
        texts = [sample("chat", at, setting, 0.5, 2.34, rounds=25) for at in range(20)]
        looks = (by_setting([one for one in texts if one.prompt < look], ["chat"]) for look in LOOKS)
        ended += any(strictly(speed_up_of(found[setting])).low > 1 for found in looks)
    assert ended <= 10, "3 % and some luck; 12 % and more by the interval that is told"


def test_what_was_dropped_early_is_not_recommended_for_its_lucky_prompts():
    lucky, steady = Setting(MODEL.name, 8), Setting(MODEL.name, 4)
    texts = [sample("chat", at, lucky, 0.99, 0.2) for at in range(3)]
    texts += [sample("chat", at, steady, 0.8, 0.2) for at in range(9)]
    (one,) = recommendations(measured(*texts))
    assert one.best == steady and one.prompts == 9 and one.gamma == 4 and one.draft_with == "model"


def test_each_kind_of_work_weighs_alike_in_the_one_setting_for_all():
    setting, only_chat = Setting(MODEL.name, 4), Setting(MODEL.name, 2)
    texts = [sample("chat", at, setting, 0.95, 0.3) for at in range(12)]
    texts += [sample("chat", at, only_chat, 0.99, 0.0) for at in range(12)]
    alone = recommendations(measured(*texts, works=("chat", "code")))[-1]
    assert alone.best is None and "two kinds of work" in alone.reason, "one kind says nothing of all"
    texts += [sample("code", at, setting, 0.3, 0.3) for at in range(4)]
    *_, of_all = recommendations(measured(*texts, works=("chat", "code")))
    assert of_all.work == ALL and of_all.best == setting and of_all.prompts == 8
    both = measured(*texts, works=("chat", "code"))
    rows = ({row.setting: row for row in rows_of(both, work)} for work in ("chat", "code", ALL))
    of_chat, of_code, of_both = (row[setting].tokens_per_round for row in rows)
    assert of_code < of_both < of_chat
    three = recommendations(measured(*texts, works=("chat", "code", "json")))
    assert three[-1].best == setting and "from Chat, Code only" in three[-1].reason
    assert (three[2].draft_with, three[2].prompts) == (None, 0), "not measured is not told to be slow"


@pytest.mark.parametrize(
    ("alpha", "draft_ms", "why"),
    [
        (0.3, 3.0, r"It has (29|30|31)% of its drafts accepted and needs (5|6)\d%\."),
        (0.5, 12.0, r"but a round takes as long as 5\.\d+ of the target alone"),
        (0.0, 1.0, r"It drafted 4\.00 tokens a round, of which none were accepted\."),
    ],
)
def test_where_it_does_not_pay_the_reason_says_what_is_lacking(alpha, draft_ms, why):
    setting = Setting(MODEL.name, 4)
    texts = [sample("chat", at, setting, alpha, draft_ms, rounds=400) for at in range(6)]
    (one,) = recommendations(measured(*texts))
    assert (one.draft_with, one.gamma, one.drafter) == ("none", None, None) and one.best == setting
    assert one.speedup < 1 and "is slower than the target alone" in one.reason
    assert re.search(why, one.reason), one.reason


def test_too_few_prompts_are_said_to_be_too_few():
    setting = Setting(MODEL.name, 4)
    texts = [sample("chat", at, setting, 0.8, 0.3) for at in range(2)]
    (few,), (none,) = (recommendations(measured(*some)) for some in (texts, []))
    assert few.draft_with is None and "Only 2 prompts" in few.reason
    assert none.draft_with is None and "turn has not come" in none.reason
    said = [setting_in_words(one) for one in (few, none)]
    assert said == ["not known", "not measured"]
    texts += [sample("code", at, setting, 0.8, 0.3) for at in range(2)]
    both = measured(*texts, works=("chat", "code"))
    assert recommendations(both)[-1].best is None
    assert [row.beside for row in rows_of(both, ALL)] == [None], "nor is it recommended in the table"


def test_a_wide_interval_is_no_figure_and_decides_nothing():
    unlike = [sample("chat", at, Setting(MODEL.name, 8), 0.97 if at % 2 else 0.2, 0.1) for at in range(4)]
    advice = advice_of(measured(*unlike))
    (one,) = advice.recommended
    assert (one.draft_with, one.best, one.speedup, one.interval) == (None, None, None, None)
    row = rows_of(advice.measured, "chat")[0]
    assert f"{row.tokens_per_round:.2f} tokens a round" in one.reason and is_wide(row.speedup.interval)
    told, figure = advice_table(advice), f"{row.speedup.value:.2f}"
    assert "too uncertain" in told and figure not in told and figure not in html_report(advice)
    assert not is_clear(by_setting(unlike, ["chat"]), [Setting(MODEL.name, 8)])


def test_while_more_prompts_can_tell_what_is_not_surely_faster_is_not_known():
    texts = [sample("chat", at, Setting(MODEL.name, 4), 0.62 + 0.04 * (at % 2), 3.3) for at in range(6)]
    found = {}
    for ended in ("time", "all"):
        (found[ended],) = recommendations(measured(*texts, ended=ended))
    assert found["time"].reason == found["all"].reason and "is surely faster" in found["all"].reason
    assert {ended: one.draft_with for ended, one in found.items()} == {"time": None, "all": "none"}


def test_the_table_says_which_settings_are_as_good_as_the_recommended_one():
    led, sure, slow = (Setting(MODEL.name, gamma) for gamma in (8, 6, 2))
    texts = [sample("chat", at, led, 0.93 if at % 2 else 0.83, 0.2) for at in range(8)]
    texts += [sample("chat", at, sure, 0.88, 0.05) for at in range(8)]
    texts += [sample("chat", at, slow, 0.5, 0.1) for at in range(8)]
    advice = advice_of(measured(*texts))
    (one,) = advice.recommended
    rows = rows_of(advice.measured, "chat")
    beside = {row.setting: row.beside for row in rows}
    assert rows[0].setting == led and rows[0].speedup.value > one.speedup and one.best == sure
    assert beside == {led: "alike", sure: "recommended", slow: "slower"}
    assert {one.setting for one in rows if one.beside != "slower"} == {
        *still_in(by_setting(texts, ["chat"]), [led, sure, slow])
    }, "by what decides"
    assert re.search("γ 8 .* no clear difference ", advice_table(advice))


def steps_of(monkeypatch, works, budget: float) -> list[tuple[str, dict]]:
    """What is done, and what is then recommended for each kind of work, where each text takes a second."""
    clock = [0.0]

    def text(course, work, number, setting, most=0):
        clock[0] += 1.0
        if course.is_over():
            raise OutOfTime
        return sample(work, number, setting, 0.5 + 0.1 * (setting.contender == MODEL.name), 0.2)

    monkeypatch.setattr("specdemo.advise.run.perf_counter", lambda: clock[0])
    monkeypatch.setattr("specdemo.advise.run._Course.text", text)
    monkeypatch.setattr("specdemo.advise.run._Course.check", lambda course: iter(()))
    task = Task({}, dict.fromkeys(works, [""] * 20), Params(), budget)
    known = measured(works=works, checks=FREE)
    return [
        (str(one.doing), {rec.work: rec for rec in recommendations(one.measured)})
        for one in advise(task, known)
    ]


def test_it_answers_one_kind_of_work_after_the_other_as_far_as_the_time_goes(monkeypatch):
    works = ("chat", "code", "json", "summary", "story", "translation")
    steps = steps_of(monkeypatch, works, budget=45.0)
    first = next(at for at, (_, found) in enumerate(steps) if found["chat"].best)
    assert first <= 9, "warm-up, a first text by each, and the first texts of one setting"
    assert steps[first][1]["chat"].is_provisional
    assert not any(doing.startswith("code") for doing, _ in steps[:first]), "one after the other"
    doing, found = steps[-1]
    assert doing == "done"
    assert [found[work].draft_with for work in works] == ["model"] * 4 + [None] * 2
    assert found[ALL].draft_with == "model" and "from Chat, Code, JSON, Summary only" in found[ALL].reason


def test_with_time_it_goes_on_until_each_answer_is_clear_and_none_is_provisional(monkeypatch):
    steps = steps_of(monkeypatch, ("chat", "code"), budget=1e6)
    found = steps[-1][1]
    assert not any(one.is_provisional for one in found.values())
    assert any(one.is_provisional for _, some in steps[:-1] for one in some.values() if one.best)


def test_a_report_keeps_what_was_measured_and_can_be_read_again(tmp_path):
    texts = [sample("chat", at, Setting(MODEL.name, 4), 0.8, 0.3) for at in range(4)]
    own = measured(*texts, checks=FREE, notes=("</script><b>",), ended="clear", seconds=12.3)
    assert from_object(json.loads(json.dumps(to_object(own)))) == own
    advice = advice_of(own)
    page = html_report(advice, [Typed("vLLM", "1", "serve <x>", (message("no_drafter"),))])
    assert page.count("</script>") == 1 and "<b>" not in page and "serve &lt;x&gt;" in page
    file = tmp_path / "a.html"
    file.write_text(page, encoding="utf-8")
    assert read_report(str(file), "resume") == own
    table, told = advice_table(advice), advice_object(advice)
    best = told["recommendation"]["chat"]
    assert best["draft_with"] == "model" and best["gamma"] == 4 and best["interval"][0] > 1
    assert told["recommendation"]["all"] == best, "one kind of work is all of it"
    assert f"{best['speedup']:.2f}" in table and "The answer was clear after 12 s." in table
    slower = measured(*(sample("chat", at, Setting(MODEL.name, 4), 0.1, 3.0) for at in range(4)))
    beside = compared(["a", "b"], [own, slower])
    assert "a: the model, γ 4" in beside and "b: don't speculate" in beside
    for wrong in (
        "x",
        "",
        page.replace("specdemo.advice/1", "specdemo.advice/2"),
        page.replace('"works"', '"w"'),
    ):
        file.write_text(wrong, encoding="utf-8")
        with pytest.raises(ValueError, match="^resume must be a report of advise: .* is none$"):
            read_report(str(file), "resume")
    with pytest.raises(ValueError, match="^compare cannot be read: "):
        read_report(str(tmp_path / "none"), "compare")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--budget soon", "must be a time from 10s to 24h, like 90s, 5m or 1h, not 'soon'"),
        ("--budget 1s", "must be a time from 10s to 24h"),
        ("--drafter x", "drafter: give --drafters here"),
        ("--prompts x --work chat", "prompts: give --prompts or --work, not both"),
        ("--drafters all lookup", "drafters must be all alone, or names of drafters and methods"),
        ("--drafters none", "drafters must not include none: the target alone is always measured"),
        ("--work poem", "work must be one of chat, code, json, summary, story, translation, not 'poem'"),
        ("--prompts nowhere.txt", "prompts"),
        ("--resume nowhere.html", "resume cannot be read: nowhere.html"),
        ("--quantize-drafter int8", "quantize_drafter is for the drafter of --pair"),
        ("--compare a b --report c.html", "compare measures nothing, so it takes no other options"),
        ("--report nowhere/a.html", "report cannot be saved: there is no directory nowhere"),
    ],
)
def test_wrong_options_get_one_sentence_before_anything_is_loaded(
    options, said, capsys, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("specdemo.cli.main._load", lambda request: pytest.fail("it loads"))
    try:
        status = main(["advise", *options.split()])
    except SystemExit as left:
        status = left.code
    told = capsys.readouterr().err.strip()
    assert status == 2 and said in told and "\n" not in told and "Traceback" not in told


def test_what_is_gone_on_with_must_be_the_same_measurement():
    pair = SimpleNamespace(info=INFO, versions={}, notes=[])
    how = (pair, [ALONE, MODEL], {"chat": ["a"] * 20})
    new = begin(*how, Params(seed=0), [], "advise")
    done = replace(new, samples=(sample("chat", 0, Setting(MODEL.name, 4), 0.5, 1.0),), seconds=5.0)
    again = begin(*how, Params(seed=0), [], "advise", from_object(to_object(done)))
    assert again.samples == done.samples and again.seconds == 5.0 and again.ended == "running"
    with pytest.raises(ValueError, match="^resume must be a report of the same measurement: its params "):
        begin(*how, Params(seed=1), [], "advise", done)
    with pytest.raises(ValueError, match="^resume must be a report of the same measurement: its prompts "):
        begin(pair, [ALONE, MODEL], {"chat": ["b"] * 20}, Params(seed=0), [], "advise", done)
    older = replace(done, params={name: value for name, value in done.params.items() if name != "tree"})
    assert begin(*how, Params(seed=0), [], "advise", older).samples, "from before there were trees"
