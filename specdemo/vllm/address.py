"""Where a server is, as a user writes it."""

from urllib.parse import SplitResult, urlsplit

from specdemo.errors import PairError

LONGEST = 2_000  # characters


def address_of(url: object) -> str:
    """The server's address without a path of the API and without a slash at its end; PairError for what is no
    address."""
    if not isinstance(url, str) or not url.strip() or len(url) > LONGEST or not url.isprintable():
        raise PairError(f"vllm must be a server's address like http://host:8000, not {ascii(url)[:60]}")
    parts = _parts(url.strip())
    if parts.scheme not in ("http", "https") or not parts.hostname:
        shown = ascii(url.rpartition("@")[2])[:60]
        raise PairError(f"vllm must be an address that begins with http:// or https://, not {shown}")
    if parts.username is not None or parts.password is not None:
        raise PairError(
            "vllm must be an address without a name or a password: the key is given apart from it"
        )
    if parts.query or parts.fragment:
        raise PairError("vllm must be an address without ? and #")
    path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return f"{parts.scheme}://{parts.netloc}{path}"


def _parts(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        has_port = parts.port != 0  # raises where it is no number
    except ValueError:
        has_port = False
    if not has_port:
        raise PairError("vllm must be an address like http://host:8000: this one cannot be read")
    return parts


def host_of(address: str) -> str:
    """The address without its scheme, for names."""
    return address.partition("://")[2]
