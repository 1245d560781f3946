"""A visitor's run without the page: its steps, leaving at any moment, loads, and what a choice needs."""

import asyncio
import gc
import itertools
import socket
import threading
import time
import weakref
from dataclasses import replace

import pytest

from specdemo import Params, stream
from specdemo.runtime import lm
from specdemo.ui.runs import run as run_module
from specdemo.ui.runs.limits import LOCAL, Visitor
from specdemo.ui.runs.models import Choice, Models
from specdemo.ui.runs.queue import Refused, RunQueue
from specdemo.ui.runs.run import RunProgress, Waiting, follow, message_about
from tests.sentences import refused
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


def wait_in_line(queue, work):
    ticket = queue.join(somebody(), "run")
    ticket.enter(work)
    return ticket


async def steps(models, queue, choice=STARTED, params=SHORT, prompt=PROMPT):
    return [step async for step in ask(models, queue, params, choice, prompt)]


async def begin(visitor) -> RunProgress:
    """The visitor's first look at its own run."""
    async for step in visitor:
        if isinstance(step, RunProgress):
            return step


# A run


def test_the_steps_of_a_run(models, queue):
    """They tell all of it while it goes on. The target is slow enough for that to be seen."""
    params = Params(seed=5, max_new_tokens=20, ignore_eos=True)
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
    assert told == sorted(told) and len(set(told)) > 2 and told[-1] == len(trace.rounds)
    assert trace.finish == "length" and trace.output_ids == run.trace.output_ids


def test_a_speed_up_settles_until_somebody_else_waits(models, queue, monkeypatch):
    """Its reader has been told before that the run has ended."""
    gave_way = []

    def settle(run, is_over):
        while not (is_over() or gave_way):  # nobody waits while the other one settles
            time.sleep(0.001)
            yield
        gave_way.append(run)

    monkeypatch.setattr("specdemo.ui.runs.run.settle", settle)

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


@pytest.mark.parametrize("how", ["closed", "cancelled", "closed elsewhere", "late"])
def test_a_run_that_is_not_wanted_any_more_ends_within_a_round(models, queue, how):
    """And the next one starts at once. tests/pure/test_line.py has what else ends a turn."""

    async def visit():
        ticket = queue.join(somebody(), "run")
        visitor = follow(models, ticket, STARTED, PROMPT, LONG)
        run = (await begin(visitor)).run
        if how == "closed":
            await visitor.aclose()
        elif how == "cancelled":
            looking = asyncio.create_task(anext(visitor))
            await asyncio.sleep(0.001)
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
        elif how == "closed elsewhere":
            await asyncio.to_thread(run.close)
        else:
            queue.limits = replace(LOCAL, run_seconds=ticket.seconds)
        before = len(run.trace.rounds)
        while run.trace.finish is None:
            await asyncio.sleep(0.001)
        assert run.trace.finish == "cancelled" and len(run.trace.rounds) <= before + 3
        rest = [step async for step in visitor]
        if how in ("late", "closed elsewhere"):
            assert rest[-1].ended and rest[-1].until == len(run.trace.rounds)
            assert (rest[-1].note is not None) == (how == "late")
        queue.limits = LOCAL
        return (await steps(models, queue))[-1]

    last = asyncio.run(visit())
    assert last.run.trace.finish == "length" and last.note is None and queue.waiting == 0


@pytest.mark.parametrize("slow", ["target", "drafter"])
def test_a_long_prompt_is_given_up_between_two_parts_of_it(models, queue, monkeypatch, slow):
    monkeypatch.setattr(lm, "PREFILL_CHUNK", 4)
    fed, prompt = [], "the cat sat " * 50

    async def visit():
        visitor = ask(models, queue, replace(SHORT, gamma=2), prompt=prompt)
        run = (await begin(visitor)).run
        while not fed:
            await asyncio.sleep(0.01)
        await visitor.aclose()
        while run.trace.finish is None:
            await asyncio.sleep(0.01)
        return run.trace

    def feed(*_):
        fed.append(1)
        time.sleep(0.05)

    hook = getattr(models.get(), slow).register_forward_pre_hook(feed)
    try:
        trace = asyncio.run(visit())
    finally:
        hook.remove()
    assert trace.finish == "cancelled" and not trace.rounds and len(fed) < 15
    assert asyncio.run(steps(models, queue, prompt=prompt))[-1].run.trace.finish == "length"


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
    told = message_about(error.value)
    assert told.key == "failed" and told.endswith("ValueError: cannot read weights.bin: denied to ***")


# Loads


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
        assert (await anext(late)).what.values == {"ahead": 1}
        with models.pool.loading:  # as while another pair loads
            models.pool.pairs.clear()
            models.pool.pairs[models.request(Choice(dtype="float32")).key] = small
            held.set()
            seen = await asyncio.wait_for(asyncio.gather(anext(late), steps_of(quick)), PATIENCE)
            assert seen[0].what.key == "pair_loads"
        return seen[1][-1], (await steps_of(late))[-1]

    async def steps_of(visitor):
        return [step async for step in visitor]

    assert [last.run.trace.finish for last in asyncio.run(visit())] == ["length", "length"]


