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


def test_the_plain_route_has_the_same_in_its_stream(client, url):
    asked = {"prompt": 'say "json:', "seed": 3, "max_new_tokens": 30}
    event = httpx.post(f"{url}/gradio_api/call/v2/generate", json=asked).json()["event_id"]
    lines = httpx.get(f"{url}/gradio_api/call/generate/{event}", timeout=120).text.splitlines()
    messages = [json.loads(line[6:])[0] for line in lines if line.startswith("data: {") or "[{" in line]
    same = client.predict(**asked, api_name="/generate")["trace"]
    trace = messages[-1]["trace"]
    # A complete message repeats the last one.
    assert [one for message in messages[:-1] for one in message["rounds"]] == trace["rounds"]
    assert Trace.from_json(json.dumps(trace)).prompt == asked["prompt"]
    assert [one["draft"] for one in trace["rounds"]] == [one["draft"] for one in same["rounds"]]


def test_a_prompt_can_be_token_ids_or_messages(client):
    trace = client.predict(prompt=[5, 6, 7], max_new_tokens=3, api_name="/generate")["trace"]
    assert trace["prompt_ids"] == [5, 6, 7]
    turns = [{"role": "user", "content": "Hi"}]
    with pytest.raises(AppError, match="prompt must not be messages for this pair: its tokenizer has no"):
        client.predict(prompt=turns, api_name="/generate")
    with pytest.raises(AppError, match="prompt must hold messages like"):
        client.predict(prompt=[{"role": "user"}], api_name="/generate")


def test_penalties_and_a_bias_arrive(client):
    how = {"presence_penalty": 0.5, "frequency_penalty": 0.25, "logit_bias": {"263": -100, "11": 2.5}}
    message = client.predict("Once", max_new_tokens=8, seed=1, **how, api_name="/generate")
    params = Trace.from_json(json.dumps(message["trace"])).params
    assert (params.presence_penalty, params.frequency_penalty) == (0.5, 0.25)
    assert params.logit_bias == {11: 2.5, 263: -100.0}
    with pytest.raises(AppError, match="logit_bias must be a mapping to numbers from -100 to 100, not to"):
        client.predict("Once", logit_bias={"263": 200}, api_name="/generate")


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


@pytest.mark.slow
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


def test_the_simple_route_streams_the_same(url, client):
    start = httpx.post(
        f"{url}/gradio_api/call/v2/generate", json={"prompt": "Once", "seed": 1, "stop": ["a"]}
    )
    with httpx.stream(
        "GET", f"{url}/gradio_api/call/v2/generate/{start.json()['event_id']}", timeout=60
    ) as answer:
        data = [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: [")]
    trace = client.predict("Once", seed=1, stop=["a"], api_name="/generate")["trace"]
    assert data[-1][0]["trace"]["output_ids"] == trace["output_ids"]
    assert data[-1][0]["text"] == trace["text"]


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


@pytest.mark.slow
def test_who_waits_reads_their_place_and_a_caller_waits_with_one_run(endless):
    """`text` and `rounds` are there in each message, as ever."""
    first, second = (Client(endless, verbose=False) for _ in range(2))
    running = first.submit("Once", max_new_tokens=30_000, api_name="/generate")
    while not next(running)["text"]:
        pass
    waiting = second.submit("Once", max_new_tokens=2, api_name="/generate")
    assert next(waiting) == {"text": "", "rounds": [], "waiting": "You are number 1 in line …"}
    with pytest.raises(AppError, match="^A run of yours waits already: wait for its turn or stop it"):
        second.predict("Once", api_name="/generate")
    running.cancel()
    last = waiting.result(timeout=60)
    assert last["trace"]["finish"] == "length" and "waiting" not in last
    ran = [message for message in waiting.outputs() if "waiting" not in message]
    assert [one for message in ran for one in message["rounds"]] == last["trace"]["rounds"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"max_new_tokens": 1_001}, "max_new_tokens must be a whole number from 1 to 1,000, not 1001"),
        ({"alternatives": 11}, "alternatives must be a whole number from 0 to 10, not 11"),
        ({"prompt": "a" * 20_001}, "prompt must have at most 20,000 characters, not 20,001"),
        ({"chat": True, "system": "a" * 20_001}, "system must have at most 20,000 characters, not 20,001"),
        ({"stop": ["a"] * 65}, "stop must be at most 64 strings of at most 1,000 characters each"),
    ],
)
def test_a_hosted_page_allows_less(hosted, wrong, sentence):
    with pytest.raises(AppError, match=f"^{sentence}"):
        Client(hosted, verbose=False).predict(**{"prompt": "Once"} | wrong, api_name="/generate")


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
