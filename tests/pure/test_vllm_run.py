"""Runs on a vLLM server, against a stand-in that behaves as the real one, or is slow, restarted, shared with
others, or behind a proxy."""

import logging
import os
import shutil
import ssl
import subprocess
import time
from contextlib import suppress
from dataclasses import replace
from urllib.parse import urlsplit

import psutil
import pytest

from specdemo import Params, Trace, generate, load_pair, stream
from specdemo.errors import PairError
from specdemo.servers.client import ServerError
from tests.stand_ins.vllm import MODEL, ROUNDS, TEXT, Gate, StandIn, connected, fates, line, slowly

SHORT = Params(max_new_tokens=8, temperature=0)
IN_ONES = {"rounds": [(id_,) for id_ in range(5, 13)], "gamma": None}


def of_all(trace: Trace) -> list[str]:
    return [fates(one) for one in trace.rounds]


def test_a_run_is_the_same_events_and_the_same_trace(served):
    server, pair = served
    pair = load_pair(vllm=f"{pair.client.address}/v1/")
    penalties = {"presence_penalty": 0.5, "frequency_penalty": -0.25}
    with stream(pair, "Once", replace(SHORT, seed=3, **penalties, logit_bias={})) as run:
        started, *rounds, finished = list(run)
    assert started.prompt_ids == (1, 2, 3) and started.params.gamma == 2
    assert started.versions["vllm"] == "0.32.0"
    assert finished.finish == "length" and finished.text == TEXT and len(rounds) == 5
    trace = run.trace
    assert of_all(trace) == [" sampled", "aa bonus", "ar resampled", "rd resampled", "rd resampled"]
    assert trace.pair.server.model == MODEL and trace.pair.server.gamma == 2
    assert Trace.from_json(trace.to_json()).to_json() == trace.to_json()
    assert trace.stats.accepted == 3 and trace.stats.rejected == 3 and trace.stats.draft_ms is None
    sent = server.requests[-1]
    wanted = {"max_tokens": 8, "temperature": 0, "seed": 3, "model": MODEL, "prompt": "Once", "logprobs": 5}
    assert (wanted | penalties).items() <= sent.items() and "logit_bias" not in sent
    assert sent["stream"] and sent["return_token_ids"]


def test_the_servers_own_numbers_are_differences_around_the_run(served):
    _, pair = served
    first, second = (generate(pair, "Once", SHORT).stats for _ in range(2))
    assert first.server.alone and (first.server.drafts, first.server.drafted) == (4, 8)
    assert first.server.accepted == first.accepted == 3 and first.server.accepted_by_place == (2, 1)
    assert first.server.total_ms == pytest.approx(6.0)
    elapsed = first.ttft_ms + first.arrival_ms
    assert first.server.network_ms == pytest.approx(max(0.0, elapsed - 6.0), abs=1e-6)
    assert second.server.drafts == 4


def test_others_on_the_server_are_seen_and_their_part_in_the_counters_is_not_taken_for_ours(served):
    server, pair = served
    server.others = 2
    trace = generate(pair, "Once", SHORT)
    assert not trace.stats.server.alone
    assert trace.stats.server.total_ms is None and trace.stats.server.network_ms is None
    last = trace.rounds[-1]
    assert last.next.source == "sampled" and last.ended_by == "length" and last.draft == ()


def test_a_server_that_was_busy_when_it_was_looked_at_keeps_its_drafts_untold():
    with connected(others=1) as (_, pair):
        trace = generate(pair, "Once", SHORT)
    assert any("others used the server" in str(note) for note in pair.notes)
    assert of_all(trace) == [" sampled", "aa bonus", "a sampled", " sampled", " sampled"]
    assert [one.drafts_told for one in trace.rounds] == [True, True, False, False, True]
    assert trace.stats.drafted is trace.stats.rejected is trace.stats.acceptance_rate is None


def test_drafts_of_other_lengths_are_noticed_after_the_run():
    first = {"probe": ((5,), (6,), (7,)), "drafted_at_first": (2, 2)}
    with connected(drafted=(2, 1, 0, 0), **first) as (_, pair):
        run = stream(pair, "Once", SHORT)
        shown = [fates(run.trace.rounds[-1]) for event in run if run.trace.rounds]
    assert shown[2] == "ar resampled"  # as it was thought
    assert of_all(run.trace)[2] == "a sampled" and run.trace.revised
    assert run.trace.stats.drafted is None


def test_a_server_that_tells_each_step_leaves_nothing_open():
    with connected(drafted=(2, 1, 2, 1), detailed=True, others=3) as (_, pair):
        trace = generate(pair, "Once", SHORT)
    assert of_all(trace) == [" sampled", "aa bonus", "a bonus", "rd resampled", "r resampled"]
    assert trace.stats.server.alone and trace.stats.server.drafted == trace.stats.drafted == 6
    assert trace.stats.server.accepted_by_place == (2, 1)


