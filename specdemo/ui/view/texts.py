"""The words of the page about a run: fates, numbers, whose run it is, how it was made. What a server does not
tell of its run is left out or called so, and never guessed.

Without torch and without Gradio.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from specdemo.events import DRAFTER_KINDS, METHODS, PairInfo, Params, ServerInfo, words_of_row
from specdemo.events.trace import Trace
from specdemo.ui.view.settings import in_words, judging_in_words, length_in_words, sampler_in_words
from specdemo.words.catalogue import catalogue, in_language, number, say
from specdemo.words.message import Message

if TYPE_CHECKING:
    from specdemo.loading.pair import AnyPair

# The catalogues have the page's numbers and fates in its order, beside their names and definitions.
WORDS = catalogue("en")
# By run.fates.NAME; view.greedyFates and run.greedy_fates have those with other words in a greedy run. The
# style sheet has one style for each.
FATES = tuple(WORDS["run"]["fates"])
HIDEABLE = ("rejected", "discarded")

# By run.numbers.NAME; the first one stands beside the sentence. served.numbers has those with other words in
# a server's run.
HEADLINE, *OTHER_NUMBERS = WORDS["run"]["numbers"]
# Numbers that only the engine here can know: they are not shown for a server's run.
ENGINE_ONLY = (
    *("speedup", "target_forwards", "target_step", "drafter_step", "cost_ratio", "distance"),
    *("draft_ms", "verify_ms"),
)


def whose(trace: Trace, recorded: bool = False) -> str:
    """Whose run the trace is: pair, drafter, gamma, sampler, seed, device, and the date where it is known; of
    a server's run what the server tells."""
    params, pair, server = trace.params, trace.pair, trace.pair.server
    name, sampler = printable(pair.name), [sampler_in_words(params)]
    if params.temperature:
        sampler.append(say("said.seed", seed=params.seed))
    if server is None:
        drafting = [drafter_in_words(params, pair), *length_in_words(params), *judging_in_words(params)]
        device = f"{printable(pair.device)} ({printable(pair.device_name)})"
        parts = [*drafting, *sampler, device, *([str(trace.date)] if trace.date else [])]
    else:
        model = [printable(server.model)] if server.model not in name else []
        length = [f"γ {server.gamma}"] if server.gamma else []
        parts = [*model, drafting_in_words(server), *length, *sampler, server_in_words(server)]
    joined = " · ".join([name, *parts])
    return say("said.recorded", whose=joined) if recorded else joined


def drafter_in_words(params: Params, pair: PairInfo) -> str:
    """What drafts, by kind and name. The exit layer is named once it is chosen, as in any trace."""
    method = METHODS[params.draft_with]
    drafting = words_of_row("methods", method.name, "label")
    if method.is_by_drafter:
        kind = pair.drafter_kind if pair.drafter_kind in DRAFTER_KINDS else None
        # The two last parts of a hub id or a directory.
        name = "/".join(Path(printable(pair.drafter or "model")).parts[-2:])
        called = words_of_row("kinds", kind, "label") if kind else say("said.drafter")
        return f"{called} {name}"
    if "exit_layer" in method.fields and params.exit_layer:
        return say("said.after_layer", method=drafting, layer=params.exit_layer)
    return say("said.nothing_drafted") if params.draft_with == "none" else drafting


def recorded_on(trace: Trace) -> str:
    """The machine of a recorded run, and the date where it is known."""
    machine = printable(trace.pair.device_name)
    return f"{machine}, {trace.date}" if trace.date else machine


def number_texts(trace: Trace) -> dict[str, str]:
    """The numbers as the page writes them; – for a number that is not known (yet)."""
    stats = trace.stats
    is_timed = stats.speedup_interval is not None

    def write(value: float | None, pattern: str) -> str:
        return "–" if value is None else in_language(pattern.format(value))

    numbers = {
        "tokens": write(stats.tokens, "{:,}"),
        "tokens_per_second": write(stats.tokens_per_second, "{:,.1f}"),
        "acceptance_rate": write(stats.acceptance_rate, "{:.0%}"),
        "mean_tokens_per_round": write(stats.mean_tokens_per_round, "{:.2f}"),
        "rounds": write(stats.rounds, "{:,}"),
        "target_forwards": _forwards(trace),
        "saved": write(stats.tokens - stats.rounds, "{:,}"),
        "distance": write(stats.distance, "{:.3f}"),
        "speedup": write(stats.speedup if is_timed else None, "{:.2f} ×"),
        "target_step": write(stats.target_step_ms if is_timed else None, "{:.2f} ms"),
        "drafter_step": write(stats.drafter_step_ms, "{:.2f} ms"),
        "cost_ratio": write(stats.cost_ratio if is_timed else None, "{:.3f}"),
        "ttft_ms": write(stats.ttft_ms, "{:,.0f} ms"),
        "draft_ms": write(stats.draft_ms, "{:,.0f} ms"),
        "verify_ms": write(stats.verify_ms, "{:,.0f} ms"),
        "seed": str(trace.params.seed) if trace.params.temperature else "–",
        "finish": say(f"run.finishes.{trace.finish}") if trace.finish else "…",
    }
    if trace.pair.server is not None and stats.rejected is None:
        numbers["acceptance_rate"] = say("served.not_told")
    return numbers


def _forwards(trace: Trace) -> str:
    """The target's forwards after the prefill, as the verdict counts them: one a round, + those that read
    parts of the text again."""
    again = sum(one.target_forwards - 1 for one in trace.rounds)
    rounds = number(trace.stats.rounds)
    return f"{rounds} + {number(again)}" if again else rounds


def describe_pair(pair: "AnyPair", params: Params) -> Iterator[str]:
    """Sentences about the pair and this run: dtype, bytes held, and the pair's notes; for a server,
    what it tells about itself."""
    if not pair.runs_here:
        yield f"{pair.about}."
        yield from map(_as_sentence, pair.notes)
        return
    info, held = pair.info, pair.bytes_held
    dtypes = in_one(list(dict.fromkeys(filter(None, (info.dtype.target, info.dtype.drafter)))))
    target, drafter = (number((size or 0) / 1e6, ",.1f") for size in (held.target, held.drafter))
    key = "said.held_both" if held.drafter else "said.held"
    yield say(key, dtypes=dtypes, target=target, drafter=drafter)
    if params.draft_with == "none":
        yield say("said.drafting_is_off")
    for note in (*pair.notes, *((pair.warming_up,) if pair.warming_up else ())):
        yield _as_sentence(note)


def _as_sentence(note: Message | str) -> str:
    said = in_words(note)
    return f"{said[:1].upper()}{said[1:]}."


def in_one(words: list[str]) -> str:
    """The words in one: "a", "a and b"; more than two are said in pairs."""
    if len(words) < 2:
        return "".join(words)
    *first, last = words
    return say("said.two", first=in_one(first), second=last)


def drafting_in_words(server: ServerInfo) -> str:
    if server.gamma == 0:
        return say("served.nothing_drafted")
    if server.method:
        return say("served.drafting_by", method=printable(server.method))
    return say("served.how_not_told")


def server_in_words(server: ServerInfo) -> str:
    """The server's software and version, as far as they are told."""
    version = printable(server.version) if server.version else say("served.version_not_told")
    return f"{printable(server.software)} {version}"


def printable(text: str) -> str:
    """A name out of a file for use in a sentence: at most 80 characters, with unprintable ones escaped."""
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text[:80])
