"""Runs on a vLLM server, against a stand-in that behaves as the real one, or badly on purpose."""

import logging
import shutil
import ssl
import subprocess
import threading
import time
from dataclasses import replace

import pytest

from specdemo import Params, Trace, generate, load_pair, stream
from specdemo.errors import PairError
from specdemo.vllm import client
from specdemo.vllm.client import ServerError
from tests.stand_ins.vllm import MODEL, ROUNDS, TEXT, BreakOff, StandIn, line, slowly

SHORT = Params(max_new_tokens=8, temperature=0)


def fates(trace: Trace) -> list[str]:
    return [
        f"{''.join(token.fate[0] for token in one.draft)} {one.next.source if one.next else 'none'}"
        for one in trace.rounds
    ]


def test_a_run_is_the_same_events_and_the_same_trace():
    server = StandIn(ROUNDS)
    with server.serving() as url:
        pair = load_pair(vllm=f"{url}/v1/")
        with stream(pair, "Once", replace(SHORT, seed=3)) as run:
            started, *rounds, finished = list(run)
    assert started.prompt_ids == (1, 2, 3) and started.params.gamma == 2
    assert started.versions["vllm"] == "0.32.0"
    assert finished.finish == "length" and finished.text == TEXT and len(rounds) == 5
    trace = run.trace
    assert fates(trace) == [" sampled", "aa bonus", "ar resampled", "rd resampled", "rd resampled"]
    assert trace.pair.server.model == MODEL and trace.pair.server.gamma == 2
    assert Trace.from_json(trace.to_json()).to_json() == trace.to_json()
    assert trace.stats.accepted == 3 and trace.stats.rejected == 3 and trace.stats.draft_ms is None
    sent = server.requests[-1]
    wanted = {"max_tokens": 8, "temperature": 0, "seed": 3, "model": MODEL, "prompt": "Once", "logprobs": 5}
    assert wanted.items() <= sent.items() and sent["stream"] and sent["return_token_ids"]


def test_the_servers_own_numbers_are_differences_around_the_run():
    with StandIn(ROUNDS).serving() as url:
        pair = load_pair(vllm=url)
        first, second = (generate(pair, "Once", SHORT).stats for _ in range(2))
    assert first.server.alone and (first.server.drafts, first.server.drafted) == (4, 8)
    assert first.server.accepted == first.accepted == 3 and first.server.accepted_by_place == (2, 1)
    assert first.server.total_ms == pytest.approx(6.0)
    elapsed = first.ttft_ms + first.arrival_ms
    assert first.server.network_ms == pytest.approx(max(0.0, elapsed - 6.0), abs=1e-6)
    assert second.server.drafts == 4


def test_others_on_the_server_are_seen_and_the_times_are_not_taken_for_ours():
    server = StandIn(ROUNDS)
    with server.serving() as url:
        pair = load_pair(vllm=url)
        server.others = 2
        trace = generate(pair, "Once", SHORT)
    assert not trace.stats.server.alone
    assert trace.stats.server.total_ms is None and trace.stats.server.network_ms is None


def test_a_server_that_was_busy_when_it_was_looked_at_keeps_its_drafts_untold():
    with StandIn(ROUNDS, others=1).serving() as url:
        pair = load_pair(vllm=url)
        trace = generate(pair, "Once", SHORT)
    assert any("others used the server" in note for note in pair.notes)
    assert fates(trace) == [" sampled", "aa bonus", "a sampled", " sampled", " sampled"]
    assert [one.drafts_told for one in trace.rounds] == [True, True, False, False, True]
    assert trace.stats.drafted is trace.stats.rejected is trace.stats.acceptance_rate is None


def test_drafts_of_other_lengths_are_noticed_after_the_run():
    server = StandIn(ROUNDS, drafted=(2, 1, 0, 0), probe=((5,), (6,), (7,)))
    server.drafted_at_first = (2, 2)
    with server.serving() as url:
        pair = load_pair(vllm=url)
        run = stream(pair, "Once", SHORT)
        shown = [fates(run.trace)[-1] for event in run if run.trace.rounds]
    assert shown[2] == "ar resampled"  # as it was thought
    assert fates(run.trace)[2] == "a sampled" and run.trace.revised
    assert run.trace.stats.drafted is None


