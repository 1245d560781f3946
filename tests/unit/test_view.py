"""The view: what the page is told of a run, and the colours that it is told in."""

import json
import re
from pathlib import Path

import pytest

from specdemo import metrics
from specdemo.events import DRAFT_WITH, ByModel, Judged, Next, PairInfo, Params, Round, Started
from specdemo.trace import Trace
from specdemo.ui.view import DRAFTERS, FATES, HIDEABLE, IN_TEXT, NUMBERS, SAMPLERS, message, notice, sampling, shown, whole_number

INFO = PairInfo("toy", "target", "drafter", "cpu", "a CPU", ByModel("float32", "float32"), ByModel(None, None))


def drafted(id: int, text: str, fate: str) -> Judged:
    judged = fate in ("accepted", "rejected")
    return Judged(id, text, 0.5, 0.25, 0.5, 0.25, 0.1 if judged else None, 1.0 if judged else None, fate, ())


def own(id: int, text: str, source: str) -> Next:
    return Next(id, text, source, 0.5, None, 0.5, None, 0.3, 0.4 if source == "resampled" else None, ())


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


def output(message: dict) -> str:
    return "".join(token["text"] for token in message["tokens"] if token["fate"] in IN_TEXT)


def test_tokens_come_in_reading_order_with_their_fates():
    told = message(1, trace(*ROUNDS), None)
    assert [(token["text"], token["fate"], token.get("round")) for token in told["tokens"]] == [
        ("", "prompt", None), ("", "prompt", None),
        (" a", "accepted", 0), (" b", "rejected", 0), (" c", "discarded", 0), (" d", "resampled", 0),
        (" e", "accepted", 1), ("\n", "bonus", 1),
        (" f<END", "sampled", 2),
        ("> g", "accepted", 3), (" h", "discarded", 3),
    ]  # fmt: skip
    assert {token["fate"] for token in told["tokens"]} == set(FATES)
    rejected, resampled = told["tokens"][3], told["tokens"][5]
    assert (rejected["p"], rejected["q"], rejected["u"], rejected["accept_prob"]) == (0.5, 0.25, 0.1, 1.0)
    assert resampled["residual_mass"] == 0.4


def test_news_continue_where_the_last_message_ended():
    record = trace(*ROUNDS[:1])
    stage = message(1, record, None)["tokens"]
    for round in ROUNDS[1:]:
        record.add(round)
        news = message(1, record, None, since=round.index)
        assert (news["since"], news["until"], news["finished"]) == (round.index, round.index + 1, False)
        stage += news["tokens"]
    assert stage == message(1, record, None)["tokens"]
    assert output(message(1, record, None)) == record.text


def test_the_last_message_is_whole_and_cut_like_the_text():
    record = trace(*ROUNDS, finish="stop", stop=("<END>",))
    assert record.text == " a d e\n f"
    told = message(1, record, None, since=4)
    assert (told["since"], told["finished"], told["numbers"]["finish"]) == (0, True, "stop")
    assert output(told) == record.text
    assert [token["text"] for token in told["tokens"][-3:]] == [" f", "", " h"], "what is no output keeps its text"


def test_the_prompt_is_there_in_pieces():
    class Bytes:  # a tokenizer of bytes; id 0 is special
        def decode(self, ids, **_):
            return bytes(id for id in ids if id).decode("utf-8", errors="replace")

    record = trace()
    record.prompt_ids = (0, *"né ".encode())
    tokens = message(1, record, Bytes())["tokens"]
    assert [token["text"] for token in tokens] == ["", "n", "", "é", " "]


def test_numbers_are_written_out_and_missing_ones_are_a_dash():
    numbers = shown(trace(*ROUNDS).stats)
    assert numbers["acceptance_rate"] == "75%" and numbers["mean_tokens_per_round"] == "1.50" and numbers["verify_ms"] == "8 ms"
    assert shown(metrics.fresh())["tokens_per_second"] == "–"
    told = message(1, trace(*ROUNDS), None)["numbers"]
    assert set(told) == set(NUMBERS) and told["seed"] == "7"


def test_messages_are_ascii_json_whatever_the_text_holds():
    nasty = "</script>${x}\ud800\u2028\x00"
    text = json.dumps(message(1, trace(Round(0, (), own(1, nasty, "sampled"), (1,), 0.0, 1.0)), None) | notice(1, "error", nasty))
    assert text.isascii() and json.loads(text)["tokens"][-1]["text"] == json.loads(text)["notice"] == nasty


def test_samplers_switch_off_what_does_not_matter_to_them():
    values = {"temperature": 0.7, "top_k": 5, "top_p": 0.8, "min_p": 0.1}
    assert sampling("greedy", **values) == {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    assert sampling("top-k with top-p", **values) == {"temperature": 0.7, "top_k": 5, "top_p": 0.8, "min_p": 0.0}
    for sampler in SAMPLERS:
        Params(**sampling(sampler, **values))
    assert tuple(DRAFTERS) == DRAFT_WITH


def test_an_empty_box_is_no_number_and_nonsense_is_left_to_params():
    assert (whole_number(" "), whole_number(" 7 "), whole_number("-7"), whole_number("7.0")) == (None, 7, -7, "7.0")
    with pytest.raises(ValueError, match="seed must be a whole number from 0 to .*, not '7.0'"):
        Params(seed=whole_number("7.0"))


# The style sheet.

CSS = (Path(__file__).resolve().parents[2] / "specdemo" / "ui" / "stage.css").read_text(encoding="utf-8")


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
    grounds += [(ink, ground) for ink in ("ink", "muted") for ground in ("page", "paper")] + [("accent-ink", "accent")]
    for ink, ground in grounds:
        assert contrast(colours[ink], colours[ground]) >= 4.5, (ink, ground)


def test_every_fate_has_a_second_cue_beside_its_colour():
    cues = {}
    for fate in FATES:
        if fate != "prompt":
            rule = re.search(rf'\.{fate}, \[data-fate="{fate}"\] {{(.*?)}}', CSS, re.S)[1]
            cues[fate] = tuple(sorted(re.findall(r"\b(solid|dotted|dashed|double|line-through|inset|700|\dpx (?=solid))", rule)))
    assert len(set(cues.values())) == len(cues), cues
    for fate in HIDEABLE:
        assert "line-through" in cues[fate] and f'.hide-{fate} [data-fate="{fate}"]' in CSS
