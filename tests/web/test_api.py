"""The page's API through gradio_client, by name."""

import json
from dataclasses import fields

import httpx
import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError

from specdemo.events import Params
from specdemo.events.trace import Trace
from specdemo.ui.runs.limits import LOCAL
from tests.web.server import served_here


@pytest.fixture(scope="module")
def client(url):
    return Client(url, verbose=False)


@pytest.fixture(scope="module")
def endless(tmp_path_factory):
    """A page whose pair writes for minutes."""
    with served_here(tmp_path_factory.mktemp("pair"), LOCAL) as (url, _):
        yield url


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


def test_the_arguments_of_a_chat_template_are_an_object_and_no_file(client, url):
    arguments = {"tools": [{"name": "f", "parameters": {"path": {"type": "string"}}}]}
    for given in (arguments, json.dumps(arguments)):
        with pytest.raises(AppError, match="^chat must be false for this pair: its tokenizer has no chat"):
            client.predict("Once", chat=True, chat_template_kwargs=given, api_name="/generate")
    file = {"a": [{"path": "/etc/passwd", "meta": {"_type": "gradio.FileData"}}]}
    asked = {"prompt": "Once", "chat": True, "chat_template_kwargs": file}
    answer = httpx.post(f"{url}/gradio_api/call/v2/generate", json=asked)
    assert answer.status_code == 400 and "chat_template_kwargs must be an object or its JSON" in answer.text


def test_a_schema_is_an_object_or_its_json_text(client):
    schema = {"type": "object", "properties": {"path": {"enum": ["fox", "bear"]}}, "required": ["path"]}
    schema["additionalProperties"] = False
    for given in (schema, json.dumps(schema)):
        last = client.predict("Once", json_schema=given, seed=1, api_name="/generate")
        assert json.loads(last["text"])["path"] in ("fox", "bear") and last["trace"]["finish"] == "eos"
    with pytest.raises(AppError, match="^json_schema cannot be followed: Unsatisfiable schema"):
        client.predict("Once", json_schema={"enum": []}, api_name="/generate")


def test_the_plain_route_has_the_same_in_its_stream(client, url):
    asked = {"prompt": 'say "json:', "seed": 3, "max_new_tokens": 30, "stop": ["a"]}
    whole = client.predict(**asked | {"stop": []}, api_name="/generate")["text"]
    asked["stop"] = [whole[30:45]]  # over several tokens
    event = httpx.post(f"{url}/gradio_api/call/v2/generate", json=asked).json()["event_id"]
    lines = httpx.get(f"{url}/gradio_api/call/generate/{event}", timeout=120).text.splitlines()
    messages = [json.loads(line[6:])[0] for line in lines if line.startswith("data: {") or "[{" in line]
    same = client.predict(**asked, api_name="/generate")["trace"]
    trace = messages[-1]["trace"]
    texts = [message["text"] for message in messages]
    assert texts[-1] == whole[:30] and all(texts[-1].startswith(text) for text in texts)
    # A complete message repeats the last one.
    assert [one for message in messages[:-1] for one in message["rounds"]] == trace["rounds"]
    assert Trace.from_json(json.dumps(trace)).prompt == asked["prompt"]
    assert [one["draft"] for one in trace["rounds"]] == [one["draft"] for one in same["rounds"]]


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
    pairs = [pair["name"] for pair in client.predict(api_name="/pairs")]
    assert pairs[0] == parameters[1]["parameter_default"] and {"embedded", "smollm2-1.7b"} <= {*pairs}
    answer = httpx.post(f"{url}/gradio_api/run/generate", json={"data": ["Once"]}, timeout=60)
    assert answer.status_code == 404, "nobody passes by the queue"


def test_a_wrong_value_is_answered_in_the_sentence_of_params(client):
    wrong_ones = (
        {"gamma": 17},
        {"gamma": "4"},
        {"tree": [9, 9]},
        {"draft_with": ["model"]},
        {"stop": [""]},
        {"chat": "yes"},
    )
    for wrong in wrong_ones:
        with pytest.raises(ValueError) as sentence:
            Params(**wrong)
        with pytest.raises(AppError) as answer:
            client.predict("Once", **wrong, api_name="/generate")
        assert str(answer.value) == str(sentence.value)


def test_a_wrong_request_is_answered_in_a_sentence_and_breaks_nothing(client):
    turns = [{"role": "user", "content": "Hi"}]
    for arguments, sentence in (
        ((None,), "prompt must be text"),
        ((turns,), "prompt must not be messages for this pair: its tokenizer has no"),
        (([{"role": "user"}],), "prompt must hold messages like"),
        (("Once", ["embedded"]), "pair must be one of"),
    ):
        with pytest.raises(AppError, match=sentence):
            client.predict(*arguments, api_name="/generate")
    trace = client.predict(prompt=[5, 6, 7], max_new_tokens=3, api_name="/generate")["trace"]
    assert trace["prompt_ids"] == [5, 6, 7]


def test_half_a_surrogate_pair_is_refused(url):
    """gradio_client cannot send one, but JSON can."""
    asked = {"content": '{"prompt": "half \\ud800"}', "headers": {"Content-Type": "application/json"}}
    event = httpx.post(f"{url}/gradio_api/call/v2/generate", **asked).json()["event_id"]
    answer = httpx.get(f"{url}/gradio_api/call/v2/generate/{event}", timeout=60).text
    assert "event: error" in answer
    assert "prompt must be Unicode text, but holds the lone surrogate U+D800" in answer


def test_who_waits_reads_their_place_and_a_cancelled_job_frees_the_pair(endless):
    """`text` and `rounds` are there in each message, as ever. And a caller waits with one run."""
    first, second = (Client(endless, verbose=False) for _ in range(2))
    running = first.submit("Once", max_new_tokens=30_000, api_name="/generate")
    while not next(running)["text"]:
        pass
    waiting = second.submit("Once", max_new_tokens=2, seed=7, api_name="/generate")
    assert next(waiting) == {"text": "", "rounds": [], "waiting": "You are number 1 in line …"}
    with pytest.raises(AppError, match="^A run of yours waits already: wait for its turn or stop it"):
        second.predict("Once", api_name="/generate")
    running.cancel()
    last = waiting.result(timeout=60)
    assert (last["trace"]["finish"], last["trace"]["params"]["seed"]) == ("length", 7)
    ran = [message for message in waiting.outputs() if "waiting" not in message]
    assert ran[-1] == last
    assert [one for message in ran for one in message["rounds"]] == last["trace"]["rounds"]
