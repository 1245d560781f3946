"""A server in the place of a pair: what it tells of itself, and what can be asked of it."""

import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from specdemo.errors import without_directories
from specdemo.events import METHODS, RULES, TOKEN_IDS, ByModel, ChatMessage, PairInfo, Params, ServerInfo
from specdemo.events.params import field_of_grammar
from specdemo.vllm.chunks import LONGEST_WORD, ChunkReader, Merged, Misread, Steps, first_fault
from specdemo.vllm.client import (
    ASK_SECONDS,
    ID_BYTES,
    LONGEST_ANSWER,
    Client,
    Condition,
    Stream,
    host_of,
    most_ids,
    never,
    readable,
    run_in_loop,
    server_address,
)
from specdemo.vllm.counters import Counters, read_counters
from specdemo.vllm.rounds import round_of
from specdemo.words.catalogue import numeral
from specdemo.words.message import about, refusal

LONGEST_MODEL_NAME = 1_000  # characters: it can be a path
MOST_MODELS = 1_000  # adapters are models, too
MOST_CONTEXT = 2**31  # tokens; the longest of today's have 10,000,000
MOST_PARALLEL = 100_000  # devices

PROBES = 4
PROBE = {"prompt": "Once upon a time", "temperature": 0, "max_tokens": 24, "ignore_eos": True, "logprobs": 1}
WANTED = {"stream": True, "return_token_ids": True, "stream_options": {"include_usage": True}}
DETAILED = "start it with --per-request-spec-decode-metrics detailed"
# Fields of Params: what the server has chosen when it was started, and what it has not at all.
OF_CHOICES = [field for choice in (*METHODS.values(), *RULES.values()) for field in choice.fields]
SERVERS_OWN = ("draft_with", "rule", *dict.fromkeys(OF_CHOICES))


@dataclass(eq=False)
class ServedPair:
    """A running vLLM server, which takes the place of a Pair in `stream`. longest: see `round_of`; always:
    whether each draft has so many tokens, as far as the server's counters and its first answer show."""

    client: Client
    model: str  # as the server names it
    info: PairInfo
    server: ServerInfo
    context: float  # the most tokens of prompt and text together
    always: bool
    notes: list[str]
    lock: threading.Lock = field(default_factory=threading.Lock)
    failed: bool = False  # whether a run has failed since; then it is asked again what it is
    left: bool = False  # whether the server may still be at its last run, which was left early
    # These are as in Pair. None: not told. The server refuses ids that it does not have.
    runs_here = False
    vocab_size = known_ids = tokenizer = drafter_bytes = warming_up = None
    dtype_reason = ""
    marks = ()
    has_chat_template = True  # at least it is asked to apply one; which arguments that reads is not told

    @property
    def longest(self) -> int | None:
        return self.server.gamma

    @property
    def about(self) -> str:
        """What the server tells of itself, in words."""
        server = self.server
        version = f" {server.version}" if server.version else ""
        method = f" by {server.method}" if server.method else ""
        known = {None: f"it drafts{method}, how much is not told", 0: "it does not draft"}
        drafts = known.get(server.gamma, f"it drafts up to {server.gamma} tokens{method}")
        parallel = f"; {server.parallel}" if server.parallel else ""
        return f"{server.software}{version} serves {server.model}; {drafts}{parallel}"

    @property
    def versions(self) -> dict[str, str]:
        return {"vllm": self.server.version} if self.server.version else {}

    @property
    def drafts(self) -> bool:
        """Whether it drafts, as far as it tells."""
        return self.longest != 0

    def counters(self, is_over: Condition = never) -> Counters | None:
        """What the server has counted up to now; None where it does not tell, and once `is_over`."""
        return read_counters(self.client, self.model, idle=self.left, is_over=is_over)

    def check(self, params: Params) -> Params:
        """The Params as this server takes them. ValueError names a field that it does not take."""
        usual = Params()
        also = {"gamma": (self.longest, "auto"), "draft_with": () if self.drafts else ("none",)}
        for name in SERVERS_OWN:
            value, own = getattr(params, name), getattr(usual, name)
            if value not in (own, *also.get(name, ())):
                usual_value = own if isinstance(own, str) else numeral(own, "")
                raise ValueError(refusal(name, "servers_own", value, name=usual_value))
        if params.min_p and params.temperature and self.drafts:
            raise ValueError(NO_MIN_P)
        if name := field_of_grammar(params):
            raise ValueError(about(name, "grammar_not_sent"))
        if params.logit_bias and self.drafts:
            raise ValueError("logit_bias must be empty here: vLLM does not take it where it drafts")
        if self.longest == 0:
            return replace(params, draft_with="none", gamma=usual.gamma)
        known = self.longest is not None and 1 <= self.longest <= 16
        return replace(params, gamma=self.longest if known else usual.gamma)

    def prompt_ids(
        self, prompt: str | tuple[ChatMessage, ...], params: Params, is_over: Condition = never
    ) -> list[int] | None:
        """The prompt as the server will read it; None if it does not tell before, and once `is_over`."""
        body: dict[str, Any] = {"model": self.model}
        body |= chat_of(prompt, params) if params.chat else {"prompt": prompt}
        most = most_ids(body)
        answer = self.client.post("/tokenize", body, is_over, LONGEST_ANSWER + ID_BYTES * most)
        ids = answer.get("tokens") if isinstance(answer, dict) else None
        is_known = isinstance(ids, list) and 0 < len(ids) <= most
        return ids if is_known and all(type(one) is int and 0 <= one < TOKEN_IDS for one in ids) else None

    def check_gpu(self, write: Callable[[str], list[int]]) -> None:
        """No GPU of this machine writes its texts."""


