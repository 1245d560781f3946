"""A run as vLLM, SGLang and llama.cpp would report it: the same counts, each by its own definition.

Drafted are all tokens that the target was given to judge, those behind a rejection too. Accepted are all that
the verdict accepted, those behind the end of the text too: the three servers count before they cut it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specdemo.events import Judged, is_tree
from specdemo.events.trace import Trace

# The versions whose sources were read, and when they were published.
READ = {
    "vLLM": "0.32.0 (2026-10-20)",
    "SGLang": "0.5.23 (2026-10-30)",
    "llama.cpp": "b11434 (2026-10-06)",
}


@dataclass(frozen=True, slots=True)
class Tally:
    """A run's counts as a server keeps them. steps: rounds. drafts: how many of them had a draft, at least
    one; hit: drafts of which a token was accepted. drafted, accepted: tokens of drafts. tokens: of the text.
    gamma: the draft length; None where it was chosen round by round, and of trees."""

    steps: int
    drafts: int
    hit: int
    drafted: int
    accepted: int
    tokens: int
    gamma: int | None


@dataclass(frozen=True, slots=True)
class Phrase:
    """What a server calls a number. where: the file and the function that define it. form: how the server
    writes it. value: of a run."""

    server: str
    word: str
    where: str
    form: str
    value: Callable[[Tally], float | None]


VLLM = "vllm/v1/spec_decode/metrics.py"
SGLANG = "srt/managers/scheduler_components/metrics_reporter.py"
SGLANG_ANSWER = "srt/managers/tokenizer_manager.py: _calculate_spec_decoding_metrics"
LLAMA = "tools/server/server-context.cpp: print_timings"
LLAMA_LOG = "common/speculative.cpp: common_speculative_print_stats"
# By the keys of their definitions, run.phrase_book.of.KEY in the catalogues.
BOOK: dict[str, Phrase] = {
    "vllm_length": Phrase(
        *("vLLM", "Mean acceptance length", f"{VLLM}: SpecDecodingLogging.log", ".2f"),
        value=lambda of: 1 + of.accepted / of.drafts,
    ),
    "vllm_bare": Phrase(
        *("vLLM", "num_accepted_tokens / num_drafts", f"{VLLM}: SpecDecodingProm", ".2f"),
        value=lambda of: of.accepted / of.drafts,
    ),
    "vllm_rate": Phrase(
        *("vLLM", "Avg Draft acceptance rate", f"{VLLM}: SpecDecodingLogging.log", ".1%"),
        value=lambda of: of.accepted / of.drafted,
    ),
    "sglang_length": Phrase(
        *("SGLang", "accept len", f"{SGLANG}: report_decode_stats", ".2f"),
        value=lambda of: 1 + of.accepted / of.steps,
    ),
    "sglang_text": Phrase(
        *("SGLang", "spec_accept_length", SGLANG_ANSWER, ".2f"),
        value=lambda of: of.tokens / of.steps,
    ),
    "sglang_rate": Phrase(
        *("SGLang", "accept rate", f"{SGLANG}: report_decode_stats", ".2f"),
        value=lambda of: of.accepted / (of.gamma * of.steps) if of.gamma else None,
    ),
    "llama_rate": Phrase(
        *("llama.cpp", "draft acceptance", LLAMA, ".5f"),
        value=lambda of: of.accepted / of.drafted,
    ),
    "llama_length": Phrase(
        *("llama.cpp", "mean len", LLAMA, ".2f"),
        value=lambda of: 1 + of.accepted / of.drafts,
    ),
    "llama_drafts": Phrase(
        *("llama.cpp", "#acc drafts / #gen drafts", LLAMA_LOG, ".2f"),
        value=lambda of: of.hit / of.drafts,
    ),
}


def tally_of(trace: Trace) -> Tally | None:
    """The run's counts; None where nothing was drafted, and of a server's run, which has its own."""
    drafts = [one.draft for one in trace.rounds if one.draft]
    if trace.pair.server or not drafts:
        return None
    kept = [_kept(draft) for draft in drafts]
    gamma = None if any(map(is_tree, drafts)) else trace.params.gamma
    return Tally(
        steps=len(trace.rounds),
        drafts=len(drafts),
        hit=sum(count > 0 for count in kept),
        drafted=sum(map(len, drafts)),
        accepted=sum(kept),
        tokens=trace.stats.tokens,
        gamma=gamma if isinstance(gamma, int) else None,
    )


def _kept(draft: Sequence[Judged]) -> int:
    """How many tokens of a draft the verdict accepted. In a tree these are the ones that were judged with a u
    below what it is compared with."""
    if is_tree(draft):
        return sum(
            one.u is not None and one.accept_prob is not None and one.u < one.accept_prob for one in draft
        )
    fates = [token.fate for token in draft]
    return fates.index("rejected") if "rejected" in fates else len(fates)
