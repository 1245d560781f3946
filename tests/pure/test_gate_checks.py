"""The gate without a server behind it: what is let in, and what is answered to the rest."""

import asyncio
import json
from functools import partial
from inspect import Parameter
from math import inf, nan
from types import SimpleNamespace
from unittest.mock import AsyncMock

import pytest
from starlette.routing import Router

from specdemo.ui.front import gate
from specdemo.ui.front.calls import Calls, Endpoint
from specdemo.ui.front.checks import DEPTH, Hosts
from specdemo.ui.front.gate import Gate, with_host
from specdemo.ui.page.requests import PageRequests
from specdemo.ui.runs.limits import HOSTED, LOCAL
from specdemo.ui.view.settings import FIRST, UNCHOSEN

HELD = FIRST | UNCHOSEN | {"prompt": "Once", "pair": "other", "top_k": 40, "chat": True}


def argument(name: str, default=None) -> Parameter:
    return Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=default)


PROMPT = argument("prompt", Parameter.empty)
ENDPOINTS = {
    "pairs": Endpoint(None, [PROMPT]),
    "generate": Endpoint(None, [PROMPT, argument("gamma"), argument("kwargs")]),
}
JSON = [(b"content-type", b"application/json")]
CALL, JOIN = "/gradio_api/call/v2/generate", "/gradio_api/queue/join"
CANCEL, TOOLS, TRACES = "/gradio_api/cancel", "/gradio_api/mcp/", "/specdemo/traces"
ASK = "/specdemo/runs"


def gate_of(app, limits):
    """Behind it are the page's own route, which begins nothing here, and the API, which nobody reads."""
    page = PageRequests(SimpleNamespace(names=("embedded", "other")), None, None, limits)
    page.begin = AsyncMock(return_value={})
    calls = Calls(limits, ENDPOINTS, {3: "pairs", 4: "generate"}, lambda request: None, str)
    return Gate(Router([page.route(), *calls.routes()], default=app), limits)


def asked(method, path, body=b"", limits=LOCAL, headers=(), parts=None, query=b"", front=gate_of):
    """The status of the gate's answer, its headers, its body, and what the app behind it got, if asked:
    the query and the body."""
    got = []

    async def app(scope, receive, send):
        got.append((scope["query_string"], (await receive())["body"]))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"inside"})

    async def ask():
        said = []
        pieces = [body] if parts is None else parts
        messages = [
            {"type": "http.request", "body": piece, "more_body": at < len(pieces) - 1}
            for at, piece in enumerate(pieces)
        ]

        async def receive():
            if messages[0]["body"] is None:  # it never comes
                await asyncio.Event().wait()
            return messages.pop(0)

        async def send(message):
            said.append(message)

        scope = {"type": "http", "method": method, "path": path, "root_path": ""}
        scope |= {"query_string": query, "headers": [*headers]}
        await front(app, limits)(scope, receive, send)
        return said[0]["status"], dict(said[0]["headers"]), said[1]["body"], got

    return asyncio.run(ask())


def posted(path, body) -> tuple[int, str]:
    """The status, and the sentence where it is refused; the app behind gets only what is let in."""
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    status, _, said, got = asked("POST", path, text, headers=JSON)
    assert len(got) == (status == 200 and path in (TOOLS, TRACES))
    return status, "" if status == 200 else json.loads(said)["detail"]


def nested(depth: int) -> bytes:
    return b'{"prompt": ' + b"[" * depth + b'"a"' + b"]" * depth + b"}"


@pytest.mark.parametrize(
    "body",
    [
        *(b"\xff{}", b'{"prompt": ' + b"1" * 5000 + b"}", b"[1]", nested(DEPTH), b"[" * 500_000),
    ],
)
def test_a_body_that_is_no_json_object_is_refused_in_a_sentence(body):
    status, sentence = posted(CALL, body)
    assert status == 400 and sentence.startswith("The body must be")


def event(**more) -> dict:
    return {"session_hash": "a", "fn_index": 3, "data": ["Once"], **more}


def asks(**more) -> dict:
    return {"session": "a", "asked": {"kind": "run"}, **more, "controls": HELD | more.get("controls", {})}


