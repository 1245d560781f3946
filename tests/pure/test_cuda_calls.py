"""What captures, waiting and freeing leave behind, without a GPU: the real code over stand-ins
(tests/fake_cuda.py)."""

import gc
import re
import threading
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from specdemo.runtime import cuda
from specdemo.runtime import graphs as capturing_module
from specdemo.runtime.cuda import Clock
from specdemo.runtime.graphs import Graphs
from specdemo.runtime.steps import OnHost, Packed, pack, to_host
from tests.fake_cuda import FakeCuda, install

CPU = torch.device("cpu")
PACKAGE = Path(cuda.__file__).parents[1]


@pytest.fixture
def fake(request, monkeypatch):
    """Its parameter is torch's version."""
    return install(monkeypatch, FakeCuda(getattr(request, "param", "2.13")))


@dataclass(frozen=True)
class Input:
    x: Tensor  # [3] int64
    u: Tensor  # [3] float64

    def on_device(self):
        return self

    def varied(self):
        return replace(self, x=self.x + 1, u=1 - self.u)


@dataclass(frozen=True)
class Output:
    numbers: Packed
    logits: Tensor


def step(value):
    return Output(pack(ids=2 * value.x, probabilities=value.u / 2), value.x.float() * 10)


def inputs(first=0):
    return Input(torch.arange(first, first + 3), torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64))


def new_graphs(**options):
    graphs = Graphs(Clock(), **options)
    graphs.begin_run([])
    return graphs


def names(keyed):
    return [key[0] for key in keyed]


def same(output, expected):
    return torch.equal(output.numbers.numbers, expected.numbers.numbers) and torch.equal(
        output.logits, expected.logits
    )


def in_thread(function):
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread


def is_held():
    """Whether another thread would have to wait."""
    free = []

    def look():
        if cuda.ALONE.acquire(blocking=False):
            cuda.ALONE.release()
            free.append(True)

    in_thread(look).join()
    return not free


def test_a_captured_step_says_what_the_step_says_and_gives_its_memory_back(fake):
    """The collector, which could free a graph, rests meanwhile; and all graphs share one stream."""
    collecting = []

    def noting(value):
        if fake.capturing:
            collecting.append(gc.isenabled())
        return step(value)

    graphs, other = new_graphs(), new_graphs()
    for first in (0, 5, 9):
        read, output = graphs(("step",), noting, inputs(first))
        assert same(output, step(inputs(first))) and torch.equal(read.x, inputs(first).x)
    other(("step",), noting, inputs())
    assert collecting == [False, False] and gc.isenabled() and len(fake.streams) == 1
    assert not fake.recording and sorted(fake.users.values()) == [1, 1]
    graphs.drop()
    assert sorted(fake.users.values()) == [0, 1] and not fake.violations


def test_the_latest_used_are_kept(fake):
    graphs = new_graphs(most=2)
    for name in ("one", "two", "one", "three", "one"):
        graphs((name,), step, inputs())
    assert names(graphs.graphs) == ["three", "one"] and fake.made == 3
    assert sorted(fake.users.values()) == [2], "the second one has given its memory back"


def reads_numbers(value):
    value.x.sum().item()
    return step(value)


def failing(fake, how):
    """A step whose capture fails, because it runs out of memory or because another thread ends it."""

    def fails(value):
        if fake.capturing and how == "memory":
            raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 2.00 GiB")
        output = step(value)
        fake.invalid = fake.capturing is not None and how == "interrupted"
        return output

    return reads_numbers if how == "reads" else fails


