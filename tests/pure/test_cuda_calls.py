"""The calls to CUDA, in their order, without a GPU: the real code over stand-ins (tests/fake_cuda.py)."""

import ast
import gc
import threading
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from specdemo.engine.draft import Draft
from specdemo.runtime import cuda
from specdemo.runtime.compared import disagreement, order_tolerance
from specdemo.runtime.device import Clock
from specdemo.runtime.graphs import Graphs
from specdemo.runtime.steps import OnHost, Packed, pack, to_host
from tests.fake_cuda import FakeCuda, install
from tests.pure.test_house import PACKAGE, syntax_tree

CPU = torch.device("cpu")


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
class Numbers:
    ids: Tensor
    probabilities: Tensor


@dataclass(frozen=True)
class Output:
    numbers: Packed  # of Numbers
    logits: Tensor


def step(value):
    return Output(pack(Numbers(2 * value.x, value.u / 2)), value.x.float() * 10)


def inputs(first=0):
    return Input(torch.arange(first, first + 3), torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64))


def new_graphs(**options):
    graphs = Graphs(Clock(), **options)
    graphs.begin_run([])
    return graphs


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


def test_a_step_is_captured_on_one_stream_and_replayed_on_the_current_one(fake, monkeypatch):
    """The collector rests meanwhile, and is not called before, which would stop every run for a while."""
    collecting = []
    monkeypatch.setattr(gc, "collect", lambda *_: collecting.append("called"))

    def noting(value):
        if fake.capturing:
            collecting.append(gc.isenabled())
        return step(value)

    graphs, other = new_graphs(), new_graphs()
    for first in (0, 5, 9):
        read, output = graphs(("step",), noting, inputs(first))
        assert same(output, step(inputs(first))) and torch.equal(read.x, inputs(first).x)
    other(("step",), noting, inputs())
    assert collecting == [False, False] and gc.isenabled()
    assert [entry for entry in fake.log if entry[0] == "begin"] == 2 * [("begin", "capture cpu")]
    assert len(fake.streams) == 1, "one for the device, whoever captures"
    first = fake.log.index(("begin", "capture cpu"))
    assert fake.log[first - 1] == ("event", "current cpu"), "what was given to the device is done by then"
    assert fake.log[first + 1] == "end"
    assert not fake.recording and sorted(fake.users.values()) == [1, 1]
    graphs.drop()
    assert sorted(fake.users.values()) == [0, 1] and not fake.violations


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

    return fails


@pytest.mark.parametrize("fake", ["2.11", "2.13"], indirect=True)
@pytest.mark.parametrize("how", ["reads", "memory", "interrupted", "begin", "instantiate"])
def test_after_a_failed_capture_the_pool_is_given_back(fake, how):
    graphs = new_graphs()
    graphs(("before",), step, inputs())
    if how == "begin":
        fake.fails_to_begin = RuntimeError("it does not begin")
    if how == "instantiate":
        fake.fails_to_end = RuntimeError("CUDA error: out of memory")
    fake.generator.state = "captured"
    failing_step = reads_numbers if how == "reads" else failing(fake, how)
    _, output = graphs(("failing",), failing_step, inputs(4))
    assert same(output, step(inputs(4))), "the step runs as it is"
    assert graphs.blocker and not graphs.graphs
    assert fake.capturing is None and not fake.recording, "the allocator knows that the capture has ended"
    assert set(fake.users.values()) == {0} and fake.log[-1] == "empty cache"
    assert fake.generator.state == "a copy" and fake.current.name == "default"
    assert not fake.violations and not is_held() and gc.isenabled()
    assert len(cuda._failed) == fake.made - 1


@pytest.mark.parametrize("how", ["reads", "memory", "interrupted"])
def test_a_passing_fault_is_tried_again_in_the_next_run_but_no_step_that_looks_at_its_numbers(fake, how):
    graphs = new_graphs()
    for _ in range(2):
        graphs(("step",), reads_numbers if how == "reads" else failing(fake, how), inputs())
    assert fake.made == 1 and graphs.blocker, "not again in the same run"
    graphs.begin_run([])
    _, output = graphs(("step",), step, inputs())
    assert same(output, step(inputs()))
    if how == "reads":
        assert "reads tensor values on the host" in graphs.blocker and fake.made == 1
    else:
        assert graphs.blocker is None and graphs.graphs


