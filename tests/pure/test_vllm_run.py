"""Runs on a vLLM server, against a stand-in that behaves as the real one, or is slow, restarted, shared with
others, or behind a proxy."""

import json
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
from tests.sentences import refused
from tests.stand_ins.vllm import MODEL, ROUNDS, TEXT, StandIn, connected, fates, line, slowly

SHORT = Params(max_new_tokens=8, temperature=0)
NOBODY = "http://127.0.0.1:9"
ODD = [(401, {}), (500, {}), (200, {"Content-Encoding": "gzip"}), (200, {"Transfer-Encoding": "chunked"})]
IN_ONES = {"rounds": [(id_,) for id_ in range(5, 13)], "gamma": None}


def of_all(trace: Trace) -> list[str]:
    return [fates(one) for one in trace.rounds]


def test_a_run_is_the_same_events_and_the_same_trace(served):
    server, pair = served
    pair = load_pair(server=f"{pair.client.address}/v1/")
    penalties = {"presence_penalty": 0.5, "frequency_penalty": -0.25}
    with stream(pair, "Once", replace(SHORT, seed=3, **penalties, logit_bias={})) as run:
        started, *rounds, finished = list(run)
    assert started.prompt_ids == (1, 2, 3) and started.params.gamma == 2
    assert started.versions["vllm"] == "0.32.0"
    assert finished.finish == "length" and finished.text == TEXT and len(rounds) == 5
    trace = run.trace
    assert of_all(trace) == [" sampled", "aa bonus", "ar resampled", "rd resampled", " sampled"]
    assert trace.pair.server.model == MODEL and trace.pair.server.gamma == 2
    assert Trace.from_json(trace.to_json()).to_json() == trace.to_json()
    assert trace.stats.accepted == 3 and trace.stats.rejected == 2 and trace.stats.draft_ms is None
    sent = server.requests[-1]
    wanted = {"max_tokens": 8, "temperature": 0, "seed": 3, "model": MODEL, "prompt": "Once", "logprobs": 5}
    assert (wanted | penalties).items() <= sent.items() and "logit_bias" not in sent
    assert sent["stream"] and sent["return_token_ids"]


def test_refused_tokens_are_told_where_nobody_else_s_drafts_are_counted(served):
    server, pair = served
    trace = generate(pair, "Once", SHORT)
    assert trace.stats.drafted == 6 and not trace.revised and trace.rounds[-1].ended_by == "length"
    server.others = 2
    trace = generate(pair, "Once", SHORT)
    assert of_all(trace) == [" sampled", "aa bonus", "a sampled", " sampled", " sampled"]
    assert [one.drafts_told for one in trace.rounds] == [True, True, False, False, True]
    assert trace.stats.drafted is trace.stats.rejected is trace.stats.acceptance_rate is None


def test_a_server_that_was_busy_when_it_was_looked_at_keeps_its_drafts_untold():
    with connected(others=1) as (_, pair):
        trace = generate(pair, "Once", SHORT)
    assert any("or others used it" in str(note) for note in pair.notes) and trace.stats.drafted is None


def test_a_server_that_contradicts_itself_when_it_is_looked_at_is_refused():
    says = "drafts otherwise than when it was asked before"
    with pytest.raises(ServerError, match=says), connected(detailed=True, tells={"num_spec_tokens": 3}):
        pass


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
    assert trace.stats.drafted == 6


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
    assert trace.text == TEXT


def test_a_proxy_may_let_through_only_what_is_needed(served):
    server, pair = served
    server.rounds = IN_ONES["rounds"]
    server.answers["/tokenize"] = (503, {}, b"")
    for status, header in ODD:
        server.answers |= dict.fromkeys(("/metrics", "/version"), (status, header, b"99\r\ncut off"))
        later = load_pair(server=pair.client.address)
        trace = generate(later, "Once", SHORT)
        assert trace.finish == "length" and trace.prompt_ids == (1, 2, 3)


