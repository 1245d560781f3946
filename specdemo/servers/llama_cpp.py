"""llama.cpp: a chunk a token, with how many were drafted and accepted up to then, which shows the rounds."""

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, AliasPath, BaseModel, Field, ValidationError

from specdemo.events import Finish, Judged, Params
from specdemo.events.params import turns_of
from specdemo.servers import software
from specdemo.servers.client import Body, Condition, Request, never, readable
from specdemo.servers.software import Answer, Chunk, Misread, Sent, ServedPair, TokenWithTop, token
from specdemo.words.message import Message, about

NOTE = "the server tells no p, q and u, and the target's probabilities only where nothing was drafted"
RANDOM_SEED = 2**32 - 1  # it takes the seed's last 32 bits, and these for none
LOST = token(None, "")  # it sends no token that ends inside a character
FINISH: dict[str, Finish] = {"limit": "length", "eos": "eos", "word": "stop"}  # by stop_type
KINDS = ("speculative.types", "speculative.type")
CONTEXT = AliasPath("default_generation_settings", "n_ctx")


class _Props(BaseModel):
    build_info: software.Word = ""
    n_ctx: software.Context | None = Field(None, validation_alias=CONTEXT)


class _Settings(BaseModel):
    """As the server says at the end. Not all of its versions tell the most tokens of a draft."""

    kind: software.Word | None = Field(None, validation_alias=AliasChoices(*KINDS))
    longest: software.DraftTokens | None = Field(None, validation_alias="speculative.n_max")


class _Timings(Sent):
    """Up to this token; of the drafts, if there were any."""

    predicted_n: software.Count
    draft_n: software.Count = 0
    draft_n_accepted: software.Count = 0


class _LlamaEvent(Sent):
    content: str
    tokens: Annotated[list[software.TokenId], Field(max_length=1)]
    stop: bool
    timings: _Timings | None = None
    completion_probabilities: Annotated[list[TokenWithTop], Field(max_length=1)] = []
    stop_type: Literal["limit", "eos", "word"] | None = None
    generation_settings: _Settings = _Settings()


class LlamaAnswer(Answer):
    """settings: what the server says at the end that they were."""

    def __init__(self, pair: ServedPair, request: Request, is_over: Condition = never):
        super().__init__(pair, request)
        self.counted, self.settings = _Timings(predicted_n=0), _Settings()
        self.open: Chunk | None = None  # a round whose tokens have not all come

    def chunks_of(self, event: Body) -> list[Chunk]:
        read = _LlamaEvent.model_validate(event)
        if not read.tokens and not read.stop:
            return []
        if read.timings is None:
            raise Misread("sends tokens without their timings, which tell the rounds of llama.cpp")
        self.count(read.timings.predicted_n - self.counted.predicted_n, len(read.content))
        chunks = self._whole(read.timings, [self._token(read)] if read.tokens else [])
        if not read.stop:
            return chunks
        if self.open is not None:  # the end of the text has cut it
            chunks.append(self.open)
        self.settings = read.generation_settings
        if read.stop_type is None:
            raise Misread("does not tell why its text ends")
        return [*chunks, Chunk(finish=FINISH[read.stop_type])]

    def _token(self, event: _LlamaEvent) -> Judged:
        if not event.completion_probabilities:
            return token(event.tokens[0], event.content)
        placed = event.completion_probabilities[0]
        if placed.id != event.tokens[0]:
            raise Misread("sent the probability of another token than the one that it sent")
        return placed.judged(event.tokens[0], event.content)

    def _whole(self, now: _Timings, sent: list[Judged]) -> list[Chunk]:
        """The rounds that are whole now. sent: the token that was sent, if one was; those before it that were
        not sent have been counted, too. Behind a round they are the first ones of the next, if it has
        accepted so many; else those are several rounds, and what was drafted in each is not told."""
        before, self.counted = self.counted, now
        new = now.predicted_n - before.predicted_n
        drafted = now.draft_n - before.draft_n
        accepted = now.draft_n_accepted - before.draft_n_accepted
        is_sound = 0 <= accepted <= drafted <= software.MOST_DRAFT and new >= max(len(sent), bool(drafted))
        if not is_sound:
            counts = f"{now.predicted_n:,} tokens, {now.draft_n:,} drafted, {now.draft_n_accepted:,} accepted"
            raise Misread(f"counts {counts}, which cannot follow what it has counted before")
        lost = new - len(sent)
        missing = 0 if self.open is None else (self.open.accepted or 0) + 1 - len(self.open.tokens)
        if drafted and lost < missing:
            raise Misread("counts another draft before all tokens of the last one have come")
        alone = max(0, lost - missing - accepted)
        known = None if alone and drafted else drafted
        begun = iter([*[Chunk(accepted=0, drafted=known)] * alone, Chunk(accepted=accepted, drafted=known)])
        chunks = []
        for one in (*[LOST] * lost, *sent):
            last = self.open or next(begun)
            self.open = replace(last, tokens=(*last.tokens, one))
            if len(self.open.tokens) > (last.accepted or 0):
                chunks.append(self.open)
                self.open = None
        return chunks


