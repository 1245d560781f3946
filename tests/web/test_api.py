"""The page's API through gradio_client, by name."""

import json
from dataclasses import fields

import httpx
import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError

from specdemo.events import Params
from specdemo.events.trace import Trace


@pytest.fixture(scope="module")
def client(url):
    return Client(url, verbose=False)


def test_generate_streams_rounds_and_ends_with_the_trace(client):
    job = client.submit(
        "Once upon a time", seed=3, max_new_tokens=80, temperature=1.0, top_p=1.0, api_name="/generate"
    )
    last = job.result()
    messages = job.outputs()
    trace = Trace.from_json(json.dumps(last["trace"]))
    assert [one for message in messages for one in message["rounds"]] == last["trace"]["rounds"]
    assert all(trace.text.startswith(message["text"]) for message in messages)
    assert all("trace" not in message for message in messages[:-1])
    assert last["text"] == trace.text and trace.finish in ("eos", "length")
    assert trace.params == Params(seed=3, max_new_tokens=80, temperature=1.0, top_p=1.0)


def test_its_arguments_are_those_of_params(client):
    parameters = client.view_api(return_format="dict")["named_endpoints"]["/generate"]["parameters"]
    assert [p["parameter_name"] for p in parameters] == [
        "prompt",
        "pair",
        *(field.name for field in fields(Params)),
    ]
    assert [p["parameter_name"] for p in parameters if not p["parameter_has_default"]] == ["prompt"]
    for field, parameter in zip(fields(Params), parameters[2:], strict=True):
        assert parameter["parameter_default"] == (
            list(field.default) if field.name == "stop" else field.default
        )


def test_the_same_seed_is_the_same_run_and_no_seed_is_another(client):
    def run(**seed):
        return client.predict(
            "Once", max_new_tokens=30, temperature=2.0, top_p=1.0, api_name="/generate", **seed
        )["trace"]

    assert run(seed=5)["output_ids"] == run(seed=5)["output_ids"]
    drawn = run()
    assert drawn["params"]["seed"] != run()["params"]["seed"]
    assert run(seed=drawn["params"]["seed"])["output_ids"] == drawn["output_ids"]


@pytest.mark.parametrize(
    "wrong",
    [
        *({"gamma": 17}, {"gamma": 4.0}, {"gamma": "4"}, {"top_p": 0}, {"temperature": None}, {"seed": -1}),
        *({"draft_with": ["model"]}, {"stop": [""]}, {"alternatives": True}, {"chat": "yes"}),
        {"max_new_tokens": 10**9},
    ],
)
def test_a_wrong_value_is_answered_in_the_sentence_of_params(client, wrong):
    with pytest.raises(ValueError) as sentence:
        Params(**wrong)
    with pytest.raises(AppError) as answer:
        client.predict("Once", **wrong, api_name="/generate")
    assert str(answer.value) == str(sentence.value)


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (("",), "prompt must not be empty"),
        ((None,), "prompt must be text"),
        (("Once", "embeded"), "pair must be one of"),
        (("Once", ["embedded"]), "pair must be one of"),
    ],
)
def test_a_wrong_request_is_answered_in_a_sentence_and_breaks_nothing(client, arguments, sentence):
    with pytest.raises(AppError, match=sentence):
        client.predict(*arguments, api_name="/generate")
    assert (
        client.predict("Once", max_new_tokens=2, ignore_eos=True, api_name="/generate")["trace"]["finish"]
        == "length"
    )


def test_half_a_surrogate_pair_is_refused(url):
    # gradio_client cannot send one, but JSON can.
    start = httpx.post(
        f"{url}/gradio_api/call/v2/generate",
        content='{"prompt": "half \\ud800"}',
        headers={"Content-Type": "application/json"},
    )
    answer = httpx.get(f"{url}/gradio_api/call/v2/generate/{start.json()['event_id']}", timeout=60).text
    assert (
        "event: error" in answer
        and "prompt must be Unicode text, but holds the lone surrogate U+D800" in answer
    )


@pytest.mark.slow
def test_a_cancelled_job_frees_the_pair(endless):
    client = Client(endless, verbose=False)
    job = client.submit("Once", max_new_tokens=30_000, api_name="/generate")
    next(iter(job))
    job.cancel()
    assert (
        client.submit("Once", max_new_tokens=2, api_name="/generate").result(timeout=60)["trace"]["finish"]
        == "length"
    )


def test_two_at_once_both_get_their_own_run(client, url):
    jobs = [
        c.submit("Once", seed=seed, max_new_tokens=40, api_name="/generate")
        for seed, c in ((1, client), (2, Client(url, verbose=False)))
    ]
    assert [job.result()["trace"]["params"]["seed"] for job in jobs] == [1, 2]


def test_pairs_lists_the_choice(client):
    names = [pair["name"] for pair in client.predict(api_name="/pairs")]
    assert "embedded" in names and "smollm2-1.7b" in names
    assert (
        client.view_api(return_format="dict")["named_endpoints"]["/generate"]["parameters"][1][
            "parameter_default"
        ]
        == names[0]
    )


def test_only_generate_and_pairs_are_public_and_nobody_passes_by_the_queue(client, url):
    assert set(client.view_api(return_format="dict")["named_endpoints"]) == {"/generate", "/pairs"}
    answer = httpx.post(f"{url}/gradio_api/run/generate", json={"data": ["Once"]}, timeout=60)
    assert answer.status_code == 404
