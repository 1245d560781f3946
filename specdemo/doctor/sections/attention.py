"""Which of torch's attentions serves the engine's two shapes: one query, or gamma + 1, over a long cache with
a mask and grouped heads."""

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from time import perf_counter

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile

from specdemo.doctor.sections.cuda import device, need_cuda, replayed_us
from specdemo.doctor.trials import Failed, Finding, Table, Trial
from specdemo.runtime import cuda
from specdemo.runtime.attention import grouped_attention

HEADS, GROUPS, WIDTH = 24, 8, 128  # Llama 3.2 3B's
KEYS = {"cuda": 4096, "cpu": 512}  # the cache's length; a quarter of it is masked
BACKENDS = (
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.MATH,
)
OPERATION = "aten::_scaled_dot_product_"


def trials() -> Iterator[Trial]:
    for rows, name in ((1, "1 query"), (5, "5 queries")):
        yield Trial(f"{name} over a long cache", partial(chosen, rows))
    yield Trial("cuDNN attention", cudnn)


def _set_up() -> None:
    """A pair on a GPU chooses how attention is computed in its process."""
    if device() == "cuda":
        from specdemo.loading.load import load_pair

        load_pair(device="cuda")


def inputs(rows: int, keys: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Random query [1, H, N, d], key and value [1, G, L, d], and an additive mask [1, 1, N, L]."""
    where = device()
    dtype = torch.float32 if where == "cpu" else torch.bfloat16
    if where == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        dtype = torch.float16
    torch.manual_seed(0)
    shapes = ((1, HEADS, rows, WIDTH), (1, GROUPS, keys, WIDTH), (1, GROUPS, keys, WIDTH))
    query, key, value = (torch.randn(shape, device=where, dtype=dtype) for shape in shapes)
    mask = torch.zeros(1, 1, rows, keys, device=where, dtype=dtype)
    mask[..., keys - keys // 4 :] = torch.finfo(dtype).min
    return query, key, value, mask


def attention(rows: int, keys: int) -> Callable[[], Tensor]:
    """The attention of captured forwards over these inputs: [1, N, H, d]."""
    query, key, value, mask = inputs(rows, keys)
    return lambda: grouped_attention(torch.nn.Module(), query, key, value, mask, scaling=WIDTH**-0.5)[0]


@torch.no_grad()
def chosen(rows: int) -> Finding:
    _set_up()
    keys = KEYS[device()]
    run = attention(rows, keys)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        output = run()
    names = {
        event.key.removeprefix(OPERATION)
        for event in profiler.key_averages()
        if event.key.startswith(OPERATION)
    }
    name = " and ".join(sorted(names)) or "an unknown one"
    expected = exact(rows, keys)
    error = ((output.double() - expected).abs().max() / expected.abs().max()).item()
    if not error < torch.finfo(output.dtype).eps ** 0.5:
        raise Failed(f"torch chooses {name}, whose largest error is {error:.1%} of the largest output")
    table = Table(
        f"attention, {rows} x {keys:,}: microseconds on the GPU",
        ["backend", "us"],
        [[backend.name.lower(), timed(backend, run)] for backend in BACKENDS] if device() == "cuda" else [],
    )
    detail = f"torch chooses {name}; its largest error is {error:.0e} of the largest output"
    return Finding(detail, tables=[table] if table.rows else [])


def exact(rows: int, keys: int) -> Tensor:
    """The same in float64, step by step: [1, N, H, d]."""
    query, key, value, mask = (tensor.double() for tensor in inputs(rows, keys))
    key, value = (tensor.repeat_interleave(HEADS // GROUPS, dim=1) for tensor in (key, value))
    weights = (query @ key.mT * WIDTH**-0.5 + mask).softmax(-1)  # [1, H, N, L]
    return (weights @ value).transpose(1, 2)


def timed(backend: SDPBackend, run: Callable[[], Tensor]) -> float | str:
    """Microseconds, or why it cannot."""
    try:
        with warnings.catch_warnings(record=True) as caught, sdpa_kernel([backend]):
            warnings.simplefilter("always")
            return replayed_us(run, 50)
    except RuntimeError as error:
        if "CUDA error" in str(error):
            raise
        reasons = [str(warning.message).splitlines()[0] for warning in caught]
        return next((reason for reason in reasons if "required" in reason or "support" in reason), "no")[:100]


@torch.no_grad()
def cudnn() -> Finding:
    """How long it takes when the cache gets a length that attention has not seen."""
    need_cuda()
    _set_up()
    is_enabled = torch.backends.cuda.cudnn_sdp_enabled()
    first_ms, second_ms = [], []
    for keys in (1111, 2222, 3333):
        run = attention(5, keys)
        for times in (first_ms, second_ms):
            cuda.synchronize("cuda")
            start = perf_counter()
            run()
            cuda.synchronize("cuda")
            times.append(1000 * (perf_counter() - start))
    longest, again = max(first_ms[1:]), max(second_ms[1:])
    state = "enabled" if is_enabled else "switched off"
    return Finding(
        f"{state}; a new cache length takes {longest:.2f} ms at its first use and {again:.2f} ms after that",
        {"measured": {"cudnn_attention": is_enabled, "new_cache_length_ms": longest}},
    )
