"""The catalogue of pairs that are known by name: data, not code."""

from dataclasses import dataclass
from pathlib import Path

EMBEDDED = Path(__file__).resolve().parent.parent / "assets" / "pairs" / "embedded"


@dataclass(frozen=True)
class Entry:
    """A named pair. `gigabytes`: what both take in bfloat16. `gated`: needs HF_TOKEN of an account that has accepted the
    terms. `tried`: where this project has run it, or "not yet"."""

    name: str
    target: str
    drafter: str
    gigabytes: float
    about: str
    gated: bool = False
    tried: str = "not yet: listed from its published sizes and tokenizers"


CATALOGUE = {
    entry.name: entry
    for entry in (
        Entry("embedded", str(EMBEDDED / "target"), str(EMBEDDED / "drafter"), 0.03,
              "small story writers that come with the project; no download",
              tried="on CPU, in every test run"),
        Entry("smollm2-1.7b", "HuggingFaceTB/SmolLM2-1.7B", "HuggingFaceTB/SmolLM2-135M", 3.7, "equal vocabularies, open"),
        Entry("smollm-1.7b", "HuggingFaceTB/SmolLM-1.7B", "HuggingFaceTB/SmolLM-135M", 3.7, "the first SmolLM"),
        Entry("gpt2-xl", "openai-community/gpt2-xl", "distilbert/distilgpt2", 3.3, "the classic, with a drafter distilled from its family"),
        Entry("pythia-1.4b", "EleutherAI/pythia-1.4b", "EleutherAI/pythia-160m", 3.2, "same data, two sizes"),
        Entry("opt-6.7b", "facebook/opt-6.7b", "facebook/opt-125m", 13.6, "a large gap in size"),
        Entry("qwen2.5-1.5b", "Qwen/Qwen2.5-1.5B", "Qwen/Qwen2.5-0.5B", 4.1, "a large vocabulary, a near drafter"),
        Entry("qwen2.5-7b", "Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-0.5B", 16.2, "vocabularies that differ by padding"),
        Entry("qwen3-8b", "Qwen/Qwen3-8B", "Qwen/Qwen3-0.6B", 17.9, "with a chat template"),
        Entry("llama-3.2-3b", "meta-llama/Llama-3.2-3B", "meta-llama/Llama-3.2-1B", 8.9, "near sizes", gated=True),
        Entry("llama-3.1-8b", "meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.2-1B", 18.5, "the most used target", gated=True),
        Entry("gemma-3-4b", "google/gemma-3-4b-pt", "google/gemma-3-270m", 9.0, "sliding windows, padded vocabulary", gated=True),
    )
}  # fmt: skip