def test_a_chat_and_its_template_s_arguments_go_to_the_servers_own_api(served):
    server, pair = served
    trace = generate(pair, "Hi", replace(SHORT, chat=True, system="Be brief"))
    assert trace.text == TEXT and trace.prompt_ids == (1, 2, 3) and len(trace.rounds[0].next.top) == 2
    messages = [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "Hi"}]
    assert server.requests[-1]["messages"] == messages and server.requests[-1]["top_logprobs"] == 5
    assert not {"tools", "tool_choice", "chat_template_kwargs"} & server.requests[-1].keys()
    turns = [*messages, {"role": "assistant", "content": "Yes?"}, {"role": "user", "content": "Go on"}]
    tools = [{"type": "function", "function": {"name": "f"}}]
    arguments = {"enable_thinking": False, "documents": [{"text": "a"}]}
    trace = generate(pair, turns, replace(SHORT, chat_template_kwargs=arguments | {"tools": tools}))
    assert server.requests[-1]["messages"] == turns and len(trace.messages) == 4 and trace.params.chat
    sent = {"chat_template_kwargs": arguments, "tools": tools, "tool_choice": "none"}
    assert sent.items() <= server.requests[-1].items() and sent.items() <= server.tokenised[-1].items()


def raws_of(trace: Trace) -> list[float]:
    """All probabilities that the server's numbers have become."""
    told = [token for one in trace.rounds for token in (*one.draft, one.next) if token]
    raws = [raw for token in told for raw in (token.raw_p, *(row[4] for row in token.top))]
    return [raw for raw in raws if raw is not None]


@pytest.mark.parametrize("chat", [False, True])
def test_numbers_that_add_up_to_more_than_1_are_no_probabilities(chat):
    with connected(likely=(-0.1, -2.4)) as (server, pair):  # as a greedy server may truly send
        assert len(raws_of(generate(pair, "Once", replace(SHORT, chat=chat)))) == 3 * 8
        server.before_chunk = lambda at, write: setattr(server, "likely", (0.0, -30.0 * (at != 2)))
        trace = generate(pair, "Once", replace(SHORT, chat=chat))
        assert len(raws_of(trace)) == 3 * 6 and trace.text == TEXT and trace.stats.accepted == 3
        assert trace.rounds[2].draft[0].raw_p is trace.rounds[2].next.raw_p is None
        assert Trace.from_json(trace.to_json()).to_json() == trace.to_json()


def test_prompts_of_ids_the_context_and_a_vocabulary_that_is_not_known():
    with connected(context=10) as (server, pair):
        trace = generate(pair, [4, 5, 6, 2**31 - 1], replace(SHORT, max_new_tokens=100))
        assert server.requests[-1]["max_tokens"] == 6
        assert server.requests[-1]["prompt"] == [4, 5, 6, 2**31 - 1] == list(trace.prompt_ids)
        assert trace.prompt == "" and pair.vocab_size is None
        with pytest.raises(ValueError, match="^prompt .* 9 tokens"):
            generate(pair, [1] * 10, SHORT)
        with pytest.raises(ValueError, match="^prompt .*2147483647"):
            generate(pair, [2**31], SHORT)


def test_what_a_server_does_not_take_is_refused_by_name(served):
    _, pair = served
    for change, key in (
        ({"gamma": 7}, "servers_own"),
        ({"draft_with": "lookup"}, "servers_own"),
        ({"tree": (2, 1)}, "servers_own_empty"),
        ({"min_p": 0.1, "temperature": 0.5}, "servers_min_p"),
        ({"logit_bias": {3: 1}}, "servers_bias"),
        ({"regex": "a+"}, "grammar_not_sent"),
    ):
        with refused(key, field=next(iter(change))):
            stream(pair, "Once", replace(SHORT, **change))
    with stream(pair, "Once", SHORT), pytest.raises(PairError, match="busy"):
        stream(pair, "Once", SHORT)
    assert generate(pair, "Once", replace(SHORT, gamma=2)).finish == "length"  # the pair is free


def test_after_a_stop_string_it_may_judge_one_more_round(served):
    server, pair = served
    server.finish = "stop"
    assert generate(pair, "Once", SHORT).finish == "eos"
    server.stop = " word12"
    trace = generate(pair, "Once", replace(SHORT, stop=(" word12",)))
    assert trace.finish == "stop" and trace.text == TEXT.removesuffix(" word12") and trace.stats.drafted == 6
    server.judge_more = 1
    trace = generate(pair, "Once", SHORT)
    assert trace.finish == "stop" and [one.drafts_told for one in trace.rounds[:-1]] == [
        True,
        True,
        False,
        False,
    ]


