"""A server that is wrong or hostile: what it sends is bounded, in a sentence, and Stop ends a run whatever it
does."""

import gzip
import json
import random
import threading
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from specdemo import Params, Trace, generate, load_pair, stream
from specdemo.vllm.chunks import ChunkReader, Misread, Steps, chunk_of
from specdemo.vllm.client import Room, ServerError
from specdemo.vllm.counters import counters_of, server_stats
from specdemo.vllm.rounds import MOST_DRAFTED, round_of, settled, with_last
from tests.recorded import recorded
from tests.stand_ins.vllm import MODEL, ROUNDS, TEXT, StandIn, line

SHORT = Params(max_new_tokens=8, temperature=0)
Write = Callable[[bytes], None]


def chunk(ids=(8,), texts=(" x",), logprobs: Any = None, **more: Any) -> bytes:
    """A chunk of a completion, with anything in it."""
    return line({"choices": [{"text": "".join(texts), "token_ids": list(ids), "logprobs": logprobs} | more]})


def alternatives(write: Write) -> None:
    top = {f"word {number}": -5.0 for number in range(60_000)}
    write(chunk(logprobs={"tokens": [" x"], "token_logprobs": [-1.0], "top_logprobs": [top]}))


def a_long_text(write: Write) -> None:
    write(chunk(texts=["x" * 1_900_000]))


def a_long_line(write: Write) -> None:
    write(chunk(texts=["x" * 3_900_000]))


def long_names(write: Write) -> None:
    top = {"y" * 5_000: -5.0}
    write(chunk(logprobs={"tokens": [" x"], "token_logprobs": [-1.0], "top_logprobs": [top]}))


def long_texts(write: Write) -> None:
    for _ in range(8):
        write(chunk(texts=["x" * 999]))


def many_tokens(write: Write) -> None:
    write(chunk(ids=[8] * 10_000))


def more_tokens(write: Write) -> None:
    for _ in range(5):
        write(chunk())


def many_choices(write: Write) -> None:
    write(line({"choices": [{"text": "", "token_ids": []}] * 10_000}))


def likelier_than_sure(write: Write) -> None:
    write(chunk(logprobs={"tokens": [" x"], "token_logprobs": [5.0]}))


def nan(write: Write) -> None:
    write(b'data: {"choices": [{"text": "x", "token_ids": [5], "x": NaN}]}\n\n')


def half_a_surrogate(write: Write) -> None:
    write(b'data: {"choices": [{"text": "\\ud800", "token_ids": [5]}]}\n\n')


def a_huge_integer(write: Write) -> None:
    write(b'data: {"choices": [{"text": "x", "token_ids": [' + b"9" * 5_000 + b"]}]}\n\n")


def a_large_integer(write: Write) -> None:
    write(b'data: {"choices": [{"text": "x", "token_ids": [' + b"9" * 4_000 + b"]}]}\n\n")


def depth(write: Write) -> None:
    write(b'data: {"choices": ' + b"[" * 500_000 + b"]" * 500_000 + b"}\n\n")


def newlines(write: Write) -> None:
    for _ in range(200):
        write(b"\n" * 100_000)


def comments(write: Write) -> None:
    for _ in range(200):
        write(b": still here\n" * 10_000)


def a_long_prompt(write: Write) -> None:
    write(chunk(prompt_token_ids=[1] * 500_000))


def an_escape(write: Write) -> None:
    write(line({"error": {"message": "\x1b[2J" + "no" * 10_000, "code": 500}}))


def empty_events(write: Write) -> None:
    for _ in range(15):
        time.sleep(0.5)
        write(chunk(ids=[], texts=[]))


