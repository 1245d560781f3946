"""In which language a visitor is answered, and that the answers are in it."""

import asyncio

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from specdemo.events import DRAFTER_KINDS, METHODS, RULES, Params
from specdemo.events.trace import Trace
from specdemo.events.verdict import verdict
from specdemo.ui.front.language import Speaking, language_asked
from specdemo.ui.page.alone import one_file
from specdemo.ui.runs.board import Board, FollowedRun, opened_run, recorded_run
from specdemo.ui.runs.limits import LOCAL
from specdemo.ui.runs.opening import message_of, opened
from specdemo.ui.runs.queue import RunQueue
from specdemo.ui.runs.routes import RUNS, following_routes
from specdemo.ui.runs.run import Waiting
from specdemo.ui.view.choices import words_of_row
from specdemo.ui.view.feed import KeptRun, notice
from specdemo.ui.view.settings import CONTROL_NAMES, SAMPLERS, WITHOUT_USUAL
from specdemo.ui.view.texts import unfinished, whose
from specdemo.words.catalogue import LANGUAGES, catalogue, speaking, spoken
from tests.pure.test_feed import ROUNDS, trace
from tests.pure.test_following import messages

PAGE = "http://localhost:7860/"


@pytest.mark.parametrize(
    ("query", "referer", "accepted", "tag"),
    [
        ("", "", "", "en"),
        ("lang=de", "", "", "de"),
        ("prompt=x&lang=en", f"{PAGE}?lang=de", "de", "en"),
        ("", f"{PAGE}?gamma=4&lang=de#top", "en", "de"),
        ("lang=fr", f"{PAGE}?lang=de", "", "de"),
        ("lang=en&lang=de", "", "", "en"),  # URLSearchParams.get takes the first
        ("", "http://[::1", "de", "de"),
        ("lang=%ff%00", "\x00?lang=", "de", "de"),
        ("", "", "fr, de-CH;q=0.7, en;q=0.3", "de"),
        ("", "", "de;q=0, en", "en"),
        ("", "", ";;,,q=1;de", "en"),
        ("a&" * 20_000, "", "de," * 5_000, "de"),
    ],
)
def test_the_language_is_the_addresss_then_the_browsers_then_english(query, referer, accepted, tag):
    assert language_asked(query, referer, accepted) == tag


@pytest.mark.parametrize(
    ("path", "tag"),
    [
        *[(path, "de") for path in ("/", "/specdemo/traces", "/specdemo/halls/0", "/gradio_api/run/predict")],
        ("/gradio_api/mcp/", "en"),
    ],
)
def test_a_page_is_answered_in_its_language_and_other_programs_in_english(path, tag):
    async def answer(request: Request) -> PlainTextResponse:
        return PlainTextResponse(f"{spoken()} {await asyncio.to_thread(spoken)}")

    app = Starlette(routes=[Route(path, answer)], middleware=[Middleware(Speaking)])
    headers = {"Accept-Language": "de"}
    with TestClient(app) as client:
        assert client.get(path, headers=headers).text == f"{tag} {tag}"
        english = client.get(path, headers=headers | {"Referer": f"{PAGE}?lang=en"})
        assert english.text == "en en" and spoken() == "en"


def asking_for(tag: str) -> dict[str, str]:
    return {"Accept-Language": tag}


def routes(*runs: FollowedRun) -> TestClient:
    record = trace(*ROUNDS, finish="length")
    board = Board(LOCAL, recorded_run(LOCAL, record, "first"))
    for run in runs:
        board.put(run)
    app = Starlette(routes=following_routes(board, RunQueue(), one_file), middleware=[Middleware(Speaking)])
    return TestClient(app)


