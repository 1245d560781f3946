"""Traces in a real browser: saved, opened without a model, their settings in the controls; wrong files."""

import json
from dataclasses import replace

import pytest

from specdemo.events import ByModel
from specdemo.events.trace import Trace
from tests.web.conftest import RECORDED
from tests.web.screen import (
    box,
    choose,
    choose_file,
    generate,
    inspector,
    joined,
    notice,
    number,
    on_stage,
    open_settings,
    open_trace,
    recorded,
    run,
    saved,
    set_field,
    tokens,
    unfold,
    wait_for_state,
)

pytestmark = pytest.mark.slow

PROMPT = "Once upon a time,\nthere was"
SETTINGS = {
    **{
        "draft_with": "ngram",
        "gamma": 3,
        "ngram": 2,
        "temperature": 0.9,
        "top_k": 30,
        "top_p": 0.95,
        "seed": 8,
    },
    **{"max_new_tokens": 40, "stop": ["never ever", "\u00a0?"], "ignore_eos": True, "alternatives": 3},
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


def test_save_trace_hands_out_the_run_that_the_stage_shows(page, generated):
    unfold(page, "Ending")
    run(page, PROMPT, seed=8, max_new_tokens=20, stop_strings="never ever")
    with page.expect_download() as download:
        page.get_by_role("button", name="Save trace").click()
    assert download.value.suggested_filename == "specdemo-seed-8.json"
    trace = Trace.load(download.value.path())
    assert timeless(trace) == timeless(
        generated(PROMPT, seed=8, max_new_tokens=20, top_p=1.0, stop=["never ever"])
    )
    assert number(page, "tokens_per_second") == f"{trace.stats.tokens_per_second:,.1f}"


def test_before_the_first_run_it_is_the_recorded_one(shared):
    wait_for_state(shared, "recorded")
    trace = saved(shared)
    assert trace == Trace.load(RECORDED) and on_stage(shared) == recorded(trace)


def test_an_opened_trace_is_shown_without_a_model(shared, file, trace):
    open_trace(shared, file)
    wait_for_state(shared, "recorded")
    assert on_stage(shared) == recorded(trace) and joined(tokens(shared), "prompt") == PROMPT
    assert (
        number(shared, "tokens") == "40"
        and number(shared, "tokens_per_second") == f"{trace.stats.tokens_per_second:,.1f}"
    )
    assert notice(shared, "recorded").startswith("A recorded run, played without models. ")
    shared.get_by_role("button", name="Copy link").click()
    shared.get_by_test_id("notice").get_by_text("Not copied: this run was opened from a file").wait_for()
    assert shared.get_by_test_id("timeline").locator(".mark").count() == len(trace.rounds)
    at, first = next((at, token) for at, token in enumerate(recorded(trace)) if token[3].strip())
    shared.locator(".stage [data-round]").nth(at).locator("b").hover()
    assert inspector(shared).locator(".what code").text_content() == json.dumps(first[3], ensure_ascii=False)
    open_settings(shared)
    shared.get_by_text("Needs about 56 MB").wait_for()  # and does not hold them
    assert saved(shared) == trace


def test_its_settings_are_in_the_controls(shared, file):
    open_trace(shared, file)
    open_settings(shared)
    shared.get_by_role("slider", name="N-gram length").wait_for()
    unfold(shared, "Ending", "Chat")
    held = {
        **{"Prompt": PROMPT, "Draft length": "3", "N-gram length": "2", "Temperature": "0.9", "Top-k": "30"},
        **{"Top-p": "0.95", "Seed": "8", "Max new tokens": "40", "Stop strings": "never ever\n\u00a0?"},
        "Alternatives": "3",
    }
    assert {label: box(shared, label).input_value() for label in held} == held
    chosen = {
        name: shared.get_by_role("combobox", name=name).input_value()
        for name in ("Drafting method", "Sampler")
    }
    assert chosen == {"Drafting method": "n-gram store", "Sampler": "top-k with top-p"}
    assert box(shared, "Continue past").is_checked() and not box(shared, "Chat template").is_checked()
    unfold(shared, "Ending", "Chat")


def test_where_the_model_is_the_same_settings_give_the_same_run(page, file, trace):
    open_trace(page, file)
    open_settings(page)
    page.get_by_role("slider", name="N-gram length").wait_for()
    run(page)
    assert timeless(saved(page)) == timeless(trace)


def broken(trace: Trace) -> dict[str, tuple[bytes, str]]:
    whole = trace.to_json()
    coded = whole.replace("Once", "\N{BULLET}").encode().replace("\N{BULLET}".encode(), b"\xed\xa0\x80")
    half = json.dumps(json.loads(whole) | {"prompt": "half \ud800"}).encode()
    not_json = "The file is not a trace: it is not JSON text, or only a part of it"
    not_ours = "The file is not a trace that this version of SpecDemo can read"
    wrong = "The file cannot be opened: "
    return {
        "not JSON": (b"once upon a time", not_json),
        "another schema": (whole.replace("specdemo.trace/1", "specdemo.trace/9").encode(), not_ours),
        "cut off": (whole[: len(whole) // 2].encode(), not_json),
        "a wrong value": (
            whole.replace('"gamma":3', '"gamma":17').encode(),
            f"{wrong}Draft length γ must be a whole number from 1 to 16 or auto, not 17",
        ),
        "no number": (whole.replace('"gamma":3', '"gamma":NaN').encode(), wrong),
        "a coded surrogate": (coded, not_json),
        "a list": (b"[]", not_ours),
        "half a surrogate pair": (half, not_json),
        "nothing": (b"", not_json),
        "not UTF-8": (b"\xff" + whole.encode(), not_json),
    }


def test_a_file_that_is_no_trace_gets_a_sentence_and_nothing_is_lost(shared, file, trace, tmp_path):
    open_trace(shared, file)
    set_field(shared, "Prompt", "mine")
    before = tokens(shared)
    for name, (content, sentence) in broken(trace).items():
        wrong = tmp_path / f"{name}.json"
        wrong.write_bytes(content)
        choose_file(shared, wrong)
        shared.locator('[data-kind="error"]').filter(has_text=sentence).wait_for()
        assert tokens(shared) == before and box(shared, "Prompt").input_value() == "mine", name
        assert box(shared, "Draft length").input_value() == "3", name


def test_a_recorded_run_plays_and_a_run_of_one_s_own_takes_its_place(page, trace, tmp_path):
    slow = replace(trace, rounds=[replace(one, verify_ms=1_000.0) for one in trace.rounds])
    slow.save(tmp_path / "slow.json")
    open_trace(page, tmp_path / "slow.json")
    wait_for_state(page, "running")
    generate(page, "Tom", max_new_tokens=3, seed=1)
    wait_for_state(page, "ended")
    assert joined(tokens(page), "prompt") == "Tom" and number(page, "tokens") == "3"


def test_a_trace_of_a_pair_that_the_server_does_not_know_keeps_the_chosen_pair(shared, trace, tmp_path):
    file = tmp_path / "other.json"
    replace(trace, pair=replace(trace.pair, name="nobody knows"), params=replace(trace.params, seed=9)).save(
        file
    )
    open_settings(shared)
    before = shared.get_by_role("combobox", name="Pair", exact=True).input_value()
    open_trace(shared, file)
    assert notice(shared, "recorded").startswith("A recorded run, played without models. It was made on ")
    assert shared.get_by_role("combobox", name="Pair", exact=True).input_value() == before
    choose(shared, "Sampler", "greedy")  # the page goes on
    box(shared, "Temperature").wait_for(state="detached")


def test_a_number_format_that_the_page_does_not_offer_leaves_it_working(visit, bare, file, trace, tmp_path):
    page, other = visit(bare, still=True), tmp_path / "other.json"
    for dtype in ("float64", "<img src=x onerror=1>"):
        pair = replace(trace.pair, dtype=ByModel(dtype, dtype), quantize=ByModel("int5", "int5"))
        replace(trace, pair=pair).save(other)
        open_trace(page, other)
        assert on_stage(page) == recorded(trace)
    set_field(page, "Prompt", "")
    page.locator("#hint").get_by_text("must not be empty").wait_for()
    open_trace(page, file)
    assert page.broken == []
