"""What the gate bounds by itself: bodies and views of the page. And how it answers: in which language, and
who may show that in a frame. tests/web/attacks.py has what is let in."""

import asyncio

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from specdemo.ui.front.checks import NotLetIn
from specdemo.ui.front.gate import Bodies, Gate, language_asked
from specdemo.ui.page.alone import one_file
from specdemo.ui.runs.board import Board, Followed, recorded_run
from specdemo.ui.runs.limits import HOSTED, LOCAL, Limits
from specdemo.ui.runs.queue import RunQueue
from specdemo.ui.runs.routes import RUNS, following_routes
from specdemo.ui.view.kept import opened
from specdemo.words.catalogue import LANGUAGES, spoken
from tests.played import played
from tests.pure.test_feed import ROUNDS, trace

MOST, TOGETHER = 1_000, 4
VIEWS = 5 * LOCAL.views_made
PAGE = "http://localhost:7860/"


async def read(reader: Bodies, address: str, *parts: bytes | None, announced: int = 0) -> bytes:
    """A body that comes in these parts. None: the next one never comes."""
    messages = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    messages[-1]["more_body"] = False

    async def receive():
        if messages[0]["body"] is None:
            await asyncio.Event().wait()
        return messages.pop(0)

    scope = {"type": "http", "headers": [(b"content-length", b"%d" % announced)]}
    async with reader.held(scope, receive, address) as body:
        await asyncio.sleep(0)
        return body


@played
async def test_a_body_is_limited_by_what_it_announces_what_comes_and_its_time():
    reader = Bodies(MOST, TOGETHER, 0.05)
    assert await read(reader, "a", b"x" * 999, b"y", announced=MOST) == b"x" * 999 + b"y"
    for wrong, announced, status in (
        ([b""], MOST + 1, 413),
        ([b"x" * 600] * 2, 0, 413),
        ([b"x", None], 0, 408),
    ):
        with pytest.raises(NotLetIn) as refused:
            await read(reader, "a", *wrong, announced=announced)
        assert refused.value.status == status and not reader.arriving
    assert refused.value.headers == {"connection": "close"}


@played
async def test_unfinished_bodies_are_bounded_together_and_keep_nobody_else_out():
    reader = Bodies(MOST, TOGETHER, 30)
    begun = [read(reader, "a", b"x" * 900, None) for _ in range(2 * TOGETHER)]
    unfinished = [asyncio.create_task(one) for one in begun]
    while not any(task.done() for task in unfinished):
        await asyncio.sleep(0)
    assert reader.arriving["a"] <= TOGETHER * MOST
    for address in ("b", "c"):
        assert await read(reader, address, b"y" * 500, b"y" * 400)
    for task in unfinished:
        task.cancel()
    ended = await asyncio.gather(*unfinished, return_exceptions=True)
    refused = [error for error in ended if isinstance(error, NotLetIn)]
    assert refused and all((one.status, one.headers) == (429, {"retry-after": "2"}) for one in refused)
    assert not reader.arriving


@played
async def test_few_views_are_made_at_once_and_a_reader_who_stops_holds_nobody_up():
    making, most, answered = 0, 0, 0

    async def app(scope, receive, send):
        nonlocal making, most
        making += 1
        most = max(most, making)
        await asyncio.sleep(0.001)
        making -= 1
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message):
        nonlocal answered
        answered += 1
        await asyncio.Event().wait()  # it takes nothing more

    gate = Gate(app, LOCAL)
    scope = {"type": "http", "method": "GET", "path": "/config", "headers": [], "query_string": b""}
    tasks = [asyncio.create_task(gate({**scope}, None, send)) for _ in range(VIEWS)]
    while answered < VIEWS:
        await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert most == LOCAL.views_made


def behind_the_gate(limits: Limits, *routes: Route) -> TestClient:
    return TestClient(Starlette(routes=[*routes], middleware=[Middleware(Gate, limits)]))


def test_who_may_show_the_page_in_a_frame():
    def policy(limits: Limits, path: str = "/") -> str:
        with behind_the_gate(limits) as client:
            return client.get(path).headers["content-security-policy"]

    assert policy(HOSTED).startswith("frame-ancestors 'self' https://huggingface.co ")
    assert "https://*.hf.space" in policy(HOSTED) and "localhost" not in policy(HOSTED)
    assert "http://localhost:*" in policy(LOCAL) and "hf.space" not in policy(LOCAL)
    for reduced in ("/?prompt=a&frame=1", "/embed?prompt=a"):
        assert policy(HOSTED, reduced) == "frame-ancestors *" and policy(LOCAL, reduced) == policy(LOCAL)
    for whole in ("/?frame=0", "/?prompt=frame=1", "/config?frames=1"):
        assert policy(HOSTED, whole) == policy(HOSTED)


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
    headers = [(b"referer", referer.encode()), (b"accept-language", accepted.encode())]
    assert language_asked({"type": "http", "query_string": query.encode(), "headers": headers}) == tag


@pytest.mark.parametrize(
    ("path", "tag"), [("/specdemo/traces", "de"), ("/gradio_api/cancel", "en"), ("/gradio_api/mcp/", "en")]
)
def test_a_page_is_answered_in_its_language_and_other_programs_in_english(path, tag):
    async def answer(request: Request) -> PlainTextResponse:
        return PlainTextResponse(f"{spoken()} {await asyncio.to_thread(spoken)}")

    with behind_the_gate(LOCAL, Route(path, answer, methods=["GET", "POST"])) as client:
        assert client.post(path, headers=asking_for("de")).text == f"{tag} {tag}"
        english = client.post(path, headers=asking_for("de") | {"Referer": f"{PAGE}?lang=en"})
        assert english.text == "en en" and spoken() == "en"


def asking_for(tag: str) -> dict[str, str]:
    return {"Accept-Language": tag}


def routes(*runs: Followed) -> TestClient:
    record = trace(*ROUNDS, finish="length")
    board = Board(LOCAL, recorded_run(LOCAL, record, "first"))
    for run in runs:
        board.put(run)
    return behind_the_gate(LOCAL, *following_routes(board, RunQueue(), one_file))


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
