"""What differs between servers: what is asked of one, and how its answers are read."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, TypeVar

from specdemo.events import TOKEN_IDS, ChatMessage, Params, Round
from specdemo.servers.chunks import ChunkReader, Merged, Misread, PerRequest
from specdemo.servers.client import (
    ID_BYTES,
    LONGEST_ANSWER,
    SPARE_IDS,
    Client,
    Condition,
    Request,
    Stream,
    never,
)
from specdemo.servers.counters import Counters
from specdemo.servers.rounds import round_of
from specdemo.words.message import Message

_T = TypeVar("_T")


@dataclass(frozen=True)
class Asked:
    """What a run asks for. prompt: text; empty where token ids or messages were given. ids: the prompt's
    tokens, as far as they are known. most: the most tokens of the text."""

    prompt: str
    ids: tuple[int, ...]
    messages: tuple[ChatMessage, ...] | None
    params: Params
    most: int


PROBES = 4
GREEDY = Params(temperature=0, ignore_eos=True, seed=1, alternatives=1)
PROBE = Asked("Once upon a time", (), None, GREEDY, 24)


@dataclass(frozen=True)
class Looked:
    """What a server tells of itself. context: the most tokens of prompt and text together. longest: see
    `round_of`; always: whether each draft has so many tokens, as far as can be seen. parallel: over how many
    devices, in words. notes: what is to be known of its runs."""

    version: str | None
    context: float
    longest: int | None
    always: bool
    method: str | None
    parallel: str | None
    notes: tuple[str, ...] = ()


class Software(ABC):
    """A server of one kind. name: as it calls itself. tells_rounds: whether its answer tells of each round
    how many tokens were drafted."""

    name: ClassVar[str]
    tells_rounds: ClassVar[bool] = False

    def __init__(self, client: Client, model: str):
        self.client, self.model = client, model

    @abstractmethod
    def look(self, context: float | None) -> Looked:
        """Asks it what it is, and for a few tokens. context: what its list of models says."""

    @abstractmethod
    def request(self, asked: Asked) -> Request: ...

    @abstractmethod
    def reader(self, request: Request) -> ChunkReader: ...

    def prompt_ids(
        self, prompt: str | tuple[ChatMessage, ...], params: Params, is_over: Condition
    ) -> list[int] | None:
        """The prompt as the server will read it; None if it does not tell before, and once `is_over`."""
        turns = turns_of(prompt, params) if params.chat else prompt
        body = {"model": self.model, **(chat_of(turns, params) if params.chat else {"prompt": prompt})}
        return self.told_ids("/tokenize", body, most_ids(turns), is_over)

    @abstractmethod
    def faults(self, params: Params, drafts: bool) -> Iterator[Message | str]:
        """Why it does not take these. drafts: whether it drafts, as far as it tells."""

    def counters(
        self, before: Counters | None = None, idle: bool = False, is_over: Condition = never
    ) -> Counters | None:
        """What it has counted so far, of all requests: see `read_counters`; None where it does not tell."""
        return None

    def told_ids(self, path: str, body: dict[str, Any], most: int, is_over: Condition) -> list[int] | None:
        """The token ids that answer a question. most: so many at most."""
        answer = self.client.post(path, body, is_over, LONGEST_ANSWER + ID_BYTES * most)
        ids = answer.get("tokens") if isinstance(answer, dict) else None
        is_known = isinstance(ids, list) and 0 < len(ids) <= most
        return ids if is_known and all(type(one) is int and 0 <= one < TOKEN_IDS for one in ids) else None

    def tried(self, probe: Callable[[], _T]) -> _T:
        """What the probe finds. A server that was just started is late with its first answers, and merges
        their rounds: it is asked again."""
        for _ in range(PROBES):
            try:
                return probe()
            except Merged as error:
                merged = self.client.error(str(error))
        raise merged

    def probed(self) -> tuple[list[Round], PerRequest | None, ChunkReader]:
        """The rounds of a short answer, what the server tells after it, and its reader. ServerError if it
        cannot be read, Merged if a chunk has several rounds."""
        request = self.request(PROBE)
        rounds: list[Round] = []
        told, stream = None, Stream(self.client, request)
        reader, until = self.reader(request), time.monotonic() + self.client.read_seconds
        try:
            while (arrived := stream.next(max(0.0, until - time.monotonic()))) is not None:
                for chunk in reader.read(arrived[0]):
                    told = chunk.told or told
                    if chunk.pieces:
                        rounds.append(round_of(len(rounds), chunk, 0.0, None, False))
        except TimeoutError:
            raise self.client.silent() from None
        except Merged:
            raise
        except Misread as error:
            raise self.client.error(str(error)) from None
        finally:
            stream.close()
        if not rounds:
            raise self.client.error("has sent no token when it was asked for some")
        return rounds, told, reader


def most_ids(prompt: str | Sequence[int] | Sequence[ChatMessage]) -> int:
    """The most tokens that a prompt can have. prompt: text, token ids, or messages."""
    if isinstance(prompt, str):
        return len(prompt.encode()) + SPARE_IDS
    return SPARE_IDS + sum(len(one.content.encode()) if isinstance(one, ChatMessage) else 1 for one in prompt)


def messages_of(prompt: str | tuple[ChatMessage, ...], params: Params) -> list[dict[str, str]]:
    """What a chat template is given: the messages, or the text as the user's one."""
    return [asdict(message) for message in turns_of(prompt, params)]


def turns_of(prompt: str | tuple[ChatMessage, ...], params: Params) -> tuple[ChatMessage, ...]:
    if isinstance(prompt, str):
        system = [] if params.system is None else [ChatMessage("system", params.system)]
        return (*system, ChatMessage("user", prompt))
    return prompt


def chat_of(prompt: str | tuple[ChatMessage, ...], params: Params) -> dict[str, Any]:
    """The part of a request that the server's chat template is given. A call of a tool is not looked for in
    the answer, so that its text is what the model writes."""
    arguments = dict(params.chat_template_kwargs or {})
    body: dict[str, Any] = {"messages": messages_of(prompt, params)}
    if tools := arguments.pop("tools", None):
        body |= {"tools": tools, "tool_choice": "none"}
    return body | ({"chat_template_kwargs": arguments} if arguments else {})
