"""What other programs use: the API through gradio_client, and the tools for language models through the
reference client."""

import json
from contextlib import asynccontextmanager
from dataclasses import fields

import httpx
import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError

from specdemo.events import Params
from specdemo.events.trace import Trace
from specdemo.loading.catalog import Entry
from specdemo.ui.page.api import SHOWN_ROUNDS, trace_in_words
from tests.pure.test_feed import ROUNDS, trace
from tests.web.server import awaited

mcp = pytest.importorskip("mcp", reason="gradio[mcp] is not installed")
from mcp.client.streamable_http import streamablehttp_client  # noqa: E402

PROMPT = "Once upon a time"
SETTINGS = {"seed": 3, "max_new_tokens": 40, "temperature": 1.0, "top_p": 1.0}


@pytest.fixture(scope="module")
def client(url):
    return Client(url, verbose=False)


def test_generate_streams_rounds_and_ends_with_the_trace(client):
    asked = {"seed": 3, "max_new_tokens": 40, "temperature": 1.0, "top_p": 1.0, "presence_penalty": 0.5}
    bias = {"263": -100, "11": 2.5}
    job = client.submit("Once upon a time", **asked, logit_bias=bias, api_name="/generate")
    last = job.result()
    messages = job.outputs()
    trace = Trace.from_json(json.dumps(last["trace"]))
    assert [one for message in messages for one in message["rounds"]] == last["trace"]["rounds"]
    assert all(trace.text.startswith(message["text"]) for message in messages)
    assert all("trace" not in message for message in messages[:-1])
    assert last["text"] == trace.text and trace.finish in ("eos", "length")
    assert trace.params == Params(**asked, logit_bias={11: 2.5, 263: -100.0})


def test_a_schema_is_an_object_or_its_json_text(client):
    schema = {"type": "object", "properties": {"path": {"enum": ["fox", "bear"]}}, "required": ["path"]}
    schema["additionalProperties"] = False
    for given in (schema, json.dumps(schema)):
        last = client.predict("Once", json_schema=given, seed=1, api_name="/generate")
        assert json.loads(last["text"])["path"] in ("fox", "bear") and last["trace"]["finish"] == "eos"


def test_the_plain_route_has_the_same_in_its_stream_and_no_text_that_is_cut_later(client, url):
    asked = {"prompt": 'say "json:', "seed": 3, "max_new_tokens": 30, "stop": ["a"]}
    whole = client.predict(**asked | {"stop": []}, api_name="/generate")["text"]
    asked["stop"] = [whole[30:45]]  # over several tokens
    event = httpx.post(f"{url}/gradio_api/call/v2/generate", json=asked).json()["event_id"]
    lines = httpx.get(f"{url}/gradio_api/call/generate/{event}", timeout=120).text.splitlines()
    messages = [json.loads(line[6:])[0] for line in lines if line.startswith("data: {") or "[{" in line]
    trace = messages[-1]["trace"]
    texts = [message["text"] for message in messages]
    assert texts[-1] == whole[:30] and all(texts[-1].startswith(text) for text in texts)
    # A complete message repeats the last one.
    assert [one for message in messages[:-1] for one in message["rounds"]] == trace["rounds"]
    assert Trace.from_json(json.dumps(trace)).prompt == asked["prompt"]


def test_its_arguments_are_those_of_params_and_nothing_else_is_public(client, url):
    endpoints = client.view_api(return_format="dict")["named_endpoints"]
    assert set(endpoints) == {"/generate", "/pairs"}
    parameters = endpoints["/generate"]["parameters"]
    names = ["prompt", "pair", *(field.name for field in fields(Params))]
    assert [one["parameter_name"] for one in parameters] == names
    assert [one["parameter_name"] for one in parameters if not one["parameter_has_default"]] == ["prompt"]
    for field, parameter in zip(fields(Params), parameters[2:], strict=True):
        default = list(field.default) if isinstance(field.default, tuple) else field.default
        assert parameter["parameter_default"] == default
    rows = client.predict(api_name="/pairs")
    pairs = [pair["name"] for pair in rows]
    assert all(row.keys() == {"about", "tried", *(field.name for field in fields(Entry))} for row in rows)
    assert pairs[0] == parameters[1]["parameter_default"] and {"embedded", "smollm2-1.7b"} <= {*pairs}
    answer = httpx.post(f"{url}/gradio_api/run/generate", json={"data": ["Once"]}, timeout=60)
    assert answer.status_code == 404, "nobody passes by the queue"


