"""CUDA without a GPU: the parts of torch that `specdemo` calls, over tensors on the CPU.

A graph notes the operations while it captures and runs them again, into the same memory, when it is replayed.
`FakeCuda.log` has the replays, events and calls that wait for the whole device. What CUDA forbids during a
capture ends it as CUDA would."""

import math
import threading
from contextlib import contextmanager
from functools import cache

import torch
from torch import library
from torch.utils._python_dispatch import TorchDispatchMode

from specdemo.runtime import attention, cuda, graphs

FORBIDDEN = "CUDA error: operation not permitted when stream is capturing\nCUDA kernel errors might be ..."
INVALID = "CUDA error: operation failed due to a previous error during capture\nCUDA kernel errors might ..."


class Operations(TorchDispatchMode):
    """Notes operations; reading a number ends the capture."""

    def __init__(self, fake):
        super().__init__()
        self.fake = fake
        self.noted = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        if operation.overloadpacket.__name__ in ("_local_scalar_dense", "is_nonzero", "nonzero", "equal"):
            self.fake.invalid = True
            raise torch.AcceleratorError(FORBIDDEN)
        output = operation(*args, **(kwargs or {}))
        self.noted.append((operation, args, kwargs or {}, output))
        return output


def again(operation, args, kwargs, output, changed):
    """The operation once more, into the memory of its first output."""
    new = changed(operation, operation(*args, **kwargs))
    pairs = [(output, new)] if isinstance(output, torch.Tensor) else zip(output, new, strict=True)
    is_view = any(result.alias_info for result in operation._schema.returns)
    for old, fresh in pairs:
        if not is_view:
            old.copy_(fresh)


class Stream:
    def __init__(self, name):
        self.name = name


DEFAULT = Stream("default")


class FakeCuda:
    """`before`: the torch version whose failed captures it has. `tamper`: changes what a replay says;
    `changed`: what one of its operations gives."""

    def __init__(self, version="2.13"):
        self.ends_before_raising = version >= "2.13"
        self.log = []
        self.capturing = None  # the graph, and by which thread
        self.thread = None
        self.invalid = False
        self.fails_to_begin = None  # an error
        self.fails_to_end = None
        self.recording, self.users = set(), {}  # pools that allocations go to; how often each is held
        self.streams, self._current = [], threading.local()
        self.made = 0  # graphs
        self.answers = True  # whether events are reached
        self.broken = False  # whether every call fails
        self.tamper = lambda graph: None
        self.changed = lambda operation, output: output
        self.notes_operations = Operations  # the class of what a graph's operations are noted by
        self.skipped = set()  # names of operations that no replay runs
        self.generator = Generator()
        self.violations = []

    @property
    def current(self):
        """The stream of this thread."""
        return getattr(self._current, "stream", DEFAULT)

    @current.setter
    def current(self, stream):
        self._current.stream = stream

    def device_wide(self, what):
        self.log.append(what)
        if self.broken:
            raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered\nmore")
        if self.capturing:
            self.violations.append(what)
            self.invalid = True

    def begin_allocating(self, pool):
        self.recording.add(pool)
        self.users[pool] = self.users.get(pool, 0) + 1

    def end_allocating(self, index, pool):
        if pool not in self.recording:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.recording.remove(pool)

    def release(self, index, pool):
        self.users[pool] -= 1
        assert self.users[pool] >= 0, "released once too often"


class Generator:
    def __init__(self):
        self.state = "captured"

    def clone_state(self):
        return "a copy"

    def graphsafe_set_state(self, state):
        self.state = state


class Properties:
    """Of an H200, what is asked for."""

    multi_processor_count = 132
    major = 9


def efficient_attention(query, key, value, bias, with_logsumexp, dropout=0.0, causal=False, *, scale=None):
    """What torch's CUDA kernel computes (kernel_forward.h in torch/include), and what it refuses: the output
    [B, H, N, d], and the log-sum-exp of scores, of N rounded up to 32s."""
    batch, heads, n, d = query.shape
    length = key.shape[2]
    assert key.shape == value.shape == (batch, heads, length, d)
    assert bias.shape == (batch, heads, n, length), "nothing is expanded there"
    assert bias.dtype == query.dtype == key.dtype and with_logsumexp and not dropout and not causal
    aligned = 128 // (8 * query.element_size())
    assert length % aligned == 0 and all(stride % aligned == 0 for stride in bias.stride()[:3])
    assert all(tensor.stride(-1) == 1 for tensor in (query, key, value, bias))
    assert all(stride % aligned == 0 for tensor in (query, key, value) for stride in tensor.stride()[1:3])
    scores = (query.float() @ key.float().mT * (scale or d**-0.5) + bias.float()) * math.log2(math.e)
    most = scores.amax(-1, keepdim=True)
    weights = (scores - most.where(most.isfinite(), 0.0)).exp2()
    total = weights.sum(-1, keepdim=True)
    seen_nothing = total == 0
    total = total.where(~seen_nothing, 1.0)
    output = (weights / total @ value.float()).to(query.dtype)
    of_rows = most.where(most.isfinite(), 0.0) / math.log2(math.e) + total.log()
    padding = of_rows.new_full((batch, heads, -n % 32), math.inf)
    seed = torch.zeros((), dtype=torch.long)
    return (
        output.transpose(1, 2).contiguous().transpose(1, 2),
        torch.cat([of_rows[..., 0], padding], -1),
        seed,
        seed.clone(),
    )


