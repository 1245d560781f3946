"""Texts that try to be more than text, from visitors, models and files: shown to the letter, never run."""

import json
from dataclasses import replace

import pytest

from tests.web.conftest import HOSTILE, with_rounds
from tests.web.screen import (
    IN_TEXT,
    box,
    choose,
    close_settings,
    generate,
    inspector,
    joined,
    notice,
    on_stage,
    open_trace,
    recorded,
    run,
    saved,
    tokens,
    unfold,
    wait_for_state,
)

HANDLERS = """[...document.querySelectorAll("body *")].flatMap((e) => e.getAttributeNames())
  .filter((name) => name.startsWith("on"))"""
FIRST_LETTER = "e => { const { x, y, height } = e.getClientRects()[0]; return [x + 2, y + height / 2]; }"
ACTIVE = "img, script, svg, iframe, object, embed, a, style, link, form:not(.guessing), textarea"
SIGNS = "all => all.map(e => getComputedStyle(e, '::before').content)"
LEFTS = """tokens => tokens.flatMap((token) => {
  const texts = document.createTreeWalker(token, NodeFilter.SHOW_TEXT);
  const lefts = [];
  while (texts.nextNode()) for (let at = 0; at < texts.currentNode.length; at++) {
    if (!/[a-z]/.test(texts.currentNode.data[at])) continue;
    const range = document.createRange();
    range.setStart(texts.currentNode, at);
    range.setEnd(texts.currentNode, at + 1);
    lefts.push(range.getBoundingClientRect().left);
  }
  return lefts;
})"""


def nothing_ran(page) -> None:
    assert page.evaluate("window.hit") is None
    assert page.locator(".run").locator(ACTIVE).count() == 0
    assert page.evaluate(HANDLERS) == [] and page.broken == []


@pytest.fixture(scope="module")
def shared(visit_for_all, bare):
    return visit_for_all(bare, still=True)


def test_in_what_a_visitor_writes(visit, url):
    page, prompt = visit(url, still=True), "\n".join(HOSTILE)
    unfold(page, "Ending", "Chat")
    run(page, prompt, max_new_tokens=2, stop_strings=prompt)
    assert joined(tokens(page), "prompt") == prompt and saved(page).prompt == prompt
    page.get_by_label("Chat template").check()
    box(page, "System prompt").fill(HOSTILE[0])
    generate(page, HOSTILE[3], seed=HOSTILE[3])
    assert HOSTILE[3][:30] in notice(page, "error")
    generate(page, seed=1)
    page.get_by_test_id("notice").get_by_text("Chat template").wait_for()  # this tokenizer has no template
    nothing_ran(page)


def test_in_what_a_model_writes(visit, endless):
    page = visit(endless, still=True)
    choose(page, "Sampler", "multinomial")
    run(page, "Once", seed=1, temperature=2, max_new_tokens=200)
    trace = saved(page)
    written = {token.text for one in trace.rounds for token in one.draft} & set(HOSTILE)
    assert len(written) >= 2, "the pair was to be more hostile"
    assert on_stage(page) == recorded(trace) and joined(tokens(page), *IN_TEXT) == trace.text
    nothing_ran(page)


def test_in_a_trace(shared, hostile, tmp_path):
    page = shared
    replace(hostile, pair=replace(hostile.pair, name=HOSTILE[0])).save(tmp_path / "hostile.json")
    open_trace(page, tmp_path / "hostile.json")
    wait_for_state(page, "recorded")
    assert on_stage(page) == recorded(hostile)
    assert joined(tokens(page), "prompt") == "".join(HOSTILE)
    assert HOSTILE[0] in page.get_by_test_id("whose").text_content()
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


def test_bidi_marks_turn_no_letter_around(shared, every_fate, tmp_path):
    _, trace = every_fate
    texts = ("ab", "cd\u202eef", "\u2066", "g\u2067h")
    pairs = zip(trace.rounds[-4:], texts, strict=True)
    rounds = [replace(one, next=replace(one.next, text=text)) for one, text in pairs]
    with_rounds(trace, rounds).save(tmp_path / "bidi.json")
    open_trace(shared, tmp_path / "bidi.json")
    assert joined(tokens(shared), *IN_TEXT) == "".join(texts)
    lefts = shared.locator(".stage [data-round]").evaluate_all(LEFTS)
    assert len(lefts) == 8 and lefts == sorted(set(lefts)), "eight letters, from left to right"
    signs = shared.locator(".stage [data-round] .invisible").evaluate_all(SIGNS)
    assert signs == ['"202E"', '"2066"', '"2067"']
