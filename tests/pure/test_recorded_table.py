"""The recorded runs: what each one's sentence claims is true of it, and all together are small."""

import json
from dataclasses import replace
from statistics import fmean

import pytest

from specdemo.loading.catalog import POOR
from specdemo.ui.page.links import read_link
from specdemo.ui.runs.board import RECORDED_RUN
from specdemo.ui.view.kept import RECORDINGS, TRACES_FOLDER, WORLDS, recorded_trace

RUNS = {name: recorded_trace(name) for name in RECORDINGS}


def drafts_of(rounds):
    return [token for one in rounds for token in one.draft]


def share(name, fate):
    return fmean(token.fate == fate for token in drafts_of(RUNS[name].rounds))


def test_there_are_no_other_files_and_all_together_are_small():
    files = sorted(TRACES_FOLDER.iterdir())
    assert {file.name for file in files} == {f"{name}.json" for name in (RECORDED_RUN, *RECORDINGS)}
    assert sum(file.stat().st_size for file in files) < 360_000
    assert WORLDS.stat().st_size < 150_000


def test_the_stop_with_the_pairs_own_drafter_is_the_recorded_run_again():
    recorded, run = json.loads(WORLDS.read_text(encoding="utf-8")), RUNS["warm"]
    drawn = recorded["worlds"]["stops"][4]["texts"]["sampled"]
    told = [[(token["id"], token["fate"]) for token in one["draft"]] for one in drawn]
    assert told == [[(token.id, token.fate) for token in one.draft] for one in run.rounds]
    assert (recorded["prompt"], recorded["machine"]) == (run.prompt, run.pair.device_name)


@pytest.mark.parametrize("name", RECORDINGS)
def test_the_verdicts_of_each_follow_from_its_numbers(name):
    run = RUNS[name]
    assert run.finish in ("length", "eos") and 30 <= run.stats.tokens <= 60
    assert run.date and run.stats.speedup is not None, "the page claims it"
    judged = [token for token in drafts_of(run.rounds) if token.u is not None]
    assert len(judged) > 20
    for token in judged:
        assert token.accept_prob == pytest.approx(min(1, token.p / token.q), rel=1e-12)
        assert (token.u < token.accept_prob) == (token.fate == "accepted")


def test_each_shows_what_its_sentence_claims():
    greedy, warm, hot = (RUNS[name] for name in ("greedy", "warm", "hot"))
    assert greedy.prompt == warm.prompt == hot.prompt
    assert {token.p for token in drafts_of(greedy.rounds)} == {0, 1}
    assert share("warm", "accepted") > 0.5 > share("hot", "accepted")
    doubtful = [token for token in drafts_of(warm.rounds) if token.u and token.p < token.q]
    assert {token.fate for token in doubtful} == {"accepted", "rejected"}
    shorter = replace(warm.params, max_new_tokens=32)
    assert (RUNS["poor"].pair.name, RUNS["poor"].params) == (POOR, shorter)
    assert RUNS["long"].params == replace(shorter, gamma=16)
    poor, long = RUNS["poor"].stats, RUNS["long"].stats
    assert poor.acceptance_rate < warm.stats.acceptance_rate / 2 and poor.speedup_interval[1] < 1
    assert share("long", "discarded") > 0.5 > share("warm", "discarded")
    assert long.speedup_interval[1] < 1 < warm.stats.speedup_interval[0]
    trees = [one.draft for one in RUNS["tree"].rounds]
    firsts = [draft for draft in trees if [token.fate for token in draft[:2]] == ["rejected", "accepted"]]
    assert firsts and all(token.parent is None for draft in firsts for token in draft[:2]), (
        "the next one is kept"
    )
    with_tree, without = RUNS["tree"].stats, warm.stats
    assert RUNS["tree"].params == replace(warm.params, tree=RUNS["tree"].params.tree)
    assert with_tree.mean_tokens_per_round > without.mean_tokens_per_round
    assert with_tree.speedup_interval[1] < 1
    assert RUNS["lookup"].stats.acceptance_rate > 0.5
    rounds = RUNS["ngram"].rounds
    halves = rounds[: len(rounds) // 2], rounds[-(len(rounds) // 2) :]
    first, second = ([token.fate for token in drafts_of(half)].count("accepted") for half in halves)
    assert second > first > 0, "n-grams warm up"


def test_a_link_names_one():
    assert read_link("?trace=poor", ()).trace == "poor"
    assert read_link("?trace=poor&prompt=Tom&run=1", ()).trace == ""
    with pytest.raises(ValueError, match="^trace .*'rich'$"):
        read_link("?trace=rich", ())
