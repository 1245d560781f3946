"""What the tests do on the page, and what they read from it."""

from pathlib import Path

from specdemo.events import Judged, Next, Round
from specdemo.events.trace import Trace

IN_TEXT = ("accepted", "resampled", "bonus", "sampled")
NOT_IN_TEXT = ("rejected", "discarded")
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
ENDED = """before => !before?.isConnected && document.querySelector(".run").dataset.state === "ended" """


def box(page, label: str):
    """A box to type into. A control's help is a part of its name; a slider has a box of the same name."""
    return page.get_by_label(label, exact=label == "Prompt").and_(page.locator("input, textarea")).first


def open_settings(page) -> None:
    if not page.locator("#settings").is_visible():
        page.get_by_role("button", name="Settings").click()


def close_settings(page) -> None:
    if page.locator("#settings").is_visible():
        page.locator("#settings").get_by_role("button", name="Close").click()


def open_examples(page) -> None:
    if not page.locator("#examples").is_visible():
        page.get_by_role("button", name="Examples").click()


def set_field(page, label: str, value) -> None:
    if label != "Prompt":
        open_settings(page)
    field = box(page, label)
    field.fill(str(value))
    field.blur()


def choose(page, label: str, option: str) -> None:
    open_settings(page)
    page.get_by_role("combobox", name=label).click()
    page.get_by_role("option", name=option, exact=True).click()


def unfold(page, *titles: str) -> None:
    open_settings(page)
    for title in titles:
        page.get_by_role("button", name=title).click()


def generate(page, prompt: str | None = None, **fields) -> None:
    """Presses Generate with this prompt and these values in the boxes: max_new_tokens is "Max new tokens"."""
    fields = {name.replace("_", " ").capitalize(): value for name, value in fields.items()}
    if prompt is not None:
        set_field(page, "Prompt", prompt)
    for label, value in fields.items():
        set_field(page, label, value)
    page.get_by_role("button", name="Generate").click()


def run(page, prompt: str | None = None, **fields) -> None:
    """The same, and waits until that run has ended."""
    before = first_token(page)
    generate(page, prompt, **fields)
    wait_for_end(page, before)


def first_token(page):
    """It leaves the stage when the next run comes."""
    return page.evaluate_handle("document.querySelector('.run [data-token]')")


def wait_for_end(page, before=None) -> None:
    page.wait_for_function(ENDED, arg=before)


def wait_for_state(page, state: str) -> None:
    page.locator(f'.run[data-state="{state}"]').wait_for()


def wait_for_rounds(page, count: int = 5) -> None:
    """Of the page's own run; the recorded one may still play."""
    page.wait_for_function(
        "count => document.querySelector('.run')?.dataset.state === 'running' && "
        "!document.querySelector('[data-testid=whose]').textContent.startsWith('Recorded') && "
        "Number(document.querySelector('[data-number=\"rounds\"]').textContent.replaceAll(',', '')) > count",
        arg=count,
    )


def tokens(page) -> list[dict]:
    """Every token on the stage as the page has it."""
    return page.get_by_test_id("stage").evaluate(
        "stage => [...stage.querySelectorAll('[data-fate]')]"
        ".map(({dataset: {fate, token, round}, textContent: text}) => ({fate, token, round, text}))"
    )


def joined(shown: list[dict], *fates: str) -> str:
    return "".join(token["text"] for token in shown if token["fate"] in fates)


def recorded(trace: Trace) -> list[tuple]:
    """(fate, id, round, text) of each token of the record, as the stage should have them."""
    return [
        (fate, str(token.id), str(index), token.text)
        for index, one in enumerate(trace.rounds)
        for fate, token in fates(one)
    ]


def fates(one: Round) -> list[tuple[str, Judged | Next]]:
    """The round's tokens in reading order, each with its fate."""
    own = [(one.next.source, one.next)] if one.next else []
    return [*((token.fate, token) for token in one.draft), *own]


def on_stage(page) -> list[tuple]:
    return [
        tuple(token[key] for key in ("fate", "token", "round", "text"))
        for token in tokens(page)
        if token["fate"] != "prompt"
    ]


def number(page, name: str) -> str:
    return page.locator(f'[data-number="{name}"]').text_content()


def notice(page, kind: str) -> str:
    found = page.locator(f'[data-testid="notice"][data-kind="{kind}"]')
    found.wait_for()
    return found.text_content()


def inspector(page):
    return page.get_by_test_id("inspector")


def saved(page) -> Trace:
    """The trace that Save trace hands out."""
    with page.expect_download() as download:
        page.get_by_role("button", name="Save trace").click()
    return Trace.load(download.value.path())


def choose_file(page, file: Path) -> None:
    open_examples(page)
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Open a saved trace").click()
    chooser.value.set_files(file)


def open_trace(page, file: Path) -> None:
    """And waits until its run has the stage."""
    before = first_token(page)
    choose_file(page, file)
    page.wait_for_function(
        "before => !before.isConnected && document.querySelector('.run').dataset.state !== 'waiting'",
        arg=before,
    )
