"""vLLM: a chunk is a round, its /metrics count all requests, and after a request it may tell each step."""

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from specdemo.events import PARAMETERS, Alternative, Params
from specdemo.events.params import field_of_grammar
from specdemo.servers.chunks import (
    LONGEST_WORD,
    MOST_ALTERNATIVES,
    OF_TOKENS,
    UNFINISHED,
    Chunk,
    ChunkReader,
    LogProb,
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
    texts_of,
)
from specdemo.servers.client import ASK_SECONDS, LONGEST_TOKEN, Condition, Request, Room, never, readable
from specdemo.servers.counters import Counters, read_counters
from specdemo.servers.software import Asked, Looked, Software, chat_of, most_ids, turns_of
from specdemo.words.message import Message, about

MOST_PARALLEL = 100_000  # devices
WANTED = {
    "stream": True,
    "return_token_ids": True,
    "stream_options": {"include_usage": True},
    "include_stop_str_in_output": True,
}
DETAILED = "start it with --per-request-spec-decode-metrics detailed"


class Vllm(Software):
    name = "vLLM"

    def look(self, context: float | None) -> Looked:
        version = self.client.optional("/version", seconds=ASK_SECONDS)
        before, sizes, steps = self.tried(self._probed)
        after = self.counters(before)
        longest, always, why = _drafting(sizes, steps, before, after)
        method, parallel = _told(self.client.optional("/server_info?config_format=json", seconds=ASK_SECONDS))
        notes = ["the server tells no p, q and u: probabilities are the target's before the sampler"]
        if longest != 0:
            notes.append("min-p cannot be used, since vLLM does not take it where it drafts")
        notes += [why] if why else []
        method = "none" if longest == 0 else method
        known = float("inf") if context is None else context
        return Looked(_version(version), known, longest, always, method, parallel, tuple(notes))

    def _probed(self) -> tuple[Counters | None, list[int], Steps | None]:
        """The counters before a short answer, how many tokens each of its chunks has, and what the server
        tells of its drafts after it."""
        before = self.counters()
        rounds, told, _ = self.probed()
        return before, [len(one.emitted) for one in rounds], told.steps if told else None

    def counters(
        self, before: Counters | None = None, idle: bool = False, is_over: Condition = never
    ) -> Counters | None:
        return read_counters(self.client, self.model, before, idle, is_over)

    def request(self, asked: Asked) -> Request:
        params = asked.params
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": asked.most,
            **{name: getattr(params, name) for name, row in PARAMETERS.items() if row.on_vllm},
            "stop": list(params.stop),
            **WANTED,
        }
        if params.repetition_penalty is not None:  # else the server takes the model's own
            body["repetition_penalty"] = params.repetition_penalty
        if params.logit_bias:
            body["logit_bias"] = {str(token_id): bias for token_id, bias in params.logit_bias.items()}
        if params.chat:
            prompt: Any = turns_of(asked.messages or asked.prompt, params)
            path, body = "/v1/chat/completions", body | chat_of(prompt, params)
            body |= {"logprobs": True, "top_logprobs": params.alternatives}
        else:
            prompt = asked.prompt or list(asked.ids)
            path, body = "/v1/completions", body | {"prompt": prompt, "logprobs": params.alternatives}
        return Request(path, body, Room(asked.most, params.alternatives, most_ids(prompt)))

    def reader(self, request: Request) -> ChunkReader:
        return VllmReader(request.room)

    def faults(self, params: Params, drafts: bool) -> Iterator[Message | str]:
        if params.min_p and params.temperature and drafts:
            yield about("min_p", "servers_min_p", software=self.name)
        if name := field_of_grammar(params):
            yield about(name, "grammar_not_sent")
        if params.logit_bias and drafts:
            yield "logit_bias must be empty here: vLLM does not take it where it drafts"


class VllmReader(ChunkReader):
    def chunks(self, event: dict[str, Any]) -> list[Chunk]:
        return [chunk_of(event)]


