"""A run as a file, in a real browser: its trace saved and opened without a model, files that are wrong or try
to be more than text, and what else is kept of it."""

import json
from dataclasses import replace

import pytest

from specdemo import show
from specdemo.events.trace import Trace
from tests.web.conftest import HOSTILE, RECORDED
from tests.web.screen import (
    box,
    choose_file,
    close_settings,
    generate,
    inspector,
    joined,
    number,
    on_stage,
    open_settings,
    open_trace,
    recorded,
    saved,
    set_field,
    tokens,
    unfold,
    wait_for_state,
)

PROMPT = "Once upon a time,\nthere was"
SETTINGS = {
    **{"draft_with": "ngram", "gamma": 3, "ngram": 2, "temperature": 0.9, "top_k": 30, "top_p": 0.95},
    **{"max_new_tokens": 40, "stop": ["never ever", "\u00a0?"], "ignore_eos": True, "alternatives": 3},
    "seed": 8,
}
HANDLERS = """[...document.querySelectorAll("body *")].flatMap((e) => e.getAttributeNames())
  .filter((name) => name.startsWith("on"))"""
PLACES = """token => {
  const texts = document.createTreeWalker(token, NodeFilter.SHOW_TEXT), letter = new Range(), places = [];
  while (texts.nextNode()) [...texts.currentNode.data].forEach((sign, at) => {
    letter.setStart(texts.currentNode, at), letter.setEnd(texts.currentNode, at + 1);
    const { x, y } = letter.getBoundingClientRect();
    if (/[a-z]/.test(sign)) places.push([y, x]);
  });
  return places;
}"""
FIRST_LETTER = "e => { const { x, y, height } = e.getClientRects()[0]; return [x + 2, y + height / 2]; }"
ACTIVE = "img, script, svg, iframe, object, embed, a, style, link, form:not(.guessing), textarea"


@pytest.fixture(scope="module")
def trace(generated):
    return generated(PROMPT, **SETTINGS)


@pytest.fixture(scope="module")
def file(trace, tmp_path_factory):
    file = tmp_path_factory.mktemp("trace") / "run.json"
    trace.save(file)
    return file


def timeless(trace: Trace) -> Trace:
    timed = ("_ms", "_second", "cost_ratio", "spread", "speedup", "speedup_interval")
    stats = {name: None for name in trace.stats.__slots__ if name.endswith(timed)}
    rounds = [replace(one, draft_ms=0, verify_ms=0) for one in trace.rounds]
    return replace(trace, rounds=rounds, stats=replace(trace.stats, **stats))


def test_a_trace_is_shown_without_a_model_and_saved_again(reading, file, trace):
    assert saved(reading) == Trace.load(RECORDED), "the run that every page shows at first"
    open_trace(reading, file)
    wait_for_state(reading, "recorded")
    assert on_stage(reading) == recorded(trace) and joined(tokens(reading), "prompt") == PROMPT
    assert number(reading, "tokens_per_second") == f"{trace.stats.tokens_per_second:,.1f}"
    assert reading.get_by_test_id("whose").text_content().startswith("Recorded run: embedded")
    reading.get_by_role("button", name="Copy link").click()
    reading.get_by_test_id("notice").get_by_text("Not copied: this run was opened from a file").wait_for()
    assert saved(reading) == trace


def test_with_its_pair_it_gives_the_same_run_again_in_place_of_what_plays(page, file, trace, tmp_path):
    slow = replace(trace, rounds=[replace(one, verify_ms=1_000.0) for one in trace.rounds])
    slow.save(tmp_path / "slow.json")
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


