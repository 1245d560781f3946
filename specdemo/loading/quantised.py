"""Weights in few bits: those of checkpoints, which would be noise where they were loaded without their scales
(transformers converts them to the dtype that is asked for, whatever they mean), and what becomes of a model's
weights when they are quantised."""

import logging
from collections.abc import Collection, Iterator, Mapping
from importlib.util import find_spec
from inspect import signature
from types import SimpleNamespace

import torch
from torch import Tensor
from torch.nn import Linear, Module, Parameter
from transformers import CompressedTensorsConfig, PreTrainedConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

from specdemo.errors import LoadError
from specdemo.loading.catalog import QUANTIZE
from specdemo.loading.request import dtype_name
from specdemo.runtime.files import few_bits, is_scale
from specdemo.runtime.weights import FLOATS, is_dense
from specdemo.words.catalogue import numeral
from specdemo.words.message import Message, message

# What transformers needs for weights of a method: the module, and the package that brings it.
NEEDED = {
    "awq": {"gptqmodel": "gptqmodel"},
    "bitsandbytes": {"bitsandbytes": "bitsandbytes"},
    "compressed-tensors": {"compressed_tensors": "compressed-tensors"},
    "gptq": {"optimum.gptq": "optimum", "gptqmodel": "gptqmodel"},
    "torchao": {"torchao": "torchao"},
}
KNOWN_METHOD = "that this version of transformers knows"
INSTEAD = "choose a checkpoint in bfloat16, float16 or float32"

# transformers would warn that nothing in a GPT-2 is quantised.
logging.getLogger("transformers.integrations.quanto").setLevel(logging.ERROR)


def method_of(config: PreTrainedConfig) -> str | None:
    """The method by which transformers scales a checkpoint's weights, as its config names it. ValueError for
    a method that it does not know, which it would ignore, or whose package is not installed."""
    given = getattr(config, "quantization_config", None)
    if given is None:
        given = getattr(config.get_text_config(decoder=True), "quantization_config", None)
    if given is None:
        return None
    given = given if isinstance(given, Mapping) else given.to_dict()
    method = known = given.get("quant_method")
    if given.get("load_in_8bit") or given.get("load_in_4bit"):  # transformers looks at these first
        method, known = "bitsandbytes", "bitsandbytes_4bit"
    if not isinstance(known, str) or known not in AUTO_QUANTIZATION_CONFIG_MAPPING:
        raise ValueError(f"its quant_method must be one {KNOWN_METHOD}, not {ascii(method)[:60]}")
    needed = NEEDED.get(method, {})
    if missing := [package for module, package in needed.items() if find_spec(module) is None]:
        packages = " ".join(missing)
        raise ValueError(f"its weights are quantised by {method}, for which pip install {packages} is needed")
    return method


def written_out(method: str | None) -> CompressedTensorsConfig | None:
    """How weights of this method are loaded, where that is another way than transformers' own: those of
    compressed-tensors are written out in the dtype that is asked for. The package would do that in the first
    forward, and round the activations in forwards that it puts in the place of the layers' own."""
    can_write_out = "dequantize" in signature(CompressedTensorsConfig).parameters
    return (
        CompressedTensorsConfig(dequantize=True) if method == "compressed-tensors" and can_write_out else None
    )


def is_written_out(model: PreTrainedModel) -> bool:
    """Whether a quantised checkpoint's weights are whole numbers again."""
    return all(is_dense(weight) and weight.dtype in FLOATS for weight in model.parameters())


def check_stored(where: str, tensors: Mapping[str, str]) -> None:
    """LoadError for weights in few bits, where no method scales them. where: the model, in a sentence."""
    if name := few_bits(tensors):
        raise LoadError(
            f"{where}: its tensor {name} is stored as {tensors[name]}, and its config.json names no method "
            f"to scale it by {KNOWN_METHOD}: {INSTEAD}"
        )


