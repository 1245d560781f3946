"""Compiles the kernels written in Triton for a CUDA device that need not be there, for the sizes of the
catalogue's models. In a process without Triton's interpreter."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from specdemo.runtime import triton_attention, triton_between, triton_products
from specdemo.runtime.linear import MOST_BY_TRITON
from tests.kernel_shapes import DTYPES, MODELS, products_of

TRITON_TYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
OTHERS = ("SmolLM2-135M", "Llama-3.2-1B")  # of which other number formats than bfloat16 are compiled, too
GAMMA = 4
Call = tuple[object, dict[str, str], dict[str, object], dict[str, int]]  # kernel, types, constants, options


@dataclass(frozen=True)
class Way:
    """How the layers of a model attend. types: of the kernel's arguments."""

    types: dict[str, str]
    window: int = 0
    caps: bool = False
    norms: bool = False
    rotates: bool = True

    @property
    def constants(self) -> dict[str, object]:
        flags = {"CAPS": self.caps, "NORMS": self.norms, "ROTATES": self.rotates}
        return {"WINDOW": self.window, **flags}


def calls(dtype: torch.dtype) -> Iterator[Call]:
    """As the modules launch them."""
    number = f"*{TRITON_TYPES[dtype]}"
    models = MODELS if dtype == torch.bfloat16 else {name: MODELS[name] for name in OTHERS}
    for outputs, inputs in sorted({each for model in models.values() for each in products_of(model)}):
        for rows, adds in zip(triton_products.PADDED_ROWS, (True, False), strict=True):
            tiling = triton_products.tiling_for(outputs, inputs, rows, dtype)
            types = dict.fromkeys(("x", "scale", "bias", "y"), number) | {"weight": "*i8"}
            types |= {"rows": "i32", "outputs": "i32"}
            sizes = {"INPUTS": inputs, "ROWS": rows, "TILE": tiling.outputs, "STEP": tiling.inputs}
            options = {"num_warps": tiling.warps, "num_stages": tiling.stages}
            constants = {**sizes, "HAS_BIAS": not adds, "ADDS": adds}
            yield triton_products.int8_kernel, types, constants, options
        types = dict.fromkeys(("x", "weight", "bias", "y"), number) | {"outputs": "i32"}
        step = min(triton_products.ROW_STEP, triton.next_power_of_2(inputs))
        sizes = {"INPUTS": inputs, "TILE": triton_products.ROW_TILE, "STEP": step}
        for adds in (False, True):
            options = {"num_warps": triton_products.ROW_WARPS}
            yield triton_products.row_kernel, types, {**sizes, "HAS_BIAS": not adds, "ADDS": adds}, options
    for model in models.values():
        heads, groups, d = model.num_attention_heads, model.num_key_value_heads, model.head_dim
        names = ("q", "k", "v", "q_norm", "k_norm", "rotation_table", "keys", "values")
        types = dict.fromkeys(names, number) | dict.fromkeys(("outputs", "logsumexp"), "*fp32")
        types |= dict.fromkeys(("eps", "scale", "softcap"), "fp32") | {"rows": "*i64"}
        types |= dict.fromkeys(("q_stride", "k_stride", "v_stride", "cache_stride", "tokens"), "i32")
        of_gemma = types | dict.fromkeys(("q_norm", "k_norm"), "*fp32")
        ways = [Way(types), Way(of_gemma, window=1024, caps=True, norms=True)]
        for tokens in (1, GAMMA + 1, MOST_BY_TRITON):
            how = triton_attention.division_for(tokens, d, dtype)
            sizes = {"SHARED": heads // groups, "D": d, "WIDTH": how.width, "ROWS": triton_attention.SMALLEST}
            sizes |= {"KEYS": how.keys, "LEAST": triton_attention.KEYS_AT_ONCE, "NEW": how.new}
            others = [Way(types, norms=True), Way(types, rotates=False)] if tokens == GAMMA + 1 else []
            for way in [*ways, *others]:
                options = {"num_warps": how.warps, "num_stages": how.stages}
                yield triton_attention.attend_kernel, way.types, sizes | way.constants, options
        sizes = {"HEADS": heads, "AT_ONCE": triton_attention.COMBINED, "D": d, "WIDTH": how.width}
        types = {"outputs": "*fp32", "logsumexp": "*fp32", "y": number, "tokens": "i32", "parts": "i32"}
        yield triton_attention.combine_kernel, types, sizes, {"num_warps": 1}
        sizes = {"WIDTH": model.intermediate_size, "BLOCK": triton_between.GATE_BLOCK}
        types = {"gate_up": number, "output": number}
        yield triton_between.gate_kernel, types, {**sizes, "GELU": model.kind == "gemma3"}, {}
        size = model.hidden_size
        sizes = {"SIZE": size, "BLOCK": triton.next_power_of_2(size)}
        for adds in (False, True):  # the weights of Gemma's norms are float32
            types = {"x": number, "weight": "*fp32" if adds else number, "y": number, "eps": "fp32"}
            yield triton_between.norm_kernel, types, {**sizes, "ADDS": adds}, {"num_warps": 8}


def print_all(capability: int) -> None:
    """What came of each kernel, as JSON."""
    found, done = [], set()
    for name, dtype in DTYPES.items():
        for kernel, types, constants, options in calls(dtype):
            key = (kernel.fn.__name__, name, *constants.items())
            if key in done:
                continue
            done.add(key)
            signature = {argument: types.get(argument, "constexpr") for argument in kernel.arg_names}
            aligned = {
                (place,): [["tt.divisibility", 16]]
                for place, kind in enumerate(signature.values())
                if kind.startswith("*")
            }
            source = ASTSource(kernel, signature, constants, aligned)
            compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
            ptx = compiled.asm["ptx"]
            found.append(
                {
                    "name": kernel.fn.__name__,
                    "dtype": name,
                    "sizes": constants,
                    "machine_code": len(compiled.asm["cubin"]),
                    "shared": compiled.metadata.shared,
                    "target": next(line for line in ptx.splitlines() if line.startswith(".target")),
                    "tensor_cores": "mma" in ptx,
                }
            )
    print(json.dumps(found))
