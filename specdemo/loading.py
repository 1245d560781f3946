"""Loads pairs of models: devices, dtypes, quantisation, tokenizers, and what stays resident.

The only module that loads through transformers and optimum-quanto.
"""

import gc
import os
import re
import threading
from collections import OrderedDict
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase, QuantoConfig

from specdemo.events import ByModel, PairInfo
from specdemo.lm import CachedLM, rewindable_cache, rewinds
from specdemo.machine import cpu_name, memory_of
from specdemo.pair import LoadError, Pair, PairError, context_of
from specdemo.pairs import CATALOGUE

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
QUANTIZE = {"int8": 1.0, "int4": 0.5, "int2": 0.25, "float8": 1.0}  # bytes per weight of a linear layer
ROLES = ("target", "drafter")
NO_CODE = {"trust_remote_code": False}  # left out, transformers asks on the terminal whether to run a model's own program

Choice = str | dict[str, str | None] | None


def load_pair(
    name: str | None = None,
    *,
    target: str | os.PathLike | PreTrainedModel | None = None,
    drafter: str | os.PathLike | PreTrainedModel | None = None,
    tokenizer=None,
    device: Choice = None,
    dtype: Choice = None,
    quantize: Choice = None,
) -> Pair:
    """A pair by its catalogue name (none: the embedded one), by hub ids or directories, or from models in memory.

    device, dtype and quantize are one value for both models or {"target": ..., "drafter": ...}; None chooses (`Pair.dtype_reason`
    says why). Models in memory are left as they are. Raises PairError, or LoadError where loading itself failed.
    """
    if name is not None and (target is not None or drafter is not None):
        raise PairError("pair: give a name or a target and drafter, not both")
    if isinstance(target, PreTrainedModel):
        for option, value in (("device", device), ("dtype", dtype), ("quantize", quantize)):
            if value is not None:
                raise PairError(f"{option} must be left out for models given in memory: they are used as they are")
        if drafter is not None and not isinstance(drafter, PreTrainedModel):
            raise PairError(f"drafter must be a transformers model like the target, not {type(drafter).__name__}")
        if tokenizer is not None and not isinstance(tokenizer, PreTrainedTokenizerBase):
            raise PairError(f"tokenizer must be a transformers tokenizer, not {type(tokenizer).__name__}")
        return _pair_in_memory(target, drafter, tokenizer)
    if tokenizer is not None:
        raise PairError("tokenizer must be left out for models that are loaded: theirs is loaded with them")
    name, target, drafter = resolve(name, target, drafter)
    devices = {role: _device(role, _of(device, role, "device")) for role in ROLES}
    quantized = {role: _quantize(role, _of(quantize, role, "quantize")) for role in ROLES}
    dtypes, reason = _dtypes(target, drafter, devices, dtype)

    tokens = _tokenizer("target", target)
    if drafter is not None:
        check_same_tokenizer(tokens, _tokenizer("drafter", drafter), target, drafter)
    models = {
        role: _load(role, id, devices[role], dtypes[role], quantized[role]) if id is not None else None
        for role, id in (("target", target), ("drafter", drafter))
    }
    pair = _pair(name, models["target"], models["drafter"], tokens, target, drafter, quantized, reason)
    for role, model, id in (("target", pair.target, target), ("drafter", pair.drafter, drafter)):
        if model is not None and not rewinds(model):
            raise PairError(f"{role} {id} ({type(model).__name__}) cannot be used: after a rewind of its cache it predicts something else")
    _measure_steps(pair)
    return pair


