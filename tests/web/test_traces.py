"""Traces in a real browser: saved, opened without a model, their settings in the controls; wrong files."""

import json
from dataclasses import replace

import pytest

from specdemo.events import ByModel
from specdemo.events.trace import Trace
from tests.web.conftest import RECORDED
from tests.web.screen import (
    box,
    choose_file,
    generate,
    joined,
    number,
    on_stage,
    open_settings,
    open_trace,
    recorded,
    saved,
    set_field,
    tokens,
    wait_for_state,
)

PROMPT = "Once upon a time,\nthere was"
SETTINGS = {
    **{"draft_with": "ngram", "gamma": 3, "ngram": 2, "temperature": 0.9, "top_k": 30, "top_p": 0.95},
    **{"max_new_tokens": 40, "stop": ["never ever", "\u00a0?"], "ignore_eos": True, "alternatives": 3},
    "seed": 8,
}


@pytest.fixture(scope="module")
def trace(generated):
    return generated(PROMPT, **SETTINGS)


@pytest.fixture(scope="module")
def file(trace, tmp_path_factory):
    file = tmp_path_factory.mktemp("trace") / "run.json"
    trace.save(file)
    return file


@pytest.fixture(scope="module")
def shared(visit_for_all, bare):
    """A page that has never run anything, over a server that has no model."""
    return visit_for_all(bare, still=True)


def timeless(trace: Trace) -> Trace:
    timed = ("_ms", "_second", "cost_ratio", "spread", "speedup", "speedup_interval")
    stats = {name: None for name in trace.stats.__slots__ if name.endswith(timed)}
    rounds = [replace(one, draft_ms=0, verify_ms=0) for one in trace.rounds]
    return replace(trace, rounds=rounds, stats=replace(trace.stats, **stats))


def test_a_trace_is_shown_without_a_model_and_saved_again(shared, file, trace):
    assert saved(shared) == Trace.load(RECORDED), "the run that every page shows at first"
    open_trace(shared, file)
    wait_for_state(shared, "recorded")
    assert on_stage(shared) == recorded(trace) and joined(tokens(shared), "prompt") == PROMPT
    assert number(shared, "tokens_per_second") == f"{trace.stats.tokens_per_second:,.1f}"
    assert shared.get_by_test_id("whose").text_content().startswith("Recorded run: embedded")
    shared.get_by_role("button", name="Copy link").click()
    shared.get_by_test_id("notice").get_by_text("Not copied: this run was opened from a file").wait_for()
    open_settings(shared)
    shared.get_by_text("Needs about 56 MB").wait_for()  # and does not hold them
    assert saved(shared) == trace


def test_with_its_pair_it_gives_the_same_run_again_which_is_saved_and_takes_the_place_of_what_plays(
    page, file, trace, tmp_path
):
    replace(trace, rounds=[replace(one, verify_ms=1_000.0) for one in trace.rounds]).save(
        tmp_path / "slow.json"
    )
    open_trace(page, tmp_path / "slow.json")
    wait_for_state(page, "running")  # it plays
    open_settings(page)
    page.get_by_role("slider", name="N-gram length").wait_for()
    generate(page)
    wait_for_state(page, "ended")
    with page.expect_download() as download:
        page.get_by_role("button", name="Save trace").click()
    assert download.value.suggested_filename == "specdemo-seed-8.json"
    again = Trace.load(download.value.path())
    assert timeless(again) == timeless(trace) and on_stage(page) == recorded(trace)
    assert number(page, "tokens_per_second") == f"{again.stats.tokens_per_second:,.1f}"


def test_a_file_that_is_no_trace_gets_a_sentence_and_nothing_is_lost(shared, file, trace, tmp_path):
    open_trace(shared, file)
    set_field(shared, "Prompt", "mine")
    before, whole = tokens(shared), trace.to_json()
    not_json = "The file is not a trace: it is not JSON text, or only a part of it"
    gamma = "Draft length γ must be a whole number from 1 to 16 or auto, not 17"
    for content, sentence in (
        (b"", not_json),
        (whole.replace('"gamma":3', '"gamma":17').encode(), f"The file cannot be opened: {gamma}"),
        (json.dumps(json.loads(whole) | {"prompt": "half \ud800"}).encode(), not_json),
        (b"[]", "The file is not a trace that this version of SpecDemo can read"),
        (b"\xff" + whole.encode(), not_json),
        (b"x" * (17 * 2**20), "17.0 MB"),
    ):
        (tmp_path / "wrong.json").write_bytes(content)
        choose_file(shared, tmp_path / "wrong.json")
        shared.locator('[data-kind="error"]').filter(has_text=sentence).wait_for()
        assert tokens(shared) == before and box(shared, "Prompt").input_value() == "mine", sentence
        assert box(shared, "Draft length").input_value() == "3", sentence


def test_a_pair_and_a_number_format_that_the_page_does_not_offer_leave_it_working(
    shared, file, trace, tmp_path
):
    open_settings(shared)
    chosen = shared.get_by_role("combobox", name="Pair", exact=True)
    before = chosen.input_value()
    for name, dtype in (("nobody knows", "float64"), (trace.pair.name, "<img src=x onerror=1>")):
        pair = replace(trace.pair, name=name, dtype=ByModel(dtype, dtype), quantize=ByModel("int5", "int5"))
        replace(trace, pair=pair).save(tmp_path / "other.json")
        open_trace(shared, tmp_path / "other.json")
        assert shared.get_by_test_id("whose").text_content().startswith("Recorded run: ")
        assert on_stage(shared) == recorded(trace) and chosen.input_value() == before
    set_field(shared, "Prompt", "")
    shared.locator("#hint").get_by_text("must not be empty").wait_for()
    open_trace(shared, file)
    assert shared.broken == []