def test_a_bounded_number_wait_for_a_pair_and_the_others_run(places):
    models, queue = Models(places), RunQueue(replace(LOCAL, loading=1))
    models.get(Choice(dtype="float32"))

    async def visit():
        late, more = (ask(models, queue, choice=Choice(dtype="bfloat16")) for _ in range(2))
        with models.pool.loading:  # as while a pair downloads
            assert isinstance(await anext(late), Waiting)
            with refused("gave_up", kind=Refused):
                await anext(more)
            quick = await steps(models, queue, Choice(dtype="float32"))
            assert quick[-1].run.trace.finish == "length"
        return [step async for step in late][-1]

    assert asyncio.run(visit()).pair.info.dtype.target == "bfloat16"


def test_a_pair_is_loaded_only_when_somebody_reads_the_answer(places, queue, monkeypatch):
    models, read, looks = Models(places), False, []
    monkeypatch.setattr(run_module, "LOADING_PERIOD", 0.01)

    def is_read():
        looks.append(read)
        return read

    def asks(session: str):
        ticket = queue.join(Visitor(session, "10.1.1.1", is_read=is_read), "run")
        return follow(models, ticket, STARTED, PROMPT, SHORT)

    async def visit():
        nonlocal read
        stays, leaves = asks("stays"), asks("leaves")
        looking = [asyncio.create_task(anext(visitor)) for visitor in (stays, leaves)]
        while len(looks) < 10:
            await asyncio.sleep(0.01)
        assert not any(look.done() for look in looking), "it has begun to load"
        looking[1].cancel()
        await asyncio.gather(looking[1], return_exceptions=True)
        assert queue.waiting == 1
        read = True
        assert isinstance(await looking[0], Waiting)
        return [step async for step in stays][-1]

    assert asyncio.run(visit()).run.trace.finish == "length"


def test_visitors_who_wait_take_no_threads_and_leave_none(places, models, queue, monkeypatch):
    """In line, and while a pair loads."""
    gate, unloaded = threading.Event(), Models(places)
    monkeypatch.setattr(unloaded.pool, "_download", lambda *_: gate.wait(PATIENCE))
    first = wait_in_line(queue, lambda: gate.wait(PATIENCE))
    threads = threading.active_count()

    async def visit():
        crowd = [ask(models, queue) for _ in range(50)]
        for visitor in crowd:
            assert isinstance(await anext(visitor), Waiting)
        assert threading.active_count() <= threads
        for visitor in crowd:
            await visitor.aclose()
        assert queue.tickets == [first]
        for _ in range(50):
            visitor = ask(unloaded, queue)
            assert isinstance(await anext(visitor), Waiting)
            await visitor.aclose()

    with unloaded.pool.loading:
        asyncio.run(visit())
        end = time.monotonic() + PATIENCE / 3
        while threading.active_count() > threads + 3 and time.monotonic() < end:
            time.sleep(0.01)
        left = threading.active_count() - threads
        gate.set()
    assert left <= 3, "they wait for a pair that nobody wants"


# The choice


def test_no_choice_is_as_the_server_was_started(places):
    models = Models(
        {**places, "device": "cpu", "dtype": "bfloat16", "quantize": {"target": "int8", "drafter": None}}
    )

    def parts(**choice):
        return [f"{part.dtype}, {part.quantize}" for part in models.request(Choice(**choice)).parts]

    assert parts() == ["torch.bfloat16, int8", "torch.bfloat16, None"]
    assert parts(pair="embedded") == parts(pair="smollm2-1.7b") == parts()
    assert parts(dtype="float32") == ["torch.float32, int8", "torch.float32, None"]
    assert parts(dtype="auto") == ["None, int8", "None, None"]
    chosen = parts(quantize="none", quantize_drafter="int4")
    assert chosen == ["torch.bfloat16, None", "torch.bfloat16, int4"]


@pytest.mark.slow
def test_what_a_pair_of_ones_own_needs_is_known_once_it_is_loaded(places):
    models, choice = Models(places), Choice(dtype="bfloat16", quantize="int4")
    before = models.needs(choice)
    held = models.get(choice).bytes_held
    after = models.needs(choice)
    assert (after.target_bytes, after.drafter_bytes, after.total) == (
        held.target,
        held.drafter,
        held.target + held.drafter,
    )
    assert (before.target_bytes, before.total, before.fits, before.gated) == (None, 0, True, False)
    assert after.loaded and not before.loaded


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
    assert whole.total == 2 * half.total
    small = models.needs(Choice("smollm2-1.7b", "bfloat16", "int4"))
    assert small.target_bytes == half.target_bytes // 4 and small.drafter_bytes == half.drafter_bytes
    assert models.needs(Choice("gemma-3-4b")).gated and not half.loaded
