"""The grammar of a text: which tokens may follow it (`json_schema`, `regex` and `grammar` of Params). The
same mask is laid over the logits of p and of q, at each place after the drafts before it, so that the text
has the target's own distribution under the mask (Willard and Louf 2023, "Efficient Guided Generation for
LLMs").

llguidance compiles the grammars and tells the tokens. It reads a vocabulary of 150,000 tokens in one or
two seconds, its limits bound every step, and vLLM and llama.cpp use it, too. Its limits do not bound
compiling, so a separate process tries that first (grammar_check.py)."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import astuple, dataclass, field
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
import torch
from llguidance import LLMatcher
from torch import Tensor
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from specdemo.engine import grammar_check
from specdemo.engine.grammar_check import NoTokenFits, TooLarge, Vocabulary, followed
from specdemo.errors import in_short
from specdemo.events import Params
from specdemo.events.params import field_of_grammar
from specdemo.events.thoughts import Thoughts
from specdemo.words.message import Message, about, message

WALL_SECONDS = 20  # for the process that looks at a grammar, on a busy machine
TOO_LARGE = message("grammar_too_large")
REASONS = {NoTokenFits.__name__: message("no_token_fits"), TooLarge.__name__: TOO_LARGE}


class GrammarError(RuntimeError):
    """The text cannot follow any further what it must."""

    def __init__(self, name: str, why: NoTokenFits | TooLarge):
        super().__init__(about(name, "grammar_ends", reason=REASONS[type(why).__name__]))


class Allowed(NamedTuple):
    """What the grammar allows after a text and after each token of a draft of k tokens. counts: how many
    tokens; None where it allows all, before it begins and after the end of the text."""

    masks: Tensor  # [k+1, V] bool, on the host
    counts: tuple[int | None, ...]  # k+1


@dataclass
class GrammarPlace:
    """A place of a text. matcher: llguidance's, after what comes before it. thoughts: what is open there;
    None once the text that the grammar binds has begun. mask: which tokens may stand there, [V] bool on the
    host; None until it is asked for."""

    matcher: LLMatcher
    thoughts: Thoughts | None
    mask: Tensor | None = None

    @property
    def is_free(self) -> bool:
        return self.thoughts is not None and self.thoughts.are_open


@dataclass
class Grammar:
    """Which tokens may follow, along one text and the drafts after it. Within a thought all may follow; the
    grammar begins after it.

    name: the field of Params that has it. start: the first place of each text. prompt_tokens: how many tokens
    of a text come before that. vocab_size: the width V of the target's logits. text_of: a token's text."""

    name: str
    start: GrammarPlace
    vocabulary: Vocabulary
    text_of: Callable[[int], str]
    vocab_size: int
    prompt_tokens: int
    text: list[int] = field(default_factory=list)  # after the prompt
    places: dict[tuple[int, ...], GrammarPlace] = field(default_factory=dict)  # by the draft after the text

    def __post_init__(self) -> None:
        self.places[()] = self.start

    def go_to(self, ids: Sequence[int]) -> None:
        """Takes the text so far, prompt included, which the grammar allows."""
        text = list(ids[self.prompt_tokens :])
        known = len(self.text) if text[: len(self.text)] == self.text else 0
        place = self.places[()] if known else self.start
        for token_id in text[known:]:
            place = self._followed(place, token_id)
        self.text = text
        self.places.clear()
        self.places[()] = place

    def after(self, draft: Sequence[int]) -> Tensor | None:
        """Says which tokens may follow the text and a draft that the grammar allows: [V] bool, on the host.
        None after the end of the text. GrammarError where the grammar has become too large."""
        if any(token_id in self.vocabulary.eos for token_id in draft):
            return None
        place = self._place(tuple(draft))
        if place.mask is None:
            place.mask = self._mask(place)
        return place.mask

    def allowed(self, draft: Sequence[int]) -> tuple[int, Allowed]:
        """Counts the tokens of the draft that are judged, and says what the grammar allows at their places. A
        draft ends after the first token that it forbids: what would follow has no distribution."""
        masks, counts, k = list[Tensor](), list[int | None](), 0
        mask = self.after(())
        while mask is not None:
            masks.append(mask)
            counts.append(None if self._place(tuple(draft[:k])).is_free else int(mask.sum()))
            if k == len(draft):
                break
            fits = mask[draft[k]]
            k += 1
            mask = self.after(draft[:k]) if fits else None
        else:  # no token follows here
            masks.append(torch.ones(self.vocab_size, dtype=torch.bool))
            counts.append(None)
        return k, Allowed(torch.stack(masks), tuple(counts))

    def _place(self, draft: tuple[int, ...]) -> GrammarPlace:
        place = self.places.get(draft)
        if place is None:
            place = self.places[draft] = self._followed(self._place(draft[:-1]), draft[-1])
        return place

    def _followed(self, place: GrammarPlace, token_id: int) -> GrammarPlace:
        thoughts = place.thoughts and place.thoughts.after(token_id, self.text_of(token_id))
        if thoughts is not None and (place.is_free or not self._bits(place) >> token_id & 1):
            return GrammarPlace(place.matcher, thoughts)
        try:
            return GrammarPlace(followed(place.matcher, token_id), None)
        except TooLarge as error:
            raise GrammarError(self.name, error) from None

    def _bits(self, place: GrammarPlace) -> int:
        """Says which tokens the grammar itself allows: bit i is token i."""
        try:
            return self.vocabulary.allowed(place.matcher)
        except (NoTokenFits, TooLarge) as error:
            raise GrammarError(self.name, error) from None

    def _mask(self, place: GrammarPlace) -> Tensor:
        if place.is_free:
            return torch.ones(self.vocab_size, dtype=torch.bool)
        bits = self._bits(place)
        size = 8 * (max(self.vocab_size, bits.bit_length()) // 8 + 1)
        packed = np.frombuffer(bits.to_bytes(size // 8, "little"), np.uint8)
        mask = np.unpackbits(packed, count=self.vocab_size, bitorder="little")
        if place.thoughts is not None:
            mask[[*place.thoughts.openers]] = 1
        return torch.from_numpy(mask).bool()


def _in_own_words(error: str) -> str:
    """Gives what an error of llguidance says, without the grammar itself, which it repeats, and its own
    calls."""
    error = re.sub(r"(?s)<backtrace>.*|^at \d+\(\d+\): |; following special tokens are .*", "", error)
    named = re.findall(r"^error: (.+)$", error, re.MULTILINE)  # of a regular expression
    lines = [
        line for line in error.splitlines() if not re.match(r"\s*(\d+ \||\^|<non-verbose/>|Enable )", line)
    ]
    return in_short(named[-1] if named else " ".join(lines))


class Grammars:
    """Compiles grammars for the tokens of one tokenizer. eos: the tokens that end a text."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase | None, vocab_size: int, eos: frozenset[int]):
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size
        self.eos = eos
        self._why_not = lru_cache(maxsize=256)(self._look_why_not)

    def compiled(self, params: Params, prompt_tokens: int = 0, thoughts: Thoughts | None = None) -> Grammar:
        """Gives the grammar of Params that have one, where the output begins. prompt_tokens: how many come
        before that. thoughts: what is open there. ValueError where it cannot be followed."""
        name = field_of_grammar(params)
        assert name is not None
        if not isinstance(self.tokenizer, PreTrainedTokenizerFast) or not self.eos:
            raise ValueError(about(name, "grammar_unfit"))
        # Made anew for each run, since all copies of a matcher share the limit on their lexer's states.
        start = GrammarPlace(self._matcher(name, getattr(params, name)), thoughts)
        return Grammar(name, start, self._vocabulary, self._text_of, self.vocab_size, prompt_tokens)

    def _text_of(self, token_id: int) -> str:
        assert self.tokenizer is not None
        return str(self.tokenizer.decode([token_id]))

    def _matcher(self, name: str, text: str) -> LLMatcher:
        try:
            _ = self._vocabulary.tokens
        except ValueError as error:
            raise ValueError(about(name, "grammar_unread", reason=in_short(error))) from None
        if (why := self._why_not(name, text)) is not None:
            raise ValueError(about(name, "grammar_refused", reason=why))
        return self._vocabulary.compiled(name, text)

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        assert isinstance(self.tokenizer, PreTrainedTokenizerFast)
        words = copy(self.tokenizer.backend_tokenizer)
        words.no_padding()
        words.no_truncation()
        return Vocabulary(words.to_str(), max(self.vocab_size, len(self.tokenizer)), sorted(self.eos))

    def _look_why_not(self, name: str, text: str) -> Message | str | None:
        """Says why the text of a field cannot be followed, as a process of its own finds out
        (grammar_check.py); None if it can."""
        command = [sys.executable, "-P", grammar_check.__file__]
        asked = json.dumps([astuple(self._vocabulary), name, text])
        given = {"input": asked, "capture_output": True, "text": True}
        try:
            done = subprocess.run(command, **given, timeout=WALL_SECONDS)
        except subprocess.TimeoutExpired:
            return TOO_LARGE
        if done.returncode:  # below 0: by the bound on its time or memory
            return TOO_LARGE if done.returncode < 0 else in_short(done.stderr)
        if (why := json.loads(done.stdout)) is None:
            return None
        raised, words = why
        return REASONS.get(raised) or _in_own_words(words)
