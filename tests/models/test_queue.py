"""A visitor's run without the page: the choice and what it needs, the queue, the steps, and leaving at any
moment."""

import asyncio
import gc
import itertools
import socket
import threading
import time
import weakref
from dataclasses import replace
from functools import partial

import pytest

from specdemo import PairError, Params, stream
from specdemo.errors import LoadError
from specdemo.loading import pool as pool_module
from specdemo.runtime import lm
from specdemo.session import Run
from specdemo.ui.page.api import trace_in_words
from specdemo.ui.runs.limits import LOCAL, Visitor
from specdemo.ui.runs.models import Choice, Models
from specdemo.ui.runs.queue import Refused, RunQueue
from specdemo.ui.runs.run import RunProgress, Waiting, follow, message_about
from specdemo.ui.view.texts import describe_pair
from specdemo.words.message import message
from tests.tiny import noisy, tiny, tokenizer

PROMPT = "the cat sat"
PATIENCE = 120  # s
STARTED = Choice()
SHORT = Params(temperature=0, max_new_tokens=20, ignore_eos=True)
LONG = Params(temperature=0, max_new_tokens=30_000, ignore_eos=True, alternatives=0)


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """A target and a drafter that go on for as long as one likes."""
    root = tmp_path_factory.mktemp("pair")
    target = tiny(vocab_size=304, hidden_size=64, intermediate_size=192, max_position_embeddings=40_000)
    for role, model in (("target", target), ("drafter", noisy(target))):
        model.save_pretrained(root / role)
        tokenizer(eos=None).save_pretrained(root / role)
    return {role: str(root / role) for role in ("target", "drafter")}


@pytest.fixture(scope="module")
def models(places):
    models = Models(places)
    models.get()
    return models


@pytest.fixture
def queue():
    return RunQueue()


def ask(models, queue, params=SHORT, choice=STARTED, prompt=PROMPT):
    """The steps of a run that somebody else asks for."""
    return follow(models, queue.join(somebody(), "run"), choice, prompt, params)


def somebody() -> Visitor:
    number = next(visitors)
    return Visitor(f"session {number}", f"10.0.0.{number}")


visitors = itertools.count()


def wait_in_line(queue, work, visitor=None):
    ticket = queue.join(visitor or somebody(), "run")
    ticket.enter(work)
    return ticket


async def steps(models, queue, choice=STARTED, params=SHORT, prompt=PROMPT):
    return [step async for step in ask(models, queue, params, choice, prompt)]


async def begin(visitor) -> RunProgress:
    """The visitor's first look at its own run."""
    async for step in visitor:
        if isinstance(step, RunProgress):
            return step


# The queue


def test_turns_come_in_order_and_everybody_knows_their_place(queue):
    gates, served = [threading.Event() for _ in range(4)], []

    def work(number: int):
        served.append(number)
        assert gates[number].wait(PATIENCE)

    visitors = [wait_in_line(queue, partial(work, number)) for number in range(4)]
    assert [ticket.ahead for ticket in visitors] == [0, 1, 2, 3]
    visitors[2].cancel()
    assert [ticket.ahead for ticket in visitors] == [0, 1, 0, 2]
    gates[0].set()
    visitors[0].done.result(PATIENCE)
    while visitors[1].ahead:
        time.sleep(0.001)
    assert [ticket.ahead for ticket in visitors] == [0, 0, 0, 1]
    for gate in gates:
        gate.set()
    visitors[3].done.result(PATIENCE)
    assert served == [0, 1, 3] and not visitors[2].done.done()
    visitors[0].cancel()  # once more does no harm


def test_a_visitor_reads_what_is_compiled_and_what_cannot_be(models):
    pair, params = models.get(), Params()
    assert not any("captur" in line or "trac" in line for line in describe_pair(pair, params))
    target, _ = pair.runner.lms
    target.warming_up = message("compiling", rows=5)
    assert list(describe_pair(pair, params))[-1] == "Warming up: compiling the forward of 5 rows."
    target.warming_up, target.not_native = None, "it is a test"
    try:
        why_not = "The target runs operation by operation, which is slower: it is a test."
        assert list(describe_pair(pair, params))[-1] == why_not
    finally:
        target.not_native = None


