"""What every message to a user must be."""

import re
from collections.abc import Callable

import pytest

from specdemo import PairError


def assert_one_sentence(message: str) -> None:
    assert message and message == " ".join(message.split()), f"more than one line: {message!r}"
    assert not re.search(r"[.!?] +[A-Z]", message), f"more than one sentence: {message}"
    assert not re.search(r"<class|Traceback|\braise\b|:$", message), f"for programmers, or cut off: {message}"
    paths = re.findall(r"\S*/\S+", message)
    assert len(message) - sum(map(len, paths)) < 240, f"too long: {message}"


def refusal(call: Callable, *given: object, kind: type[PairError] = PairError, **named: object) -> str:
    """What a call with these arguments is refused with: an error of this very class, in one sentence."""
    with pytest.raises(PairError) as error:
        call(*given, **named)
    message = str(error.value)
    assert type(error.value) is kind, message
    assert_one_sentence(message)
    return message
