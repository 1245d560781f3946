"""The pairs that stay loaded."""

import gc
import threading
from collections import OrderedDict
from collections.abc import Callable

import torch

from specdemo.loading.errors import PairError
from specdemo.loading.load import OnProgress, Plan, check_access, load, plan
from specdemo.loading.pair import Pair
from specdemo.loading.request import Request
from specdemo.runtime.device import memory_of


class ModelPool:
    """Keeps pairs loaded while together they take at most `share` of their device's memory.

    When there is no room for another one, the least recently used pair that is not running goes first. One
    pair is loaded at a time; pairs that are loaded can be used meanwhile.
    """

    def __init__(self, share: float = 0.5):
        self.share = share
        self.pairs: OrderedDict[tuple, Pair] = OrderedDict()  # least recently used first
        self.lock = threading.Lock()  # protects `pairs`
        self.loading = threading.Lock()
        self.listeners: list[OnProgress] = []  # of everyone who waits for a pair

    def get(
        self,
        request: Request,
        on_progress: OnProgress = lambda *_: None,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> Pair:
        """The pair, loaded if necessary; raises as `load_pair` does.

        on_progress: called while this waits, also about another pair that is being loaded. is_wanted: called
        before the load begins; PairError if nobody waits for the pair any more.
        """
        if pair := self.loaded(request):
            return pair
        check_access(request)  # before waiting for another pair's load
        self.listeners.append(on_progress)
        try:
            with self.loading:
                if not is_wanted():
                    raise PairError("nobody waits for this pair any more")
                return self.loaded(request) or self._load(request)  # it may have been loaded meanwhile
        finally:
            self.listeners.remove(on_progress)

    def loaded(self, request: Request) -> Pair | None:
        """The pair if it is loaded; returns at once."""
        with self.lock:
            if request.key in self.pairs:
                self.pairs.move_to_end(request.key)
            return self.pairs.get(request.key)

    def _load(self, request: Request) -> Pair:
        def report(doing: str, share: float | None) -> None:
            for listener in list(self.listeners):
                listener(doing, share)

        report("Reading the models' configs", None)
        planned = plan(request)  # raises before any other pair is dropped
        self._make_room(planned)
        pair = load(planned, report)
        with self.lock:
            self.pairs[request.key] = pair
        return pair

    def _make_room(self, planned: Plan) -> None:
        device = planned.request.device
        room = self.share * memory_of(device) - sum(planned.sizes)
        while self.bytes_held(device) > room and self._drop_one():
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()

    def _drop_one(self) -> bool:
        """Drops the least recently used pair that is not running; False if there is none."""
        with self.lock:
            idle = next((key for key, pair in self.pairs.items() if not pair.lock.locked()), None)
            return self.pairs.pop(idle, None) is not None

    def bytes_held(self, device: str = "cpu") -> int:
        """Bytes of weights that the loaded pairs hold on all devices of this kind."""
        kind = device.split(":")[0]
        with self.lock:
            pairs = list(self.pairs.values())
        held = [pair.bytes_held for pair in pairs if pair.info.device.split(":")[0] == kind]
        return sum(size.target + (size.drafter or 0) for size in held)
