"""What a visitor can choose, what it takes, and whether it is loaded. Knows nothing of Gradio."""

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache

from huggingface_hub import try_to_load_from_cache

from specdemo.loading.catalog import CATALOGUE
from specdemo.loading.errors import PairError
from specdemo.loading.load import Report, automatic_dtype, read_skeleton, weigh
from specdemo.loading.pair import Pair
from specdemo.loading.pool import Residents
from specdemo.loading.request import QUANTIZE, ROLES, Request, of, resolve
from specdemo.runtime.device import memory_of


@dataclass(frozen=True)
class Choice:
    """What a visitor asks for. None: as the server was started."""

    pair: str | None = None
    dtype: str | None = None
    quantize: str | None = None
    quantize_drafter: str | None = None


@dataclass(frozen=True)
class Needs:
    """What a choice takes. Bytes are those that are held where the pair is loaded, exact where its configs are on this machine, else
    from the catalogue; None, and a total of 0, where nobody can say."""

    target_bytes: int | None
    drafter_bytes: int | None
    total: int
    memory: int  # bytes, of the device
    fits: bool
    loaded: bool
    gated: bool
    tried: str
    device: str


class Models:
    """The pairs that a visitor can choose from, by name; loaded when first asked for."""

    def __init__(self, request: dict):
        """`request`: the arguments of `load_pair` for the default pair. Its device, dtype and quantisation hold for all."""
        started = self.started = resolve(**request)
        how = {
            option: value for option, value in request.items() if option in ("device", "dtype", "quantize")
        }
        self.default = started.name
        self.requests = {name: {"name": name, **how} for name in CATALOGUE}
        if self.default not in CATALOGUE:
            self.requests = {self.default: request, **self.requests}
        self.residents = Residents()

    def request(self, choice: Choice) -> Request:
        """PairError says in a sentence what cannot be chosen."""
        name = self.default if choice.pair is None else choice.pair
        if not isinstance(name, str) or name not in self.requests:
            raise PairError(f"pair must be one of {', '.join(self.requests)}, not {ascii(name)[:60]}")
        request = dict(self.requests[name])
        if choice.dtype is not None:
            request["dtype"] = choice.dtype
        chosen = dict(zip(ROLES, (choice.quantize, choice.quantize_drafter), strict=True))
        started = {role: of(request.get("quantize"), role, "quantize") for role in ROLES}
        request["quantize"] = {
            role: started[role] if chosen[role] is None else chosen[role] for role in ROLES
        }
        return resolve(**request)

    def get(
        self,
        choice: Choice = Choice(),
        report: Report = lambda *_: None,
        wanted: Callable[[], bool] = lambda: True,
    ) -> Pair:
        """The pair, loaded if need be. report: told what is being done, and the share that is done of it where that is known. wanted:
        whether somebody still waits for it when its turn to be loaded has come."""
        return self.residents.have(self.request(choice), report, wanted)

    def resident(self, choice: Choice) -> Pair | None:
        """The pair if it is there, at once."""
        return self.residents.resident(self.request(choice))

    def needs(self, choice: Choice) -> Needs:
        request = self.request(choice)
        entry, pair = CATALOGUE.get(request.name), self.residents.resident(request)
        bytes = _bytes(request, pair)
        total, memory = sum(bytes), memory_of(request.device)
        return Needs(
            *([*bytes, None, None][:2]),
            total=total,
            memory=memory,
            fits=total <= memory,
            loaded=pair is not None,
            gated=entry.gated if entry else False,
            tried=entry.tried if entry else "not by this project",
            device=request.device,
        )

    def listed(self) -> list[dict]:
        known = [asdict(entry) for entry in CATALOGUE.values()]
        if self.default in CATALOGUE:
            return known
        given = dict.fromkeys(ROLES) | {part.role: part.id for part in self.started.parts}
        return [{"name": self.default, **given, "about": "as the server was started with"}, *known]


def _bytes(request: Request, pair: Pair | None) -> list[int]:
    """Of the target, and of the drafter if there is one; nothing where nobody knows."""
    if pair:
        held = pair.bytes_held
        return [held.target] if held.drafter is None else [held.target, held.drafter]
    try:
        if all(_is_here(part.place) for part in request.parts):
            return list(weigh(request, [_skeleton(part.role, part.place) for part in request.parts]).bytes)
    except (PairError, ValueError):  # what is wrong with it is said when the pair is asked for
        return []
    if request.name not in CATALOGUE:
        return []
    entry = CATALOGUE[request.name]
    parameters = [
        int(5e8 * gigabytes)
        for gigabytes in (entry.gigabytes - entry.drafter_gigabytes, entry.drafter_gigabytes)
    ]
    automatic, _ = automatic_dtype(request.device, sum(parameters))
    bits = [
        QUANTIZE[part.quantize] if part.quantize else 8 * (part.dtype or automatic).itemsize
        for part in request.parts
    ]
    return [count * width // 8 for count, width in zip(parameters, bits, strict=True)]


def _is_here(place: str) -> bool:
    """Whether the hub need not be asked for the config."""
    return os.path.isdir(place) or isinstance(try_to_load_from_cache(place, "config.json"), str)


@lru_cache
def _skeleton(role: str, place: str):
    return read_skeleton(role, place, only_here=True)