def resolve(name: str | None, target, drafter) -> tuple[str, str, str | None]:
    """(name, target, drafter) of a request; PairError when it names nothing."""
    if target is None and drafter is not None:
        raise PairError("target must be given with a drafter")
    if target is not None:
        target, drafter = _place("target", target), None if drafter is None else _place("drafter", drafter)
        return (f"{target} + {drafter}" if drafter else target), target, drafter
    name = "embedded" if name is None else name
    if not isinstance(name, str) or name not in CATALOGUE:
        near = get_close_matches(str(name), CATALOGUE, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise PairError(f"pair must be one of {', '.join(CATALOGUE)}, not {ascii(name)}{hint}")
    return name, CATALOGUE[name].target, CATALOGUE[name].drafter


def _place(role: str, place: str | os.PathLike) -> str:
    if not isinstance(place, (str, os.PathLike)):
        raise PairError(f"{role} must be a hub id or a directory like the other, or both models in memory, not {type(place).__name__}")
    return os.path.expanduser(os.fspath(place))


def _of(choice: Choice, role: str, field: str) -> str | None:
    if isinstance(choice, dict):
        if unknown := set(choice) - set(ROLES):
            raise PairError(f"{field} must have the keys target and drafter, not {ascii(unknown.pop())}")
        return choice.get(role)
    return choice


def _device(role: str, device: str | None) -> str:
    if device is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    if not isinstance(device, str) or not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise PairError(f"device must be cpu, cuda or cuda:N, not {ascii(device)}")
    if device != "cpu" and int(device[5:] or 0) >= torch.cuda.device_count():
        raise PairError(f"device {device} is not there: torch sees {torch.cuda.device_count()} CUDA devices")
    return device


def _quantize(role: str, quantize: str | None) -> str | None:
    if quantize in (None, "none"):
        return None
    if not isinstance(quantize, str) or quantize not in QUANTIZE:
        raise PairError(f"quantize must be one of none, {', '.join(QUANTIZE)}, not {ascii(quantize)}")
    return quantize


def _dtypes(target: str, drafter: str | None, devices: dict[str, str], choice: Choice) -> tuple[dict[str, torch.dtype], str]:
    """Each model's dtype and the reason for it."""
    chosen = {}
    for role in ROLES:
        dtype = _of(choice, role, "dtype")
        if dtype not in (None, "auto", *DTYPES):
            raise PairError(f"dtype must be one of auto, {', '.join(DTYPES)}, not {ascii(dtype)}")
        chosen[role] = DTYPES.get(dtype)
    if devices["target"] == "cpu":
        parameters = sum(_parameters(role, id) for role, id in (("target", target), ("drafter", drafter)) if id is not None)
        fits = 4 * parameters < memory_of("cpu") / 2
        automatic = torch.float32 if fits else torch.bfloat16
        reason = (
            "on a CPU float32 makes one verifying forward round like single steps, so greedy output is the target's to the token"
            if fits
            else "float32 would take more than half of this machine's memory"
        )
    else:
        automatic = torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
        reason = "a GPU reads half the bytes that float32 would take, which is what decides its speed"
    name = str(automatic).removeprefix("torch.")
    reason = f"{name}: {reason}" if None in chosen.values() else "as asked"
    return {role: dtype or automatic for role, dtype in chosen.items()}, reason


def _parameters(role: str, id: str) -> int:
    """How many parameters a model has, from its config alone."""
    with _explained(role, id), torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(id, **NO_CODE))
    return model.num_parameters()


def _tokenizer(role: str, id: str):
    with _explained(role, id, "tokenizer"):
        return AutoTokenizer.from_pretrained(id, **NO_CODE)


def _load(role: str, id: str, device: str, dtype: torch.dtype, quantize: str | None) -> PreTrainedModel:
    needed = int(_parameters(role, id) * (QUANTIZE[quantize] if quantize else dtype.itemsize))
    if needed > memory_of(device):
        raise LoadError(f"{role} {id} needs about {needed / 1e9:.1f} GB, but {device} has {memory_of(device) / 1e9:.1f} GB")
    quantization = {"quantization_config": QuantoConfig(weights=quantize)} if quantize else {}
    with _explained(role, id, "weights"):
        model, info = AutoModelForCausalLM.from_pretrained(id, dtype=dtype, output_loading_info=True, **quantization, **NO_CODE)
        model = model.to(device)
    if info["missing_keys"]:
        missing = sorted(info["missing_keys"])
        raise LoadError(f"{role} {id} lacks {len(missing)} weights, {missing[0]} the first: its files are not whole")
    return model


