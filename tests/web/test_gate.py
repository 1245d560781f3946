"""What the real server answers to visitors who mean harm, and to other sites: a sentence, no 5xx, no
traceback and no secret; and the next visitor is served. And what it frees again. attacks.py has the table."""

import json
import math
import random
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from urllib.parse import urlsplit

import gradio as gr
import httpx
import pytest

import specdemo.ui.runs.limits
from specdemo.ui.runs.limits import HOSTED, LOCAL
from specdemo.ui.view.feed import MEASUREMENT_KINDS
from tests.web.attacks import ASK, ATTACKS, CALL, FILE, JSON, ONCE, Site
from tests.web.conftest import HOSTILE, ROOT, tiny_pair
from tests.web.server import Server, controls_of, served_here, watched

pytestmark = pytest.mark.slow
TOKEN = "hf_thisTokenIsNobodysBusiness"
WRONG = (
    *(None, True, 0, -1, 10**400, 0.5, math.nan, [math.inf], "", "x", "NaN", "\ud800", "\0", "é" * 5000),
    *([], [[]], {}, [None], {"__type__": "update", "value": 1}, FILE, {"url": "http://localhost:1/x"}),
    *HOSTILE,
)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_TOKEN", TOKEN)
        folder = tmp_path_factory.mktemp("attack")
        with watched(folder, *tiny_pair(tmp_path_factory.mktemp("pair"))) as server:
            yield server


CLOSED = "closed"


class Attack:
    """Sends requests, and keeps what must not be in an answer."""

    def __init__(self, server: Server) -> None:
        self.server, self.statuses, self.wrong = server, Counter(), []
        folders = (str(ROOT), "site-packages", f"{tempfile.gettempdir()}/gradio", "/home/")
        self.secrets = (TOKEN, "Traceback (", *folders, "root:", "HOSTNAME=")

    def send(self, client: httpx.Client, method: str, path: str, **request) -> httpx.Response:
        try:
            answer = client.request(method, f"{self.server.url}{path}", **request)
        except (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError):
            assert len(request.get("content", b"")) > 2**20, "it may close what sends it far too much"
            answer = httpx.Response(400, text=CLOSED)
        self.statuses[answer.status_code] += 1
        told = [secret for secret in self.secrets if secret in answer.text and secret not in path]
        if answer.status_code >= 500 or told:
            self.wrong.append((answer.status_code, told, method, path, str(request)[:300], answer.text[:300]))
        return answer

    def held(self) -> None:
        """Nothing has gone wrong, and the server goes on."""
        print(f"{self.statuses.total()} requests, {dict(self.statuses.most_common())}")
        assert self.wrong == []
        log = self.server.log()
        assert "Traceback" not in log and TOKEN not in log, log[:3000]
        assert "event: complete" in self.server.run()
        assert httpx.get(f"{self.server.url}/health").json()["status"] == "ok"


@pytest.mark.parametrize("attacks", ATTACKS)
def test_it_is_refused_in_a_sentence(server, attacks):
    attack, calls = Attack(server), httpx.get(f"{server.url}/config").json()["dependencies"]
    (pairs,) = (one["id"] for one in calls if one["api_name"] == "pairs")
    site = Site(server.url.removeprefix("http://"), pairs, controls_of(server.url))
    with httpx.Client(timeout=120) as client:
        for one in attacks(site):
            what = {"content": one.content, "headers": one.headers}
            answer = attack.send(client, one.method, one.path, **what)
            case = one.method, one.path, one.content[:100], one.headers, answer.text[:300]
            if answer.text == CLOSED:
                continue
            assert answer.status_code == one.status and one.named in answer.text, case
            assert answer.headers["X-Content-Type-Options"] == "nosniff", case
            assert "access-control-allow-origin" not in answer.headers, case
            if one.status >= 400 and one.named:
                sentence = answer.json()["detail"]
                assert len(sentence.split(". ")) == 1 and sentence.endswith("."), case
    attack.held()


