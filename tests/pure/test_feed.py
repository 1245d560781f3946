"""What is sent to the page of a run."""

import json
from dataclasses import replace

import pytest

from specdemo.engine.emit import Pieces
from specdemo.events import ByModel, Judged, Next, PairInfo, Params, Round, Started
from specdemo.events.speedup import after_plain_rounds, claimed
from specdemo.events.trace import Trace
from specdemo.events.verdict import verdict
from specdemo.ui.view import feed as feed_module
from specdemo.ui.view.feed import RunFeed, outcome, tokens_of
from specdemo.ui.view.kept import json_of
from specdemo.ui.view.texts import FATES, HIDEABLE, number_texts, whose

INFO = PairInfo(
    "toy", "target", "drafter", "cpu", "a CPU", ByModel("float32", "float32"), ByModel(None, None)
)
TOP = ((41, " x", 1 / 3, 1e-12, 0.123456789, 0.0), (42, " y", 0.0, 0.99999999, 0.0, 1.0))


def drafted(token_id: int, text: str, fate: str) -> Judged:
    judged = fate in ("accepted", "rejected")
    u, accept_prob = (1 / 7, 0.5) if judged else (None, None)
    return Judged(token_id, text, 1 / 3, 2 / 3, 1 / 3, 2 / 3, u, accept_prob, fate, TOP)


def own(token_id: int, text: str, source: str) -> Next:
    top = ((token_id, text, 1 / 3, None, 1 / 3, None),)
    mass = 0.4 if source == "resampled" else None
    return Next(token_id, text, source, 1 / 3, None, 1 / 3, None, 1 / 7, mass, top)


REJECTION = (drafted(1, " a", "accepted"), drafted(2, " b", "rejected"), drafted(3, " c", "discarded"))
ROUNDS = (
    Round(0, REJECTION, own(4, " d", "resampled"), (1, 4), 1.0, 2.0),
    Round(1, (drafted(5, " e", "accepted"),), own(6, "\n", "bonus"), (5, 6), 1.0, 2.0),
    Round(2, (), own(7, " f<END", "sampled"), (7,), 0.0, 2.0),
    Round(3, (drafted(8, "> g", "accepted"), drafted(9, " h", "discarded")), None, (8,), 1.0, 2.0),
)


def trace(*rounds: Round, finish: str | None = None, **params) -> Trace:
    trace = Trace.begin(Started(INFO, {}, Params(seed=7, **params), "x", (100, 101)))
    for this_round in rounds:
        trace.add(this_round)
    if finish:
        trace.end(finish)
    return trace


def tokens(update: dict) -> list[dict]:
    return [token for one in update["rounds"] for token in tokens_of(one)]


def fate(token: dict) -> str:
    return token["source"] if "source" in token else token["fate"]


def output(update: dict) -> str:
    return "".join(token["text"] for token in tokens(update) if fate(token) not in HIDEABLE)


def test_tokens_come_in_reading_order_with_their_fates():
    update = RunFeed(trace(*ROUNDS)).update(0)
    assert [(token["id"], fate(token)) for token in tokens(update)] == [
        *(
            (1, "accepted"),
            (2, "rejected"),
            (3, "discarded"),
            (4, "resampled"),
            (5, "accepted"),
            (6, "bonus"),
        ),
        *((7, "sampled"), (8, "accepted"), (9, "discarded")),
    ]
    assert {fate(token) for token in tokens(update)} | {"prompt"} == set(FATES)
    assert update["prompt"] == [{"id": None, "text": "x", "fate": "prompt"}], "one piece without a tokenizer"


def test_rounds_are_those_of_the_trace_s_json_with_less_of_the_alternatives():
    record = trace(*ROUNDS)
    told = json.loads(record.to_json())["rounds"]
    for token in [token for one in told for token in tokens_of(one)]:
        token["top"] = []
    top = [[41, " x", 0.333333, 1e-12, 0.123457, 0.0], [42, " y", 0.0, 0.99999999, 0.0, 1.0]]
    for token in (told[0]["draft"][0], told[0]["draft"][1], told[1]["draft"][0], told[3]["draft"][0]):
        token["top"] = top  # of what was judged
    for one in told[:3]:
        one["next"]["top"] = [[one["next"]["id"], one["next"]["text"], 0.333333, None, 0.333333, None]]
    assert RunFeed(record).update(0)["rounds"] == told


def test_an_update_has_the_rounds_from_one_on():
    record = trace(*ROUNDS[:1])
    feed = RunFeed(record)
    rounds = feed.update(0)["rounds"]
    for since, this_round in enumerate(ROUNDS[1:], start=1):
        record.add(this_round)
        update = feed.update(since)
        ends = (update["since"], update["until"], update["finish"])
        assert ends == (since, since + 1, None) and "prompt" not in update
        rounds += update["rounds"]
    record.end("length")
    assert feed.update(4)["finish"] is None, "its last numbers are not there"
    feed.ended = True
    update = feed.update(4)
    assert (update["since"], update["until"], update["finish"], update["rounds"]) == (4, 4, "length", [])
    assert update["numbers"] == number_texts(record) and update["outcome"] == outcome(record)
    assert update["verdict"] == verdict(record, "length").text
    snapshot = feed.snapshot()
    assert snapshot["rounds"] == rounds and output(snapshot) == record.text
    assert feed.update(2)["rounds"] == rounds[2:], "a reader whose connection was cut goes on there"
    assert feed.update(5)["since"] == 0, "one who knows more rounds than there are gets the whole run"


