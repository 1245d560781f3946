"""From a verdict to the round that everybody reads: fates, text pieces, times, and where the text ends."""

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cache, partial

import torch
from transformers import PreTrainedTokenizerBase

from specdemo.engine.draft import Draft
from specdemo.engine.grammar import Allowed
from specdemo.engine.step import ALTERNATIVES, DRAFTED, NEXT, Verified
from specdemo.events import (
    RULES,
    Alternative,
    EndedBy,
    Fate,
    Finish,
    Judged,
    JudgedInTree,
    Next,
    Round,
    Source,
)
from specdemo.runtime.cuda import CPU, Clock, Timestamp
from specdemo.runtime.steps import Packed

INCOMPLETE = "\N{REPLACEMENT CHARACTER}"  # decoders write it for bytes that are no character (yet)
LONGEST_INCOMPLETE = 16  # tokens without a complete character in the window
LONGEST_CHARACTER = 4  # bytes of the longest character, so that it cannot reach over as many tokens
AS_TEXT = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}  # how ids are decoded


class Pieces:
    """Gives what each token adds to the text, such that the pieces join to the decoded whole.

    A character split over tokens belongs to the token that completes it; special tokens add nothing. It
    decodes a window that starts at a finished token, and takes what is new in it. That is right for every
    kind of tokenizer (byte-level, sentencepiece with its swallowed first space, word pieces), except for
    bytes that never become a character in a tokenizer that decodes such runs anew each time (byte fallback).
    The window stays short, whatever the tokens. Without a tokenizer every piece is empty."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase | None):
        self.tokenizer = tokenizer
        self.window: list[int] = []  # the last finished tokens, and what followed them
        self.finished = 0  # how many tokens of the window are finished
        self.last_finished = 0  # how many of them were finished one piece before
        self.whole = ""  # the window's text
        self.given = ""  # what of it has been given out

    def push(self, token_id: int) -> str:
        """Takes the next token, and gives its piece."""
        if self.tokenizer is None:
            return ""
        window = [*self.window, token_id]
        whole = self._decode(window)
        if whole == self.whole and self._adds_nothing(token_id):
            return ""  # in the window such tokens would add up
        self.window, self.whole = window, whole
        text = whole.rstrip(INCOMPLETE)
        piece = text[len(self.given) :]
        self.given += piece
        if whole == text:  # no incomplete character at the end: a later window may start here
            self._shorten()
        elif len(window) - self.finished > LONGEST_INCOMPLETE:
            piece += self._drop_middle()
        return piece

    def _adds_nothing(self, token_id: int) -> bool:
        """Says whether the decoder leaves the token out, wherever it stands (a special token, or an id
        without a token). Spaces are tried twice, since a decoder can swallow the first one."""
        start = self.window[: self.finished]
        without, between = self._decode([*start, *start]), [*start, token_id, token_id, *start]
        return self._decode(between) == without

    def _shorten(self) -> None:
        """Starts the window at its last finished tokens. They must have a text, since a decoder keeps a first
        space only after other text."""
        for start in (self.finished, self.last_finished):
            if text := self._decode(self.window[start:]):
                self.last_finished = max(0, self.finished - start)
                self.window, self.whole, self.given = self.window[start:], text, text
                break
        else:
            self.last_finished = self.finished
        self.finished = len(self.window)

    def _drop_middle(self) -> str:
        """Shortens a window that ends with many incomplete characters, and gives them out but for the last
        one, since only that one can be completed. The first ones stay: where one broken byte breaks all next
        to it, they do that."""
        rest = self.whole[len(self.given) : -1]
        self.window = self.window[: self.finished + LONGEST_CHARACTER] + self.window[-2 * LONGEST_CHARACTER :]
        self.whole = self._decode(self.window)
        self.given = self.whole[:-1]
        return rest

    def flush(self) -> str:
        """Gives what remains at the end of the text: incomplete characters that nothing will complete."""
        if self.tokenizer is None:
            return ""
        return self.whole[len(self.given) :]

    def preview(self, token_id: int) -> tuple[str, "Pieces"]:
        """Gives the piece of this token if the text ended with it, and the pieces after it, without pushing
        it here. An incomplete character is U+FFFD."""
        fork = copy(self)
        return fork.push(token_id) + fork.flush(), fork

    def of(self, token_ids: Iterable[int]) -> list[str]:
        """Gives the pieces of these tokens if the text ended with them, without pushing them here."""
        fork = copy(self)
        pieces = list(map(fork.push, token_ids))
        return [*pieces[:-1], *(piece + fork.flush() for piece in pieces[-1:])]

    def _decode(self, token_ids: list[int]) -> str:
        assert self.tokenizer is not None
        return str(self.tokenizer.decode(token_ids, **AS_TEXT))


def token_texts(tokenizer: PreTrainedTokenizerBase | None) -> Callable[[int], str]:
    """Gives a token's text after some other token, cached. Empty without a tokenizer."""
    if tokenizer is None or not (first := tokenizer("a", add_special_tokens=False).input_ids[:1]):
        return lambda token_id: ""
    before = len(tokenizer.decode(first, **AS_TEXT))
    return cache(lambda token_id: str(tokenizer.decode([*first, token_id], **AS_TEXT))[before:])


