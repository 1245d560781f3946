"""The words of the page about a run: fates, numbers and their definitions, whose run it is, how it was made.

Without torch and without Gradio.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from specdemo.events import DRAFTER_KINDS, METHODS, Params, ServerInfo, Stats, metrics
from specdemo.events.speedup import is_wide
from specdemo.events.trace import Trace
from specdemo.ui.view.served import drafting_in_words, printable, served_numbers, server_in_words
from specdemo.ui.view.settings import judging_in_words, sampler_in_words

if TYPE_CHECKING:
    from specdemo.loading.pair import AnyPair

# Fate: (its word in the legend, its definition). The style sheet has one style for each.
FATES = {
    "prompt": ("prompt", "The text that was given."),
    "accepted": (
        "accepted",
        "Drafted, and accepted by the target; by the speculative rule, if u < min(1, p/q).",
    ),
    "rejected": ("rejected", "Drafted, and rejected by the target. Not part of the text."),
    "resampled": (
        "resampled",
        "The target's own token in place of a rejected one; by the speculative rule, drawn from the part "
        "of p that exceeds q.",
    ),
    "bonus": ("bonus", "The target's own token after a draft that was accepted in full."),
    "sampled": ("sampled", "The target's own token in a round in which nothing was drafted."),
    "discarded": (
        "discarded",
        "Drafted after a rejection or after the end of the text, and so dropped. Not part of the text.",
    ),
}
HIDEABLE = ("rejected", "discarded")
HEADLINE = "speedup"  # the number that stands beside the sentence
MEANWHILE = "mean_tokens_per_round"  # stands there while that one is not known

# Number: (its name on the page, its definition).
NUMBERS = {
    "speedup": (
        "speed-up",
        "The mean time of a plain round times the tokens, divided by the time of drafting and verifying: "
        "how many times as fast as the target alone. The plain rounds, with nothing drafted, were timed "
        "right after this run, on its own text. Two figures are the ends of its 90% interval, where they "
        "differ by more than a factor of 1.5.",
    ),
    "tokens_per_second": (
        "tokens/s",
        "Tokens divided by the time spent drafting and verifying, measured by the engine's own clock.",
    ),
    "acceptance_rate": (
        "acceptance rate",
        "Accepted drafts as a share of those that were judged: accepted / (accepted + rejected).",
    ),
    "mean_tokens_per_round": ("tokens/round", "Tokens divided by rounds. It is 1 when nothing is drafted."),
    "tokens": ("tokens", "Tokens of the text so far, without the prompt."),
    "rounds": ("rounds", "A round is one draft and the target forward that judges it."),
    "target_forwards": (
        "target forwards",
        "Forwards of the target: one for each round, + the others: those of the prefill, which read the "
        "prompt, and where it has recurrent layers, those that read parts of the text again.",
    ),
    "saved": (
        "forwards saved",
        "How many more target forwards plain decoding would have needed: it takes one for each token, not "
        "one for each round.",
    ),
    "target_step": (
        "a plain round",
        "The mean time of a round in which nothing is drafted, timed right after this run, on its own text; "
        "in brackets the times between which 8 of 10 lay.",
    ),
    "drafter_step": (
        "a drafted token",
        "The time spent drafting, divided by the number of drafted tokens. What was dropped, because the "
        "drafter was not sure enough, takes time and does not count as drafted.",
    ),
    "cost_ratio": ("cost ratio c", "The time of a drafted token divided by the time of a plain round."),
    "distance": (
        "distance from the target",
        "Of a lossy rule: the mean over the text's tokens of the total variation distance between the "
        "distribution that the rule gave the token and the target's. 0 is the same, 1 has nothing in common.",
    ),
    "draft_ms": ("drafting", "Time spent drafting, in all rounds together."),
    "verify_ms": ("verifying", "Time spent verifying and judging, in all rounds together."),
    "ttft_ms": (
        "first tokens after",
        "The time of the prefill, which reads the prompt, and of one round.",
    ),
    "seed": (
        "seed",
        "The seed of this run's random numbers. The same seed and the same settings give the same text. "
        "Greedy decoding draws none.",
    ),
    "finish": (
        "ended by",
        "eos: the model ended the text. stop: a stop string appeared. length: the text has the requested "
        "length. cancelled: Stop was pressed. error: the run failed.",
    ),
}


def whose(trace: Trace, recorded: bool = False) -> str:
    """Whose run it is: pair, drafter, gamma, sampler, seed, device, and the date where it is known."""
    params, pair = trace.params, trace.pair
    if pair.server is not None:
        return _whose_served(trace, pair.server, recorded)
    method = METHODS[params.draft_with]
    drafting = method.label
    if method.needs == "drafter":
        kind = DRAFTER_KINDS.get(pair.drafter_kind or "")
        # Of a hub id or a directory, the two last parts.
        name = "/".join(Path(printable(pair.drafter or "model")).parts[-2:])
        drafting = f"{kind.label if kind else 'drafter'} {name}"
    elif method.needs == "first layers":
        drafting = f"{drafting} after layer {params.exit_layer}"
    elif params.draft_with == "none":
        drafting = "nothing drafted"
    parts = [
        f"{'Recorded run: ' if recorded else ''}{printable(pair.name)}",
        drafting,
        *([f"γ {params.gamma}"] if params.draft_with != "none" else []),
        *judging_in_words(params),
        sampler_in_words(params),
        *([f"seed {params.seed}"] if params.temperature else []),
        f"{printable(pair.device)} ({printable(pair.device_name)})",
        *([f"{trace.date}"] if trace.date else []),
    ]
    return " · ".join(parts)


def _whose_served(trace: Trace, server: ServerInfo, recorded: bool) -> str:
    """The same of a server's run, as far as the server tells."""
    params, name = trace.params, printable(trace.pair.name)
    parts = [
        f"{'Recorded run: ' if recorded else ''}{name}",
        *([printable(server.model)] if server.model not in name else []),
        drafting_in_words(server),
        *([f"γ {server.gamma}"] if server.gamma else []),
        sampler_in_words(params),
        *([f"seed {params.seed}"] if params.temperature else []),
        server_in_words(server),
    ]
    return " · ".join(parts)