KERNELS = library.Library("aten", "IMPL")
KERNELS.impl("_scaled_dot_product_efficient_attention", efficient_attention, "CPU")  # which has none


def install(monkeypatch, fake):
    """Every device counts as a GPU, and torch.cuda is the fake."""

    class Graph:
        def __init__(self):
            self.ended = False
            self.replays = 0
            fake.made += 1

        def capture_begin(self, pool, capture_error_mode):
            fake.begin_allocating(pool)
            if fake.fails_to_begin:
                raise fake.fails_to_begin
            assert fake.current.name != "default" and fake.capturing is None
            assert capture_error_mode == "thread_local"
            self.its_pool, self.operations = pool, fake.notes_operations(fake)
            fake.capturing, fake.thread = self, threading.get_ident()
            self.operations.__enter__()

        def capture_end(self):
            if fake.capturing is not self:
                raise RuntimeError(INVALID)
            self.operations.__exit__(None, None, None)
            fake.capturing, invalid, fake.invalid = None, fake.invalid, False
            if fake.ends_before_raising or not invalid:
                fake.recording.remove(self.its_pool)
            if invalid:
                raise torch.AcceleratorError(INVALID)
            self.ended = True
            if fake.fails_to_end:
                raise fake.fails_to_end

        def pool(self):
            if not self.ended:
                raise RuntimeError("Called CUDAGraph::pool() without a preceding successful capture.")
            return self.its_pool

        def reset(self):
            if self.ended:
                fake.release(0, self.its_pool)
                self.ended = False

        def __del__(self):
            self.reset()

        def replay(self):
            assert self.ended and fake.current.name == "default"
            fake.log.append("replay")
            self.replays += 1
            for noted in self.operations.noted:
                if noted[0].overloadpacket.__name__ not in fake.skipped:
                    again(*noted, fake.changed)
            fake.tamper(self)

    class Event:
        def __init__(self, enable_timing=False):
            self.timed = enable_timing

        def record(self, stream):
            if fake.broken:
                raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered\nmore")
            assert fake.capturing is None
            fake.log.append("event")

        def query(self):
            return fake.answers

        def elapsed_time(self, other):
            return 1.0

    def new_stream(device):
        fake.streams.append(Stream(f"capture {device}"))
        return fake.streams[-1]

    @contextmanager
    def using(stream):
        before, fake.current = fake.current, stream
        try:
            yield
        finally:
            fake.current = before

    for name, stand_in in {
        "CUDAGraph": Graph,
        "Event": Event,
        "Stream": new_stream,
        "stream": using,
        "current_stream": cache(lambda device: Stream(f"current {device}")),
        "graph_pool_handle": lambda: (0, 1 + len(fake.users)),
        "empty_cache": lambda: fake.device_wide("empty cache"),
        "synchronize": lambda *_: fake.device_wide("synchronize"),
        "default_generators": (fake.generator,),
        "get_device_name": lambda *_: "a GPU that is not there",
        "get_device_properties": lambda *_: Properties,
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    for name, stand_in in {
        "_cuda_endAllocateToPool": fake.end_allocating,
        "_cuda_releasePool": fake.release,
    }.items():
        monkeypatch.setattr(torch._C, name, stand_in, raising=False)
    attention.processors_of.cache_clear()
    monkeypatch.setattr(torch, "__version__", "2.13.0")
    monkeypatch.setattr(cuda, "is_cuda", lambda device: True)
    monkeypatch.setattr(cuda, "has_triton", lambda device: False)
    monkeypatch.setattr(cuda, "_pinned_bytes", lambda size: torch.empty(size, dtype=torch.uint8))
    monkeypatch.setattr(cuda, "_copying", {})
    monkeypatch.setattr(cuda, "_never_copied", [])
    monkeypatch.setattr(graphs, "_streams", {})
    monkeypatch.setattr(graphs, "_failed", [])
    return fake
