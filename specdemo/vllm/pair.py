"""A server in the place of a pair: what it tells of itself, and what can be asked of it."""

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import BaseModel, ValidationError

from specdemo.errors import without_directories
from specdemo.events import ByModel, PairInfo, Params, ServerInfo
from specdemo.vllm.address import address_of, host_of
from specdemo.vllm.chunks import Merged, Misread, Steps, chunk_of
from specdemo.vllm.client import ASK_SECONDS, Client
from specdemo.vllm.counters import Counters, read_counters
from specdemo.vllm.rounds import round_of

PROBE_TOKENS = 24
PROBES = 4
SPARE_EVENTS = 8  # besides those with tokens: a chat's first one, the usage
PROBE = {"prompt": "Once upon a time", "temperature": 0, "max_tokens": PROBE_TOKENS, "ignore_eos": True}
WANTED = {"stream": True, "return_token_ids": True, "stream_options": {"include_usage": True}}
DETAILED = "start it with --per-request-spec-decode-metrics detailed"
# Of Params: what the server has chosen when it was started, and what it has not at all.
SERVERS_OWN = ("draft_with", "gamma", "confidence", "exit_layer", "ngram", "rule", "lenience")


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
    vocab_size = 2**31  # is not told; the server refuses ids that it does not have

    @property
    def longest(self) -> int | None:
        return self.server.gamma

    @property
    def about(self) -> str:
        """What the server tells of itself, in words."""
        server = self.server
        version = f" {server.version}" if server.version else ""
        method = f" by {server.method}" if server.method else ""
        drafts = {None: f"it drafts{method}, how much is not told", 0: "it does not draft"}.get(
            server.gamma, f"it drafts up to {server.gamma} tokens{method}"
        )
        parallel = f"; {server.parallel}" if server.parallel else ""
        return f"{server.software}{version} serves {server.model}; {drafts}{parallel}"

    @property
    def versions(self) -> dict[str, str]:
        return {"vllm": self.server.version} if self.server.version else {}

    @property
    def drafts(self) -> bool:
        """Whether it drafts, as far as it tells."""
        return self.longest != 0

    def counters(self, is_over: Callable[[], bool] = lambda: False) -> Counters | None:
        """What it has counted up to now; None where it does not tell, and once `is_over`."""
        return read_counters(self.client, self.model, idle=self.left, is_over=is_over)

    def check(self, params: Params) -> Params:
        """The Params as this server takes them. ValueError names a field that it does not take."""
        usual = Params()
        for name in SERVERS_OWN:
            value, longest = getattr(params, name), self.longest
            own = (getattr(usual, name), *((longest, "auto") if name == "gamma" else ()))
            own += ("none",) if name == "draft_with" and not self.drafts else ()
            if value not in own:
                raise ValueError(
                    f"{name} must be left at {getattr(usual, name)} for a server, which drafts as it was "
                    f"started, not {ascii(value)[:60]}"
                )
        if params.min_p and params.temperature and self.drafts:
            raise ValueError(f"min_p {NO_MIN_P}")
        if self.longest == 0:
            return replace(params, draft_with="none", gamma=usual.gamma)
        known = self.longest is not None and 1 <= self.longest <= 16
        return replace(params, gamma=self.longest if known else usual.gamma)

    def prompt_ids(self, prompt: str, params: Params) -> list[int]:
        """The prompt as the server will read it; empty if it does not tell before."""
        body: dict[str, Any] = {"model": self.model}
        body |= {"messages": messages_of(prompt, params)} if params.chat else {"prompt": prompt}
        answer = self.client.post("/tokenize", body)
        ids = answer.get("tokens") if isinstance(answer, dict) else None
        is_known = isinstance(ids, list) and all(isinstance(one, int) and one >= 0 for one in ids)
        return ids if is_known else []


NO_MIN_P = "must be 0 here: vLLM does not take min-p where it drafts"


def messages_of(prompt: str, params: Params) -> list[dict[str, str]]:
    system = [] if params.system is None else [{"role": "system", "content": params.system}]
    return [*system, {"role": "user", "content": prompt}]


def connect(url: str, key: str | None = None, name: str | None = None) -> ServedPair:
    """Asks the server at this address what it is, and for a few tokens, which show how it answers. key: of
    its --api-key. name: shown in place of the address. PairError for a wrong address, ServerError if the
    server cannot be used."""
    client = Client(address_of(url), key, name)
    model, context, others = _model(client)
    version = client.optional("/version", seconds=ASK_SECONDS)
    before, sizes, steps = _probed(client, model)
    after = read_counters(client, model, before)
    longest, always, why = _drafting(sizes, steps, before, after)
    method, parallel = _told(client.optional("/server_info?config_format=json", seconds=ASK_SECONDS))
    shown_model = "".join(sign if sign.isprintable() else "?" for sign in model[:200])
    server = ServerInfo(
        address=host_of(client.address) if name is None else name,
        software="vLLM",
        version=_version(version),
        model=shown_model if name is None else without_directories(shown_model),
        method="none" if longest == 0 else method,
        gamma=longest,
        parallel=parallel,
    )
    notes = [*_limits(longest), *([why] if why else []), *others]
    shown = name or f"vLLM {server.address}"
    none = ByModel(None, None)
    info = PairInfo(shown, server.model, None, "server", server.address, none, none, server)
    return ServedPair(client, model, info, server, context, always, notes)


