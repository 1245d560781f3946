"""One run per pair at a time: when a pair is busy, and what frees it."""

import gc
import threading
from concurrent.futures import ThreadPoolExecutor, wait

import pytest
import torch

from specdemo import PairError, Params, load_pair, stream
from tests.sentences import assert_one_sentence
from tests.tiny import noisy, tiny

GREEDY = Params(temperature=0, max_new_tokens=20)


@pytest.fixture(scope="module")
def pair():
    """Each test leaves it free."""
    target = tiny()
    return load_pair(target=target, drafter=noisy(target))


def assert_free(pair):
    events = list(stream(pair, [1, 2, 3], GREEDY))
    assert events[-1].finish == "length" and len(events[-1].output_ids) == 20


def assert_busy(pair):
    with pytest.raises(PairError, match="busy") as error:
        stream(pair, [1, 2, 3], GREEDY)
    assert_one_sentence(str(error.value))


def test_busy_until_it_has_finished(pair):
    run = stream(pair, [1, 2, 3], GREEDY)
    assert_busy(pair)
    for event in run:
        if not hasattr(event, "finish"):
            assert_busy(pair)
    assert_free(pair)
    assert run.trace.finish == "length" and list(run) == []


@pytest.mark.parametrize("events", [0, 1, 4])
@pytest.mark.parametrize("how", ["closed", "collected"])
def test_busy_until_it_is_closed_or_collected(pair, events, how):
    run = stream(pair, [1, 2, 3], GREEDY)
    for _ in range(events):
        next(run)
    trace = run.trace
    assert_busy(pair)
    if how == "closed":
        run.close()
        assert list(run) == []
        with stream(pair, [1, 2, 3], GREEDY):
            run.close()  # closing it again must not free another run
            assert_busy(pair)
    del run
    gc.collect()
    assert_free(pair)
    assert trace.finish == "cancelled" and len(trace.rounds) == max(0, events - 1)
    assert trace.output_ids == [token_id for one in trace.rounds for token_id in one.emitted]


def test_closed_by_another_thread_while_a_round_is_computed(pair):
    inside, go_on, calls = threading.Event(), threading.Event(), []

    def hold(module, args):
        calls.append(1)
        if len(calls) == 3:
            inside.set()
            assert go_on.wait(60)

    def close():
        run.close()
        assert pair.lock.acquire(blocking=False)  # free at the moment when close returns
        pair.lock.release()

    handle = pair.target.register_forward_pre_hook(hold)
    run = stream(pair, [1, 2, 3], GREEDY)
    with ThreadPoolExecutor(2) as threads:
        seen = threads.submit(list, run)
        assert inside.wait(60)
        closing = threads.submit(close)
        assert not wait([closing], 0.1).done and run.trace.finish is None  # the round is still computed
        go_on.set()
        closing.result(60)
    handle.remove()
    assert run.trace.finish == "cancelled" and len(run.trace.rounds) == 2 and len(calls) == 3
    assert not any(hasattr(event, "finish") for event in seen.result())
    assert_free(pair)


@pytest.mark.parametrize(("role", "failure"), [("target", MemoryError()), ("drafter", KeyError("x"))])
def test_a_failure_inside_a_run(pair, role, failure):
    calls = []

    def fail(module, args):
        calls.append(1)
        if len(calls) == 3:
            raise failure

    handle = getattr(pair, role).register_forward_pre_hook(fail)
    run = stream(pair, [1, 2, 3], GREEDY)
    with pytest.raises(type(failure)):
        list(run)
    handle.remove()
    assert run.trace.finish == "error"
    assert type(failure).__name__ in run.trace.error and str(failure) in run.trace.error
    assert len(run.trace.rounds) == (1 if role == "target" else 0)  # the prefill is a forward, too
    assert_free(pair)


def test_a_rejected_prompt_leaves_the_pair_free(pair):
    for prompt in ("text", [], [10_000], [1.5], None, [1] * 256):
        with pytest.raises(ValueError, match="^prompt") as error:
            stream(pair, prompt, GREEDY)
        assert_one_sentence(str(error.value))
    assert_free(pair)


def test_runs_that_overlap_leave_torchs_threads_as_they_were(pair):
    """Each thread has a number of its own, and a new one takes that which was set last."""
    other, before = load_pair(target=tiny()), torch.get_num_threads()
    inside, go_on, threads_of = threading.Event(), threading.Event(), torch.get_num_threads

    def compute():
        with other.runner.torch_settings():
            inside.set()
            assert go_on.wait(60)
            meanwhile = threads_of()
        return meanwhile, threads_of()

    torch.set_num_threads(3)
    try:
        with ThreadPoolExecutor(1) as thread, ThreadPoolExecutor(1) as new:
            with pair.runner.torch_settings():
                computed = thread.submit(compute)
                assert inside.wait(60)
                with other.runner.torch_settings():
                    pass
                assert threads_of() == 1
            assert threads_of() == 3
            go_on.set()
            assert computed.result(60) == (1, 3)
            assert new.submit(threads_of).result(60) == threads_of() == 3
    finally:
        torch.set_num_threads(before)