def test_a_cancelled_future_does_not_end_the_thread_that_serves_all_runs(queue):
    gate, served = threading.Event(), []
    first = wait_in_line(queue, lambda: gate.wait(PATIENCE))
    second = wait_in_line(queue, lambda: served.append("second"))
    third = wait_in_line(queue, lambda: served.append("third"))
    assert second.done.cancel()
    first.done.cancel()  # its work goes on
    gate.set()
    third.done.result(PATIENCE)
    assert served == ["third"]


def test_waiting_takes_no_thread(models, queue):
    async def visit():
        first = wait_in_line(queue, lambda: gate.wait(PATIENCE))
        threads = threading.active_count()
        crowd = [ask(models, queue) for _ in range(50)]
        for visitor in crowd:
            assert isinstance(await anext(visitor), Waiting)
        assert threading.active_count() <= threads
        for visitor in crowd:
            await visitor.aclose()
        assert queue.tickets == [first]
        gate.set()

    gate = threading.Event()
    asyncio.run(visit())


# A run


def test_the_steps_of_a_run(models, queue):
    """They tell all of it while it goes on. The target is slow enough for that to be seen."""
    params = Params(seed=5, max_new_tokens=60, ignore_eos=True)
    with stream(models.get(), PROMPT, params) as run:
        list(run)
    slow = models.get().target.register_forward_pre_hook(lambda *_: time.sleep(0.05))
    try:
        seen = asyncio.run(steps(models, queue, params=params))
    finally:
        slow.remove()
    assert all(isinstance(step, RunProgress) for step in seen)
    assert [step.ended for step in seen] == [False] * (len(seen) - 1) + [True]
    told = [step.until for step in seen]
    trace = seen[-1].run.trace
    assert told == sorted(told) and len(set(told)) > 3 and told[-1] == len(trace.rounds)
    assert trace.finish == "length" and trace.output_ids == run.trace.output_ids


def test_a_speed_up_settles_until_somebody_else_waits(models, queue, monkeypatch):
    """Its reader has been told before that the run has ended."""
    gave_way = []

    def settle(run, is_over):
        while not (is_over() or gave_way):  # nobody waits while the other one settles
            time.sleep(0.001)
            yield
        gave_way.append(run)

    monkeypatch.setattr(Run, "settle", settle)

    async def visit():
        async for step in (visitor := ask(models, queue)):
            if step.is_timed:
                break
        assert step.run.trace.finish is not None and not step.ended and not gave_way
        other = await steps(models, queue)
        assert gave_way[0] is step.run
        rest = [step async for step in visitor]
        assert rest[-1].ended and other[-1].run.trace.finish is not None

    asyncio.run(visit())


@pytest.mark.parametrize("how", ["closed", "cancelled"])
def test_a_run_ends_within_a_round_when_its_generator_does(models, queue, how):
    async def visit():
        visitor = ask(models, queue, LONG)
        step = await begin(visitor)
        if how == "closed":
            await visitor.aclose()
        else:
            looking = asyncio.create_task(anext(visitor))
            await asyncio.sleep(0.001)
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
        before = len(step.run.trace.rounds)
        while step.run.trace.finish is None:
            await asyncio.sleep(0.001)
        assert step.run.trace.finish == "cancelled"
        assert len(step.run.trace.rounds) <= before + 1, "the one that was under way"
        return (await steps(models, queue))[-1]  # the next one starts at once

    assert asyncio.run(visit()).run.trace.finish == "length"


def test_a_turn_ends_in_time_and_says_so(models):
    queue = RunQueue(replace(LOCAL, run_seconds=0.5))
    last = asyncio.run(steps(models, queue, params=LONG))[-1]
    assert last.ended and last.run.trace.finish == "cancelled" and last.until == len(last.run.trace.rounds)
    assert str(last.note).startswith("This run was ended after 0.5 s")
    queue.limits = LOCAL
    short = asyncio.run(steps(models, queue))[-1]
    assert short.run.trace.finish == "length" and short.note is None