def _version(text: str | None) -> str | None:
    try:
        version = json.loads(text or "{}").get("version")
    except (ValueError, AttributeError):
        return None
    return version[:40] if isinstance(version, str) else None


class _Config(BaseModel):
    """What vLLM tells of itself when it was started with VLLM_SERVER_DEV_MODE=1."""

    class Speculative(BaseModel):
        method: str | None = None

    class Parallel(BaseModel):
        tensor_parallel_size: int = 1
        pipeline_parallel_size: int = 1
        data_parallel_size: int = 1

    speculative_config: Speculative | None = None
    parallel_config: Parallel | None = None


class _Told(BaseModel):
    vllm_config: _Config


def _told(text: str | None) -> tuple[str | None, str | None]:
    """The method of drafting, and over how many devices it runs, in words; None for what is not told."""
    try:
        config = _Told.model_validate_json(text or "").vllm_config
    except ValidationError:
        return None, None
    method = config.speculative_config.method if config.speculative_config else None
    if config.parallel_config is None:
        return method, None
    sizes = {
        "tensor": config.parallel_config.tensor_parallel_size,
        "pipeline": config.parallel_config.pipeline_parallel_size,
        "data": config.parallel_config.data_parallel_size,
    }
    words = [f"{kind}-parallel over {size}" for kind, size in sizes.items() if size > 1]
    return method and method[:40], ", ".join(words) or "not parallel"


def _model(client: Client) -> tuple[str, float, list[str]]:
    """The name of what it serves, the longest text, and a note on what else it serves."""
    text = client.get("/v1/models")
    if text is None:
        raise client.error("has no /v1/models: this needs a vLLM server")
    answer = client.parsed(text.encode())
    found = answer.get("data") if isinstance(answer, dict) else None
    models = [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
    names = [one["id"] for one in models if isinstance(one.get("id"), str)]
    if not names:
        raise client.error("serves no model")
    owner = models[0].get("owned_by")
    if isinstance(owner, str) and owner != "vllm":
        raise client.error(
            f"is of {owner[:40]} and not vLLM: only vLLM tells its rounds in a way that is read here"
        )
    longest = models[0].get("max_model_len")
    context = float(longest) if isinstance(longest, int) and longest > 0 else float("inf")
    others = [f"the server has {len(names) - 1} more models, which are not used"] if len(names) > 1 else []
    return names[0], context, others


def _probed(client: Client, model: str) -> tuple[Counters | None, list[int], Steps | None]:
    """The counters before a short answer, and what it shows. A server that was just started is late with its
    first answers, and merges their rounds."""
    for left in reversed(range(PROBES)):
        before = read_counters(client, model)
        try:
            return before, *_probe(client, model)
        except Merged as error:
            if not left:
                raise client.error(str(error)) from None
    raise AssertionError("the last one returns or raises")


def _probe(client: Client, model: str) -> tuple[list[int], Steps | None]:
    """How many tokens each chunk of a short answer has, and what the server tells of its drafts after it."""
    sizes, steps = [], None
    body = {"model": model, "logprobs": 1, **PROBE, **WANTED}
    stream = client.stream("/v1/completions", body, PROBE_TOKENS + SPARE_EVENTS)
    try:
        while (arrived := stream.next(client.read_seconds)) is not None:
            chunk = chunk_of(arrived.data)
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
        return longest, False, f"{BUSY}: {DETAILED}"
    full = added.drafts == rounds and added.drafted == rounds * longest
    return longest, full, "" if full else VARIES


VARIES = (
    "not every draft of this server has the same length, so it is not known how many tokens were refused, "
    f"and which of the target's own tokens are bonus tokens: {DETAILED}, which tells it after each run"
)
NO_COUNTERS = "the server does not tell how it drafts: its /metrics cannot be read"
BUSY = (
    "others used the server when it was looked at, so it is not known whether every draft has the same length"
)


def _limits(longest: int | None) -> list[str]:
    """What a user should know of any server."""
    notes = ["the server tells no p, q and u: probabilities are the target's before the sampler"]
    return (
        notes
        if longest == 0
        else [*notes, "min-p cannot be used, since vLLM does not take it where it drafts"]
    )
