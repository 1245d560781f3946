"""The page in a real browser: what a visitor sees and does."""

import json
from urllib.parse import urlsplit

import pytest
from gradio_client import Client

IN_TEXT = ("accepted", "resampled", "bonus", "sampled")
ENDED = """() => ["eos", "stop", "length", "cancelled", "error"].includes(document.querySelector('[data-number="finish"]').textContent)"""


def set_field(page, label: str, value: str) -> None:
    field = page.get_by_label(label, exact=True).first
    field.fill(value)
    field.blur()


def choose(page, label: str, option: str) -> None:
    page.get_by_role("listbox", name=label).or_(page.get_by_label(label, exact=True)).first.click()
    page.get_by_role("option", name=option, exact=True).click()


def generate(page, prompt: str | None = None) -> None:
    if prompt is not None:
        set_field(page, "Prompt", prompt)
    page.get_by_role("button", name="Generate").click()


def wait_for_end(page) -> None:
    page.wait_for_function(ENDED)


def tokens(page) -> list[dict]:
    """Every token on the stage as the page has it."""
    return page.get_by_test_id("stage").evaluate(
        "stage => [...stage.querySelectorAll('[data-fate]')].map(e => ({...e.dataset, text: e.textContent}))"
    )


def number(page, name: str) -> str:
    return page.locator(f'[data-number="{name}"]').text_content()


def notice(page, kind: str) -> str:
    found = page.locator(f'[data-testid="notice"][data-kind="{kind}"]')
    found.wait_for()
    return found.text_content()


def test_a_run_streams_onto_the_stage_as_the_api_tells_it(page, url):
    prompt = "Once upon a time,\nthere was"
    set_field(page, "Seed", "11")
    set_field(page, "Max new tokens", "60")
    generate(page, prompt)
    wait_for_end(page)
    shown = tokens(page)
    trace = Client(url, verbose=False).predict(prompt, seed=11, max_new_tokens=60, api_name="/generate")["trace"]

    told = [(t["id"], t["text"], t["fate"], round["index"]) for round in trace["rounds"] for t in told_tokens(round)]
    assert [(int(t["token"]), t["text"], t["fate"], int(t["round"])) for t in shown if t["fate"] != "prompt"] == told
    assert "".join(t["text"] for t in shown if t["fate"] in IN_TEXT) == trace["text"]
    assert "".join(t["text"] for t in shown if t["fate"] == "prompt") == prompt
    assert [int(t["token"]) for t in shown if t["fate"] == "prompt"] == trace["prompt_ids"]
    assert not any("round" in t for t in shown if t["fate"] == "prompt")
    assert {"accepted", "rejected", "resampled"} <= {t["fate"] for t in shown}
    assert number(page, "tokens") == str(trace["stats"]["tokens"]) and number(page, "seed") == "11"
    assert number(page, "rounds") == str(len(trace["rounds"])) and number(page, "finish") == trace["finish"]
    assert "MB for the target" in notice(page, "note")
    assert page.broken == []


def told_tokens(round: dict) -> list[dict]:
    own = [{**round["next"], "fate": round["next"]["source"]}] if round["next"] else []
    return round["draft"] + own


def test_nothing_is_asked_of_other_hosts(page, url):
    generate(page)
    wait_for_end(page)
    assert {urlsplit(address).netloc for address in page.requested if not address.startswith(("data:", "blob:"))} == {urlsplit(url).netloc}


def test_line_ends_break_lines_and_their_signs_are_not_in_the_text(page):
    set_field(page, "Max new tokens", "1")
    generate(page, "a b\n\n  c\td")
    wait_for_end(page)
    stage = page.get_by_test_id("stage")
    assert "".join(t["text"] for t in tokens(page) if t["fate"] == "prompt") == "a b\n\n  c\td"
    assert stage.evaluate("s => s.innerText").startswith("a b\n\n  c\td"), "no glyph may be copied with the text"
    signs = stage.locator(".newline").evaluate_all("all => all.map(e => getComputedStyle(e, '::before').content)")
    assert signs == ['"⏎"'] * 2
    lines = stage.locator(".newline").evaluate_all("all => all.map(e => e.getBoundingClientRect().top)")
    assert lines[0] < lines[1]


HOSTILE = (
    "<img src=x onerror=\"window.hit='img'\">",
    "${window.hit='dollar'}",
    "{{constructor.constructor('window.hit=1')()}}",
    "</script><script>window.hit='script'</script>",
    "`+(window.hit='tick')+`",
)


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_text(page, text):
    set_field(page, "Max new tokens", "3")
    generate(page, text)
    wait_for_end(page)
    assert "".join(t["text"] for t in tokens(page) if t["fate"] == "prompt") == text
    assert page.evaluate("window.hit") is None
    assert page.get_by_test_id("stage").locator("img, script").count() == 0
    assert page.broken == []


def rounds_are_going_on(page) -> None:
    page.wait_for_function("() => Number(document.querySelector('[data-number=\"rounds\"]').textContent) > 5")


