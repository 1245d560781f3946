"""What a streamed chunk holds: the tokens of one round, in either of the two APIs."""

from dataclasses import dataclass
from math import exp
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from specdemo.events import LIMITS, TOKEN_IDS, Alternative
from specdemo.vllm.client import LONGEST_TOKEN, SAID, Room

LONGEST_WORD = 100  # characters: why a text ended, a version, a method
MOST_DRAFT = 1_000  # tokens of one draft: vLLM sets no limit, but those in use have 1 to 30
MOST_ALTERNATIVES = int(LIMITS["alternatives"].largest) + 1  # with the token itself
MOST_STEPS = int(LIMITS["max_new_tokens"].largest)  # each judged draft adds a token at least
MOST_OF_A_RUN = 10**9  # tokens or ms that a server tells of one request: eleven days
MOST_LOGPROB = 0.01  # 0, and what rounding adds
UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # a token whose character the next one completes


class Misread(Exception):
    """A chunk is not what vLLM sends. The words go on after "the server at ADDRESS"."""


class Merged(Misread):
    """A chunk holds several rounds: the server, or a proxy, was late when it sent it."""


@dataclass(frozen=True)
class Piece:
    """A token. text: its part of the answer's text. probability: under the target, at temperature 1 and
    unfiltered; None where the server has not sent it. top: the likeliest tokens, of which the server tells
    the texts, and no ids but that of this token."""

    id: int
    text: str
    probability: float | None
    top: tuple[Alternative, ...]


@dataclass(frozen=True)
class Chunk:
    """What a chunk says. pieces: empty in a chunk that only says something else. finish: why the text ends
    here, in the server's word. prompt_ids: what the server has made of the prompt, once. told: what the
    server tells of the request at the very end, if it does."""

    pieces: tuple[Piece, ...]
    finish: str | None
    stop: int | str | None
    prompt_ids: tuple[int, ...] | None
    told: "PerRequest | None" = None


TokenId = Annotated[int, Field(ge=0, lt=TOKEN_IDS)]
OF_TOKENS = Field(max_length=MOST_DRAFT + 1)  # a list with an entry for each of a chunk's tokens
Token = Annotated[str, Field(max_length=LONGEST_TOKEN)]
Word = Annotated[str, Field(max_length=LONGEST_WORD)]
LogProb = Annotated[float, Field(le=MOST_LOGPROB)]
Count = Annotated[int, Field(ge=0, le=MOST_OF_A_RUN)]
Milliseconds = Annotated[float, Field(ge=0, le=MOST_OF_A_RUN)]
DraftTokens = Annotated[int, Field(ge=0, le=MOST_DRAFT)]
PerStep = Annotated[list[DraftTokens], Field(max_length=MOST_STEPS)]


class _Sent(BaseModel):
    model_config = ConfigDict(allow_inf_nan=False)  # JSON has neither, but its parser takes both


class _Likely(_Sent):
    token: Token
    logprob: LogProb | None = None


class _Judged(_Likely):
    top_logprobs: Annotated[list[_Likely], Field(max_length=MOST_ALTERNATIVES)] = []


Top = Annotated[dict[Token, LogProb], Field(max_length=MOST_ALTERNATIVES)]


class _Logprobs(_Sent):
    """The log probabilities of a chunk's tokens. A completion has lists by token, a chat has `content` with
    an entry for each token."""

    tokens: Annotated[list[Token], OF_TOKENS] = []
    token_logprobs: Annotated[list[LogProb | None], OF_TOKENS] = []
    top_logprobs: Annotated[list[Top | None], OF_TOKENS] | None = None
    content: Annotated[list[_Judged], OF_TOKENS] | None = None

    def judged(self) -> list[_Judged]:
        if self.content is not None:
            return self.content
        tops = self.top_logprobs or [None] * len(self.tokens)
        likely = [[_Likely(token=text, logprob=of) for text, of in (top or {}).items()] for top in tops]
        rows = zip(self.tokens, self.token_logprobs, likely, strict=True)
        return [_Judged(token=token, logprob=own, top_logprobs=top) for token, own, top in rows]


class _Delta(_Sent):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class _Choice(_Sent):
    text: str = ""
    delta: _Delta = _Delta()
    logprobs: _Logprobs | None = None
    token_ids: Annotated[list[TokenId], OF_TOKENS] | None = None
    prompt_token_ids: list[TokenId] | None = None
    finish_reason: Word | None = None
    stop_reason: int | str | None = None

    @property
    def words(self) -> str:
        thought = self.delta.reasoning or self.delta.reasoning_content or ""
        return self.text + thought + (self.delta.content or "")


