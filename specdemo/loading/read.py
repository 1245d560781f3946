"""Reads one model that is on this machine: its skeleton, its tokenizer, its weights. No other module loads
through transformers."""

import os
import re
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.nn import Module
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    CompressedTensorsConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    QuantoConfig,
)

from specdemo.drafters.base import Drafting
from specdemo.drafters.table import HEAD, kind_in, kind_of
from specdemo.errors import LoadError, PairError, load_errors
from specdemo.loading import checkpoints
from specdemo.loading.fetch import OnProgress, folder_of, has_tokenizer
from specdemo.loading.request import Part, dtype_name
from specdemo.runtime import cuda
from specdemo.runtime.device import quantized_kinds
from specdemo.runtime.linear import align_weights, join_weights, use_skinny_linear
from specdemo.runtime.native import is_small
from specdemo.runtime.weights import is_dense, stored_tensors
from specdemo.words.message import about, message

FROM_DISK = {"local_files_only": True}
CLASSIFIERS = re.compile(r"(For\w*Classification|ForQuestionAnswering|ForMultipleChoice|RewardModel)$")
# The dtypes that a model can be loaded in, and others of weights, by the names that safetensors gives them.
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
FLOATS_IN_FILES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
FLOATS_IN_FILES |= dict.fromkeys(("F64", "F8_E4M3", "F8_E5M2"))


def kind_of_part(part: Part) -> Drafting:
    """The model's kind, from its config. PairError for a target of a kind that drafts for one."""
    kind = kind_in(folder_of(part))
    if part.role == "target" and (what := kind.is_for_a_target):
        if kind is HEAD:
            HEAD.verifier(folder_of(part))  # which refuses those that draft for no target here
        raise PairError(f"target: {part.id} is {what}, which drafts for a target: give it as the drafter")
    return kind


def read_skeleton(part: Part) -> Module:
    """A model on the meta device, from its config, which is here."""
    with load_errors(part.role, part.place, shown=part.id), torch.device("meta"):
        if kind_of_part(part) is HEAD:
            if part.adapter is not None:
                raise PairError(f"{part.role}: {part.id} is a head, and an adapter's base must be a model")
            return HEAD.skeleton(folder_of(part))
        config = AutoConfig.from_pretrained(part.place, **_how(part))
        architectures = getattr(config, "architectures", None) or []
        if architectures and all(isinstance(one, str) and CLASSIFIERS.search(one) for one in architectures):
            # Its embeddings could be taken for the head that it lacks.
            raise PairError(f"{part.named}, a {architectures[0]}, predicts no next token")
        method = checkpoints.method_of(config)
        if method is not None and part.adapter is not None:
            raise PairError(f"{part.named} is quantised, and an adapter is merged into whole weights only")
        if method is not None and part.quantize is not None:
            asked = {"model": part.named, "given": part.quantize}
            raise PairError(about("quantize", "quantised_already", name=method, **asked))
        return AutoModelForCausalLM.from_config(config)


def _how(part: Part) -> dict[str, Any]:
    """Which of a model's files count, from the disk alone. Without trust_remote_code=False transformers would
    ask on the terminal whether to run program code that comes with a model."""
    return {"revision": part.revision or "main", "trust_remote_code": False, **FROM_DISK}


def read_tokenizer(part: Part) -> PreTrainedTokenizerBase:
    """The model's, or that of the adapter which is merged into it, if this one has its own."""
    owner = part.adapter if part.adapter is not None and has_tokenizer(part.adapter) else part
    with load_errors(part.role, part.place, "tokenizer", owner.id):
        return AutoTokenizer.from_pretrained(owner.place, **_how(owner))


def read_model(part: Part, dtype: torch.dtype, on_progress: OnProgress = lambda *_: None) -> Module:
    """The model on its device, with its weights as the engine multiplies them."""
    on_progress(message(f"loading_{part.role}", name=part.id), None)
    cuda.free_cache(part.device)  # while another thread captures, torch frees nothing to make room
    is_head = kind_of_part(part) is HEAD
    model = read_skeleton(part) if is_head else _read_whole(part, dtype)
    with load_errors(part.role, part.place, "weights", part.id):
        if is_head:
            check_quantize(part, dtype, model)  # before its weights were here, it may have counted as a model
            model = HEAD.read(model, folder_of(part), dtype, part.named)
        model = model.to(part.device)  # after a device map: only quanto's unused scales move
        if is_small(model):
            align_weights(model)
        join_weights(model)
        cuda.free_cache(part.device)  # where the weights were before they were joined
    if part.device == "cpu" and dtype == torch.float32 and not part.quantize:
        use_skinny_linear(model)
    return model