def test_nobody_frees_moves_or_captures_while_a_step_is_captured(fake):
    capturing, goes_on, done = threading.Event(), threading.Event(), []

    def slow(value):
        output = step(value)
        if fake.capturing:
            capturing.set()
            assert goes_on.wait(60)
        return output

    def move():
        with cuda.alone_on("cuda"):
            pass

    calls = {
        "capture": lambda: new_graphs()(("slow",), slow, inputs()),
        "capture another": lambda: new_graphs()(("other",), step, inputs()),
        "free": lambda: cuda.free_cache("cuda"),
        "move": move,
    }
    threads = []
    for name, call in calls.items():
        threads.append(in_thread(lambda call=call, name=name: (call(), done.append(name))))
        assert capturing.wait(60)
    threads[-1].join(0.1)
    assert is_held() and not done
    goes_on.set()
    for thread in threads:
        thread.join(60)
    assert set(done) == calls.keys() and not fake.violations


# Before a graph is used, it is compared with the step.


def set_nan(output):
    output.logits[0] = torch.nan


TAMPERED = {  # and what is said of it
    "ids differ in 3 of 3 places": lambda output: output.numbers.numbers[:3].add_(1),
    "probabilities differ by 1e-05, allowed 1e-06": lambda output: output.numbers.numbers[3:].add_(1e-5),
    "logits differ by 0.5, allowed 0.001": lambda output: output.logits.add_(0.5),
    "NaN in logits": set_nan,
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


@pytest.mark.parametrize(("what", "when"), [*zip(TAMPERED, (1, 2, 3, 1), strict=True)])
def test_a_step_whose_graphs_say_something_else_runs_as_it_is_and_no_other_does(fake, outputs, what, when):
    """when: at which of the three replays that are compared: the second is on other numbers."""
    first, replays = inputs(10), []

    def tamper(graph):
        replays.append(graph)
        if len(replays) == when:
            TAMPERED[what](outputs[-1].output)
            replays.clear()  # the next graph begins anew

    graphs = new_graphs()
    graphs(("other",), step, first)
    fake.tamper = tamper
    for _ in range(2):
        _, output = graphs(("step",), step, first)
        assert same(output, step(first)) and list(graphs.graphs) == [("other",)]
    assert len(outputs) == 3, "it was captured once more, and then never again"
    assert list(graphs.refused) == [("step",)] and graphs.blocker is None
    assert graphs.fault.startswith(f"its graph says something other than the step itself ({what}")
    fake.tamper = lambda graph: None
    graphs.begin_run([])
    graphs(("step",), step, first)
    assert len(outputs) == 3, "nor in the next run"
    graphs.drop()
    graphs(("step",), step, first)
    assert graphs.fault is None and list(graphs.graphs) == [("step",)], (
        "weights that have moved are another try"
    )


def test_a_graph_that_says_something_else_is_captured_once_more_and_one_that_rounds_otherwise_is_used(
    fake, outputs
):
    def tamper(graph):
        outputs[-1].output.numbers.numbers[3:].add_(1e-8)
        outputs[-1].output.logits.add_(1e-5 if len(outputs) > 1 else 0.5)

    fake.tamper = tamper
    graphs = new_graphs()
    _, output = graphs(("step",), step, inputs())
    assert len(outputs) == 2 and graphs.graphs["step",] is outputs[1] and graphs.fault is None
    assert output is outputs[1].output


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_how_far_a_head_s_confidence_may_be_apart_depends_on_the_dtype(dtype):
    p = torch.tensor([[0.25, 0.75]])  # in float32, as all probabilities are
    draft = Draft(1, torch.tensor([0]), p, p, sure=p[0])
    for name, allowed in (("sure", 1e-6 if dtype == torch.float32 else 2e-2), ("raw_q", 1e-6)):
        for by in (0.0, 1e-7, 1e-5, 1e-2, 5e-2):
            other = replace(draft, **{name: getattr(draft, name) + by})
            assert bool(disagreement(draft, other, [torch.float32, dtype])) == (by > allowed)


@pytest.mark.parametrize(
    ("logits", "models", "units"),
    [
        (torch.float16, [torch.float16], 4 * 2**-10),
        (torch.float32, [torch.float32, torch.bfloat16], 100 * 2**-23),
        (torch.float32, [torch.bfloat16, torch.bfloat16], 4 * 2**-7),
        (torch.bfloat16, [torch.float32, torch.bfloat16], 4 * 2**-7),
    ],
    ids=str,
)
def test_how_far_logits_may_be_apart_depends_on_the_dtype_that_they_were_computed_in(logits, models, units):
    """Some models of 16 bits give float32. The largest counts, but for infinities."""
    assert order_tolerance(torch.tensor([1.0, -8.0, -torch.inf], dtype=logits), models) == 8 * units


def test_infinite_and_missing_numbers_that_the_step_gives_too_are_no_difference(fake):
    def odd(value):
        output = step(value)
        output.logits[0], output.logits[1] = -torch.inf, torch.nan
        return output

    graphs = new_graphs()
    graphs(("odd",), odd, inputs())
    assert graphs.fault is None


@pytest.mark.parametrize("agrees", [True, False])
def test_an_output_that_another_step_reads_where_it_is_stays_as_it_was(fake, agrees):
    """Trying the second graph on other numbers writes them there, also when it fails with those."""

    def doubling(value):
        return Input(2 * value.x, value.u / 2)

    graphs = new_graphs()
    _, draft = graphs(("draft",), doubling, inputs(3))
    expected = [draft.x.clone(), draft.u.clone()]
    replayed = fake.log.count("replay")

    def tamper(graph):
        if not agrees and fake.log.count("replay") in (replayed + 2, replayed + 4):
            graph.operations.noted[-1][-1].add_(1)  # the last that it computes are the logits

    fake.tamper = tamper
    read, output = graphs(("verify",), step, draft)
    assert read.x is draft.x and (("verify",) in graphs.graphs) == (graphs.fault is None) == agrees
    assert torch.equal(draft.x, expected[0]) and torch.equal(draft.u, expected[1])
    assert same(output, step(draft))


# Waiting, and a CUDA that does not answer.


def test_events_are_recorded_on_the_stream_of_the_device_that_was_asked_for(fake):
    clock, device = Clock(), torch.device("cuda:1")
    clock.timestamp(device)
    clock.devices = {device}
    clock.wait()
    with clock.paused():
        pass
    assert fake.log == 3 * [("event", "current cuda:1")]


def test_to_host_waits_for_an_event(fake):
    numbers = Numbers(torch.arange(3), torch.rand(3, dtype=torch.float64))
    on_host = to_host(pack(numbers), OnHost)
    assert on_host.ids == numbers.ids.tolist() and on_host.probabilities == numbers.probabilities.tolist()
    assert fake.log == [("event", "current cpu")]


@dataclass(frozen=True)
class Block:
    storage: StorageWeakRef
    begin: int  # its address
    size: int

    def is_held(self):
        gc.collect()
        return not self.storage.expired()


@pytest.fixture
def blocks(fake, monkeypatch):
    """What the allocator of pinned memory has given, without keeping it from being freed."""
    given, allocate = [], cuda._pinned_bytes

    def noting(size):
        block = allocate(size)
        given.append(Block(StorageWeakRef(block.untyped_storage()), block.data_ptr(), size))
        return block

    monkeypatch.setattr(cuda, "_pinned_bytes", noting)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    return given


def test_pinned_memory_is_unknown_to_the_allocator_that_it_comes_from(blocks):
    """That finds a block by its first byte, or by the storage of the tensor."""
    tensor = cuda.pinned(torch.Size((2, 3)), torch.float32)
    assert tensor.shape == (2, 3) and tensor.dtype == torch.float32
    assert cuda.pinned(torch.Size(()), torch.long).shape == ()
    block = blocks[0]
    assert tensor.untyped_storage().data_ptr() == tensor.data_ptr() == block.begin + cuda.HEADER
    assert block.size == cuda.HEADER + 24
    view = tensor.view(-1)
    del tensor
    assert block.is_held(), "a view holds it, too"
    del view
    assert not block.is_held()


def test_what_is_copied_to_a_gpu_is_held_until_its_stream_has_been_waited_for(blocks):
    graphs = new_graphs()
    graphs(("step",), step, inputs())  # captured
    graphs(("step",), step, replace(inputs(), x=cuda.pinned(torch.Size([3]), torch.long).fill_(1)))
    cuda.send(cuda.pinned(torch.Size([3]), torch.long), CPU)
    assert [block.is_held() for block in blocks] == [True, True]
    cuda.synchronize("cuda:1")
    assert [block.is_held() for block in blocks] == [True, True], "another stream knows nothing of the copies"
    cuda.synchronize(CPU)
    assert [block.is_held() for block in blocks] == [False, False]


@pytest.mark.parametrize(
    ("broken", "told"),
    [(True, "an illegal memory access"), (False, "the GPU has not answered for 60 s")],
    ids=["broken", "silent"],
)
def test_a_gpu_that_does_not_answer_is_an_error_and_what_it_may_still_write_stays(
    fake, blocks, monkeypatch, broken, told
):
    fake.broken, fake.answers = broken, False
    monkeypatch.setattr(cuda, "DEADLINE", 0.05)
    with pytest.raises(RuntimeError, match=told):
        cuda.on_host(torch.arange(3))
    assert [block.is_held() for block in blocks] == [True]


def test_only_one_module_waits_for_a_device_frees_its_memory_or_pins_memory():
    """Such a call must hold the lock, or wait for a stream. Tensors that torch itself pins must not be
    copied: see `cuda.pinned`."""
    found = set()
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(syntax_tree(file)):
            frees = isinstance(node, ast.Attribute) and node.attr in ("synchronize", "empty_cache")
            told = ast.unparse(node) if frees else getattr(node, "arg", "")
            if told in ("torch.cuda.synchronize", "torch.cuda.empty_cache", "pin_memory", "non_blocking"):
                found.add((file.relative_to(PACKAGE).as_posix(), told))
    of_cuda = {("runtime/cuda.py", told) for told in ("torch.cuda.empty_cache", "pin_memory", "non_blocking")}
    assert found == of_cuda | {("runtime/graphs.py", "non_blocking")}


def test_an_error_after_which_nothing_works_is_a_lost_gpu_which_is_not_touched_again(fake, monkeypatch):
    fake.broken = True
    told = "CUDA error: an illegal memory access was encountered"
    for error in (torch.AcceleratorError(f"{told}\nCUDA kernel ..."), RuntimeError(told)):
        monkeypatch.setattr(cuda, "_lost", None)
        with pytest.raises(cuda.CudaLost) as raised:
            cuda.raise_if_lost(error, CPU)
        assert str(raised.value) == (
            "CUDA is lost (an illegal memory access was encountered): restart SpecDemo to use the GPU again; "
            "pairs on the CPU go on working"
        )
    fake.log.clear()
    cuda.free_cache("cuda")
    with pytest.raises(cuda.CudaLost, match="restart SpecDemo"):
        cuda.check_not_lost()
    with pytest.raises(cuda.CudaLost, match="restart SpecDemo"):
        cuda.raise_if_lost(RuntimeError("anything that followed"), "cuda")
    assert not fake.log


def test_other_errors_lose_nothing(fake):
    """After one of CUDA's the GPU may still work, and what is not CUDA's own is not looked into."""
    cuda.raise_if_lost(torch.AcceleratorError("CUDA error: too many resources requested"), CPU)
    fake.broken = True
    cuda.raise_if_lost(RuntimeError("the target's probabilities are not numbers (NaN)"), CPU)
    cuda.check_not_lost()
    assert cuda.lost() is None


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
    numbers = Numbers(torch.arange(3), torch.rand(3, dtype=torch.float64))
    assert to_host(pack(numbers), OnHost).ids == numbers.ids.tolist()
