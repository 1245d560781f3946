"""Links in a real browser: opened, run, reloaded, gone back from, copied, and wrong; and conversations."""

import json
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

from tests.models.test_conversations import CHAT
from tests.web.conftest import HOSTILE, PATIENCE, serving, tiny_pair
from tests.web.screen import (
    IN_TEXT,
    box,
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
    tokens,
    unfold,
    wait_for_state,
)

PROMPT = "Once upon a time,\nthere was a <b>cat & dog"
HOW = {"gamma": "auto", "confidence": 0.3, "temperature": 0.9, "top_p": 1.0, "max_new_tokens": 30, "seed": 5}
CHATTING = "chat=true&max_new_tokens=12&temperature=0&ignore_eos=true"


def address(page) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(page.url).query).items()}


def link(url: str, **query) -> str:
    return f"{url}/?{urlencode(query)}"


def shows(page, prompt: str) -> None:
    page.wait_for_function(
        """prompt => document.querySelector(".run")?.dataset.state === "ended" && prompt ===
        [...document.querySelectorAll(".stage [data-fate=prompt]")].map((e) => e.textContent).join("")""",
        arg=prompt,
    )


@pytest.fixture(scope="module")
def opened(visit_for_all, url):
    """A page from a link that runs, pins a token, and has a name that Gradio reads."""
    page = visit_for_all(link(url, prompt=PROMPT, **HOW, run=1, token="2.0", __theme="dark"), still=True)
    shows(page, PROMPT)
    return page


def test_a_link_runs_and_shows_what_the_api_gives(opened, generated):
    trace = generated(PROMPT, **HOW)
    assert on_stage(opened) == recorded(trace) and joined(tokens(opened), *IN_TEXT) == trace.text
    assert inspector(opened).locator(".where").text_content().startswith("round 3, ")
    held = address(opened)
    named = {"prompt": PROMPT, "pair": trace.pair.name, "seed": "5", "gamma": "auto", "confidence": "0.3"}
    assert named | {"run": "1", "token": "2.0", "__theme": "dark"} == {
        name: held[name] for name in (*named, "run", "token", "__theme")
    }
    open_settings(opened)
    assert box(opened, "Prompt").input_value() == PROMPT and box(opened, "Seed").input_value() == "5"
    assert opened.get_by_label("Choose γ round by round").is_checked()


def test_reload_back_and_a_copied_link_show_the_same_again(opened):
    page = opened
    first, url = on_stage(page), page.url
    page.reload()
    shows(page, PROMPT)
    assert on_stage(page) == first and page.url == url

    run(page, "Tom", seed="")
    drawn = number(page, "seed")
    assert {"prompt": "Tom", "seed": drawn}.items() <= address(page).items() and "token" not in address(page)
    second = on_stage(page)
    page.locator(".stage [data-round] > b").first.click()
    page.wait_for_url(lambda url: "token=0.0" in url)
    copied = copy(page, "Copied")
    assert copied == page.url
    page.go_back()
    shows(page, PROMPT)
    assert on_stage(page) == first
    page.goto(copied)
    shows(page, "Tom")
    assert on_stage(page) == second
    assert inspector(page).locator(".where").text_content().startswith("round 1, ")


def copy(page, said: str) -> str:
    page.get_by_role("button", name="Copy link").click()
    page.get_by_test_id("notice").get_by_text(said).wait_for()
    return page.evaluate("navigator.clipboard.readText()")


def test_settings_without_run_fill_the_controls_only_and_a_hostile_text_is_text(visit, bare):
    text = " ".join(HOSTILE[:5])
    how = {"prompt": text, "system": text, "chat": "true", "stop": text, "gamma": 9, "draft_with": "ngram"}
    page = visit(link(bare, **how, foo=1, __sign="x"), still=True)
    assert notice(page, "note") == "Not known in an address, and so ignored: foo."
    unfold(page, "Chat")
    page.get_by_role("slider", name="N-gram length").wait_for()
    assert box(page, "Prompt").input_value() == text and box(page, "Draft length γ").input_value() == "9"
    assert box(page, "System prompt").input_value() == text and page.evaluate("window.hit") is None
    wait_for_state(page, "recorded")
    assert page.get_by_role("button", name="Stop").is_disabled()


