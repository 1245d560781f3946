"""What servers of both kinds share: the tokens of their answers, the rounds that these make, and a server in
the place of a pair."""

import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from math import exp, inf
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from specdemo.errors import without_directories
from specdemo.events import (
    LIMITS,
    METHODS,
    RULES,
    TOKEN_IDS,
    Alternative,
    ByModel,
    ChatMessage,
    EndedBy,
    Fate,
    Judged,
    Next,
    PairInfo,
    Params,
    Round,
    ServerInfo,
    ServerStats,
    Source,
    Started,
)
from specdemo.events.params import tree_text
from specdemo.servers.client import (
    ID_BYTES,
    LONGEST_ANSWER,
    SAID,
    Body,
    Client,
    Condition,
    Request,
    ServerError,
    host_of,
    never,
    readable,
)
from specdemo.words.catalogue import numeral
from specdemo.words.message import Message, refusal

LONGEST_WORD = 100  # characters: why a text ended, a version, a method
LONGEST_TOKEN = 1_000  # characters; the longest in known vocabularies are 128 to 256 blanks or signs
TEXT_A_TOKEN = 256  # characters of a whole text, on average
SPARE_IDS = 20_000  # of a prompt besides one for each of its bytes: what a chat template adds
MOST_DRAFT = 1_000  # tokens of one draft: servers set no limit, but those in use have 1 to 30
MOST_ALTERNATIVES = int(LIMITS["alternatives"].largest) + 1  # with the token itself
MOST_OF_A_RUN = 10**9  # tokens or ms that a server tells of one request: eleven days
MOST_LOGPROB = 0.01  # 0, and what rounding adds
MOST_SUM = 1.02  # of the probabilities at one place: 1, and what rounding each of them to bfloat16 adds
TAIL_SECONDS = 2.0  # that what comes after the text's end is awaited
PROBES, PROBE, PROBE_TOKENS = 4, "Once upon a time", 24
GREEDY = Params(temperature=0, ignore_eos=True, seed=1, alternatives=1)
SERVER_PREFIX = "Server "  # begins the names of servers
# Fields of Params: what the server has chosen when it was started, and what it has not at all.
OF_CHOICES = [field for choice in (*METHODS.values(), *RULES.values()) for field in choice.fields]
SERVERS_OWN = ("draft_with", "rule", *dict.fromkeys(OF_CHOICES))

Prompt = str | tuple[ChatMessage, ...]
TokenId = Annotated[int, Field(ge=0, lt=TOKEN_IDS)]
Token = Annotated[str, Field(max_length=LONGEST_TOKEN)]
Word = Annotated[str, Field(max_length=LONGEST_WORD)]
LogProb = Annotated[float, Field(le=MOST_LOGPROB)]
Count = Annotated[int, Field(ge=0, le=MOST_OF_A_RUN)]
Milliseconds = Annotated[float, Field(ge=0, le=MOST_OF_A_RUN)]
DraftTokens = Annotated[int, Field(ge=0, le=MOST_DRAFT)]


class Misread(Exception):
    """A chunk is not what such a server sends. The words go on after "the server at ADDRESS"."""


class Merged(Misread):
    """A chunk holds several rounds: the server, or a proxy, was late when it sent it."""


class Sent(BaseModel):
    model_config = ConfigDict(allow_inf_nan=False)  # JSON has neither, but its parser takes both


class Likely(Sent):
    token: Token
    logprob: LogProb | None = None

    @property
    def probability(self) -> float | None:
        return None if self.logprob is None else exp(min(self.logprob, 0.0))

    def rows(self, token_id: int | None) -> list[Alternative]:
        raw = self.probability
        return [] if raw is None else [(token_id, self.token, None, None, raw, None)]


@dataclass(frozen=True)
class Piece:
    """A token. text: its part of the answer's text. probability: under the target, at temperature 1 and
    unfiltered; None where the server has not sent it. top: the likeliest tokens, of which the server tells
    the texts, and not always the ids. id: None where the server does not send it."""

    id: int | None
    text: str
    probability: float | None = None
    top: tuple[Alternative, ...] = ()

    @property
    def sum(self) -> float:
        """Of the probabilities of different tokens that are told here."""
        is_in_top = any(token_id == self.id for token_id, *_ in self.top)
        own = 0.0 if is_in_top or self.probability is None else self.probability
        return own + sum(raw for *_, raw, _ in self.top)