def test_a_server_that_tells_each_step_leaves_nothing_open():
    with StandIn(ROUNDS, drafted=(2, 1, 2, 1), detailed=True, others=3).serving() as url:
        trace = generate(load_pair(vllm=url), "Once", SHORT)
    assert fates(trace) == [" sampled", "aa bonus", "a bonus", "rd resampled", "r resampled"]
    assert trace.stats.server.alone and trace.stats.server.drafted == trace.stats.drafted == 6
    assert trace.stats.server.accepted_by_place == (2, 1)


def test_a_server_that_does_not_draft():
    with StandIn([(id_,) for id_ in range(5, 13)], gamma=None).serving() as url:
        pair = load_pair(vllm=url)
        trace = generate(pair, "Once", SHORT)
    assert pair.server.gamma == 0 and trace.params.draft_with == "none"
    assert {one.next.source for one in trace.rounds} == {"sampled"} and trace.stats.drafted == 0


def test_a_server_without_counters_is_used_and_it_is_said():
    with StandIn(ROUNDS, counted=False).serving() as url:
        pair = load_pair(vllm=url)
        trace = generate(pair, "Once", SHORT)
    assert pair.server.gamma is None and any("/metrics cannot be read" in note for note in pair.notes)
    assert trace.text == TEXT and trace.stats.server is None


@pytest.mark.parametrize(
    ("finish", "stop", "expected"),
    [("stop", None, "eos"), ("stop", "word12", "stop"), ("length", None, "length")],
)
def test_why_the_text_ends(finish, stop, expected):
    with StandIn(ROUNDS, finish=finish, stop=stop).serving() as url:
        params = replace(SHORT, stop=(stop,) if stop else ())
        trace = generate(load_pair(vllm=url), "Once", params)
    assert trace.finish == expected
    assert trace.text == (TEXT.removesuffix("word12") if stop else TEXT)


def test_a_chat_goes_through_its_own_api():
    server = StandIn(ROUNDS)
    with server.serving() as url:
        trace = generate(load_pair(vllm=url), "Hi", replace(SHORT, chat=True, system="Be brief"))
    assert trace.text == TEXT and trace.prompt_ids == (1, 2, 3)
    messages = [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "Hi"}]
    assert server.requests[-1]["messages"] == messages and server.requests[-1]["top_logprobs"] == 5
    turns = [*messages, {"role": "assistant", "content": "Yes?"}, {"role": "user", "content": "Go on"}]
    with server.serving() as url:
        trace = generate(load_pair(vllm=url), turns, SHORT)
    assert server.requests[-1]["messages"] == turns and len(trace.messages) == 4 and trace.params.chat


def test_prompts_of_ids_and_the_context():
    server = StandIn(ROUNDS, context=10)
    with server.serving() as url:
        pair = load_pair(vllm=url)
        trace = generate(pair, [4, 5, 6, 7], replace(SHORT, max_new_tokens=100))
        assert server.requests[-1]["max_tokens"] == 6 and server.requests[-1]["prompt"] == [4, 5, 6, 7]
        assert trace.prompt_ids == (4, 5, 6, 7) and trace.prompt == ""
        with pytest.raises(ValueError, match="must have at most 9 tokens for this target, but has"):
            generate(pair, [1] * 10, SHORT)


def test_a_servers_vocabulary_is_not_known_and_its_ids_are_those_that_a_trace_can_hold():
    server = StandIn(ROUNDS)
    with server.serving() as url:
        pair = load_pair(vllm=url)
        assert pair.vocab_size is None
        assert generate(pair, [2**31 - 1], SHORT).prompt_ids == (2**31 - 1,)
        with pytest.raises(ValueError, match="whole numbers from 0 to 2147483647"):
            generate(pair, [2**31], SHORT)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"gamma": 7}, "gamma must be left at 4 for a server"),
        ({"draft_with": "lookup"}, "draft_with must be left at model"),
        ({"rule": "block"}, "rule must be left at speculative"),
        ({"confidence": 0.5}, "confidence must be left at 0.0"),
        (
            {"min_p": 0.1, "temperature": 0.5},
            "min_p must be 0 here: vLLM does not take min-p where it drafts",
        ),
        ({"logit_bias": {3: 1}}, "logit_bias must be empty here: vLLM does not take it where it drafts"),
    ],
)
def test_what_a_server_does_not_take_is_refused_by_name(change, words):
    server = StandIn(ROUNDS)
    with server.serving() as url:
        pair = load_pair(vllm=url)
        with pytest.raises(ValueError, match=words):
            stream(pair, "Once", replace(SHORT, **change))
        assert generate(pair, "Once", replace(SHORT, gamma=2)).finish == "length"  # the pair is free