def test_what_is_wrong_in_a_link_is_told_after_the_first_run_has_come_and_nothing_runs(browser, visit, bare):
    """Else that run would take the sentence away."""
    context, order = browser.new_context(), []
    context.on("response", lambda answer: answer.url.endswith("first/whole") and order.append("shown"))
    context.on("request", lambda request: "gamma=99" in (request.post_data or "") and order.append("asked"))
    page = visit(link(bare, prompt="Tom", gamma=99, run=1), still=True, context=context)
    assert notice(page, "error").startswith("Draft length γ must be ")
    assert order[:2] == ["shown", "asked"]
    assert page.locator(".run").get_attribute("data-state") == "recorded"
    assert box(page, "Prompt").input_value() != "Tom"
    assert page.get_by_role("button", name="Stop").is_disabled()


def test_a_link_to_a_pair_that_is_not_loaded_asks_first(visit, url):
    page = visit(
        link(url, prompt="Tom", pair="embedded", dtype="bfloat16", max_new_tokens=5, run=1), still=True
    )
    said = "which is not loaded: press Generate to load and run it"
    page.get_by_test_id("notice").get_by_text(said).wait_for()
    page.get_by_role("button", name="Generate").click()
    shows(page, "Tom")
    assert number(page, "tokens") == "5" and address(page)["dtype"] == "bfloat16"


def test_a_late_answer_to_the_address_leaves_what_was_typed_meanwhile(desk, bare):
    """On a slow line the page can be used before the server has answered to its address."""
    page = desk.new_page()
    page.set_default_timeout(PATIENCE)

    def after_typing(route) -> None:
        if '"kind":"link"' in route.request.post_data:
            box(page, "Prompt").fill("mine")
        route.continue_()

    page.route("**/specdemo/runs", after_typing)
    page.goto(f"{bare}/?gamma=2")
    page.wait_for_function("document.querySelector('#set-gamma input')?.value === '2'")
    assert box(page, "Prompt").input_value() == "mine"
    page.close()


def test_a_copied_link_names_the_start_run_and_its_tab_and_an_older_one_still_shows_them(visit, bare):
    page = visit(bare, still=True)
    wait_for_state(page, "recorded")
    assert address(page) == {}
    page.get_by_role("tab", name="Why it is exact").click()
    assert copy(page, "Copied") == page.url and address(page) == {"trace": "first", "tab": "figure"}
    older = visit(f"{bare}/?trace=warm&digest=0123abcd&token=1.0&tab=figure&figure_u=0.5", still=True)
    older.locator(".stage .pinned").wait_for(state="attached")
    assert address(older) == {"trace": "warm", "token": "1.0", "tab": "figure"}


@pytest.fixture(scope="module")
def chat(tmp_path_factory):
    """The page over a tiny pair with a chat template."""
    folder = tmp_path_factory.mktemp("chat")
    arguments = tiny_pair(folder)
    for role in ("target", "drafter"):
        (folder / role / "chat_template.jinja").write_text(CHAT)
    with serving(*arguments) as url:
        yield url


def reply(page, text: str) -> None:
    before = page.url
    box(page, "Prompt").fill(text)
    page.get_by_role("button", name="Reply").click()
    page.wait_for_function("url => location.href !== url", arg=before)
    wait_for_state(page, "ended")


def test_a_reply_continues_the_conversation(visit, chat, tmp_path):
    page = visit(f"{chat}/?prompt=the+cat&{CHATTING}&run=1", still=True)
    wait_for_state(page, "ended")
    first = saved(page)
    assert first.prompt == "the cat"
    reply(page, "and then")
    second = saved(page)
    said = [("user", "the cat"), ("assistant", first.text), ("user", "and then")]
    assert [(one.role, one.content) for one in second.messages] == said
    assert on_stage(page) == recorded(second) and joined(tokens(page), *IN_TEXT) == second.text
    reply(page, "at last")
    third = saved(page)
    assert len(third.messages) == 5 and third.messages[:3] == second.messages
    # Its link makes the same turn again, with the conversation before it.
    query = parse_qs(urlsplit(page.url).query)
    assert len(json.loads(query["messages"][0])) == 4 and query["prompt"] == ["at last"]
    again = visit(page.url, still=True)
    wait_for_state(again, "ended")
    assert saved(again).messages == third.messages
    # So does its trace, which can be replied to.
    third.save(tmp_path / "third.json")
    open_trace(again, tmp_path / "third.json")
    wait_for_state(again, "recorded")
    assert box(again, "Prompt").input_value() == "at last"
    reply(again, "the end")
    fourth = saved(again)
    assert len(fourth.messages) == 7 and fourth.messages[5].content == third.text
    # A run that is no chat cannot be replied to.
    unfold(again, "Chat")
    again.get_by_label("Chat template").uncheck()
    run(again, "the cat")
    assert not again.get_by_role("button", name="Reply").is_visible()
