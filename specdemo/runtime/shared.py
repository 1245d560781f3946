"""What a run changes, while it computes, of things that are not its own: settings of torch for the whole
process, and the modes of a model in memory, which belongs to its owner and can be in several pairs.

Runs overlap. So each such thing is changed by the first that needs it and put back by the last:

  torch's threads            runner.py     by thread, since each has a number of its own
  cuDNN's attention          attention.py
  precision of float32       precision.py
  evaluation mode            lm.py         by module

Two more are changed, and are safe in other ways. The attention of a model's config is another one during a
static forward, which holds a lock (attention.py). Features are read by hooks that are there during a forward
and look at their own thread alone (lm.py)."""

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

PutBack = Callable[[], None]
SHARED_LOCK = threading.Lock()


class Shared:
    """One thing that runs change and put back, or one for each key. change: changes it for a key and returns
    what puts it back."""

    def __init__(self, change: Callable[[Hashable], PutBack]):
        self._change = change
        self._held: dict[Hashable, tuple[int, PutBack]] = {}  # how many hold it, and what the last one does

    def is_held(self, *keys: Hashable) -> bool:
        """Whether it is held for one of these keys; without a key, for any."""
        return any(key in self._held for key in keys) if keys else bool(self._held)

    @contextmanager
    def held(self, *keys: Hashable) -> Iterator[None]:
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
