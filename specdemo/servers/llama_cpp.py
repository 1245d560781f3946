"""llama.cpp's llama-server: a chunk a token, whose timings say how many tokens were drafted and accepted up
to then, so that they tell where a round begins and how long it is."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import AliasChoices, BaseModel, Field, ValidationError

from specdemo.events import ChatMessage, Params
from specdemo.servers.chunks import (
    LONGEST_WORD,
    MOST_ALTERNATIVES,
    MOST_DRAFT,
    Chunk,
    ChunkReader,
    Count,
    DraftTokens,
    LogProb,
    Milliseconds,
    Misread,
    PerRequest,
    Piece,
    Sent,
    Steps,
    Token,
    TokenId,
    Word,
    first_fault,
    probability_of,
)
from specdemo.servers.client import (
    ASK_SECONDS,
    ID_BYTES,
    LONGEST_ANSWER,
    Condition,
    Request,
    Room,
    readable,
)
from specdemo.servers.software import Asked, Looked, Software, chat_of, most_ids, turns_of
from specdemo.words.message import Message, about

RANDOM_SEED = 2**32 - 1  # it takes the seed's last 32 bits, and these for none
LOST = Piece(None, "", None, ())  # it sends no token that ends inside a character
NOTE = "the server tells no p, q and u, and the target's probabilities only where nothing was drafted"


class LlamaCpp(Software):
    name = "llama.cpp"
    tells_rounds = True

    def look(self, context: float | None) -> Looked:
        props = self._props()
        _, _, reader = self.probed()
        assert isinstance(reader, LlamaReader)
        settings = reader.settings
        longest = 0 if settings.kind == "none" else settings.longest
        known = props.default_generation_settings.n_ctx or context or float("inf")
        method = settings.kind and readable(settings.kind)
        return Looked(readable(props.build_info) or None, known, longest, False, method, None, (NOTE,))

    def _props(self) -> "_Props":
        try:
            return _Props.model_validate_json(self.client.optional("/props", seconds=ASK_SECONDS) or "")
        except ValidationError:
            return _Props()

    def request(self, asked: Asked) -> Request:
        params = asked.params
        if params.chat and not asked.ids:
            raise self.client.error("does not tell what its chat template makes of the prompt")
        prompt: Any = list(asked.ids) or asked.prompt
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": prompt,
            "n_predict": asked.most,
            **{name: getattr(params, name) for name in ("temperature", "top_k", "top_p", "min_p", "seed")},
            # In transformers' order, and without what else the server was started with.
            "samplers": ["penalties", "temperature", "top_k", "top_p", "min_p"],
            **{"presence_penalty": 0, "frequency_penalty": 0, "mirostat": 0, "dynatemp_range": 0},
            "stop": list(params.stop),
            **{"stream": True, "return_tokens": True, "timings_per_token": True},
            "n_probs": params.alternatives,
        }
        if params.repetition_penalty is not None:  # else the server takes its own
            # All tokens, but no more: it makes room for so many.
            last = (len(asked.ids) or most_ids(prompt)) + asked.most
            body |= {"repeat_penalty": params.repetition_penalty, "repeat_last_n": last}
        if params.logit_bias:
            body["logit_bias"] = [[token_id, bias] for token_id, bias in params.logit_bias.items()]
        if params.json_schema is not None:
            body["json_schema"] = json.loads(params.json_schema)
        room = Room(asked.most, params.alternatives, most_ids(prompt))
        return Request("/completion", body, room, done=False)

    def reader(self, request: Request) -> ChunkReader:
        return LlamaReader(request.room)

    def prompt_ids(
        self, prompt: str | tuple[ChatMessage, ...], params: Params, is_over: Condition
    ) -> list[int] | None:
        text: Any = prompt
        if params.chat:
            turns = turns_of(prompt, params)
            most = LONGEST_ANSWER + ID_BYTES * most_ids(turns)
            body = {"model": self.model, **chat_of(turns, params)}
            answer = self.client.post("/apply-template", body, is_over, most)
            text = answer.get("prompt") if isinstance(answer, dict) else None
        if not isinstance(text, str):
            return None
        body = {"model": self.model, "content": text, "add_special": True, "parse_special": True}
        return self.told_ids("/tokenize", body, most_ids(text), is_over)

    def faults(self, params: Params, drafts: bool) -> Iterator[Message | str]:
        for name in ("presence_penalty", "frequency_penalty"):
            if getattr(params, name):
                yield about(name, "servers_count_prompt", software=self.name)
        if params.ignore_eos:
            yield about("ignore_eos", "servers_forbid_eos", software=self.name)
        if params.seed is not None and params.seed >= RANDOM_SEED:
            yield about("seed", "servers_seed", software=self.name, most=RANDOM_SEED - 1)
        for name in ("regex", "grammar"):
            if getattr(params, name) is not None:
                yield about(name, "grammar_not_sent")


class _Props(BaseModel):
    class Settings(BaseModel):
        n_ctx: Annotated[int, Field(gt=0, lt=2**31)] | None = None

    build_info: Annotated[str, Field(max_length=LONGEST_WORD)] = ""
    default_generation_settings: Settings = Settings()


class _Settings(BaseModel):
    """What the server says at the end that the request's settings were. Not all of its versions tell the
    most tokens of a draft."""

    kind: Word | None = Field(
        default=None, validation_alias=AliasChoices("speculative.types", "speculative.type")
    )
    longest: DraftTokens | None = Field(default=None, validation_alias="speculative.n_max")


class _Timings(Sent):
    """Up to this token; of the drafts, if there were any."""

    prompt_ms: Milliseconds | None = None
    predicted_ms: Milliseconds | None = None
    predicted_n: Count
    draft_n: Count = 0
    draft_n_accepted: Count = 0


class _Likely(Sent):
    id: TokenId
    token: Token
    logprob: LogProb | None = None


class _Judged(_Likely):
    top_logprobs: Annotated[list[_Likely], Field(max_length=MOST_ALTERNATIVES)] = []

    @property
    def rows(self) -> tuple:
        rows = ((one, probability_of(one.logprob)) for one in self.top_logprobs)
        return tuple((one.id, one.token, None, None, raw, None) for one, raw in rows if raw is not None)


class _Event(Sent):
    content: str
    tokens: Annotated[list[TokenId], Field(max_length=1)]
    stop: bool
    timings: _Timings | None = None
    completion_probabilities: Annotated[list[_Judged], Field(max_length=1)] = []
    stop_type: Word | None = None
    stopping_word: str = ""
    generation_settings: _Settings = _Settings()


@dataclass
class _Open:
    """A round whose tokens have not all come. drafted: None where it is not told."""

    drafted: int | None
    accepted: int
    pieces: list[Piece] = field(default_factory=list)

    @property
    def missing(self) -> int:
        return self.accepted + 1 - len(self.pieces)

    @property
    def chunk(self) -> Chunk:
        return Chunk(tuple(self.pieces), None, None, None, None, self.drafted, self.accepted)


class LlamaReader(ChunkReader):
    """settings: what the server says at the end that they were."""

    def __init__(self, room: Room):
        super().__init__(room)
        self.seen = _Timings(predicted_n=0)
        self.open: _Open | None = None
        self.judged: list[_Open] = []  # rounds with a draft
        self.all_told = True  # whether those are all
        self.settings = _Settings()

    def chunks(self, event: dict[str, Any]) -> list[Chunk]:
        try:
            read = _Event.model_validate(event)
        except ValidationError as error:
            raise Misread(f"sent a chunk that llama.cpp would not send: {first_fault(error)}") from None
        if not read.tokens and not read.stop:
            return []
        if read.timings is None:
            raise Misread("sends tokens without their timings, which tell the rounds of llama.cpp")
        chunks = self._added(read.timings, [self._piece(read)] if read.tokens else [])
        if not read.stop:
            return chunks
        self.settings = read.generation_settings
        if self.open is not None:  # the end of the text has cut it
            chunks.append(self.open.chunk)
        finish = {"limit": "length", "eos": "stop", "word": "stop"}.get(read.stop_type or "", read.stop_type)
        stop = read.stopping_word if read.stop_type == "word" else None
        return [*chunks, Chunk((), finish or "unknown", stop, None, self._told(read.timings))]

    def _piece(self, read: _Event) -> Piece:
        judged = read.completion_probabilities[0] if read.completion_probabilities else None
        if judged and judged.id != read.tokens[0]:
            raise Misread("sent the probability of another token than the one that it sent")
        raw = probability_of(judged.logprob) if judged else None
        return Piece(read.tokens[0], read.content, raw, judged.rows if judged else ())

    def _added(self, now: _Timings, own: list[Piece]) -> list[Chunk]:
        """The rounds that are whole now. own: the token that was sent, if one was; those before it that were
        not sent have been counted, too. Behind a round they are the first ones of the next, if it has
        accepted so many; else those are several rounds, and what was drafted in each is not told."""
        before, self.seen = self.seen, now
        new = now.predicted_n - before.predicted_n
        drafted = now.draft_n - before.draft_n
        accepted = now.draft_n_accepted - before.draft_n_accepted
        if now.predicted_n > self.room.tokens:
            raise Misread("does not end its answer: it has sent more tokens than was asked for")
        is_sound = 0 <= accepted <= drafted <= MOST_DRAFT and new >= max(len(own), bool(drafted))
        if not is_sound:
            said = f"{now.predicted_n:,} tokens, {now.draft_n:,} drafted, {now.draft_n_accepted:,} accepted"
            raise Misread(f"counts {said}, which cannot follow what it has counted before")
        lost, chunks = [LOST] * (new - len(own)), []
        if self.open is not None:
            at = min(len(lost), self.open.missing)
            self.open.pieces += lost[:at]
            lost = lost[at:]
            chunks += self._closed()
        if drafted and self.open is not None:
            raise Misread("counts another draft before all tokens of the last one have come")
        alone = max(0, len(lost) - accepted) if self.open is None else 0
        known = None if alone and drafted else drafted
        chunks += [_Open(known, 0, [piece]).chunk for piece in lost[:alone]]
        self.all_told = self.all_told and known is not None
        if pieces := [*lost[alone:], *own]:
            if self.open is None:
                self.open = _Open(known, accepted)
                self.judged += [self.open] if known else []
            self.open.pieces += pieces
            chunks += self._closed()
        return chunks

    def _closed(self) -> list[Chunk]:
        """The round that is open if it is whole."""
        if self.open is None or self.open.missing > 0:
            return []
        whole, self.open = self.open, None
        return [whole.chunk]

    def _told(self, timings: _Timings) -> PerRequest:
        steps = Steps(
            num_spec_tokens=max((one.drafted or 0 for one in self.judged), default=0),
            num_spec_steps=len(self.judged) if self.all_told else None,
            num_draft_tokens=timings.draft_n,
            num_accepted_draft_tokens=timings.draft_n_accepted,
            per_step_accepted=[one.accepted for one in self.judged] if self.all_told else None,
        )
        return PerRequest(
            time_to_first_token_ms=timings.prompt_ms,
            generation_time_ms=timings.predicted_ms,
            speculative_decoding=steps,
        )
