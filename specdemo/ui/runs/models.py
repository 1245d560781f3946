"""What a visitor can choose (pairs, and servers in their place), how much memory it needs, and whether
it is loaded. Without Gradio."""

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from huggingface_hub import get_token

from specdemo import zero
from specdemo.errors import PairError, no_mistakes, with_words, without_directories
from specdemo.loading import catalog
from specdemo.loading.catalog import CATALOGUE, Entry
from specdemo.loading.fetch import OnProgress
from specdemo.loading.load import automatic_dtype, target_for
from specdemo.loading.pair import AnyPair, Pair
from specdemo.loading.pool import ModelPool
from specdemo.loading.request import ROLES, PairRequest, for_role, resolve
from specdemo.runtime.cuda import is_cuda
from specdemo.runtime.device import device_name, free_memory, memory_of, why
from specdemo.servers.client import host_of, server_address
from specdemo.servers.pair import connect
from specdemo.servers.software import SERVER_PREFIX, ServedPair
from specdemo.ui.runs.limits import LOCAL, Limits
from specdemo.ui.view.settings import WEIGHT_CHOICES
from specdemo.words.message import Message, about, refusal


class GivenServer:
    """A running server in the place of a pair. name: shown in place of its address, which visitors of a
    public page do not see."""

    def __init__(self, url: str, key: str | None = None, name: str | None = None) -> None:
        self.address, self.key, self.alias = server_address(url), key, name
        self.pair: ServedPair | None = None
        self.lock = threading.Lock()

    @property
    def name(self) -> str:
        shown = host_of(self.address) if self.address.startswith("http:") else self.address
        return self.alias or f"{SERVER_PREFIX}{shown}"

    def loaded(self) -> ServedPair | None:
        """The server if it has been asked what it is, and has not failed since."""
        return None if self.pair is None or self.pair.failed else self.pair

    def get(self) -> ServedPair:
        """The server, asked what it is if necessary, once by all; raises as `connect` does."""
        with self.lock:
            self.pair = self.loaded() or connect(self.address, self.key, self.alias)
            return self.pair


EMBEDDED_PAIRS = ("embedded", catalog.POOR, catalog.EAGLE3, catalog.DFLASH)


@dataclass(frozen=True)
class Choice:
    """What a visitor has chosen. A field that is None is as the server was started."""

    pair: str | None = None
    dtype: str | None = None
    quantize: str | None = None
    quantize_drafter: str | None = None


@dataclass(frozen=True)
class Needs:
    """What a choice needs. Bytes of weights are measured if the pair is loaded, and else estimated from the
    catalogue. If nothing is known, they are None, and the total is 0."""

    target_bytes: int | None = None
    drafter_bytes: int | None = None
    total: int = 0
    memory: int = 0  # bytes that the device has
    fits: bool = True
    loaded: bool = False
    gated: bool = False
    tried: str = ""
    device: str = "server"
    device_name: str = ""
    why: Message | str = ""  # it is computed there
    server: str = ""  # what is known of the server that is chosen; empty for a pair


