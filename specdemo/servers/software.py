"""What servers share: their answers' tokens, the rounds that these make, and a server in place of a pair."""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from math import exp, inf
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from specdemo import events
from specdemo.errors import redacted, without_directories
from specdemo.events import Alternative, ChatMessage, Judged, Next, Params, Round
from specdemo.events.params import TextOrChat, as_text, turns_of
from specdemo.servers.client import Body, Client, Condition, Request, ServerError, host_of, never, readable
from specdemo.words.catalogue import numeral
from specdemo.words.message import Message, refusal

LONGEST_TOKEN = 1_000  # characters; the longest in known vocabularies are 128 to 256 blanks or signs
TEXT_A_TOKEN = 256  # characters of a whole text, on average
SPARE_IDS = 20_000  # of a prompt besides one for each of its bytes: what a chat template adds
MOST_DRAFT = 1_000  # tokens of one draft: servers set no limit, but those in use have 1 to 30
MOST_ALTERNATIVES = int(events.LIMITS["alternatives"].largest) + 1  # with the token itself
MOST_OF_A_RUN = 10**9  # tokens that a server tells of one request
MOST_SUM = 1.02  # of the probabilities at one place: 1, and what rounding each of them to bfloat16 adds
TAIL_SECONDS = 2.0  # that what comes after the text's end is awaited
PROBE = "Once upon a time"
GREEDY = Params(temperature=0, ignore_eos=True, seed=1, alternatives=1, max_new_tokens=24)
SERVER_PREFIX = "Server "  # begins the names of servers
# Fields of Params: what the server has chosen when it was started, and what it has not at all.
CHOICES = (*events.METHODS.values(), *events.RULES.values())
SERVERS_OWN = ("draft_with", "rule", *dict.fromkeys(field for one in CHOICES for field in one.fields))

TokenId = Annotated[int, Field(strict=True, ge=0, lt=events.TOKEN_IDS)]
Token = Annotated[str, Field(max_length=LONGEST_TOKEN)]
Context = Annotated[int, Field(gt=0, lt=2**31)]  # tokens; the longest of today's have 10,000,000
Word = Annotated[str, Field(max_length=100)]  # why a text ended, a version, a method
LogProb = Annotated[float, Field(le=0.01)]  # 0, and what rounding adds
Count = Annotated[int, Field(ge=0, le=MOST_OF_A_RUN)]
DraftTokens = Annotated[int, Field(ge=0, le=MOST_DRAFT)]


class Misread(Exception):
    """A chunk is not what such a server sends. The words go on after "the server at ADDRESS"."""


class Sent(BaseModel):
    model_config = ConfigDict(allow_inf_nan=False)  # JSON has neither, but its parser takes both


class Likely(Sent):
    """A token and its log probability. id: vLLM names tokens by their texts alone."""

    id: TokenId | None = None
    token: Token
    logprob: LogProb | None = None

    @property
    def probability(self) -> float | None:
        return None if self.logprob is None else exp(min(self.logprob, 0.0))


class TokenWithTop(Likely):
    """A token of the text, and the likeliest ones at its place."""

    top_logprobs: Annotated[list[Likely], Field(max_length=MOST_ALTERNATIVES)] = []

    def judged(self, id_: int, text: str) -> Judged:
        """id_: the token's. text: its part of the text."""
        top: list[Alternative] = []
        for one in self.top_logprobs:
            if (raw_p := one.probability) is not None:
                is_this = (one.token, one.logprob) == (self.token, self.logprob)
                top.append((id_ if is_this else one.id, one.token, None, None, raw_p, None))
        return token(id_, text, self.probability, top)


def token(id_: int | None, text: str, raw_p: float | None = None, top: Sequence[Alternative] = ()) -> Judged:
    """A token that is in the text. text: its part of it. id_, raw_p: None where the server has not sent it.
    top: the likeliest tokens, with and without ids. What adds up to more than 1 is no probability."""
    others = sum(raw for *_, raw, _ in top)
    if others + (0.0 if raw_p is None or any(one[0] == id_ for one in top) else raw_p) > MOST_SUM:
        raw_p, top = None, ()
    return Judged(id_, text, None, None, raw_p, None, None, None, "accepted", tuple(top))