def test_a_server_that_does_not_draft_takes_what_others_do_not():
    with connected(**IN_ONES) as (server, pair):
        trace = generate(pair, "Once", replace(SHORT, logit_bias={7: 2, 5: -1}))
        assert server.requests[-1]["logit_bias"] == {"5": -1.0, "7": 2.0}
        generate(pair, "Once", replace(SHORT, min_p=0.1, temperature=0.5))
        assert server.requests[-1]["min_p"] == 0.1
    assert pair.server.gamma == 0 and trace.params.draft_with == "none"
    assert {one.next.source for one in trace.rounds} == {"sampled"} and trace.stats.drafted == 0


def test_a_server_without_counters_is_used_and_it_is_said():
    with connected(**IN_ONES, answers={"/metrics": (200, {}, b"<html>\x00{{{")}) as (_, pair):
        trace = generate(pair, "Once", SHORT)
    assert pair.server.gamma is None and any("/metrics cannot be read" in str(note) for note in pair.notes)
    assert pair.drafts, "for all that is known"
    assert trace.text == TEXT and trace.stats.server is None


def test_a_proxy_may_let_through_only_what_is_needed(served):
    server, pair = served
    for status in (401, 503):
        server.answers |= dict.fromkeys(("/metrics", "/version", "/tokenize"), (status, {}, b"{}"))
        trace = generate(load_pair(vllm=pair.client.address), "Once", SHORT)
        assert trace.finish == "length" and trace.prompt_ids == (1, 2, 3)


def test_a_server_that_is_late_with_its_first_answer_is_asked_again():
    with connected(probe=((5, 6), (7,))) as (_, pair):
        assert pair.server.gamma == 2 and pair.always


def test_a_run_waits_neither_for_counters_that_do_not_come_nor_long_for_what_comes_after_the_text(
    served, monkeypatch
):
    monkeypatch.setattr("specdemo.servers.client.OPTIONAL_SECONDS", 0.1)
    monkeypatch.setattr("specdemo.servers.run.TAIL_SECONDS", 0.1)
    (server, pair), gate = served, Gate()
    server.before_answer = lambda path: gate.hold() if path == "/metrics" else None
    server.before_chunk = lambda number, write: gate.hold() if number == len(ROUNDS) else None
    trace = generate(pair, "Once", SHORT)
    assert not gate.was_missed and trace.finish == "length" and trace.stats.server is None
    gate.opened.set()


@pytest.mark.parametrize(
    ("finish", "stop", "expected"),
    [("stop", None, "eos"), ("stop", "word12", "stop"), ("length", None, "length")],
)
def test_why_the_text_ends(served, finish, stop, expected):
    server, pair = served
    server.finish, server.stop = finish, stop
    trace = generate(pair, "Once", replace(SHORT, stop=(stop,) if stop else ()))
    assert trace.finish == expected
    assert trace.text == (TEXT.removesuffix("word12") if stop else TEXT)


def test_a_chat_goes_through_its_own_api(served):
    server, pair = served
    trace = generate(pair, "Hi", replace(SHORT, chat=True, system="Be brief"))
    assert trace.text == TEXT and trace.prompt_ids == (1, 2, 3) and len(trace.rounds[0].next.top) == 2
    messages = [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "Hi"}]
    assert server.requests[-1]["messages"] == messages and server.requests[-1]["top_logprobs"] == 5
    assert not {"tools", "tool_choice", "chat_template_kwargs"} & server.requests[-1].keys()
    turns = [*messages, {"role": "assistant", "content": "Yes?"}, {"role": "user", "content": "Go on"}]
    trace = generate(pair, turns, SHORT)
    assert server.requests[-1]["messages"] == turns and len(trace.messages) == 4 and trace.params.chat


def test_a_chat_template_s_arguments_go_to_the_server_and_its_tokeniser(served):
    server, pair = served
    tools = [{"type": "function", "function": {"name": "f"}}]
    arguments = {"enable_thinking": False, "documents": [{"text": "a"}]}
    generate(pair, "Hi", replace(SHORT, chat=True, chat_template_kwargs=arguments | {"tools": tools}))
    sent = {"chat_template_kwargs": arguments, "tools": tools, "tool_choice": "none"}
    assert sent.items() <= server.requests[-1].items() and sent.items() <= server.tokenised[-1].items()