TURN = {"role": "user", "content": "x"}
FILE = {"path": "/etc/passwd", "url": "http://x", "meta": {"_type": "gradio.FileData"}}
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}, "meta": {"type": "string"}}}
GUESS = {"kind": "guess", "ids": "1,2", "round": 1, "guess": " a", "game": "ab", "seed": 7}
LET_IN = [
    *[(ASK, one) for one in (asks(), asks(asked=GUESS), asks(controls={"top_k": None, "else": FILE}))],
    *[(JOIN, one) for one in (event(), event(trigger_id=7, event_data=FILE), event(data=[FILE]))],
    (CANCEL, {"session_hash": "a", "fn_index": 1, "event_id": "b"}),
    *[(CALL, {"prompt": one, "kwargs": FILE}) for one in ("é\ud83d", [TURN, TURN], {"11": -5, "3": 2.5})],
    (TOOLS, {"params": {"arguments": {"kwargs": {"a": False, "tools": [SCHEMA]}}}}),
]
# What is refused with 400, and what the sentence names.
REFUSED = [
    (ASK, asks(controls={"prompt": 5}), "Prompt must be text, not 5"),
    (ASK, asks(controls={"pair": "third"}), 'Pair must be one of embedded, other, not "third"'),
    *[(ASK, asks(controls={"top_k": one}), "Top-k must be") for one in (True, 10**400, nan, inf, [], FILE)],
    (ASK, asks(controls={"chat": 1}), "Chat template must be"),
    *[(ASK, asks() | {"controls": one}, "controls must be an object") for one in (None, [], "x")],
    *[(ASK, asks(asked=one), "asked must be an object") for one in (None, [GUESS], "run", nan)],
    *[(ASK, asks(session=one), "session") for one in (None, 5, "", "a b", "x" * 65)],
    *[(ASK, one, "The body must be") for one in (b"\xff", b"[1]", b"[" * 50_000)],
    *[(JOIN, event(data=one), "data must") for one in ([], ["Once", 1], None, {"0": 1})],
    *[(JOIN, event(session_hash=one), "session_hash") for one in (None, 5, "", "a b", "x" * 65, "a\n")],
    (JOIN, event(fn_index=True), "fn_index"),
    (CANCEL, {"fn_index": 1, "event_id": "b"}, "session_hash"),
    ("/gradio_api/call/generate", {"data": ["x"]}, "data must"),
    (CALL, {}, "The argument prompt is missing"),
    (CALL, {"prompt": "", "gama": 1}, 'There is no argument "gama"; it takes prompt, gamma, kwargs'),
    (TOOLS, b"[" * 50_000, "The body must be"),
    (TOOLS, b'{"params": [{"\\udfff": 1}]}', "half of a surrogate pair"),
    (TOOLS, {"params": {"arguments": {"kwargs": {"a": [{"path": "http://x"}]}}}}, "a text as its path"),
]


@pytest.mark.parametrize(("path", "body"), LET_IN)
def test_what_is_right_is_let_in(path, body):
    assert posted(path, body) == (200, "")


@pytest.mark.parametrize(("path", "body", "named"), REFUSED)
def test_what_is_wrong_is_refused_by_its_name_before_anything_sees_it(path, body, named):
    status, sentence = posted(path, body)
    assert status == 400 and named in sentence and len(sentence) < 250


def test_a_function_is_called_in_its_own_way_only():
    assert posted(JOIN, event(fn_index=1))[0] == posted("/gradio_api/run/predict", event())[0] == 404
    assert asked("POST", ASK, b"{}")[0] == 415, "as other sites can send it"
    assert posted("/gradio_api/call/show", {"data": []})[0] == 404


@pytest.mark.parametrize(
    "path",
    [
        *("/monitoring", "/login", "/docs", "/openapi.json", "//", "/config/", "/CONFIG", "/config\n"),
        *("/assets/../app.py", "/assets//etc/passwd", "/static/.hidden", "/assets/a\0b", "/assets/a/../b"),
        *("/gradio_api/file=/etc/passwd", "/gradio_api/proxy=http://x", "/gradio_api/component_server"),
        *("/gradio_api/run/show", "/gradio_api/stream/a", "/gradio_api/custom_component/a/client/b/c"),
        *("/some/where/config", "/gradio_api/heartbeat/a%00b", "/runs", f"{TOOLS}sse", f"{TOOLS}http/x"),
    ],
)
def test_anything_else_is_not(path):
    for method in ("GET", "POST", "OPTIONS"):
        status, headers, _, got = asked(method, path, b"{}")
        assert (status, got, headers[b"x-content-type-options"]) == (404, [], b"nosniff")


def test_other_methods_are_told_which_ones_work():
    status, headers, _, got = asked("PUT", JOIN, b"{}")
    assert (status, headers[b"allow"], got) == (405, b"POST, OPTIONS", [])
    assert asked("OPTIONS", "/config")[0] == 204 and asked("HEAD", "/")[0] == 200


