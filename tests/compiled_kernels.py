"""Compiles the kernels written in Triton for a CUDA device that need not be there, as their modules launch
them for the sizes of the catalogue's models. In a process without Triton's interpreter."""

import json
import re
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from io import StringIO

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from specdemo.runtime import triton_kernels
from specdemo.runtime.attention import Branches
from specdemo.runtime.decoder import Heads, RowMask
from specdemo.runtime.linear import MOST_BY_TRITON
from tests.kernel_errors import DTYPES

NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
NAMES |= {torch.int8: "i8", torch.int64: "i64", torch.uint8: "u8"}
OTHERS = ("SmolLM2-135M", "Llama-3.2-1B")  # of which other number formats than bfloat16 are compiled, too
GAMMA, CAPACITY = 4, 4096
# What ptxas says of a kernel, which Triton prints where TRITON_DUMP_PTXAS_LOG is set.
SPILLED = re.compile(r"(\d+) bytes spill")


@dataclass(frozen=True)
class ModelShape:
    """A model's sizes from its published config, by transformers' names."""

    kind: str
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int


# The columns are ModelShape's fields.
MODELS = {  # of the catalogue, whose linear layers can be quantised and have a fused forward
    "SmolLM2-1.7B": ModelShape("llama", 2048, 8192, 32, 32, 64),
    "SmolLM2-135M": ModelShape("llama", 576, 1536, 9, 3, 64),
    "Qwen2.5-0.5B": ModelShape("llama", 896, 4864, 14, 2, 64),
    "Qwen2.5-1.5B": ModelShape("llama", 1536, 8960, 12, 2, 128),
    "Qwen2.5-7B": ModelShape("llama", 3584, 18_944, 28, 4, 128),
    "Qwen3-0.6B": ModelShape("qwen3", 1024, 3072, 16, 8, 128),
    "Qwen3-8B": ModelShape("qwen3", 4096, 12_288, 32, 8, 128),
    "Llama-3.2-1B": ModelShape("llama", 2048, 8192, 32, 8, 64),
    "Llama-3.2-3B": ModelShape("llama", 3072, 8192, 24, 8, 128),
    "Llama-3.1-8B": ModelShape("llama", 4096, 14_336, 32, 8, 128),
    "gemma-3-270m": ModelShape("gemma3", 640, 2048, 4, 1, 256),
    "gemma-3-4b": ModelShape("gemma3", 2560, 10_240, 8, 4, 256),
    "embedded target": ModelShape("llama", 256, 704, 4, 2, 64),
    "embedded drafter": ModelShape("llama", 192, 512, 3, 1, 64),
    "embedded poor drafter": ModelShape("llama", 48, 128, 3, 1, 16),
}


def products_of(model: ModelShape) -> list[tuple[int, int]]:
    """(outputs, inputs) of q, k and v as one, of the attention's output, of gate and up, and of down."""
    size, width = model.hidden_size, model.intermediate_size
    heads = model.num_attention_heads * model.head_dim
    groups = model.num_key_value_heads * model.head_dim
    return [(heads + 2 * groups, size), (size, heads), (2 * width, size), (size, width)]


def launch_all(model: ModelShape, dtype: torch.dtype) -> None:
    """Over tensors without numbers."""
    number = partial(torch.empty, dtype=dtype, device="meta")
    float32 = partial(number, dtype=torch.float32)
    for outputs, inputs in products_of(model):
        int8, scale = number(outputs, inputs, dtype=torch.int8), number(outputs)
        plain, one = (number(outputs, inputs), None), number(outputs)
        launched = [(GAMMA + 1, (int8, scale), None), (MOST_BY_TRITON, (int8, scale), one)]
        launched += [(rows, plain, bias) for rows in (1, 2) for bias in (None, one)]
        for rows, weight, bias in launched:
            x, y, adds = number(rows, inputs), number(rows, outputs), bias is None
            triton_kernels._product(y, x, *weight, bias, adds)
    heads, groups, d = model.num_attention_heads, model.num_key_value_heads, model.head_dim
    table, norms = number(CAPACITY, 2, d), (number(d), number(d), 1e-6)
    of_gemma = (float32(d), float32(d), 1e-6), table, 50.0, RowMask(1024)
    ways = [(None, table, None, RowMask()), of_gemma]
    n = GAMMA + 1
    given = [number(n, heads * d), number(n, groups * d), number(n, groups * d)]
    cache = [number(n, dtype=torch.int64), *[number(1, groups, CAPACITY, d)] * 2]
    ways.append((norms, table, None, RowMask()))
    forwards = [(way, None) for way in (*ways, (None, None, None, RowMask()))]
    for size in (n, 2 * n):  # of a tree, whose last n rows these are
        tree = Branches(number(size, dtype=torch.int64), number(n, size, dtype=torch.bool))
        forwards += [(way, tree) for way in ways]
    for (of_norms, rotations, softcap, mask), tree in forwards:
        attends = Heads(0, heads, groups, d, d**-0.5, mask, softcap)
        triton_kernels.few_rows_attention(attends, *given, of_norms, rotations, *cache, tree)
    for norm in (None, (number(d), 1e-6)):
        triton_kernels.keep_rows(number(n, 2 * groups * d), norm, table, *cache)
    triton_kernels.gate(number(1, 2 * model.intermediate_size), model.kind == "gemma3")
    size = model.hidden_size
    for weight, adds in ((number(size), False), (float32(size), True)):  # Gemma's norms are float32
        triton_kernels._norm(number(1, size), number(1, size), weight, 1e-6, adds)


def type_of(argument: object) -> str:
    if isinstance(argument, torch.Tensor):
        return f"*{NAMES[argument.dtype]}"
    return "fp32" if isinstance(argument, float) else "i32"


def print_all(capability: int) -> None:
    """What came of each kernel, as JSON."""
    found = {}

    def compiled(kernel, dtype, *args, grid, warmup, **named):
        constants = {name: value for name, value in named.items() if name in kernel.arg_names}
        signature = dict(zip(kernel.arg_names, map(type_of, args), strict=False))
        signature |= dict.fromkeys(constants, "constexpr")
        key = (kernel.fn.__name__, *signature.items(), *constants.items())
        if key in found:
            return
        aligned = {
            (i,): [["tt.divisibility", 16]] for i, kind in enumerate(signature.values()) if "*" in kind
        }
        options = {name: value for name, value in named.items() if name not in constants}
        source = ASTSource(kernel, signature, constants, aligned)
        with redirect_stdout(StringIO()) as assembled:
            result = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
        ptx, told = result.asm["ptx"], assembled.getvalue()
        found[key] = {
            "name": kernel.fn.__name__,
            "dtype": dtype,
            "sizes": constants,
            "machine_code": len(result.asm["cubin"]),
            "shared": result.metadata.shared,
            "threads": 32 * result.metadata.num_warps,
            "spilled": sum(map(int, SPILLED.findall(told))),  # bytes a thread
            "target": next(line for line in ptx.splitlines() if line.startswith(".target")),
            "tensor_cores": "mma" in ptx,
        }

    of = triton_kernels
    kernels = [of.attend_kernel, of.combine_kernel, of.keep_kernel]
    kernels += [of.int8_kernel, of.row_kernel, of.gate_kernel, of.norm_kernel]
    for name, dtype in DTYPES.items():
        for kernel in kernels:
            kernel.run = partial(compiled, kernel, name)
        for model in MODELS if dtype == torch.bfloat16 else OTHERS:
            launch_all(MODELS[model], dtype)
    print(json.dumps([*found.values()]))
