"""What can be chosen: named pairs, number formats and quantisations. Data only, without torch."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from specdemo.events import DRAFTER_KINDS
from specdemo.words.message import Message, message

ROOT = Path(__file__).resolve().parents[2]  # the project's directory
EMBEDDED = ROOT / "assets" / "pairs" / "embedded"
POOR = "embedded-poor"  # the pair whose drafter guesses badly on purpose
EAGLE3 = "embedded-eagle3"  # the pair whose drafter is an EAGLE-3 head
DFLASH = "embedded-dflash"  # the pair whose drafter is a DFlash head

WORKS = ("chat", "code", "json", "summary", "story", "translation")  # that assets/prompts has prompts of
MOST_NAMES = 8  # of pairs in a sentence
DTYPES = ("float32", "bfloat16", "float16")  # names in torch
QUANTIZE = {"int8": 8, "int4": 4, "int2": 2, "float8": 8}  # bits per weight of a linear layer
# Where each quantisation can be chosen; `runtime.device.quantized_kinds` decides.
QUANTIZE_WHERE = (
    f"{', '.join(QUANTIZE)} on a CPU; on CUDA only without kernels that optimum-quanto compiles at their "
    "first use: int8, int4 in bfloat16 (from capability 8.0 on, for layers whose widths are multiples of "
    "128), float8 in float32 or below 8.0"
)


@dataclass(frozen=True)
class Entry:
    """A named pair.

    target, drafter: hub ids, or directories relative to ROOT. gigabytes: size of both models in bfloat16;
    drafter_gigabytes: the drafter's part of it. drafter_kind: a name in DRAFTER_KINDS. gated: needs HF_TOKEN
    of an account that has accepted the terms; free_drafter: the drafter needs none. quantize: the kind of
    weights that both models are loaded in, unless another is asked for.
    """

    name: str
    target: str
    drafter: str
    gigabytes: float
    drafter_gigabytes: float
    drafter_kind: str = "model"
    gated: bool = False
    free_drafter: bool = False
    quantize: str | None = None

    @property
    def about(self) -> Message:
        return message(f"pairs.{self.name.replace('.', '_')}")

    @property
    def tried(self) -> str:
        """Where this project has run it."""
        if self.target.startswith("assets/"):
            return "on CPU, in every test run"
        is_head = DRAFTER_KINDS[self.drafter_kind].in_speculators
        published = "size and config" if is_head else "sizes and tokenizers"  # it has no tokenizer
        return f"not yet: listed from its published {published}"


CATALOGUE = {
    entry.name: entry
    for entry in (
        Entry("embedded", "assets/pairs/embedded/target", "assets/pairs/embedded/drafter", 0.03, 0.002),
        Entry(POOR, "assets/pairs/embedded/target", "assets/pairs/embedded/poor", 0.03, 0.0005),
        Entry(EAGLE3, "assets/pairs/embedded/target", "assets/pairs/embedded/eagle3", 0.03, 0.006, "eagle3"),
        Entry(DFLASH, "assets/pairs/embedded/target", "assets/pairs/embedded/dflash", 0.03, 0.005, "dflash"),
        Entry("smollm2-1.7b", "HuggingFaceTB/SmolLM2-1.7B", "HuggingFaceTB/SmolLM2-135M", 3.7, 0.27),
        Entry("smollm-1.7b", "HuggingFaceTB/SmolLM-1.7B", "HuggingFaceTB/SmolLM-135M", 3.7, 0.27),
        Entry("gpt2-xl", "openai-community/gpt2-xl", "distilbert/distilgpt2", 3.3, 0.16),
        Entry("pythia-1.4b", "EleutherAI/pythia-1.4b", "EleutherAI/pythia-160m", 3.2, 0.32),
        Entry("qwen2.5-1.5b", "Qwen/Qwen2.5-1.5B", "Qwen/Qwen2.5-0.5B", 4.1, 0.99),
        Entry("qwen2.5-7b", "Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-0.5B", 16.2, 0.99),
        Entry("qwen3-8b", "Qwen/Qwen3-8B", "Qwen/Qwen3-0.6B", 17.9, 1.2),
        Entry("qwen3-8b-eagle3", "Qwen/Qwen3-8B", "RedHatAI/Qwen3-8B-speculator.eagle3", 18.4, 2.0, "eagle3"),
        Entry("qwen3-8b-dflash", "Qwen/Qwen3-8B", "z-lab/Qwen3-8B-DFlash-b16", 18.5, 2.1, "dflash"),
        Entry("qwen3-4b-dflash2", "Qwen/Qwen3-4B", "mgoin/Qwen3-4B-speculator.dflash2", 9.3, 1.3, "dflash2"),
        Entry("qwen3-8b-pard", "Qwen/Qwen3-8B", "amd/PARD-Qwen3-0.6B", 17.9, 1.2, "pard"),
        Entry("qwen3.5-4b", "Qwen/Qwen3.5-4B", "Qwen/Qwen3.5-0.8B", 9.9, 1.5),
        Entry("qwen3.5-4b-dflash", "Qwen/Qwen3.5-4B", "z-lab/Qwen3.5-4B-DFlash", 9.7, 1.3, "dflash"),
        Entry("llama-3.2-3b", "meta-llama/Llama-3.2-3B", "meta-llama/Llama-3.2-1B", 8.9, 2.5, gated=True),
        Entry("llama-3.2-3b-int8", "meta-llama/Llama-3.2-3B-Instruct",
              "meta-llama/Llama-3.2-1B-Instruct", 8.9, 2.5, gated=True, quantize="int8"),
        Entry("llama-3.1-8b", "meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.2-1B", 18.5, 2.5, gated=True),
        Entry("llama-3.1-8b-eagle3", "meta-llama/Llama-3.1-8B-Instruct",
              "RedHatAI/Llama-3.1-8B-Instruct-speculator.eagle3", 18.0, 1.9, "eagle3",
              gated=True, free_drafter=True),
        Entry("gemma-3-4b", "google/gemma-3-4b-pt", "google/gemma-3-270m", 9.0, 0.54, gated=True),
        Entry("gemma-4-e2b", "google/gemma-4-E2B-it", "google/gemma-4-E2B-it-assistant", 10.4, 0.15,
              "assistant"),
    )
}  # fmt: skip

# What a public server offers on a GPU. On a CPU it offers only the embedded pairs, since each visitor would
# wait for minutes. Its owner can list more.
FOR_GPUS = ("smollm2-1.7b", "qwen2.5-1.5b", "qwen2.5-7b", "qwen3-8b")

# The ids of models that the hub gives out only to accounts that have accepted their terms.
GATED = {entry.target for entry in CATALOGUE.values() if entry.gated} | {
    entry.drafter for entry in CATALOGUE.values() if entry.gated and not entry.free_drafter
}


def names_in_words(names: Collection[str]) -> str:
    """The names of pairs, for a sentence about one that is not among them; of many names, the first ones."""
    first, more = list(names)[:MOST_NAMES], len(names) - MOST_NAMES
    return ", ".join(first) + (f" and {more} others, which pairs lists" if more > 0 else "")


def others_at_hand(name: str) -> list[str]:
    """The other catalogue pairs with the same target whose models come with the project."""
    target = CATALOGUE[name].target if name in CATALOGUE else None
    return [
        other
        for other, entry in CATALOGUE.items()
        if entry.target == target and other != name and (ROOT / entry.drafter).is_dir()
    ]