def raws_of(trace: Trace) -> list[float]:
    """All probabilities that the server's numbers have become."""
    told = [token for one in trace.rounds for token in (*one.draft, one.next) if token]
    raws = [raw for token in told for raw in (token.raw_p, *(row[4] for row in token.top))]
    return [raw for raw in raws if raw is not None]


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("place", [0, 3])
def test_probabilities_that_add_up_to_more_than_1_are_not_known(chat, place):
    """Neither are those before and after: at one place the server has shown what its numbers are."""
    params = replace(SHORT, chat=chat)
    with connected() as (server, pair):
        before = pair.notes
        for sure in ((0.0, -30.0), (-0.1, -2.4)):  # what a greedy server may truly send
            server.likely = sure
            assert raws_of(generate(pair, "Once", params)) and pair.notes is before
        server.before_chunk = lambda at, write: setattr(
            server, "likely", (0.0, 0.0 if at == place else -30.0)
        )
        for _ in range(2):
            trace = generate(pair, "Once", params)
            assert not raws_of(trace) and trace.text == TEXT and trace.stats.accepted == 3
            assert [getattr(note, "key", None) for note in pair.notes] == [None] * len(before) + [
                "server_sums"
            ]
        assert Trace.from_json(trace.to_json()).to_json() == trace.to_json()
        server.before_chunk, server.likely = lambda at, write: None, (-0.5, -1.5)
        assert not raws_of(generate(pair, "Once", params)), "nor are those of its later runs"


def test_prompts_of_ids_the_context_and_a_vocabulary_that_is_not_known():
    with connected(context=10) as (server, pair):
        trace = generate(pair, [4, 5, 6, 2**31 - 1], replace(SHORT, max_new_tokens=100))
        assert server.requests[-1]["max_tokens"] == 6
        assert server.requests[-1]["prompt"] == [4, 5, 6, 2**31 - 1] == list(trace.prompt_ids)
        assert trace.prompt == "" and pair.vocab_size is None
        with pytest.raises(ValueError, match="must have at most 9 tokens for this target, but has"):
            generate(pair, [1] * 10, SHORT)
        with pytest.raises(ValueError, match="whole numbers from 0 to 2147483647"):
            generate(pair, [2**31], SHORT)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"gamma": 7}, "gamma must be left at 4 for a server"),
        ({"draft_with": "lookup"}, "draft_with must be left at model"),
        ({"rule": "block"}, "rule must be left at speculative"),
        ({"tree": (2, 1)}, "tree must be empty for a server, which drafts as it was started, not '2,1'"),
        ({"min_p": 0.1, "temperature": 0.5}, "min_p must be 0 here: vLLM does not take min-p where"),
        ({"logit_bias": {3: 1}}, "logit_bias must be empty here: vLLM does not take it where it drafts"),
    ],
)
def test_what_a_server_does_not_take_is_refused_by_name(served, change, words):
    _, pair = served
    with pytest.raises(ValueError, match=words):
        stream(pair, "Once", replace(SHORT, **change))
    assert generate(pair, "Once", replace(SHORT, gamma=2)).finish == "length"  # the pair is free


# What a server still does for a request that has ended here.


def test_chunks_that_hold_two_rounds_each_are_noticed_in_the_counters(served):
    server, pair = served
    server.judge_more = 1
    run = stream(pair, "Once", SHORT)
    with pytest.raises(ServerError, match="has judged 5 drafts and sent 4 chunks after the first"):
        list(run)
    assert run.trace.text == TEXT and run.trace.finish == "error"
    server.lingering = 1  # a round of a request that ran before
    trace = generate(pair, "Once", SHORT)
    assert trace.finish == "length" and not trace.stats.server.alone


def test_after_a_stop_string_it_may_count_as_running_for_a_moment_and_judge_one_more_round(served):
    server, pair = served
    server.finish, server.stop = "stop", " word12"
    server.before_chunk = lambda number, write: setattr(server, "lingering", 2)
    trace = generate(pair, "Once", SHORT)
    assert trace.finish == "stop" and trace.stats.server.alone
    assert trace.stats.server.total_ms is not None and trace.stats.server.drafts == 4
    server.behave(finish="stop", stop=" word12", judge_more=1)
    trace = generate(pair, "Once", SHORT)
    assert trace.finish == "stop" and len(trace.rounds) == 5
    assert [one.drafts_told for one in trace.rounds] == [True, True, False, False, False]


def test_stop_closes_the_connection_and_the_next_run_waits_until_the_server_has_ended_it(served):
    server, pair = served
    server.behave(rounds=[(5,)] + [(6,)] * 300, before_chunk=slowly(0.02))
    with stream(pair, "Once", replace(SHORT, max_new_tokens=301)) as run:
        for _ in range(5):
            next(run)
    assert run.trace.finish == "cancelled" and len(run.trace.rounds) == 4
    server.rounds, server.before_chunk, server.lingering = ROUNDS, slowly(0), 3
    trace = generate(pair, "Once", SHORT)
    assert trace.text == TEXT and trace.stats.server.alone
    assert server.aborted and not server.running


