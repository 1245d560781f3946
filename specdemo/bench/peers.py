"""Other packages that take part in a benchmark where they are installed, and which pairs they can take."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from transformers import PreTrainedModel

from specdemo.events import Params
from specdemo.loading.pair import Pair
from specdemo.runtime.device import free_memory

COPIES = 6  # in float32, of a pair's models in memory, when all contestants of these packages run


@dataclass(frozen=True)
class Work:
    """What a contestant has to do, and with what."""

    pair: Pair
    params: Params
    threads: int
    own_threads: int  # as many as torch chooses
    folder: Path | None  # for models in other formats; None: without peers
    precision: str | None = None  # of a package's contestant


@dataclass(frozen=True)
class Package:
    name: str
    modules: tuple[str, ...]
    install: str  # what pip is told

    def is_here(self) -> bool:
        return all(find_spec(module) for module in self.modules)


OPENVINO = Package("OpenVINO GenAI", ("openvino_genai", "openvino_tokenizers"), "openvino-genai")
LLAMA_CPP = Package("llama.cpp", ("xllamacpp", "gguf"), "xllamacpp gguf")


PEER_PACKAGES = (OPENVINO, LLAMA_CPP)
PLAIN_LLAMA = "an unquantised Llama model without biases and scaled positions, and no other is converted"


def takes_target(work: Work) -> bool:
    return _why_not_target(work.pair) is None


def takes_drafter(work: Work) -> bool:
    return takes_target(work) and work.pair.drafter is not None and _why_not_drafter(work.pair) is None


def absences(pair: Pair) -> list[str]:
    """What takes no part, and why: a sentence for each package, and one for a pair that they cannot take."""
    if pair.target.device.type != "cpu":
        return []
    missing = [one for one in PEER_PACKAGES if not one.is_here()]
    sentences = [f"{one.name} takes no part: it needs pip install {one.install}" for one in missing]
    others = " and ".join(one.name for one in PEER_PACKAGES if one not in missing)
    if others and (why_not := _why_not_target(pair)):
        sentences.append(f"no run of {others}: {why_not}")
    elif others and pair.drafter is not None and (why_not := _why_not_drafter(pair)):
        sentences.append(f"no drafting in {others}: {why_not}")
    return sentences


def _why_not_target(pair: Pair) -> str | None:
    if pair.target.device.type != "cpu":
        return "the target is not on a CPU"
    if not _is_plain_llama(pair.target):
        return f"the target is not {PLAIN_LLAMA}"
    models = [model for model in (pair.target, pair.drafter) if model is not None]
    needed = 4 * COPIES * sum(weight.numel() for model in models for weight in model.parameters())
    if needed > (free := free_memory("cpu")):
        return f"the copies need {needed / 1e9:.1f} GB of memory, and {free / 1e9:.1f} GB are free"
    return None


def _why_not_drafter(pair: Pair) -> str | None:
    if not isinstance(pair.drafter, PreTrainedModel) or not _is_plain_llama(pair.drafter):
        return f"the drafter is not {PLAIN_LLAMA}"
    if pair.other_tokenizer is not None or pair.drafter.config.vocab_size != pair.target.config.vocab_size:
        return "the drafter's vocabulary is not the target's"
    return None


def _is_plain_llama(model: PreTrainedModel) -> bool:
    config = model.config
    return (
        config.model_type == "llama"
        and config.rope_parameters["rope_type"] == "default"
        and config.hidden_act == "silu"
        and not (config.attention_bias or config.mlp_bias)
        and getattr(config, "quantization_config", None) is None
    )