def test_the_page_itself_may_do_all_of_it_and_half_a_surrogate_pair_is_refused(server):
    own = {"Origin": server.url}
    assert httpx.get(server.url, headers=own).status_code == 200
    assert httpx.post(f"{server.url}{CALL}", json=ONCE, headers=own).status_code == 200
    assert httpx.get(server.url.replace("127.0.0.1", "localhost")).status_code == 200
    half = {"content": '{"prompt": "half \\ud800"}', "headers": JSON}  # gradio_client cannot send one
    event = httpx.post(f"{server.url}{CALL}", **half).json()["event_id"]
    answer = httpx.get(f"{server.url}{CALL}/{event}", timeout=60).text
    assert "event: error" in answer and "prompt must be Unicode text" in answer


ASKED = {"run": "first", "prompts": "this", "gamma": 3, "stop": 1, "round": 0, "seed": 7, "works": "chat"}
ASKED |= dict.fromkeys(("ids", "guess", "game", "hall", "trial"), "") | {"query": "gamma=3&run=1"}
ARGUMENTS = {"gamma": 4, "temperature": 0.5, "stop": [], "seed": 1, "chat": False, "top_k": 0}
ARGUMENTS |= {"system": None, "pair": "target", "ignore_eos": False, "alternatives": 2}


def mutated(url: str, count: int) -> list[tuple[str, dict]]:
    """Paths and bodies: what a page asks for and calls of the API, with a thing or two wrong."""
    dice, controls = random.Random(21), controls_of(url) | {"max_new_tokens": 1}

    def spoil(part: dict, how_often: float) -> None:
        if dice.random() < how_often:
            part[dice.choice([*part, "foo"])] = dice.choice(WRONG)

    def page() -> tuple[str, dict]:
        held, session = {**controls}, f"{dice.random()}"[2:]
        kinds = ("run", "reply", "link", "controls", "hints", *MEASUREMENT_KINDS)
        asked = ASKED | {"kind": dice.choice(kinds)}
        spoil(dice.choice((held, asked)), 0.8)
        body = {"session": session, "controls": held, "asked": asked}
        spoil(body, 0.2)
        return ASK, body

    def call() -> tuple[str, dict]:
        given = ONCE | dict(dice.sample(sorted(ARGUMENTS.items()), 5))
        spoil(given, 0.7)
        spoil(given, 0.3)
        return CALL, given

    return [kind() for kind in dice.choices((page, call), (2, 1), k=count)]


