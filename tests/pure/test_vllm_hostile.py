"""A server that is wrong or hostile: what it sends is bounded, in a sentence, and Stop ends a run whatever it
does."""

import gzip
import json
import random
import socket
import threading
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import httpx
import pytest

from specdemo import Params, Trace, generate, load_pair, stream
from specdemo.events import Started
from specdemo.servers.client import CONNECT_SECONDS, Client, Request, ServerError
from specdemo.servers.llama_cpp import LlamaAnswer
from specdemo.servers.software import Answer, Misread, most_ids, round_of
from specdemo.servers.vllm import Counted, VllmAnswer, counted_in
from tests.pure.test_vllm_rounds import UNCOUNTED, chunk_of, reader
from tests.recorded import recorded
from tests.runs_served import served_trace
from tests.stand_ins.vllm import MODEL, TEXT, BreakOff, Gate, line

SHORT = Params(max_new_tokens=8, temperature=0)
Write = Callable[[bytes], None]


def chunk(ids=(8,), text=" x", **more: Any) -> bytes:
    """A chunk of a completion, with anything in it."""
    return line({"choices": [{"text": text, "token_ids": list(ids)} | more]})


def sends(content: bytes, times: int = 1) -> Callable[[Write, Gate], None]:
    return lambda write, gate: write(content * times)


def silence(write: Write, gate: Gate) -> None:
    gate.hold()


def endless(content: bytes) -> Callable[[Write, Gate], None]:
    """Until the connection is closed, or the gate opened."""

    def send(write: Write, gate: Gate) -> None:
        gate.reached.set()
        while not gate.opened.wait(0.05):
            write(content)

    return send


EMPTY = chunk(ids=(), text="")
LOUD = {"error": {"message": "\x1b[2J" + "no" * 10_000, "code": 500}}
SUMS = ("num_spec_steps", "num_draft_tokens")
HOSTILE = [  # before which chunk a server sends what, and what of it is told
    (2, Mock(side_effect=BreakOff), "broke off"),
    (2, silence, "no token for 0.2 s"),
    (2, endless(EMPTY), "no token for 0.2 s"),
    (2, sends(EMPTY, 20), "more than was asked"),
    (2, sends(b'data: {"choices": "\xff\xfe"}\n\n'), "not JSON .* unicode"),
    (2, sends(b"data: <html>\n\n"), "not JSON"),
    (2, sends(b"x" * 100_000, 30), "more than 2,240,0"),
    (2, sends(b": hi\n" * 20_000, 50), r"more than 4,27\d,\d{3} bytes"),
    (2, sends(line(LOUD)), r"\?\[2Jnono"),
    (2, sends(chunk((), "", finish_reason="abort")), "abort"),
    (5, sends(chunk(finish_reason="stop")), "goes on after the end"),
    ({"detailed": True, "tells": {"per_step_drafted": [3, 1, 2, 2]}}, None, "counts 2 of 3 drafts"),
]


@pytest.mark.parametrize(("when", "hostile", "words"), HOSTILE)
def test_a_run_that_goes_wrong_keeps_what_came_and_the_next_one_works(served, when, hostile, words):
    (server, pair), gate = served, Gate()
    if hostile is None:
        server.behave(**when)
    else:
        server.before_chunk = lambda number, write: hostile(write, gate) if number == when else None
    run = stream(pair, "Once", SHORT if when != 5 else Params(max_new_tokens=50, temperature=0))
    with pytest.raises(ServerError, match=words) as caught:
        for _ in run:
            if "no token" in words and len(run.trace.rounds) == 2:
                pair.client.read_seconds = 0.2
    gate.opened.set()
    told = str(caught.value)
    assert told.startswith(f"the server at {pair.client.address} ") and told.isprintable()
    assert len(told) < 6_000 and run.trace.finish == "error" and run.trace.error == told
    text = Trace.from_json(run.trace.to_json()).text
    assert text == TEXT if when != 2 else text.startswith(" word5 word6 word7 word8")
    server.behave()
    pair.client.read_seconds = 60.0
    assert generate(pair, "Once", SHORT).text == TEXT


