"""Texts that try to be more than text, from visitors, models and files: shown to the letter, never run."""

import json
from dataclasses import replace

import pytest

from specdemo.events import metrics
from tests.web.conftest import HOSTILE
from tests.web.screen import (
    IN_TEXT,
    box,
    choose,
    generate,
    inspector,
    joined,
    notice,
    number,
    on_stage,
    open_trace,
    recorded,
    run,
    saved,
    tokens,
    unfold,
    wait_for_state,
)

pytestmark = pytest.mark.slow

HANDLERS = """[...document.querySelectorAll("body *")].flatMap((e) => e.getAttributeNames())
  .filter((name) => name.startsWith("on"))"""
FIRST_LETTER = "e => { const { x, y, height } = e.getClientRects()[0]; return [x + 2, y + height / 2]; }"
SIGNS = "all => all.map(e => getComputedStyle(e, '::before').content)"


def nothing_ran(page) -> None:
    assert page.evaluate("window.hit") is None
    assert (
        page.locator(".run")
        .locator("img, script, svg, iframe, object, embed, a, style, link, form:not(.guessing), textarea")
        .count()
        == 0
    )
    assert page.evaluate(HANDLERS) == [] and page.broken == []


@pytest.fixture(scope="module")
def shared(visit_for_all, bare):
    return visit_for_all(bare, still=True)


def test_in_a_prompt(page):
    prompt = "\n".join(HOSTILE)
    unfold(page, "Ending")
    run(page, prompt, max_new_tokens=2, stop_strings="\n".join(HOSTILE))
    assert joined(tokens(page), "prompt") == prompt and saved(page).prompt == prompt
    nothing_ran(page)


def test_in_a_system_prompt_and_a_seed(page):
    unfold(page, "Chat")
    page.get_by_label("Chat template").check()
    box(page, "System prompt").fill(HOSTILE[0])
    generate(page, HOSTILE[3], seed=HOSTILE[3], max_new_tokens=2)
    assert HOSTILE[3][:30] in notice(page, "error")
    generate(page, seed=1)
    page.get_by_test_id("notice").get_by_text("Chat template").wait_for()  # this tokenizer has no template
    nothing_ran(page)


def test_in_what_a_model_writes(visit, endless):
    page = visit(endless)
    choose(page, "Sampler", "multinomial")
    run(page, "Once", seed=1, temperature=2, max_new_tokens=400)
    trace = saved(page)
    written = {token.text for one in trace.rounds for token in one.draft} & set(HOSTILE)
    assert len(written) >= 3, "the pair was to be more hostile"
    assert on_stage(page) == recorded(trace) and joined(tokens(page), *IN_TEXT) == trace.text
    nothing_ran(page)


@pytest.mark.parametrize("name", ["embedded", HOSTILE[0]])
def test_in_a_trace(shared, hostile, name, tmp_path):
    page, file = shared, tmp_path / "hostile.json"
    replace(hostile, pair=replace(hostile.pair, name=name)).save(file)
    open_trace(page, file)
    wait_for_state(page, "recorded")
    assert on_stage(page) == recorded(hostile)
    assert joined(tokens(page), "prompt") == "".join(HOSTILE)
    assert HOSTILE[0] in notice(page, "recorded")
    assert name in page.get_by_test_id("whose").text_content()
    assert number(page, "seed") == str(hostile.params.seed)
    unfold(page, "Chat", "Ending")
    assert (
        box(page, "System prompt").input_value() == HOSTILE[0]
        and box(page, "Stop strings").input_value() == f"never\n{HOSTILE[3]}"
    )
    nothing_ran(page)
    unfold(page, "Chat", "Ending")


def test_in_the_inspector(shared, hostile, tmp_path):
    hostile.save(tmp_path / "hostile.json")
    open_trace(shared, tmp_path / "hostile.json")
    said = inspector(shared).locator(".what code")
    for at in range(len(HOSTILE)):
        token = shared.locator(".stage [data-round]:visible").nth(at)
        text = token.text_content()
        token.scroll_into_view_if_needed()
        shared.mouse.click(*token.locator("b").evaluate(FIRST_LETTER))
        # As a program would write it: what is invisible, or turns the text around, is escaped.
        assert json.loads(said.text_content()) == text and said.text_content().isprintable()
        alternatives = inspector(shared).locator(".likely tbody code").all_text_contents()
        assert alternatives and {json.loads(text) for text in alternatives} <= {*HOSTILE}
        nothing_ran(shared)
        shared.keyboard.press("Escape")


@pytest.mark.parametrize("text", ["half \ud800", "\udc00 other half"])
def test_half_a_surrogate_pair_is_refused_in_a_sentence(page, text):
    # Playwright's own messages cannot carry one, but a page can.
    escaped = json.dumps(text)
    page.locator("#ask textarea").evaluate(
        f"box => {{ box.value = {escaped}; box.dispatchEvent(new Event('input', {{ bubbles: true }})); }}"
    )
    page.get_by_role("button", name="Generate").click()
    surrogate = next(sign for sign in text if 0xD800 <= ord(sign) < 0xE000)
    assert (
        notice(page, "error")
        == f"Prompt must be Unicode text, but holds the lone surrogate U+{ord(surrogate):04X}"
    )
    page.get_by_label("Prompt", exact=True).blur()
    page.locator("#hint").get_by_text("lone surrogate").wait_for(state="attached")
    assert not page.locator("#hint").is_visible(), "the error says it already"


TURNING = ("\u202e", "\u2066", "\u2067")
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


@pytest.mark.parametrize("turn", TURNING)
def test_bidi_marks_turn_no_letter_around(shared, every_fate, turn, tmp_path):
    _, trace = every_fate
    texts = ("ab", f"cd{turn}ef", turn, "gh")
    cut = replace(trace, rounds=[], output_ids=[], text="", stats=metrics.fresh())
    for index, (one, text) in enumerate(zip(trace.rounds[-4:], texts, strict=True)):
        cut.add(replace(one, index=index, next=replace(one.next, text=text)))
    cut.save(tmp_path / "bidi.json")
    open_trace(shared, tmp_path / "bidi.json")
    assert joined(tokens(shared), *IN_TEXT) == "".join(texts)
    lefts = shared.locator(".stage [data-round]").evaluate_all(LEFTS)
    assert len(lefts) == 8 and lefts == sorted(set(lefts)), "eight letters, from left to right"
    assert shared.locator(".stage [data-round] .invisible").evaluate_all(SIGNS) == [f'"{ord(turn):04X}"'] * 2
