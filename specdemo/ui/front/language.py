"""The language in which a visitor of the page is answered. The API and its tools always answer in English."""

import re
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from specdemo.words.catalogue import LANGUAGES, speaking

# The paths of what a page asks for by itself, and other programs do not call.
OF_THE_PAGE = re.compile(r"(/|/config|/specdemo/(runs|traces|halls)(/.*)?)$")


def language_asked(query: str, referer: str, accepted: str) -> str:
    """The language that is asked for, one of LANGUAGES: that of `lang` in the query, else that of `lang` in
    the address in Referer, else the first known one of Accept-Language, which browsers send in order, else
    the first. A value that is not one of LANGUAGES, or no language at all, asks for nothing."""
    for asked in (query, _query_of(referer)):
        if found := _known(parse_qs(asked).get("lang", [""])[0]):
            return found
    return next(filter(None, map(_known, accepted.split(","))), next(iter(LANGUAGES)))


def _known(tag: str) -> str | None:
    """The language in LANGUAGES that a tag names ("de-AT" is German), or None."""
    main = re.split("[-;]", tag.strip().lower())[0]
    return main if main in LANGUAGES else None


def _query_of(address: str) -> str:
    try:
        return urlsplit(address).query
    except ValueError:  # not an address
        return ""


class Speaking:
    """An ASGI middleware: a page's requests are answered in its visitor's language."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not OF_THE_PAGE.match(path_of(scope)):
            return await self.app(scope, receive, send)
        asked, headers = scope.get("query_string", b"").decode("latin-1"), Headers(scope=scope)
        referer, accepted = headers.get("referer", ""), headers.get("accept-language", "")
        with speaking(language_asked(asked, referer, accepted)):
            await self.app(scope, receive, send)


def path_of(scope: Scope) -> str:
    """The request's path without the prefix under which a proxy serves the page."""
    path, prefix = scope["path"], scope.get("root_path", "").rstrip("/")
    return path[len(prefix) :] if prefix and path.startswith(f"{prefix}/") else path
