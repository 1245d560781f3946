"""Visitors who mean harm: whatever they send, the answer is no 5xx, no traceback and no secret of the server,
and the next visitor is served. Seeded."""

import json
import random
import re
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import httpx
import pytest

from tests.web.conftest import HOSTILE, RECORDED, ROOT, tiny_pair
from tests.web.server import Server, watched

pytestmark = pytest.mark.slow
SEED = 21
PAYLOADS, FILES, TRACES, TOOL_MESSAGES = 2_000, 700, 180, 40
# The line sends one in so many.
SHARE = pytest.mark.parametrize("share", [20, pytest.param(1, marks=pytest.mark.long)])
JSON = {"Content-Type": "application/json"}
THREADS = 4
MOST_CLOSED = 0.03  # of an attack's requests, those whose connection the server closes
TOKEN = "hf_thisTokenIsNobodysBusiness"
WRONG = (
    *(None, True, False, 0, -1, 1, 7, 10**18, 10**400, 0.5, -1e308),
    *("", "x", "7", "NaN", "null", "\ud800", "\0", "é" * 5000),
    *([], [[]], {}, [None], ["x"] * 50, {"path": "/etc/passwd"}, {"__type__": "update", "value": 1}),
    *({"path": "/etc/passwd", "meta": {"_type": "gradio.FileData"}}, {"url": "http://localhost:1/x"}),
    *HOSTILE,
)
TEXTS = (*HOSTILE, "\u202e", "\ud800", "\0", "\x1b[2J", "👩‍👩‍👧", "%s%n", "{0.__class__}", "a" * 2_000)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_TOKEN", TOKEN)
        folder = tmp_path_factory.mktemp("attack")
        with watched(folder, *tiny_pair(tmp_path_factory.mktemp("pair"))) as server:
            yield server


def config_of(server: Server) -> dict:
    return httpx.get(f"{server.url}/config").json()


class Attack:
    """Sends requests, and keeps what must not be in an answer."""

    def __init__(self, server: Server) -> None:
        self.server, self.statuses, self.wrong = server, Counter(), []
        folders = (str(ROOT), "site-packages", f"{tempfile.gettempdir()}/gradio", "/home/")
        self.secrets = (TOKEN, "Traceback (", *folders, "root:", "say(f", "HOSTNAME=")

    def send(self, client: httpx.Client, method: str, path: str, **request) -> httpx.Response:
        try:
            answer = client.request(method, f"{self.server.url}{path}", **request)
        except (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError):
            # A server may close the connection on what is no HTTP, or while it is sent far too much.
            self.statuses["closed"] += 1
            return httpx.Response(400, json={"detail": "closed"})
        self.look_at(answer, method, path, request)
        return answer

    def look_at(self, answer: httpx.Response, method: str, path: str, request: dict) -> None:
        self.statuses[answer.status_code] += 1
        sent = json.dumps(request.get("json", ""), default=str) + path
        told = [secret for secret in self.secrets if secret in answer.text and secret not in sent]
        if answer.status_code >= 500 or told:
            self.wrong.append((answer.status_code, told, method, path, str(request)[:300], answer.text[:300]))

    def held(self, name: str) -> None:
        """Nothing has gone wrong, and the server goes on."""
        print(f"{name}: {self.statuses.total()} requests, {dict(self.statuses.most_common())}")
        assert self.wrong == []
        assert self.statuses["closed"] <= max(1, self.statuses.total() * MOST_CLOSED)
        log = self.server.log()
        assert "Traceback" not in log, log[log.index("Traceback") :][:3000]
        assert TOKEN not in log
        assert "event: complete" in self.server.run()
        health = httpx.get(f"{self.server.url}/health")
        assert health.status_code == 200 and health.json()["status"] == "ok"


def at_once(do, things) -> None:
    """In some threads, each with a client of its own."""

    def some(part) -> None:
        with httpx.Client(timeout=120) as client:
            for thing in part:
                do(client, thing)

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(some, [things[at::THREADS] for at in range(THREADS)]))