class _Likely(Sent):
    token: Token
    logprob: LogProb | None = None


class _Judged(_Likely):
    top_logprobs: Annotated[list[_Likely], Field(max_length=MOST_ALTERNATIVES)] = []


Top = Annotated[dict[Token, LogProb], Field(max_length=MOST_ALTERNATIVES)]


class _Logprobs(Sent):
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


class _Delta(Sent):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class _Choice(Sent):
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


class _Event(Sent):
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
    pieces = tuple(Piece(id_, text, probability_of(one.logprob), _top(id_, one)) for id_, text, one in rows)
    prompt_ids = choice.prompt_token_ids or read.prompt_token_ids
    prompt_ids = None if prompt_ids is None else tuple(prompt_ids)
    return Chunk(pieces, choice.finish_reason, choice.stop_reason, prompt_ids, read.metrics)


def _top(token_id: int, judged: _Judged) -> tuple[Alternative, ...]:
    rows: list[Alternative] = []
    for one in judged.top_logprobs:
        is_own = one.token == judged.token and one.logprob == judged.logprob
        if (probability := probability_of(one.logprob)) is not None:
            rows.append((token_id if is_own else None, one.token, None, None, probability, None))
    return tuple(rows)


class _Version(BaseModel):
    version: str


def _version(text: str | None) -> str | None:
    try:
        return readable(_Version.model_validate_json(text or "").version[:40])
    except ValidationError:
        return None


Devices = Annotated[int, Field(ge=1, le=MOST_PARALLEL)]


class _Config(BaseModel):
    """What vLLM tells of itself when it was started with VLLM_SERVER_DEV_MODE=1."""

    class Speculative(BaseModel):
        method: Annotated[str, Field(max_length=LONGEST_WORD)] | None = None

    class Parallel(BaseModel):
        tensor_parallel_size: Devices = 1
        pipeline_parallel_size: Devices = 1
        data_parallel_size: Devices = 1

    speculative_config: Speculative | None = None
    parallel_config: Parallel | None = None


class _Told(BaseModel):
    vllm_config: _Config


def _told(text: str | None) -> tuple[str | None, str | None]:
    """The server's method of drafting, and over how many devices the server runs, in words; None for what is
    not told."""
    try:
        config = _Told.model_validate_json(text or "").vllm_config
    except ValidationError:
        return None, None
    method = config.speculative_config.method if config.speculative_config else None
    method = method and readable(method[:40])
    if config.parallel_config is None:
        return method, None
    sizes = {name.removesuffix("_parallel_size"): size for name, size in config.parallel_config}
    words = [f"{kind}-parallel over {size}" for kind, size in sizes.items() if size > 1]
    return method, ", ".join(words) or "not parallel"


def _drafting(
    sizes: list[int], steps: Steps | None, before: Counters | None, after: Counters | None
) -> tuple[int | None, bool, str]:
    """The most tokens of a draft, whether every draft has so many, and why that is not known."""
    rounds = len(sizes) - 1
    if steps is not None:
        full = steps.num_spec_steps == rounds and steps.num_draft_tokens == rounds * steps.num_spec_tokens
        return steps.num_spec_tokens, full, "" if full else VARIES
    if after is None or before is None:
        return None, False, NO_COUNTERS
    if after.drafts is None:
        return 0, True, ""
    longest = len(after.by_place)
    added = after.since(before)
    if added is None or not added.is_of_one:
        return longest, False, OTHERS_USED_IT
    full = added.drafts == rounds and added.drafted == rounds * longest
    return longest, full, "" if full else VARIES


VARIES = (
    "not every draft of this server has the same length, so it is not known how many tokens were refused, "
    f"and which of the target's own tokens are bonus tokens: {DETAILED}, which tells it after each run"
)
NO_COUNTERS = "the server does not tell how it drafts: its /metrics cannot be read"
OTHERS_USED_IT = (
    "others used the server when it was looked at, so it is not known whether every draft has the same "
    f"length: {DETAILED}"
)