def test_no_run_keeps_its_connection(served, monkeypatch):
    """Each that stayed took a place of the 100 in a pool, after which every request waited for ever."""
    monkeypatch.setattr("specdemo.servers.counters.LATE", 0.0)
    server, pair = served

    def runs(*last_events: int | None) -> None:
        """They are stopped after so many events."""
        for last in last_events:
            with suppress(ServerError), stream(pair, "Once", SHORT) as run:
                for number, _ in enumerate(run):
                    if number == last:
                        break

    runs(None, *[0] * 8, 1, 2, 3)
    server.answers["/v1/completions"] = (
        200,
        {"Content-Type": "text/event-stream"},
        line({"choices": 1}) * 30,
    )
    runs(None, None)
    server.behave()
    monkeypatch.setattr("specdemo.servers.client.OPTIONAL_SECONDS", 0.0)
    runs(*[None] * 8)
    until = time.monotonic() + 60
    while connections(pair.client.address):
        assert time.monotonic() < until
        time.sleep(0.01)


def connections(url: str) -> int:
    """Of this process to the server."""
    own = [one.raddr for one in psutil.net_connections("tcp") if one.pid == os.getpid() and one.raddr]
    return sum(address.port == urlsplit(url).port for address in own)


def test_a_server_that_was_started_anew_is_asked_again():
    with connected() as (server, pair):
        server.gamma, server.accepted = 3, [0, 0, 0]
        with pytest.raises(ServerError, match="drafts otherwise than when it was asked before"):
            generate(pair, "Once", SHORT)
        assert pair.failed


def test_one_run_at_a_time(served):
    _, pair = served
    with stream(pair, "Once", SHORT), pytest.raises(PairError, match="busy"):
        stream(pair, "Once", SHORT)
    assert generate(pair, "Once", SHORT).text == TEXT


# Addresses, keys and certificates


@pytest.mark.parametrize(
    ("url", "words"),
    [
        (8000, "must be a server's address"),
        ("http://", "must be an address that begins with http"),
        ("http://[::1", "cannot be read"),
        ("http://me:secret@host", "without a name or a password"),
        ("ftp://me:secret@host", "must be an address that begins with http"),
        ("http://host/?key=1", "without"),
        ("http://ho\nst", "must be a server's address"),
    ],
)
def test_what_is_no_address(url, words):
    with pytest.raises(PairError, match=words) as caught:
        load_pair(vllm=url)
    assert "secret" not in str(caught.value)


def test_it_is_given_alone():
    with pytest.raises(PairError, match="server must be given alone"):
        load_pair("embedded", vllm="http://host:8000")
    with pytest.raises(PairError, match="server_key must be left out without server"):
        load_pair(vllm_key="k")


KEY = "s3cret-of-the-server"


def test_the_key_is_sent_and_is_in_no_trace_log_or_error(caplog):
    caplog.set_level(logging.DEBUG)
    server = StandIn(key=KEY)
    with server.serving() as url:
        with pytest.raises(ServerError, match="refuses the key, or wants one") as caught:
            load_pair(vllm=url)
        pair = load_pair(vllm=url, vllm_key=KEY)
        trace = generate(pair, "Once", SHORT)
        server.before_chunk = lambda number, write: write(line({"error": f"the key {KEY} has expired"}))
        with pytest.raises(ServerError, match=r"the key \*\*\* has expired") as told:
            generate(pair, "Once", SHORT)
    assert f"Bearer {KEY}" in server.keys
    for text in (trace.to_json(), caplog.text, str(caught.value), str(told.value), repr(pair), *pair.notes):
        assert KEY not in text


@pytest.mark.parametrize("key", ["", " ", "a\nb", "schlüssel"])
def test_a_key_that_cannot_be_sent(key):
    with pytest.raises(ServerError, match="the key for it is empty or cannot be sent"):
        load_pair(vllm="http://127.0.0.1:9", vllm_key=key)


def test_a_redirect_gets_neither_prompt_nor_key(served):
    server, pair = served
    elsewhere = StandIn()
    with elsewhere.serving() as url:
        location = {"Location": f"{url}/v1/completions"}
        server.answers["/v1/completions"] = (307, location, b"")
        with pytest.raises(ServerError, match="answers from another address"):
            generate(pair, "Once", SHORT)
    assert not elsewhere.keys


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")
def test_a_certificate_is_checked(tmp_path):
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost -keyout key.pem -out own.pem"
    )
    subprocess.run(command.split(), cwd=tmp_path, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "own.pem", tmp_path / "key.pem")
    trusted = pytest.raises(ServerError, match="has no certificate that can be trusted")
    with StandIn().serving(context) as url, trusted:
        load_pair(vllm=url)