@pytest.mark.parametrize("count", [120, pytest.param(3_000, marks=pytest.mark.long)])
def test_right_bodies_with_something_wrong(server, count):
    attack, outcomes = Attack(server), Counter()

    def send(some: list[tuple[str, dict]]) -> None:
        with httpx.Client(timeout=120) as client:
            for path, body in some:
                answer = attack.send(client, "POST", path, content=json.dumps(body).encode(), headers=JSON)
                outcomes[path, answer.status_code] += 1
                if answer.status_code != 200:
                    is_told = path == ASK or {"detail", "error"} & {*answer.json()}
                    assert is_told or answer.status_code == 429, answer.text
                elif path == CALL:  # what is accepted is read to its end
                    attack.send(client, "GET", f"/gradio_api/call/generate/{answer.json()['event_id']}")
                elif name := answer.json().get("follow") or answer.json().get("measure"):
                    attack.send(client, "POST", f"{ASK}/{name}/stop")
                    assert '"ended": true' in attack.send(client, "GET", f"{ASK}/{name}").text

    made = mutated(server.url, count)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(send, [made[at::4] for at in range(4)]))
    attack.held()
    for path in (ASK, CALL):  # many get past the parser, and many do not
        of_path = sum(number for (one, _), number in outcomes.items() if one == path)
        assert of_path / 20 < outcomes[path, 200] < of_path * 19 / 20, outcomes


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """Its address and the page itself, which Gradio numbers as the second one of this process. It starts
    though a proxy for other addresses is set, and though it answers slowly at first, as on a busy machine:
    Gradio would ask for the page and give up after 3 s."""
    with gr.Blocks():
        gr.Textbox()
    limits = replace(HOSTED, reader_seconds=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gradio.networking.url_ok", lambda url: False)
        for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY"):
            patch.setenv(name, "http://127.0.0.1:9")
        for name in ("NO_PROXY", "no_proxy"):
            patch.delenv(name, raising=False)
        with served_here(tmp_path_factory.mktemp("here"), limits) as (url, demo):
            patch.undo()
            yield url, demo


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_server_tells_that_it_works_and_every_answer_has_its_headers(server):
    health = httpx.get(f"{server.url}/health")
    assert health.status_code == 200 and health.json().keys() == {"status", "busy", "waiting"}
    for path in ("/", "/health", "/nothing", "/gradio_api/queue/data?session_hash=nobody"):
        headers = httpx.get(f"{server.url}{path}").headers
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "same-origin"
        assert headers["Content-Security-Policy"].startswith("frame-ancestors 'self' ")


def never_drop() -> None:
    """A request that nobody reads keeps its place, however long a busy machine takes for the flood."""
    specdemo.ui.runs.limits.LOCAL = replace(LOCAL, listen_seconds=3_600)


def flood(url: str, requests: int) -> Counter:
    """The statuses of so many requests whose answers nobody reads."""

    def ask(count: int) -> Counter:
        with httpx.Client(timeout=120) as client:
            address = f"{url}/gradio_api/call/v2/pairs"
            others = [{"X-Forwarded-For": f"8.8.{one // 250}.{one % 250}"} for one in range(count)]
            return Counter(client.post(address, json={}, headers=one).status_code for one in others)

    with ThreadPoolExecutor(8) as pool:
        return sum(pool.map(ask, [requests // 8] * 8), Counter())


def modest(url: str, ends: Future) -> list[tuple[int, str]]:
    """What a second visitor, who reads each answer, gets meanwhile and once more at the end: statuses and
    streams. It has another address on this machine."""
    got, is_over = [], False
    with httpx.Client(transport=httpx.HTTPTransport(local_address="127.0.0.2"), timeout=120) as client:
        while not is_over:
            is_over = ends.done()
            asked = client.post(f"{url}/gradio_api/call/v2/pairs", json={})
            event = asked.json().get("event_id", "none")
            got.append((asked.status_code, client.get(f"{url}/gradio_api/call/pairs/{event}").text))
    return got


@pytest.mark.skipif(sys.platform != "linux", reason="it reads the process's memory from /proc")
@pytest.mark.parametrize("requests", [400, pytest.param(20_000, marks=pytest.mark.long)])
def test_a_flood_of_requests_that_nobody_reads_is_turned_away(tmp_path, requests):
    """Another visitor is answered meanwhile."""
    with watched(tmp_path, *tiny_pair(tmp_path), change=never_drop) as server:
        before = server.memory()
        with ThreadPoolExecutor(1) as pool:
            flooding = pool.submit(flood, server.url, requests)
            others = modest(server.url, flooding)
            statuses = flooding.result()
        more = server.memory() - before
        print(f"{dict(statuses)}, {more:.0f} MiB more; {len(others)} of another one")
        assert statuses.keys() == {200, 429} and statuses.total() == requests
        assert statuses[200] >= LOCAL.uncollected_of_address  # the oldest go for others after a while
        assert [one for one in others if one[0] != 200 or "event: complete" not in one[1]] == []
        assert httpx.get(f"{server.url}/health").json()["status"] == "ok"
        assert more < (40 if requests == 400 else 400) and "Traceback" not in server.log()


def test_what_is_kept_for_a_reader_that_has_stopped_reading_is_freed(here):
    url, demo = here
    for listening in demo.server.servers:
        for sock in listening.sockets:  # connections take it from here: some systems buffer a whole run
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    asked = {"prompt": "Once", "max_new_tokens": 1_000, "alternatives": 10, "ignore_eos": True}
    event = httpx.post(f"{url}{CALL}", json=asked).json()["event_id"]
    with socket.socket() as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.connect(("127.0.0.1", urlsplit(url).port))
        reader.sendall(f"GET /gradio_api/call/generate/{event} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        kept = demo.calls.calls
        wait_until(lambda: event in kept and kept[event].messages and kept[event].messages.full())
        wait_until(lambda: event not in kept)
