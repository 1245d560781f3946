"""What a run changes, while it computes, of things that are not its own: settings of torch for the whole
process, and the modes of a model in memory, which belongs to its owner and can be in several pairs.

Runs overlap. So each such thing is changed by the first that needs it and put back by the last. Two more are
changed, and are safe in other ways. The attention of a model's config is another one during a static forward,
which holds a lock (attention.py). Hooks that read a model's features are there during a
forward and look at their own thread alone (cache.py)."""

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from threading import get_ident
from typing import Any

import torch
from torch.nn import Module

PutBack = Callable[[], None]
SHARED_LOCK = threading.Lock()


class Shared:
    """One thing that runs change and put back, or one for each key. change: changes it for a key and returns
    what puts it back, and says what is so then."""

    def __init__(self, change: Callable[[Hashable], PutBack]):
        self._change = change
        self._held: dict[Hashable, tuple[int, PutBack]] = {}  # how many hold it, and what the last one does

    def is_held(self, *keys: Hashable) -> bool:
        """Whether it is held for one of these keys; without a key, for any."""
        return any(key in self._held for key in keys) if keys else bool(self._held)

    @contextmanager
    def __call__(self, *keys: Hashable) -> Iterator[None]:
        """A context in which it is changed, for each of the keys; without a key, there is only one."""
        keys = keys or (None,)
        with SHARED_LOCK:
            for key in keys:
                users, put_back = self._held[key] if key in self._held else (0, self._change(key))
                self._held[key] = users + 1, put_back
        try:
            yield
        finally:
            with SHARED_LOCK:
                for key in keys:
                    users, put_back = self._held.pop(key)
                    if users > 1:
                        self._held[key] = users - 1, put_back
                    else:
                        put_back()


@Shared
def full_float32(_: Hashable) -> PutBack:
    """Nothing rounds float32: products and convolutions of float32 numbers are computed in float32.

    On CUDA torch may round what they multiply to TF32, with 10 bits of fraction: products where the program
    asks for it, or a container does (TORCH_ALLOW_TF32_CUBLAS_OVERRIDE), and cuDNN's convolutions without
    being asked. Two forwards that should be equal can then differ by a thousandth, since not every kernel
    rounds. torch keeps the settings twice, and some of its calls fail while the old and the new ones
    contradict each other, so both are set."""
    backends = torch.backends
    ours = (backends.cuda.matmul, backends.mkldnn.matmul, backends.cudnn.conv, backends.cudnn.rnn)
    before = [one.fp32_precision for one in ours]
    products, convolutions = _old_setting(before[0]), before[2] == "tf32"
    torch.set_float32_matmul_precision("highest")
    backends.cudnn.allow_tf32 = False
    for one in ours:
        one.fp32_precision = "ieee"

    def put_back() -> None:
        torch.set_float32_matmul_precision(products)
        backends.cudnn.allow_tf32 = convolutions
        for one, precision in zip(ours, before, strict=True):
            one.fp32_precision = precision

    return put_back


def _old_setting(new: str) -> str:
    """The old setting of products. Where it contradicts the new one, torch does not tell it."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return "highest" if new == "tf32" else "high"


@Shared
def without_cudnn(_: Hashable) -> PutBack:
    """torch's attention leaves out cuDNN's. torch prefers that on some GPUs, but cuDNN builds a plan for each
    new length of the cache, which takes tens of milliseconds."""
    enable = torch.backends.cuda.enable_cudnn_sdp
    before = torch.backends.cuda.cudnn_sdp_enabled()
    enable(False)
    return lambda: enable(before)


@Shared
def one_thread(_: Hashable) -> PutBack:
    """torch takes one CPU thread. It has a number of threads for each thread, which is the key, and gives a
    new one that which was set last in any. So where a run goes on, a 1 is that run's."""
    global _usual_threads
    before = torch.get_num_threads()
    if one_thread.is_held():
        before = _usual_threads if before == 1 else before
    else:
        _usual_threads = before
    torch.set_num_threads(1)
    return lambda: torch.set_num_threads(before)


_usual_threads = 1  # as the first of several runs found it


@Shared
def _evaluating(module: Any) -> PutBack:
    module.training = False
    return partial(setattr, module, "training", True)


def in_training(*models: Module | None) -> list[Module]:
    """The models' modules that are in training mode, or would be, if no run had put them to rest."""
    modules = (module for model in models if model for module in model.modules())
    return [module for module in modules if module.training or _evaluating.is_held(module)]


def evaluating(modules: list[Module]) -> AbstractContextManager:
    """A context in which modules that are in training mode are in evaluation mode: a model in memory is left
    as it was."""
    return _evaluating(*modules) if modules else nullcontext()


@contextmanager
def active(training: list[Module], is_small: bool, is_on_gpu: bool, has_float32: bool) -> Iterator[None]:
    """The context of each step of a run: evaluation mode (a model given in memory may be in training, and is
    left as it was), and torch's settings, among them one CPU thread for small models; where models are on a
    GPU, cuDNN's attention is left out, unless it was asked for, and what is float32 is computed in float32.
    training: what `in_training` gives.

    With several threads, small models are hardly faster, and much slower when another program is busy, such
    as the browser that shows the run. The embedded pair on two cores, before its forwards were compiled: 242
    tokens/s with one thread and 248 with two; beside one busy program, 255 and 100."""
    with ExitStack() as changed:
        changed.enter_context(evaluating(training))
        if is_small:
            changed.enter_context(one_thread(get_ident()))
        if is_on_gpu:
            changed.enter_context(without_cudnn())
        if has_float32:
            changed.enter_context(full_float32())
        yield