class Steps(_Sent):
    """What the server tells of one request's drafts after its end, if it was started with
    --per-request-spec-decode-metrics. num_spec_tokens: the most tokens of a draft. per_step_*: for each
    forward that judged a draft, at the level "detailed"."""

    num_spec_tokens: DraftTokens
    num_spec_steps: Count
    num_draft_tokens: Count
    num_accepted_draft_tokens: Count
    per_step_accepted: PerStep | None = None
    per_step_drafted: PerStep | None = None

    @property
    def totals(self) -> tuple[int, int, int]:
        """Drafts, and tokens that were drafted and accepted."""
        return self.num_spec_steps, self.num_draft_tokens, self.num_accepted_draft_tokens


class PerRequest(_Sent):
    """What the server tells of one request after its end; the times with --enable-per-request-metrics:
    waiting, from then to the first token, and from there to the last."""

    queue_time_ms: Milliseconds | None = None
    time_to_first_token_ms: Milliseconds | None = None
    generation_time_ms: Milliseconds | None = None
    speculative_decoding: Steps | None = None

    @property
    def steps(self) -> Steps | None:
        return self.speculative_decoding


class _Event(_Sent):
    choices: Annotated[list[_Choice], Field(max_length=1)]  # one is asked for
    prompt_token_ids: list[TokenId] | None = None
    metrics: PerRequest | None = None


def chunk_of(event: dict[str, Any]) -> Chunk:
    """Misread if it is no chunk of a completion or of a chat."""
    try:
        read = _Event.model_validate(event)
        choice = read.choices[0] if read.choices else _Choice()
        judged = choice.logprobs.judged() if choice.logprobs else []
    except ValidationError as error:
        raise Misread(f"sent a chunk that vLLM would not send: {first_fault(error)}") from None
    except ValueError:  # of zip
        raise Misread("sent a chunk whose tokens and log-probabilities differ in number") from None
    ids = choice.token_ids or []
    if choice.words and choice.token_ids is None:
        raise Misread("sends text without the ids of its tokens: vLLM sends them from 0.10.2 on")
    if judged and len(judged) != len(ids):
        raise Misread("sent a chunk whose tokens and log-probabilities differ in number")
    if len(choice.words) > LONGEST_TOKEN * max(1, len(ids)):
        raise Misread(f"sent {len(choice.words):,} characters as the text of a chunk of {len(ids)} tokens")
    texts = texts_of(choice.words, [one.token for one in judged] or [UNFINISHED] * len(ids))
    rows = zip(ids, texts, judged or [_Judged(token="")] * len(ids), strict=True)
    pieces = tuple(Piece(id_, text, _probability(one), _top(id_, one)) for id_, text, one in rows)
    prompt_ids = choice.prompt_token_ids or read.prompt_token_ids
    prompt_ids = None if prompt_ids is None else tuple(prompt_ids)
    return Chunk(pieces, choice.finish_reason, choice.stop_reason, prompt_ids, read.metrics)


def first_fault(error: ValidationError) -> str:
    """The first place that is wrong, and how."""
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc']))[:SAID]}: {first['msg']}"


class ChunkReader:
    """Reads the chunks of one answer, and counts them against what was asked for."""

    def __init__(self, room: Room):
        self.room, self.tokens, self.characters = room, 0, 0

    def read(self, event: dict[str, Any]) -> Chunk:
        """Misread if it is no chunk, or one too many."""
        chunk = chunk_of(event)
        self.tokens += len(chunk.pieces)
        self.characters += sum(len(piece.text) for piece in chunk.pieces)
        if self.tokens > self.room.tokens:
            raise Misread("does not end its answer: it has sent more tokens than was asked for")
        if self.characters > self.room.text:
            raise Misread(f"sent {self.characters:,} characters as the text of {self.tokens} tokens")
        if chunk.prompt_ids and len(chunk.prompt_ids) > self.room.prompt_ids:
            raise Misread(f"says that the prompt has {len(chunk.prompt_ids):,} tokens, which it cannot have")
        return chunk


def _probability(likely: _Likely) -> float | None:
    return None if likely.logprob is None else exp(min(likely.logprob, 0.0))


def _top(token_id: int, judged: _Judged) -> tuple[Alternative, ...]:
    rows: list[Alternative] = []
    for one in judged.top_logprobs:
        is_own = one.token == judged.token and one.logprob == judged.logprob
        if (probability := _probability(one)) is not None:
            rows.append((token_id if is_own else None, one.token, None, None, probability, None))
    return tuple(rows)


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
