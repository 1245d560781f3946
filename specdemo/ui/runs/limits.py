"""What a server allows its visitors, by which address it tells them apart, and whose share is too large when
something is full. Without torch and Gradio."""

import re
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import TypeVar

from starlette.datastructures import Headers
from starlette.types import Scope

from specdemo.events import PARAMETERS, Params
from specdemo.events.params import as_text, check_messages, check_number, is_conversation
from specdemo.words.catalogue import numeral
from specdemo.words.message import message, refusal

MIB = 2**20
LOOPBACK = ("localhost", "127.0.0.1", "::1")  # each machine's names for itself
Thing = TypeVar("Thing", bound=Hashable)


class Refused(ValueError):
    """Raised with one sentence when a request cannot wait in line, or waits there no longer."""


@dataclass(frozen=True)
class Limits:
    """What a server allows. Sizes are in bytes, times in seconds. None means no limit.

    hosted: anyone may visit, so only listed pairs can be chosen, as the server loads them. behind_proxy: a
    visitor's address is what the proxy says, since nobody comes without it.
    """

    hosted: bool = False
    behind_proxy: bool = False
    # The most bytes of a trace file that is opened; 10,000 tokens with five alternatives take about 11
    # million.
    trace_bytes: int = 16 * MIB
    trace_seconds: float = 60  # that one may take to arrive
    traces_arriving: int = 4  # times the largest: what may arrive or wait to be read at once
    body_bytes: int = 2 * MIB  # of any other request
    body_seconds: float = 30
    bodies_arriving: int = 16
    views_made: int = 4  # of the page at once, each from a copy of its whole config
    prompt_characters: int = 1_000_000  # or token ids
    max_new_tokens: int = 32_768
    alternatives: int = 50
    waiting: int = 200  # runs and measurements in line whose answer is being read
    waiting_of_address: int | None = None  # those of one address among them
    loading: int = 60  # runs and measurements whose pair is being loaded
    run_seconds: float | None = None  # of a visitor's turn
    load_seconds: float = 1_800  # of a pair, download included
    kept_runs: int = 1_000  # for pages to show again and to save
    kept_bytes: int = 64 * MIB  # of those together
    uncollected: int = 500  # requests whose answer nobody has begun to read
    uncollected_of_address: int = 250  # those of one address among them
    listen_seconds: float = 20  # after which such a request is dropped
    share_seconds: float = 2  # after which a call of the API goes for the next one of its address
    connections: int = 2_000  # open at once; fewer where the system lets the process open fewer files
    header_seconds: float = 20  # in which a connection has to send a whole request's headers
    reader_seconds: float = 120  # that a reader may take nothing of its answer: a laptop may have slept
    halls: int = 100  # open at once, in which the rounds of a game are counted
    halls_of_address: int = 10  # opened from one address among them
    plays_of_hall: int = 500  # pages that are counted in one; a whole hall may have one address
    hall_seconds: float = 7_200  # that a hall is open
    resume_seconds: float = 30  # that a run goes on for a page whose connection was cut

    def largest(self, field: str) -> int | None:
        """The largest value of a numeric field of Params here. None means what Params allows."""
        return {"max_new_tokens": self.max_new_tokens, "alternatives": self.alternatives}.get(field)

    def check(self, prompt: object, params: Params) -> None:
        """Raises ValueError with one sentence, as Params does, for what Params allows and this server does
        not."""
        for name in ("max_new_tokens", "alternatives"):
            check_number(name, getattr(params, name), self.largest(name))
        texts = {name: as_text(getattr(params, name)) for name, row in PARAMETERS.items() if row.of_prompt}
        for name, text in {"prompt": prompt, **texts}.items():
            what, size = _size(text)
            if size > self.prompt_characters:
                raise ValueError(refusal(name, what, numeral(size), most=self.prompt_characters))

    def make_room(self, address: str, asked: Mapping[Thing, str], unread: Collection[Thing]) -> Thing | None:
        """Which request has to go for one more of this address; None where there is room. Raises Refused
        where the address has its share, or no other has more. asked: those that are not answered, the oldest
        first, with their addresses. unread: those among them that can go."""
        held = Holdings(asked.values())
        if held[address] < self.uncollected_of_address:
            if len(unread) < self.uncollected:
                return None
            if first := held.to_go({one: asked[one] for one in unread}, newcomer=address):
                return first
        raise Refused(message("unread"))