@pytest.mark.parametrize("fake", ["2.11", "2.13"], indirect=True)
@pytest.mark.parametrize("how", ["reads", "memory", "interrupted", "begin", "instantiate"])
def test_after_a_failed_capture_the_step_runs_as_it_is_and_the_pool_is_given_back(fake, how):
    graphs = new_graphs()
    graphs(("before",), step, inputs())
    if how == "begin":
        fake.fails_to_begin = RuntimeError("it does not begin")
    if how == "instantiate":
        fake.fails_to_end = RuntimeError("CUDA error: out of memory")
    fake.generator.state = "captured"
    for _ in range(2):
        _, output = graphs(("failing",), failing(fake, how), inputs(4))
        assert same(output, step(inputs(4)))
    assert graphs.blocker and not graphs.graphs and fake.made == 2, "not again in the same run"
    assert fake.capturing is None and not fake.recording, "the allocator knows that the capture has ended"
    assert set(fake.users.values()) == {0} and fake.generator.state == "a copy"
    assert fake.current.name == "default"
    assert not fake.violations and not is_held() and gc.isenabled()
    assert len(capturing_module._failed) == 1, "the allocator of pinned memory may still point to it"
    fake.fails_to_begin = fake.fails_to_end = None
    graphs.begin_run([])
    graphs(("failing",), step, inputs())
    passes = how in ("memory", "interrupted", "instantiate")
    assert bool(graphs.graphs) == (graphs.blocker is None) == passes


def test_nobody_frees_moves_or_captures_while_a_step_is_captured(fake):
    capturing, goes_on, done = threading.Event(), threading.Event(), []

    def slow(value):
        output = step(value)
        if fake.capturing:
            capturing.set()
            assert goes_on.wait(60)
            done.append("captured")
        return output

    def move():
        with cuda.alone_on("cuda"):
            done.append("moved")

    calls = [
        lambda: new_graphs()(("slow",), slow, inputs()),
        lambda: new_graphs()(("other",), step, inputs()),
        lambda: cuda.free_cache("cuda"),
        move,
    ]
    threads = []
    for call in calls:
        threads.append(in_thread(call))
        assert capturing.wait(60)
    threads[-1].join(0.1)  # time to go wrong
    assert is_held()
    goes_on.set()
    for thread in threads:
        thread.join(60)
    assert done == ["captured", "moved"] and fake.made == 2 and not fake.violations


# Before a graph is used, it is compared with the step.


def set_nan(output):
    output.logits[0] = torch.nan


TAMPERED = {  # what differs, and at which of the three replays that are compared
    "ids": (1, lambda output: output.numbers.numbers[:3].add_(1)),
    "probabilities": (2, lambda output: output.numbers.numbers[3:].add_(1e-5)),
    "logits": (3, lambda output: output.logits.add_(0.5)),
    "NaN in logits": (1, set_nan),
}


@pytest.fixture
def outputs(monkeypatch):
    """Of all graphs that are captured, in order."""
    own_capture, outputs = Graphs._capture, []

    def capture(self, *args):
        outputs.append(own_capture(self, *args))
        return outputs[-1]

    monkeypatch.setattr(Graphs, "_capture", capture)
    return outputs


@pytest.mark.parametrize("what", TAMPERED)
def test_a_step_whose_graphs_say_something_else_runs_as_it_is_and_no_other_does(fake, outputs, what):
    (when, change), first, replays = TAMPERED[what], inputs(10), []

    def tamper(graph):
        replays.append(graph)
        if len(replays) == when:
            change(outputs[-1].output)
            replays.clear()  # the next graph begins anew

    graphs = new_graphs()
    graphs(("other",), step, first)
    fake.tamper = tamper
    for _ in range(2):
        _, output = graphs(("step",), step, first)
        assert same(output, step(first)) and names(graphs.graphs) == ["other"]
    assert names(graphs.refused) == ["step"] and graphs.blocker is None and what in str(graphs.refused)
    fake.tamper = lambda graph: None
    graphs.begin_run([])
    graphs(("step",), step, first)
    assert len(outputs) == 3, "it was captured once more, and then never again"
    graphs.drop()
    graphs(("step",), step, first)
    assert not graphs.refused and names(graphs.graphs) == ["step"], "weights that moved are another try"


def test_infinite_and_missing_numbers_that_the_step_gives_too_are_no_difference(fake):
    def odd(value):
        output = step(value)
        output.logits[0], output.logits[1] = -torch.inf, torch.nan
        return output

    graphs = new_graphs()
    graphs(("odd",), odd, inputs())
    assert not graphs.blocker and not graphs.refused


