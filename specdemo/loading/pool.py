"""The pairs that stay loaded, and downloads that visitors wait for: together, not for ever, and apart from
everything that loads."""

import gc
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from time import monotonic

from specdemo.errors import LoadError, PairError, TookTooLong, with_words
from specdemo.loading.fetch import OnProgress, check_access, fetch, is_here
from specdemo.loading.load import LoadPlan, check_free_memory, load_planned, plan
from specdemo.loading.pair import Pair
from specdemo.loading.request import PairRequest
from specdemo.runtime.cuda import alone_on, free_cache
from specdemo.runtime.device import free_memory, memory_of
from specdemo.words.catalogue import numeral
from specdemo.words.message import Message, message

UNWANTED = "nobody waits for this pair any more"
MOST_DOWNLOADS = 2  # that go on at once
WAITERS_PERIOD = 0.5  # s between two looks at whether who waits has left
IsWanted = Callable[[], bool]


@dataclass(eq=False)
class Download:
    """What one thread brings, for all who want the same pair. It cannot be ended from outside while it waits
    inside a library, so it goes on without visitors, and whoever asks again finds it further on. It does not
    begin if nobody waits for it any more by its turn."""

    listeners: list[tuple[OnProgress, IsWanted]] = field(default_factory=list)  # of all who wait for it
    done: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None
    news: tuple[Message, float | None] | None = None  # the last that its listeners were told
    step: tuple = ()  # what is being downloaded, and how many whole percent of it are there
    moved: float | None = None  # when the step changed; None before its turn


