"""The gate without a server behind it: what is let in, and the sentence for what is not."""

import asyncio
import json
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from specdemo.ui.front import gate
from specdemo.ui.front.checks import (
    DEPTH,
    Field,
    Function,
    Hosts,
    NotLetIn,
    check_named,
    check_rest,
    check_values,
    name_in,
    read_object,
)
from specdemo.ui.front.gate import Gate, with_host
from specdemo.ui.runs.limits import HOSTED, LOCAL

FIELDS = (
    Field("Prompt", "text"),
    Field("Pair", "choice", ("embedded", "other")),
    Field("Top-k", "number"),
    Field("Chat template", "switch"),
    Field("Examples", "index", length=3),
)
RIGHT = ["Once", "other", 40, True, 2]
GENERATE = Function(4, "generate", (Field("prompt"), Field("gamma", required=False)), False, False)
RUN = Function(3, "run_on_stage", (Field("prompt"),), direct=False, private=True)
STOP = Function(2, "stop", (Field("session"),), direct=True, private=True)


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"\xff{}", "The body must be JSON in UTF-8."),
        (b'{"a": NaN}', "The body must be JSON: NaN is no number of JSON."),
        (b'{"a": 1e999}', "The body must be JSON: a number is too large."),
        (b'{"a": ' + b"1" * 5000 + b"}", "The body must be JSON: "),
        (b"[1]", "The body must be a JSON object."),
        (b'{"a": ' + b"[" * DEPTH + b"1" + b"]" * DEPTH + b"}", "The body must be nested at most"),
        (b"[" * 500_000, "The body must be"),
    ],
)
def test_a_body_that_is_no_json_object_is_refused_in_a_sentence(body, sentence):
    with pytest.raises(NotLetIn) as refused:
        read_object(body)
    assert refused.value.status == 400 and refused.value.sentence.startswith(sentence)
    deepest = b'{"a": ' + b"[" * (DEPTH - 1) + b"]" * (DEPTH - 1) + b"}"
    assert [*read_object(deepest)] == [*read_object('{"a": ["é", 1.5, "\\ud800"]}'.encode())] == ["a"]


def test_right_values_pass_and_empty_ones_are_left_to_params():
    check_values(RIGHT, FIELDS)
    check_values(["", "other", None, None, 0], FIELDS)


@pytest.mark.parametrize(
    ("at", "value", "sentence"),
    [
        (0, 5, "Prompt must be text, not 5."),
        (1, "third", 'Pair must be one of embedded, other, not "third".'),
        (2, True, "Top-k must be a number, not true."),
        (2, 10**400, "Top-k must be a number, not 1000000000"),
        (3, 1, "Chat template must be true or false, not 1."),
        (4, True, "Examples must be a whole number from 0 to 2, not true."),
    ],
)
def test_a_wrong_value_is_named_by_its_label(at, value, sentence):
    values = [*RIGHT]
    values[at] = value
    with pytest.raises(NotLetIn) as refused:
        check_values(values, FIELDS)
    assert refused.value.sentence.startswith(sentence) and len(refused.value.sentence) < 120


def test_the_number_of_values_is_told():
    for values in (RIGHT[1:], [*RIGHT, 1], None, {"0": 1}):
        with pytest.raises(NotLetIn, match="data must"):
            check_values(values, FIELDS)


def test_arguments_by_name():
    check_named({"prompt": "x"}, GENERATE.fields)
    for fields, given, sentence in (
        (GENERATE.fields, {}, "The argument prompt is missing."),
        (GENERATE.fields, {"prompt": "", "gama": 1}, 'There is no argument "gama"; it takes prompt, gamma.'),
        ((), {"x": 1}, 'There is no argument "x"; it takes none.'),
    ):
        with pytest.raises(NotLetIn) as refused:
            check_named(given, fields)
        assert refused.value.sentence == sentence