class LlamaCpp(ServedPair):
    kind, answers = "llama.cpp", LlamaAnswer

    def look(self) -> None:
        with suppress(ValidationError):
            props = _Props.model_validate_json(self.client.glance("/props") or b"")
            self.version, self.context = readable(props.build_info) or None, props.n_ctx or self.context
        settings = self.probed().settings
        self.longest = 0 if settings.kind == "none" else settings.longest
        self.method = settings.kind and readable(settings.kind)
        self.notes.append(NOTE)

    def asked(self, params: Params, prompt: Any, ids: list[int], most: int) -> tuple[str, Body]:
        if params.chat and not ids:
            raise self.client.error("does not tell what its chat template makes of the prompt")
        body: Body = {
            "model": self.model,
            "prompt": ids or prompt,
            "n_predict": most,
            **{name: getattr(params, name) for name in ("temperature", "top_k", "top_p", "min_p", "seed")},
            # In transformers' order, and without what else the server was started with.
            "samplers": ["penalties", "temperature", "top_k", "top_p", "min_p"],
            **{"presence_penalty": 0, "frequency_penalty": 0, "mirostat": 0, "dynatemp_range": 0},
            "stop": list(params.stop),
            **{"stream": True, "return_tokens": True, "timings_per_token": True},
            "n_probs": params.alternatives,
        }
        if params.repetition_penalty is not None:  # else the server takes its own
            last = (len(ids) or software.most_ids(prompt)) + most  # all, but no more: it makes room for them
            body |= {"repeat_penalty": params.repetition_penalty, "repeat_last_n": last}
        if params.logit_bias:
            body["logit_bias"] = [[token_id, bias] for token_id, bias in params.logit_bias.items()]
        if params.json_schema is not None:
            body["json_schema"] = json.loads(params.json_schema)
        return "/completion", body

    def prompt_ids(self, prompt: Any, params: Params, is_over: Condition = never) -> list[int] | None:
        text = prompt
        if params.chat:
            turns = turns_of(prompt, params)
            body, most = {"model": self.model, **software.chat_of(turns, params)}, software.most_ids(turns)
            text = self.client.field("/apply-template", body, "prompt", most, is_over)
        if not isinstance(text, str):
            return None
        body = {"model": self.model, "content": text, "add_special": True, "parse_special": True}
        return self.tokenized(body, software.most_ids(text), is_over)

    def faults(self, params: Params) -> Iterator[Message]:
        for name in ("presence_penalty", "frequency_penalty"):
            if getattr(params, name):
                yield about(name, "servers_count_prompt", software=self.kind)
        if params.ignore_eos:
            yield about("ignore_eos", "servers_forbid_eos", software=self.kind)
        if params.seed is not None and params.seed >= RANDOM_SEED:
            yield about("seed", "servers_seed", software=self.kind, most=RANDOM_SEED - 1)
        for name in ("regex", "grammar"):
            if getattr(params, name) is not None:
                yield about(name, "grammar_not_sent")