def behind(hosts):
    return partial(with_host, hosts=hosts)


@pytest.mark.parametrize("name", [b"host", b"x-forwarded-host"])
def test_a_host_of_which_no_address_can_be_made_is_refused_wherever_it_stands(name):
    front, own = behind(Hosts("127.0.0.1", (), True, False)), [(b"host", b"right.example")]
    for host in (b"999.999.999.999", b"[::g]", b"a b", b"a/b"):
        for hosts in ([host, b"right.example"], [b"right.example", host]):
            headers = [*own, *((name, one) for one in hosts)]
            status, _, body, got = asked("GET", "/", headers=headers, front=front)
            assert (status, got) == (400, []) and name in body
    for host in (b"localhost:7860", b"[::1]:80", b"10.0.0.1", b"a_b.example", b""):
        assert asked("GET", "/", headers=[*own, (name, host)], front=front)[0] == 200
    lists = asked("GET", "/", headers=[*own, (name, b"a, b")], front=front)[0]
    assert lists == (400 if name == b"host" else 200), "only proxies write lists"


def test_a_request_without_a_host_is_refused():
    for name, value, status in ((b"host", b"localhost:7860", 200), (b"origin", b"http://x", 400)):
        front = behind(Hosts("127.0.0.1", (), False, False))
        answered, told, body, got = asked("GET", "/", headers=[(name, value)], front=front)
        assert (answered, len(got)) == (status, status == 200)
    assert told[b"x-content-type-options"] == b"nosniff" and b"host" in body


def test_right_messages_reach_the_tools_and_nobody_listens_to_them():
    right = '{"jsonrpc": "2.0", "id": "é\\ud83d\\ude00", "method": "tools/list"}'.encode()
    for path, body in (("", b""), ("/", right), ("/http/", right)):
        assert asked("POST", f"/gradio_api/mcp{path}", body)[::3] == (200, [(b"", body)])
    stream, page = [(b"accept", b"text/event-stream")], [(b"accept", b"text/html")]
    for method in ("GET", "HEAD"):
        assert asked(method, TOOLS, headers=[*page, *stream])[0] == 405
        assert asked(method, TOOLS, headers=page)[0] == 200


BODY, FILE_SIZE = HOSTED.body_bytes, HOSTED.trace_bytes


@pytest.mark.parametrize(
    ("path", "announced", "parts", "status"),
    [
        (CALL, b"%d" % (BODY + 1), [b""], 413),
        (CALL, b"9" * 5000, [b""], 413),
        (CALL, b"many", [b""], 413),
        (CALL, None, [b" " * (BODY // 2)] * 3, 413),
        (CANCEL, None, [b"{", None], 408),
        (ASK, None, [b" " * (BODY // 2)] * 3, 413),
        (TRACES, None, [b"a" * BODY, b"b", b""], 200),
        (TRACES, None, [b"a" * (FILE_SIZE // 2)] * 3, 413),
    ],
)
def test_a_body_is_limited_by_what_it_announces_what_comes_and_its_time(
    monkeypatch, path, announced, parts, status
):
    monkeypatch.setattr(gate, "BODY_SECONDS", 0.05)
    headers = [(b"content-length", announced)] if announced else []
    answered, told, _, got = asked("POST", path, limits=HOSTED, headers=headers, parts=parts)
    assert answered == status and got == ([(b"", b"".join(parts))] if status == 200 else [])
    assert status != 408 or told[b"connection"] == b"close"


def test_who_may_show_the_page_in_a_frame():
    def policy(limits, path="/", query=b""):
        answer = asked("GET", path, limits=limits, query=query)
        return answer[1][b"content-security-policy"].decode()

    assert policy(HOSTED).startswith("frame-ancestors 'self' https://huggingface.co ")
    assert "https://*.hf.space" in policy(HOSTED) and "localhost" not in policy(HOSTED)
    assert "http://localhost:*" in policy(LOCAL) and "hf.space" not in policy(LOCAL)
    for reduced in (("/", b"prompt=a&frame=1"), ("/embed", b"prompt=a")):
        assert policy(HOSTED, *reduced) == "frame-ancestors *" and policy(LOCAL, *reduced) == policy(LOCAL)
    for whole in (("/", b"frame=0"), ("/", b"prompt=frame=1"), ("/config", b"frames=1")):
        assert policy(HOSTED, *whole) == policy(HOSTED)
