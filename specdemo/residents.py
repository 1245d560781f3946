"""Which pairs stay loaded."""

import gc
import threading
from collections import OrderedDict

import torch

from specdemo.loading import Plan, load, plan
from specdemo.machine import memory_of
from specdemo.pair import Pair


class Residents:
    """Pairs that stay loaded, as long as they take at most half of their device's memory together; the least recently
    used one goes first, and its memory is given back."""

    def __init__(self, share: float = 0.5):
        self.share = share
        self.pairs: OrderedDict[tuple, Pair] = OrderedDict()
        self.lock = threading.Lock()

    def get(self, name: str | None = None, **request) -> Pair:
        """As `load_pair`, but a pair that is there is not loaded again."""
        key = (name, *sorted((option, str(value)) for option, value in request.items() if value is not None))
        with self.lock:
            if key in self.pairs:
                self.pairs.move_to_end(key)
                return self.pairs[key]
            wanted = plan(name, **request)  # checked before anything is sent away for it
            self._make_room(wanted)
            pair = self.pairs[key] = load(wanted)
            return pair

    def _make_room(self, wanted: Plan) -> None:
        needed = sum(part.bytes for part in wanted.parts)
        idle = [key for key, pair in self.pairs.items() if not pair.lock.locked()]
        while idle and self.held(wanted.target.device) + needed > self.share * memory_of(wanted.target.device):
            del self.pairs[idle.pop(0)]
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()

    def held(self, device: str = "cpu") -> int:
        """Bytes of weights that the resident pairs hold on a kind of device."""
        held = [pair.bytes_held for pair in self.pairs.values() if pair.info.device.split(":")[0] == device.split(":")[0]]
        return sum(bytes.target + (bytes.drafter or 0) for bytes in held)
