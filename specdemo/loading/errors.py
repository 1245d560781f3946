"""What the libraries say when a model cannot be loaded, as one sentence for the person who asked for it."""

import os
import re
from contextlib import contextmanager
from pathlib import Path


def redacted(text: str) -> str:
    """The text without the hub's token, whoever wrote it there."""
    token = os.environ.get("HF_TOKEN")
    return text.replace(token, "***") if token else text


class PairError(Exception):
    """A pair cannot be had as asked: unknown, missing, unfit for speculation, or busy. One sentence says why."""

    def __init__(self, message: str):
        super().__init__(redacted(message))


class LoadError(PairError):
    """The request was right, but loading failed (broken files, no connection, no memory)."""


@contextmanager
def explained(role: str, id: str, part: str = "config.json"):
    """Failures of the libraries as one sentence that names the model and the part of it that was read."""
    path = Path(id)
    if id and "\0" not in id and path.is_dir():
        if not os.access(path, os.R_OK | os.X_OK):
            raise PairError(f"{role}: the directory {id} cannot be read: permission denied")
        if not (path / "config.json").is_file():
            raise PairError(f"{role}: the directory {id} holds no config.json, so there is no model in it")
    elif not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", id) or id.startswith("."):
        raise PairError(
            f"{role}: there is no directory {id if id.isprintable() and id else ascii(id)}, and a hub id has the form owner/name"
        )
    try:
        yield
    except Exception as error:
        causes = _causes(error)
        if "GatedRepoError" in causes:
            raise LoadError(
                f"{role}: {id} is gated: accept its terms on its hub page, then set HF_TOKEN to a token of that account"
            ) from None
        if "RepositoryNotFoundError" in causes:
            raise PairError(f"{role}: the hub has no model {id} that this account may read") from None
        if not path.is_dir() and ("/" not in id or path.parent.is_dir()):
            raise PairError(
                f"{role}: there is no directory {id}, and the model hub gave no model of that name"
            ) from None
        if {"ConnectError", "LocalEntryNotFoundError", "OfflineModeIsEnabled", "ConnectTimeout"} & causes:
            raise LoadError(
                f"{role}: {id} is no directory here, it is not in the cache, and the model hub cannot be reached"
            ) from None
        if "HfHubHTTPError" in causes:
            raise LoadError(f"{role}: the model hub refused to hand out {id}: check HF_TOKEN") from None
        raise LoadError(f"{role}: {id} cannot be loaded, because of its {part}: {_reason(error)}") from None


def _causes(error: BaseException | None) -> set[str]:
    names = set()
    while error is not None:
        names |= {kind.__name__ for kind in type(error).__mro__}
        error = error.__cause__ or error.__context__
    return names


# What the libraries say in a programmer's words: what to look for, and what to say in its place.
PLAIN_WORDS = (
    (
        r"model type `(.+?)` but Transformers does not recognize",
        r"this version of transformers does not know the architecture \1",
    ),
    (
        r"Unrecognized configuration class .*\.models\.(\w+)\.",
        r"\1 is no causal language model, which decoding needs",
    ),
    (r"contains custom code", "the model comes with program code of its own, which is not run here"),
    (r"Should have a `model_type` key", "config.json has no model_type that says what it is"),
    (r"ignore_mismatched_sizes", "the weights have other shapes than config.json says"),
    (r"deserializing header: (.+)", r"the model.safetensors is broken or not whole (\1)"),
    (r"instantiate the backend tokenizer", "there are no tokenizer files"),
)


def _reason(error: Exception) -> str:
    """The library's words as part of one sentence: on one line, no further than their first sentence."""
    text = " ".join(str(error).split())
    for pattern, words in PLAIN_WORDS:
        if match := re.search(pattern, text):
            return match.expand(words)
    text = re.split(r"(?<=[.!?]) (?=[A-Z])", text)[0].rstrip(".:") or "no reason given"
    text = text if len(text) <= 150 else text[:147] + "..."
    return text if isinstance(error, (OSError, ValueError)) else f"{type(error).__name__}: {text}"
