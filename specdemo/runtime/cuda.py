"""The way to a device and back, and the time there; and what all pairs of this process share of CUDA: one
lock, copies, and the wait for a GPU.

All of `specdemo` waits for streams, never for a whole device, because that would end another thread's capture
with an error."""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.util import find_spec
from time import perf_counter, sleep

import torch
from torch import Tensor

Pool = tuple[int, int]  # torch's id of a memory pool

DEADLINE = 60.0  # seconds that a GPU may take to answer
NO_ANSWER = f"the GPU has not answered for {DEADLINE:.0f} s: it hangs, or other programs keep it busy"

# Held for a capture, and for what would end another thread's capture or be refused during it: freeing a GPU's
# memory, the first forwards of a pair, at which libraries set themselves up, and drawing random numbers while
# a model is loaded. CUDA allows one capture at a time in a process, and ends it with an error when another
# thread waits for the whole device, as freeing memory does.
ALONE = threading.RLock()

HEADER = 64  # bytes before what `pinned` gives

_copying: dict[torch.cuda.Stream, list[Tensor]] = {}  # pinned memory that copies on the stream may still use
_copying_lock = threading.Lock()
_never_copied: list[list[Tensor]] = []  # the same, of streams that have not answered


def is_cuda(device: torch.device | str) -> bool:
    return torch.device(device).type == "cuda"


def has_triton(device: torch.device | str) -> bool:
    """Whether kernels that are written in Triton may be tried on the device. torch's CUDA builds bring
    Triton; below capability 8.0 it cannot multiply bfloat16. This does not import Triton."""
    if not is_cuda(device) or torch.version.hip or find_spec("triton") is None:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)


def device_of(tensor: Tensor) -> AbstractContextManager:
    """A context in which the tensor's device is current, because Triton launches on the current one."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


def alone_on(device: torch.device | str) -> AbstractContextManager:
    """A context in which nothing else is captured or freed on the device; for a CPU it does nothing."""
    return ALONE if is_cuda(device) else nullcontext()


def free_cache(device: torch.device | str) -> None:
    """Gives memory that is not used any more back to the device; does nothing for a CPU."""
    if is_cuda(device):
        with ALONE:
            torch.cuda.empty_cache()


def synchronize(device: torch.device | str) -> None:
    """Waits until the device has done what this thread has given it; does nothing for a CPU. Raises
    RuntimeError after DEADLINE."""
    if not is_cuda(device):
        return
    stream = torch.cuda.current_stream(device)
    with _copying_lock:
        copying = _copying.pop(stream, [])  # copies that were launched before the event
    try:
        event = torch.cuda.Event()
        event.record(stream)
        _wait(event)
    except BaseException:
        _never_copied.append(copying)  # a GPU that hangs may still do it
        raise


def on_host(tensor: Tensor) -> Tensor:
    """A copy of the tensor on the CPU, which holds when a graph writes the tensor again. Raises RuntimeError
    if the GPU does not answer before DEADLINE."""
    if not is_cuda(tensor.device):
        return tensor.to("cpu", copy=True)
    copy = pinned(tensor.shape, tensor.dtype)
    copy.copy_(tensor, non_blocking=True)
    keep_until_copied(copy, tensor.device)
    synchronize(tensor.device)
    return copy


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on the device. The host does not wait for a copy from pinned memory."""
    sent = tensor.to(device, non_blocking=True)
    keep_until_copied(tensor, device)
    return sent


def pinned(shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """Memory on the host that a GPU copies from or to while the host goes on. `keep_until_copied` must follow
    each such copy.

    torch's allocator of pinned memory notes the streams of such copies, and records an event on each of them
    when the memory is freed (`record_event` and `free` in CachingHostAllocator.h). After some errors (an
    illegal memory access, say) every CUDA call fails, and that one would raise an error in a destructor,
    which ends the process. The allocator finds memory by the address of its first byte, or by its storage. So
    this tensor has another storage, which begins later: nothing is noted for it, and freeing it makes no CUDA
    call."""
    block = _pinned_bytes(HEADER + shape.numel() * dtype.itemsize)
    return torch.from_numpy(block.numpy()[HEADER:]).view(dtype).view(shape)


def _pinned_bytes(size: int) -> Tensor:
    return torch.empty(size, dtype=torch.uint8, pin_memory=True)


def keep_until_copied(tensor: Tensor, device: torch.device) -> None:
    """Holds the tensor until somebody has waited for the stream; does nothing for one that is on a device. It
    has to be called when a copy between memory on the host and the device has been launched."""
    if tensor.device.type == "cpu" and is_cuda(device) and can_pin():
        with _copying_lock:
            _copying.setdefault(torch.cuda.current_stream(device), []).append(tensor)


def can_pin() -> bool:
    """Whether there is a driver that has been used. ZeroGPU has none while it loads a pair."""
    return torch.cuda.is_initialized()


def _wait(event: torch.cuda.Event) -> None:
    deadline = perf_counter() + DEADLINE
    while not event.query():
        if perf_counter() > deadline:
            raise RuntimeError(NO_ANSWER)
        sleep(0)  # other threads may run, and the answer is seen at once


def to_device(numbers: list, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The numbers as a tensor on the device, by one copy, for which the host does not wait."""
    return send(for_device(numbers, dtype, device), device)


def for_device(numbers: list, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The numbers as a tensor on the host, which is to be copied to the device. The host would wait for a
    copy from unpinned memory."""
    tensor = torch.tensor(numbers, dtype=dtype)
    if not is_cuda(device) or not can_pin():
        return tensor
    return pinned(tensor.shape, dtype).copy_(tensor)


CPU = torch.device("cpu")
# Seconds, or an event on the GPU's timeline; and for how many seconds the clock had been paused by then.
Timestamp = tuple[float | torch.cuda.Event, float]


class Clock:
    """Times drafting and verifying. A GPU works later than the host launches its work, so its times come from
    CUDA events, which the host does not wait for."""

    def __init__(self) -> None:
        self.devices: set[torch.device] = set()  # of the models that it times
        self._paused = 0.0  # seconds

    def timestamp(self, device: torch.device = CPU) -> Timestamp:
        if not is_cuda(device):
            return perf_counter(), self._paused
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(device))
        return event, self._paused

    def ms_between(self, start: Timestamp, end: Timestamp) -> float:
        """Milliseconds between two timestamps of one device. CUDA events must have been reached by now."""
        (began, paused_before), (ended, paused) = start, end
        if isinstance(began, float) and isinstance(ended, float):
            elapsed = 1000 * (ended - began)
        else:
            elapsed = began.elapsed_time(ended)
        return max(0.0, elapsed - 1000 * (paused - paused_before))

    def wait(self) -> None:
        """Waits until the models' devices have done all that was given to them."""
        for device in self.devices:
            synchronize(device)

    def leave_out(self, since: Timestamp) -> None:
        """Leaves out the time from then, on the host, until now."""
        self._paused += self.ms_between(since, self.timestamp()) / 1000

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A context that the clock leaves out: warm-up and capture are no part of a round's time."""
        self.wait()  # work that is still queued belongs to the round
        start = perf_counter()
        try:
            yield
        finally:
            self._paused += perf_counter() - start
