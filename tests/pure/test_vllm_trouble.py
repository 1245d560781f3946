"""A vLLM server that is slow, restarted or behind a proxy, and answers that are odd, against stand-ins."""

import time
from dataclasses import replace

import pytest

from specdemo import Params, Trace, generate, load_pair, stream
from specdemo.vllm.chunks import Misread, chunk_of
from specdemo.vllm.counters import counters_of
from tests.stand_ins.vllm import MODEL, ROUNDS, StandIn

SHORT = Params(max_new_tokens=8, temperature=0)


def test_stop_does_not_wait_for_the_counters():
    server = StandIn(ROUNDS)
    with server.serving() as url:
        pair = load_pair(vllm=url)
        server.late["/metrics"] = 20.0
        run = stream(pair, "Once", SHORT)
        next(run)
        began = time.monotonic()
        run.close()
        assert time.monotonic() - began < 15 and run.trace.finish == "cancelled"


def test_a_run_does_not_wait_for_counters_that_do_not_come(monkeypatch):
    monkeypatch.setattr("specdemo.vllm.client.OPTIONAL_SECONDS", 0.3)
    server = StandIn(ROUNDS)
    with server.serving() as url:
        pair = load_pair(vllm=url)
        server.late["/metrics"] = 3.0
        trace = generate(pair, "Once", SHORT)
    assert trace.finish == "length" and trace.stats.server is None


@pytest.mark.slow
def test_what_comes_after_the_text_is_not_awaited_for_long():
    server = StandIn(ROUNDS)
    with server.serving() as url:
        pair = load_pair(vllm=url)
        server.before_chunk = lambda number, write: time.sleep(40 if number == len(ROUNDS) else 0)
        began = time.monotonic()
        assert generate(pair, "Once", SHORT).finish == "length"
        assert time.monotonic() - began < 30


def test_a_server_without_counters_is_not_said_to_draft_nothing():
    with StandIn([(id_,) for id_ in range(5, 40)], counted=False).serving() as url:
        pair = load_pair(vllm=url)
    assert pair.server.gamma is None and pair.drafts


@pytest.mark.parametrize("status", [401, 403, 503])
def test_a_proxy_that_lets_through_only_what_is_needed(status):
    refused = dict.fromkeys(("/metrics", "/version", "/tokenize"), (status, {}, b"{}"))
    with StandIn(ROUNDS, answers=refused).serving() as url:
        trace = generate(load_pair(vllm=url), "Once", SHORT)
    assert trace.finish == "length" and trace.prompt_ids == (1, 2, 3)


def test_a_server_that_is_late_with_its_first_answer_is_asked_again():
    with StandIn(ROUNDS, probe=((5, 6), (7,))).serving() as url:
        pair = load_pair(vllm=url)
    assert pair.server.gamma == 2 and pair.always


def test_counters_that_begin_anew_are_not_subtracted():
    server = StandIn(ROUNDS)
    with server.serving() as url:
        pair = load_pair(vllm=url)
        server.ended = 50

        def restarts(number, write):
            server.ended = server.generated = 0

        server.before_chunk = restarts
        trace = generate(pair, "Once", SHORT)
    assert trace.stats.server is None
    assert Trace.from_json(trace.to_json()).text == trace.text


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1e400"])
def test_counters_that_are_no_numbers_are_not_told(value):
    assert counters_of(f'vllm:num_requests_running{{model_name="{MODEL}"}} {value}\n', MODEL) is None


@pytest.mark.parametrize(
    "choice",
    [
        {"text": "a", "token_ids": [5], "logprobs": {"tokens": ["a"], "token_logprobs": [float("nan")]}},
        {"text": "a", "token_ids": [2**31]},
    ],
)
def test_numbers_that_no_trace_can_have_are_refused(choice):
    with pytest.raises(Misread, match="would not send"):
        chunk_of({"choices": [choice]})


def test_a_probability_that_is_not_told_is_none():
    logprobs = {"tokens": ["a"], "token_logprobs": [None], "top_logprobs": [None]}
    (piece,) = chunk_of({"choices": [{"text": "a", "token_ids": [5], "logprobs": logprobs}]}).pieces
    assert piece.probability is None and piece.top == ()


def test_the_last_round_stays_open_while_others_have_a_part_in_the_counters():
    server = StandIn(ROUNDS)
    with server.serving() as url:
        pair = load_pair(vllm=url)
        server.others = 1
        last = generate(pair, "Once", replace(SHORT)).rounds[-1]
    assert last.next.source == "sampled" and last.ended_by == "length" and last.draft == ()
