"""Large JSON texts that the page fetches by name: what was opened, what has been run, and files to save.

They lie compressed, as they are sent, and do not go through Gradio, which copies, searches and keeps what it
sends.
"""

import gzip
import json
import secrets
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

from specdemo.ui.fair import of_the_most
from specdemo.ui.limits import Limits
from specdemo.ui.wire import Message, Update

INLINE = 300_000  # characters of a message; the update of a longer one is fetched
PATIENCE = 3_600  # s that a text is kept without being fetched
GONE = (
    "This run is no longer kept: the server keeps only the latest ones. Run it again, or open its file again."
)


class Entry(NamedTuple):
    owner: str
    data: bytes
    used: float  # when it was put there or fetched, on the monotonic clock


class Shelf:
    """Compressed texts under names that cannot be guessed, bounded in number, bytes and time. When there are
    too many, the owner (an address) with the most loses its longest unused ones first."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.entries: OrderedDict[str, Entry] = OrderedDict()  # the longest unused one first
        self.size = 0
        self.lock = threading.Lock()

    def put(self, data: bytes, owner: str, name: str | None = None) -> str:
        """Returns the name; a random one where none is given."""
        name = name or secrets.token_hex(16)
        with self.lock:
            self._remove(name)
            self.entries[name] = Entry(owner, data, time.monotonic())
            self.size += len(data)
            self._make_room()
        return name

    def get(self, name: str) -> bytes | None:
        with self.lock:
            entry = self.entries.pop(name, None)
            if entry:
                self.entries[name] = entry._replace(used=time.monotonic())
        return entry and entry.data

    def drop(self, *names: str) -> None:
        with self.lock:
            for name in names:
                self._remove(name)

    def _remove(self, name: str) -> None:
        if entry := self.entries.pop(name, None):
            self.size -= len(entry.data)

    def _make_room(self) -> None:
        """Drops what is too much, but never the latest text."""
        while len(self.entries) > 1:
            name, oldest = next(iter(self.entries.items()))
            if time.monotonic() - oldest.used > PATIENCE:
                self._remove(name)
            elif self.size > self.limits.session_bytes:
                self._remove(self._to_drop(lambda entry: len(entry.data)))
            elif len(self.entries) > 2 * self.limits.sessions:  # a run has two texts
                self._remove(self._to_drop(lambda entry: 1))
            else:
                return

    def _to_drop(self, weight: Callable[[Entry], int]) -> str:
        """The longest unused text of the owner with the most."""
        held: Counter[str] = Counter()
        for entry in self.entries.values():
            held[entry.owner] += weight(entry)
        *earlier, _ = self.entries
        return of_the_most({name: self.entries[name].owner for name in earlier}, held)

    def text_of(self, message: Message, owner: str) -> str:
        """The message as JSON. A long update is put on the shelf, for the page to fetch."""
        update = message.get("update")
        if update is None:
            return json.dumps(message)
        text = update_text(update)
        rest: dict[str, Any] = {key: value for key, value in message.items() if key != "update"}
        if len(text) > INLINE:
            return json.dumps(rest | {"stored": self.put(packed(text), owner)})
        return f'{json.dumps(rest)[:-1]}, "update": {text}}}'


def update_text(update: Update) -> str:
    """As json.dumps would write it, round by round: in one call it would keep all other threads waiting."""
    rest = {key: value for key, value in update.items() if key != "rounds"}
    rounds = ", ".join(json.dumps(one) for one in update["rounds"])
    return f'{json.dumps(rest)[:-1]}, "rounds": [{rounds}]}}'


def packed(text: str) -> bytes:
    """Compressed as HTTP sends it; other threads go on meanwhile."""
    return gzip.compress(text.encode(), compresslevel=1, mtime=0)