@contextmanager
def _explained(role: str, id: str, part: str = "config.json"):
    """Failures of the libraries as one sentence that names the model and the part of it that was read."""
    path = Path(id)
    if id and "\0" not in id and path.is_dir():
        if not os.access(path, os.R_OK | os.X_OK):
            raise PairError(f"{role}: the directory {id} cannot be read: permission denied")
        if not (path / "config.json").is_file():
            raise PairError(f"{role}: the directory {id} holds no config.json, so there is no model in it")
    elif not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", id) or id.startswith("."):
        raise PairError(
            f"{role}: there is no directory {id if id.isprintable() and id else ascii(id)}, and a hub id has the form owner/name"
        )
    try:
        yield
    except Exception as error:
        causes = _causes(error)
        if "GatedRepoError" in causes:
            raise LoadError(
                f"{role}: {id} is gated: accept its terms on its hub page, then set HF_TOKEN to a token of that account"
            ) from None
        if "RepositoryNotFoundError" in causes:
            raise PairError(f"{role}: the hub has no model {id} that this account may read") from None
        if {"ConnectError", "LocalEntryNotFoundError", "OfflineModeIsEnabled", "ConnectTimeout"} & causes:
            raise LoadError(f"{role}: {id} is no directory here, it is not in the cache, and the model hub cannot be reached") from None
        if "HfHubHTTPError" in causes:
            raise LoadError(f"{role}: the model hub refused to hand out {id}: check HF_TOKEN") from None
        raise LoadError(f"{role}: {id} cannot be loaded, because of its {part}: {_reason(error)}") from None


def _causes(error: BaseException | None) -> set[str]:
    names = set()
    while error is not None:
        names |= {kind.__name__ for kind in type(error).__mro__}
        error = error.__cause__ or error.__context__
    return names


# What the libraries say in a programmer's words: what to look for, and what to say in its place.
PLAIN_WORDS = (
    (r"model type `(.+?)` but Transformers does not recognize", r"this version of transformers does not know the architecture \1"),
    (r"Unrecognized configuration class .*\.models\.(\w+)\.", r"\1 is no causal language model, which decoding needs"),
    (r"contains custom code", "the model comes with program code of its own, which is not run here"),
    (r"Should have a `model_type` key", "config.json has no model_type that says what it is"),
    (r"ignore_mismatched_sizes", "the weights have other shapes than config.json says"),
    (r"deserializing header: (.+)", r"the model.safetensors is broken or not whole (\1)"),
    (r"instantiate the backend tokenizer", "there are no tokenizer files"),
)


def _reason(error: Exception) -> str:
    """The library's words as part of one sentence: on one line, no further than their first sentence."""
    text = " ".join(str(error).split())
    for pattern, words in PLAIN_WORDS:
        if match := re.search(pattern, text):
            return match.expand(words)
    text = re.split(r"(?<=[.!?]) (?=[A-Z])", text)[0].rstrip(".:") or "no reason given"
    text = text if len(text) <= 150 else text[:147] + "..."
    return text if isinstance(error, (OSError, ValueError)) else f"{type(error).__name__}: {text}"


def _pair_in_memory(target: PreTrainedModel, drafter: PreTrainedModel | None, tokenizer) -> Pair:
    names = {role: model.name_or_path or type(model).__name__ for role, model in (("target", target), ("drafter", drafter)) if model}
    name = " + ".join(names.values())
    return _pair(name, target, drafter, tokenizer, names["target"], names.get("drafter"), {}, "as given")


def _pair(name, target, drafter, tokenizer, target_id, drafter_id, quantized, reason) -> Pair:
    for role, model, id in (("target", target, target_id), ("drafter", drafter, drafter_id)):
        if model is not None:
            try:
                rewindable_cache(model)
            except ValueError as error:
                raise PairError(f"{role} {id} ({type(model).__name__}) cannot be used: {error}") from None
    device = target.get_input_embeddings().weight.device
    info = PairInfo(
        name=name,
        target=target_id,
        drafter=drafter_id,
        device=str(device),
        device_name=torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name(),
        dtype=ByModel(_dtype_name(target), _dtype_name(drafter)),
        quantize=ByModel(quantized.get("target"), quantized.get("drafter") if drafter else None),
    )
    pair = Pair(target, drafter, tokenizer, info, reason, notes=_ignored_processors(target))
    if drafter is not None and pair.drafter_context < pair.context:
        pair.notes.append(f"the drafter's context is {pair.drafter_context:,.0f} tokens: beyond that nothing is drafted")
    return pair


