"""What is said to users and to programs alike: why something is refused, what is noted, what is being done.

It is raised, kept and handed on as a key below `messages` in the catalogues with its values. Programs get it
in English, by str(); the page says it in its visitor's language (`in_words` in ui/view/settings.py).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from specdemo.words.catalogue import Numeral, numeral, say, speaking

LONGEST_GIVEN = 60  # characters


class Given(str):
    """What was given, as the sentence that refuses it has it."""


@dataclass(frozen=True)
class Message:
    """What is said, by its key. values: text, numbers (Numeral; or int, whose thousands are parted), other
    messages, or None for nothing given. field: the field of a request, which the sentence is about and begins
    with."""

    key: str
    values: Mapping[str, object] = field(default_factory=dict, hash=False)
    field: str | None = None

    def __str__(self) -> str:
        with speaking("en"):
            sentence = self.said()
        return f"{self.field} {sentence}" if self.field else sentence

    def said(self) -> str:
        """The words in the language that is spoken, without the field."""
        return say(f"messages.{self.key}", **{name: _said(value) for name, value in self.values.items()})

    def changed(self, change: Callable[[str], str]) -> "Message":
        """The message with what `change` makes of each text in it."""

        def of(value: object) -> object:
            if isinstance(value, Message):
                return value.changed(change)
            is_text = isinstance(value, str) and not isinstance(value, Numeral)
            return change(value) if is_text else value

        return replace(self, values={name: of(value) for name, value in self.values.items()})


def changed(told: Message | str, change: Callable[[str], str]) -> Message | str:
    return told.changed(change) if isinstance(told, Message) else change(told)


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
    return text if len(text) <= LONGEST_GIVEN else text[: LONGEST_GIVEN - 3] + "..."


def _said(value: object) -> object:
    if isinstance(value, Message):
        return value.said()
    return numeral(value) if isinstance(value, int) else value
