"""The grammar of a text: which tokens may follow it (`json_schema`, `regex` and `grammar` of Params). The
same mask is laid over the logits of p and of q, at each place after the drafts before it, so that the text
has the target's own distribution under the mask (Willard and Louf 2023, "Efficient Guided Generation for
LLMs").

llguidance compiles the grammars and tells the tokens. It reads a vocabulary of 150,000 tokens in about a
second, its limits bound every step, and vLLM, SGLang and llama.cpp use it, too. Its limits do not bound
compiling, so a separate process tries that first (grammar_check.py)."""

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from llguidance import LLMatcher, LLTokenizer
from llguidance.hf import from_tokenizer
from torch import Tensor
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from specdemo.engine import grammar_check
from specdemo.engine.grammar_check import LIMITS, compiled
from specdemo.errors import in_short
from specdemo.events import Params
from specdemo.events.params import field_of_grammar
from specdemo.words.message import Message, about, message

WALL_SECONDS = 20  # for the process that looks at a grammar, on a busy machine
KEPT = 4  # compiled grammars: each can take megabytes
TOO_LARGE = re.compile(r"limit|max is|too (many|large|big|complex)|exhausted|precomputation", re.IGNORECASE)


class GrammarError(RuntimeError):
    """What the text must follow cannot be followed any further."""

    def __init__(self, name: str, reason: Message | str):
        super().__init__(about(name, "grammar_ends", reason=reason))
        self.reason = reason


class Allowed(NamedTuple):
    """What the grammar allows after a text and after each token of a draft of k tokens. counts: how many
    tokens. is_cut: whether the draft's last token is one that the grammar forbids."""

    masks: Tensor  # [k+1, V] bool, on the host
    counts: tuple[int, ...]  # k+1
    is_cut: bool


@dataclass
class Grammar:
    """Which tokens may follow, along one text. A matcher of llguidance goes back and forth along the text and
    the drafts after it.

    name: the field of Params that has it. prompt_tokens: how many tokens of each text come before what the
    grammar is about. eos: the tokens that end a text, where the grammar lets it end."""

    name: str
    matcher: LLMatcher
    vocab_size: int
    prompt_tokens: int
    eos: frozenset[int]
    text: list[int] = field(default_factory=list)  # after the prompt
    read: list[int] = field(default_factory=list)  # what the matcher has read
    masks: dict[tuple[int, ...], Tensor] = field(default_factory=dict)  # [V] bool, by the draft before

    def go_to(self, ids: Sequence[int]) -> None:
        """Takes the text so far, prompt included, which the grammar allows."""
        self.text = list(ids[self.prompt_tokens :])
        self.masks.clear()

    def after(self, draft: Sequence[int]) -> Tensor | None:
        """Which tokens may follow the text and a draft that the grammar allows: [V] bool, on the host. None
        after the end of the text. GrammarError where the grammar has become too large."""
        if not self.eos.isdisjoint(draft):
            return None
        mask = self.masks.get(tuple(draft))
        if mask is None:
            self._read([*self.text, *draft])
            bits = np.frombuffer(self.matcher.compute_bitmask(), np.uint8)
            flags = np.unpackbits(bits, count=8 * len(bits), bitorder="little")[: self.vocab_size]
            mask = torch.zeros(self.vocab_size, dtype=torch.bool)
            mask[: len(flags)] = torch.from_numpy(flags).bool()
            self._check()
            if not mask.any():
                raise GrammarError(self.name, message("no_token_fits"))
            self.masks[tuple(draft)] = mask
        return mask

    def allowed(self, draft: Sequence[int]) -> tuple[int, Allowed]:
        """How many tokens of the draft are judged, and what the grammar allows at their places. A draft ends
        after the first token that it forbids: what would follow has no distribution."""
        masks, k, is_cut = list[Tensor](), 0, False
        mask = self.after(())
        while mask is not None:
            masks.append(mask)
            if k == len(draft):
                break
            is_cut = not mask[draft[k]]
            k += 1
            mask = None if is_cut else self.after(draft[:k])
        else:  # no token follows here
            masks.append(torch.ones(self.vocab_size, dtype=torch.bool))
        stacked = torch.stack(masks)  # [k+1, V]
        return k, Allowed(stacked, tuple(stacked.sum(1).tolist()), is_cut)

    def _read(self, path: list[int]) -> None:
        """Takes the matcher to the end of the path, which the grammar allows."""
        same = min(len(self.read), len(path))
        while path[:same] != self.read[:same]:  # they part near their ends
            same -= 1
        if back := len(self.read) - same:
            self.matcher.rollback(back)
        if new := path[same:]:
            self.matcher.consume_tokens(new)
        self.read = path
        self._check()

    def _check(self) -> None:
        if self.matcher.is_error():
            raise GrammarError(self.name, reason_of(self.matcher.get_error()))