def check_scales(
    where: str, tensors: Mapping[str, str], unexpected: Collection[str], model: PreTrainedModel
) -> None:
    """LoadError if a scale of weights that were loaded was left out. unexpected: the tensors that the model
    has no place for."""
    used = {*tensors, *(name for name, _ in model.named_parameters())} - {*unexpected}
    vectors = {name.rpartition(".")[0] for name, one in model.named_parameters() if one.dim() < 2}
    matrices = {name.rpartition(".")[0] for name, one in model.named_parameters() if one.dim() > 1}
    scaled = {name.rpartition(".")[0] for name in used} - (vectors - matrices)  # a norm's weight is a vector
    for name in sorted(filter(is_scale, unexpected)):
        if name.rpartition(".")[0] in scaled:
            raise LoadError(
                f"{where}: its tensor {name} scales weights, and this version of transformers does not use "
                f"it: {INSTEAD}"
            )


def quantized_layers(skeleton: PreTrainedModel) -> list[Linear]:
    """The layers whose weights are quantised: all linear ones but the head."""
    linear = [layer for layer in skeleton.modules() if isinstance(layer, Linear)]
    transposed = [layer for layer in skeleton.modules() if isinstance(layer, Conv1D)]
    own = [layer for layer in linear if layer is not skeleton.get_output_embeddings()]
    return [*own, *map(_as_linear, transposed)]


def unpack_without_compiler() -> None:
    """Lets optimum-quanto unpack int4 and int2 weights on a CPU by the operations of torch that its C++ code
    calls. Compiling that code takes more than a minute and needs a compiler."""
    from optimum.quanto import library

    def unpack(packed: Tensor, bits: int) -> Tensor:  # uint8 of several numbers each, and of one
        return torch.cat([packed >> shift & (1 << bits) - 1 for shift in range(0, 8, bits)])

    library.extensions.get_extension("quanto_cpp")._lib = SimpleNamespace(unpack=unpack)


def quantise_layers(model: PreTrainedModel, kind: str, classes: tuple[type[Module], ...]) -> None:
    """Quantises a model's layers of these classes, but for its head, as QuantoConfig does while a model is
    loaded: Conv1D (GPT-2's, linear ones whose weights are transposed), which it leaves out, and all of a
    model into which an adapter has been merged. kind: as in QUANTIZE."""
    from optimum.quanto import qtypes
    from optimum.quanto.nn import QLinear, QModuleMixin

    head = model.get_output_embeddings()
    for name, layer in list(model.named_modules()):
        if isinstance(layer, classes) and not isinstance(layer, QModuleMixin) and layer is not head:
            linear = _as_linear(layer) if isinstance(layer, Conv1D) else layer
            quantised = QLinear.from_module(linear, weights=qtypes[f"q{kind}"])
            quantised.freeze()
            model.set_submodule(name, quantised.requires_grad_(False).eval())


def _as_linear(layer: Conv1D) -> Linear:
    """A layer with the same output, up to rounding."""
    linear = Linear(layer.nx, layer.nf, device="meta", dtype=layer.weight.dtype)
    linear.weight = Parameter(layer.weight.detach().t().contiguous(), requires_grad=False)  # [out, in]
    linear.bias = layer.bias
    return linear


def little_quantised(role: str, model: Module) -> Iterator[Message]:
    """What a user should know of a model less than half of whose weights are quantised, if some are."""
    quantised = [one for one in model.parameters() if hasattr(one, "qtype")]  # by optimum-quanto
    count, total = (sum(one.numel() for one in ones) for ones in (quantised, model.parameters()))
    if not 0 < 2 * count < total:
        return
    rest = {name: one for name, one in model.named_parameters() if not hasattr(one, "qtype")}
    largest = max(rest, key=lambda name: rest[name].numel())
    kind = next(kind for kind in QUANTIZE if kind in quantised[0].qtype.name)
    share, stays = numeral(100 * count / total, ".2g"), dtype_name(rest[largest].dtype)
    who = message(f"the_{role}")
    yield message("little_quantised", given=kind, share=share, who=who, name=largest, reason=stays)