class Models:
    """The pairs that a visitor can choose, by name."""

    def __init__(
        self,
        default: dict[str, Any],
        limits: Limits = LOCAL,
        allowed: Sequence[str] = (),
        servers: Sequence[GivenServer] = (),
    ):
        """The models of a server. default: the arguments of `load_pair` for the pair that the server was
        started with. Its device, dtype and quantisation apply to all pairs. allowed: names of pairs that a
        public server's owner offers besides the usual ones. servers: running servers; the first is what the
        page begins with, unless a pair is given."""
        self.limits = limits
        keys = {one.address: one.key for one in servers}
        names = [f"{SERVER_PREFIX}{at}" if limits.hosted else None for at, _ in enumerate(keys, start=1)]
        given = [GivenServer(*one, name) for one, name in zip(keys.items(), names, strict=True)]
        self.servers = {one.name: one for one in given}
        is_given = any(default.get(option) is not None for option in ("name", "target", "drafter"))
        if default.get("name") is None:
            default = default | {"target": target_for(default.get("target"), default.get("drafter"))}
        self.default_request = resolve(**default)
        self.default = self._as_shown(self.default_request).name
        how = {name: value for name, value in default.items() if name in ("device", "dtype", "quantize")}
        names = self._public_names(how, allowed) if limits.hosted or zero.GPU else list(CATALOGUE)
        self.arguments = {name: {"name": name, **how} for name in names}
        if self.default not in CATALOGUE:
            self.arguments = {self.default: default, **self.arguments}
        if self.servers and not is_given:
            self.default = next(iter(self.servers))
        self.pool = ModelPool(seconds=limits.load_seconds)

    @property
    def names(self) -> list[str]:
        return [*self.servers, *self.arguments]

    def _server(self, choice: Choice) -> GivenServer | None:
        """The server that is chosen, if one is."""
        name = choice.pair or self.default
        return self.servers.get(name) if isinstance(name, str) else None

    def _public_names(self, how: dict[str, Any], allowed: Sequence[str]) -> list[str]:
        """The pairs of the catalogue that anyone may choose: the embedded ones, and those for this device
        that its free memory has room for now.

        A gated pair would be downloaded with the token of the server's owner, who has accepted its terms for
        himself. So it is offered only where he has both listed it and set a token. On ZeroGPU all of them are
        loaded before the page starts, so there are none but those that he has chosen.
        """
        for name in allowed:
            if name not in CATALOGUE:
                raise PairError(
                    f"allow must be names out of {catalog.names_in_words(CATALOGUE)}, not {ascii(name)[:60]}"
                )
        device = self.default_request.device
        free = free_memory(device)
        usual = catalog.FOR_GPUS if is_cuda(device) and not zero.GPU else ()
        listed = dict.fromkeys((*usual, *allowed))
        own = [self.default] if self.default in CATALOGUE else []
        return [
            name
            for name, entry in CATALOGUE.items()
            if name in (*EMBEDDED_PAIRS, *own)
            or name in listed
            and (get_token() or not entry.gated)
            and sum(_estimated_sizes(resolve(name, **how), entry)) <= free
        ]

    def _as_shown(self, request: PairRequest) -> PairRequest:
        """The request as visitors see it: on a public server, a model's directory is named without those
        above it."""
        if not self.limits.hosted or request.name in CATALOGUE:
            return request
        parts = [
            replace(part, id=Path(part.id).resolve().name) if os.path.isdir(part.place) else part
            for part in request.parts
        ]
        name = " + ".join(part.id for part in parts)
        return replace(request, name=f"own {name}" if name in CATALOGUE else name, parts=tuple(parts))

    def is_server(self, choice: Choice) -> bool:
        return self._server(choice) is not None

    def beside(self, choice: Choice) -> list[Choice]:
        """The other given servers that can be reached and serve a model of the same name as the chosen one,
        which are asked if necessary. Raises as `get` does."""
        chosen = self._server(choice)
        assert chosen is not None, "a server is chosen"
        pair, same = chosen.get(), []
        for one in self.servers.values():
            with suppress(PairError):
                if one.get() is not pair and one.get().server.model == pair.server.model:
                    same.append(Choice(one.name))
        return same

    def request(self, choice: Choice) -> PairRequest:
        """The request that a choice makes. Raises PairError with one sentence that says what cannot be
        chosen."""
        for field in WEIGHT_CHOICES if self.limits.hosted else ():
            if getattr(choice, field) is not None:
                raise PairError(about(field, "fixed"))
        name = self.default if choice.pair is None else choice.pair
        if not isinstance(name, str) or name not in self.arguments:
            raise PairError(refusal("pair", "choice", name, names=catalog.names_in_words(self.names)))
        arguments = dict(self.arguments[name])
        if choice.dtype is not None:
            arguments["dtype"] = choice.dtype
        chosen = {"target": choice.quantize, "drafter": choice.quantize_drafter}
        arguments["quantize"] = {
            role: for_role(arguments.get("quantize"), role, "quantize") if kind is None else kind
            for role, kind in chosen.items()
        }
        return self._as_shown(resolve(**arguments))

    def get(
        self,
        choice: Choice = Choice(),
        on_progress: OnProgress = lambda *_: None,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> AnyPair:
        """The pair, loaded if necessary; see ModelPool.get."""
        if server := self._server(choice):
            return server.get()
        request = self.request(choice)
        try:
            with no_mistakes():
                return self.pool.get(request, on_progress, is_wanted)
        except PairError as error:
            if not self.limits.hosted:
                raise
            told = with_words(error, without_directories)
        raise told

    def loaded(self, choice: Choice) -> AnyPair | None:
        """The pair if it is loaded; returns at once."""
        if server := self._server(choice):
            return server.loaded()
        return self.pool.loaded(self.request(choice))

    def needs(self, choice: Choice) -> Needs:
        if server := self._server(choice):
            pair = server.loaded()
            unknown = "a server; it is asked what it is at the first run"
            return Needs(loaded=pair is not None, server=pair.about if pair else unknown)
        request = self.request(choice)
        entry, pair = CATALOGUE.get(request.name), self.pool.loaded(request)
        sizes = _sizes(request, entry, pair)
        total, memory = sum(sizes), memory_of(request.device)
        target_bytes, drafter_bytes, *_ = *sizes, None, None
        return Needs(
            target_bytes,
            drafter_bytes,
            total=total,
            memory=memory,
            fits=total <= memory,
            loaded=pair is not None,
            gated=entry.gated if entry else False,
            tried=entry.tried if entry else "not by this project",
            device=request.device,
            device_name=device_name(request.device),
            why=why(request.device),
        )

    def listed(self) -> list[dict[str, Any]]:
        """What the API's `pairs` returns, the default pair first if it is not from the catalogue."""
        entries = [
            asdict(entry) | {"tried": entry.tried, "about": str(entry.about)}
            for name, entry in CATALOGUE.items()
            if name in self.arguments
        ]
        no_models: dict[str, None] = dict.fromkeys(ROLES)
        served = [{"name": name, **no_models, "about": "a server"} for name in self.servers]
        if self.default_request.name in CATALOGUE:
            return [*served, *entries]
        shown = self._as_shown(self.default_request)
        ids = dict.fromkeys(ROLES) | {part.role: part.id for part in shown.parts}
        own = {"name": shown.name, **ids, "about": "as the server was started"}
        return [own, *served, *entries] if self.default == shown.name else [*served, own, *entries]


def _sizes(request: PairRequest, entry: Entry | None, pair: Pair | None) -> list[int]:
    """The bytes of the target's weights, and of the drafter's if there is one; empty if nothing is known."""
    if pair:
        held = pair.bytes_held
        return [held.target] if held.drafter is None else [held.target, held.drafter]
    return _estimated_sizes(request, entry) if entry else []


def _estimated_sizes(request: PairRequest, entry: Entry) -> list[int]:
    gigabytes = (entry.gigabytes - entry.drafter_gigabytes, entry.drafter_gigabytes)
    parameters = [int(5e8 * size) for size in gigabytes]  # two bytes each in bfloat16
    automatic, _ = automatic_dtype(request.device, sum(parameters))
    bits = [
        catalog.QUANTIZE[part.quantize] if part.quantize else 8 * (part.dtype or automatic).itemsize
        for part in request.parts
    ]
    return [count * width // 8 for count, width in zip(parameters, bits, strict=True)]