@pytest.mark.parametrize("slow, how", [("target", "late"), ("drafter", "closed"), ("target", "left")])
def test_a_long_prompt_is_given_up_between_two_parts_of_it(models, monkeypatch, slow, how):
    monkeypatch.setattr(lm, "PREFILL_CHUNK", 4)
    queue = RunQueue(LOCAL)
    fed, prompt = [], "the cat sat " * 50

    async def visit():
        visitor = ask(models, queue, replace(SHORT, gamma=2), prompt=prompt)
        run = (await begin(visitor)).run
        while not fed:
            await asyncio.sleep(0.01)
        if how == "late":
            queue.limits = replace(LOCAL, run_seconds=0.5)
        elif how == "closed":
            await asyncio.to_thread(run.close)
        elif how == "left":
            await visitor.aclose()
        rest = [step async for step in visitor]
        while run.trace.finish is None:
            await asyncio.sleep(0.01)
        return rest, run.trace

    def feed(*_):
        fed.append(1)
        time.sleep(0.05)

    hook = getattr(models.get(), slow).register_forward_pre_hook(feed)
    try:
        rest, trace = asyncio.run(visit())
    finally:
        hook.remove()
    assert trace.finish == "cancelled" and not trace.rounds and len(fed) < 15
    assert (how == "late") == bool(rest and "ended after 0.5 s" in str(rest[-1].note))
    assert "ended by: cancelled" in trace_in_words(trace)
    queue.limits = LOCAL
    assert asyncio.run(steps(models, queue, prompt=prompt))[-1].run.trace.finish == "length"


def test_a_run_without_a_listener_ends_within_a_round_and_one_in_line_never_starts(models, queue):
    listens = True

    def ask_as(number):
        ticket = queue.join(Visitor(f"page {number}", "10.9.9.9", lambda: listens), "run")
        return follow(models, ticket, Choice(), PROMPT, LONG)

    async def visit():
        nonlocal listens
        runs, waits = ask_as(1), ask_as(2)
        run = (await begin(runs)).run
        assert "number 1" in (await anext(waits)).sentence
        listens, before = False, len(run.trace.rounds)
        while run.trace.finish is None:
            await asyncio.sleep(0.001)
        assert run.trace.finish == "cancelled" and len(run.trace.rounds) <= before + 3
        with pytest.raises(Refused):
            async for step in waits:
                assert not isinstance(step, RunProgress), "it has started"
        await runs.aclose()
        assert queue.waiting == 0 and (await steps(models, queue))[-1].run.trace.finish == "length"

    asyncio.run(visit())


def test_a_run_that_is_closed_elsewhere_ends_its_steps(models, queue):
    async def visit():
        visitor = ask(models, queue, LONG)
        step = await begin(visitor)
        await asyncio.to_thread(step.run.close)
        return [step async for step in visitor][-1]

    last = asyncio.run(visit())
    assert last.ended and last.run.trace.finish == "cancelled" and last.until == len(last.run.trace.rounds)


def test_what_goes_wrong_in_a_run_is_raised(models, queue):
    calls = []

    def fail(module, args):
        calls.append(1)
        if len(calls) == 5:
            raise RuntimeError("the fifth is too many")

    handle = models.get().target.register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="the fifth is too many"):
        asyncio.run(steps(models, queue))
    handle.remove()
    with pytest.raises(ValueError, match="^prompt must not be empty"):
        asyncio.run(steps(models, queue, prompt=""))
    with pytest.raises(PairError, match="^pair must be one of"):
        asyncio.run(steps(models, queue, Choice("nobody")))
    assert asyncio.run(steps(models, queue))[-1].run.trace.finish == "length"


@pytest.mark.parametrize("when", ["while it loads", "while it runs"])
def test_a_librarys_error_is_no_mistake_of_the_visitor(places, queue, monkeypatch, when):
    def fail(*_):
        raise ValueError("cannot read /home/mia/weights.bin:\n  denied to hunter2-hunter2")

    monkeypatch.setenv("SOME_TOKEN", "hunter2-hunter2")
    models = Models(places)
    if when == "while it loads":
        monkeypatch.setattr(models.pool, "get", fail)
    else:
        models.get().target.register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError) as error:
        asyncio.run(steps(models, queue))
    assert str(message_about(error.value)) == (
        "The run failed: RuntimeError: ValueError: cannot read weights.bin: denied to ***"
    )


@pytest.mark.slow
def test_nothing_keeps_a_pair_that_has_been_sent_away(places, queue):
    models = Models(places)
    seen = asyncio.run(steps(models, queue))
    model = weakref.ref(seen[-1].pair.target)
    seen.clear()
    models.pool.pairs.clear()
    for _ in range(100):  # the queue's thread may still hold it for a moment
        gc.collect()
        if model() is None:
            break
        time.sleep(0.01)
    assert model() is None


