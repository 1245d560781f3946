"""The roofline: a round must read both models' weights, and memory is only so fast."""

from statistics import median
from time import perf_counter

import torch
from transformers import PreTrainedModel

from specdemo.events.metrics import ratio
from specdemo.loading.pair import Pair, held_bytes

COPIED = {"cuda": 2**30, "cpu": 2**28}  # bytes: far more than any cache holds


def weight_bytes(model: PreTrainedModel) -> int:
    """Bytes of weights that one forward of few tokens reads, quantised ones as they lie in memory. An embedding table is looked
    up, a row for each token, and does not count unless it is the output matrix too (tied). The cache of keys and values is
    not counted."""
    head = model.get_output_embeddings()
    output = head.weight.untyped_storage().data_ptr() if head is not None else None
    tables = {
        storage.data_ptr(): storage.nbytes()
        for module in model.modules()
        if isinstance(module, torch.nn.Embedding)
        for storage in (module.weight.untyped_storage(),)
    }
    return held_bytes(model) - sum(bytes for place, bytes in tables.items() if place != output)


def copy_bandwidth(device: torch.device | str, size: int | None = None, times: int = 7) -> float:
    """Bytes read and written a second while `size` bytes are copied within the device's memory, the median of several."""
    device = torch.device(device)
    source = torch.ones(size or COPIED[device.type], dtype=torch.uint8, device=device)
    copy = torch.zeros_like(source)
    seconds = []
    for _ in range(times + 1):
        _wait(device)
        start = perf_counter()
        copy.copy_(source)
        _wait(device)
        seconds.append(perf_counter() - start)
    return 2 * source.nbytes / median(seconds[1:])


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def roofline(
    pair: Pair, gamma: int, bandwidth: float, round_ms: float | None, plain_ms: float | None
) -> dict:
    """The shortest possible round (the target's weights once, the drafter's gamma times, at `bandwidth` bytes a second), and the
    share of it that a round of `round_ms` has reached. The same for plain decoding, whose round reads the target alone."""
    target = weight_bytes(pair.target)
    drafter = weight_bytes(pair.drafter) if pair.drafter is not None else 0
    shortest, shortest_plain = (1000 * bytes / bandwidth for bytes in (target + gamma * drafter, target))
    return {
        "bandwidth": bandwidth,
        "bytes": {"target": target, "drafter": drafter, "round": target + gamma * drafter},
        "shortest_round_ms": shortest,
        "round_ms": round_ms,
        "reached": ratio(shortest, round_ms),
        "plain": {
            "shortest_round_ms": shortest_plain,
            "round_ms": plain_ms,
            "reached": ratio(shortest_plain, plain_ms),
        },
    }
