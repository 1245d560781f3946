"""The vLLM servers that the page offers in the place of pairs. Without Gradio."""

import threading
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from specdemo.errors import PairError
from specdemo.ui.settings import SERVED
from specdemo.vllm.address import address_of, host_of
from specdemo.vllm.pair import ServedPair, connect


@dataclass(frozen=True)
class Given:
    """A server's address and key, as the page's owner gave them."""

    url: str
    key: str | None = None


class Servers:
    """hosted: visitors do not see addresses, and cannot give one."""

    def __init__(self, given: Sequence[Given] = (), hosted: bool = False):
        self.hosted = hosted
        places = {address_of(one.url): one.key for one in given}
        self.places: dict[str, tuple[str, str | None]] = {}  # by name: address and key
        for number, (address, key) in enumerate(places.items(), start=1):
            self.places[f"{SERVED}{number}" if hosted else self._name(address)] = (address, key)
        self.connected: dict[str, ServedPair] = {}
        self.locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)  # by name: asked once

    @staticmethod
    def _name(address: str) -> str:
        return f"{SERVED}{host_of(address) if address.startswith('http:') else address}"

    @property
    def names(self) -> list[str]:
        """Those that the owner gave."""
        return list(self.places)

    def place(self, name: str | None, typed: str | None) -> tuple[str, tuple[str, str | None]] | None:
        """Name, address and key of the server that is asked for, None if it is none. typed: an address that a
        visitor of an own page has typed; it gets no key but one that was given for it."""
        if typed:
            if self.hosted:
                raise PairError("vllm cannot be chosen here: this server uses those of its owner")
            address = address_of(typed)
            name = self._name(address)
            return name, self.places.get(name, (address, None))
        return (name, self.places[name]) if isinstance(name, str) and name in self.places else None

    def loaded(self, name: str) -> ServedPair | None:
        """The server if it has been asked what it is, and has not failed since."""
        pair = self.connected.get(name)
        return None if pair is None or pair.failed else pair

    def get(self, name: str, place: tuple[str, str | None]) -> ServedPair:
        """The server, asked what it is if necessary; raises as `connect` does."""
        with self.locks[name]:
            pair = self.loaded(name)
            if pair is None:
                pair = self.connected[name] = connect(*place, name=name if self.hosted else None)
            return pair

    def beside(self, pair: ServedPair) -> list[str]:
        """The other given servers that can be reached and serve a model of the same name."""
        found = []
        for name, place in self.places.items():
            with suppress(PairError):
                other = self.get(name, place)
                if other is not pair and other.server.model == pair.server.model:
                    found.append(name)
        return found
