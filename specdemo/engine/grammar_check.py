"""Compiles what a text has to follow. As a program: whether that can be followed, found out in a process of
its own, whose time and memory are bounded, since some take minutes and gigabytes to compile, whatever limits
llguidance is given. It reads the arguments of `why_not` from standard input, and writes what that returns, as
JSON."""

import json
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from pathlib import Path
from time import process_time

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

SECONDS, BYTES = 2, 2**30  # of processor time, of memory; the tokenizer's come before
STEPS = 40  # that are tried: of the first allowed token, and of the last
# A state takes 1 to 2 KB. Lexemes are not computed ahead: where one is too large, the first steps fail and
# not the compilation, whose failures are told apart by words alone.
LIMITS = LLParserLimits(max_lexer_states=50_000, precompute_large_lexemes=False, verbose_errors=False)
# JSON is written on one line, as Python's json.dumps writes it: where any white space is allowed, a small
# model writes nothing else. A schema can ask for other white space by its "x-guidance".
ONE_LINE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class NotValid(ValueError):
    """It is no JSON schema, regular expression or grammar that llguidance takes, in llguidance's words."""


class NoTokenFits(ValueError):
    """Nothing may follow, and the text may not end."""


class TooLarge(ValueError):
    """It passes a limit while a text follows it."""


@dataclass
class Vocabulary:
    """The tokens of a target, as llguidance reads them.

    tokenizer: that of the package tokenizers, as JSON. width: how many tokens it has. eos: those that end a
    text."""

    tokenizer: str
    width: int
    eos: list[int]

    @cached_property
    def tokens(self) -> LLTokenizer:
        """Reads them, in up to two seconds. ValueError for a tokenizer that llguidance does not know."""
        return LLTokenizer(self.tokenizer, n_vocab=self.width, eos_token=self.eos)

    def compiled(self, field: str, text: str) -> LLMatcher:
        """Compiles a field of Params, for the beginning of its text. Raises NotValid."""
        try:
            if field == "json_schema":
                grammar = LLMatcher.grammar_from_json_schema(text, defaults=ONE_LINE)
            else:
                of_field = {"regex": LLMatcher.grammar_from_regex, "grammar": LLMatcher.grammar_from_lark}
                grammar = of_field[field](text)
        except ValueError as error:  # of a schema that is nested too deep, for example
            raise NotValid(str(error)) from None
        matcher = LLMatcher(self.tokens, grammar, log_level=0, limits=LIMITS)
        if matcher.is_error():
            raise NotValid(matcher.get_error())
        return matcher

    def allowed(self, matcher: LLMatcher) -> int:
        """Says which tokens may follow: bit i is token i. One that ends a text may where the text may end,
        and only there, even if its own text would fit. Raises NoTokenFits and TooLarge."""
        bits = int.from_bytes(matcher.compute_bitmask(), "little")
        if matcher.is_error():
            reason = matcher.get_error().partition("\n")[0]  # a StopReason, or a limit that was passed
            raise NoTokenFits if reason == "NoExtensionBias" else TooLarge
        can_end = matcher.is_accepting()
        ends = _bits(one for one in self.eos if can_end or self._is_the_end(matcher, bits, one))
        bits &= ~_bits(self.eos)
        is_one = bits.bit_count() == 1
        if not bits | ends or is_one and not matcher.deep_copy().consume_token(bits.bit_length() - 1):
            # Where one text alone fits, llguidance 1.9.1 gives one token for it: that of the special token or
            # of the end that the text spells. Others spell it, too.
            others = (one for one in range(self.width) if one not in self.eos)
            bits = _bits(one for one in others if matcher.validate_tokens([one]))
        if not bits | ends:
            raise NoTokenFits
        return bits | ends

    def _is_the_end(self, matcher: LLMatcher, bits: int, eos: int) -> bool:
        """Says whether the grammar names this token as the end of its text."""
        after = matcher.deep_copy()
        is_named = bits >> eos & 1 and self.tokens.is_special_token(eos)
        return bool(is_named and after.consume_token(eos) and after.is_accepting())


def _bits(token_ids: Iterable[int]) -> int:
    return sum(1 << token_id for token_id in token_ids)


def followed(matcher: LLMatcher, token_id: int) -> LLMatcher:
    """Gives the place after one more token, which is allowed. The given one stays where it is: llguidance
    1.9.1 does not always go back to the same state (guidance-ai/llguidance 364). Raises TooLarge."""
    longer = matcher.deep_copy()
    if not longer.consume_token(token_id):
        raise TooLarge
    return longer


def why_not(vocabulary: Vocabulary, field: str, text: str) -> tuple[str, str] | None:
    """Says why a text of these tokens cannot follow the field: the name of what is raised, and its words.
    None if it can, as far as the tried steps show."""
    try:
        first = vocabulary.compiled(field, text)
        for is_last in (False, True):
            matcher = first
            for _ in range(STEPS):
                bits = vocabulary.allowed(matcher) & ~_bits(vocabulary.eos)
                if not bits:  # the text ends here
                    break
                matcher = followed(matcher, (bits if is_last else bits & -bits).bit_length() - 1)
    except (NotValid, NoTokenFits, TooLarge) as error:
        return type(error).__name__, str(error)
    except MemoryError:
        return TooLarge.__name__, ""
    return None


def _bound_this_process() -> None:
    with suppress(ImportError, OSError):  # Windows has no limits, and macOS no /proc
        import resource

        seconds = ceil(process_time()) + SECONDS
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
        pages = int(Path("/proc/self/statm").read_text().split()[0])  # of its address space
        size = pages * resource.getpagesize() + BYTES
        resource.setrlimit(resource.RLIMIT_AS, (size, size))


def main() -> None:
    of_vocabulary, field, text = json.load(sys.stdin)
    vocabulary = Vocabulary(*of_vocabulary)
    _ = vocabulary.tokens  # whose time and memory are not counted
    _bound_this_process()
    print(json.dumps(why_not(vocabulary, field, text)))


if __name__ == "__main__":
    main()
