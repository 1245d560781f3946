"""A section that finds which of torch's attentions serves the engine's two shapes: one query, or gamma + 1,
over a long cache with a mask and grouped heads."""

import warnings
from collections.abc import Callable
from functools import partial
from time import perf_counter

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.profiler import ProfilerActivity, profile

from specdemo.doctor.machine import device, need_cuda, replayed_us
from specdemo.doctor.trials import Failed, Finding, Table, Trial
from specdemo.runtime import cuda
from specdemo.runtime.attention import grouped_attention, masking, parts_of, without_cudnn

QUERY_HEADS, KEY_HEADS, HEAD_WIDTH = 24, 8, 128  # Llama 3.2 3B's
KEYS = {"cuda": 4096, "cpu": 512}  # the cache's length; a quarter of it is masked
BACKENDS = (
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.MATH,
)
OPERATION = "aten::_scaled_dot_product_"


def inputs(rows: int, keys: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Random query [1, H, N, d], key and value [1, G, L, d], and an additive mask [1, 1, N, L]."""
    where = device()
    dtype = torch.float32 if where == "cpu" else torch.bfloat16
    if where == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        dtype = torch.float16
    torch.manual_seed(0)
    of_keys = (1, KEY_HEADS, keys, HEAD_WIDTH)
    shapes = ((1, QUERY_HEADS, rows, HEAD_WIDTH), of_keys, of_keys)
    query, key, value = (torch.randn(shape, device=where, dtype=dtype) for shape in shapes)
    mask = torch.zeros(1, 1, rows, keys, device=where, dtype=dtype)
    mask[..., keys - keys // 4 :] = masking(dtype)
    return query, key, value, mask


def attention(rows: int, keys: int) -> Callable[[], Tensor]:
    """The attention of captured forwards over these inputs: [1, N, H, d]."""
    query, key, value, mask = inputs(rows, keys)
    return lambda: grouped_attention(torch.nn.Module(), query, key, value, mask, scaling=HEAD_WIDTH**-0.5)[0]


def unsplit(rows: int, keys: int) -> Callable[[], Tensor]:
    """The attention over these inputs as one call of torch's attention, as it is over a short cache: [1, G,
    H/G * N, d]."""
    query, key, value, mask = inputs(rows, keys)
    shared = QUERY_HEADS // KEY_HEADS
    grouped = query.reshape(1, KEY_HEADS, -1, HEAD_WIDTH)
    return lambda: scaled_dot_product_attention(grouped, key, value, attn_mask=mask.repeat(1, 1, shared, 1))


@torch.no_grad()
@without_cudnn()  # as in a run
def chosen(rows: int) -> Finding:
    keys = KEYS[device()]
    run = attention(rows, keys)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        output = run()
    events = [event.key for event in profiler.key_averages()]
    names = {key.removeprefix(OPERATION) for key in events if key.startswith(OPERATION)}
    name = " and ".join(sorted(names)) or "an unknown one"
    expected = exact(rows, keys)
    error = ((output.double() - expected).abs().max() / expected.abs().max()).item()
    if not error < torch.finfo(output.dtype).eps ** 0.5:
        raise Failed(f"torch chooses {name}, whose largest error is {error:.1%} of the largest output")
    detail = f"torch chooses {name}; its largest error is {error:.0e} of the largest output"
    if device() == "cpu":
        return Finding(detail)
    parts = parts_of(inputs(rows, keys)[1])
    once = unsplit(rows, keys)
    times = [[f"as in a run, {parts} parts", replayed_us(run, 50)]]
    times += [[f"unsplit, {backend.name.lower()}", microseconds(backend, once)] for backend in BACKENDS]
    about = f"attention, {rows} x {keys:,}: microseconds on the GPU"
    return Finding(detail, tables=[Table(about, ["backend", "us"], times)])


def exact(rows: int, keys: int) -> Tensor:
    """The attention over these inputs in float64, step by step: [1, N, H, d]."""
    query, key, value, mask = (tensor.double() for tensor in inputs(rows, keys))
    key, value = (tensor.repeat_interleave(QUERY_HEADS // KEY_HEADS, dim=1) for tensor in (key, value))
    weights = (query @ key.mT * HEAD_WIDTH**-0.5 + mask).softmax(-1)  # [1, H, N, L]
    return (weights @ value).transpose(1, 2)


def microseconds(backend: SDPBackend, run: Callable[[], Tensor]) -> float | str:
    """The microseconds that the backend takes, or why it cannot run."""
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
@without_cudnn()  # as in a run
def cudnn() -> Finding:
    """Measures how long cuDNN's attention takes when the cache gets a length that it has not seen."""
    need_cuda()
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


TRIALS = {
    "attention": [
        Trial("1 query over a long cache", partial(chosen, 1)),
        Trial("5 queries over a long cache", partial(chosen, 5)),
        Trial("cuDNN attention", cudnn),
    ]
}