UNKNOWN = replace(token(None, ""), fate="discarded")  # a draft that is not in the text


@dataclass(frozen=True)
class Chunk:
    """What a chunk says. tokens: none in a chunk that only says something else. finish: why the text ends
    here. accepted: how many tokens were in this round, where the server tells it with the round; drafted: how
    many tokens were then, if it tells that, too."""

    tokens: tuple[Judged, ...] = ()
    finish: events.Finish | None = None
    accepted: int | None = None
    drafted: int | None = None
    arrival_ms: float = 0.0  # since the tokens before it


class Answer(ABC):
    """What a server writes at one request, counted against what was asked for. chunks: those with tokens that
    have come. prompt_ids: what the server has made of the prompt, if it tells that with the answer. finish:
    why the text has ended."""

    def __init__(self, pair: "ServedPair", request: Request, is_over: Condition = never):
        self.pair, self.request, self.tokens, self.characters = pair, request, 0, 0
        self.chunks: list[Chunk] = []
        self.prompt_ids: tuple[int, ...] = ()
        self.finish: events.Finish | None = None

    @abstractmethod
    def chunks_of(self, event: Body) -> list[Chunk]:
        """A chunk for each round that an event completes, and for what else it says; or ValidationError."""

    def settle(self, is_over: Condition) -> bool:
        """Gives the chunks the counts of their rounds that the server tells after the text's end. Says
        whether every draft of the others had its full length."""
        return self.pair.always

    def arriving(self, is_over: Condition = never) -> Iterator[Chunk]:
        """All that it says; ends early once `is_over`. An error after the text's end is left out."""
        client = self.pair.client
        with closing(client.stream(self.request)) as stream:
            last_at = stream.asked_at
            while True:
                has_ended = self.finish is not None  # before this event
                seconds = TAIL_SECONDS if has_ended else client.read_seconds
                try:
                    arrived = stream.next(last_at + seconds, is_over, client.silent)
                    if arrived is None:
                        return
                    # The event is read here and not where it arrives: many objects are made of few bytes.
                    chunks, at = self.read(client.event(arrived[0])), arrived[1]
                    if at - last_at > seconds and not any(chunk.tokens for chunk in chunks):
                        raise client.silent()
                except ServerError:
                    if has_ended:
                        return
                    raise
                for chunk in (replace(one, arrival_ms=1000 * (at - last_at)) for one in chunks):
                    self.chunks += [chunk] if chunk.tokens else []
                    yield chunk
                    if chunk.tokens or chunk.finish:
                        last_at = at

    def read(self, event: Body) -> list[Chunk]:
        """The chunks of an event. Misread if it is none of this server's, or one too many."""
        try:
            chunks = self.chunks_of(event)
        except ValidationError as error:
            raise Misread(f"sent a chunk that no such server would send: {first_fault(error)}") from None
        if (count := len(self.prompt_ids)) > self.request.prompt_ids:
            raise Misread(f"says that the prompt has {count:,} tokens, which it cannot have")
        for chunk in chunks:
            if self.finish and (chunk.tokens or chunk.finish):
                raise Misread("goes on after the end of its text")
            self.finish = self.finish or chunk.finish
        return chunks

    def count(self, tokens: int, characters: int) -> None:
        """Called for what an event has, before its chunks are made."""
        self.tokens, self.characters = self.tokens + tokens, self.characters + characters
        if self.tokens > self.request.tokens:
            raise Misread("does not end its answer: it has sent more tokens than was asked for")
        if self.characters > TEXT_A_TOKEN * self.request.tokens + LONGEST_TOKEN:
            raise Misread(f"sent {self.characters:,} characters as the text of {self.tokens} tokens")