def reason_of(said: str) -> Message | str:
    """Why a grammar cannot be followed, by what llguidance says: without the grammar itself, which it
    repeats."""
    if said.startswith("NoExtension"):
        return message("no_token_fits")
    if TOO_LARGE.search(said):
        return message("grammar_too_large")
    if "rollback not supported" in said:
        return message("grammar_goes_back")
    named = re.findall(r"^error: (.+)$", said, re.MULTILINE)  # of a regular expression
    lines = [
        line for line in said.splitlines() if not re.match(r"\s*(\d+ \||\^|<non-verbose/>|Enable )", line)
    ]
    return in_short(named[-1] if named else " ".join(lines))


@lru_cache(maxsize=256)
def _why_not(name: str, text: str) -> Message | str | None:
    """Why the text of a field cannot be followed, as a process of its own finds out (grammar_check.py); None
    if it can."""
    command = [sys.executable, "-P", grammar_check.__file__]
    given = {"input": json.dumps([name, text]), "capture_output": True, "text": True}
    try:
        done = subprocess.run(command, **given, timeout=WALL_SECONDS)
    except subprocess.TimeoutExpired:
        return message("grammar_too_large")
    if done.returncode:
        return message("grammar_too_large")
    return reason_of(done.stdout) if done.stdout.strip() else None


class Grammars:
    """Compiles grammars for the tokens of one tokenizer. eos: the tokens that end a text."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase | None, vocab_size: int, eos: frozenset[int]):
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size
        self.eos = eos
        self._tokens: LLTokenizer | None = None  # made when it is first needed: it takes up to a second
        self._kept: dict[tuple[str, str], LLMatcher] = {}  # at the beginning of a text

    def compiled(self, params: Params, prompt_tokens: int = 0) -> Grammar | None:
        """The grammar of these Params, at the beginning of its text; None where they have none. ValueError
        where it cannot be followed."""
        name = field_of_grammar(params)
        if name is None:
            return None
        text = getattr(params, name)
        matcher = self._kept.get((name, text)) or self._matcher(name, text)
        grammar = Grammar(name, matcher.deep_copy(), self.vocab_size, prompt_tokens, self.eos)
        try:
            grammar.after(())
        except GrammarError as error:
            raise ValueError(about(name, "grammar_refused", reason=error.reason)) from None
        self._kept = dict([*self._kept.items(), ((name, text), matcher)][-KEPT:])
        return grammar

    def _matcher(self, name: str, text: str) -> LLMatcher:
        if not isinstance(self.tokenizer, PreTrainedTokenizerFast) or not self.eos:
            raise ValueError(about(name, "grammar_unfit"))
        if (why := _why_not(name, text)) is not None:
            raise ValueError(about(name, "grammar_refused", reason=why))
        if self._tokens is None:
            width = max(self.vocab_size, len(self.tokenizer))
            try:
                self._tokens = from_tokenizer(self.tokenizer, n_vocab=width, eos_token=sorted(self.eos))
            except ValueError as error:
                raise ValueError(about(name, "grammar_unread", reason=in_short(error))) from None
        return LLMatcher(self._tokens, compiled(name, text), log_level=0, limits=LIMITS)