@dataclass(frozen=True)
class Chunk:
    """What a chunk says. pieces: empty in a chunk that only says something else. finish: why the text ends
    here, in the server's word; stop: the stop string that ended it. prompt_ids: what the server has made of
    the prompt, once. accepted: how many tokens were in this round, where the server tells it with the round;
    drafted: how many tokens were then, if it tells that, too."""

    pieces: tuple[Piece, ...] = ()
    finish: str | None = None
    stop: int | str | None = None
    prompt_ids: tuple[int, ...] | None = None
    accepted: int | None = None
    drafted: int | None = None
    arrival_ms: float = 0.0  # since the tokens before it

    def without_probabilities(self) -> "Chunk":
        return replace(self, pieces=tuple(Piece(piece.id, piece.text) for piece in self.pieces))


class ChunkReader(ABC):
    """Reads the events of one answer, and counts them against what was asked for. is_sound: whether the
    server's numbers can be probabilities: those at each place add up to 1 at most, as log-probabilities of 0
    do not."""

    kind: ClassVar[str]
    event: ClassVar[type[BaseModel]]

    def __init__(self, request: Request):
        self.request, self.tokens, self.characters, self.is_sound = request, 0, 0, True

    @abstractmethod
    def chunks(self, event: Any) -> list[Chunk]:
        """What an event says: a chunk for each round that it completes, and one more where it says something
        else."""

    @abstractmethod
    def settled(
        self, chunks: list[Chunk], was_stopped: bool, is_over: Condition
    ) -> tuple[list[Chunk], ServerStats | None]:
        """What the server tells after the text's end: the chunks that have tokens with the counts of their
        rounds, and the numbers of the request. was_stopped: whether a stop string ended the text."""

    def read(self, event: Body) -> list[Chunk]:
        """The chunks of an event. Misread if it is none of this server's, or one too many."""
        try:
            chunks = self.chunks(self.event.model_validate(event))
        except ValidationError as error:
            what = f"sent a chunk that {self.kind} would not send: {first_fault(error)}"
            raise Misread(what) from None
        for chunk in chunks:
            self.tokens += len(chunk.pieces)
            self.characters += sum(len(piece.text) for piece in chunk.pieces)
            if self.tokens > self.request.tokens:
                raise Misread("does not end its answer: it has sent more tokens than was asked for")
            if self.characters > TEXT_A_TOKEN * self.request.tokens + LONGEST_TOKEN:
                raise Misread(f"sent {self.characters:,} characters as the text of {self.tokens} tokens")
            if (count := len(chunk.prompt_ids or ())) > self.request.prompt_ids:
                raise Misread(f"says that the prompt has {count:,} tokens, which it cannot have")
            self.is_sound = self.is_sound and all(piece.sum <= MOST_SUM for piece in chunk.pieces)
        return chunks if self.is_sound else [chunk.without_probabilities() for chunk in chunks]


def round_of(index: int, chunk: Chunk, longest: int | None, always: bool) -> Round:
    """The round that a chunk holds: accepted drafts, and the target's own token. Where it is not told how
    many tokens were drafted, that follows from the draft's length, if it is known. What was refused has no
    id. longest: the most tokens of a draft, 0 if the server does not draft, None if it is not known. always:
    whether every draft has so many."""
    pieces, accepted, drafted = chunk.pieces, chunk.accepted, chunk.drafted
    ended_by: EndedBy | None = None
    if accepted is None:
        accepted, longest = len(pieces) - 1, longest if index else 0  # the first is the prefill's
        if longest is not None and accepted > longest:
            most = f"it has {len(pieces)} tokens, but this round has {longest + 1} at most"
            raise Merged(f"sends several rounds in a chunk: {most}")
        if chunk.finish and longest and accepted < longest:  # the end of the text may have cut the draft
            ended_by = "length" if chunk.finish == "length" else "eos"
        elif always or accepted == longest or not index:
            drafted = longest
    draft = [_judged("accepted", piece) for piece in pieces[:accepted]]
    has_own = accepted < len(pieces)
    if unseen := 0 if drafted is None else drafted - len(draft):
        draft += [_judged("discarded")] * unseen
        if has_own:  # else the text ended before a rejection
            draft[accepted] = _judged("rejected")
    source: Source = "sampled" if not drafted else "bonus" if drafted == accepted else "resampled"
    return Round(
        index=index,
        draft=tuple(draft),
        next=Next(**_known(pieces[accepted]), source=source, residual_mass=None) if has_own else None,
        emitted=tuple(piece.id for piece in pieces),
        draft_ms=None,
        verify_ms=None,
        gamma=longest or None,
        ended_by="gamma" if drafted and drafted == longest else ended_by,
        arrival_ms=chunk.arrival_ms,
        drafts_told=drafted is not None or ended_by is not None,
    )