@pytest.mark.parametrize("data", [b'{"x": NaN}', b'"\\ud800"', b"9" * 5_000, b"[" * 300 + b"]" * 300])
def test_json_that_is_not_as_vllm_sends_it_is_refused(data):
    with pytest.raises(ServerError, match="not JSON"):
        Client("http://host").parsed(data)


def event(logprobs=None, **choice):
    """Of a chunk with one token, and with anything else in it."""
    return {"choices": [{"text": "a", "token_ids": [5], "logprobs": logprobs} | choice]}


def likely(of=-0.5, top=None):
    return {"tokens": ["a"], "token_logprobs": [of], "top_logprobs": [top]}


def told(**steps):
    told = dict.fromkeys(SUMS, 8) | {"num_spec_tokens": 2} | steps
    return {"choices": [], "metrics": {"speculative_decoding": told}}


@pytest.mark.parametrize(
    ("event", "words"),
    [
        ({"choices": "?"}, "choices"),
        ({"choices": event()["choices"] * 2}, "choices: .* at most 1 "),
        *((event(token_ids=ids), "ids of its tokens") for ids in (None, [])),
        *((event(token_ids=[5, no_id]), "token_ids.1") for no_id in (-1, "1", 1.0, True)),
        *((event(likely(top=top)), "token: ") for top in ({"y" * 1_001: -5.0}, {"y" * 1_001: "?"})),
        (event(token_ids=[2**31]), "token_ids.0: .* 2147483648"),
        (event(token_ids=[8] * 1_002), "token_ids: .* 1001 "),
        (event(text="x" * 1_001), "1,001 characters"),
        (event(likely(), token_ids=[5, 6]), "differ in number"),
        (event(likely(of=float("nan"))), "token_logprobs.0: .* finite"),
        (event(likely(of=5.0)), "token_logprobs.0: .* less than"),
        (event(likely(top={f"{number}": -5.0 for number in range(52)})), "top_logprobs.0: .* 51"),
        (told(per_step_drafted=[1_001]), "per_step_drafted.0: .* 1000"),
        (told(per_step_drafted=[2] * 32_769), "per_step_drafted: .* 32768 "),
    ],
)
def test_a_chunk_that_vllm_would_not_send_is_refused(event, words):
    with pytest.raises(Misread, match=words) as refused:
        chunk_of(event)
    assert len(str(refused.value)) < 1_000


def test_many_faults_in_a_chunk_cost_no_more_than_one():
    rows, top = [{"top_logprobs": [{}] * 50}] * 1_001, {str(number): "" for number in range(100_000)}
    for sent in (event(prompt_token_ids=[""] * 300_000), event(likely(top=top)), event({"content": rows})):
        with pytest.raises(Misread) as refused:
            chunk_of(sent)
        assert refused.value.__context__.error_count() < 200


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        ([event()] * 9, "more tokens than was asked"),
        ([event(text="x" * 999)] * 4, "3,996 characters"),
        ([event(prompt_token_ids=[1] * 21)], "21 tokens"),
    ],
)
def test_chunks_that_are_too_many_together_are_refused(sent, words):
    read = reader(tokens=8, prompt_ids=20)
    for one in sent[:-1]:
        read.read(one)
    with pytest.raises(Misread, match=words):
        read.read(sent[-1])
    ids = list(range(300_000))
    read, large = reader(1, most_ids(ids)), event(prompt_token_ids=ids)
    assert len(json.dumps(large)) < read.request.longest_event
    read.read(large)
    assert read.prompt_ids == tuple(ids)


def answer(content: bytes = b"", status: int = 200, **headers: str) -> tuple[int, dict[str, str], bytes]:
    return status, {name.replace("_", "-"): value for name, value in headers.items()}, content