def number_texts(trace: Trace) -> dict[str, str]:
    """The numbers as the page writes them; – for one that is not known (yet)."""
    stats = trace.stats
    spread = stats.target_step_spread if stats.speedup_interval is not None else None

    def write(value: float | None, pattern: str) -> str:
        return "–" if value is None else pattern.format(value)

    numbers = {
        "tokens": write(stats.tokens, "{:,}"),
        "tokens_per_second": write(stats.tokens_per_second, "{:,.1f}"),
        "acceptance_rate": write(stats.acceptance_rate, "{:.0%}"),
        "mean_tokens_per_round": write(stats.mean_tokens_per_round, "{:.2f}"),
        "rounds": write(stats.rounds, "{:,}"),
        "target_forwards": f"{stats.rounds:,} + {metrics.other_forwards(stats):,}",
        "saved": write(stats.tokens - stats.rounds, "{:,}"),
        "distance": write(stats.distance, "{:.3f}"),
        "speedup": _speedup(stats),
        "target_step": f"{stats.target_step_ms:.2f} ms ({spread[0]:.2f}–{spread[1]:.2f})" if spread else "–",
        "drafter_step": write(stats.drafter_step_ms, "{:.2f} ms"),
        "cost_ratio": write(stats.cost_ratio if spread else None, "{:.3f}"),
        "ttft_ms": write(stats.ttft_ms, "{:,.0f} ms"),
        "draft_ms": write(stats.draft_ms, "{:,.0f} ms"),
        "verify_ms": write(stats.verify_ms, "{:,.0f} ms"),
        "seed": str(trace.params.seed) if trace.params.temperature else "–",
        "finish": trace.finish or "…",
    }
    return numbers if trace.pair.server is None else numbers | served_numbers(trace)


def _speedup(stats: Stats) -> str:
    if stats.speedup is None or stats.speedup_interval is None:
        return "–"
    low, high = stats.speedup_interval
    return f"{low:.2f}–{high:.2f} ×" if is_wide((low, high)) else f"{stats.speedup:.2f} ×"


def describe_pair(pair: "AnyPair", params: Params) -> Iterator[str]:
    """Sentences about the pair and this run: device, dtype, bytes held, and the pair's notes; of a server,
    what it tells of itself."""
    if not pair.runs_here:
        yield f"{pair.about}."
        yield from (note[:1].upper() + note[1:] + "." for note in pair.notes)
        return
    info, held = pair.info, pair.bytes_held
    dtypes = " and ".join(dict.fromkeys(filter(None, (info.dtype.target, info.dtype.drafter))))
    drafter = f" and {held.drafter / 1e6:,.1f} MB for the drafter" if held.drafter else ""
    yield f"{info.name} on {info.device} ({info.device_name}), {dtypes}."
    yield f"Weights held: {held.target / 1e6:,.1f} MB for the target{drafter}."
    copied = pair.bytes_copied
    if both := copied.target + (copied.drafter or 0):
        yield f"Forwards read copies of them in 16 bits, {both / 1e6:,.1f} MB in all, with the same numbers."
    if params.draft_with == "none":
        yield "Drafting is off: every token takes one forward of the target."
    for note in (*pair.notes, *((pair.warming_up,) if pair.warming_up else ())):
        yield note[:1].upper() + note[1:] + "."


def describe_recorded(trace: Trace) -> str:
    """A sentence about where and how a recorded run was made."""
    unfinished = "" if trace.finish else " It had not ended when it was saved."
    if server := trace.pair.server:
        made = f"A server made it: {server_in_words(server)}, with {printable(server.model)}."
        return f"A recorded run, played without a server. {made}{unfinished}"
    dtype = f" in {printable(trace.pair.dtype.target)}" if trace.pair.dtype.target else ""
    device = printable(trace.pair.device_name)
    return f"A recorded run, played without models. It was made on {device}{dtype}.{unfinished}"