@pytest.mark.slow
def test_a_pair_that_was_sent_away_is_loaded_again_outside_the_turn(places, queue):
    models = Models(places)

    async def visit():
        small = models.get(Choice(dtype="float32"))
        models.get(Choice(dtype="bfloat16"))
        held = threading.Event()
        wait_in_line(queue, lambda: held.wait(PATIENCE))
        late, quick = (ask(models, queue, choice=Choice(dtype=kind)) for kind in ("bfloat16", "float32"))
        assert "number 1" in (await anext(late)).sentence
        with models.pool.loading:  # as while another pair loads
            models.pool.pairs.clear()
            models.pool.pairs[models.request(Choice(dtype="float32")).key] = small
            held.set()
            seen = await asyncio.wait_for(asyncio.gather(anext(late), steps_of(quick)), PATIENCE)
            assert seen[0].sentence.startswith("Loading the pair")
        return seen[1][-1], (await steps_of(late))[-1]

    async def steps_of(visitor):
        return [step async for step in visitor]

    assert [last.run.trace.finish for last in asyncio.run(visit())] == ["length", "length"]


@pytest.mark.slow
def test_a_pair_that_is_sent_away_again_and_again_is_told_so(places, queue, monkeypatch):
    models = Models(places)
    real = models.get

    def get(*arguments):
        real(*arguments)
        models.pool.pairs.clear()

    monkeypatch.setattr(models, "get", get)
    with pytest.raises(LoadError, match="again and again"):
        asyncio.run(asyncio.wait_for(steps(models, queue), PATIENCE))
    assert queue.waiting == 0


def test_others_run_while_a_pair_loads(places, queue):
    models = Models(places)
    models.get(Choice(dtype="float32"))

    async def visit():
        with models.pool.loading:  # as while a pair downloads
            late = ask(models, queue, choice=Choice(dtype="bfloat16"))
            assert isinstance(await anext(late), Waiting)
            quick = await steps(models, queue, Choice(dtype="float32"))
            assert quick[-1].run.trace.finish == "length"
        return [step async for step in late][-1]

    assert asyncio.run(visit()).pair.info.dtype.target == "bfloat16"


def test_a_pair_is_loaded_only_when_somebody_reads_the_answer(places, queue):
    models, read = Models(places), False

    def asks(session: str):
        visitor = Visitor(session, "10.1.1.1", is_read=lambda: read)
        return follow(models, queue.join(visitor, "run"), STARTED, PROMPT, SHORT)

    async def visit():
        nonlocal read
        stays, leaves = asks("stays"), asks("leaves")
        looking = [asyncio.create_task(anext(visitor)) for visitor in (stays, leaves)]
        await asyncio.sleep(0.5)
        assert not any(look.done() for look in looking), "it has begun to load"
        looking[1].cancel()
        await asyncio.gather(looking[1], return_exceptions=True)
        assert queue.waiting == 1
        read = True
        assert isinstance(await looking[0], Waiting)
        return [step async for step in stays][-1]

    assert asyncio.run(visit()).run.trace.finish == "length"


@pytest.mark.parametrize("what", ["a download", "another load"])
def test_visitors_who_leave_while_a_pair_loads_leave_no_threads(places, queue, monkeypatch, what):
    models, gate = Models(places), threading.Event()
    if what == "a download":
        monkeypatch.setattr(pool_module, "is_here", lambda part: False)
    monkeypatch.setattr(models.pool, "_download", lambda *_: gate.wait(PATIENCE))
    threads = threading.active_count()

    async def visit():
        for _ in range(100):
            visitor = ask(models, queue)
            assert isinstance(await anext(visitor), Waiting)
            await visitor.aclose()

    with models.pool.loading:
        asyncio.run(visit())
        end = time.monotonic() + PATIENCE / 3
        while threading.active_count() > threads + 3 and time.monotonic() < end:
            time.sleep(0.01)
        left = threading.active_count() - threads
        gate.set()
    assert left <= 3, "they wait for a pair that nobody wants"