def test_a_file_that_is_no_trace_gets_a_sentence_and_nothing_is_lost(reading, file, trace, tmp_path):
    open_trace(reading, file)
    set_field(reading, "Prompt", "mine")
    before, too_long = tokens(reading), trace.to_json().replace('"gamma":3', '"gamma":17')
    for content, sentence in (
        (b"", "The file is not a trace: "),
        (too_long.encode(), "The file cannot be opened: Draft length γ must be "),
        (b"[]", "The file is not a trace that this version of SpecDemo can read"),
        (b"x" * (17 * 2**20), "17.0 MB"),
    ):
        (tmp_path / "wrong.json").write_bytes(content)
        choose_file(reading, tmp_path / "wrong.json")
        reading.locator('[data-kind="error"]').filter(has_text=sentence).wait_for()
        assert tokens(reading) == before and box(reading, "Prompt").input_value() == "mine", sentence
        assert box(reading, "Draft length").input_value() == "3", sentence


def nothing_ran(page) -> None:
    assert page.evaluate("window.hit") is None
    assert page.locator(".run").locator(ACTIVE).count() == 0
    assert page.evaluate(HANDLERS) == [] and page.broken == []


def test_hostile_texts_in_a_trace_are_shown_to_the_letter(reading, hostile, tmp_path):
    page = reading
    replace(hostile, pair=replace(hostile.pair, name=HOSTILE[0])).save(tmp_path / "hostile.json")
    open_trace(page, tmp_path / "hostile.json")
    wait_for_state(page, "recorded")
    assert on_stage(page) == recorded(hostile)
    assert joined(tokens(page), "prompt") == "".join(HOSTILE)
    assert HOSTILE[0] in page.get_by_test_id("whose").text_content()
    places = page.locator(".stage [data-round]", has_text="\u2066").first.evaluate(PLACES)
    assert len(places) == 8 and places == sorted(places), "the letters stand in their order"
    unfold(page, "Chat", "Ending")
    assert box(page, "System prompt").input_value() == HOSTILE[0]
    assert box(page, "Stop strings").input_value() == f"never\n{HOSTILE[3]}"
    close_settings(page)
    nothing_ran(page)
    said = inspector(page).locator(".what code")
    for at in range(len(HOSTILE)):
        token = page.locator(".stage [data-round]:visible").nth(at)
        text = token.text_content()
        token.scroll_into_view_if_needed()
        page.mouse.click(*token.locator("b").evaluate(FIRST_LETTER))
        # As a program would write it: what is invisible, or turns the text around, is escaped.
        assert json.loads(said.text_content()) == text and said.text_content().isprintable()
        alternatives = inspector(page).locator(".likely tbody code").all_text_contents()
        assert alternatives and {json.loads(text) for text in alternatives} <= {*HOSTILE}
        nothing_ran(page)
        page.keyboard.press("Escape")


@pytest.fixture
def opened(reading, every_fate):
    open_trace(reading, every_fate[0])
    wait_for_state(reading, "recorded")
    return reading


def saved_as(page, kind: str) -> tuple[str, bytes]:
    """The name and the content of the file."""
    page.locator(".save-as summary").click()
    with page.expect_download() as download:
        page.get_by_role("button", name=kind, exact=True).click()
    assert page.locator(".save-as").get_attribute("open") is None
    return download.value.suggested_filename, download.value.path().read_bytes()


def test_the_html_file_is_what_show_writes(opened, every_fate):
    name, file = saved_as(opened, "One HTML file")
    assert name == f"specdemo-seed-{every_fate[1].params.seed}.html"
    assert without_run(file.decode()) == without_run(show(every_fate[1]).file)


def without_run(file: str) -> str:
    before, after = file.split('id="kept-run">')
    return before + after.partition("<")[2]


def test_by_keyboard(opened):
    def press(*keys: str) -> str:
        for key in keys:
            opened.keyboard.press(key)
        return opened.evaluate("document.activeElement.textContent")

    opened.locator("#save").focus()
    assert press("Tab", "Enter", *["Tab"] * 3) == "Handout (print)"
    assert press("Escape") == "Save as" and press("Enter", "Tab", "Tab") == "Rounds as CSV"
    with opened.expect_download() as download:
        opened.keyboard.press("Enter")
    assert download.value.suggested_filename.endswith(".csv")
