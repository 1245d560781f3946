"""What visitors who mean harm send, and other sites: each request with the status of its answer and what its
sentence names. What is right beside it is let in."""

import json
from collections.abc import Iterator
from math import inf, nan
from typing import Any, NamedTuple
from urllib.parse import quote

from tests.web.conftest import RECORDED

JSON = {"Content-Type": "application/json"}
TOOLS = JSON | {"Accept": "application/json, text/event-stream"}
STREAM = {"Accept": "text/event-stream"}
CALL, PLAIN_CALL, MCP = "/gradio_api/call/v2/generate", "/gradio_api/call/generate", "/gradio_api/mcp/"
JOIN, CANCEL, RESET = "/gradio_api/queue/join", "/gradio_api/cancel", "/gradio_api/reset"
ASK, TRACES, DATA = "/specdemo/runs", "/specdemo/traces?session_hash=v", "/gradio_api/queue/data"
FILE = {"path": "/etc/passwd", "url": "http://x", "meta": {"_type": "gradio.FileData"}}
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}, "meta": {"type": "string"}}}
GUESS = {"kind": "guess", "ids": "1,2", "round": 1, "guess": " a", "game": "ab", "seed": 7}
ONCE = {"prompt": "Once", "max_new_tokens": 1}


class Site(NamedTuple):
    """The server: the name and port under which it is asked, Gradio's number of `pairs`, and what the page's
    controls hold."""

    host: str
    number: int
    controls: dict[str, Any]


class Sent(NamedTuple):
    method: str
    path: str
    status: int
    named: str = ""  # in the answer
    content: bytes = b""
    headers: dict[str, str] = {}


def post(path: str, body: Any, status: int, named: str = "", headers: dict[str, str] = JSON) -> Sent:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Sent("POST", path, status, named, content, headers)


def from_another_site(site: Site) -> Iterator[Sent]:
    for headers in ({"Host": "evil.example:7860"}, {"Origin": "https://evil.example"}):
        for path in ("/", "/health"):
            yield Sent("GET", path, 403, "evil.example", headers=headers)
        for path in (CALL, MCP, ASK):
            yield post(path, ONCE, 403, "evil.example", JSON | headers)
        preflight = {"Access-Control-Request-Method": "POST"}
        yield Sent("OPTIONS", CALL, 403, "evil.example", headers=headers | preflight)


def hosts(site: Site) -> Iterator[Sent]:
    for host in ("999.999.999.999", "[::g]", "a b", "a/b", "x" * 300, "http://x", "1:99999999", "a@b"):
        yield Sent("GET", "/config", 403, "This page is not known as", headers={"Host": host})
        yield Sent("GET", "/config", 400, "x-forwarded-host", headers={"X-Forwarded-Host": host})
        yield Sent("GET", "/config", 403, "may not use this one", headers={"Origin": host})
        for name in ("X-Forwarded-Proto", "Cookie"):
            yield Sent("GET", "/config", 200, '"components"', headers={name: host})
    for host in ("localhost:7860", "[::1]:80", "10.0.0.1", "a_b.example", "", "a, b"):
        yield Sent("GET", "/health", 200, "ok", headers={"X-Forwarded-Host": host})
    yield Sent("GET", "/health", 200, "ok", headers={"Host": site.host.replace("127.0.0.1", "localhost")})
    for method, path in (("GET", "/health"), ("POST", ASK)):  # there are no web sockets
        upgrade = {"Connection": "Upgrade", "Upgrade": "websocket"}
        yield Sent(method, path, 200 if method == "GET" else 415, headers=upgrade)


def nested(depth: int) -> bytes:
    return b'{"prompt": ' + b"[" * depth + b'"a"' + b"]" * depth + b"}"