def test_what_is_wrong_is_answered_in_a_sentence_and_breaks_nothing(client):
    """A field of Params in the sentence of Params."""
    for wrong in ({"gamma": 17}, {"tree": [9, 9]}, {"stop": [""]}, {"chat": "yes"}):
        with pytest.raises(ValueError) as sentence:
            Params(**wrong)
        with pytest.raises(AppError) as answer:
            client.predict("Once", **wrong, api_name="/generate")
        assert str(answer.value) == str(sentence.value)
    for arguments, field in (
        ((None,), "prompt"),
        (([{"role": "user"}],), "prompt"),
        (("Once", ["embedded"]), "pair"),
    ):
        with pytest.raises(AppError, match=f"^{field} must "):
            client.predict(*arguments, api_name="/generate")
    trace = client.predict(prompt=[5, 6, 7], max_new_tokens=3, api_name="/generate")["trace"]
    assert trace["prompt_ids"] == [5, 6, 7]


def test_who_waits_reads_their_place_and_a_cancelled_job_frees_the_pair(endless):
    """`text` and `rounds` are there in each message, as ever. And a caller waits with one run."""
    first, second = (Client(endless, verbose=False) for _ in range(2))
    running = first.submit("Once", max_new_tokens=30_000, api_name="/generate")
    while not next(running)["text"]:
        pass
    waiting = second.submit("Once", max_new_tokens=2, seed=7, api_name="/generate")
    told = next(waiting)
    assert (told["text"], told["rounds"]) == ("", []) and "number 1" in told["waiting"]
    with pytest.raises(AppError):
        second.predict("Once", api_name="/generate")
    running.cancel()
    last = waiting.result(timeout=60)
    assert (last["trace"]["finish"], last["trace"]["params"]["seed"]) == ("length", 7)
    ran = [message for message in waiting.outputs() if "waiting" not in message]
    assert [one for message in ran for one in message["rounds"]] == last["trace"]["rounds"]


@asynccontextmanager
async def session(url: str):
    async with (
        streamablehttp_client(f"{url}/gradio_api/mcp/") as (read, write, _),
        mcp.ClientSession(read, write) as client,
    ):
        await client.initialize()
        yield client


def call(url: str, tool: str, **arguments) -> tuple[bool, str]:
    """Whether it failed, and what it said."""

    async def ask():
        async with session(url) as client:
            result = await client.call_tool(tool, arguments)
            (content,) = result.content
            return bool(result.isError), content.text

    return awaited(ask())


def test_there_are_two_tools_with_documented_arguments(url):
    async def ask():
        async with session(url) as client:
            return (await client.list_tools()).tools

    generate, pairs = awaited(ask())
    assert (generate.name, pairs.name) == ("generate", "pairs")
    assert generate.inputSchema["required"] == ["prompt"] and not pairs.inputSchema["properties"]
    described = generate.inputSchema["properties"]
    assert all(one["description"] for one in described.values())
    assert list(described) == ["prompt", "pair", *Params.__dataclass_fields__]


def test_runs_and_pairs_are_told_in_words(url, generated):
    failed, said = call(url, "generate", prompt=PROMPT, **SETTINGS)
    same = generated(PROMPT, **SETTINGS)
    numbers, rounds = said.split("\n\n")[-2:]
    assert not failed and same.text in said
    assert f"{same.stats.accepted} accepted, {same.stats.rejected} rejected" in numbers
    assert rounds == trace_in_words(same).split("\n\n")[-1]
    failed, said = call(url, "pairs")
    assert not failed and said.startswith("embedded: target ")


@pytest.mark.parametrize(
    ("tool", "arguments", "sentence"),
    [
        ("generate", {"gamma": 99}, "gamma must be a whole number from 1 to 16 or auto, not 99"),
        ("run_on_stage", {}, "Unknown tool"),
    ],
)
def test_a_mistake_is_a_sentence(url, tool, arguments, sentence):
    failed, said = call(url, tool, prompt=PROMPT, **arguments)
    assert failed and sentence in said
    assert "Traceback" not in said and "\n" not in said


def test_the_trace_in_words():
    record = trace(*ROUNDS, finish="length")
    *_, rounds = trace_in_words(record).split("\n\n")
    assert rounds.splitlines()[1:] == [
        "1: [accepted: a] [rejected: b -> resampled: d] [discarded: c]",
        "2: [accepted: e] [bonus: \\n]",
        "3: [sampled: f<END]",
        "4: [accepted: > g] [discarded: h]",
    ]
    record.rounds *= 100
    assert f"and {400 - SHOWN_ROUNDS} more rounds" in trace_in_words(record)
