"""What a visitor can choose, how much memory it needs, and whether it is loaded. Without Gradio."""

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from huggingface_hub import try_to_load_from_cache
from transformers import PreTrainedModel

from specdemo.loading.catalog import CATALOGUE, QUANTIZE, Entry
from specdemo.loading.errors import PairError
from specdemo.loading.load import OnProgress, automatic_dtype, plan_from, read_skeleton
from specdemo.loading.pair import Pair
from specdemo.loading.pool import ModelPool
from specdemo.loading.request import ROLES, Request, for_role, resolve
from specdemo.runtime.device import memory_of


@dataclass(frozen=True)
class Choice:
    """What a visitor has chosen. None: as the server was started."""

    pair: str | None = None
    dtype: str | None = None
    quantize: str | None = None
    quantize_drafter: str | None = None


@dataclass(frozen=True)
class Needs:
    """What a choice needs. Bytes of weights are measured if the pair is loaded, computed if its configs are
    on this machine, and else estimated from the catalogue; None, and a total of 0, if nothing is known."""

    target_bytes: int | None
    drafter_bytes: int | None
    total: int
    memory: int  # bytes that the device has
    fits: bool
    loaded: bool
    gated: bool
    tried: str
    device: str


class Models:
    """The pairs that a visitor can choose, by name."""

    def __init__(self, default: dict[str, Any]):
        """default: the arguments of `load_pair` for the pair that the server was started with. Its device,
        dtype and quantisation apply to all pairs."""
        self.default_request = resolve(**default)
        self.default = self.default_request.name
        how = {name: value for name, value in default.items() if name in ("device", "dtype", "quantize")}
        self.arguments = {name: {"name": name, **how} for name in CATALOGUE}
        if self.default not in CATALOGUE:
            self.arguments = {self.default: default, **self.arguments}
        self.pool = ModelPool()

    def request(self, choice: Choice) -> Request:
        """PairError: one sentence that says what cannot be chosen."""
        name = self.default if choice.pair is None else choice.pair
        if not isinstance(name, str) or name not in self.arguments:
            raise PairError(f"pair must be one of {', '.join(self.arguments)}, not {ascii(name)[:60]}")
        arguments = dict(self.arguments[name])
        if choice.dtype is not None:
            arguments["dtype"] = choice.dtype
        chosen = {"target": choice.quantize, "drafter": choice.quantize_drafter}
        arguments["quantize"] = {
            role: for_role(arguments.get("quantize"), role, "quantize") if kind is None else kind
            for role, kind in chosen.items()
        }
        return resolve(**arguments)

    def get(
        self,
        choice: Choice = Choice(),
        on_progress: OnProgress = lambda *_: None,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> Pair:
        """The pair, loaded if necessary; see ModelPool.get."""
        return self.pool.get(self.request(choice), on_progress, is_wanted)

    def loaded(self, choice: Choice) -> Pair | None:
        """The pair if it is loaded; returns at once."""
        return self.pool.loaded(self.request(choice))

    def needs(self, choice: Choice) -> Needs:
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
        )

    def listed(self) -> list[dict[str, Any]]:
        """What the API's `pairs` returns, the default pair first if it is not from the catalogue."""
        entries = [asdict(entry) for entry in CATALOGUE.values()]
        if self.default in CATALOGUE:
            return entries
        ids = dict.fromkeys(ROLES) | {part.role: part.id for part in self.default_request.parts}
        return [{"name": self.default, **ids, "about": "as the server was started"}, *entries]


def _sizes(request: Request, entry: Entry | None, pair: Pair | None) -> list[int]:
    """Bytes of the target's weights, and of the drafter's if there is one; empty if nothing is known."""
    if pair:
        held = pair.bytes_held
        return [held.target] if held.drafter is None else [held.target, held.drafter]
    try:
        if all(_has_config(part.place) for part in request.parts):
            skeletons = [_skeleton(part.role, part.place) for part in request.parts]
            return list(plan_from(request, skeletons).sizes)
    except (PairError, ValueError):  # reported when the pair is loaded
        return []
    return _estimated_sizes(request, entry) if entry else []


def _estimated_sizes(request: Request, entry: Entry) -> list[int]:
    gigabytes = (entry.gigabytes - entry.drafter_gigabytes, entry.drafter_gigabytes)
    parameters = [int(5e8 * size) for size in gigabytes]  # two bytes each in bfloat16
    automatic, _ = automatic_dtype(request.device, sum(parameters))
    bits = [
        QUANTIZE[part.quantize] if part.quantize else 8 * (part.dtype or automatic).itemsize
        for part in request.parts
    ]
    return [count * width // 8 for count, width in zip(parameters, bits, strict=True)]


def _has_config(place: str) -> bool:
    """Whether the config can be read without a request to the hub."""
    return os.path.isdir(place) or isinstance(try_to_load_from_cache(place, "config.json"), str)


@lru_cache
def _skeleton(role: str, place: str) -> PreTrainedModel:
    return read_skeleton(role, place, offline=True)