def models(**more: Any) -> tuple[int, dict[str, str], bytes]:
    one = {"id": MODEL, "owned_by": "vllm", "max_model_len": 512} | more
    return answer(json.dumps({"data": [one]}).encode())


def at(path: str, *given: Any, **headers: Any) -> dict[str, Any]:
    """The settings of a stand-in that gives this answer there."""
    return {"answers": {path: given[0] if isinstance(given[0], tuple) else answer(*given, **headers)}}


LIST, RUN = "/v1/models", "/v1/completions"
UNUSABLE = [
    (at(LIST, b"", 404), f"has no {LIST}"),
    (at(LIST, b"<html>"), "not JSON"),
    (at(LIST, b'{"data": []}'), "no model"),
    (at(LIST, b"[1]"), "wrong list of models"),
    (at(LIST, b'{"error": "loading"}', 503), "503: loading"),
    (at(LIST, b"", 302, Location="http://127.0.0.1:9/"), "another address"),
    (at(LIST, models(max_model_len=10**400)), "max_model_len: .* less"),
    (at(LIST, models(max_model_len=-1)), "max_model_len: .* greater"),
    (at(LIST, models(id="x" * 5_000)), "data.0.id: .* 1000 "),
    (at(LIST, b" " * 2_000_001), f"{LIST} of more than 2,000,000 "),
    (at(LIST, gzip.compress(b"\n"), Content_Encoding="gzip"), "compresses its answers"),
    (at(RUN, gzip.compress(b"\n"), Content_Encoding="gzip"), "compresses its answers"),
    (at(LIST, b"", 401), "wants one: set --server-key-from-env to a variable that has it"),
    ({"owner": "ollama"}, "ollama"),
    (at(RUN, b'{"error": {"message": "no"}}', 400), "400: no"),
    (at(RUN, b"data: [DONE]\n\n"), "no token"),
]


@pytest.mark.parametrize(("settings", "words"), UNUSABLE)
def test_a_server_that_cannot_be_used_is_refused_in_a_sentence(served, settings, words):
    server, pair = served
    server.behave(**settings)
    with pytest.raises(ServerError, match=words) as caught:
        load_pair(server=pair.client.address)
    told = str(caught.value)
    assert told.startswith(f"the server at {pair.client.address} ") and told.isprintable()
    assert len(told) < 1_000


def test_a_version_is_shown_on_one_line_and_left_out_where_it_cannot_be_read(served):
    server, pair = served
    version = json.dumps({"version": "\x1b[2J0.32" + "x" * 100})
    for told, expected in ((version, "?[2J0.32" + "x" * 32), ('{"version": 3}', None), ("[" * 100_000, None)):
        server.answers["/version"] = answer(told.encode())
        assert load_pair(server=pair.client.address).server.version == expected


RUNNING = "vllm:num_requests_running 1\n"
DRAFTS, PLACES = (f"vllm:spec_decode_num_{name}_total" for name in ("drafts", "accepted_tokens_per_pos"))


def test_counters_that_cannot_be_are_not_told_and_those_of_many_engines_are_read():
    for text in (
        *(f'{DRAFTS}{{a="b"}} {value}\n' for value in ("-1", "1e300", "NaN", "+Inf", "x")),
        RUNNING + "".join(f'{PLACES}{{position="{place}"}} 1\n' for place in range(1_001)),
        "<html>\0",
        "",
    ):
        assert counted_in(text) is None, text
    assert counted_in(RUNNING) == (0, 0, 0) == counted_in(f"{RUNNING}{DRAFTS}{{{'}' * 90_000}\n")
    text = RUNNING
    for engine in range(64):
        text += f'{DRAFTS}{{engine="{engine}",model_name="a\\" b, c"}} 5.0 17000 # {{a="b"}} 0.5 1.7\r\n'
        for place in range(100):
            text += f'{PLACES}{{engine="{engine}",position="{place}"}} 3.0\n'
    assert counted_in(text) == Counted(100, 320, 0)


