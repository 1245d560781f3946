"""What a server's answer holds: the tokens of its rounds, whichever server sends them."""

from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass
from math import exp
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from specdemo.events import LIMITS, TOKEN_IDS, Alternative
from specdemo.servers.client import LONGEST_TOKEN, SAID, Room

LONGEST_WORD = 100  # characters: why a text ended, a version, a method
MOST_DRAFT = 1_000  # tokens of one draft: servers set no limit, but those in use have 1 to 30
MOST_ALTERNATIVES = int(LIMITS["alternatives"].largest) + 1  # with the token itself
MOST_STEPS = int(LIMITS["max_new_tokens"].largest)  # each judged draft adds a token at least
MOST_OF_A_RUN = 10**9  # tokens or ms that a server tells of one request: eleven days
MOST_LOGPROB = 0.01  # 0, and what rounding adds
MOST_SUM = 1.02  # of the probabilities at one place: 1, and what rounding each of them to bfloat16 adds
UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # a token whose character the next one completes


class Misread(Exception):
    """A chunk is not what such a server sends. The words go on after "the server at ADDRESS"."""


class Merged(Misread):
    """A chunk holds several rounds: the server, or a proxy, was late when it sent it."""


@dataclass(frozen=True)
class Piece:
    """A token. text: its part of the answer's text. probability: under the target, at temperature 1 and
    unfiltered; None where the server has not sent it. top: the likeliest tokens, of which the server tells
    the texts, and no ids but that of this token. id: None where the server does not send it: llama.cpp has
    one id for a character of several tokens."""

    id: int | None
    text: str
    probability: float | None
    top: tuple[Alternative, ...]

    @property
    def sum(self) -> float:
        """Of the probabilities of different tokens that are told here."""
        is_in_top = any(token_id == self.id for token_id, *_ in self.top)
        own = 0.0 if is_in_top or self.probability is None else self.probability
        return own + sum(raw for *_, raw, _ in self.top)


@dataclass(frozen=True)
class Chunk:
    """What a chunk says. pieces: empty in a chunk that only says something else. finish: why the text ends
    here, in the server's word. prompt_ids: what the server has made of the prompt, once. told: what the
    server tells of the request at the very end, if it does. accepted: how many tokens were in this round,
    where the server tells it with the round; drafted: how many tokens were then, if it tells that, too."""

    pieces: tuple[Piece, ...]
    finish: str | None
    stop: int | str | None
    prompt_ids: tuple[int, ...] | None
    told: "PerRequest | None" = None
    drafted: int | None = None
    accepted: int | None = None


TokenId = Annotated[int, Field(ge=0, lt=TOKEN_IDS)]
OF_TOKENS = Field(max_length=MOST_DRAFT + 1)  # a list with an entry for each of a chunk's tokens
Token = Annotated[str, Field(max_length=LONGEST_TOKEN)]
Word = Annotated[str, Field(max_length=LONGEST_WORD)]
LogProb = Annotated[float, Field(le=MOST_LOGPROB)]
Count = Annotated[int, Field(ge=0, le=MOST_OF_A_RUN)]
Milliseconds = Annotated[float, Field(ge=0, le=MOST_OF_A_RUN)]
DraftTokens = Annotated[int, Field(ge=0, le=MOST_DRAFT)]
PerStep = Annotated[list[DraftTokens], Field(max_length=MOST_STEPS)]


class Sent(BaseModel):
    model_config = ConfigDict(allow_inf_nan=False)  # JSON has neither, but its parser takes both