NO_MIN_P = about("min_p", "servers_min_p")


def messages_of(prompt: str | tuple[ChatMessage, ...], params: Params) -> list[dict[str, str]]:
    """What a chat template is given: the messages, or the text as the user's one."""
    if isinstance(prompt, str):
        system = [] if params.system is None else [ChatMessage("system", params.system)]
        prompt = (*system, ChatMessage("user", prompt))
    return [asdict(message) for message in prompt]


def chat_of(prompt: str | tuple[ChatMessage, ...], params: Params) -> dict[str, Any]:
    """The part of a request that the server's chat template is given. A call of a tool is not looked for in
    the answer, so that its text is what the model writes."""
    arguments = dict(params.chat_template_kwargs or {})
    body: dict[str, Any] = {"messages": messages_of(prompt, params)}
    if tools := arguments.pop("tools", None):
        body |= {"tools": tools, "tool_choice": "none"}
    return body | ({"chat_template_kwargs": arguments} if arguments else {})


def connect(url: str, key: str | None = None, name: str | None = None) -> ServedPair:
    """Asks the server at this address what it is, and for a few tokens, which show how it answers. key: that
    of its --api-key. name: shown in place of the address. PairError for a wrong address, ServerError if the
    server cannot be used."""
    client = Client(server_address(url), key, name)
    model, context, others = _model(client)
    version = client.optional("/version", seconds=ASK_SECONDS)
    before, sizes, steps = _probed(client, model)
    after = read_counters(client, model, before)
    longest, always, why = _drafting(sizes, steps, before, after)
    method, parallel = _told(client.optional("/server_info?config_format=json", seconds=ASK_SECONDS))
    shown_model = readable(model[:200])
    server = ServerInfo(
        address=host_of(client.address) if name is None else name,
        software="vLLM",
        version=_version(version),
        model=shown_model if name is None else without_directories(shown_model),
        method="none" if longest == 0 else method,
        gamma=longest,
        parallel=parallel,
    )
    notes = ["the server tells no p, q and u: probabilities are the target's before the sampler"]
    if longest != 0:
        notes.append("min-p cannot be used, since vLLM does not take it where it drafts")
    notes += [note for note in (why, others) if note]
    shown, none = name or f"vLLM {server.address}", ByModel(None, None)
    info = PairInfo(shown, server.model, None, "server", server.address, none, none, server)
    return ServedPair(client, model, info, server, context, always, notes)


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


class _Model(BaseModel):
    id: Annotated[str, Field(min_length=1, max_length=LONGEST_MODEL_NAME)]
    owned_by: str | None = None
    max_model_len: Annotated[int, Field(gt=0, lt=MOST_CONTEXT)] | None = None


class _Models(BaseModel):
    data: Annotated[list[_Model], Field(max_length=MOST_MODELS)]


def _model(client: Client) -> tuple[str, float, str]:
    """The name of what it serves, the longest text, and a note on what else it serves, or nothing."""
    text = run_in_loop(client.ask("GET", "/v1/models")).result()
    if text is None:
        raise client.error("has no /v1/models: this needs a vLLM server")
    answer = client.parsed(text.encode())
    if not isinstance(answer, dict) or not answer.get("data") or not isinstance(answer["data"], list):
        raise client.error("serves no model")
    try:
        models = _Models.model_validate(answer).data
    except ValidationError as error:
        raise client.error(f"sent a list of models that vLLM would not send: {first_fault(error)}") from None
    first = models[0]
    if first.owned_by not in (None, "vllm"):
        why = "only vLLM tells its rounds in a way that is read here"
        raise client.error(f"is of {first.owned_by[:40]} and not vLLM: {why}")
    context = float("inf") if first.max_model_len is None else float(first.max_model_len)
    others = f"the server has {len(models) - 1} more models, which are not used" if len(models) > 1 else ""
    return first.id, context, others


def _probed(client: Client, model: str) -> tuple[Counters | None, list[int], Steps | None]:
    """The counters before a short answer, and what it shows. A server that was just started is late with its
    first answers, and merges their rounds."""
    for _ in range(PROBES):
        before = read_counters(client, model)
        try:
            return before, *_probe(client, model)
        except Merged as error:
            merged = client.error(str(error))
    raise merged


def _probe(client: Client, model: str) -> tuple[list[int], Steps | None]:
    """How many tokens each chunk of a short answer has, and what the server tells of its drafts after it."""
    sizes, steps = [], None
    stream = Stream(client, "/v1/completions", {"model": model, **PROBE, **WANTED})
    reader, until = ChunkReader(stream.room), time.monotonic() + client.read_seconds
    try:
        while (arrived := stream.next(max(0.0, until - time.monotonic()))) is not None:
            chunk = reader.read(arrived[0])
            steps = chunk.told.steps if chunk.told else steps
            if chunk.pieces:
                round_of(len(sizes), chunk, 0.0, None, False)  # refuses several rounds in a chunk
                sizes.append(len(chunk.pieces))
    except TimeoutError:
        raise client.silent() from None
    except Merged:
        raise
    except Misread as error:
        raise client.error(str(error)) from None
    finally:
        stream.close()
    if not sizes:
        raise client.error("has sent no token when it was asked for some")
    return sizes, steps


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