def test_stop_ends_the_run_at_once_and_the_next_one_works(visit, endless):
    page = visit(endless)
    set_field(page, "Max new tokens", "30000")
    choose(page, "Who drafts", "nobody: plain decoding")
    generate(page)
    rounds_are_going_on(page)
    page.get_by_role("button", name="Stop").click()
    wait_for_end(page)
    assert number(page, "finish") == "cancelled"
    assert "Drafting is off" in notice(page, "note")
    stopped = tokens(page)
    assert len([t for t in stopped if t["fate"] == "sampled"]) == int(number(page, "tokens")) < 30_000
    page.wait_for_timeout(500)
    assert tokens(page) == stopped, "nothing comes behind the end"

    set_field(page, "Max new tokens", "2")
    generate(page)
    page.wait_for_function("() => document.querySelector('[data-number=\"finish\"]').textContent === 'length'")
    assert number(page, "tokens") == "2"


def test_a_closed_tab_frees_the_pair(visit, endless):
    page = visit(endless)
    set_field(page, "Max new tokens", "30000")
    generate(page)
    rounds_are_going_on(page)
    page.close()
    job = Client(endless, verbose=False).submit("Once", max_new_tokens=2, api_name="/generate")
    assert job.result(timeout=60)["trace"]["finish"] == "length"


def test_who_waits_can_give_up_and_gets_a_turn_otherwise(visit, endless):
    first, second, third = (visit(endless) for _ in range(3))
    set_field(first, "Max new tokens", "30000")
    generate(first)
    rounds_are_going_on(first)
    for page in (second, third):
        set_field(page, "Max new tokens", "3")
        generate(page)
    second.get_by_role("button", name="Stop").click()
    assert notice(second, "note") == "Stopped before it began."
    first.get_by_role("button", name="Stop").click()
    wait_for_end(third)
    wait_for_end(first)
    assert (number(first, "finish"), number(third, "finish")) == ("cancelled", "length")
    assert tokens(second) == []


def test_greedy_is_greedy(page):
    choose(page, "Sampler", "greedy")
    assert page.get_by_label("Temperature", exact=True).count() == 0, "what does not matter is out of the way"
    set_field(page, "Max new tokens", "30")
    texts = []
    for seed in ("1", "2"):
        set_field(page, "Seed", seed)
        generate(page)
        page.wait_for_function(f"() => document.querySelector('[data-number=\"seed\"]').textContent === '{seed}'")
        wait_for_end(page)
        texts.append([(t["text"], t["fate"]) for t in tokens(page)])
    assert texts[0] == texts[1]


def test_without_a_seed_each_run_draws_one(page):
    set_field(page, "Max new tokens", "2")
    seeds = []
    for _ in range(2):
        generate(page)
        page.wait_for_function(f"() => !{['–', *seeds]}.includes(document.querySelector('[data-number=\"seed\"]').textContent)")
        wait_for_end(page)
        seeds.append(number(page, "seed"))
    assert seeds[0] != seeds[1]


def test_mistakes_are_answered_beside_the_stage_and_break_nothing(page):
    generate(page, "")
    assert notice(page, "error") == "prompt must not be empty: the target needs at least one token to go on from"
    set_field(page, "Max new tokens", "0")
    generate(page, "Once")
    page.get_by_text("max_new_tokens must be a whole number from 1 to 32,768, not 0").wait_for()
    set_field(page, "Max new tokens", "2.5")
    generate(page)
    page.get_by_text("max_new_tokens must be a whole number from 1 to 32,768, not 2.5").wait_for()
    set_field(page, "Max new tokens", "3")
    set_field(page, "Seed", "seven")
    generate(page)
    page.get_by_text("seed must be a whole number from 0 to 9,007,199,254,740,991, not 'seven'").wait_for()
    set_field(page, "Seed", "7")
    generate(page)
    wait_for_end(page)
    assert any(t["fate"] in IN_TEXT for t in tokens(page))


def test_the_legend_shows_and_hides(page):
    set_field(page, "Seed", "3")
    generate(page)
    wait_for_end(page)
    rejected, discarded = page.locator('[data-fate="rejected"]').first, page.locator('[data-fate="discarded"]').first
    assert rejected.is_visible() and not discarded.is_visible()
    page.get_by_role("button", name="discarded").click()
    page.get_by_role("button", name="rejected").click()
    assert discarded.is_visible() and not rejected.is_visible()


def test_a_stop_string_cuts_the_text_on_the_stage(page, url):
    free = Client(url, verbose=False).predict("Once", seed=5, max_new_tokens=40, api_name="/generate")["trace"]["text"]
    # Not at a token's edge, most likely, and longer than one.
    stop = next(free[i : i + 5] for i in range(9, len(free)) if free[i : i + 5].isprintable() and free[i : i + 5].strip())
    set_field(page, "Seed", "5")
    set_field(page, "Max new tokens", "40")
    page.get_by_label("Stop strings").fill(stop)
    generate(page, "Once")
    wait_for_end(page)
    assert number(page, "finish") == "stop"
    assert "".join(t["text"] for t in tokens(page) if t["fate"] in IN_TEXT) == free[: free.index(stop)]


def test_a_token_says_what_decided_its_fate(page):
    set_field(page, "Seed", "3")
    generate(page)
    wait_for_end(page)
    token = page.locator('[data-fate="rejected"]').first
    token.hover()
    said = page.get_by_test_id("inspector").text_content()
    assert said.startswith(json.dumps(token.text_content(), ensure_ascii=False)) and "rejected in round" in said and "min(1, p/q)" in said


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_wider_than_the_screen(page, width):
    page.set_viewport_size({"width": width, "height": 800})
    generate(page, "W" * 300)
    wait_for_end(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
