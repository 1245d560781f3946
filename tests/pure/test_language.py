"""In which language a visitor is answered, and that the answers are in it."""

import asyncio

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from specdemo.ui.front.language import Speaking, language_asked
from specdemo.ui.page.alone import one_file
from specdemo.ui.runs.board import Board, Followed, recorded_run
from specdemo.ui.runs.limits import LOCAL
from specdemo.ui.runs.queue import RunQueue
from specdemo.ui.runs.routes import RUNS, following_routes
from specdemo.ui.view.kept import opened
from specdemo.words.catalogue import LANGUAGES, spoken
from tests.pure.test_feed import ROUNDS, trace

PAGE = "http://localhost:7860/"


@pytest.mark.parametrize(
    ("query", "referer", "accepted", "tag"),
    [
        ("", "", "", "en"),
        ("lang=de", "", "", "de"),
        ("prompt=x&lang=en", f"{PAGE}?lang=de", "de", "en"),
        ("", f"{PAGE}?gamma=4&lang=de#top", "en", "de"),
        ("lang=fr", f"{PAGE}?lang=de", "", "de"),
        ("", "http://[::1", "de", "de"),
        ("lang=%ff%00", "\x00?lang=", "de", "de"),
        ("", "", "fr, de-CH;q=0.7, en;q=0.3", "de"),
        ("", "", ";;,,q=1;de, d", "en"),
        ("a&" * 20_000, "", "de," * 5_000, "de"),
    ],
)
def test_the_language_is_the_addresss_then_the_browsers_then_english(query, referer, accepted, tag):
    assert language_asked(query, referer, accepted) == tag


@pytest.mark.parametrize(
    ("path", "tag"), [("/", "de"), ("/specdemo/traces", "de"), ("/gradio_api/mcp/", "en")]
)
def test_a_page_is_answered_in_its_language_and_other_programs_in_english(path, tag):
    async def answer(request: Request) -> PlainTextResponse:
        return PlainTextResponse(f"{spoken()} {await asyncio.to_thread(spoken)}")

    app = Starlette(routes=[Route(path, answer)], middleware=[Middleware(Speaking)])
    with TestClient(app) as client:
        assert client.get(path, headers=asking_for("de")).text == f"{tag} {tag}"
        english = client.get(path, headers=asking_for("de") | {"Referer": f"{PAGE}?lang=en"})
        assert english.text == "en en" and spoken() == "en"


def asking_for(tag: str) -> dict[str, str]:
    return {"Accept-Language": tag}


def routes(*runs: Followed) -> TestClient:
    record = trace(*ROUNDS, finish="length")
    board = Board(LOCAL, recorded_run(LOCAL, record, "first"))
    for run in runs:
        board.put(run)
    app = Starlette(routes=following_routes(board, RunQueue(), one_file), middleware=[Middleware(Speaking)])
    return TestClient(app)


def opened_trace() -> Followed:
    kept = opened(trace(*ROUNDS).to_json().encode(), "x", lambda trace: (None, {}))
    return Followed(LOCAL, name="x", kept=kept)


@pytest.mark.parametrize("name", ["first", "x"])
def test_two_readers_of_one_run_are_each_told_in_their_own_language(name):
    with routes(opened_trace()) as client:
        english, german, again = (
            client.get(f"{RUNS}/{name}/whole", headers=asking_for(tag)).json() for tag in ("en", "de", "en")
        )
        gone = {client.get(f"{RUNS}/other/whole", headers=asking_for(tag)).text for tag in LANGUAGES}
    assert english == again and len(gone) == 2
    for worded in ("whose", "verdict", "setting", "outcome", "numbers"):
        told = [message["update"].pop(worded, None) for message in (english, german)]
        assert told[0] != told[1] or worded not in ("whose", "setting")
    for message in (english, german):  # all else is the same
        message.pop("notice")
    assert english == german and len(english["update"]["rounds"]) == len(ROUNDS)
