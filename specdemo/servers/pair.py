"""A server in the place of a pair: what it tells of itself, and what can be asked of it."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Annotated

from pydantic import BaseModel, Field, ValidationError

from specdemo.errors import without_directories
from specdemo.events import METHODS, RULES, ByModel, ChatMessage, PairInfo, Params, ServerInfo
from specdemo.events.params import tree_text
from specdemo.servers.chunks import first_fault
from specdemo.servers.client import Client, Condition, host_of, never, readable, run_in_loop, server_address
from specdemo.servers.counters import Counters
from specdemo.servers.llama_cpp import LlamaCpp
from specdemo.servers.software import Software
from specdemo.servers.vllm import Vllm
from specdemo.words.catalogue import numeral
from specdemo.words.message import message, refusal

LONGEST_MODEL_NAME = 1_000  # characters: it can be a path
MOST_MODELS = 1_000  # adapters are models, too
MOST_CONTEXT = 2**31  # tokens; the longest of today's have 10,000,000
SOFTWARE: dict[str, type[Software]] = {"vllm": Vllm, "llamacpp": LlamaCpp}  # by owned_by
SERVER_PREFIX = "Server "  # begins the names of servers
# Fields of Params: what the server has chosen when it was started, and what it has not at all.
OF_CHOICES = [field for choice in (*METHODS.values(), *RULES.values()) for field in choice.fields]
SERVERS_OWN = ("draft_with", "rule", *dict.fromkeys(OF_CHOICES))


@dataclass(eq=False)
class ServedPair:
    """A running server, which takes the place of a Pair in `stream`. longest: see `round_of`; always:
    whether each draft has so many tokens, as far as the server's counters and its first answer show."""

    client: Client
    software: Software
    info: PairInfo
    server: ServerInfo
    context: float  # the most tokens of prompt and text together
    always: bool
    notes: list[str]
    lock: threading.Lock = field(default_factory=threading.Lock)
    failed: bool = False  # whether a run has failed since; then it is asked again what it is
    is_sound: bool = True  # see ChunkReader
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
        return {self.software.name.lower(): self.server.version} if self.server.version else {}

    @property
    def drafts(self) -> bool:
        """Whether it drafts, as far as it tells."""
        return self.longest != 0

    def distrust(self) -> None:
        """From now on its probabilities are not known."""
        self.is_sound = False
        self.notes = [*self.notes, message("server_sums")]

    def counters(self, is_over: Condition = never) -> Counters | None:
        """What the server has counted up to now; None where it does not tell, and once `is_over`."""
        return self.software.counters(idle=self.left, is_over=is_over)

    def check(self, params: Params) -> Params:
        """The Params as this server takes them. ValueError names a field that it does not take."""
        usual = Params()
        also = {"gamma": (self.longest, "auto"), "draft_with": () if self.drafts else ("none",)}
        for name in SERVERS_OWN:
            value, own = getattr(params, name), getattr(usual, name)
            if value not in (own, *also.get(name, ())):
                usual_value = own if isinstance(own, str) else numeral(own, "")
                if name == "tree":
                    raise ValueError(refusal(name, "servers_own_empty", tree_text(params.tree)))
                raise ValueError(refusal(name, "servers_own", value, name=usual_value))
        for fault in self.software.faults(params, self.drafts):
            raise ValueError(fault)
        if self.longest == 0:
            return replace(params, draft_with="none", gamma=usual.gamma)
        known = self.longest is not None and 1 <= self.longest <= 16
        return replace(params, gamma=self.longest if known else usual.gamma)

    def prompt_ids(
        self, prompt: str | tuple[ChatMessage, ...], params: Params, is_over: Condition = never
    ) -> list[int] | None:
        """The prompt as the server will read it; None if it does not tell before, and once `is_over`."""
        return self.software.prompt_ids(prompt, params, is_over)

    def check_gpu(self, write: Callable[[str], list[int]]) -> None:
        """No GPU of this machine writes its texts."""


def connect(url: str, key: str | None = None, name: str | None = None) -> ServedPair:
    """Asks the server at this address what it is, and for a few tokens, which show how it answers. key: that
    of its --api-key. name: shown in place of the address. PairError for a wrong address, ServerError if the
    server cannot be used."""
    client = Client(server_address(url), key, name)
    model, others = _model(client)
    software = SOFTWARE[model.owned_by or "vllm"](client, model.id)
    looked = software.look(model.max_model_len)
    shown_model = readable(model.id[:200])
    server = ServerInfo(
        address=host_of(client.address) if name is None else name,
        software=software.name,
        version=looked.version,
        model=shown_model if name is None else without_directories(shown_model),
        method=looked.method,
        gamma=looked.longest,
        parallel=looked.parallel,
    )
    notes = [*looked.notes, *([others] if others else [])]
    shown, none = name or f"{SERVER_PREFIX}{server.address}", ByModel(None, None)
    info = PairInfo(shown, server.model, None, "server", server.address, none, none, server)
    return ServedPair(client, software, info, server, looked.context, looked.always, notes)


class _Model(BaseModel):
    id: Annotated[str, Field(min_length=1, max_length=LONGEST_MODEL_NAME)]
    owned_by: str | None = None
    max_model_len: Annotated[int, Field(gt=0, lt=MOST_CONTEXT)] | None = None


class _Models(BaseModel):
    data: Annotated[list[_Model], Field(max_length=MOST_MODELS)]


def _model(client: Client) -> tuple[_Model, str]:
    """What it serves, and a note on what else it serves, or nothing."""
    text = run_in_loop(client.ask("GET", "/v1/models")).result()
    if text is None:
        raise client.error("has no /v1/models: this needs a server of vLLM or llama.cpp")
    answer = client.parsed(text.encode())
    if not isinstance(answer, dict) or not answer.get("data") or not isinstance(answer["data"], list):
        raise client.error("serves no model")
    try:
        models = _Models.model_validate(answer).data
    except ValidationError as error:
        raise client.error(
            f"sent a list of models that no such server would send: {first_fault(error)}"
        ) from None
    first = models[0]
    if first.owned_by and first.owned_by not in SOFTWARE:
        why = "only these tell their rounds in a way that is read here"
        raise client.error(f"is of {first.owned_by[:40]} and not vLLM or llama.cpp: {why}")
    others = f"the server has {len(models) - 1} more models, which are not used" if len(models) > 1 else ""
    return first, others