@pytest.mark.parametrize("hostile", [silence, endless(b": still here\n\n"), endless(EMPTY)], ids=range(3))
def test_stop_ends_a_run_whatever_is_sent(served, hostile):
    (server, pair), gate = served, Gate()
    server.before_chunk = lambda number, write: hostile(write, gate) if number == 1 else None
    run = stream(pair, "Once", Params(max_new_tokens=500, temperature=0))
    reading = threading.Thread(target=lambda: list(run))
    reading.start()
    assert gate.reached.wait(60)
    run.close()
    assert run.trace.finish == "cancelled" and not gate.was_missed
    gate.opened.set()
    reading.join(60)
    assert not reading.is_alive()


@pytest.mark.parametrize("path", ["/metrics", "/tokenize"])
def test_stop_ends_a_run_that_waits_for_an_answer(served, path, monkeypatch):
    """Both are asked before the text."""
    monkeypatch.setattr("specdemo.servers.client.OPTIONAL_SECONDS", 600.0)
    (server, pair), gate = served, Gate()
    server.before_answer = lambda asked: gate.hold() if asked == path else None
    with stream(pair, "Once", SHORT, is_over=gate.reached.is_set) as run:
        assert len(list(run)) <= 1
    assert run.trace.finish == "cancelled" and not gate.was_missed
    gate.opened.set()
    assert not server.requests, "nothing is asked for any more"
    assert generate(pair, "Once", SHORT).text == TEXT


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_what_is_closed_before_it_is_sent_is_not_sent(scheme, monkeypatch):
    """While the host's name is looked up, and in a TLS handshake that the server does not answer."""
    gate, look_up = Gate(), socket.getaddrinfo
    gate.opened.set() if scheme == "https" else None
    monkeypatch.setattr(socket, "getaddrinfo", lambda *given, **more: gate.hold() or look_up(*given, **more))
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"{scheme}://127.0.0.1:{server.getsockname()[1]}"
        exchange = Client(address).stream(Request("/", {"prompt": "Once"}, 8, 5, 20))
        assert gate.reached.wait(60)
        hello = server.accept()[0] if scheme == "https" else None
        assert hello is None or hello.recv(1) == b"\x16"
        exchange.close()
        gate.opened.set()
        connection = hello or server.accept()[0]
        connection.settimeout(CONNECT_SECONDS / 2)  # it would end by itself after these
        assert b"Once" not in b"".join(iter(lambda: connection.recv(9_999), b""))


def test_what_cannot_even_be_asked_and_a_long_status_line_are_said_in_a_sentence(monkeypatch):
    long = httpx.Response(500, stream=httpx.ByteStream(b""), extensions={"reason_phrase": b"x" * 90_000})
    with pytest.raises(ServerError, match="500: x{300}$"):
        Client("http://host")._content(long, 9)
    with pytest.raises(ServerError, match="cannot be reached: "):
        load_pair(server=f"http://{'a' * 70}.com")
    monkeypatch.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError))
    with pytest.raises(ServerError, match="no more threads"):
        load_pair(server="http://127.0.0.1:9")


def test_a_name_hides_the_host_in_the_server_s_words_alone():
    client = Client("http://key:80", name=r"Server \1")
    assert str(client.error("wants one: set --server-key-from-env")).endswith("set --server-key-from-env")
    with pytest.raises(ServerError, match=r"^Server .1 gave the run up: Server .1 is full: Server .1, keys$"):
        client.event(b'{"error": "KEY:80 is full: [key], keys"}')


def test_an_end_that_comes_late_is_told_as_silence(served, monkeypatch):
    _, pair = served
    late = Mock(asked_at=0.0)
    late.next.side_effect = [(chunk()[6:], 1.0), (chunk((), "", finish_reason="length")[6:], 99.0), None]
    monkeypatch.setattr(pair.client, "stream", lambda request: late)
    with pytest.raises(ServerError, match="has sent no token for 60 s"):
        generate(pair, "Once", SHORT)


