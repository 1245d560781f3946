"""Errors that a user may read: one sentence each, without secrets."""

import errno
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from specdemo.words.catalogue import numeral
from specdemo.words.message import Message, changed, message

LONGEST_REASON = 300  # characters of what somebody else's error says
HUB_ID = re.compile(r"(?!\.)[\w.-]+(/[\w.-]+)?")
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


def in_short(error: BaseException | str) -> str:
    """The words of somebody else's error as a part of a sentence: on one line, and cut if they are long; the
    name of its class where it has none."""
    words = " ".join(str(error)[: 10 * LONGEST_REASON].split()) or type(error).__name__
    return words if len(words) <= LONGEST_REASON else words[: LONGEST_REASON - 3] + "..."


def failure(error: BaseException) -> Message:
    """What a visitor may read about an error of a run: on one line, and without secrets and directories."""
    why = message("no_memory_left") if is_out_of_memory(error) else in_short(error)
    sentence = message("error", name=type(error).__name__, why=why)
    return sentence.changed(lambda text: redacted(without_directories(text)))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the CPU or a GPU is out of memory. It is told without torch, whose errors are known by their
    names and words."""
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

    def __init__(self, message: str | Message):
        super().__init__(changed(message, redacted))


def with_words(error: PairError, change: Callable[[str], str] = lambda text: text) -> PairError:
    """A new error of the same kind, without the frames of `error`. change: what becomes of each text in its
    message."""
    return type(error)(changed(error.args[0], change))


class LoadError(PairError):
    """The request was right, but loading failed (broken files, no connection, no memory)."""


class TookTooLong(LoadError):
    """Loading has not ended in time. It may go on, and end well."""


def gated_error(role: str, model_id: str) -> LoadError:
    return LoadError(message("gated", name=role, reason=model_id))


def other_kind(names: Iterable[str]) -> str | None:
    """What files are that are no checkpoint of a model, and what to do with them, as the end of a sentence;
    None where their names do not tell."""
    names = sorted(names)
    if "adapter_config.json" in names:
        return (
            "is a PEFT adapter (adapter_config.json) itself, and the base of an adapter must be a whole model"
        )
    gguf = next((name for name in names if re.fullmatch(r"[\w./-]+\.gguf", name, re.IGNORECASE)), None)
    wanted = "give a checkpoint in safetensors format"
    return gguf and f"has weights in the format GGUF ({gguf}), which is not loaded: {wanted}"


@contextmanager
def load_errors(role: str, place: str, part: str = "config.json", shown: str | None = None) -> Iterator[None]:
    """Turns the libraries' errors into one sentence that names the model and the part of it that was being
    read.

    Checks first that `place` is a directory with a model in it or has the form of a hub id. shown: what the
    sentence calls the model, in place of its directory.
    """
    shown = place if shown is None else shown
    path = Path(place)
    if place and os.path.isdir(place):
        if not os.access(path, os.R_OK | os.X_OK):
            raise PairError(f"{role}: the directory {shown} cannot be read: permission denied")
        if not (path / "config.json").is_file():
            what = other_kind(os.listdir(place)) or "has no config.json, so there is no model in it"
            raise PairError(f"{role}: the directory {shown} {what}")
    elif not HUB_ID.fullmatch(place):
        shown = _printable(shown)
        raise PairError(f"{role}: there is no directory {shown}, and a hub id has the form owner/name")
    try:
        yield
    except PairError:
        raise
    except Exception as error:
        pair_error = _sentence(error, role, place, part)
        raise with_words(pair_error, lambda text: text.replace(place, shown)) from None


def _printable(text: str) -> str:
    return text if text.isprintable() and text else ascii(text)


def _sentence(error: Exception, role: str, model_id: str, part: str) -> PairError:
    path, causes = Path(model_id), _causes(error)
    if is_out_of_memory(error):
        return LoadError(message("too_large", name=role, reason=model_id))
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return LoadError(message("no_disk", name=role, reason=model_id))
    if "GatedRepoError" in causes:
        return gated_error(role, model_id)
    status = _status(error)
    if "RepositoryNotFoundError" in causes or status == 404:
        return PairError(
            f"{role}: the hub has no model {model_id} that this account may read, or no {part} of it"
        )
    if status is not None and status >= 500:
        return LoadError(message("hub_failed", name=role, reason=model_id, status=numeral(status, "")))
    if key := {401: "hub_denied", 403: "hub_denied", 429: "hub_busy"}.get(status):
        return LoadError(message(key, name=role, reason=model_id))
    is_offline = "OfflineModeIsEnabled" in causes
    variables = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    variable = next((name for name in variables if os.environ.get(name)), variables[0])
    if not os.path.isdir(path) and ("/" not in model_id or os.path.isdir(path.parent)):
        why = f", since {variable} is set" if is_offline else ""
        return PairError(
            f"{role}: there is no directory {model_id}, and no model of that name could be read from the "
            f"hub{why}"
        )
    if is_offline:
        return LoadError(message("hub_offline", name=role, reason=model_id, variable=variable))
    if status is None and {"ConnectError", "LocalEntryNotFoundError", "ConnectTimeout"} & causes:
        return LoadError(message("no_hub", name=role, reason=model_id))
    if "TransportError" in causes or "Consistency check failed" in str(error):
        return LoadError(message("broke_off", name=role, reason=model_id))
    return LoadError(f"{role}: {model_id} cannot be loaded, because of its {part}: {reason_of(error)}")


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error, and what caused it."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _causes(error: BaseException) -> set[str]:
    """Class names of the error, of what caused it, and of their base classes."""
    return {kind.__name__ for one in _chain(error) for kind in type(one).__mro__}


def _status(error: BaseException) -> int | None:
    """The HTTP status that the hub has answered with, where its library hands that on."""
    answers = (getattr(one, "response", None) for one in _chain(error))
    return next((answer.status_code for answer in answers if hasattr(answer, "status_code")), None)


# Pattern in a library's message: what to say instead.
PLAIN_WORDS = {
    r"model type `(.+?)` but Transformers does not recognize": (
        r"this version of transformers does not know the architecture \1"
    ),
    r"Unrecognized configuration class .*\.models\.(\w+)\.": r"\1 is not a causal language model",
    r"Should have a `model_type` key": "config.json does not name a model_type",
    r"contains custom code": "the model comes with its own program code, which is not run",
    r"no file named model\.safetensors|appear to have a file named model\.safetensors": (
        "there is no model.safetensors, and weights are loaded from no other format"
    ),
    r"ignore_mismatched_sizes": "the weights have other shapes than config.json gives",
    r"instantiate the backend tokenizer": "there are no tokenizer files",
    r"(\w+) uses cache of its own": r"\1 uses a cache of its own",
}


def reason_of(error: Exception) -> str:
    """The library's message as part of a sentence: on one line, and only its first sentence."""
    text = " ".join(str(error).split())
    for pattern, words in PLAIN_WORDS.items():
        if match := re.search(pattern, text):
            return match.expand(words)
    text = re.split(r"(?<=[.!?]) (?=[A-Z])", text)[0].rstrip(".:") or "no reason given"
    text = text if len(text) <= 150 else text[:147] + "..."
    return text if isinstance(error, (OSError, ValueError)) else f"{type(error).__name__}: {text}"