class Steps(Sent):
    """What the server tells of one request's drafts after its end, if it was started with
    --per-request-spec-decode-metrics. num_spec_tokens: the most tokens of a draft. per_step_*: for each
    forward that judged a draft, at the level "detailed"."""

    num_spec_tokens: DraftTokens
    num_spec_steps: Count | None  # None: not told
    num_draft_tokens: Count
    num_accepted_draft_tokens: Count
    per_step_accepted: PerStep | None = None
    per_step_drafted: PerStep | None = None

    @property
    def by_place(self) -> tuple[int, ...]:
        """How many drafts were accepted up to each place and beyond; empty where that is not told."""
        accepted = Counter(self.per_step_accepted or []).items()  # (how many, in how many drafts)
        places = range(self.num_spec_tokens if accepted else 0)
        return tuple(sum(times for n, times in accepted if n > place) for place in places)

    @property
    def totals(self) -> tuple[int | None, int, int]:
        """Drafts, and tokens that were drafted and accepted."""
        return self.num_spec_steps, self.num_draft_tokens, self.num_accepted_draft_tokens


class PerRequest(Sent):
    """What the server tells of one request after its end; of vLLM the times with
    --enable-per-request-metrics: waiting, from then to the first token, and from there to the last."""

    queue_time_ms: Milliseconds | None = None
    time_to_first_token_ms: Milliseconds | None = None
    generation_time_ms: Milliseconds | None = None
    speculative_decoding: Steps | None = None

    @property
    def times(self) -> tuple[float | None, ...]:
        """ms of waiting, reading the prompt, generating, and all together."""
        parts = (self.queue_time_ms, self.time_to_first_token_ms, self.generation_time_ms)
        known = [part for part in parts if part is not None]
        return (*parts, sum(known) if len(known) == len(parts) else None)

    @property
    def steps(self) -> Steps | None:
        return self.speculative_decoding


def first_fault(error: ValidationError) -> str:
    """The first place that is wrong, and how."""
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc']))[:SAID]}: {first['msg']}"


class ChunkReader(ABC):
    """Reads the events of one answer, and counts them against what was asked for. is_sound: whether the
    server's numbers can be probabilities: those at each place add up to 1 at most, as log-probabilities of 0
    do not."""

    def __init__(self, room: Room):
        self.room, self.tokens, self.characters = room, 0, 0
        self.is_sound = True

    @abstractmethod
    def chunks(self, event: dict[str, Any]) -> list[Chunk]:
        """What an event says. Misread if it is none of this server's."""

    def read(self, event: dict[str, Any]) -> list[Chunk]:
        """What an event says: a chunk for each round that it completes, and one more where it says something
        else. Misread if it is none of this server's, or one too many."""
        chunks = self.chunks(event)
        for chunk in chunks:
            self.tokens += len(chunk.pieces)
            self.characters += sum(len(piece.text) for piece in chunk.pieces)
            if self.tokens > self.room.tokens:
                raise Misread("does not end its answer: it has sent more tokens than was asked for")
            if self.characters > self.room.text:
                raise Misread(f"sent {self.characters:,} characters as the text of {self.tokens} tokens")
            if chunk.prompt_ids and len(chunk.prompt_ids) > self.room.prompt_ids:
                said = f"{len(chunk.prompt_ids):,} tokens, which it cannot have"
                raise Misread(f"says that the prompt has {said}")
            self.is_sound = self.is_sound and all(piece.sum <= MOST_SUM for piece in chunk.pieces)
        return chunks


def probability_of(logprob: float | None) -> float | None:
    return None if logprob is None else exp(min(logprob, 0.0))


def texts_of(text: str, words: list[str]) -> list[str]:
    """The part of a chunk's text that each of its tokens has. words: the tokens as the server names them. A
    name can have an incomplete character, or be that of a special token, which has no text: what is left over
    before the next known word belongs to the token in front of that word."""
    texts, at = [""] * len(words), 0
    for place, word in enumerate(words):
        found = text.find(word, at) if word and UNFINISHED not in word else -1
        if found < 0 or (found > at and place == 0):
            continue
        if found > at:
            if texts[place - 1]:
                continue  # the word is found by chance, farther on
            texts[place - 1] = text[at:found]
        texts[place] = word
        at = found + len(word)
    if words:
        texts[-1] += text[at:]
    return texts
