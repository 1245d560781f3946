"""Errors of loading: one sentence each for the user, in place of what the libraries raise."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def redacted(text: str) -> str:
    """The text without the hub's token."""
    token = os.environ.get("HF_TOKEN")
    return text.replace(token, "***") if token else text


class PairError(Exception):
    """The request for a pair is wrong, or the pair cannot be used: unknown, missing, unsuitable or busy. The
    message is one sentence that says why."""

    def __init__(self, message: str):
        super().__init__(redacted(message))


class LoadError(PairError):
    """The request was right, but loading failed (broken files, no connection, no memory)."""


def gated_error(role: str, model_id: str) -> LoadError:
    accept = "accept its terms on its hub page, then set HF_TOKEN to a token of that account"
    return LoadError(f"{role}: {model_id} is gated: {accept}")


@contextmanager
def load_errors(role: str, model_id: str, part: str = "config.json") -> Iterator[None]:
    """Turns the libraries' errors into one sentence that names the model and the part of it that was being
    read.

    Checks first that `model_id` is a directory with a model in it or has the form of a hub id.
    """
    path = Path(model_id)
    if model_id and "\0" not in model_id and path.is_dir():
        if not os.access(path, os.R_OK | os.X_OK):
            raise PairError(f"{role}: the directory {model_id} cannot be read: permission denied")
        if not (path / "config.json").is_file():
            raise PairError(
                f"{role}: the directory {model_id} has no config.json, so there is no model in it"
            )
    elif not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", model_id) or model_id.startswith("."):
        shown = model_id if model_id.isprintable() and model_id else ascii(model_id)
        raise PairError(f"{role}: there is no directory {shown}, and a hub id has the form owner/name")
    try:
        yield
    except Exception as error:
        raise _sentence(error, role, model_id, part) from None


def _sentence(error: Exception, role: str, model_id: str, part: str) -> PairError:
    path, causes = Path(model_id), _causes(error)
    if "GatedRepoError" in causes:
        return gated_error(role, model_id)
    if "RepositoryNotFoundError" in causes:
        return PairError(f"{role}: the hub has no model {model_id} that this account may read")
    if not path.is_dir() and ("/" not in model_id or path.parent.is_dir()):
        return PairError(
            f"{role}: there is no directory {model_id}, and no model of that name could be read from the hub"
        )
    if {"ConnectError", "LocalEntryNotFoundError", "OfflineModeIsEnabled", "ConnectTimeout"} & causes:
        return LoadError(
            f"{role}: {model_id} is neither a directory nor in the cache, and the model hub cannot be reached"
        )
    if "HfHubHTTPError" in causes:
        return LoadError(f"{role}: the model hub denied access to {model_id}: check HF_TOKEN")
    return LoadError(f"{role}: {model_id} cannot be loaded, because of its {part}: {_reason(error)}")


def _causes(error: BaseException | None) -> set[str]:
    """Class names of the error, of what caused it, and of their base classes."""
    names: set[str] = set()
    while error is not None:
        names |= {kind.__name__ for kind in type(error).__mro__}
        error = error.__cause__ or error.__context__
    return names


# Pattern in a library's message: what to say instead.
PLAIN_WORDS = {
    r"model type `(.+?)` but Transformers does not recognize": (
        r"this version of transformers does not know the architecture \1"
    ),
    r"Unrecognized configuration class .*\.models\.(\w+)\.": r"\1 is not a causal language model",
    r"contains custom code": "the model comes with its own program code, which is never run here",
    r"Should have a `model_type` key": "config.json does not name a model_type",
    r"ignore_mismatched_sizes": "the weights have other shapes than config.json gives",
    r"deserializing header: (.+)": r"model.safetensors is broken or incomplete (\1)",
    r"instantiate the backend tokenizer": "there are no tokenizer files",
}


def _reason(error: Exception) -> str:
    """The library's message as part of a sentence: on one line, and only its first sentence."""
    text = " ".join(str(error).split())
    for pattern, words in PLAIN_WORDS.items():
        if match := re.search(pattern, text):
            return match.expand(words)
    text = re.split(r"(?<=[.!?]) (?=[A-Z])", text)[0].rstrip(".:") or "no reason given"
    text = text if len(text) <= 150 else text[:147] + "..."
    return text if isinstance(error, (OSError, ValueError)) else f"{type(error).__name__}: {text}"