def test_penalties_are_passed_on_and_a_bias_where_nothing_is_drafted():
    penalties = {"presence_penalty": 0.5, "frequency_penalty": -0.25}
    server = StandIn(ROUNDS)
    with server.serving() as url:
        generate(load_pair(vllm=url), "Once", replace(SHORT, **penalties, logit_bias={}))
    sent = server.requests[-1]
    assert {name: sent[name] for name in penalties} == penalties and "logit_bias" not in sent
    server = StandIn([(id_,) for id_ in range(5, 13)], gamma=None)
    with server.serving() as url:
        generate(load_pair(vllm=url), "Once", replace(SHORT, logit_bias={7: 2, 5: -1}))
    assert server.requests[-1]["logit_bias"] == {"5": -1.0, "7": 2.0}


def test_min_p_is_passed_on_where_nothing_is_drafted():
    server = StandIn([(id_,) for id_ in range(5, 13)], gamma=None)
    with server.serving() as url:
        generate(load_pair(vllm=url), "Once", replace(SHORT, min_p=0.1, temperature=0.5))
    assert server.requests[-1]["min_p"] == 0.1


def breaks_off(number: int, write) -> None:
    if number == 2:
        raise BreakOff


def half_a_chunk(number: int, write) -> None:
    if number == 2:
        write(b'data: {"choices": [{"te')
        raise BreakOff


def not_utf8(number: int, write) -> None:
    if number == 2:
        write(b'data: {"choices": "\xff\xfe"}\n\n')


def not_json(number: int, write) -> None:
    if number == 2:
        write(b"data: <html>\n\n")


def silence(number: int, write) -> None:
    if number == 2:
        time.sleep(20)


def only_comments(number: int, write) -> None:
    if number == 2:
        until = time.monotonic() + 20
        while time.monotonic() < until:
            write(b": still here\n\n")
            time.sleep(0.05)


def ten_thousand_chunks(number: int, write) -> None:
    if number == 2:
        for _ in range(10_000):
            write(line({"choices": [{"text": "", "token_ids": []}]}))


def a_line_without_end(number: int, write) -> None:
    if number == 2:
        for _ in range(100):
            write(b"data: " + b"x" * 100_000)


def without_ids(number: int, write) -> None:
    if number == 2:
        write(line({"choices": [{"text": " more"}]}))


def merged(number: int, write) -> None:
    if number == 2:
        write(line({"choices": [{"text": " a b c d", "token_ids": [1, 2, 3, 4]}]}))


def an_error(number: int, write) -> None:
    if number == 2:
        write(line({"error": {"message": "EngineCore is gone", "code": 500}}))