def test_an_argument_can_be_messages_and_no_file():
    turn = {"role": "user", "content": "x"}
    check_named({"prompt": [turn, turn]}, GENERATE.fields)
    check_named({"prompt": "Once", "gamma": {"11": -5, "3": 2.5}}, GENERATE.fields)
    for file in ({"11": {"path": "x"}}, {"11": 1, "path": "x"}, {"\u0661": 1}, [turn, {**turn, "path": "x"}]):
        with pytest.raises(NotLetIn, match="^gamma must be a text, .* or numbers by token id, not a"):
            check_named({"prompt": "Once", "gamma": file}, GENERATE.fields)


def test_an_argument_can_be_any_object_of_plain_json_and_no_file():
    fields = (Field("kwargs", "object", required=False),)
    schema = {"type": "object", "properties": {"path": {"type": "string"}, "meta": {"type": "string"}}}
    for right in ({}, {"a": False, "tools": [{"parameters": schema}]}, '{"a": 1}', None):
        check_named({"kwargs": right}, fields)
    file = {"path": "/etc/passwd", "url": "http://x", "meta": {"_type": "gradio.FileData"}}
    for wrong in (file, {"path": "x"}, {"a": file}, {"a": [[{"b": file}]]}, [], [file], 3, True):
        with pytest.raises(NotLetIn, match="^kwargs must be an object or its JSON text, in which"):
            check_named({"kwargs": wrong}, fields)


def test_what_an_event_carries_beside_its_values():
    guess = {"kind": "guess", "ids": "1,2", "round": 1, "guess": " a", "game": "ab", "seed": 7}
    check_rest({"trigger_id": 7, "event_id": "ab-1", "event_data": guess}, {0, 7})
    check_rest({"trigger_id": 0, "event_data": "a text"}, {0, 7})
    for wrong in (
        *({"trigger_id": 8}, {"trigger_id": "7"}),
        *({"batched": True}, {"simple_format": 1}, {"oauth_token": "t"}),
        *({"event_id": "a b"}, {"event_id": 5}),
        *({"event_data": {"path": "/etc/passwd"}}, {"event_data": [{"path": "/etc/passwd"}]}),
        {"event_data": {"kind": ["race"]}},
    ):
        with pytest.raises(NotLetIn):
            check_rest(wrong, {0, 7})
    for session in (5, "", "a b", "x" * 65, "a\n"):
        with pytest.raises(NotLetIn, match="session_hash"):
            name_in({"session_hash": session}, "session_hash")


class NoVisits:
    """Nobody visits; everybody is let in. Only the sessions "mine" and "taken" have something to read, and
    somebody reads the second one's."""

    visitors = ("mine", "read")
    queue = SimpleNamespace(
        has_messages=lambda session: session in ("mine", "taken"), session_of=lambda event: event
    )

    def has_reader(self, session):
        return session == "taken"

    def listen(self, session): ...

    async def leave(self, session, to_the_end): ...

    @asynccontextmanager
    async def admitted(self, session, address):
        yield


def asked(method, path, body=b"", limits=LOCAL, headers=(), parts=None, prefix="", query=b""):
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

        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "root_path": prefix,
            "query_string": query,
            "headers": [*headers],
        }
        gate = Gate(app, limits, NoVisits(), {2: STOP, 3: RUN, 4: GENERATE}, ())
        await gate(scope, receive, send)
        return said[0]["status"], dict(said[0]["headers"]), said[1]["body"], got

    return asyncio.run(ask())


def test_a_page_is_there_under_a_prefix_too():
    paths = ("/config", "/some/where/", "/some/where/config", "/some/where/specdemo/1a/page/main.js")
    for path in paths:
        status, _, _, got = asked("GET", path, prefix="/some/where", query=b"page=x&deep_link=y")
        assert status == 200 and got == [(b"", b"")], "Gradio reads no query of these"


