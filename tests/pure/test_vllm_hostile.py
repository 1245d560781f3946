"""A server that is wrong or hostile: what it sends is bounded, in a sentence, and Stop ends a run whatever it
does."""

import gzip
import json
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from specdemo import Params, Trace, generate, load_pair, stream
from specdemo.servers.chunks import ChunkReader, Misread
from specdemo.servers.client import Client, Room, ServerError
from specdemo.servers.counters import counters_of, server_stats
from specdemo.servers.rounds import round_of, settled, with_last
from specdemo.servers.software import most_ids
from specdemo.servers.vllm import VllmReader
from tests.recorded import recorded
from tests.stand_ins.vllm import MODEL, TEXT, BreakOff, Gate, StandIn, connected, line

SHORT = Params(max_new_tokens=8, temperature=0)
Write = Callable[[bytes], None]


def chunk(ids=(8,), text=" x", **more: Any) -> bytes:
    """A chunk of a completion, with anything in it."""
    return line({"choices": [{"text": text, "token_ids": list(ids)} | more]})


def sends(content: bytes, times: int = 1) -> Callable[[Write, Gate], None]:
    def send(write: Write, gate: Gate) -> None:
        for _ in range(times):
            write(content)

    return send


def breaks_off(write: Write, gate: Gate) -> None:
    raise BreakOff


