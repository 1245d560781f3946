"""What servers would report of a run, against counts made by hand."""

from dataclasses import replace

import pytest

from specdemo.events import ByModel, Judged, JudgedInTree, Next, PairInfo, Params, Round, ServerInfo, Started
from specdemo.events.phrase_book import BOOK, tally_of
from specdemo.events.trace import Trace
from specdemo.ui.view.texts import number_texts
from specdemo.words.catalogue import speaking

NONE = ByModel(None, None)
PAIR = PairInfo("p", "t", "d", "cpu", "a CPU", NONE, NONE)
OWN = Next(8, "b", "sampled", 0.5, None, 0.5, None, 0.1, None, ())
FATES = {"+": "accepted", "x": "rejected", ".": "discarded"}
GAMMA = 4
# A draft that is accepted, one with a rejection, none, one whose first token is refused, and one that is
# accepted, but of which the end of the text cuts all behind the first token.
DRAFTS = ("++++", "+x..", "", "x...", "+..")


def run_of(*drafts: str, gamma: int | str = GAMMA, pair: PairInfo = PAIR) -> Trace:
    """A run with these drafts, a sign for each token. The last one ends the text."""
    trace = Trace.begin(Started(pair, {}, Params(gamma=gamma, stop=("!",)), "x", (5,)))
    for index, signs in enumerate(drafts):
        draft = tuple(Judged(7, "a", 0.5, 0.5, 0.5, 0.5, 0.1, 1.0, FATES[sign], ()) for sign in signs)
        own = (
            Next(8, "b", "sampled", 0.5, None, 0.5, None, 0.1, None, ()) if index < len(drafts) - 1 else None
        )
        emitted = (7,) * signs.count("+") + (8,) * (own is not None)
        trace.add(Round(index, draft, own, emitted, 1.0, 1.0))
    trace.end("stop")
    return trace


def test_each_server_counts_the_run_by_its_own_definition():
    """15 tokens were drafted in 4 drafts of 5 rounds. 8 were accepted: 4, 1, 0, and 3 of which the end of the
    text cut two. The text has 6 of these and 4 tokens of the target."""
    tally = tally_of(run_of(*DRAFTS))
    assert {key: phrase.value(tally) for key, phrase in BOOK.items()} == {
        "vllm_length": 1 + 8 / 4,
        "vllm_bare": 8 / 4,
        "vllm_rate": 8 / 15,
        "sglang_length": 1 + 8 / 5,
        "sglang_text": 10 / 5,
        "sglang_rate": 8 / (GAMMA * 5),
        "llama_rate": 8 / 15,
        "llama_length": 1 + 8 / 4,
        "llama_drafts": 3 / 4,
    }


def test_a_draft_that_was_refused_after_the_end_of_the_text_counts_up_to_there():
    assert tally_of(run_of("++++", "+.x.")).accepted == 4 + 2


def test_the_page_writes_them_as_the_servers_do_in_its_language():
    trace = run_of(*DRAFTS)
    numbers = number_texts(trace)
    assert [numbers[key] for key in ("vllm_rate", "sglang_rate", "llama_rate")] == [
        "53.3%",
        "0.40",
        "0.53333",
    ]
    with speaking("de"):
        assert number_texts(trace)["vllm_rate"] == "53,3\N{NO-BREAK SPACE}%"
    assert "sglang_rate" not in number_texts(run_of(*DRAFTS, gamma="auto"))
    trace.finish = None
    assert "vllm_rate" not in number_texts(trace), "it goes on"


SERVED = replace(PAIR, server=ServerInfo("http://h", "vLLM", "0.32.0", "t", "eagle3", 4, None))


@pytest.mark.parametrize("trace", [run_of("", ""), run_of(*DRAFTS, pair=SERVED)], ids=["plain", "a server's"])
def test_where_nothing_was_drafted_and_of_a_server_s_run_there_are_none(trace):
    assert tally_of(trace) is None


def test_a_tree_counts_the_guesses_that_the_verdict_kept():
    """Two siblings, of which the second is kept, and two after it that the verdict refuses."""
    numbers = {"+": (0.1, 0.5), "x": (0.9, 0.5), ".": (None, None)}
    draft = tuple(
        JudgedInTree(7, "a", 0.5, 0.5, 0.5, 0.5, *numbers[sign], FATES[sign], (), parent=parent)
        for sign, parent in (("x", None), ("+", None), (".", 0), ("x", 1), ("x", 1))
    )
    trace = Trace.begin(Started(PAIR, {}, Params(tree="2,2"), "x", (5,)))
    trace.add(Round(0, draft, replace(OWN, source="resampled"), (7, 8), 1.0, 1.0))
    tally = tally_of(trace)
    assert (tally.drafted, tally.accepted, tally.hit, tally.tokens) == (5, 1, 1, 2)
    assert BOOK["vllm_length"].value(tally) == BOOK["sglang_text"].value(tally) == 2
    assert BOOK["sglang_rate"].value(tally) is None, "its denominator is a chain's length"
