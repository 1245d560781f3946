"""The recorded runs: what each one's sentence claims is true of it, and all together are small."""

from statistics import fmean

import pytest

from specdemo.events import Round
from specdemo.events.trace import Trace
from specdemo.ui.page.links import read_link
from specdemo.ui.runs.board import RECORDED_RUN
from specdemo.ui.runs.recorded import RECORDINGS, TRACES_FOLDER, recorded_trace
from specdemo.ui.view.feed import rounds_to_draw
from tests.recorded_runs import compact, is_undisturbed

RUNS = {name: recorded_trace(name) for name in RECORDINGS}
WARM = RUNS["warm"].stats


def accepted_in(rounds: list[Round]) -> int:
    return sum(token.fate == "accepted" for one in rounds for token in one.draft)


def halves(run: Trace) -> tuple[list[Round], list[Round]]:
    middle = len(run.rounds) // 2
    return run.rounds[:middle], run.rounds[-middle:]


def of_drafts(run: Trace, fate: str) -> float:
    return fmean(token.fate == fate for one in run.rounds for token in one.draft)


def test_there_are_no_other_files_and_all_together_are_small():
    files = sorted(TRACES_FOLDER.iterdir())
    assert {file.name for file in files} == {f"{name}.json" for name in (RECORDED_RUN, *RECORDINGS)}
    assert sum(file.stat().st_size for file in files) < 300_000


@pytest.mark.parametrize("name", RECORDINGS)
def test_each_is_what_its_row_says(name):
    run, wanted = RUNS[name], RECORDINGS[name]
    assert (run.pair.name, run.prompt, run.params) == (wanted.pair, wanted.prompt, wanted.params)
    assert run.finish in ("length", "eos") and 30 <= run.stats.tokens <= 60
    assert run.date and is_undisturbed(run)


@pytest.mark.parametrize("name", RECORDINGS)
def test_each_verdict_follows_from_its_numbers(name):
    judged = [token for one in RUNS[name].rounds for token in one.draft if token.u is not None]
    assert len(judged) > 20
    for token in judged:
        assert token.accept_prob == pytest.approx(min(1, token.p / token.q), rel=1e-12)
        assert (token.u < token.accept_prob) == (token.fate == "accepted")


def test_one_prompt_at_three_temperatures():
    greedy, warm, hot = (RUNS[name] for name in ("greedy", "warm", "hot"))
    assert greedy.prompt == warm.prompt == hot.prompt
    assert [run.params.temperature for run in (greedy, warm, hot)] == [0, 0.7, 1.2]
    tokens = [token for one in greedy.rounds for token in (*one.draft, one.next) if token]
    assert {token.p for token in tokens} == {0, 1} and {token.q for token in tokens} <= {0, 1, None}
    assert of_drafts(warm, "accepted") > 0.5 > of_drafts(hot, "accepted")
    doubtful = [token for one in warm.rounds for token in one.draft if token.u and token.p < token.q]
    assert {token.fate for token in doubtful} == {"accepted", "rejected"}


def test_the_poor_drafter_is_poor_and_slows_the_run_down():
    poor = RUNS["poor"].stats
    assert poor.acceptance_rate < WARM.acceptance_rate / 2 and poor.speedup_interval[1] < 1


def test_too_long_a_draft_is_mostly_discarded():
    long = RUNS["long"]
    assert of_drafts(long, "discarded") > 0.5 > of_drafts(RUNS["warm"], "discarded")
    assert long.stats.speedup_interval[1] < 1 < WARM.speedup_interval[0]


def test_lookup_is_mostly_accepted():
    lookup = RUNS["lookup"]
    assert lookup.params.draft_with == "lookup" and lookup.stats.acceptance_rate > 0.5


def test_ngrams_warm_up():
    first, second = map(accepted_in, halves(RUNS["ngram"]))
    assert second > first > 0


def test_what_is_left_out_of_a_file_is_not_shown():
    run = RUNS["warm"]
    again = Trace.from_json(compact(run))
    assert again == run and rounds_to_draw(again.rounds) == rounds_to_draw(run.rounds)


def test_a_link_names_one():
    assert read_link("?trace=poor", ()).trace == "poor"
    assert read_link("?trace=poor&prompt=Tom&run=1", ()).trace == ""
    with pytest.raises(ValueError, match=r"^trace must be one of greedy, .*, not 'rich'$"):
        read_link("?trace=rich", ())