def bodies(site: Site) -> Iterator[Sent]:
    wrong = (b"\xff{}", b"[1]", b"null", b"{", b"[" * 50_000, nested(32), b'{"prompt":' * 20_000)
    for path in (CALL, JOIN, ASK, MCP):
        for body in (*wrong, b'{"prompt": ' + b"1" * 5000 + b"}"):
            yield post(path, body, 400, "The body must be", TOOLS)
    for path in (CALL, PLAIN_CALL, JOIN, CANCEL, RESET, ASK):
        yield post(path, b"{}", 415, "application/json", {"Content-Type": "text/plain"})
        yield post(path, b" " * 3_000_000, 413, "The request is too large: at most 2 MiB are allowed.")
    yield post(TRACES, b" " * 17_000_000, 413, "The request is too large: at most 16 MiB are allowed.")


def calls(site: Site) -> Iterator[Sent]:
    def event(**more: Any) -> dict[str, Any]:
        return {"session_hash": "a", "fn_index": site.number, "data": [], **more}

    for data in (["Once"], None, {"0": 1}):
        yield post(JOIN, event(data=data), 400, "data must")
    for name in (None, 5, "", "a b", "x" * 65, "a\n"):
        yield post(JOIN, event(session_hash=name), 400, "session_hash")
        yield post(CANCEL, {"fn_index": 1, "event_id": "b", "session_hash": name}, 400, "session_hash")
        yield post(CANCEL, event(event_id=None), 400, "event_id")
    for wrong in (None, "x", True, [], 2**31):
        yield post(JOIN, event(fn_index=wrong), 400, "fn_index must be a whole number")
        yield post(CANCEL, event(event_id="b", fn_index=wrong), 400, "fn_index must be a whole number")
    for unknown in (0, 999):
        yield post(JOIN, event(fn_index=unknown), 404, "There is no function of this number")
    yield post(JOIN, event(trigger_id=7, event_data=FILE), 200)
    yield post(CANCEL, event(event_id="b"), 200)
    yield post(RESET, {"event_id": "b"}, 200)
    yield post(RESET, {}, 400, "event_id")
    yield post(PLAIN_CALL, {"data": ["x"]}, 400, "data must")
    for prompt in (5, [{"role": "user", "content": "x"}], FILE):  # what Params refuses is told to its reader
        yield post(CALL, {"prompt": prompt, "logit_bias": FILE}, 200)
    yield post(CALL, {}, 400, "The argument prompt is missing")
    yield post(CALL, {"prompt": "", "gama": 1}, 400, 'no argument \\"gama\\"; it takes prompt, pair')
    yield post("/gradio_api/call/show", {"data": []}, 404, "There is no endpoint of this name")
    yield post("/gradio_api/run/predict", event(), 404, "There is nothing here")
    for query in ("", "?session_hash=s&session_hash=t"):
        yield Sent("GET", f"{DATA}{query}", 400, "session_hash must be given once")
    for path in (f"{DATA}?session_hash=nobody", f"{PLAIN_CALL}/nothing", f"{CALL}/nothing"):
        yield Sent("GET", path, 404, "There is no")


def of_the_page(site: Site) -> Iterator[Sent]:
    def asks(**more: Any) -> dict[str, Any]:
        body = {"session": "a", "asked": {"kind": "controls"}, **more}
        return body | {"controls": site.controls | more.get("controls", {})}

    yield post(ASK, asks(), 200)
    yield post(ASK, asks(controls={"top_k": None, "else": FILE}), 200)
    yield post(ASK, asks(controls={"prompt": 5}), 400, "Prompt must be text, not 5")
    yield post(ASK, asks(controls={"pair": "third"}), 400, "Pair must be one of")
    yield post(ASK, asks(controls={"chat": 1}), 400, "Chat template must be")
    for wrong in (True, 10**400, nan, inf, [], FILE):
        yield post(ASK, asks(controls={"top_k": wrong}), 400, "Top-k must be")
    for wrong in (None, [], "x"):
        yield post(ASK, asks() | {"controls": wrong}, 400, "controls must be an object")
    for wrong in (None, [GUESS], "run", nan):
        yield post(ASK, asks(asked=wrong), 400, "asked must be an object")
    for wrong in (None, 5, "", "a b", "x" * 65):
        yield post(ASK, asks(session=wrong), 400, "session")