def _read_whole(part: Part, dtype: torch.dtype) -> PreTrainedModel:
    """A model of transformers, whatever its checkpoint is (checkpoints.py). `loaded_as` tells of that: keys
    of messages, and their values besides `who`."""
    options = {"dtype": dtype, "output_loading_info": True, "use_safetensors": True} | _how(part)
    options["adapter_kwargs"] = FROM_DISK  # else transformers would ask the hub for an adapter, where peft is
    quantize_now = part.quantize is not None and part.adapter is None
    if part.quantize:
        checkpoints.unpack_without_compiler()
    if quantize_now:
        options["quantization_config"] = QuantoConfig(weights=part.quantize)
    with load_errors(part.role, part.place, "weights", part.id):
        stored = stored_tensors(folder_of(part))
        config = AutoConfig.from_pretrained(part.place, **_how(part))
        kind, method = (config.architectures or [config.model_type])[0], checkpoints.method_of(config)
        if method == "compressed-tensors":
            # Else the package would write the weights out in the first forward, and round activations in
            # forwards that it puts in the place of the layers' own.
            options["quantization_config"] = CompressedTensorsConfig(dequantize=True)
        drawing = nullcontext()
        if part.device != "cpu" and (quantize_now or takes_host_memory(stored, dtype)):
            # Each tensor goes there by itself, and is quantised there. One device needs no hooks.
            options["device_map"] = {"": part.device}
            drawing = RandomNumbersAlone() if cuda.is_cuda(part.device) else drawing
        with drawing:
            model, info = AutoModelForCausalLM.from_pretrained(part.place, **options)
    checkpoints.check_scales(part.named, method, stored, info["unexpected_keys"], model)
    if missing := sorted(info["missing_keys"]):
        raise LoadError(f"{part.named}, a {kind}, lacks {len(missing)} weights, first {missing[0]}")
    is_written_out = all(is_dense(one) and one.dtype in FLOATS for one in model.parameters())
    notes = [("written_out", {"name": method})] if method and is_written_out else []
    if part.adapter is not None:
        model = checkpoints.with_adapter(model.to(part.device), part, folder_of(part.adapter))
        base = Path(part.place).resolve().name if os.path.isdir(part.place) else part.place
        notes.append(("adapter_merged", {"name": base, "reason": part.adapter.id}))
    model = checkpoints.text_alone(model)
    if any(getattr(config, sense, None) is not None for sense in checkpoints.SENSES):
        notes.append(("text_part", {"name": kind}))
    text = model.config.get_text_config()
    if getattr(text, "attn_logit_softcapping", None) and text._attn_implementation == "sdpa":
        # transformers before 5.21 chooses torch's attention for Gemma 2, which ignores the cap on scores.
        model.set_attn_implementation("eager")
    if part.quantize and not quantize_now:
        checkpoints.quantise_layers(model, part.quantize)
    model.loaded_as = tuple(notes)
    return model


def check_quantize(part: Part, dtype: torch.dtype, skeleton: Module) -> None:
    """PairError if the model, or its skeleton, cannot be quantised as the part asks."""
    if part.quantize is None:
        return
    asked = {"model": part.named, "given": part.quantize}
    if kind_of(skeleton) is HEAD:
        raise PairError(about("quantize", "head_unquantised", **asked))
    layers = checkpoints.quantized_layers(skeleton)
    if not layers:
        raise PairError(about("quantize", "nothing_to_quantise", **asked))
    if part.device == "cpu":
        return
    kinds = quantized_kinds(part.device, dtype, layers)
    if part.quantize not in kinds:
        asked |= {"names": ", ".join(["none", *kinds]), "device": part.device, "dtype": dtype_name(dtype)}
        raise PairError(about("quantize", "needs_kernels", **asked))


class RandomNumbersAlone(TorchDispatchMode):
    """While this thread draws random numbers, nothing is captured: during a capture a GPU's generator gives
    none to other threads. transformers draws some for models with recurrent layers, and does not use them.

    The rest of loading allocates memory, copies on the default stream, and waits for that stream. None of
    this ends another thread's capture, which is in the mode "thread_local" and on a stream that does not wait
    for the default stream."""

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        is_random = torch.Tag.nondeterministic_seeded in operation.tags
        with cuda.ALONE if is_random else nullcontext():
            return operation(*args, **(kwargs or {}))


def takes_host_memory(stored: Mapping[str, str], dtype: torch.dtype) -> bool:
    """Whether the weights would take memory of their own on the CPU. Else the system maps their files, and
    `to` reads those; a device map would do the same, but it takes the GPU's memory as one block, of which
    `join_weights` could give nothing back. On ZeroGPU only `to` knows the GPU that is not there yet. stored:
    the tensors in the files and their dtypes, see `stored_tensors`."""
    if os.environ.get("SPACES_ZERO_GPU"):
        return False
    floats = {FLOATS_IN_FILES[one] for one in stored.values() if one in FLOATS_IN_FILES}
    return sys.platform == "win32" or floats != {dtype}