def payloads(config: dict, count: int) -> list[tuple[str, str, bytes]]:
    """Kinds, paths and bodies: right ones with one or more things wrong."""
    dice = random.Random(SEED)
    made: list[tuple[str, str, bytes]] = []
    events, names = config["dependencies"], [one["api_name"] for one in config["dependencies"]]
    values = {one["id"]: one["props"].get("value") for one in config["components"]}
    arguments = {"prompt": "Once", "gamma": 4, "temperature": 0.5, "stop": [], "seed": 1, "chat": False}
    arguments |= {"top_k": 0, "system": None, "pair": "target", "ignore_eos": False, "alternatives": 2}

    def wrong():
        return dice.choice(WRONG)

    def page_event() -> tuple[str, dict]:
        event = dice.choice(events)
        data = [values.get(number) for number in event["inputs"]]
        if data and dice.random() < 0.7:
            data[dice.randrange(len(data))] = wrong()
        if dice.random() < 0.2:
            data = dice.choice((data[1:], [*data, 1], wrong(), {"0": 1}))
        session = f"visitor{len(made)}" if dice.random() < 0.9 else wrong()
        body = {"data": data, "fn_index": event["id"], "session_hash": session, "trigger_id": 0}
        if dice.random() < 0.3:
            body[dice.choice(["trigger_id", "event_id", "batched", "simple_format", "event_data"])] = wrong()
        if dice.random() < 0.2:
            body[dice.choice(["fn_index", "session_hash", "data"])] = wrong()
        if dice.random() < 0.1:
            del body[dice.choice(["fn_index", "session_hash", "data"])]
        elif body.get("fn_index") == event["id"] and event["targets"] and dice.random() < 0.3:
            body |= {"event_data": wrong(), "trigger_id": event["targets"][0][0]}
        return dice.choice(("run/predict", "queue/join")), body

    def call() -> tuple[str, dict]:
        given = {"max_new_tokens": 1} | dict(dice.sample(sorted(arguments.items()), 6)) | {"prompt": "Once"}
        if dice.random() < 0.3:
            given |= {dice.choice(("prompt", "system")): "".join(dice.choices(TEXTS, k=2)), "stop": ["a"]}
        for _ in range(dice.randrange(3)):
            given[dice.choice([*arguments, "foo", "__class__", ""])] = wrong()
        others = [*names, "nothing", "predict", "v2", "a%2Fb"]
        name = "generate" if dice.random() < 0.8 else dice.choice(others)
        if dice.random() < 0.3:
            body = {"data": dice.choice((list(given.values()), [], wrong(), ["Once"] + [wrong()] * 16))}
            return f"call/{name}", body | ({"session_hash": wrong()} if dice.random() < 0.3 else {})
        return f"call/v2/{name}", given

    def control() -> tuple[str, dict]:
        body = {"event_id": "x", "session_hash": "visitor1", "fn_index": 1}
        body[dice.choice([*body])] = wrong()
        return dice.choice(("cancel", "reset", "run/beside", "run/example", "api/predict", "stream/x")), body

    def raw() -> bytes:
        deep = 10 ** dice.randrange(1, 6)
        return dice.choice(
            (
                *(b"", b"{", b"null", b"[]", b'"text"', b"\xff\xfe"),
                b'{"event_id": NaN, "session_hash": NaN, "fn_index": NaN, "data": NaN}',
                b'{"prompt": "x", "gamma": 1e999}',
                b'{"data": ' + b"[" * deep + b"]" * deep + b"}",
                b'{"data":' * deep,
                b'{"session_hash": "' + b"s" * deep + b'", "data": [], "fn_index": 1}',
                b'{"prompt": "' + b"p" * 3_000_000 + b'"}',
            )
        )

    while len(made) < count:
        kind = dice.choices((page_event, call, control), (5, 4, 1))[0]
        path, body = kind()
        is_raw = dice.random() < 0.1
        text = raw() if is_raw else json.dumps(body).encode()
        made.append(("raw" if is_raw else kind.__name__, f"/gradio_api/{path}", text))
    return made


@SHARE
def test_wrong_bodies(server, share):
    count = PAYLOADS // share
    attack, outcomes = Attack(server), Counter()

    def send(client: httpx.Client, one: tuple[str, str, bytes]) -> None:
        kind, path, body = one
        answer = attack.send(client, "POST", path, content=body, headers=JSON)
        outcomes[kind, answer.status_code] += 1
        if answer.status_code != 200:
            assert answer.status_code == 429 or {"detail", "error"} & {*answer.json()}, answer.text
        elif "/call/" in path:  # what is accepted is read to its end
            name = path.split("/")[-1]
            attack.send(client, "GET", f"/gradio_api/call/{name}/{answer.json()['event_id']}")
        elif path.endswith("join"):
            session = json.loads(body)["session_hash"]
            attack.send(client, "GET", f"/gradio_api/queue/data?session_hash={session}")

    at_once(send, payloads(config_of(server), count))
    print(sorted(outcomes.items()))
    attack.held("wrong bodies")
    for kind in ("page_event", "call"):  # most get past the parser
        made = sum(number for (one, _), number in outcomes.items() if one == kind)
        accepted = outcomes[kind, 200]
        assert made / 20 < accepted < made * 3 / 4, kind


Request = tuple[str, str, dict]  # method, path, and what else httpx takes


