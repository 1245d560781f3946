"""The view: what the page is told of a run, and the colours that it is told in."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from specdemo.events import ByModel, Judged, Next, PairInfo, Params, Round, Started, metrics
from specdemo.events.trace import Trace
from specdemo.ui.feed import FATES, HIDEABLE, IN_TEXT, NUMBERS, Telling, about_recorded, notice, shown

INFO = PairInfo(
    "toy", "target", "drafter", "cpu", "a CPU", ByModel("float32", "float32"), ByModel(None, None)
)


TOP = ((41, " x", 1 / 3, 2 / 3, 0.123456789, 1e-12), (42, " y", 0.0, 0.99999999, 0.0, 1.0))


def drafted(id: int, text: str, fate: str) -> Judged:
    judged = fate in ("accepted", "rejected")
    return Judged(
        id, text, 1 / 3, 2 / 3, 1 / 3, 2 / 3, 1 / 7 if judged else None, 0.5 if judged else None, fate, TOP
    )


def own(id: int, text: str, source: str) -> Next:
    top = ((id, text, 1 / 3, None, 1 / 3, None),)
    return Next(
        id, text, source, 1 / 3, None, 1 / 3, None, 1 / 7, 0.4 if source == "resampled" else None, top
    )


ROUNDS = (
    Round(0, (drafted(1, " a", "accepted"), drafted(2, " b", "rejected"), drafted(3, " c", "discarded")),
          own(4, " d", "resampled"), (1, 4), 1.0, 2.0),
    Round(1, (drafted(5, " e", "accepted"),), own(6, "\n", "bonus"), (5, 6), 1.0, 2.0),
    Round(2, (), own(7, " f<END", "sampled"), (7,), 0.0, 2.0),
    Round(3, (drafted(8, "> g", "accepted"), drafted(9, " h", "discarded")), None, (8,), 1.0, 2.0),
)  # fmt: skip


def trace(*rounds: Round, finish: str | None = None, **params) -> Trace:
    trace = Trace.begin(Started(INFO, {}, Params(seed=7, **params), "x", (100, 101)), metrics.fresh())
    for round in rounds:
        trace.add(round)
    if finish:
        trace.end(finish)
    return trace


def tokens(message: dict) -> list[list]:
    return [
        token
        for round in message["rounds"]
        for token in (*round["draft"], *([round["next"]] if round["next"] else []))
    ]


def output(message: dict) -> str:
    return "".join(token[1] for token in tokens(message) if token[2] in IN_TEXT)


def test_tokens_come_in_reading_order_with_their_fates():
    told = Telling(1, trace(*ROUNDS)).news()
    assert [
        [token[:3] for token in (*round["draft"], round["next"]) if token] for round in told["rounds"]
    ] == [
        [[1, " a", "accepted"], [2, " b", "rejected"], [3, " c", "discarded"], [4, " d", "resampled"]],
        [[5, " e", "accepted"], [6, "\n", "bonus"]],
        [[7, " f<END", "sampled"]],
        [[8, "> g", "accepted"], [9, " h", "discarded"]],
    ]
    assert {token[2] for token in tokens(told)} | {"prompt"} == set(FATES)
    assert told["prompt"] == [[None, "x"]], "without a tokenizer the prompt is one piece"


def test_what_decides_is_not_rounded_and_what_is_only_drawn_is():
    round = Telling(1, trace(ROUNDS[0])).news()["rounds"][0]
    accepted, _, discarded = round["draft"]
    assert accepted == [1, " a", "accepted", 1 / 3, 2 / 3, 0.333333, 0.666667, 1 / 7, 0.5,
                        [[41, 0.333333, 0.666667, 0.123457, 1e-12], [42, 0.0, 0.99999999, 0.0, 1.0]]]  # fmt: skip
    assert discarded[7:] == [None, None, []], "what was never judged has no alternatives to show"
    assert round["next"] == [
        4,
        " d",
        "resampled",
        1 / 3,
        None,
        0.333333,
        None,
        1 / 7,
        0.4,
        [[4, 0.333333, None, 0.333333, None]],
    ]
    assert round["ms"] == [1.0, 2.0]


def test_news_continue_where_the_last_message_ended():
    record = trace(*ROUNDS[:1])
    telling = Telling(1, record)
    first = telling.news()
    rounds, words = first["rounds"], first["words"]
    assert words == {41: " x", 42: " y", 4: " d"}
    for round in ROUNDS[1:]:
        record.add(round)
        news = telling.news()
        assert (news["since"], news["until"], news["finish"]) == (round.index, round.index + 1, None)
        assert "prompt" not in news and not words.keys() & news["words"].keys(), (
            "what is known is not said again"
        )
        rounds, words = rounds + news["rounds"], words | news["words"]
    record.end("length")
    assert telling.news() | {"rounds": [], "numbers": {}} == {
        "run": 1, "since": 4, "until": 4, "finish": "length", "rounds": [], "words": {}, "numbers": {}
    }  # fmt: skip
    whole = telling.whole()
    assert (whole["rounds"], whole["words"]) == (rounds, words) and output(whole) == record.text


def test_the_whole_of_it_can_be_told_at_any_time_and_changes_nothing():
    record = trace(*ROUNDS[:2])
    telling = Telling(1, record)
    telling.news()
    record.add(ROUNDS[2])
    assert (
        telling.whole(9) == telling.whole(9) and telling.whole(9)["run"] == 9 and telling.whole()["run"] == 1
    )
    assert telling.news()["since"] == 2, "and the page takes what it has been told already"


@pytest.mark.parametrize("finish", ["stop", "cancelled", "error"])
def test_a_text_that_may_be_cut_ends_with_a_whole_message(finish):
    record = trace(*ROUNDS[:3], stop=("<END>",))
    telling = Telling(1, record)
    telling.news()
    record.add(ROUNDS[3])
    record.end(finish)
    assert record.text == " a d e\n f"
    told = telling.news()
    assert (told["since"], told["until"], told["finish"], told["numbers"]["finish"]) == (0, 4, finish, finish)
    assert output(told) == record.text
    assert [token[1] for token in tokens(told)[-3:]] == [" f", "", " h"], "what is no output keeps its text"


def test_the_names_in_a_file_are_cut_and_seen():
    record = trace(finish="length")
    record.pair = replace(INFO, name="\u202e<b>" + "x" * 300)
    assert (
        about_recorded(record).startswith("A recorded run, played without models: \\u202e<b>xxx")
        and len(about_recorded(record)) < 300
    )


def test_a_text_in_a_file_that_does_not_fit_its_tokens_cuts_nothing():
    record = trace(*ROUNDS, finish="length")
    record.text = "something else"
    assert output(Telling(1, record, recorded=True).whole()) == " a d e\n f<END> g"


def test_a_run_that_is_played_says_so():
    told = Telling(1, trace(*ROUNDS, finish="length"), recorded=True).news()
    assert told["recorded"] is True and "recorded" not in Telling(1, trace()).news()
    assert "toy on a CPU" in about_recorded(trace()) and "γ 4" in about_recorded(trace())


def test_the_prompt_is_there_in_pieces():
    class Bytes:  # a tokenizer of bytes; id 0 is special
        def decode(self, ids, **_):
            return bytes(id for id in ids if id).decode("utf-8", errors="replace")

    record = trace()
    record.prompt_ids = (0, *"né ".encode())
    assert [text for _, text in Telling(1, record, Bytes()).news()["prompt"]] == ["", "n", "", "é", " "]
    assert Telling(1, record, Bytes(), recorded=True).news()["prompt"] == [[None, "x"]], (
        "the tokenizer is another one by now"
    )
    record.prompt = "né "
    assert len(Telling(1, record, Bytes(), recorded=True).news()["prompt"]) == 5


def test_numbers_are_written_out_and_missing_ones_are_a_dash():
    numbers = shown(trace(*ROUNDS))
    assert (
        numbers["acceptance_rate"] == "75%"
        and numbers["mean_tokens_per_round"] == "1.50"
        and numbers["verify_ms"] == "8 ms"
    )
    assert (
        numbers["saved"] == "2" and numbers["cost_ratio"] == numbers["implied"] == numbers["measured"] == "–"
    ), "no step was timed"
    assert shown(trace())["tokens_per_second"] == "–"
    assert set(numbers) == set(NUMBERS) and numbers["seed"] == "7"


def test_speed_ups_follow_from_the_other_numbers():
    record = trace(*ROUNDS)
    record.stats = replace(record.stats, target_step_ms=4.0, drafter_step_ms=1.0, cost_ratio=0.25)
    assert (
        record.stats.drafted / record.stats.rounds == 1.5
        and record.stats.tokens_per_second == pytest.approx(6000 / 11)
    )
    numbers = shown(record)
    assert (numbers["cost_ratio"], numbers["implied"], numbers["measured"]) == (
        "0.250",
        "1.09 ×",
        "2.18 ×",
    )  # 1.5/1.375, 6*4/11
    record.params = replace(record.params, draft_with="lookup")
    assert shown(record)["cost_ratio"] == "0.125", (
        "a lookup has no step of its own: 3 ms for 6 drafted, by 4 ms"
    )


def test_messages_are_ascii_json_whatever_the_text_holds():
    nasty = "</script>${x}\ud800\u2028\x00"
    told = Telling(1, trace(Round(0, (), own(1, nasty, "sampled"), (1,), 0.0, 1.0))).news()
    text = json.dumps(told | notice(1, "error", nasty))
    assert text.isascii() and json.loads(text)["rounds"][0]["next"][1] == json.loads(text)["notice"] == nasty


# The style sheet.

CSS = (Path(__file__).resolve().parents[2] / "specdemo" / "ui" / "static" / "stage.css").read_text(
    encoding="utf-8"
)


def palette(selector: str) -> dict[str, str]:
    block = re.search(rf"^{re.escape(selector)} {{(.*?)}}", CSS, re.S | re.M)[1]
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block))


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2 defines it."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(a: str, b: str) -> float:
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [":root", ".dark"])
def test_every_text_colour_stands_out_in_both_themes(theme):
    colours = palette(theme)
    assert colours.keys() == palette(":root").keys()
    grounds = [(f"{fate}-ink", f"{fate}-paper") for fate in (*FATES, "error") if fate != "prompt"]
    grounds += [(ink, ground) for ink in ("ink", "muted") for ground in ("page", "paper")] + [
        ("accent-ink", "accent")
    ]
    for ink, ground in grounds:
        assert contrast(colours[ink], colours[ground]) >= 4.5, (ink, ground)


def test_every_fate_has_a_second_cue_beside_its_colour():
    cues = {}
    for fate in FATES:
        if fate != "prompt":
            rule = re.search(rf'\.{fate}, \[data-fate="{fate}"\] > b {{(.*?)}}', CSS, re.S)[1]
            cues[fate] = tuple(
                sorted(
                    re.findall(r"\b(solid|dotted|dashed|double|line-through|inset|700|\dpx (?=solid))", rule)
                )
            )
    assert len(set(cues.values())) == len(cues), cues
    for fate in HIDEABLE:
        assert "line-through" in cues[fate] and f'.hide-{fate} [data-fate="{fate}"]' in CSS
