"""A chat on the page: a reply is the next turn of the conversation, and earlier turns open again with their
rounds."""

import json
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.models.test_conversations import CHAT
from tests.web.conftest import serving, tiny_pair
from tests.web.screen import (
    IN_TEXT,
    box,
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

HOW = "chat=true&max_new_tokens=12&temperature=0&ignore_eos=true"


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


def turns(page) -> list[str]:
    return page.locator("[data-testid=turns] li").all_text_contents()


def test_a_reply_continues_the_conversation_and_earlier_turns_open_again(visit, chat, tmp_path):
    page = visit(f"{chat}/?prompt=the+cat&{HOW}&run=1", still=True)
    wait_for_state(page, "ended")
    first = saved(page)
    assert first.prompt == "the cat" and turns(page) == []
    reply(page, "and then")
    second = saved(page)
    said = [("user", "the cat"), ("assistant", first.text), ("user", "and then")]
    assert [(one.role, one.content) for one in second.messages] == said
    assert on_stage(page) == recorded(second) and joined(tokens(page), *IN_TEXT) == second.text
    assert turns(page) == [f"the cat → {first.text}"]
    reply(page, "at last")
    third = saved(page)
    assert len(third.messages) == 5 and third.messages[:3] == second.messages
    assert turns(page) == [f"the cat → {first.text}", f"and then → {second.text}"]
    # An earlier turn, with its rounds, and back.
    page.locator("[data-testid=turns] button").first.click()
    page.locator('[data-testid=turns] [aria-current="true"]').wait_for()
    assert on_stage(page) == recorded(first) and saved(page).output_ids == first.output_ids
    page.get_by_role("button", name="Back to the latest turn").click()
    page.locator('[data-testid=turns] [aria-current="true"]').wait_for(state="detached")
    assert on_stage(page) == recorded(third) and len(turns(page)) == 2
    # Its link makes the same turn again, with the conversation before it.
    query = parse_qs(urlsplit(page.url).query)
    assert len(json.loads(query["messages"][0])) == 4 and query["prompt"] == ["at last"]
    again = visit(page.url, still=True)
    wait_for_state(again, "ended")
    assert saved(again).messages == third.messages
    assert turns(again) == turns(page) and not again.locator("[data-testid=turns] button").count()
    # So does its trace, which can be replied to.
    third.save(tmp_path / "third.json")
    open_trace(again, tmp_path / "third.json")
    wait_for_state(again, "recorded")
    assert box(again, "Prompt").input_value() == "at last" and len(turns(again)) == 2
    reply(again, "the end")
    fourth = saved(again)
    assert len(fourth.messages) == 7 and fourth.messages[5].content == third.text
    # A run that is no chat cannot be replied to.
    unfold(again, "Chat")
    again.get_by_label("Chat template").uncheck()
    run(again, "the cat")
    button = again.get_by_role("button", name="Reply")
    assert not button.is_visible() and turns(again) == []
    again.evaluate("document.querySelector('#reply').hidden = false")
    button.click()
    refused = "There is no conversation to reply to: run a prompt with the chat template first."
    assert notice(again, "error") == refused