def paths(count: int) -> list[Request]:
    dice = random.Random(SEED)
    files = ("etc/passwd", "app.py", "proc/self/environ", str(ROOT / "app.py")[1:], "../app.py", ".env", "")
    bases = (
        *("/assets/", "/static/", "/specdemo/", "/specdemo/runs/", "/specdemo/runs/first/", "/svelte/"),
        *("/gradio_api/file=", "/gradio_api/file/", "/file=", "/gradio_api/proxy=", "/proxy=", "/custom/"),
        *("/gradio_api/custom_component/x/client/template/", "/", "//", "/monitoring/", "/pwa_icon/"),
        *("/gradio_api/stream/a/b/", "/gradio_api/heartbeat/", "/gradio_api/mcp/", "/gradio_api/vibe-code/"),
        *("/gradio_api/call/generate/", "/gradio_api/queue/data?session_hash="),
        *("/gradio_api/deep_link?session_hash=", "/gradio_api/upload_progress?upload_id="),
        *("/?page=", "/?deep_link=", "/config?page=", "/config?deep_link=", "/gradio_api/info?page="),
    )
    climbs = (
        *("", "/", "../", "../../../../", "..%2f" * 4, "%2e%2e/" * 4, "..%5c" * 4, "....//" * 3),
        *("%252e%252e/", "%00", "http://localhost:1/", "file:///", "\\\\host\\", "a" * 3000),
        *("%ff%fe", "~/", "%0d%0aX: y"),
    )
    ends = ("", "%00.js", "/", "?x=1", ";.js", "%20", "::$DATA")
    methods = ("GET", "GET", "GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "FOO")
    made = [
        (dice.choice(methods), quote(f"{base}{climb}{file}{dice.choice(ends)}", safe="/%?=:&;$"), {})
        for base in bases
        for climb in climbs
        for file in files
    ]
    endless = re.compile(r"/gradio_api/heartbeat/[\w-]{1,64}/?(\?.*)?")  # it goes on for as long as one reads
    made = [one for one in dice.sample(made, count) if not endless.fullmatch(one[1])]
    uploads = ("a.json", "../../a", "a" * 300, "a\0b", "<img src=x>.html")
    files = [{"files": {"files": (name, b"{}")}} for name in uploads]
    return [*made, *(("POST", "/gradio_api/component_server", file) for file in files)]


def traces(count: int) -> list[Request]:
    dice = random.Random(SEED)
    whole = RECORDED.read_bytes()
    tree = json.loads(whole)

    def cut() -> bytes:
        return whole[: dice.randrange(len(whole))]

    def flipped() -> bytes:
        bits = bytearray(whole)
        for _ in range(dice.randrange(1, 20)):
            bits[dice.randrange(len(bits))] ^= 1 << dice.randrange(8)
        return bytes(bits)

    def mistyped() -> bytes:
        copy = json.loads(whole)
        place = dice.choice([copy, copy["params"], copy["pair"], copy["stats"], dice.choice(copy["rounds"])])
        place[dice.choice([*place])] = dice.choice([one for one in WRONG if one != "\ud800"])
        return json.dumps(copy).encode()

    def deep() -> bytes:
        depth = 10 ** dice.randrange(2, 6)
        return json.dumps(tree | {"text": 0})[:-1].encode() + b', "x": ' + b"[" * depth + b"]" * depth + b"}"

    address = "/specdemo/traces?session_hash=visitor1"
    return [
        ("POST", address, {"content": dice.choice((cut, flipped, mistyped, deep))()}) for _ in range(count)
    ]


HOSTS = ("a b", "[::1", "é", "x" * 5000, "http://evil", "1:99999999", "a@b", "999.999.999.999", "a,b")
NAMES = ("Host", "X-Forwarded-Host", "X-Forwarded-Proto", "Origin", "X-Forwarded-For", "Cookie")


def headers(count: int) -> list[Request]:
    """Gradio works out its own address from these."""
    made = [[(name, host)] for host in HOSTS for name in NAMES]
    made += [[("X-Forwarded-Host", "right.example"), ("X-Forwarded-Host", host)] for host in HOSTS]
    return [("GET", "/config", {"headers": [(name, text.encode()) for name, text in one]}) for one in made]


def tool_messages(count: int) -> list[Request]:
    """What is no message, and messages with one or two things wrong."""
    dice = random.Random(SEED)
    made = [b"\xff", b"[" * 50_000, b'{"a":' * 20_000, b"", b"{", b"[]", b"null", b"7", b'"\\ud800"']
    methods = ("tools/call", "tools/list", "initialize", "ping", "resources/read", "prompts/get", "nothing")
    for method in methods:
        for _ in range(count):
            params = {"name": "pairs", "arguments": {}, "uri": "x", "_meta": {"progressToken": 1}}
            message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            for _ in range(dice.randrange(3)):
                place = dice.choice((message, params))
                place[dice.choice([*place, "x", "\udfff"])] = dice.choice(WRONG)
            made.append(json.dumps(message if dice.random() < 0.95 else [message]).encode())
    accept = JSON | {"Accept": "application/json, text/event-stream"}
    return [("POST", "/gradio_api/mcp/", {"content": one, "headers": accept}) for one in made]


@SHARE
@pytest.mark.parametrize(
    ("attack_with", "count"),
    [(paths, FILES), (traces, TRACES), (headers, 0), (tool_messages, TOOL_MESSAGES)],
    ids=["files and paths", "traces", "headers", "messages to the tools"],
)
def test_wrong_requests(server, attack_with, count, share):
    attack = Attack(server)

    def send(client: httpx.Client, request: Request) -> None:
        method, path, rest = request
        answer = attack.send(client, method, path, **rest)
        assert answer.text or answer.status_code == 202 or attack_with is not tool_messages, request

    at_once(send, attack_with(count // share))
    attack.held(attack_with.__name__)
    if attack_with is tool_messages:
        assert min(attack.statuses[200], attack.statuses[400]) > attack.statuses.total() / 5
