"""Whether a grammar can be followed, found out in a process of its own, whose time and memory are bounded:
some take minutes and gigabytes to compile, whatever limits llguidance is given. Reads a field's name and its
text as JSON from standard input, and writes why it cannot be followed: nothing if it can."""

import json
import sys
from contextlib import suppress

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

SECONDS, BYTES = 2, 2**30  # of processor time, of memory
STEPS = 40  # that are tried: of the first allowed byte, and of the last
# A state takes 1 to 2 KB.
LIMITS = LLParserLimits(max_lexer_states=50_000, verbose_errors=False)
# JSON is written on one line, as Python's json.dumps writes it: where any white space is allowed, a small
# model writes nothing else. A schema can ask for other white space by its "x-guidance".
ONE_LINE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def compiled(field: str, text: str) -> str:
    """The grammar that llguidance is given for a field of Params; ValueError for a text that is none."""
    if field == "json_schema":
        return LLMatcher.grammar_from_json_schema(text, defaults=ONE_LINE)
    return LLMatcher.grammar_from_regex(text) if field == "regex" else LLMatcher.grammar_from_lark(text)


def why_not(field: str, text: str) -> str:
    """Why the text cannot be followed; empty if it can, as far as the tried steps show."""
    matcher = LLMatcher(LLTokenizer("byte"), compiled(field, text), log_level=0, limits=LIMITS)
    for end in (0, -1):
        taken = 0
        for _ in range(STEPS):
            if matcher.is_error() or not (allowed := _allowed(matcher)) or matcher.is_stopped():
                break
            matcher.consume_token(allowed[end])
            taken += 1
        matcher.rollback(taken)  # which some features of Lark grammars do not allow
        if matcher.is_error():
            return matcher.get_error()
    return ""


def _allowed(matcher: LLMatcher) -> list[int]:
    """The bytes that may follow."""
    bits = matcher.compute_bitmask()
    return [byte for byte in range(256) if bits[byte // 8] >> byte % 8 & 1]


def main() -> None:
    with suppress(ImportError):  # not on Windows
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
        resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
    try:
        print(why_not(*json.load(sys.stdin)))
    except ValueError as error:  # of a schema that is nested too deep, for example
        print(error)


if __name__ == "__main__":
    main()