@pytest.mark.parametrize("finish", ["stop", "error"])
def test_a_text_that_may_be_cut_ends_with_a_snapshot(finish):
    record = trace(*ROUNDS, stop=("<END>",))
    record.end(finish)
    feed = RunFeed(record)
    feed.ended = True
    assert record.text == " a d e\n f"
    update = feed.update(3)
    assert (update["since"], update["until"], update["finish"]) == (0, 4, finish)
    assert update["numbers"]["finish"] == finish and output(update) == record.text
    assert [token["text"] for token in tokens(update)[-3:]] == [" f", "", " h"], "only the output is cut"


def test_a_page_is_not_shown_what_may_be_cut_later():
    record = trace(*ROUNDS[:3], stop=("<END>",))
    feed = RunFeed(record)
    assert (feed.until, feed.snapshot()["until"], output(feed.snapshot())) == (2, 2, " a d e\n")
    record.add(ROUNDS[3])
    record.end("stop")  # its numbers are not there yet
    assert (feed.until, feed.update(2)["until"]) == (2, 2)
    other = trace(*ROUNDS[:3], own_round := replace(ROUNDS[2], index=3), stop=("<END>",))
    assert (RunFeed(other).until, own_round.next.text) == (3, " f<END"), "the one before was no stop string"


def test_names_in_a_file_are_cut_and_escaped():
    record = trace(finish="length")
    strange = "\u202e<b>" + "x" * 300
    record.pair = replace(INFO, name=strange, device_name=strange)
    record.stats = replace(record.stats, tokens=30, draft_ms=1.0, speedup=1.0, speedup_interval=(1.0, 1.0))
    for told in (RunFeed(record, recorded=True).snapshot()["verdict"], whose(record)):
        assert "\\u202e<b>xxx" in told and "\u202e" not in told and len(told) < 300


def test_the_prompt_is_there_in_pieces():
    class Bytes:  # a tokenizer of bytes; id 0 is special
        def decode(self, ids, **_):
            return bytes(token_id for token_id in ids if token_id).decode("utf-8", errors="replace")

    def prompt(recorded: bool = False) -> list[str]:
        update = RunFeed(record, Pieces(Bytes()).of, recorded).update(0)
        return [token["text"] for token in update["prompt"]]

    record = trace()
    record.prompt_ids = (0, *"né ".encode())
    assert prompt() == ["", "n", "", "é", " "]
    assert prompt(recorded=True) == ["x"], "another tokenizer than that of the recorded run"
    record.prompt = "né "
    assert prompt(recorded=True) == ["", "n", "", "é", " "]


def test_speed_ups_follow_from_the_other_numbers_and_what_is_not_known_is_a_dash():
    record = trace(*(replace(one, index=at) for at, one in enumerate(ROUNDS * 4)), finish="length")
    unknown = ("speedup", "target_step", "cost_ratio")
    assert {number_texts(record)[name] for name in unknown} == {"–"}, "no plain round was timed"
    record.stats = after_plain_rounds(record.stats, record.rounds, [3.9, 4.0, 4.0, 4.1] * 2)
    assert record.stats.tokens_per_second == pytest.approx(6000 / 11)
    numbers = number_texts(record)
    assert numbers["target_step"] == "4.00 ms" and numbers["drafter_step"] == "0.50 ms"
    assert numbers["cost_ratio"] == "0.125" and numbers["speedup"] == "2.18 ×"  # 24*4/44
    assert numbers["target_forwards"] == numbers["rounds"] == "16" and numbers["acceptance_rate"] == "75%"
    rows = {one["gamma"]: one for one in outcome(record)["estimates"]}
    own, stats = rows[record.params.gamma], record.stats
    measured = [stats.mean_tokens_per_round, stats.speedup, *stats.speedup_interval]
    estimated = [own["tokens"], own["speedup"], *own["interval"]]
    assert estimated == pytest.approx(measured), "the run's own length"
    wide = replace(record.stats, speedup_interval=(1.6, 2.9))
    record.stats = claimed(wide)
    assert Trace.from_json(replace(record, stats=wide).to_json()).stats == record.stats, "of an older file"
    assert {number_texts(record)[name] for name in unknown} == {"–"}, "none that a speed-up follows from"


def test_messages_are_ascii_json_whatever_the_text_holds():
    nasty = "</script>${x}\ud800\u2028\x00"
    feed = RunFeed(trace(Round(0, (), own(1, nasty, "sampled"), (1,), 0.0, 1.0)))
    text = json_of(feed.snapshot())
    assert text.isascii() and json.loads(text) == json.loads(json.dumps(feed.snapshot()))
    assert json.loads(text)["rounds"][0]["next"]["text"] == nasty


def test_a_run_that_goes_on_is_told_in_portions(monkeypatch):
    monkeypatch.setattr(feed_module, "MOST_ROWS", 12)
    feed = RunFeed(trace(*ROUNDS * 11))
    assert (feed.update(1)["until"], feed.update(4)["since"]) == (4, 4), "no more than fits"


def test_a_run_that_is_interrupted_inside_a_character_ends_with_what_is_there_of_it():
    record = trace(*ROUNDS[:3])
    record.unfinished = "\ufffd"
    record.end("cancelled")
    assert record.text == " a d e\n f<END\ufffd" and record.rounds[-1].next.text == " f<END\ufffd"
