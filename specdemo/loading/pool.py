"""Which pairs stay loaded."""

import gc
import threading
from collections import OrderedDict
from collections.abc import Callable

import torch

from specdemo.loading.errors import PairError
from specdemo.loading.load import Plan, Report, load, plan
from specdemo.loading.pair import Pair
from specdemo.loading.request import Request, resolve
from specdemo.runtime.device import memory_of


class Residents:
    """Pairs that stay loaded, as long as they take at most half of their device's memory together; the least recently
    used one goes first, and its memory is given back. One is loaded at a time; those that are there can be had meanwhile."""

    def __init__(self, share: float = 0.5):
        self.share = share
        self.pairs: OrderedDict[tuple, Pair] = OrderedDict()
        self.lock = threading.Lock()  # for a look into `pairs` or a change of them
        self.loading = threading.Lock()
        self.told: list[Report] = []  # everybody who waits for a pair

    def get(self, name: str | None = None, report: Report = lambda *_: None, **request) -> Pair:
        """As `load_pair`, but a pair that is there is not loaded again. report: is called with what is being done, while this
        waits for another pair that is loading, too."""
        return self.have(resolve(name, **request), report)

    def have(
        self, request: Request, report: Report = lambda *_: None, wanted: Callable[[], bool] = lambda: True
    ) -> Pair:
        """wanted: asked when its turn to be loaded has come; PairError when nobody waits for the pair any more."""
        if pair := self.resident(request):
            return pair
        self.told.append(report)
        try:
            with self.loading:
                if not wanted():
                    raise PairError("nobody waits for this pair any more")
                return self.resident(request) or self._load(
                    request
                )  # it may have been somebody else's wish, too
        finally:
            self.told.remove(report)

    def resident(self, request: Request) -> Pair | None:
        """The pair if it is there, at once."""
        with self.lock:
            if request.key in self.pairs:
                self.pairs.move_to_end(request.key)
            return self.pairs.get(request.key)

    def _load(self, request: Request) -> Pair:
        def tell(sentence: str, share: float | None) -> None:
            for report in list(self.told):
                report(sentence, share)

        tell("Reading the models' configs", None)
        wanted = plan(request)  # checked before anything is sent away for it
        self._make_room(wanted)
        pair = load(wanted, tell)
        with self.lock:
            self.pairs[request.key] = pair
        return pair

    def _make_room(self, wanted: Plan) -> None:
        device = wanted.request.device
        while self.held(device) + sum(wanted.bytes) > self.share * memory_of(device) and self._send_away():
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()

    def _send_away(self) -> bool:
        """Lets go of the least recently used pair that nobody runs; whether there was one."""
        with self.lock:
            idle = next((key for key, pair in self.pairs.items() if not pair.lock.locked()), None)
            return self.pairs.pop(idle, None) is not None

    def held(self, device: str = "cpu") -> int:
        """Bytes of weights that the resident pairs hold on a kind of device."""
        with self.lock:
            pairs = list(self.pairs.values())
        held = [pair.bytes_held for pair in pairs if pair.info.device.split(":")[0] == device.split(":")[0]]
        return sum(bytes.target + (bytes.drafter or 0) for bytes in held)
