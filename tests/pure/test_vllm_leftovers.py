"""What a server still does for a request that has ended here: after a stop string, and after Stop."""

import os
import time
from contextlib import suppress
from urllib.parse import urlsplit

import psutil
import pytest

from specdemo import Params, generate, load_pair, stream
from specdemo.vllm.client import ServerError
from tests.stand_ins.vllm import ROUNDS, StandIn, slowly

SHORT = Params(max_new_tokens=8, temperature=0)


def test_a_text_that_ended_at_a_stop_string_still_counts_as_running_for_a_moment():
    server = StandIn(ROUNDS, finish="stop", stop=" word12")
    with server.serving() as url:
        pair = load_pair(vllm=url)
        server.before_chunk = lambda number, write: setattr(server, "lingering", 2)
        trace = generate(pair, "Once", SHORT)
    assert trace.finish == "stop" and trace.stats.server.alone
    assert trace.stats.server.total_ms is not None and trace.stats.server.drafts == 4


def test_a_round_that_is_judged_after_a_stop_string_is_no_error():
    server = StandIn(ROUNDS, finish="stop", stop=" word12")
    with server.serving() as url:
        pair = load_pair(vllm=url)
        server.judge_more = 1
        trace = generate(pair, "Once", SHORT)
    assert trace.finish == "stop" and len(trace.rounds) == 5
    assert [one.drafts_told for one in trace.rounds] == [True, True, False, False, False]


def test_a_round_of_a_request_that_ran_before_is_no_error():
    server = StandIn(ROUNDS)
    with server.serving() as url:
        pair = load_pair(vllm=url)
        server.lingering, server.judge_more = 1, 1
        trace = generate(pair, "Once", SHORT)
    assert trace.finish == "length" and not trace.stats.server.alone


def test_after_a_closed_run_the_next_one_waits_until_the_server_has_ended_it():
    server = StandIn(ROUNDS)
    with server.serving() as url:
        pair = load_pair(vllm=url)
        server.before_chunk = slowly(0.05)
        with stream(pair, "Once", SHORT) as run:
            next(run), next(run)
        server.lingering = 3
        trace = generate(pair, "Once", SHORT)
    assert run.trace.finish == "cancelled" and trace.stats.server.alone


@pytest.mark.parametrize("ended", ["complete", "stopped", "stopped at once", "misread", "late"])
def test_no_run_keeps_its_connection(ended, monkeypatch):
    """Each that stayed took a place of the 100 in a pool, after which every request waited for ever."""
    monkeypatch.setattr("specdemo.vllm.counters.LATE", 0.0)
    monkeypatch.setattr("specdemo.vllm.client.OPTIONAL_SECONDS", 0.0 if ended == "late" else 5.0)
    server = StandIn(ROUNDS)
    with server.serving() as url:
        pair = load_pair(vllm=url)
        if ended == "misread":
            line = b'data: {"choices": 1}\n\n'
            server.answers["/v1/completions"] = (200, {"Content-Type": "text/event-stream"}, line * 30)
        for at in range(30):
            with suppress(ServerError), stream(pair, "Once", SHORT) as run:
                for number, _ in enumerate(run):
                    if ended.startswith("stopped") and number == (
                        0 if ended == "stopped at once" else at % 4
                    ):
                        break
        until = time.monotonic() + 10
        while connections(url) and time.monotonic() < until:
            time.sleep(0.01)
        assert connections(url) == 0


def connections(url: str) -> int:
    """Of this process to the server."""
    own = [one.raddr for one in psutil.net_connections("tcp") if one.pid == os.getpid() and one.raddr]
    return sum(address.port == urlsplit(url).port for address in own)
