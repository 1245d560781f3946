"""What every message to a user must be."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from specdemo import PairError
from specdemo.words.message import Message, message_of


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


@contextmanager
def refused(
    key: str, field: str | None = None, kind: type[Exception] = ValueError, **values: object
) -> Iterator[None]:
    """The block raises an error of this kind with the message of this key, or with one that has it among its
    values: about this field, and with these values."""
    with pytest.raises(kind) as caught:
        yield
    told = message_of(caught.value)
    named = {one.key: one for one in messages_in(told)}
    assert key in named, f"{told!r} has the keys {[*named]}"
    assert field is None or told.field == field, told
    assert values.items() <= dict(named[key].values).items(), (told, dict(named[key].values))


def messages_in(told: object) -> Iterator[Message]:
    if isinstance(told, Message):
        yield told
        for value in told.values.values():
            yield from messages_in(value)