def test_a_load_does_not_wait_for_a_server_that_goes_on_without_tokens(served, monkeypatch):
    monkeypatch.setattr("specdemo.servers.client.READ_SECONDS", 0.5)
    (server, pair), gate = served, Gate()
    server.before_chunk = lambda number, write: endless(EMPTY)(write, gate) if number == 1 else None
    with pytest.raises(ServerError, match="no token for 0.5 s"):
        load_pair(server=pair.client.address)
    gate.opened.set()


def test_a_prompt_s_tokens_that_cannot_be_are_not_told(served):
    server, pair = served
    for ids in ([1, 2**31], [True], ["1"], [1] * 30_000, {"1": 1}):
        server.answers["/tokenize"] = answer(json.dumps({"tokens": ids}).encode())
        assert generate(pair, "Once", SHORT).prompt_ids == (1, 2, 3)
    server.answers["/tokenize"] = answer(b" " * 3_000_000)
    with pytest.raises(ServerError, match="/tokenize of more than 2,240,048 "):
        generate(pair, "Once", SHORT)


ROOM = Request("", {}, 24, 2, 100)
ANSWERS = [(("eagle3",), VllmAnswer), (("draft", "llama-cpp"), LlamaAnswer)]
STRANGE: list[Any] = [
    *(None, True, False, "", "x" * 2_000, "\ud800", "\x00", [], {}, [[]], {"a": 1}, [None] * 2_000),
    *(0, -1, 1, 2**31, 2**53, 2**63, 10**12, 10**400, 1e308, -1e308, 0.5, float("inf"), float("nan")),
]


def mutated(value: Any, chance: random.Random) -> Any:
    """The value with one of its parts in another form."""
    if isinstance(value, (dict, list)) and value and chance.random() < 0.93:
        keys = list(value) if isinstance(value, dict) else range(len(value))
        key, changed = chance.choice(keys), value.copy()
        changed[key] = mutated(value[key], chance)
        if chance.random() < 0.05:
            changed.pop(key)
        return changed
    match chance.randrange(6), value:
        case 0 | 2, list() | str():
            return value * chance.choice([2, 500])
        case 1, int() | float():
            return value * chance.choice([-1, 2, 10**9])
        case 3, _:
            for _ in range(chance.choice([1, 150])):
                value = [value]
            return value
    return chance.choice(STRANGE)


@pytest.mark.parametrize(("recording", "kind"), ANSWERS)
def test_mutations_of_what_was_recorded_end_in_sentences(recording, kind):
    kept, chance, outcomes = recorded(*recording)["events"], random.Random(7), set()
    for _ in range(150):
        events = kept.copy()
        for _ in range(chance.choice([1, 1, 3])):
            place = chance.choice([0, 1, len(events) - 1, chance.randrange(len(events))])
            events[place] = mutated(events[place], chance)
        outcomes.add(replayed(events, kind(UNCOUNTED, ROOM)))
    assert outcomes == {"read", "refused"}


def replayed(events: list[Any], answer: Answer) -> str:
    """Whether they are read, or refused in a sentence; any other error is raised."""
    trace = Trace.begin(Started(served_trace().pair, {}, Params(), "Once", ()))
    try:
        if not all(isinstance(event, dict) for event in events):
            return "refused"  # before a chunk is read of it
        answer.chunks += [one for event in events for one in answer.read(event) if one.tokens]
        for index, one in enumerate(answer.chunks):
            trace.add(round_of(index, one, 4, True))
        always = answer.settle(lambda: False)
        trace.revise([round_of(index, one, 4, always) for index, one in enumerate(answer.chunks)])
        Trace.from_json(trace.to_json())
    except Misread as error:
        assert len(str(error)) < 1_000
        return "refused"
    return "read"
