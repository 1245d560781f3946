"""Who asks for something, and from where. Without Gradio."""

from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from starlette.datastructures import Headers


@dataclass(frozen=True)
class Visitor:
    """Who asks. session: an open page or a caller of the API. address: where the request came from.
    listens: whether the answer can still be read; any thread may call it."""

    session: str
    address: str
    listens: Callable[[], bool] = field(default=lambda: True, compare=False)


def address_of(client: str, headers: Headers, behind_proxy: bool) -> str:
    """The address that a request came from. client: of the connection. behind_proxy: nobody reaches the
    server but through a proxy.

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


def _read(text: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _shared(address: IPv4Address | IPv6Address) -> str:
    is_long = isinstance(address, IPv6Address)
    return str(ip_network((address, 64), strict=False)) if is_long else str(address)