@pytest.mark.parametrize(
    "path",
    [
        *("/monitoring", "/login", "/docs", "/openapi.json", "//", "/config/", "/CONFIG", "/config\n"),
        *("/assets/../app.py", "/assets//etc/passwd", "/static/.hidden", "/assets/a\0b", "/assets/a/../b"),
        *("/gradio_api/file=/etc/passwd", "/gradio_api/proxy=http://x", "/gradio_api/component_server"),
        *("/gradio_api/run/stop", "/gradio_api/stream/a", "/gradio_api/custom_component/a/client/b/c"),
        *("/some/where/config", "/gradio_api/heartbeat/a%00b", "/runs"),
    ],
)
def test_anything_else_is_not(path):
    for method in ("GET", "POST", "OPTIONS"):
        status, headers, body, got = asked(method, path, b"{}")
        assert (status, got) == (404, []) and json.loads(body) == {"detail": "There is nothing here."}
        assert headers[b"x-content-type-options"] == b"nosniff"


def test_other_methods_are_told_which_ones_work():
    status, headers, body, got = asked("PUT", "/gradio_api/queue/join", b"{}")
    assert (status, headers[b"allow"], got) == (405, b"POST, OPTIONS", []) and b"Only POST" in body
    assert asked("OPTIONS", "/config")[0] == 204 and asked("HEAD", "/")[0] == 200


@pytest.mark.parametrize("name", [b"host", b"x-forwarded-host"])
def test_a_host_of_which_no_address_can_be_made_is_refused_wherever_it_stands(name):
    for host in (b"999.999.999.999", b"[::g]", b"a b", b"a/b"):
        for hosts in ([host, b"right.example"], [b"right.example", host]):
            status, _, body, got = asked("GET", "/", headers=[(name, one) for one in hosts])
            assert (status, got) == (400, [])
            assert f"{name.decode()} must be the name of a host." in body.decode()
    for host in (b"localhost:7860", b"[::1]:80", b"10.0.0.1", b"a_b.example", b""):
        assert asked("GET", "/", headers=[(name, host)])[0] == 200
    lists = asked("GET", "/", headers=[(name, b"a, b")])[0]
    assert lists == (400 if name == b"host" else 200), "only proxies write lists"


def test_a_request_without_a_host_is_refused():
    def ask(headers):
        said = []

        async def app(scope, receive, send):
            said.append("inside")

        async def send(message):
            said.append(message)

        scope = {"type": "http", "headers": headers}
        asyncio.run(with_host(app, LOCAL, Hosts("127.0.0.1", (), False, False))(scope, None, send))
        return said

    assert ask([(b"host", b"localhost:7860")]) == ["inside"]
    start, end = ask([(b"origin", b"http://x")])
    assert start["status"] == 400 and (b"x-content-type-options", b"nosniff") in start["headers"]
    assert json.loads(end["body"]) == {"detail": "The header host is missing."}


def test_a_stream_is_asked_for_by_one_session():
    for query, status in (
        (b"session%5Fhash=%6Dine&from=0", 200),
        (b"session_hash=other", 404),
        (b"session_hash=mine&session%5Fhash=other", 400),
        (b"", 400),
    ):
        answered, _, body, got = asked("GET", "/gradio_api/queue/data", query=query)
        assert (answered, len(got)) == (status, status == 200)
        assert status != 400 or b"session_hash must be given once." in body


def test_one_reads_the_answer_of_an_event():
    for event, status in (("mine", 200), ("taken", 409), ("gone", 404)):
        answered, _, body, got = asked("GET", f"/gradio_api/call/generate/{event}")
        assert (answered, len(got)) == (status, status == 200)
        assert status != 409 or b"Somebody reads the answer of this event already." in body
    # A page that has read all of its messages is told that its stream ends.
    status, _, body, got = asked("GET", "/gradio_api/queue/data", query=b"session_hash=read")
    assert (status, body, got) == (200, b'data: {"msg": "close_stream"}\n\n', [])


