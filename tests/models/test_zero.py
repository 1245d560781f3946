"""Runs on ZeroGPU, over a stand-in for its package that really forks a process for each call."""

import asyncio
import gc
import os
import signal
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import gradio as gr
import pytest
from gradio.context import LocalContext
from starlette.requests import Request

import app
from specdemo import PairError, Params, stream, zero
from specdemo.runtime import attention, cuda
from specdemo.ui.page import page
from specdemo.ui.page.api import note_visitor
from specdemo.ui.runs.limits import Visitor
from specdemo.ui.runs.models import Choice, Models
from specdemo.ui.runs.queue import RunQueue
from specdemo.ui.runs.run import RunProgress, follow

sys.path.append(str(Path(__file__).parents[1] / "stand_ins"))
import spaces

pytestmark = pytest.mark.slow
PROMPT = "Once upon a time"
PARAMS = Params(seed=5, temperature=0.8, top_p=0.9, max_new_tokens=24, ignore_eos=True)
LONG = replace(PARAMS, max_new_tokens=400, alternatives=0)


@pytest.fixture(scope="module")
def models():
    return Models({})


@pytest.fixture
def pair(models):
    """The embedded pair, which is free after each test."""
    yield models.get()
    assert not models.get().lock.locked()


@pytest.fixture(autouse=True)
def on_zero(monkeypatch):
    monkeypatch.setattr(zero, "GPU", spaces.GPU)
    monkeypatch.setattr(spaces, "calls", [])
    return spaces


def without_times(trace):
    return [replace(one, draft_ms=0, verify_ms=0) for one in trace.rounds]


def finished(run):
    for _ in run:
        pass
    return run.trace


def test_a_run_in_a_forked_process_equals_one_without(pair, on_zero):
    events = list(run := zero.start_run(pair, PROMPT, PARAMS))
    alone = finished(stream(pair.with_capture("off"), PROMPT, PARAMS))
    assert without_times(run.trace) == without_times(alone)
    assert (run.trace.text, run.trace.finish) == (alone.text, alone.finish)
    assert events[0].params == PARAMS and events[1:-1] == run.trace.rounds
    assert events[-1].stats == run.trace.stats and run.trace.stats.prefill_ms > 0
    assert run.trace.stats.tokens == alone.stats.tokens
    assert on_zero.calls == [(os.getpid(), 8)]


def test_locks_that_other_threads_hold_stay_behind(pair):
    locks = (cuda.ALONE, attention.LOCK)
    with ThreadPoolExecutor(1) as other:
        for lock in locks:
            other.submit(lock.acquire).result()
        trace = finished(zero.start_run(pair, PROMPT, PARAMS, measure=False))
        for lock in locks:
            other.submit(lock.release).result()
    assert trace.finish == "length"


def test_a_run_can_be_closed_by_any_thread_or_dropped_and_frees_the_pair(pair):
    run = zero.start_run(pair, PROMPT, LONG)
    for count, _ in enumerate(run):
        if count == 3:
            with pytest.raises(PairError, match="busy"):
                zero.start_run(pair, PROMPT, PARAMS)
            closing = threading.Thread(target=run.close)
            closing.start()
    closing.join()
    assert run.trace.finish == "cancelled" and 3 <= len(run.trace.rounds) < 100
    run = zero.start_run(pair, PROMPT, PARAMS)
    next(run)
    del run
    gc.collect()


BUSY = 'No GPU was available after 60s. <a style="x" href="https://x">Create an account</a> to wait'


@pytest.mark.parametrize(
    "error, said",
    [
        (gr.Error(BUSY), "now: No GPU was available after 60s. Create an account to wait"),
        (gr.Error("GPU task aborted"), str(zero.TAKEN_BACK)),
        (OSError("No such file: '/home/mia/queue.sock'"), "now: No such file: 'queue.sock'"),
    ],
)
def test_what_the_host_refuses_is_a_sentence(pair, monkeypatch, error, said):
    monkeypatch.setattr(spaces, "refusal", error)
    run = zero.start_run(pair, PROMPT, PARAMS)
    with pytest.raises(PairError) as refused:
        finished(run)
    assert str(refused.value).endswith(said)
    assert (run.trace.finish, run.trace.error) == ("error", str(refused.value))