def of_the_tools(site: Site) -> Iterator[Sent]:
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "pairs", "arguments": {}}}

    def given(argument: Any) -> dict[str, Any]:
        return call | {"params": {"name": "generate", "arguments": {"kwargs": argument}}}

    yield post(MCP, call, 200, headers=TOOLS)
    yield post(MCP, given({"a": False, "tools": [SCHEMA]}), 200, headers=TOOLS)
    yield post(MCP, given({"a": [{"path": "http://x"}]}), 400, "a text as its path", TOOLS)
    yield post(MCP, b'{"params": [{"\\udfff": 1}]}', 400, "half of a surrogate pair", TOOLS)
    yield post(MCP, [call], 400, "The body must be a JSON object", TOOLS)
    yield post(MCP, call | {"params": {"name": 5}}, 200, "Invalid request parameters", TOOLS)
    for method in ("GET", "HEAD"):
        yield Sent(method, MCP, 405, "POST requests only" if method == "GET" else "", headers=STREAM)


def traces(site: Site) -> Iterator[Sent]:
    whole = RECORDED.read_bytes()
    for wrong in (
        whole[:-9],
        b"\xff" + whole,
        b'{"x": ' + b"[" * 10_000,
        whole.replace(b'"gamma":', b'"gamma":"'),
    ):
        yield post(TRACES, wrong, 200, '"wrong"')
    for key in ("pair", "rounds"):
        yield post(TRACES, json.loads(whole) | {key: FILE}, 200, '"wrong"')


def of_no_door(site: Site) -> Iterator[Sent]:
    paths = ("/monitoring", "/login", "/docs", "/openapi.json", "/config/", "/CONFIG", "/config%0A")
    paths += (
        "/assets/%2e%2e/app.py",
        "/assets//etc/passwd",
        "/static/.hidden",
        "/assets/a%00b",
        "/assets/a/%2e%2e/b",
    )
    paths += ("/gradio_api/file=/etc/passwd", "/gradio_api/proxy=http://x", "/gradio_api/component_server")
    paths += ("/gradio_api/run/show", "/gradio_api/stream/a", "/gradio_api/custom_component/a/client/b/c")
    paths += ("/some/where/config", "/gradio_api/heartbeat/a%00b", "/runs", f"{MCP}sse", f"{MCP}http/x")
    for path in paths:
        for method in ("GET", "POST", "OPTIONS"):
            yield Sent(method, path, 404, "There is nothing here.", b"{}" if method == "POST" else b"")
    for method in ("PUT", "DELETE", "TRACE", "FOO"):
        yield Sent(method, JOIN, 405, "Only POST, OPTIONS work here.")
        yield Sent(method, "/", 405, "Only GET, HEAD, OPTIONS work here.")
    yield Sent("OPTIONS", "/config", 204)
    yield Sent("HEAD", "/", 200)


def to_files(site: Site) -> Iterator[Sent]:
    bases = ("/assets/", "/static/", "/specdemo/", "/specdemo/runs/", "/gradio_api/file=", "/file=", "/")
    bases += ("/gradio_api/proxy=", "/gradio_api/custom_component/x/client/template/")
    for climb in (
        "",
        "../../../../",
        "..%2f" * 4,
        "%2e%2e/" * 4,
        "%252e%252e/",
        "%00",
        "file:///",
        "a" * 3000,
    ):
        for base in bases:
            yield Sent("GET", quote(f"{base}{climb}etc/passwd", safe="/%?=:&;$"), 404)
        yield Sent("GET", f"/config?deep_link={climb}etc/passwd", 200, '"components"')
    upload = b'--x\r\nContent-Disposition: form-data; name="files"; filename="../../a"\r\n\r\n{}\r\n--x--\r\n'
    form = {"Content-Type": "multipart/form-data; boundary=x"}
    yield post("/gradio_api/component_server", upload, 404, "There is nothing here.", form)


ATTACKS = (to_files, from_another_site, hosts, bodies, calls, of_the_page, of_the_tools, traces, of_no_door)