def aborted(number: int, write) -> None:
    if number == 2:
        write(line({"choices": [{"text": "", "token_ids": [], "finish_reason": "abort"}]}))


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        (breaks_off, "broke off"),
        (half_a_chunk, "broke off"),
        (not_utf8, "sent bytes that are not UTF-8"),
        (not_json, "sent something that is not JSON"),
        (silence, "has sent no token for 1 s"),
        pytest.param(only_comments, "has sent no token for 1 s", marks=pytest.mark.slow),
        (ten_thousand_chunks, "it has sent more than was asked for"),
        (a_line_without_end, "sent a line that is too long"),
        (without_ids, "sends text without the ids of its tokens"),
        (merged, "sends several rounds in a chunk"),
        (an_error, "gave the run up: EngineCore is gone"),
        (aborted, "gave the run up: abort"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_run_that_breaks_off_keeps_what_came_and_the_next_one_works(behaviour, words):
    server = StandIn(ROUNDS)
    with server.serving() as url:
        pair = load_pair(vllm=url)
        server.before_chunk = behaviour
        pair.client.read_seconds = 1.0 if "no token for 1 s" in words else 60.0
        run = stream(pair, "Once", SHORT)
        with pytest.raises(ServerError, match=words) as caught:
            for _ in run:
                pass
        assert str(caught.value).startswith(f"the server at {url} ") and "\n" not in str(caught.value)
        assert run.trace.finish == "error" and run.trace.error == str(caught.value)
        assert run.trace.text == " word5 word6 word7 word8" and len(run.trace.rounds) == 2
        server.before_chunk = lambda number, write: None
        pair.client.read_seconds = 60.0
        assert generate(pair, "Once", SHORT).text == TEXT


def test_chunks_that_hold_two_rounds_each_are_noticed_in_the_counters():
    server = StandIn(ROUNDS)
    with server.serving() as url:
        pair = load_pair(vllm=url)
        server.judge_more = 1
        run = stream(pair, "Once", SHORT)
        with pytest.raises(ServerError, match="has judged 5 drafts and sent 4 chunks after the first"):
            for _ in run:
                pass
    assert run.trace.text == TEXT and run.trace.finish == "error"


def test_stop_closes_the_connection_and_the_server_sees_it():
    server = StandIn([(5,)] + [(6,)] * 300, before_chunk=slowly(0.02), probe=ROUNDS)
    with server.serving() as url:
        pair = load_pair(vllm=url)
        run = stream(pair, "Once", replace(SHORT, max_new_tokens=301))
        for _ in range(5):
            next(run)
        run.close()
        assert run.trace.finish == "cancelled" and len(run.trace.rounds) == 4
        wait_until(lambda: server.aborted == 1)
        assert server.running == 0
        server.rounds, server.before_chunk = ROUNDS, lambda number, write: None
        assert generate(pair, "Once", SHORT).text == TEXT


def test_stop_does_not_wait_for_a_silent_server():
    server = StandIn(ROUNDS)
    with server.serving() as url:
        pair = load_pair(vllm=url)
        silent = threading.Event()

        def before(number: int, write) -> None:
            if number == 1:
                silent.set()
                time.sleep(20)

        server.before_chunk = before
        run = stream(pair, "Once", SHORT)
        reading = threading.Thread(target=lambda: list(run))
        reading.start()
        assert silent.wait(30)
        began = time.monotonic()
        run.close()
        assert time.monotonic() - began < 15
        reading.join(15)
        assert run.trace.finish == "cancelled"


def wait_until(is_so, seconds: float = 10) -> None:
    until = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.01)


def answer(status: int, content: bytes = b"", **headers: str) -> tuple[int, dict[str, str], bytes]:
    return status, headers, content


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"answers": {"/v1/models": answer(404)}}, "has no /v1/models: this needs a vLLM server"),
        ({"answers": {"/v1/models": answer(200, b"<html>")}}, "sent something that is not JSON"),
        ({"answers": {"/v1/models": answer(200, b'{"data": []}')}}, "serves no model"),
        ({"answers": {"/v1/models": answer(200, b"[1]")}}, "serves no model"),
        (
            {"answers": {"/v1/models": answer(503, b'{"error": "loading"}')}},
            "answers with status 503: loading",
        ),
        ({"owner": "sglang"}, "is of sglang and not vLLM"),
        ({"owner": "llamacpp"}, "is of llamacpp and not vLLM"),
        (
            {"answers": {"/v1/models": answer(302, b"", Location="http://127.0.0.1:9/")}},
            "answers from another address, which is not followed",
        ),
        (
            {"answers": {"/v1/completions": answer(400, b'{"error": {"message": "no"}}')}},
            "with status 400: no",
        ),
        ({"answers": {"/v1/completions": answer(200, b"data: [DONE]\n\n")}}, "has sent no token"),
        ({"answers": {"/v1/completions": answer(404)}}, "answers with status 404"),
        ({"rounds": ((1, 2), (3,))}, "sends several rounds in a chunk"),
        ({"before_chunk": without_ids}, "sends text without the ids of its tokens"),
    ],
)
def test_a_server_that_cannot_be_used_is_refused_in_a_sentence(settings, words):
    with StandIn(**settings).serving() as url, pytest.raises(ServerError, match=words) as caught:
        load_pair(vllm=url)
    assert str(caught.value).startswith(f"the server at {url} ") and "\n" not in str(caught.value)