def test_stop_closes_the_connection(served):
    server, pair = served
    server.behave(rounds=[(5,)] + [(6,)] * 300, before_chunk=slowly(0.02))
    with stream(pair, "Once", replace(SHORT, max_new_tokens=301)) as run:
        for _ in range(5):
            next(run)
        if not os.fork():
            run.close(), os._exit(0)  # in a forked process, which closes nothing but its copy
        os.wait(), next(run)
    assert run.trace.finish == "cancelled" and len(run.trace.rounds) == 5
    server.rounds, server.before_chunk = ROUNDS, slowly(0)
    assert generate(pair, "Once", SHORT).text == TEXT
    while not server.aborted:
        time.sleep(0.01)


def test_no_run_keeps_its_connection(served, monkeypatch):
    """Each that stayed took a place of the 100 in a pool, after which every request waited for ever."""
    monkeypatch.setattr("specdemo.servers.vllm.LATE", 0.0)
    server, pair = served
    for last_event in (None, 0, 1, 2):
        with suppress(ServerError), stream(pair, "Once", SHORT) as run:
            for number, _ in enumerate(run):
                if number == last_event:
                    break
    server.answers["/v1/completions"] = (200, {}, line({"choices": 1}) * 30)
    with suppress(ServerError):
        generate(pair, "Once", SHORT)
    port, until = urlsplit(pair.client.address).port, time.monotonic() + 60
    while (os.getpid(), port) in [(one.pid, *one.raddr[1:]) for one in psutil.net_connections("tcp")]:
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"server": 8000}, "server"),
        *(
            ({"server": f"http://{rest}"}, "server must be a server's address")
            for rest in ("", "[::1", "me:secret@host", "host/?key=secret", "host:secret", "ho\nst", "host:0")
        ),
        ({"name": "embedded", "server": "http://host:8000"}, "server must be given alone"),
        ({"server_key": "secret"}, "server_key"),
        *(({"server": NOBODY, "server_key": key}, "the key") for key in ("", " ", "a\nb", "schlüssel")),
    ],
)
def test_what_is_no_address_or_no_key(given, words):
    with pytest.raises(PairError, match=words) as caught:
        load_pair(**given)
    assert "secret" not in str(caught.value)


KEY = "s3cret-of-\\the'server"


def test_the_key_is_sent_and_is_in_no_trace_log_or_error(caplog):
    caplog.set_level(logging.DEBUG)
    server = StandIn(key=KEY, model=f"{'x' * 190}{KEY}")
    server.answers["/version"] = (200, {}, json.dumps({"version": f"{'x' * 25}{KEY}"}).encode())
    with server.serving() as url:
        with pytest.raises(ServerError, match="refuses the key, or wants one") as caught:
            load_pair(server=url)
        pair = load_pair(server=url, server_key=KEY)
        trace = generate(pair, "Once", SHORT)
        server.before_chunk = lambda number, write: write(line({"error": f"the key {KEY} has expired"}))
        with pytest.raises(ServerError, match=r"the key \*\*\* has expired") as told:
            generate(pair, "Once", SHORT)
        shown = [trace.to_json(), caplog.text, str(caught.value), str(told.value), repr(pair), *pair.notes]
        for answer in ({"error": "x" * 285 + KEY}, {"detail": [f'"{KEY}']}, {"detail": [KEY]}):
            server.answers["/v1/completions"] = (400, {}, json.dumps(answer).encode())
            with pytest.raises(ServerError, match="400: ") as told:
                generate(pair, "Once", SHORT)
            shown.append(str(told.value))
    assert f"Bearer {KEY}" in server.keys and not [text for text in shown if "s3cret" in text]


def test_a_proxy_is_not_asked_for_a_server_on_this_machine(served, monkeypatch):
    _, pair = served
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    for proxy, words in ((NOBODY, "reached"), ("socks5://a", "proxy of the env"), ("x://a", "proxy of")):
        monkeypatch.setenv("ALL_PROXY", proxy)
        assert generate(pair, "Once", SHORT).text == TEXT
        load_pair(server=pair.client.address.replace("127.0.0.1", "localhost"))
        with pytest.raises(ServerError, match=words):
            load_pair(server="http://host.invalid")


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
    command = "openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=localhost -keyout key.pem -out own.pem"
    subprocess.run(command.split(), cwd=tmp_path, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "own.pem", tmp_path / "key.pem")
    trusted = pytest.raises(ServerError, match="cannot be reached: .*CERTIFICATE")
    with StandIn().serving(context) as url, trusted:
        load_pair(server=url)
