"""Downloads that visitors wait for: together, not for ever, and apart from everything that loads."""

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from time import monotonic

from specdemo.errors import LoadError, PairError, TookTooLong, with_words
from specdemo.loading.fetch import OnProgress
from specdemo.words.catalogue import numeral
from specdemo.words.message import Message, message

UNWANTED = "nobody waits for this pair any more"
WAITERS_PERIOD = 0.5  # s between two looks at whether who waits has left


@dataclass(eq=False)
class Listener:
    on_progress: OnProgress
    is_wanted: Callable[[], bool]


@dataclass(eq=False)
class Download:
    work: Callable[[OnProgress], None]
    listeners: list[Listener] = field(default_factory=list)  # who wait for it
    done: Future[None] = field(default_factory=Future)
    step: tuple = ()  # what is being downloaded, and how many whole percent of it are there
    moved: float = 0.0  # when the step changed


class Downloads:
    """One download goes on at a time, and all who want the same share it. Each has a thread of its own, which
    cannot be ended from outside while it waits inside a library. So:

    - A visitor waits `seconds` at most, for others' downloads too. The download goes on without visitors, and
      whoever asks again finds it further on.
    - A download is stalled when for `seconds` not one more percent has come. It then holds up no other pair's
      download; once another one has begun, it ends at its next byte.
    - While a stalled download's thread lives, whoever asks for the same is refused at once. So at most one
      thread for each pair can be stuck.
    """

    def __init__(self, seconds: float):
        self.seconds = seconds
        self.changed = threading.Condition()  # protects what follows
        self.alive: dict[Hashable, Download] = {}
        self.turn: Download | None = None  # the one that goes on

    def wait_for(
        self,
        key: Hashable,
        name: str,
        work: Callable[[OnProgress], None],
        on_progress: OnProgress,
        is_wanted: Callable[[], bool],
    ) -> None:
        """Waits until `work` has been done, by whomever. key: equal for equal work. name: the pair's.

        Raises what `work` raised, LoadError when the time is over, and PairError soon after `is_wanted` has
        become false. `work` never begins when by then no `is_wanted` is true any more.
        """
        listener = Listener(on_progress, is_wanted)
        with self.changed:
            download = self.alive.get(key) or self._start(key, work)
            if download is self.turn and self._is_stalled(download):
                raise LoadError(message("hub_silent", name=name))
            download.listeners.append(listener)
        try:
            is_done = wait_while(is_wanted, self.seconds, lambda seconds: wait([download.done], seconds).done)
        finally:
            with self.changed:
                download.listeners.remove(listener)
                waited_only = download is not self.turn
        if not is_done:
            key, seconds = "downloads_before" if waited_only else "hub_slow", numeral(self.seconds, ",.0f")
            raise TookTooLong(message(key, name=name, seconds=seconds))
        if error := download.done.exception():
            # Each visitor gets an error of its own, without the frames of the download's thread.
            raise with_words(error) if isinstance(error, PairError) else error

    def _start(self, key: Hashable, work: Callable[[OnProgress], None]) -> Download:
        download = self.alive[key] = Download(work)
        threading.Thread(target=self._run, args=(key, download), name="download", daemon=True).start()
        return download

    def _run(self, key: Hashable, download: Download) -> None:
        error = None
        try:
            self._take_turn(download)
            download.work(lambda *news: self._report(download, *news))
        except BaseException as raised:
            error = raised
        with self.changed:
            del self.alive[key]
            self.turn = None if self.turn is download else self.turn
            self.changed.notify_all()
        if error is None:
            download.done.set_result(None)
        else:
            download.done.set_exception(error)

    def _take_turn(self, download: Download) -> None:
        with self.changed:
            while self.turn is not None and not self._is_stalled(self.turn):
                self.changed.wait(timeout=min(1.0, self.seconds / 10))
            if not any(listener.is_wanted() for listener in download.listeners):
                raise PairError(UNWANTED)
            self.turn, download.moved = download, monotonic()

    def _is_stalled(self, download: Download) -> bool:
        return monotonic() - download.moved > self.seconds

    def _report(self, download: Download, doing: Message, share: float | None) -> None:
        with self.changed:
            if self.turn is not download:
                raise LoadError(message("stalled"))
            step = (doing.key, doing.values.get("name"), None if share is None else int(100 * share))
            if step != download.step:
                download.step, download.moved = step, monotonic()
            listeners = list(download.listeners)
        for listener in listeners:
            listener.on_progress(doing, share)


def wait_while(is_wanted: Callable[[], bool], seconds: float, has_come: Callable[[float], object]) -> bool:
    """Whether it has come within `seconds`; PairError when it is not wanted any more. has_come: waits for so
    many seconds, and tells whether it has come."""
    end = monotonic() + seconds
    while not has_come(max(0, min(WAITERS_PERIOD, end - monotonic()))):
        if not is_wanted():
            raise PairError(UNWANTED)
        if monotonic() >= end:
            return False
    return True