@dataclass
class StopCriteria:
    """Takes each emitted token, in order, and says whether the text ends with it, and why: eos before stop
    before length.

    eos: ids that end a text. stops: strings that end it. room: how many tokens the text may still get, at
    least 1. stop_ids: the ids of special tokens that are stop strings: they add nothing to the text, so that
    no string is found there."""

    eos: frozenset[int]
    stops: tuple[str, ...]
    room: float
    stop_ids: frozenset[int] = frozenset()
    finish: Finish | None = None
    tail = ""  # the last characters, as many as a stop string that began before this token can need

    def add(self, token_id: int, piece: str) -> Finish | None:
        self.room -= 1
        self.tail = self.tail[-max(map(len, self.stops), default=1) :] + piece
        if token_id in self.eos:
            self.finish = "eos"
        elif token_id in self.stop_ids or any(stop in self.tail for stop in self.stops):
            self.finish = "stop"
        elif self.room == 0:
            self.finish = "length"
        return self.finish


class Stopwatch:
    """The timestamps of one round, by the names of what begins or has ended there."""

    def __init__(self, clock: Clock):
        self.clock = clock
        self.at: dict[str, Timestamp] = {}
        self.mark("round")

    def mark(self, name: str, device: torch.device = CPU) -> None:
        self.at[name] = self.clock.timestamp(device)

    def ms(self, start: str, end: str) -> float:
        return self.clock.ms_between(self.at[start], self.at[end])

    def timed(self, one: Round, is_last: bool) -> Round:
        """Gives the round, which is written now, its times. is_last: whether nothing has been launched since;
        else the time of writing is in the next round's."""
        self.mark("written")
        ms = self.ms("round", "judged") + (self.ms("write", "written") if is_last else 0.0)
        ms = max(ms, self.ms("draft", "verified"))  # the device may have worked while the consumer did
        draft_ms = self.ms("draft", "verify")
        return replace(one, draft_ms=draft_ms, verify_ms=ms - draft_ms)

    def leave_out_consumer(self) -> None:
        """Leaves out, of rounds that have been launched, the time since this one was written."""
        self.clock.leave_out(self.at["written"])


@dataclass(frozen=True)
class Launched:
    """A round that the device has been given. gamma: the longest draft allowed. is_paused: whether nothing is
    drafted for a while. k: how many tokens were asked for. allowed: what the grammar allows; None without
    one. fed_again, target_forwards: those of Round."""

    index: int
    gamma: int
    is_paused: bool
    k: int
    draft: Draft
    allowed: Allowed | None
    verified: Packed  # a Verified
    fed_again: int | None
    target_forwards: int
    watch: Stopwatch


