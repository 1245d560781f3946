"""The pairs that stay loaded."""

import gc
import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import partial

from specdemo.errors import PairError, TookTooLong, with_words
from specdemo.loading.downloads import UNWANTED, Downloads, wait_while
from specdemo.loading.fetch import DOWNLOAD_SECONDS, OnProgress, fetch, is_here, patience
from specdemo.loading.load import check_access, load_planned, plan
from specdemo.loading.pair import Pair
from specdemo.loading.plan import LoadPlan, check_free_memory, needs
from specdemo.loading.request import PairRequest
from specdemo.runtime.cuda import alone_on, free_cache
from specdemo.runtime.device import free_memory, memory_of
from specdemo.words.catalogue import numeral
from specdemo.words.message import Message, message


class ModelPool:
    """Keeps pairs loaded while together they take at most `share` of their device's memory.

    When there is no room for another one, the least recently used pair that is not running goes first. One
    pair is loaded at a time; pairs that are loaded can be used meanwhile. What is not on this machine is
    downloaded before, while other pairs load. seconds: the longest that a visitor waits for a download, and
    for others' loads.
    """

    def __init__(self, share: float = 0.5, seconds: float = DOWNLOAD_SECONDS):
        self.share, self.seconds = share, seconds
        self.pairs: OrderedDict[tuple, Pair] = OrderedDict()  # least recently used first
        self.lock = threading.Lock()  # protects `pairs`
        self.loading = threading.Lock()
        self.listeners: list[OnProgress] = []  # of everyone who waits for a pair that is on this machine
        self.downloads = Downloads(seconds)

    def get(
        self,
        request: PairRequest,
        on_progress: OnProgress = lambda *_: None,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> Pair:
        """The pair, loaded if necessary; raises as `load_pair` does.

        on_progress: called while this waits, also about another pair that is being loaded. is_wanted: called
        again and again until the load begins; PairError if nobody waits for the pair any more.
        """
        if pair := self.loaded(request):
            return pair
        check_access(request)  # before waiting for another pair's load
        if not all(is_here(part) for part in request.parts):
            download = partial(self._download, request)
            self.downloads.wait_for(request.key, request.name, download, on_progress, is_wanted)
        self.listeners.append(on_progress)
        try:
            if not wait_while(is_wanted, self.seconds, lambda seconds: self.loading.acquire(timeout=seconds)):
                seconds = numeral(self.seconds, ",.0f")
                raise TookTooLong(message("loads_before", name=request.name, seconds=seconds))
            try:
                if not is_wanted():
                    raise PairError(UNWANTED)
                return self.loaded(request) or self._load(request)  # it may have been loaded meanwhile
            finally:
                self.loading.release()
        finally:
            self.listeners.remove(on_progress)

    def loaded(self, request: PairRequest) -> Pair | None:
        """The pair if it is loaded; returns at once."""
        with self.lock:
            if request.key in self.pairs:
                self.pairs.move_to_end(request.key)
            return self.pairs.get(request.key)

    def _load(self, request: PairRequest) -> Pair:
        def report(doing: Message, share: float | None) -> None:
            for listener in list(self.listeners):
                listener(doing, share)

        report(message("configs"), None)
        planned = plan(request)  # raises before any other pair is dropped
        self._make_room(planned)
        try:
            pair = load_planned(planned, report)
        except PairError as error:
            failed = with_words(error)  # without the frames, which hold what has been loaded
        else:
            with self.lock:
                self.pairs[request.key] = pair
            return pair
        _collect(request.device)
        raise failed

    def _download(self, request: PairRequest, report: OnProgress) -> None:
        report(message("configs"), None)
        with patience(self.seconds, report):
            planned = plan(request)
            check_free_memory(planned, self._could_free)
            fetch(planned.request.parts, report)

    def _make_room(self, planned: LoadPlan) -> None:
        check_free_memory(planned, self._could_free)  # raises before any other pair is dropped
        device = planned.request.device
        room = self.share * memory_of(device) - sum(planned.sizes)
        while self.bytes_held(device) > room and self._drop_one(device):
            pass
        for need in needs(planned):
            while need.bytes > free_memory(need.device) and self._drop_one(need.device):
                pass
        check_free_memory(planned)

    def _could_free(self, device: str) -> int:
        """Bytes on a device that pairs hold which are not running."""
        return self.bytes_held(device, idle=True)

    def _drop_one(self, device: str) -> bool:
        """Drops the least recently used pair on devices of this kind that is not running; False if there is
        none."""
        with alone_on(device):  # the pair's memory is freed here
            with self.lock:
                idle = next((key for key, pair in self.pairs.items() if _is_idle_on(pair, device)), None)
                dropped = self.pairs.pop(idle, None) is not None
            _collect(device)
        return dropped

    def bytes_held(self, device: str = "cpu", idle: bool = False) -> int:
        """Bytes of weights that the loaded pairs hold on all devices of this kind. idle: only those that are
        not running."""
        with self.lock:
            pairs = [pair for pair in self.pairs.values() if not (idle and pair.lock.locked())]
        held = [pair.bytes_held for pair in pairs if _is_on(pair, device)]
        return sum(size.target + (size.drafter or 0) for size in held)


def _is_on(pair: Pair, device: str) -> bool:
    """Whether the pair's target is on a device of this kind."""
    return pair.info.device.split(":")[0] == device.split(":")[0]


def _is_idle_on(pair: Pair, device: str) -> bool:
    return _is_on(pair, device) and not pair.lock.locked()


def _collect(device: str) -> None:
    with alone_on(device):
        gc.collect()
        free_cache(device)