def _judged(fate: Fate, piece: Piece | None = None) -> Judged:
    """A drafted token with its fate. piece: None for a draft whose token is not told."""
    return Judged(**_known(piece or Piece(None, "")), accept_prob=None, fate=fate)


def _known(piece: Piece) -> dict[str, Any]:
    """A token's fields; the server tells no p, q and u."""
    known = {"id": piece.id, "text": piece.text, "raw_p": piece.probability, "top": piece.top}
    return known | dict.fromkeys(("p", "q", "raw_q", "u"))


def first_fault(error: ValidationError) -> str:
    """The first place that is wrong, and how."""
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc']))[:SAID]}: {first['msg']}"


def accepted_by_place(accepted: Sequence[int], longest: int) -> tuple[int, ...]:
    """How many drafts were accepted up to each place and beyond. accepted: tokens of each draft; empty where
    that is not known."""
    counts = Counter(accepted).items()
    return tuple(sum(times for n, times in counts if n > place) for place in range(longest if counts else 0))


class ServedPair(ABC):
    """A running server, which takes the place of a Pair in `stream`. longest, always: see `round_of`, as far
    as the server shows. context: the most tokens of prompt and text together."""

    kind: ClassVar[str]  # as it calls itself
    sends_done = True  # at the end of a stream
    # These are as in Pair. None: not told. The server refuses ids that it does not have.
    runs_here = False
    vocab_size = known_ids = tokenizer = drafter_bytes = warming_up = None
    dtype_reason = ""
    marks = ()
    check_gpu = staticmethod(lambda write: None)  # no GPU of this machine writes its texts
    has_chat_template = True  # at least it is asked to apply one; which arguments that reads is not told

    version: str | None = None
    method: str | None = None  # of drafting
    longest: int | None = None
    always = False
    is_sound = True  # see ChunkReader
    failed = False  # whether a run has failed since; then it is asked again what it is

    def __init__(self, client: Client, model: str, context: float | None):
        """Asks it what it is, and for a few tokens. context: what its list of models says."""
        self.client, self.model, self.context = client, model, context or inf
        self.lock, self.notes = threading.Lock(), list[str]()
        self.look()
        shown, address = readable(model[:200]), client.name or host_of(client.address)
        shown = shown if client.name is None else without_directories(shown)
        told = (self.kind, self.version, shown, self.method, self.longest, None)
        self.server, nothing = ServerInfo(address, *told), ByModel(None, None)
        name = client.name or f"{SERVER_PREFIX}{address}"
        self.info = PairInfo(name, shown, None, "server", address, nothing, nothing, self.server)

    @abstractmethod
    def look(self) -> None:
        """Sets what the server tells of itself."""

    @abstractmethod
    def asked(self, params: Params, prompt: Any, ids: list[int], most: int) -> tuple[str, Body]:
        """The path and the body of a request for a text. prompt: text, or messages of a chat; empty where
        token ids were given. ids: the prompt's, as far as they are known. most: the most tokens of the
        text."""

    @abstractmethod
    def reader(self, request: Request, is_over: Condition = never) -> ChunkReader:
        """Called before the request is sent."""

    @abstractmethod
    def faults(self, params: Params) -> Iterator[Message | str]:
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
            value, own = getattr(params, name), getattr(usual, name)
            if value not in (own, *also.get(name, ())):
                if name == "tree":
                    raise ValueError(refusal(name, "servers_own_empty", tree_text(params.tree)))
                usual_value = own if isinstance(own, str) else numeral(own, "")
                raise ValueError(refusal(name, "servers_own", value, name=usual_value))
        for fault in self.faults(params):
            raise ValueError(fault)
        if self.longest == 0:
            return replace(params, draft_with="none", gamma=usual.gamma)
        is_known = self.longest is not None and 1 <= self.longest <= 16
        return replace(params, gamma=self.longest if is_known else usual.gamma)

    def prompt_ids(self, prompt: Prompt, params: Params, is_over: Condition = never) -> list[int] | None:
        """The prompt as the server will read it; None if it does not tell before, and once `is_over`."""
        turns = turns_of(prompt, params) if params.chat else prompt
        body = {"model": self.model, **(chat_of(turns, params) if params.chat else {"prompt": prompt})}
        return self.told_ids(body, most_ids(turns), is_over)

    def told_ids(self, body: Body, most: int, is_over: Condition) -> list[int] | None:
        """The token ids of a prompt. most: so many at most."""
        answer = self.told("/tokenize", body, most, is_over)
        ids = answer.get("tokens") if isinstance(answer, dict) else None
        is_known = isinstance(ids, list) and 0 < len(ids) <= most
        return ids if is_known and all(type(one) is int and 0 <= one < TOKEN_IDS for one in ids) else None

    def told(self, path: str, body: Body, most: int, is_over: Condition) -> Any:
        """The JSON that answers a question; None where the server does not take it, and once `is_over`.
        most: it may have so many token ids."""
        most = LONGEST_ANSWER + ID_BYTES * most
        answer = self.client.ask(path, body, optional=True, is_over=is_over, most=most)
        return None if answer is None else self.client.parsed(answer)

    def request_of(self, started: Started) -> Request:
        params, ids = started.params, started.prompt_ids
        most = int(min(params.max_new_tokens, self.context - len(ids)))
        return self.request(params, started.messages or started.prompt, ids, most)

    def request(self, params: Params, prompt: Prompt, ids: Sequence[int], most: int) -> Request:
        """For a text of at most so many tokens. prompt: empty where token ids were given."""
        turns = turns_of(prompt, params) if params.chat else prompt
        path, body = self.asked(params, turns, list(ids), most)
        return Request(path, body, most, params.alternatives, most_ids(turns or ids), self.sends_done)

    def chunks(self, request: Request, reader: ChunkReader, is_over: Condition = never) -> Iterator[Chunk]:
        """The answer to a request. Ends early once `is_over`. An error of the connection after the text has
        ended is left out."""
        with closing(self.client.stream(request)) as stream:
            last_at, has_ended = stream.asked_at, False
            while True:
                seconds = TAIL_SECONDS if has_ended else self.client.read_seconds
                try:
                    arrived = stream.next(last_at + seconds, is_over)
                    if arrived is None:
                        return
                    # The event is read here and not where it arrives: many objects are made of few bytes.
                    chunks, at = reader.read(self.client.event(arrived[0])), arrived[1]
                    if at - last_at > seconds and not any(chunk.pieces for chunk in chunks):
                        raise TimeoutError
                except (ServerError, TimeoutError) as error:
                    if has_ended:
                        return
                    raise error if isinstance(error, ServerError) else self.client.silent() from None
                for chunk in chunks:
                    if has_ended and (chunk.pieces or chunk.finish):
                        raise Misread("goes on after the end of its text")
                    has_ended = has_ended or chunk.finish is not None
                    yield replace(chunk, arrival_ms=1000 * (at - last_at))
                    if chunk.pieces:
                        last_at = at

    def probed(self) -> tuple[list[Chunk], ChunkReader]:
        """The chunks of a short answer that have tokens, and its reader. A server that was just started is
        late with its first answers, and merges their rounds: it is asked again."""
        for left in reversed(range(PROBES)):
            request, chunks = self.request(GREEDY, PROBE, (), PROBE_TOKENS), []
            reader, until = self.reader(request), time.perf_counter() + self.client.read_seconds
            try:
                for chunk in self.chunks(request, reader):
                    if time.perf_counter() > until:
                        raise self.client.silent()
                    if chunk.pieces:
                        round_of(len(chunks), chunk, None, False)  # raises Merged
                        chunks.append(chunk)
                break
            except Misread as error:
                if not left or not isinstance(error, Merged):
                    raise self.client.error(str(error)) from None
        if not chunks:
            raise self.client.error("has sent no token when it was asked for some")
        return chunks, reader