@pytest.mark.parametrize(
    ("hostile", "words"),
    [
        (
            alternatives,
            "would not send: choices.0.logprobs.top_logprobs.0: Dictionary should have at most 51",
        ),
        (a_long_text, "sent 1,900,000 characters as the text of a chunk of 1 tokens"),
        (a_long_line, "sent a line that is too long: more than 2,240,0"),
        (
            long_names,
            "would not send: choices.0.logprobs.top_logprobs.0.y.*should have at most 1000 characters",
        ),
        (long_texts, r"sent \d,\d{3} characters as the text of \d tokens"),
        (many_tokens, "would not send: choices.0.token_ids: List should have at most 1001 items"),
        (more_tokens, "does not end its answer: it has sent more tokens than was asked for"),
        (many_choices, "would not send: choices: List should have at most 1 item"),
        (
            likelier_than_sure,
            "would not send: choices.0.logprobs.token_logprobs.0: Input should be less than",
        ),
        (nan, "sent something that is not JSON, or not as vLLM sends it: expected value"),
        (half_a_surrogate, "sent something that is not JSON, or not as vLLM sends it: .*hex escape"),
        (a_huge_integer, "sent something that is not JSON, or not as vLLM sends it: number out of range"),
        (a_large_integer, "would not send: choices.0.token_ids.0: Input should be less than 2147483648"),
        (depth, "sent something that is not JSON, or not as vLLM sends it: recursion limit exceeded"),
        (newlines, r"sent more than 4,27\d,\d{3} bytes for 8 tokens"),
        (comments, r"sent more than 4,27\d,\d{3} bytes for 8 tokens"),
        (a_long_prompt, "says that the prompt has 500,000 tokens, which it cannot have"),
        (an_escape, r"gave the run up: \?\[2Jnono"),
        pytest.param(empty_events, "has sent no token for 2 s", marks=pytest.mark.slow),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_a_stream_can_have_is_bounded(hostile, words):
    server = StandIn(ROUNDS)
    with server.serving() as url:
        pair = load_pair(vllm=url)
        server.before_chunk = lambda number, write: hostile(write) if number == 2 else None
        pair.client.read_seconds = 2.0 if hostile is empty_events else 60.0
        run, began = stream(pair, "Once", SHORT), time.monotonic()
        with pytest.raises(ServerError, match=words) as caught:
            for _ in run:
                pass
        assert time.monotonic() - began < 20
        assert len(str(caught.value)) < 6_000 and str(caught.value).isprintable()
        assert run.trace.finish == "error" and run.trace.error == str(caught.value)
        assert Trace.from_json(run.trace.to_json()).text.startswith(" word5 word6 word7 word8")
        server.before_chunk = lambda number, write: None
        assert generate(pair, "Once", SHORT).text == TEXT


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (
            {"per_step_drafted": [10**12, 2, 2, 2]},
            "per_step_drafted.0: Input should be less than or equal to 1000",
        ),
        ({"per_step_drafted": [2] * 100_000}, "per_step_drafted: List should have at most 32768 items"),
        ({"num_spec_tokens": 10**9}, "num_spec_tokens: Input should be less than or equal to 1000"),
        ({"num_spec_steps": 10**400}, "num_spec_steps: Input should be less than or equal to 1000000000"),
        ({"per_step_drafted": [3, 2, 2, 2]}, "counts 3 drafts in a round, but says 2 at most"),
    ],
)
def test_what_a_server_tells_of_its_drafts_is_bounded(told, words):
    server = StandIn(ROUNDS, detailed=True)
    with server.serving() as url:
        pair = load_pair(vllm=url)
        server.tells = told
        run, began = stream(pair, "Once", SHORT), time.monotonic()
        with pytest.raises(ServerError, match=words):
            list(run)
        assert run.trace.text == TEXT and time.monotonic() - began < 20
        server.tells = {}
        assert generate(pair, "Once", SHORT).text == TEXT