def round_of(index: int, chunk: Chunk, longest: int | None, always: bool) -> Round:
    """The round that a chunk holds: accepted drafts, and the target's own token. How many were drafted is as
    told, or follows from the draft's length. What was refused has no id. longest: the most tokens of a draft,
    0 if the server does not draft, None if it is not known. always: whether every draft has so many."""
    tokens, accepted, drafted = chunk.tokens, chunk.accepted, chunk.drafted
    ended_by: events.EndedBy | None = None
    if accepted is None:
        accepted, longest = len(tokens) - 1, longest if index else 0  # the first is the prefill's
        if longest is not None and accepted > longest:
            raise Misread(f"sends several rounds in a chunk: {len(tokens)} tokens, at {longest + 1} a round")
        if chunk.finish and longest and accepted < longest:  # the end of the text may have cut the draft
            ended_by = "length" if chunk.finish == "length" else "eos"
        elif always or accepted == longest or not index:
            drafted = longest
    last = tokens[accepted] if accepted < len(tokens) else None  # else the text ended before a rejection
    draft = [*tokens[:accepted]]
    draft += [UNKNOWN] * (0 if drafted is None else drafted - len(draft))
    if last and len(draft) > accepted:
        draft[accepted] = replace(UNKNOWN, fate="rejected")
    source: events.Source = "sampled" if not drafted else "bonus" if drafted == accepted else "resampled"
    return Round(
        index=index,
        draft=tuple(draft),
        next=last and Next(last.id, last.text, source, None, None, last.raw_p, None, None, None, last.top),
        emitted=tuple(one.id for one in tokens),
        draft_ms=None,
        verify_ms=None,
        gamma=longest or None,
        ended_by="gamma" if drafted and drafted == longest else ended_by,
        arrival_ms=chunk.arrival_ms,
        drafts_told=drafted is not None or ended_by is not None,
    )


def first_fault(error: ValidationError) -> str:
    """The first place that is wrong, and how."""
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{redacted('.'.join(map(str, first['loc'])))[:300]}: {first['msg']}"