def most_ids(prompt: Prompt | Sequence[int]) -> int:
    """The most tokens that a prompt can have. prompt: text, token ids, or messages."""
    if isinstance(prompt, str):
        return len(prompt.encode()) + SPARE_IDS
    return SPARE_IDS + sum(len(one.content.encode()) if isinstance(one, ChatMessage) else 1 for one in prompt)


def messages_of(prompt: Prompt, params: Params) -> list[dict[str, str]]:
    """What a chat template is given: the messages, or the text as the user's one."""
    return [asdict(message) for message in turns_of(prompt, params)]


def turns_of(prompt: Prompt, params: Params) -> tuple[ChatMessage, ...]:
    if isinstance(prompt, str):
        system = [] if params.system is None else [ChatMessage("system", params.system)]
        return (*system, ChatMessage("user", prompt))
    return prompt


def chat_of(prompt: Prompt, params: Params) -> Body:
    """The part of a request that the server's chat template is given. A call of a tool is not looked for in
    the answer, so that its text is what the model writes."""
    arguments = dict(params.chat_template_kwargs or {})
    body: Body = {"messages": messages_of(prompt, params)}
    if tools := arguments.pop("tools", None):
        body |= {"tools": tools, "tool_choice": "none"}
    return body | ({"chat_template_kwargs": arguments} if arguments else {})