def test_so_many_drafts_that_nobody_can_look_at_them_are_refused():
    one = chunk_of({"choices": [{"text": "a", "token_ids": [5]}]})
    rounds = [round_of(index, one, 1.0, 1_000, False) for index in range(MOST_DRAFTED // 1_000 + 2)]
    steps = [1_000] * (len(rounds) - 1)
    told = Steps(
        num_spec_tokens=1_000,
        num_spec_steps=len(steps),
        num_draft_tokens=sum(steps),
        num_accepted_draft_tokens=0,
        per_step_accepted=[0] * len(steps),
        per_step_drafted=steps,
    )
    with pytest.raises(Misread, match="has drafted more than 1,000,000 tokens: ask for a shorter text"):
        settled(rounds, told)


def answer(content: bytes, **headers: str) -> tuple[int, dict[str, str], bytes]:
    return 200, {name.replace("_", "-"): value for name, value in headers.items()}, content


def models(**more: Any) -> bytes:
    return json.dumps({"data": [{"id": MODEL, "owned_by": "vllm", "max_model_len": 512} | more]}).encode()


BOMB = gzip.compress(b"\n" * 100_000_000)
LIST = "sent a list of models that vLLM would not send: data.0."


@pytest.mark.parametrize(
    ("path", "content", "words"),
    [
        ("/v1/models", answer(models(max_model_len=10**400)), f"{LIST}max_model_len: Input should be less"),
        ("/v1/models", answer(models(max_model_len=-1)), f"{LIST}max_model_len: Input should be greater"),
        ("/v1/models", answer(models(id="x" * 5_000)), f"{LIST}id: String should have at most 1000 char"),
        ("/v1/models", answer(b'{"data": ["\\ud800"]}'), "sent something that is not JSON"),
        ("/v1/models", answer(b'{"data": ' + b"[" * 900_000), "sent something that is not JSON"),
        ("/v1/models", answer(b" " * 3_000_000), "sent an answer to /v1/models of more than 2,000,000 bytes"),
        ("/v1/models", answer(BOMB, Content_Encoding="gzip"), "compresses its answers, although"),
        ("/version", answer(b" " * 3_000_000), "sent an answer to /version of more than 2,000,000 bytes"),
        (
            "/metrics",
            answer(b"# no\n" * 4_000_000),
            "sent an answer to /metrics of more than 8,000,000 bytes",
        ),
        ("/metrics", answer(BOMB, Content_Encoding="gzip"), "compresses its answers, although"),
        ("/v1/completions", answer(BOMB, Content_Encoding="gzip"), "compresses its answers, although"),
    ],
)
def test_what_a_server_tells_of_itself_is_bounded(path, content, words):
    server = StandIn(ROUNDS)
    with server.serving() as url:
        server.answers[path] = content
        tracemalloc.start()
        try:
            with pytest.raises(ServerError, match=words) as caught:
                load_pair(vllm=url)
            assert tracemalloc.get_traced_memory()[1] < 150_000_000  # with what the stand-in itself holds
        finally:
            tracemalloc.stop()
        assert len(str(caught.value)) < 1_000 and str(caught.value).isprintable()
        del server.answers[path]
        assert generate(load_pair(vllm=url), "Once", SHORT).text == TEXT


@pytest.mark.parametrize(
    "version",
    [b"[" * 100_000, b'{"version": "\\ud800"}', b'{"version": ' + b"9" * 5_000 + b"}", b'{"version": 3}'],
    ids=["deep", "surrogate", "integer", "number"],
)
def test_a_version_that_cannot_be_read_is_not_told(version):
    answers = {"/version": answer(version), "/server_info?config_format=json": answer(version)}
    with StandIn(ROUNDS, answers=answers).serving() as url:
        pair = load_pair(vllm=url)
        assert pair.server.version is None and pair.server.method is None
        assert Trace.from_json(generate(pair, "Once", SHORT).to_json()).text == TEXT


def test_what_a_server_tells_of_itself_is_shown_on_one_line():
    config = {"speculative_config": {"method": "\x1b[31m\u202eeagle"}, "parallel_config": None}
    answers = {
        "/version": answer(json.dumps({"version": "\x1b[2J0.32" + "x" * 100}).encode()),
        "/server_info?config_format=json": answer(json.dumps({"vllm_config": config}).encode()),
    }
    with StandIn(ROUNDS, answers=answers).serving() as url:
        server = load_pair(vllm=url).server
    assert server.version == "?[2J0.32" + "x" * 32 and server.method == "?[31m?eagle"


NAME = f'{{model_name="{MODEL}"}}'
PLACE = f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{model_name="{MODEL}",position="%s"}} 1\n'
RUNNING = f"vllm:num_requests_running{NAME} 1\n"


@pytest.mark.parametrize(
    "text",
    [
        RUNNING * 400_000,  # 19 MB
        RUNNING + "".join(PLACE % place for place in range(5_000)),
        RUNNING + PLACE % 10**9,
        RUNNING + PLACE % ("9" * 9_000),
        f"vllm:num_requests_running{NAME} -1\n",
        f"vllm:num_requests_running{NAME} 1e300\n",
        f'vllm:num_requests_running{{model_name="{"x" * 2_000_000}"}} 1\n',
        "vllm:num_requests_running{" + 'a="b",' * 300_000 + "} 1\n",
        "vllm:num_requests_running{" + "\\" * 300_000 + "\n",
    ],
)
def test_counters_are_read_fast_or_not_at_all(text):
    began = time.thread_time()
    assert counters_of(text, MODEL) is None
    assert time.thread_time() - began < 3


def test_counters_of_many_engines_are_read():
    sample = 'vllm:request_success_total{{engine="{0}",finished_reason="{1}",model_name="stand-in"}} 2.0\n'
    place = 'vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="{0}",position="{1}"}} 3.0\n'
    bucket = 'vllm:e2e_request_latency_seconds_bucket{{engine="{0}",le="{1}",model_name="stand-in"}} 4.0\n'
    text = ""
    for engine in range(64):
        text += "".join(sample.format(engine, reason) for reason in ("stop", "length", "abort"))
        text += "".join(place.format(engine, number) for number in range(100))
        text += "".join(bucket.format(engine, number) for number in range(200))
    counters = counters_of(text, MODEL)
    assert counters.ended == 384 and counters.by_place == (192,) * 100


def counted(**more: Any):
    text = StandIn(ROUNDS).metrics()
    for name, value in more.items():
        text = text.replace(f"{name}{{", f"{name}_old{{") + f"vllm:{name}{NAME} {value}\n"
    return counters_of(text, MODEL)


def test_a_difference_below_zero_is_none():
    before, after = counted(spec_decode_num_drafts_total=9), counted(spec_decode_num_drafts_total=3)
    assert before.drafts == 9 and after.since(before) is None and before.since(after).drafts == 6


def test_a_draft_length_of_a_thousand_is_counted_at_once():
    steps = {"num_spec_tokens": 1_000, "num_spec_steps": 32_000, "num_draft_tokens": 10**6}
    steps |= {"num_accepted_draft_tokens": 10**6, "per_step_accepted": [1_000] * 32_000}
    one = {"choices": [], "metrics": {"speculative_decoding": steps}}
    began = time.thread_time()
    stats = server_stats(None, chunk_of(one).told, None)
    assert stats.accepted_by_place == (32_000,) * 1_000 and time.thread_time() - began < 1


def trickle(write: Write) -> None:
    write(b"data: ")
    for _ in range(200):
        write(b"x")
        time.sleep(0.05)


def keep_alive(write: Write) -> None:
    for _ in range(200):
        write(b": still here\n\n")
        time.sleep(0.05)


def empty_ones(write: Write) -> None:
    for _ in range(200):
        write(chunk(ids=[], texts=[]))
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("hostile", [trickle, keep_alive, empty_ones])
def test_stop_ends_a_run_whatever_is_sent(hostile):
    server = StandIn([(5,)] + [(6,)] * 300, probe=ROUNDS)
    begun = threading.Event()

    def before(number: int, write: Write) -> None:
        if number == 1:
            begun.set()
            hostile(write)

    with server.serving() as url:
        pair = load_pair(vllm=url)
        server.before_chunk = before
        run = stream(pair, "Once", Params(max_new_tokens=301, temperature=0))
        reading = threading.Thread(target=lambda: list(run))
        reading.start()
        assert begun.wait(30)
        time.sleep(0.3)
        began = time.monotonic()
        run.close()
        assert time.monotonic() - began < 3 and run.trace.finish == "cancelled"
        reading.join(15)


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/metrics", "/tokenize"])
def test_stop_ends_a_run_that_waits_for_an_answer(path):
    """Both are asked before the text."""
    server = StandIn(ROUNDS)
    with server.serving() as url:
        pair = load_pair(vllm=url)
        server.late[path] = 15.0
        over = threading.Event()
        threading.Timer(1.0, over.set).start()
        asked, began = len(server.requests), time.monotonic()
        with stream(pair, "Once", SHORT, is_over=over.is_set) as run:
            assert len(list(run)) <= 1
        assert time.monotonic() - began < 4 and run.trace.finish == "cancelled"
        assert len(server.requests) == asked, "nothing is asked for any more"
        server.late.clear()
        assert generate(pair, "Once", SHORT).text == TEXT


@pytest.mark.slow
def test_a_load_does_not_wait_for_a_server_that_goes_on_without_tokens(monkeypatch):
    monkeypatch.setattr("specdemo.vllm.client.READ_SECONDS", 2.0)

    def empty(number: int, write: Write) -> None:
        for _ in range(20 if number == 1 else 0):
            time.sleep(0.5)
            write(chunk(ids=[], texts=[]))

    with StandIn(ROUNDS, before_chunk=empty).serving() as url:
        began = time.monotonic()
        with pytest.raises(ServerError, match="has sent no token for 2 s"):
            load_pair(vllm=url)
        assert time.monotonic() - began < 8


def test_what_comes_after_the_end_is_no_part_of_the_text():
    server = StandIn(ROUNDS)
    with server.serving() as url:
        pair = load_pair(vllm=url)

        def more(number: int, write: Write) -> None:
            if number == len(ROUNDS):
                write(chunk(finish_reason="stop"))

        server.before_chunk = more
        run = stream(pair, "Once", Params(max_new_tokens=50, temperature=0))
        with pytest.raises(ServerError, match="goes on after the end of its text"):
            list(run)
    assert run.trace.text == TEXT


@pytest.mark.parametrize("ids", [[1, 2**31], [True], [-1], ["1"], [10**400], [1] * 30_000, {"1": 1}])
def test_a_prompt_s_tokens_that_cannot_be_are_not_told(ids):
    server = StandIn(ROUNDS)
    with server.serving() as url:
        pair = load_pair(vllm=url)
        server.answers["/tokenize"] = answer(json.dumps({"tokens": ids}).encode())
        assert generate(pair, "Once", SHORT).prompt_ids == (1, 2, 3)
        server.answers["/tokenize"] = answer(b" " * 3_000_000)
        with pytest.raises(ServerError, match="sent an answer to /tokenize of more than 2,240,048 bytes"):
            generate(pair, "Once", SHORT)
        del server.answers["/tokenize"]
        assert generate(pair, "Once", SHORT).text == TEXT


def test_a_prompt_of_a_million_tokens_has_room():
    ids = list(range(300_000)) * 4
    room = Room.of({"prompt": ids, "max_tokens": 1, "logprobs": 50})
    event = json.dumps({"choices": [{"text": "a", "token_ids": [5], "prompt_token_ids": ids}]})
    assert len(event) < room.line < room.stream
    assert len(ChunkReader(room).read(json.loads(event)).prompt_ids) == len(ids)


def test_a_draft_of_256_tokens_with_fifty_alternatives_each_has_room():
    one = {"token": " 知識", "logprob": -12.345678901234, "bytes": list(" 知識".encode())}
    content = [one | {"top_logprobs": [one | {"token": f"{number}"} for number in range(51)]}] * 256
    choice = {"delta": {"content": " 知識" * 256}, "token_ids": [299_999] * 256}
    event = {"choices": [choice | {"logprobs": {"content": content}}]}
    room = Room.of({"prompt": "a", "max_tokens": 256, "logprobs": True, "top_logprobs": 50})
    assert len(json.dumps(event, ensure_ascii=False).encode()) < room.line
    assert len(ChunkReader(room).read(event).pieces) == 256


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


@pytest.mark.parametrize("name", ["target", "draft_model", "ngram", "eagle3"])
def test_mutations_of_what_was_recorded_end_in_sentences(name):
    kept, chance = recorded(name), random.Random(7)
    body = kept["request"]
    seen, began = set(), time.monotonic()
    tracemalloc.start()
    try:
        for _ in range(400):
            events = kept["events"].copy()
            for _ in range(chance.choice([1, 1, 3])):
                at = chance.choice([0, 1, len(events) - 1, chance.randrange(len(events))])
                events[at] = mutated(events[at], chance)
            seen.add(replayed(events, Room.of(body), kept))
        assert tracemalloc.get_traced_memory()[1] < 100_000_000
    finally:
        tracemalloc.stop()
    assert time.monotonic() - began < 60
    assert {"read", "refused"} <= seen


def replayed(events: list[Any], room: Room, kept: dict[str, Any]) -> str:
    """Whether they are read, or refused in a sentence; any other error is raised."""
    reader, rounds, told = ChunkReader(room), [], None
    try:
        for event in events:
            if not isinstance(event, dict):
                return "refused"  # before a chunk is read of it
            one = reader.read(event)
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


@pytest.mark.parametrize("name", ["target", "draft_model", "ngram", "eagle3"])
def test_mutations_of_counters_are_read_or_left_out(name):
    kept, chance = recorded(name), random.Random(5)
    model = kept["models"]["data"][0]["id"]
    for _ in range(300):
        before, after = (counters_of(with_noise(lines, chance), model) for lines in kept["metrics"])
        if before is not None and after is not None and (added := after.since(before)) is not None:
            stats = server_stats(added, None, 1.0)
            assert 0 <= (stats.drafts or 0) < 1e12 and all(
                0 <= count < 1e12 for count in stats.accepted_by_place
            )


def with_noise(lines: list[str], chance: random.Random) -> str:
    text = "\n".join(lines) + "\n"
    for _ in range(chance.choice([0, 1, 5])):
        at = chance.randrange(len(text))
        text = text[:at] + chance.choice(NOISE) + text[at + chance.choice([0, 1, 30]) :]
    return text


NOISE = ("9" * 400, "-", "e9", "NaN", "Inf", "{", "}", '"', "\\", "\n", " ", "\x00", "\ud800", ",", "=", "#")


MUTATIONS = [40, pytest.param(200, marks=pytest.mark.long)]


@pytest.mark.slow
@pytest.mark.parametrize("mutations", MUTATIONS)
@pytest.mark.parametrize("name", ["target", "draft_model", "eagle3"])
def test_mutations_over_http_end_in_sentences_and_leave_the_server_usable(name, mutations, monkeypatch):
    """Of the bytes, too, and not only of what is JSON."""
    monkeypatch.setattr("specdemo.vllm.counters.LATE", 0.0)  # the stand-in counts none of these runs
    kept, chance = recorded(name), random.Random(11)
    server = StandIn(ROUNDS)
    refused = 0
    with server.serving() as url:
        pair = load_pair(vllm=url)
        for _ in range(mutations):
            lines = [line(event) for event in kept["events"]]
            at = chance.choice([0, len(lines) - 1, chance.randrange(len(lines))])
            if chance.random() < 0.8:
                lines[at] = line(mutated(kept["events"][at], chance))
            else:
                data = bytearray(lines[at])
                for _ in range(chance.choice([1, 10])):
                    data[chance.randrange(6, len(data) - 2)] = chance.randrange(256)
                lines[at] = bytes(data)
            server.answers["/v1/completions"] = answer(b"".join(lines) + b"data: [DONE]\n\n")
            run = stream(pair, "Once", Params(max_new_tokens=24, temperature=0))
            try:
                for _ in run:
                    pass
            except ServerError as error:
                refused += 1
                assert str(error).isprintable() and run.trace.finish == "error"
            assert Trace.from_json(run.trace.to_json()).finish == run.trace.finish
        server.answers.clear()
        assert refused and generate(pair, "Once", SHORT).text == TEXT


@pytest.mark.slow
@pytest.mark.parametrize("mutations", MUTATIONS)
def test_mutations_of_what_a_server_tells_of_itself_end_in_sentences(mutations):
    chance, server = random.Random(3), StandIn(ROUNDS)
    model = recorded("eagle3")["models"]
    config = {"speculative_config": {"method": "eagle"}, "parallel_config": {"tensor_parallel_size": 2}}
    told = {
        "/v1/models": json.loads(json.dumps(model).replace(model["data"][0]["id"], MODEL)),
        "/version": {"version": "0.32.0"},
        "/server_info?config_format=json": {"vllm_config": config},
    }
    connected = 0
    with server.serving() as url:
        for _ in range(mutations):
            path = chance.choice(list(told))
            server.answers = {path: answer(json.dumps(mutated(told[path], chance)).encode())}
            try:
                trace = generate(load_pair(vllm=url), "Once", SHORT)
                connected += Trace.from_json(trace.to_json()).text == TEXT
            except ServerError as error:
                assert str(error).isprintable() and len(str(error)) < 1_000
    assert mutations / 4 < connected < mutations