@pytest.mark.parametrize("agrees", [True, False])
def test_an_output_that_another_step_reads_where_it_is_stays_as_it_was(fake, agrees):
    """Trying the second graph on other numbers writes them there, also when it fails with those."""

    def doubling(value):
        return Input(2 * value.x, value.u / 2)

    graphs, replays = new_graphs(), []
    _, draft = graphs(("draft",), doubling, inputs(3))
    expected = [draft.x.clone(), draft.u.clone()]

    def tamper(graph):
        replays.append(graph)
        if not agrees and len(replays) in (2, 4):
            graph.operations.noted[-1][-1].add_(1)  # the last that it computes are the logits

    fake.tamper = tamper
    read, output = graphs(("verify",), step, draft)
    assert read.x is draft.x and ("verify" in names(graphs.graphs)) == (not graphs.refused) == agrees
    assert torch.equal(draft.x, expected[0]) and torch.equal(draft.u, expected[1])
    assert same(output, step(draft))


# Memory for copies, and a CUDA that does not answer.


@pytest.fixture
def blocks(fake, monkeypatch):
    """What the allocator of pinned memory has given, without keeping it from being freed: (storage, address)
    of each."""
    given, allocate = [], cuda._pinned_bytes

    def noting(size):
        block = allocate(size)
        given.append((StorageWeakRef(block.untyped_storage()), block.data_ptr()))
        return block

    monkeypatch.setattr(cuda, "_pinned_bytes", noting)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    return given


def held(blocks):
    gc.collect()
    return [not storage.expired() for storage, _ in blocks]


def test_pinned_memory_is_unknown_to_the_allocator_that_it_comes_from(blocks):
    """That finds a block by its first byte, or by the storage of the tensor."""
    tensor = cuda.pinned(torch.Size((2, 3)), torch.float32)
    assert tensor.shape == (2, 3) and tensor.dtype == torch.float32
    assert tensor.untyped_storage().data_ptr() == tensor.data_ptr() == blocks[0][1] + cuda.HEADER
    view = tensor.view(-1)
    del tensor
    assert held(blocks) == [True], "a view holds it, too"
    del view
    assert held(blocks) == [False]


def test_what_is_copied_to_a_gpu_is_held_until_its_stream_has_been_waited_for(blocks):
    graphs = new_graphs()
    graphs(("step",), step, inputs())  # captured
    graphs(("step",), step, replace(inputs(), x=cuda.pinned(torch.Size([3]), torch.long).fill_(1)))
    cuda.send(cuda.pinned(torch.Size([3]), torch.long), CPU)
    cuda.synchronize("cuda:1")
    assert held(blocks) == [True, True], "another stream knows nothing of the copies"
    cuda.synchronize(CPU)
    assert held(blocks) == [False, False]


@pytest.mark.parametrize("broken", [True, False], ids=["broken", "silent"])
def test_a_gpu_that_does_not_answer_is_an_error_and_what_it_may_still_write_stays(
    fake, blocks, monkeypatch, broken
):
    fake.broken, fake.answers = broken, False
    monkeypatch.setattr(cuda, "DEADLINE", 0.05)
    with pytest.raises(RuntimeError, match="illegal memory access" if broken else "not answered"):
        cuda.on_host(torch.arange(3))
    assert held(blocks) == [True]


def test_only_the_runtime_waits_for_a_device_frees_its_memory_or_pins_memory():
    """Such a call must hold the lock, or wait for a stream. Tensors that torch itself pins must not be
    copied: see `cuda.pinned`."""
    for file in PACKAGE.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        assert "torch.cuda.synchronize(" not in text, file
        if re.search(r"torch\.cuda\.empty_cache\(|pin_memory=|non_blocking=", text):
            assert file.parent == PACKAGE / "runtime", file


def test_a_cpu_never_touches_cuda(monkeypatch):
    def refuses(*_, **__):
        raise AssertionError("CUDA was touched")

    for name in ("Event", "Stream", "current_stream", "synchronize", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, refuses)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    clock = Clock()
    clock.devices = {CPU}
    clock.ms_between(clock.timestamp(CPU), clock.timestamp(CPU))
    clock.wait()
    with clock.paused(), cuda.alone_on("cpu"):
        cuda.free_cache("cpu")
        assert not is_held()
    assert to_host(pack(ids=torch.arange(3), p=torch.rand(3)), OnHost).ids == [0, 1, 2]
