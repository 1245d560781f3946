"""What is said to users and to programs alike: why something is refused, what is noted, what is being done.

It is raised, kept and handed on as a key below `messages` in the catalogues with its values. Programs read it
as the English sentence that it is; the page says it in its visitor's language (`in_words` in
ui/view/settings.py).
"""

import re
from collections.abc import Callable, Mapping
from typing import Self

from specdemo.words.catalogue import Numeral, numeral, say, speaking

CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
LONGEST_GIVEN = 60  # characters


class Given(str):
    """What was given, as the sentence that refuses it has it."""


class Message(str):
    """What is said, by its key. As a str it is the English sentence, so that programs need not know of keys.

    values: text, numbers (Numeral; or int, whose thousands are parted), other messages, or None for nothing
    given. field: the field of a request, which the sentence is about and begins with."""

    key: str
    values: Mapping[str, object]
    field: str | None

    def __new__(cls, key: str, values: Mapping[str, object] | None = None, field: str | None = None) -> Self:
        values = values or {}
        with speaking("en"):
            sentence = _in_words(key, values)
        message = super().__new__(cls, f"{field} {sentence}" if field else sentence)
        message.key, message.values, message.field = key, values, field
        return message

    def __getnewargs__(self) -> tuple:
        return self.key, self.values, self.field

    def said(self) -> str:
        """The words in the language that is spoken, without the field."""
        return _in_words(self.key, self.values)

    def changed(self, change: Callable[[str], str]) -> "Message":
        """The message with what `change` makes of each text in it."""

        def of(value: object) -> object:
            if isinstance(value, Message):
                return value.changed(change)
            is_text = isinstance(value, str) and not isinstance(value, Numeral)
            return change(value) if is_text else value

        return Message(self.key, {name: of(value) for name, value in self.values.items()}, self.field)


def changed(words: Message | str, change: Callable[[str], str]) -> Message | str:
    return words.changed(change) if isinstance(words, Message) else change(words)


def message(key: str, **values: object) -> Message:
    return Message(key, values)


def about(field: str, key: str, **values: object) -> Message:
    """Why a field of a request is refused."""
    return Message(key, values, field)


def refusal(field: str, key: str, value: object, **values: object) -> Message:
    """Why a field of a request is refused, with what was given."""
    return given(about(field, key, **values), value)


def given(allowed: Message, value: object) -> Message:
    """Why a field is refused: what it must be, and what it was."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if value is not None and not isinstance(value, (Numeral, Given)):
        value = Numeral(shown(value)) if is_number else shown(value)
    return Message("given", {"what": allowed, "given": value}, allowed.field)


def message_of(error: Exception) -> Message | str:
    """What an error was raised with; the error's words where that was no message."""
    first = error.args[0] if error.args else None
    return first if isinstance(first, Message) else str(error)


def shown(value: object) -> str:
    """What was given, in a sentence that refuses it."""
    try:
        text = ascii(value)  # on one line, whatever the value holds
    except ValueError:  # Python refuses to print integers of more than 4,300 digits
        return "a number of thousands of digits"
    except RecursionError:
        return "what is nested too deep"
    return text if len(text) <= LONGEST_GIVEN else text[: LONGEST_GIVEN - 3] + "..."


def harmless(text: str) -> str:
    """Text for a terminal: characters that would control it are written as JSON escapes, except
    newlines and tabs."""
    return CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _in_words(key: str, values: Mapping[str, object]) -> str:
    """The words of a key with its values, in the language that is spoken."""
    return say(f"messages.{key}", **{name: _said(value) for name, value in values.items()})


def _said(value: object) -> object:
    if isinstance(value, Message):
        return value.said()
    return numeral(value) if isinstance(value, int) else value