class ServedPair(ABC):
    """A running server in the place of a Pair. longest, always: see `round_of`. context: tokens in all."""

    kind: ClassVar[str]  # as it calls itself
    answers: ClassVar[type[Answer]]
    # These are as in Pair. None: not told. The server refuses ids that it does not have.
    runs_here = False
    vocab_size = known_ids = tokenizer = texts_of = drafter_bytes = warming_up = None
    dtype_reason = ""
    marks = ()
    has_chat_template = True  # at least it is asked to apply one; which arguments that reads is not told

    version: str | None = None
    method: str | None = None  # of drafting
    longest: int | None = None
    always = False
    failed = False  # whether a run has failed since; then it is asked again what it is

    def __init__(self, client: Client, model: str, context: float | None):
        """Asks it what it is, and for a few tokens. context: what its list of models says."""
        self.client, self.model, self.context = client, model, context or inf
        self.lock, self.notes = threading.Lock(), list[str]()
        self.look()
        shown, address = readable(model)[:200], client.name or host_of(client.address)
        shown = shown if client.name is None else without_directories(shown)
        fields = (self.kind, self.version, shown, self.method, self.longest)
        self.server, nothing = events.ServerInfo(address, *fields), events.ByModel(None, None)
        name = client.name or f"{SERVER_PREFIX}{address}"
        self.info = events.PairInfo(name, shown, None, "server", address, nothing, nothing, self.server)

    @abstractmethod
    def look(self) -> None:
        """Sets what the server tells of itself."""

    @abstractmethod
    def asked(self, params: Params, prompt: Any, ids: list[int], most: int) -> tuple[str, Body]:
        """A request's path and body. prompt: text, or a chat; empty where ids were given. most: tokens."""

    @abstractmethod
    def faults(self, params: Params) -> Iterator[Message]:
        """Why it does not take these."""

    @property
    def about(self) -> str:
        """What the server tells of itself, in words."""
        version = f" {self.version}" if self.version else ""
        method = f" by {self.method}" if self.method else ""
        known = {None: f"it drafts{method}, how much is not told", 0: "it does not draft"}
        drafts = known.get(self.longest, f"it drafts up to {self.longest} tokens{method}")
        return f"{self.kind}{version} serves {self.server.model}; {drafts}"

    @property
    def versions(self) -> dict[str, str]:
        return {self.kind.lower(): self.version} if self.version else {}

    @property
    def drafts(self) -> bool:
        """Whether it drafts, as far as it tells."""
        return self.longest != 0

    def check(self, params: Params) -> Params:
        """The Params as this server takes them. ValueError names a field that it does not take."""
        usual = Params()
        also = {"gamma": (self.longest, "auto"), "draft_with": () if self.drafts else ("none",)}
        for name in SERVERS_OWN:
            value, default = getattr(params, name), getattr(usual, name)
            if value not in (default, *also.get(name, ())):
                if not as_text(default):
                    raise ValueError(refusal(name, "servers_own_empty", as_text(value)))
                shown = default if isinstance(default, str) else numeral(default, "")
                raise ValueError(refusal(name, "servers_own", value, name=shown))
        for fault in self.faults(params):
            raise ValueError(fault)
        if self.longest == 0:
            return replace(params, draft_with="none", gamma=usual.gamma)
        is_known = self.longest is not None and 1 <= self.longest <= 16
        return replace(params, gamma=self.longest if is_known else usual.gamma)

    def prompt_ids(self, prompt: TextOrChat, params: Params, is_over: Condition = never) -> list[int] | None:
        """The prompt as the server will read it; None if it does not tell before, and once `is_over`."""
        turns = turns_of(prompt, params) if params.chat else prompt
        body = {"model": self.model, **(chat_of(turns, params) if params.chat else {"prompt": prompt})}
        return self.tokenized(body, most_ids(turns), is_over)

    def tokenized(self, body: Body, most: int, is_over: Condition) -> list[int] | None:
        ids = self.client.field("/tokenize", body, "tokens", most, is_over)
        is_known = isinstance(ids, list) and 0 < len(ids) <= most
        is_known = is_known and all(type(one) is int and 0 <= one < events.TOKEN_IDS for one in ids)
        return ids if is_known else None

    def answer(
        self, params: Params, prompt: TextOrChat, ids: Sequence[int], is_over: Condition = never
    ) -> Answer:
        """Its text, of which nothing is asked for yet. prompt: empty where token ids were given. ids: the
        prompt's, as far as known."""
        turns = turns_of(prompt, params) if params.chat else prompt
        most = int(min(params.max_new_tokens, self.context - len(ids)))
        path, body = self.asked(params, turns, list(ids), most)
        request = Request(path, body, most, params.alternatives, most_ids(turns or ids))
        return self.answers(self, request, is_over)

    def probed(self) -> Any:
        """A short answer."""
        try:
            answer, until = self.answer(GREEDY, PROBE, ()), time.perf_counter() + self.client.read_seconds
            for _ in answer.arriving():
                if time.perf_counter() > until:
                    raise self.client.silent()
            if answer.chunks:
                return answer
        except Misread as error:
            raise self.client.error(str(error)) from None
        raise self.client.error("has sent no token when it was asked for some")


def most_ids(prompt: TextOrChat | Sequence[int]) -> int:
    """The most tokens that a prompt can have. prompt: text, token ids, or messages."""
    if isinstance(prompt, str):
        return len(prompt.encode()) + SPARE_IDS
    return SPARE_IDS + sum(len(one.content.encode()) if isinstance(one, ChatMessage) else 1 for one in prompt)


def chat_of(prompt: TextOrChat, params: Params) -> Body:
    """The part of a request that the server's chat template is given. A call of a tool is not looked for in
    the answer, so that its text is what the model writes."""
    arguments = dict(params.chat_template_kwargs or {})
    body: Body = {"messages": [asdict(one) for one in turns_of(prompt, params)]}
    if tools := arguments.pop("tools", None):
        body |= {"tools": tools, "tool_choice": "none"}
    return body | ({"chat_template_kwargs": arguments} if arguments else {})
