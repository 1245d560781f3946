"""What a CUDA device can do."""

from collections.abc import Iterable

import torch


def has_bfloat16(device: torch.device | str) -> bool:
    """Whether the device computes in bfloat16. Older ones emulate it, which is slow and rules out fused
    attention; `torch.cuda.is_bf16_supported` counts that, and looks at the current device only."""
    return torch.cuda.get_device_capability(device) >= (8, 0)


def attention_backends() -> list[str]:
    """What torch's attention on CUDA may choose from, in the whole process."""
    cuda = torch.backends.cuda
    enabled = {
        "flash": cuda.flash_sdp_enabled(),
        "efficient": cuda.mem_efficient_sdp_enabled(),
        "cudnn": cuda.cudnn_sdp_enabled(),
        "math": cuda.math_sdp_enabled(),
    }
    return [name for name, on in enabled.items() if on]


def quantized_kinds(
    device: torch.device | str, dtype: torch.dtype, layers: Iterable[torch.nn.Linear]
) -> list[str]:
    """The kinds of quantised weights that these layers can have on a CUDA device without a CUDA compiler.

    optimum-quanto 0.2.7 compiles its own CUDA code when that is first used (library/extensions/cuda):

    int8     writes the whole weight anew in the dtype for each product (library/qbytes_mm.py); no compiler
    float8   the same in float32, and on devices before capability 8.0. Else 16-bit floats take Marlin
             (tensor/weights/qbytes.py), which is compiled; issue 409 reports that its output is wrong, too
    int4     from 8.0 on bfloat16 takes torch's own kernel (tensor/weights/qbits.py) if the layer has groups
             of 128 (nn/qmodule.py); the kernel has rows in eights. All else takes compiled code
    int2     is unpacked by compiled code
    """
    kinds, modern = ["int8"], has_bfloat16(device)
    grouped = all(
        layer.in_features > 128 and layer.in_features % 128 == 0 and layer.out_features % 8 == 0
        for layer in layers
    )
    if modern and dtype == torch.bfloat16 and grouped:
        kinds.append("int4")
    if not modern or dtype == torch.float32:
        kinds.append("float8")
    return kinds