class ModelPool:
    """Keeps pairs loaded while together they take at most `share` of their device's memory.

    When there is no room for another one, the least recently used pair that is not running goes first. One
    pair is loaded at a time; pairs that are loaded can be used meanwhile. What is not on this machine is
    downloaded before, while other pairs load, MOST_DOWNLOADS at once besides those that are stalled. seconds:
    the longest that a visitor waits for a download, and for others' loads.
    """

    def __init__(self, share: float = 0.5, seconds: float = 1_800.0):
        self.share, self.seconds = share, seconds
        self.pairs: OrderedDict[tuple, Pair] = OrderedDict()  # least recently used first
        self.downloads: dict[tuple, Download] = {}
        self.lock = threading.Lock()  # protects these two
        self.ended = threading.Condition(self.lock)  # notified when a download has ended
        self.loading = threading.Lock()
        self.listeners: list[OnProgress] = []  # of everyone who waits for a pair that is on this machine

    def get(
        self,
        request: PairRequest,
        on_progress: OnProgress = lambda *_: None,
        is_wanted: IsWanted = lambda: True,
    ) -> Pair:
        """The pair, loaded if necessary; raises as `load_pair` does.

        on_progress: called while this waits, also about another pair that is being loaded. is_wanted: called
        again and again until the load begins; PairError if nobody waits for the pair any more.
        """
        if pair := self.loaded(request):
            return pair
        check_access(request.parts)  # before waiting for another pair's load
        if not all(is_here(part) for part in request.parts):
            self._await_download(request, on_progress, is_wanted)
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

    def bytes_held(self, device: str = "cpu", idle: bool = False) -> int:
        """Bytes of weights that the loaded pairs hold on all devices of this kind. idle: only those that are
        not running."""
        with self.lock:
            pairs = [pair for pair in self.pairs.values() if _is_idle(pair) or not idle]
        held = [pair.bytes_held for pair in pairs if _is_on(pair, device)]
        return sum(size.target + (size.drafter or 0) for size in held)

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
        with alone_on(request.device):
            gc.collect()
            free_cache(request.device)
        raise failed

    def _await_download(self, request: PairRequest, on_progress: OnProgress, is_wanted: IsWanted) -> None:
        """Waits until the pair is on this machine. Where its download is stalled, who asks is refused at
        once: so at most one thread for each pair can be stuck."""
        with self.lock:
            download = self.downloads.get(request.key)
            if download is None:
                download = Download()
                start = partial(self._download, request, download)
                threading.Thread(target=start, name="download", daemon=True).start()
                self.downloads[request.key] = download
            elif download.moved is not None and not self._goes_on(download):
                raise LoadError(message("hub_silent", name=request.name))
            download.listeners.append((on_progress, is_wanted))
            news = download.news
        try:
            if news is not None:
                on_progress(*news)
            is_done = wait_while(is_wanted, self.seconds, download.done.wait)
        finally:
            with self.lock:
                download.listeners.remove((on_progress, is_wanted))
                why = "loads_before" if download.moved is None else "hub_slow"
        if not is_done:
            raise TookTooLong(message(why, name=request.name, seconds=numeral(self.seconds, ",.0f")))
        if error := download.error:
            # Each visitor gets an error of its own, without the frames of the download's thread.
            raise with_words(error) if isinstance(error, PairError) else error

    def _download(self, request: PairRequest, download: Download) -> None:
        def report(doing: Message, share: float | None) -> None:
            step = (doing.key, doing.values.get("name"), None if share is None else int(100 * share))
            with self.lock:
                if step != download.step:
                    download.step, download.moved = step, monotonic()
                download.news = doing, share
                listeners = list(download.listeners)
            for on_progress, _ in listeners:
                on_progress(doing, share)

        try:
            with self.ended:
                while sum(map(self._goes_on, self.downloads.values())) >= MOST_DOWNLOADS:
                    self.ended.wait(WAITERS_PERIOD)  # one that becomes stalled does not notify
                if not any(is_wanted() for _, is_wanted in download.listeners):
                    raise PairError(UNWANTED)
                download.moved = monotonic()
            report(message("configs"), None)
            planned = plan(request)
            check_free_memory(planned, partial(self.bytes_held, idle=True))
            fetch(planned.request.parts, report)
        except BaseException as error:
            download.error = error
        with self.ended:
            del self.downloads[request.key]
            self.ended.notify_all()
        download.done.set()

    def _goes_on(self, download: Download) -> bool:
        """Whether it has begun and is not stalled: within `seconds` one more percent of it has come."""
        return download.moved is not None and monotonic() - download.moved <= self.seconds

    def _make_room(self, planned: LoadPlan) -> None:
        # Raises before any other pair is dropped.
        check_free_memory(planned, partial(self.bytes_held, idle=True))
        device = planned.request.device
        room = self.share * memory_of(device) - sum(planned.sizes)
        while self.bytes_held(device) > room and self._drop_one(device):
            pass
        for need in planned.needs:
            while need.bytes > free_memory(need.device) and self._drop_one(need.device):
                pass
        check_free_memory(planned)

    def _drop_one(self, device: str) -> bool:
        """Drops the least recently used pair on devices of this kind that is not running; False if there is
        none."""
        with alone_on(device):  # the pair's memory is freed here
            with self.lock:
                idle = [key for key, pair in self.pairs.items() if _is_on(pair, device) and _is_idle(pair)]
                for key in idle[:1]:
                    del self.pairs[key]
            gc.collect()
            free_cache(device)
        return bool(idle)


def _is_on(pair: Pair, device: str) -> bool:
    """Whether the pair's target is on a device of this kind."""
    return pair.info.device.split(":")[0] == device.split(":")[0]


def _is_idle(pair: Pair) -> bool:
    return not pair.lock.locked()


def wait_while(is_wanted: IsWanted, seconds: float, has_come: Callable[[float], object]) -> bool:
    """Whether it has come within `seconds`; PairError when it is not wanted any more. has_come: waits for so
    many seconds, and tells whether it has come."""
    end = monotonic() + seconds
    while not has_come(max(0, min(WAITERS_PERIOD, end - monotonic()))):
        if not is_wanted():
            raise PairError(UNWANTED)
        if monotonic() >= end:
            return False
    return True