def _dtype_name(model: PreTrainedModel | None) -> str | None:
    return None if model is None else str(model.dtype).removeprefix("torch.")


# What a generation config can ask for that changes the target's distribution, with the value that asks for nothing.
PROCESSORS = {
    "repetition_penalty": 1.0, "encoder_repetition_penalty": 1.0, "no_repeat_ngram_size": 0, "bad_words_ids": None,
    "min_length": 0, "min_new_tokens": None, "suppress_tokens": None, "begin_suppress_tokens": None, "sequence_bias": None,
    "forced_bos_token_id": None, "forced_eos_token_id": None, "exponential_decay_length_penalty": None, "guidance_scale": None,
    "typical_p": 1.0, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0,
}  # fmt: skip


def _ignored_processors(target: PreTrainedModel) -> list[str]:
    config = target.generation_config
    asked = [name for name, off in PROCESSORS.items() if getattr(config, name, None) not in (None, off)]
    return [f"not applied, though the target's generation config asks for it: {', '.join(asked)}"] if asked else []


def check_same_tokenizer(target, drafter, target_id: str, drafter_id: str) -> None:
    """PairError unless the two tokenizers mean the same by every id that both have, and split text alike."""
    words = {id: word for word, id in target.get_vocab().items()}
    others = {id: word for word, id in drafter.get_vocab().items()}
    for id in sorted(words.keys() & others.keys()):
        if words[id] != others[id]:
            raise PairError(
                f"drafter {drafter_id} has another tokenizer than target {target_id}: "
                f"id {id} is {ascii(others[id])} there and {ascii(words[id])} here"
            )
    probe = "Once upon a time, 3.14 für naïve 日本語 🙂\n\n\tdef f(x):  return x\n"
    if target(probe).input_ids != drafter(probe).input_ids:
        raise PairError(f"drafter {drafter_id} has another tokenizer than target {target_id}: they split the same text differently")


@torch.no_grad()
def _measure_steps(pair: Pair) -> None:
    """Times one-token forwards of both models (which warms them up, too): the cost ratio c of the theory."""
    for role in ROLES:
        model = getattr(pair, role)
        if model is None:
            continue
        with pair.threads():
            lm = CachedLM(model)
            lm.forward(torch.zeros(min(32, int(min(context_of(model), 33)) - 1), dtype=torch.long))
            length, times = lm.length, []
            while len(times) < 3 or (len(times) < 15 and sum(times) < 300):
                start = perf_counter()
                lm.forward(torch.zeros(1, dtype=torch.long)).flatten()[0].item()  # waits for the device
                times.append(1000 * (perf_counter() - start))
                lm.rewind(length)
        setattr(pair, f"{role}_step_ms", median(times[1:]))


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
            self._make_room(*resolve(name, request.get("target"), request.get("drafter"))[1:], request)
            pair = self.pairs[key] = load_pair(name, **request)
            return pair

    def _make_room(self, target: str, drafter: str | None, request: dict) -> None:
        device = _device("target", _of(request.get("device"), "target", "device"))
        for role in ROLES:  # nobody is sent away for a request that will be refused
            _quantize(role, _of(request.get("quantize"), role, "quantize"))
        _dtypes(target, drafter, {role: device for role in ROLES}, request.get("dtype"))
        needed = 4 * sum(_parameters(role, id) for role, id in (("target", target), ("drafter", drafter)) if id is not None)
        idle = [key for key, pair in self.pairs.items() if not pair.lock.locked()]
        while idle and self.held() + needed > self.share * memory_of(device):
            del self.pairs[idle.pop(0)]
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()

    def held(self) -> int:
        """Bytes of weights that all resident pairs hold."""
        return sum(pair.bytes_held.target + (pair.bytes_held.drafter or 0) for pair in self.pairs.values())
