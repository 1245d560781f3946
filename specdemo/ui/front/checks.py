"""What a request must hold, and from which names and sites it may come. Without Gradio.

Each wrong body gets a sentence that says what is wrong; Gradio answers many of those for its tools with a
traceback.
"""

import json
import re
import socket
from collections.abc import Iterable, Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any
from urllib.parse import urlsplit

import httpx
from starlette.datastructures import Headers
from starlette.requests import Request

from specdemo.ui.runs.limits import LOOPBACK

SESSION = re.compile(r"[A-Za-z0-9_-]{1,64}")  # what a page or a client calls itself, and an event
DEPTH = 32  # of lists and objects within each other; a page sends 5


class NotLetIn(Exception):
    """A request that is not let in: the status of its answer, the sentence that says why, and headers."""

    def __init__(self, status: int, sentence: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(sentence)
        self.status, self.sentence, self.headers = status, sentence, headers


def read_object(body: bytes) -> dict[str, Any]:
    """Returns the JSON object in a request's body."""
    try:
        value = json.loads(body.decode("utf-8"))
        if _depth(value) > DEPTH:
            raise RecursionError
    except RecursionError:
        raise NotLetIn(400, f"The body must be nested at most {DEPTH} deep.") from None
    except ValueError as error:
        raise NotLetIn(400, f"The body must be JSON in UTF-8: {error}.") from None
    if not isinstance(value, dict):
        raise NotLetIn(400, "The body must be a JSON object.")
    return value


def _depth(value: Any) -> int:
    """How deep lists and objects are nested."""
    if not isinstance(value, (list, dict)):
        return 0
    return 1 + max(map(_depth, value.values() if isinstance(value, dict) else value), default=0)


async def read_json(request: Request) -> dict[str, Any]:
    """Returns the JSON object in its body, which no form of another site can send as such."""
    kind = request.headers.get("content-type", "").partition(";")[0]
    if kind.strip().lower() != "application/json":
        raise NotLetIn(415, "The body must be sent as application/json.")
    return read_object(await request.body())


def check_for_tools(value: Any) -> None:
    """Checks that UTF-8 can hold all texts in the value, since what the tools answer repeats some of them,
    and that there is nothing in it that Gradio could open as a file."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        sentence = "The body must be Unicode text: there is half of a surrogate pair in it."
        raise NotLetIn(400, sentence) from None
    if _holds_file(value):
        raise NotLetIn(400, "An object in the body must not have a text as its path: it could be a file.")


def _holds_file(value: Any) -> bool:
    """Whether there is an object with a text as its path in the value, which Gradio could take for a file."""
    if isinstance(value, dict):
        return isinstance(value.get("path"), str) or any(map(_holds_file, value.values()))
    return isinstance(value, list) and any(map(_holds_file, value))


def name_in(body: Mapping[str, Any], name: str) -> str:
    """The name that a session or an event gives itself."""
    given = body.get(name)
    if isinstance(given, str) and SESSION.fullmatch(given):
        return given
    wrong = "is missing" if given is None else "must be 1 to 64 letters, digits, - or _"
    raise NotLetIn(400, f"{name} {wrong}.")


def number_in(body: Mapping[str, Any], name: str) -> int:
    if type(value := body.get(name)) is int and abs(value) < 2**31:
        return value
    raise NotLetIn(400, f"{name} must be a whole number.")


def short(value: Any) -> str:
    if isinstance(value, (list, dict)):
        return "a list" if isinstance(value, list) else "an object"
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:40]}…"


# The names under which this page may be asked for, and the sites whose pages may ask for it. A private page
# trusts who reaches it. A browser on the same machine reaches it, too, and runs the scripts of any site. A
# site whose name was made to lead here (DNS rebinding) sends that name as Host, and any other sends its own
# as Origin.

EVERYWHERE = {"0.0.0.0", "::"}
SHOWN_NAME = 60  # characters of a name
# The last part has a letter, or browsers take the name for an address.
HOST_NAME = re.compile(r"([\w-]{1,63}\.){0,30}[\w-]{0,62}[a-z][\w-]{0,62}", re.ASCII)


class Hosts:
    """The names under which this page may be asked for, and the sites whose pages may ask. bound: the address
    that the server listens on, or a name of it. allowed: other names that the server is reached by. hosted:
    anyone may visit it; unless names are given, under any name and from pages of any site. behind_proxy: a
    proxy may tell the name that the visitor used, which must be one of these, too."""

    def __init__(self, bound: str, allowed: Iterable[str], hosted: bool, behind_proxy: bool) -> None:
        self.allowed = {host_name(name) for name in allowed}
        self.is_open = hosted and not self.allowed
        addresses = {_plain(str(found[4][0])) for found in socket.getaddrinfo(bound, None)}
        self.any_address = not addresses.isdisjoint(EVERYWHERE)
        machine = _plain(socket.gethostname())
        own = {machine, f"{machine}.local"} if self.any_address else {_plain(bound), *addresses}
        self.names = {*LOOPBACK, *own, *self.allowed}
        self.behind_proxy = behind_proxy

    def check(self, headers: Headers) -> None:
        """Raises NotLetIn for a request that another site may have made, and for one with a host of which
        Gradio could make no address. Of a header with several lines, each is checked, since Gradio reads the
        first one at some places and the last one at others. h11 lets in no second Host."""
        if (host := headers.get("host")) is None:
            raise NotLetIn(400, "The header host is missing.")
        lines = [[part.strip() for part in line.split(",")] for line in headers.getlist("x-forwarded-host")]
        if not self.is_open:
            hosts = [host, *(sum(lines, []) if self.behind_proxy else [])]
            self._check_site(hosts, headers.getlist("origin"))
        for header, one in (("host", host), *(("x-forwarded-host", line[0]) for line in lines)):
            if one and not _is_host(one):
                raise NotLetIn(400, f"The header {header} must be the name of a host.")

    def _check_site(self, hosts: list[str], origins: list[str]) -> None:
        for name in (name_and_port(host, 0)[0] for host in hosts):
            if not self._is_own(name):
                known = f"This page is not known as {name[:SHOWN_NAME]!r}"
                raise NotLetIn(403, f"{known}; --allow-host lets in more names.")
        for origin in origins:
            if not self._matches(origin, hosts):
                raise NotLetIn(403, f"Pages of {origin[:SHOWN_NAME]!r} may not use this one.")

    def _is_own(self, name: str) -> bool:
        # An address cannot lead elsewhere, as a name can; which ones this machine has may change.
        is_local = name in self.names or name.endswith(".localhost")
        return is_local or bool(self.any_address and _address(name))

    def _matches(self, origin: str, hosts: list[str]) -> bool:
        """Whether a page of this origin is this page, or comes from a name that is let in, at its usual
        port."""
        scheme, _, where = origin.lower().partition("://")
        usual = {"http": 80, "https": 443}.get(scheme)
        if usual is None:
            return False  # "null", of a page that has no address
        name, port = name_and_port(where, usual)
        left_out = port if self.behind_proxy else usual  # a proxy may leave out the port
        ours = {name_and_port(host, left_out) for host in hosts} | {(one, usual) for one in self.allowed}
        return (name, port) in ours


def name_and_port(host: str, usual: int) -> tuple[str, int]:
    """The name, spelled as by `_plain`, and the port in "name", "name:port" or "[address]:port". usual: the
    port where none is given. The name is empty where it cannot be read."""
    try:
        parts = urlsplit(f"//{host}")
        return _plain(parts.hostname or ""), parts.port or usual
    except ValueError:
        return "", usual


def host_name(text: str) -> str:
    """The name or address of a host. ValueError if it is anything else."""
    name = _plain(text)
    if not (HOST_NAME.fullmatch(name) or _address(name)):
        example = "without scheme, port or brackets, such as lab.example or fd00::1"
        raise ValueError(f"must be the name or address of a host {example}, not {ascii(text)[:SHOWN_NAME]}")
    return name


HOST = re.compile(r"([\w.-]{1,255}|\[[0-9A-Fa-f:.]{2,45}\])(:[0-9]{1,5})?", re.ASCII)


def _is_host(text: str) -> bool:
    if not HOST.fullmatch(text):
        return False
    try:
        httpx.URL(f"http://{text}")  # as Gradio does
    except httpx.InvalidURL:
        return False
    return True


def _plain(name: str) -> str:
    """The name or the address in its one spelling."""
    name = name.lower().removesuffix(".")
    return str(_address(name) or name)


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(text)
    except ValueError:
        return None