def _size(prompt: object) -> tuple[str, int]:
    """The message of how many characters or token ids a prompt may have, and how much of that it has."""
    if is_conversation(prompt):
        return "characters", sum(len(one.role) + len(one.content) for one in check_messages(prompt))
    if isinstance(prompt, list):
        return "token_ids", len(prompt)
    return "characters", len(prompt) if isinstance(prompt, str) else 0


LOCAL = Limits()
HOSTED = replace(
    LOCAL,
    hosted=True,
    trace_bytes=2 * MIB,
    body_bytes=256 * 1024,
    prompt_characters=20_000,
    max_new_tokens=1_000,
    alternatives=10,
    waiting=120,
    waiting_of_address=100,  # a lecture hall may have one address
    run_seconds=60,
    load_seconds=300,
)


WITH_PORT = re.compile(r"([\d.]+):\d+|\[([^\]]+)\](?::\d+)?")


@dataclass(frozen=True)
class Visitor:
    """The visitor who asks. session: an open page or a caller of the API. address: where the request came
    from. listens: whether the answer can still be read. is_read: whether somebody has begun to read it. Any
    thread may call these."""

    session: str
    address: str
    listens: Callable[[], bool] = field(default=lambda: True, compare=False)
    is_read: Callable[[], bool] = field(default=lambda: True, compare=False)


def visitor_address(client: str, headers: Headers, behind_proxy: bool) -> str:
    """The address that a request came from. client: the address of the connection. behind_proxy: nobody
    reaches the server but through a proxy.

    Every proxy adds to X-Forwarded-For, at its end or in a line of its own, the address of whom it serves.
    What the visitor writes there itself stands further left. So the last public address is the one that
    nobody but the host's own proxy can have written; private ones after it are proxies. Of IPv6 only the
    network counts, since one visitor has all addresses in it.
    """
    told = headers.getlist("x-forwarded-for") if behind_proxy else []
    for entry in reversed(",".join(told).split(",")):
        address = _read(entry.strip())
        if address and address.is_global:
            return _shared(address)
    address = _read(client)
    return _shared(address) if address else client


def request_address(scope: Scope, limits: Limits) -> str:
    """The address that an ASGI request came from."""
    client = scope.get("client")
    return visitor_address(client[0] if client else "", Headers(scope=scope), limits.behind_proxy)


def _read(text: str) -> IPv4Address | IPv6Address | None:
    """Reads an address, also with a port (1.2.3.4:80, [::1]:80), or quoted as RFC 7239 has it."""
    text = text.strip('"')
    if found := WITH_PORT.fullmatch(text):
        text = found[1] or found[2]
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _shared(address: IPv4Address | IPv6Address) -> str:
    is_long = isinstance(address, IPv6Address)
    return str(ip_network((address, 64), strict=False)) if is_long else str(address)


class Holdings(Counter[str]):
    """How much each address holds of something: places, bytes, turns. If it is made from the addresses of
    things, each thing counts as one."""

    def take(self, address: str, amount: int, most: int) -> bool:
        """Adds `amount` to what an address holds. Returns whether there is room for it: `most` together, or
        somewhat more if several hold it, since an address that has no more than its share always gets it."""
        self[address] += amount
        return self.total() <= most or self[address] <= most / len(self)

    def give_back(self, address: str, amount: int) -> None:
        self[address] -= amount
        if not self[address]:
            del self[address]

    def to_go(self, things: Mapping[Thing, str], newcomer: str | None = None) -> Thing | None:
        """The thing that makes room when there are too many: the first of an address that holds the most.
        things: those that can go, with their addresses, the first to go first. newcomer: the address whose
        thing needs the room; then only things of addresses go that would still hold more than this one."""
        if newcomer is not None:
            fair = self[newcomer] + 1
            things = {thing: address for thing, address in things.items() if self[address] > fair}
        return max(things, key=lambda thing: self[things[thing]], default=None)
