"""Errors that a user may read: one sentence each, without secrets."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SHORTEST_SECRET = 8  # characters: shorter values are words like "true", which other texts have too
_hidden: set[str] = set()


def hide(secret: str) -> None:
    """From now on no error shows this, whatever its length."""
    _hidden.add(secret)


def redacted(text: str) -> str:
    """The text without the value of any environment variable that is named *_TOKEN or *_KEY, without the
    hub's token that is stored on this machine, and without what `hide` was given."""
    named = (value for name, value in os.environ.items() if name.upper().endswith(("_TOKEN", "_KEY")))
    secrets = {value for value in (*named, _stored_token()) if len(value) >= SHORTEST_SECRET}
    secrets |= _hidden
    for secret in sorted(secrets, key=len, reverse=True):  # one can be a part of another
        text = text.replace(secret, "***")
    return text


def _stored_token() -> str:
    """What `hf auth login` has written."""
    from huggingface_hub import constants

    try:
        return Path(constants.HF_TOKEN_PATH).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeError):
        return ""


def without_directories(text: str) -> str:
    """The text with only the last part of each absolute path, which can name a user or a mount."""
    return re.sub(r"(?<![\w.:/~])~?/(?:[^\s'\"/:,;]+/)+", "", text)


def failure(error: BaseException) -> str:
    """What a visitor may read about an error of a run: on one line, and without secrets and directories."""
    words = " ".join(str(error).split())
    if is_out_of_memory(error):
        words = "there was not enough memory for it: try a shorter text, or a smaller pair"
    return redacted(without_directories(f"{type(error).__name__}: {words}"))


def is_out_of_memory(error: BaseException) -> bool:
    """Of the CPU or of a GPU. Without torch, whose errors are known by their names and words."""
    return (
        isinstance(error, MemoryError)
        or any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__)
        or (isinstance(error, RuntimeError) and "DefaultCPUAllocator: " in str(error))
    )


@contextmanager
def no_mistakes() -> Iterator[None]:
    """A library's ValueError becomes a RuntimeError, since it would pass for a mistake in what was asked."""
    try:
        yield
    except ValueError as error:
        raise RuntimeError(f"{type(error).__name__}: {error}") from error


class PairError(Exception):
    """The request for a pair is wrong, or the pair cannot be used: unknown, missing, unsuitable or busy. The
    message is one sentence that says why."""

    def __init__(self, message: str):
        super().__init__(redacted(message))


class LoadError(PairError):
    """The request was right, but loading failed (broken files, no connection, no memory)."""


class TookTooLong(LoadError):
    """Loading has not ended in time. It may go on, and end well."""