def test_a_server_that_says_nothing(monkeypatch):
    monkeypatch.setattr(client, "READ_SECONDS", 0.5)
    server = StandIn(before_chunk=slowly(3))
    with server.serving() as url, pytest.raises(ServerError, match="has sent no token for 0.5 s"):
        load_pair(vllm=url)


def test_metrics_of_another_kind_are_no_metrics():
    answers = {"/metrics": answer(200, b"<html>\x00{{{"), "/version": answer(200, b"[]")}
    with StandIn(ROUNDS, answers=answers).serving() as url:
        pair = load_pair(vllm=url)
    assert pair.server.gamma is None and pair.server.version is None


def test_nobody_there():
    with pytest.raises(ServerError, match=r"the server at http://127.0.0.1:9 cannot be reached"):
        load_pair(vllm="http://127.0.0.1:9")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("host:8000", "must be an address that begins with http"),
        ("", "must be a server's address"),
        (8000, "must be a server's address"),
        ("ftp://host", "must be an address that begins with http"),
        ("http://", "must be an address that begins with http"),
        ("http://host:port", "cannot be read"),
        ("http://[::1", "cannot be read"),
        ("http://me:secret@host", "without a name or a password"),
        ("http://host/?key=1", "without"),
        ("http://ho\nst", "must be a server's address"),
    ],
)
def test_what_is_no_address(url, words):
    with pytest.raises(PairError, match=words) as caught:
        load_pair(vllm=url)
    assert "secret" not in str(caught.value)


def test_it_is_given_alone():
    with pytest.raises(PairError, match="vllm must be given alone"):
        load_pair("embedded", vllm="http://host:8000")
    with pytest.raises(PairError, match="vllm_key must be left out without vllm"):
        load_pair(vllm_key="k")


KEY = "s3cret-of-the-server"


def test_the_key_is_sent_and_is_in_no_trace_log_or_error(caplog):
    caplog.set_level(logging.DEBUG)
    server = StandIn(ROUNDS, key=KEY)
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
    with pytest.raises(ServerError, match="the key for the server is empty or cannot be sent"):
        load_pair(vllm="http://127.0.0.1:9", vllm_key=key)


def test_a_redirect_gets_neither_prompt_nor_key():
    with StandIn(ROUNDS).serving() as elsewhere:
        server = StandIn(ROUNDS)
        with server.serving() as url:
            pair = load_pair(vllm=url, vllm_key=KEY)
            server.answers["/v1/completions"] = answer(307, b"", Location=f"{elsewhere}/v1/completions")
            with pytest.raises(ServerError, match="answers from another address"):
                generate(pair, "Once", SHORT)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")
def test_a_certificate_is_checked(tmp_path):
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost -keyout key.pem -out own.pem"
    )
    subprocess.run(command.split(), cwd=tmp_path, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "own.pem", tmp_path / "key.pem")
    trusted = pytest.raises(ServerError, match="has no certificate that can be trusted")
    with StandIn(ROUNDS).serving(context) as url, trusted:
        load_pair(vllm=url)


def test_a_server_that_was_started_anew_is_asked_again():
    server = StandIn(ROUNDS)
    with server.serving() as url:
        pair = load_pair(vllm=url)
        server.gamma, server.accepted = 3, [0, 0, 0]
        with pytest.raises(ServerError, match="drafts otherwise than when it was asked before"):
            generate(pair, "Once", SHORT)
        assert pair.failed


def test_one_run_at_a_time():
    with StandIn(ROUNDS, before_chunk=slowly(0.02)).serving() as url:
        pair = load_pair(vllm=url)
        with stream(pair, "Once", SHORT), pytest.raises(PairError, match="busy"):
            stream(pair, "Once", SHORT)
        assert generate(pair, "Once", SHORT).text == TEXT