def test_two_readers_of_one_run_are_each_told_in_their_own_language():
    record = trace(*ROUNDS, finish="length")
    with routes() as client:
        english = client.get(f"{RUNS}/first/whole", headers=asking_for("en")).json()
        german = client.get(f"{RUNS}/first/whole", headers=asking_for("de")).json()
        again = client.get(f"{RUNS}/first/whole", headers=asking_for("en")).json()
        gone = [client.get(f"{RUNS}/other/whole", headers=asking_for(tag)).text for tag in ("en", "de")]
    assert english == again
    told = verdict(record.stats, "length", ROUNDS, record.params)
    assert english["update"]["verdict"] == told.text
    assert english["update"]["whose"].startswith("Recorded run: ")
    assert german["update"]["whose"].startswith("Aufgezeichneter Lauf: ")
    assert "Zielmodell" in german["update"]["verdict"]
    assert german["update"]["setting"]["rule"]["meaning"] == "Annahmewahrscheinlichkeit"
    assert gone[0].startswith("This run is no longer kept") and gone[1].startswith("Dieser Lauf")
    for message in (english, german):  # all else is the same
        for worded in ("whose", "verdict", "setting", "outcome", "numbers"):
            message["update"].pop(worded)
        message.pop("notice")
    assert english == german and len(english["update"]["rounds"]) == len(ROUNDS)


def test_a_reader_of_a_run_that_goes_on_is_told_in_his_own_language():
    async def play() -> dict[str, list[dict]]:
        run = FollowedRun(LOCAL, Params(), lambda trace: "")
        seen = {}

        async def read(tag: str) -> None:
            with speaking(tag):
                seen[tag] = await messages(run)

        async def reports():
            yield Waiting("run.line", {"ahead": 2}, None)
            await asyncio.sleep(0.05)

        readers = [asyncio.create_task(read(tag)) for tag in LANGUAGES]
        with speaking("de"):  # of who has asked for it
            run.begin(reports())
        await asyncio.gather(*readers)
        return seen

    seen = asyncio.run(asyncio.wait_for(play(), 10))
    assert seen["en"][0]["notice"]["text"] == "You are number 2 in line …"
    assert seen["de"][0]["notice"]["text"].startswith("Sie sind Nummer 2")


def test_where_nothing_has_words_a_kept_run_is_the_same_in_each_language():
    assert KeptRun(b"m", b"t", "x.json", None).message_in("de") == b"m"


def test_a_trace_that_is_opened_is_told_in_both_languages():
    one = opened(trace(*ROUNDS).to_json().encode())
    assert isinstance(one.head, Trace)
    message, starts = message_of(
        one, lambda: {"name": "x", "notice": notice("recorded", unfinished(one.head))}, None
    )
    kept = KeptRun(message, one.file, "x.json", None, starts=starts)
    with routes(opened_run(LOCAL, kept, "x", "")) as client:
        told = {tag: client.get(f"{RUNS}/x/whole", headers=asking_for(tag)).json() for tag in LANGUAGES}
    assert told["en"]["update"]["whose"] == whose(one.head, recorded=True)
    assert told["de"]["update"]["whose"].startswith("Aufgezeichneter Lauf: ")
    assert told["de"]["notice"]["text"] != told["en"]["notice"]["text"]
    assert told["de"]["update"]["rounds"] == told["en"]["update"]["rounds"] != []
    assert told["de"]["update"]["prompt"] == told["en"]["update"]["prompt"]


def test_the_english_words_are_those_of_the_tables():
    english = catalogue("en")
    of_rule = ("name", "label", "meaning", "accepted", "recorded", "about")
    for name, table, fields in (
        ("methods", METHODS, ("label", "sentence")),
        ("kinds", DRAFTER_KINDS, ("label", "sentence")),
        ("rules", RULES, of_rule),
    ):
        said = english["choices"][name]
        assert said.keys() == {key for key in table if "+" not in key}
        for key in said:
            one = table[key]
            assert said[key].items() >= {field: getattr(one, field) for field in fields}.items()


def test_every_control_and_sampler_has_its_words():
    for tag in LANGUAGES:
        settings = catalogue(tag)["settings"]
        assert set(settings["controls"]) == set(CONTROL_NAMES) and set(settings["samplers"]) == set(SAMPLERS)
        without = {name for name, words in settings["controls"].items() if "usual" not in words}
        assert without == set(WITHOUT_USUAL)


def test_a_chain_is_said_by_the_words_of_its_two():
    assert words_of_row("methods", "lookup+model", "label") == METHODS["lookup+model"].label
    with speaking("de"):
        assert (
            words_of_row("methods", "suffix+model", "menu")
            == "Suffixbaum, sonst das Entwurfsmodell des Paars"
        )