def test_an_error_in_the_forked_process_is_a_sentence(pair, monkeypatch):
    def fails(*_):
        raise RuntimeError("no kernel image\nin /home/mia/kernels.so")

    monkeypatch.setattr(zero.session, "loop_of", fails)
    with pytest.raises(PairError, match="RuntimeError: no kernel image in kernels.so$"):
        finished(zero.start_run(pair, PROMPT, PARAMS))


def test_no_gpu_is_asked_for_what_a_pair_cannot_take(pair, on_zero):
    with pytest.raises(ValueError, match="prompt must not be empty"):
        zero.start_run(pair, "", PARAMS)
    assert on_zero.calls == []


@pytest.mark.parametrize("tokens, seconds", [(1, 6), (200, 25), (30_000, 60)])
def test_a_run_asks_for_the_gpu_by_its_longest_text(tokens, seconds):
    assert zero.seconds_for(replace(PARAMS, max_new_tokens=tokens)) == seconds


def test_a_run_that_loses_the_gpu_says_so(pair, monkeypatch):
    in_fork = zero._in_fork

    def dies(*arguments):
        for at, news in enumerate(in_fork(*arguments)):
            if at > 3:
                os.kill(os.getpid(), signal.SIGKILL)
            yield news

    monkeypatch.setattr(zero, "_in_fork", dies)
    monkeypatch.setattr(zero, "_tasks", weakref.WeakKeyDictionary())
    with pytest.raises(PairError, match=zero.TAKEN_BACK[:25]):
        finished(zero.start_run(pair, PROMPT, PARAMS))


def test_a_visitors_run_goes_through_it_in_the_visitors_context(models, pair, monkeypatch):
    """The package finds the visitor, whose quota counts, where Gradio has the request."""
    visitor, seen = LocalContext.request, []

    def noting(task, duration):
        return spaces.GPU(task, lambda *given: seen.append(visitor.get().headers) or duration(*given))

    monkeypatch.setattr(zero, "GPU", noting)
    monkeypatch.setattr(zero, "_tasks", weakref.WeakKeyDictionary())

    async def visit():
        note_visitor(Request({"type": "http", "headers": [(b"x-ip-token", b"Mia")]}))
        ticket = RunQueue().join(Visitor("page", "10.0.0.1"), "run")
        return [step async for step in follow(models, ticket, Choice(), PROMPT, PARAMS)]

    last = asyncio.run(visit())[-1]
    assert isinstance(last, RunProgress) and last.ended and last.run.trace.finish == "length"
    assert [headers.get("x-ip-token") for headers in seen] == ["Mia"]


def test_elsewhere_it_is_the_session_alone(pair, monkeypatch):
    monkeypatch.setattr(zero, "GPU", None)
    assert type(run := zero.start_run(pair, PROMPT, PARAMS)).__name__ == "Run"
    run.close()
    monkeypatch.delenv("SPACES_ZERO_GPU", raising=False)
    assert zero._decorator() is None
    monkeypatch.setenv("SPACES_ZERO_GPU", "true")
    assert zero._decorator() is spaces.GPU
    monkeypatch.setitem(sys.modules, "spaces", None)  # the package is not installed
    assert zero._decorator() is None


def test_all_pairs_that_visitors_can_choose_are_placed_before_the_page_is_there(monkeypatch):
    def build(*_):
        raise PairError("the page comes now")

    placed = []
    monkeypatch.setattr(Models, "get", lambda models, choice: choice.pair)
    monkeypatch.setattr(zero, "place", placed.append)
    monkeypatch.setattr(page, "build_page", build)
    assert app.main(["--hosted", "--port", "0"]) != 0
    assert placed == ["embedded", "embedded-poor", "embedded-eagle3", "embedded-dflash"]
