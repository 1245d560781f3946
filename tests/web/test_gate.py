"""What the real server answers to visitors who mean harm, and to other sites: a sentence, no 5xx, no
traceback and no secret; and the next visitor is served. And what it frees again. tests/pure has the gate's
rules one by one."""

import json
import math
import random
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from urllib.parse import quote, urlsplit

import gradio as gr
import httpx
import pytest

import specdemo.ui.runs.limits
from specdemo.ui.runs.limits import HOSTED, LOCAL
from specdemo.ui.view.feed import MEASUREMENT_KINDS
from tests.web.conftest import HOSTILE, RECORDED, ROOT, tiny_pair
from tests.web.server import Server, controls_of, served_here, watched

pytestmark = pytest.mark.slow
TOKEN = "hf_thisTokenIsNobodysBusiness"
CALL, MCP, TRACES = "/gradio_api/call/v2/generate", "/gradio_api/mcp/", "/specdemo/traces?session_hash=v"
JOIN, ASK = "/gradio_api/queue/join", "/specdemo/runs"
JSON = {"Content-Type": "application/json"}
TOOLS = JSON | {"Accept": "application/json, text/event-stream"}
FOREIGN = ({"Host": "evil.example:7860"}, {"Origin": "https://evil.example"})
PREFLIGHT = {"Access-Control-Request-Method": "POST"}
FILE = {"path": "/etc/passwd", "meta": {"_type": "gradio.FileData"}}
ONCE = {"prompt": "Once", "max_new_tokens": 1}
WRONG = (
    *(None, True, 0, -1, 10**400, 0.5, math.nan, [math.inf], "", "x", "NaN", "\ud800", "\0", "é" * 5000),
    *([], [[]], {}, [None], {"__type__": "update", "value": 1}, FILE, {"url": "http://localhost:1/x"}),
    *HOSTILE,
)
Request = tuple[str, str, dict]  # method, path, and what else httpx takes


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_TOKEN", TOKEN)
        folder = tmp_path_factory.mktemp("attack")
        with watched(folder, *tiny_pair(tmp_path_factory.mktemp("pair"))) as server:
            yield server


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
            answer = httpx.Response(400, json={"detail": "closed"})
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


def from_another_site() -> Iterator[Request]:
    for headers in FOREIGN:
        for method, path in (("GET", "/"), ("POST", CALL), ("POST", MCP), ("POST", ASK), ("GET", "/health")):
            yield method, path, {"headers": headers, "json": ONCE}
        yield "OPTIONS", CALL, {"headers": headers | PREFLIGHT}


def bodies() -> Iterator[Request]:
    for path in (CALL, JOIN, MCP):
        for body in (b"\xff", b"[" * 50_000, b'{"prompt":' * 20_000, b"{", b"null"):
            yield "POST", path, {"content": body, "headers": TOOLS}
    yield "POST", CALL, {"content": b'{"prompt": "' + b"p" * 3_000_000 + b'"}', "headers": JSON}
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": 5}}
    for wrong in ([call], call | {"params": {"arguments": FILE}}):
        yield "POST", MCP, {"content": json.dumps(wrong), "headers": TOOLS}


def traces() -> Iterator[Request]:
    whole = RECORDED.read_bytes()
    wrong = [whole[:-9], b"\xff" + whole, b'{"x": ' + b"[" * 10_000, whole.replace(b'"gamma":', b'"gamma":"')]
    for key in ("pair", "rounds"):
        wrong.append(json.dumps(json.loads(whole) | {key: FILE}).encode())
    for body in wrong:
        yield "POST", TRACES, {"content": body}


@pytest.mark.parametrize(
    ("requests", "statuses"),
    [(from_another_site, {403}), (bodies, {400, 413}), (traces, {200, 400, 413, 422})],
)
def test_it_is_refused_in_a_sentence(server, requests, statuses):
    attack = Attack(server)
    with httpx.Client(timeout=120) as client:
        for method, path, rest in requests():
            answer = attack.send(client, method, path, **rest)
            assert answer.status_code in statuses, (method, path, str(rest)[:200], answer.text[:300])
            assert "access-control-allow-origin" not in answer.headers
            told = answer.json()
            said = told.get("detail") or told.get("error") or told.get("wrong")
            assert said and (path == MCP or len(str(said).split(". ")) == 1), told
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


def test_paths_and_headers_lead_nowhere(server):
    """Nor to the files of the server; and Gradio works out its own address from the headers."""
    attack = Attack(server)
    bases = ("/assets/", "/static/", "/specdemo/", "/specdemo/runs/", "/gradio_api/file=", "/file=", "/")
    bases += ("/gradio_api/proxy=", "/gradio_api/custom_component/x/client/template/", "/config?deep_link=")
    climbs = ("", "../../../../", "..%2f" * 4, "%2e%2e/" * 4, "%252e%252e/", "%00", "file:///", "a" * 3000)
    hosts = ("a b", "[::1", "é", "x" * 5000, "http://evil", "1:99999999", "a@b")
    names = ("Host", "X-Forwarded-Host", "X-Forwarded-Proto", "Origin", "Cookie")
    with httpx.Client(timeout=120) as client:
        for base in bases:
            for climb in climbs:
                path = quote(f"{base}{climb}etc/passwd", safe="/%?=:&;$")
                assert attack.send(client, "GET", path).status_code != 200 or "?" in base, path
        for name in names:
            for host in hosts:
                answer = attack.send(client, "GET", "/config", headers=[(name, host.encode())])
                assert answer.status_code != 200 or "evil" not in answer.text
        for method in ("PUT", "DELETE", "TRACE", "FOO"):
            assert attack.send(client, method, "/").status_code >= 400
        upload = {"files": {"files": ("../../a", b"{}")}}
        attack.send(client, "POST", "/gradio_api/component_server", **upload)
    attack.held()


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
    limits = replace(HOSTED, listen_seconds=3, reader_seconds=3)
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


def test_an_answer_is_read_once_and_dropped_where_nobody_begins_to_read_it(here):
    pairs, demo = f"{here[0]}/gradio_api/call/v2/pairs", here[1]
    first, second = (httpx.post(pairs, json={}).json()["event_id"] for _ in range(2))
    assert "event: complete" in httpx.get(f"{pairs}/{first}").text
    wait_until(lambda: second not in demo.calls.calls)
    for event in (first, second):
        gone = httpx.get(f"{pairs}/{event}")
        assert gone.status_code == 404 and "has been read or dropped" in gone.json()["detail"]


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