@dataclass(frozen=True)
class Emitter:
    """Turns verdicts into rounds. pieces: the text so far, token by token. token_text: a token's text out of
    context, for the alternatives. rule: the name of the rule that judged. is_lossy: whether its distance from
    the target is recorded."""

    pieces: Pieces
    token_text: Callable[[int], str]
    stop: StopCriteria
    rule: str = "speculative"
    is_lossy: bool = False

    def is_end(self, emitted: Sequence[int]) -> bool:
        """Says whether the text is known to end with or within these tokens. A stop string can still end it
        where this is false."""
        end_ids = self.stop.eos | self.stop.stop_ids
        return self.stop.room <= len(emitted) or not end_ids.isdisjoint(emitted)

    def emit(self, launched: Launched, verdict: Verified) -> Round:
        """Makes the round, but for its times; `stop.finish` then says whether the text has ended."""
        drafts, drafted, parents = verdict.drafts, verdict.drafted, verdict.parents
        states = {-1: copy(self.pieces)}  # of the text up to each token, by its number
        texts, kept = dict[int, str](), list[int]()
        for number in verdict.path:
            texts[number] = self._push(drafted[number])
            states[number] = copy(self.pieces)
            kept.append(number)
            if self.stop.finish:
                break
        for number in drafts:  # what is rejected or discarded has the text that it would have added
            if number not in texts:
                before = states[parents[number]]
                texts[number], states[number] = before.preview(drafted[number])

        events = _RoundEvents(verdict, self, launched.allowed)
        # In a tree nothing is rejected after the end of the text.
        reached = {-1, *(kept[:-1] if self.stop.finish and verdict.is_tree else verdict.path)}
        draft = []
        for number in drafts:
            rejected = number in verdict.rejected and parents[number] in reached
            fate: Fate = "accepted" if number in kept else "rejected" if rejected else "discarded"
            draft.append(events.judged(number, texts[number], fate))
        emitted, next_token = [drafted[number] for number in kept], None
        if not self.stop.finish:
            emitted.append(verdict.next_id)
            next_token = events.next(self._push(verdict.next_id))
        return Round(
            index=launched.index,
            draft=tuple(draft),
            next=next_token,
            emitted=tuple(emitted),
            draft_ms=None,
            verify_ms=None,
            gamma=launched.gamma,
            ended_by=self._ended_by(launched, int(verdict.k), draft),
            fed_again=launched.fed_again,
            target_forwards=launched.target_forwards,
        )

    def _push(self, token_id: int) -> str:
        """Gives the text of the next token. One that ends the text is no part of it, even if it is an
        ordinary token."""
        piece = "" if token_id in self.stop.eos else self.pieces.push(token_id)
        return piece + (self.pieces.flush() if self.stop.add(token_id, piece) else "")

    def _ended_by(self, launched: Launched, kept: int, draft: Sequence[Judged]) -> EndedBy | None:
        """Says why a draft is no longer. kept: how many of its tokens the drafter was sure enough of."""
        made, eos = launched.draft, self.stop.eos
        if launched.gamma == 0:
            return "pause" if launched.is_paused else None
        if draft and draft[-1].forbidden:
            return "grammar"
        is_whole = made.parents is not None and len(draft) == kept
        if not is_whole and any(one.id in eos for one in draft):
            return "eos"
        if len(draft) < kept:  # the others of a tree were too deep
            return "length"
        if kept < made.k or made.dropped:
            return "confidence"
        if made.k < launched.k:
            return "drafter"
        return "length" if launched.k < launched.gamma else "gamma"


@dataclass(frozen=True)
class _RoundEvents:
    """Makes the events of a verdict."""

    verdict: Verified
    emitter: Emitter
    allowed: Allowed | None

    def judged(self, i: int, text: str, fate: Fate) -> Judged:
        verdict = self.verdict
        was_judged = verdict.judged[i] or RULES[self.emitter.rule].judges_whole_draft
        kind: Callable[..., Judged] = Judged
        if verdict.is_tree:
            parent = None if (parent := verdict.parents[i]) < 0 else verdict.drafts.index(parent)
            mass = verdict.masses[i] if i in verdict.rejected else None
            kind = partial(JudgedInTree, parent=parent, residual_mass=mass)
        u, accept_prob = (verdict.u_accept[i], verdict.accept_prob[i]) if was_judged else (None, None)
        distance = verdict.distance[i] if was_judged and self.emitter.is_lossy else None
        return kind(
            id=verdict.token_ids[i][DRAFTED],
            text=text,
            **verdict.at(i, DRAFTED),
            u=u,
            accept_prob=accept_prob,
            fate=fate,
            top=self.top(i),
            distance=distance,
            allowed=self.count(i),
            forbidden=self.is_forbidden(i),
        )

    def count(self, i: int) -> int | None:
        """Counts the tokens that the grammar allows at position i; None without one."""
        return None if self.allowed is None else self.allowed.counts[i]

    def is_forbidden(self, i: int) -> bool:
        return self.allowed is not None and not self.allowed.masks[i, self.verdict.token_ids[i][DRAFTED]]

    def next(self, text: str) -> Next:
        verdict, i = self.verdict, self.verdict.refused
        source: Source = "resampled" if i in verdict.drafts else "bonus" if verdict.drafts else "sampled"
        return Next(
            id=verdict.next_id,
            text=text,
            source=source,
            **verdict.at(i, NEXT),
            u=verdict.u_next,
            residual_mass=verdict.residual_mass if source == "resampled" else None,
            top=self.top(i),
            allowed=self.count(i),
        )

    def top(self, i: int) -> tuple[Alternative, ...]:
        """Gives the alternatives at position i."""
        ids, numbers = self.verdict.token_ids[i][ALTERNATIVES], self.verdict.at(i, ALTERNATIVES)
        columns = (numbers[name] or [None] * len(ids) for name in ("p", "q", "raw_p", "raw_q"))
        return tuple(zip(ids, map(self.emitter.token_text, ids), *columns, strict=True))
