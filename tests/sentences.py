"""What every message to a user must be."""

import re


def assert_one_sentence(message: str) -> None:
    assert message and message == " ".join(message.split()), f"more than one line: {message!r}"
    assert not re.search(r"[.!?] +[A-Z]", message), f"more than one sentence: {message}"
    assert not re.search(r"<class|Traceback|\braise\b|:$", message), f"for programmers, or cut off: {message}"
    paths = re.findall(r"\S*/\S+", message)
    assert len(message) - sum(map(len, paths)) < 240, f"too long: {message}"