def half_a_chunk(write: Write, gate: Gate) -> None:
    write(b'data: {"choices": [{"te')
    raise BreakOff


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
HOSTILE = {  # what a server sends after its second chunk, and what is said of it
    "breaks off": (breaks_off, "broke off"),
    "half a chunk": (half_a_chunk, "broke off"),
    "silence": (silence, "has sent no token for 0.2 s"),
    "empty chunks": (endless(EMPTY), "has sent no token for 0.2 s"),
    "more than was asked for": (sends(EMPTY, 20), "does not end its answer: it has sent more than was asked"),
    "not UTF-8": (sends(b'data: {"choices": "\xff\xfe"}\n\n'), "sent bytes that are not UTF-8"),
    "not JSON": (sends(b"data: <html>\n\n"), "sent something that is not JSON"),
    "a line without end": (sends(b"x" * 100_000, 30), "sent a line that is too long: more than 2,240,0"),
    "comments": (sends(b": hi\n" * 20_000, 50), r"sent more than 4,27\d,\d{3} bytes for 8 tokens"),
    "an error": (
        sends(line({"error": {"message": "\x1b[2J" + "no" * 10_000, "code": 500}})),
        r"gave the run up: \?\[2Jnono",
    ),
    "an abort": (sends(chunk((), "", finish_reason="abort")), "gave the run up: abort"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_run_that_goes_wrong_keeps_what_came_and_the_next_one_works(served, kind):
    (server, pair), (hostile, words), gate = served, HOSTILE[kind], Gate()
    server.before_chunk = lambda number, write: hostile(write, gate) if number == 2 else None
    run = stream(pair, "Once", SHORT)
    with pytest.raises(ServerError, match=words) as caught:
        for _ in run:
            if "no token" in words and len(run.trace.rounds) == 2:
                pair.client.read_seconds = 0.2
    gate.opened.set()
    told = str(caught.value)
    assert told.startswith(f"the server at {pair.client.address} ") and told.isprintable()
    assert len(told) < 6_000 and run.trace.finish == "error" and run.trace.error == told
    assert Trace.from_json(run.trace.to_json()).text.startswith(" word5 word6 word7 word8")
    server.behave()
    pair.client.read_seconds = 60.0
    assert generate(pair, "Once", SHORT).text == TEXT


@pytest.mark.parametrize("data", [b'{"x": NaN}', b'"\\ud800"', b"9" * 5_000, b"[" * 300 + b"]" * 300])
def test_json_that_is_not_as_vllm_sends_it_is_refused(data):
    with pytest.raises(ServerError, match="sent something that is not JSON, or not as a server sends it: "):
        Client("http://host").parsed(data)


def test_what_contradicts_the_text_at_its_end_is_an_error_and_the_text_stays():
    with connected(detailed=True) as (server, pair):
        server.tells = {"per_step_drafted": [3, 2, 2, 2]}
        run = stream(pair, "Once", SHORT)
        with pytest.raises(ServerError, match="counts 3 drafts in a round, but says 2 at most"):
            list(run)
    assert run.trace.text == TEXT


def test_what_comes_after_the_end_is_no_part_of_the_text(served):
    server, pair = served
    server.before_chunk = lambda number, write: write(chunk(finish_reason="stop")) if number == 5 else None
    run = stream(pair, "Once", Params(max_new_tokens=50, temperature=0))
    with pytest.raises(ServerError, match="goes on after the end of its text"):
        list(run)
    assert run.trace.text == TEXT


def answer(content: bytes = b"", status: int = 200, **headers: str) -> tuple[int, dict[str, str], bytes]:
    return status, {name.replace("_", "-"): value for name, value in headers.items()}, content


def models(**more: Any) -> tuple[int, dict[str, str], bytes]:
    one = {"id": MODEL, "owned_by": "vllm", "max_model_len": 512} | more
    return answer(json.dumps({"data": [one]}).encode())


def at(path: str, *given: Any, **headers: Any) -> dict[str, Any]:
    """The settings of a stand-in that gives this answer there."""
    return {"answers": {path: given[0] if isinstance(given[0], tuple) else answer(*given, **headers)}}


LIST, RUN = "/v1/models", "/v1/completions"
GZIP = {"Content_Encoding": "gzip"}
UNUSABLE = [
    (at(LIST, b"", 404), "has no /v1/models: this needs a server of vLLM"),
    (at(LIST, b"<html>"), "sent something that is not JSON"),
    (at(LIST, b'{"data": []}'), "serves no model"),
    (at(LIST, b"[1]"), "serves no model"),
    (at(LIST, b'{"error": "loading"}', 503), "answers with status 503: loading"),
    (
        at(LIST, b"", 302, Location="http://127.0.0.1:9/"),
        "answers from another address, which is not followed",
    ),
    (
        at(LIST, models(max_model_len=10**400)),
        "would send: data.0.max_model_len: Input should be less",
    ),
    (
        at(LIST, models(max_model_len=-1)),
        "would send: data.0.max_model_len: Input should be greater",
    ),
    (
        at(LIST, models(id="x" * 5_000)),
        "would send: data.0.id: String should have at most 1000 char",
    ),
    (at(LIST, b" " * 2_000_001), "sent an answer to /v1/models of more than 2,000,000 bytes"),
    (at("/metrics", b"# no\n" * 1_600_001), "sent an answer to /metrics of more than 8,000,000 bytes"),
    (at(LIST, gzip.compress(b"\n"), **GZIP), "compresses its answers, although"),
    (at(RUN, gzip.compress(b"\n"), **GZIP), "compresses its answers, although"),
    ({"owner": "ollama"}, "is of ollama and not vLLM"),
    ({"owner": "sglang"}, "is of sglang and not vLLM or llama.cpp: only these tell their rounds"),
    (at(RUN, b'{"error": {"message": "no"}}', 400), "with status 400: no"),
    (at(RUN, b"data: [DONE]\n\n"), "has sent no token"),
    ({"rounds": ((1, 2), (3,))}, "sends several rounds in a chunk"),
]


@pytest.mark.parametrize(("settings", "words"), UNUSABLE)
def test_a_server_that_cannot_be_used_is_refused_in_a_sentence(served, settings, words):
    server, pair = served
    server.behave(**settings)
    with pytest.raises(ServerError, match=words) as caught:
        load_pair(vllm=pair.client.address)
    told = str(caught.value)
    assert told.startswith(f"the server at {pair.client.address} ") and told.isprintable()
    assert len(told) < 1_000


def test_what_a_server_tells_of_itself_is_shown_on_one_line_and_left_out_where_it_cannot_be_read(served):
    server, pair = served
    config = {"speculative_config": {"method": "\x1b[31m\u202eeagle"}, "parallel_config": None}
    version = {"version": "\x1b[2J0.32" + "x" * 100}
    for of_version, of_config, expected in (
        (json.dumps(version), json.dumps({"vllm_config": config}), ("?[2J0.32" + "x" * 32, "?[31m?eagle")),
        ('{"version": 3}', '{"vllm_config": 3}', (None, None)),
        ("[" * 100_000, "[" * 100_000, (None, None)),
    ):
        server.answers["/version"] = answer(of_version.encode())
        server.answers["/server_info?config_format=json"] = answer(of_config.encode())
        told = load_pair(vllm=pair.client.address).server
        assert (told.version, told.method) == expected


NAME = f'{{model_name="{MODEL}"}}'
RUNNING = f"vllm:num_requests_running{NAME} 1\n"


def placed(place: object) -> str:
    name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    return f'{name}{{model_name="{MODEL}",position="{place}"}} 1\n'


@pytest.mark.parametrize(
    "text",
    [
        *(f"vllm:num_requests_running{NAME} {value}\n" for value in ("-1", "1e300", "NaN", "+Inf", "-1e400")),
        RUNNING * 20_001,
        RUNNING + "".join(map(placed, range(1_001))),
        RUNNING + placed(10**9),
        RUNNING + placed("9" * 9_000),
        f'vllm:num_requests_running{{model_name="{"x" * 10_000}"}} 1\n',
        "vllm:num_requests_running{" + "\\" * 9_000 + "\n",
    ],
    ids=range(11),
)
def test_counters_that_cannot_be_are_not_told(text):
    assert counters_of(text, MODEL) is None


def test_counters_of_many_engines_are_read():
    sample = 'vllm:request_success_total{{engine="{0}",finished_reason="{1}",model_name="stand-in"}} 2.0\n'
    place = 'vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="{0}",position="{1}"}} 3.0\n'
    bucket = 'vllm:e2e_request_latency_seconds_bucket{{engine="{0}",le="{1}",model_name="stand-in"}} 4.0\n'
    text = ""
    for engine in range(64):
        text += "".join(sample.format(engine, reason) for reason in ("stop", "length", "abort"))
        text += "".join(place.format(engine, number) for number in range(100))
        text += "".join(bucket.format(engine, number) for number in range(300))
    counters = counters_of(text, MODEL)
    assert counters.ended == 384 and counters.by_place == (192,) * 100


def test_a_difference_below_zero_is_none():
    def counted(drafts: int):
        text = StandIn().metrics().replace("spec_decode_num_drafts_total{", "others{")
        return counters_of(f"{text}vllm:spec_decode_num_drafts_total{NAME} {drafts}\n", MODEL)

    before, after = counted(9), counted(3)
    assert before.drafts == 9 and after.since(before) is None and before.since(after).drafts == 6


@pytest.mark.parametrize(
    "hostile", [silence, endless(b": still here\n\n"), endless(EMPTY)], ids=["silence", "comments", "empty"]
)
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


@pytest.mark.parametrize("path", ["/metrics", "/tokenize"])
def test_stop_ends_a_run_that_waits_for_an_answer(served, path, monkeypatch):
    """Both are asked before the text."""
    monkeypatch.setattr("specdemo.servers.client.ASK_SECONDS", 600.0)
    monkeypatch.setattr("specdemo.servers.client.OPTIONAL_SECONDS", 600.0)
    (server, pair), gate = served, Gate()
    server.before_answer = lambda asked: gate.hold() if asked == path else None
    with stream(pair, "Once", SHORT, is_over=gate.reached.is_set) as run:
        assert len(list(run)) <= 1
    assert run.trace.finish == "cancelled" and not gate.was_missed
    gate.opened.set()
    assert not server.requests, "nothing is asked for any more"
    assert generate(pair, "Once", SHORT).text == TEXT


@pytest.mark.parametrize("hostile", [silence, endless(EMPTY)], ids=["silence", "empty"])
def test_a_load_does_not_wait_for_a_server_that_goes_on_without_tokens(served, hostile, monkeypatch):
    monkeypatch.setattr("specdemo.servers.client.READ_SECONDS", 0.5)
    (server, pair), gate = served, Gate()
    server.before_chunk = lambda number, write: hostile(write, gate) if number == 1 else None
    with pytest.raises(ServerError, match="has sent no token for 0.5 s"):
        load_pair(vllm=pair.client.address)
    gate.opened.set()


def test_a_prompt_s_tokens_that_cannot_be_are_not_told(served):
    server, pair = served
    for ids in ([1, 2**31], [True], [-1], ["1"], [1] * 30_000, {"1": 1}):
        server.answers["/tokenize"] = answer(json.dumps({"tokens": ids}).encode())
        assert generate(pair, "Once", SHORT).prompt_ids == (1, 2, 3)
    server.answers["/tokenize"] = answer(b" " * 3_000_000)
    with pytest.raises(ServerError, match="sent an answer to /tokenize of more than 2,240,048 bytes"):
        generate(pair, "Once", SHORT)


def test_what_a_large_request_brings_has_room():
    """A prompt of 300,000 tokens; a draft of 256 tokens with fifty alternatives each."""
    ids = list(range(300_000))
    room = Room(1, 50, most_ids(ids))
    event = {"choices": [{"text": "a", "token_ids": [5], "prompt_token_ids": ids}]}
    assert len(json.dumps(event)) < room.line < room.stream
    assert len(VllmReader(room).read(event)[0].prompt_ids) == len(ids)
    one = {"token": " 知識", "logprob": -12.345678901234, "bytes": list(" 知識".encode())}
    content = [one | {"top_logprobs": [one | {"token": f"{number}"} for number in range(51)]}] * 256
    choice = {"delta": {"content": " 知識" * 256}, "token_ids": [299_999] * 256}
    event = {"choices": [choice | {"logprobs": {"content": content}}]}
    room = Room(256, 50, most_ids("a"))
    assert len(json.dumps(event, ensure_ascii=False).encode()) < room.line
    assert len(VllmReader(room).read(event)[0].pieces) == 256


# Mutations of what a real server sends.

STRANGE: list[Any] = [
    *(None, True, False, "", "x" * 2_000, "\ud800", "\x00", [], {}, [[]], {"a": 1}, [None] * 2_000),
    *(0, -1, 1, 2**31, 2**53, 2**63, 10**12, 10**400, 1e308, -1e308, 0.5, float("inf"), float("nan")),
]
NOISE = ("9" * 400, "-", "e9", "NaN", "Inf", "{", "}", '"', "\\", "\n", " ", "\x00", "\ud800", ",", "=", "#")


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
        case 0, list():
            return value * chance.choice([2, 500])
        case 1, int() | float():
            return value * chance.choice([-1, 2, 10**9])
        case 2, str():
            return value * chance.choice([2, 500])
        case 3, _:
            for _ in range(chance.choice([1, 150])):
                value = [value]
            return value
    return chance.choice(STRANGE)


def test_mutations_of_what_was_recorded_end_in_sentences():
    kept, chance = recorded("eagle3"), random.Random(7)
    outcomes = set()
    for _ in range(150):
        events = kept["events"].copy()
        for _ in range(chance.choice([1, 1, 3])):
            place = chance.choice([0, 1, len(events) - 1, chance.randrange(len(events))])
            events[place] = mutated(events[place], chance)
        outcomes.add(replayed(events, VllmReader(Room(24, 2, 100))))
    assert outcomes == {"read", "refused"}


def replayed(events: list[Any], reader: ChunkReader) -> str:
    """Whether they are read, or refused in a sentence; any other error is raised."""
    rounds, told = [], None
    try:
        for event in events:
            if not isinstance(event, dict):
                return "refused"  # before a chunk is read of it
            for one in reader.read(event):
                told = one.told or told
                if one.pieces:
                    rounds.append(round_of(len(rounds), one, 1.0, 4, True))
        if rounds and told and told.steps:
            settled(rounds, told.steps)
            server_stats(None, told, 1.0)
            with_last(rounds, told.steps.num_accepted_draft_tokens, told.steps.num_draft_tokens)
    except Misread as error:
        assert len(str(error)) < 1_000
        return "refused"
    return "read"


def test_mutations_of_counters_are_read_or_left_out():
    kept, chance = recorded("eagle3"), random.Random(5)
    model = kept["models"]["data"][0]["id"]
    for _ in range(100):
        before, after = (counters_of(with_noise(lines, chance), model) for lines in kept["metrics"])
        if before is not None and after is not None and (added := after.since(before)) is not None:
            stats = server_stats(added, None, 1.0)
            assert all(0 <= count < 1e12 for count in (stats.drafts or 0, *stats.accepted_by_place))


def with_noise(lines: list[str], chance: random.Random) -> str:
    text = "\n".join(lines) + "\n"
    for _ in range(chance.choice([0, 1, 5])):
        place = chance.randrange(len(text))
        text = text[:place] + chance.choice(NOISE) + text[place + chance.choice([0, 1, 30]) :]
    return text


@pytest.mark.slow
@pytest.mark.parametrize("mutations", [15, pytest.param(200, marks=pytest.mark.long)])
def test_mutations_of_what_a_server_tells_of_itself_end_in_sentences(served, mutations):
    (server, pair), chance = served, random.Random(3)
    model = recorded("eagle3")["models"]
    config = {"speculative_config": {"method": "eagle"}, "parallel_config": {"tensor_parallel_size": 2}}
    told = {
        LIST: json.loads(json.dumps(model).replace(model["data"][0]["id"], MODEL)),
        "/version": {"version": "0.32.0"},
        "/server_info?config_format=json": {"vllm_config": config},
    }
    connected = 0
    for _ in range(mutations):
        path = chance.choice(list(told))
        server.answers = {path: answer(json.dumps(mutated(told[path], chance)).encode())}
        try:
            trace = generate(load_pair(vllm=pair.client.address), "Once", SHORT)
            connected += Trace.from_json(trace.to_json()).text == TEXT
        except ServerError as error:
            assert str(error).isprintable() and len(str(error)) < 1_000
    assert 0 < connected < mutations