def test_a_bounded_number_wait_for_a_pair_and_the_others_go_on(places):
    models, queue = Models(places), RunQueue(replace(LOCAL, loading=2))
    models.get(Choice(dtype="float32"))

    async def visit():
        late = [ask(models, queue, choice=Choice(dtype="bfloat16")) for _ in range(3)]
        with models.pool.loading:  # as while a pair downloads
            for visitor in late[:2]:
                assert isinstance(await anext(visitor), Waiting)
            with pytest.raises(Refused, match="^Too many requests wait"):
                await anext(late[2])
            quick = await steps(models, queue, Choice(dtype="float32"))
            assert quick[-1].run.trace.finish == "length"
        return [[step async for step in visitor][-1] for visitor in late[:2]]

    assert [last.run.trace.finish for last in asyncio.run(visit())] == ["length", "length"]


# The choice


def test_no_choice_is_as_the_server_was_started(places):
    models = Models(
        {**places, "device": "cpu", "dtype": "bfloat16", "quantize": {"target": "int8", "drafter": None}}
    )

    def parts(**choice):
        return [(str(part.dtype), part.quantize) for part in models.request(Choice(**choice)).parts]

    assert parts() == [("torch.bfloat16", "int8"), ("torch.bfloat16", None)]
    assert parts(pair="embedded") == parts(pair="smollm2-1.7b") == parts()
    assert parts(dtype="float32") == [("torch.float32", "int8"), ("torch.float32", None)]
    assert parts(dtype="auto") == [("None", "int8"), ("None", None)]
    assert parts(quantize="none", quantize_drafter="int4") == [
        ("torch.bfloat16", None),
        ("torch.bfloat16", "int4"),
    ]
    assert models.listed()[0] == {"name": models.default, **places, "about": "as the server was started"}


@pytest.mark.parametrize(
    "wrong, sentence",
    [
        ({"pair": "nobody"}, "pair must be one of"),
        ({"pair": ["embedded"]}, "pair must be one of"),
        ({"dtype": "float8"}, "dtype must be one of auto, float32"),
        ({"dtype": ["auto"]}, "dtype must be one of auto, float32"),
        ({"quantize": "int3"}, "quantize must be one of none, int8"),
        ({"quantize_drafter": 8}, "quantize must be one of none, int8"),
    ],
)
def test_a_wrong_choice_is_refused_in_a_sentence(models, wrong, sentence):
    for ask in (models.request, models.loaded, models.needs, models.get):
        with pytest.raises(PairError, match=f"^{sentence}"):
            ask(Choice(**wrong))


@pytest.mark.slow
@pytest.mark.parametrize("dtype, quantize", [("float32", "none"), ("bfloat16", "int4")])
def test_what_a_pair_on_this_machine_needs_is_known_to_the_byte(places, dtype, quantize):
    models, choice = Models(places), Choice(dtype=dtype, quantize=quantize)
    before = models.needs(choice)
    held = models.get(choice).bytes_held
    after = models.needs(choice)
    for needs in (before, after):
        assert (needs.target_bytes, needs.drafter_bytes) == (held.target, held.drafter)
        assert needs.total == held.target + held.drafter
    assert (before.loaded, after.loaded, before.fits, before.gated) == (False, True, True, False)
    assert before.device == "cpu"


def test_what_a_target_alone_needs(places):
    needs = Models({"target": places["target"]}).needs(Choice())
    assert needs.drafter_bytes is None and needs.total == needs.target_bytes > 0


def test_what_a_pair_of_the_catalogue_needs_is_said_without_asking_anybody(models, monkeypatch):
    def refuse(*_):
        raise AssertionError("somebody was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    for name in models.arguments:
        needs = models.needs(Choice(name))
        assert needs.total == needs.target_bytes + needs.drafter_bytes > 0, name
        assert needs.fits == (needs.total <= needs.memory), name
    half, whole = (models.needs(Choice("smollm2-1.7b", dtype)) for dtype in ("bfloat16", "float32"))
    assert half.total == pytest.approx(3.7e9) and whole.total == 2 * half.total
    small = models.needs(Choice("smollm2-1.7b", "bfloat16", "int4"))
    assert small.target_bytes == half.target_bytes // 4 and small.drafter_bytes == half.drafter_bytes
    assert models.needs(Choice("gemma-3-4b")).gated and "not yet" in half.tried and not half.loaded