def test_a_message_that_the_tools_would_fail_on_is_refused():
    half = "The body must be Unicode text: there is half of a surrogate pair in it."
    file = b'{"params": {"arguments": {"chat_template_kwargs": {"a": [{"path": "http://x"}]}}}}'
    for body, sentence in (
        (b"[" * 50_000, "The body must be"),
        (b'{"params": [{"\\udfff": 1}]}', half),
        (file, "An object in the body must not have a text as its path"),
    ):
        status, _, said, got = asked("POST", "/gradio_api/mcp/", body)
        assert (status, got) == (400, []) and json.loads(said)["detail"].startswith(sentence)


def test_right_messages_reach_the_tools_and_nobody_listens_to_them():
    right = '{"jsonrpc": "2.0", "id": "é\\ud83d\\ude00", "method": "tools/list"}'.encode()
    for path, body in (("", b""), ("/", right), ("/http/", right)):
        assert asked("POST", f"/gradio_api/mcp{path}", body)[::3] == (200, [(b"", body)])
    stream, page = [(b"accept", b"text/event-stream")], [(b"accept", b"text/html")]
    for method in ("GET", "HEAD"):
        assert asked(method, "/gradio_api/mcp/", headers=[*page, *stream])[0] == 405
        assert asked(method, "/gradio_api/mcp/", headers=page)[0] == 200
    for path in ("/sse", "/messages/", "/http/x"):
        assert asked("POST", f"/gradio_api/mcp{path}")[0] == 404


def test_a_body_is_limited_by_what_it_announces_and_by_what_comes():
    too_large = [
        {"headers": [(b"content-length", size)]} for size in (b"%d" % (2**18 + 1), b"9" * 5000, b"many")
    ]
    for request in (*too_large, {"parts": [b" " * 2**17] * 3}):
        status, _, body, got = asked("POST", "/gradio_api/run/predict", limits=HOSTED, **request)
        assert (status, got) == (413, []) and b"The request is too large: at most 256 KiB" in body


def test_a_body_that_never_ends_is_answered_and_its_connection_closed(monkeypatch):
    monkeypatch.setattr(gate, "BODY_SECONDS", 0.05)
    status, headers, body, got = asked("POST", "/gradio_api/cancel", parts=[b"{", None])
    assert (status, headers[b"connection"], got) == (408, b"close", []) and b"too long" in body


def test_a_trace_has_a_limit_of_its_own_and_is_refused_in_words_for_the_page():
    parts = [b"a" * HOSTED.body_bytes, b"b", b""]
    got = asked("POST", "/specdemo/traces", limits=HOSTED, parts=parts, query=b"session=1")[3]
    assert got == [(b"session=1", b"".join(parts))]
    status, headers, body, got = asked("POST", "/specdemo/traces", limits=HOSTED, parts=parts * 9)
    assert (status, got, body) == (413, [], b"The request is too large: at most 2 MiB are allowed.")
    assert headers[b"content-type"].startswith(b"text/plain")


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/gradio_api/run/predict", {"session_hash": "a", "fn_index": 2, "data": [None]}, 200),
        ("/gradio_api/run/predict", {"fn_index": 2, "data": [None]}, 400),
        ("/gradio_api/run/predict", {"session_hash": "a", "fn_index": 2, "data": []}, 400),
        ("/gradio_api/queue/join", {"session_hash": "a", "fn_index": 2, "data": [None]}, 404),
        ("/gradio_api/queue/join", {"session_hash": "a", "fn_index": True, "data": [None]}, 400),
        ("/gradio_api/call/v2/generate", {}, 400),
        ("/gradio_api/call/generate", {"data": ["x"]}, 400),
        ("/gradio_api/cancel", {"session_hash": "a", "fn_index": 1, "event_id": "b"}, 200),
        ("/gradio_api/cancel", {"fn_index": 1, "event_id": "b"}, 400),
    ],
)
def test_only_what_can_be_called_is_called(path, body, status):
    assert asked("POST", path, json.dumps(body).encode())[0] == status


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
