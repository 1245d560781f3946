"""The words of the page about a run that a server has made: what is told about it, and by whom.

Without torch and without Gradio. What a server does not tell is left out or called so, and never guessed.
"""

from specdemo.events import PairInfo, ServerInfo, Stats
from specdemo.events.trace import Trace
from specdemo.ui.view.wire import Counted, Served
from specdemo.words.catalogue import number, say

# Numbers that only the engine here can know: they are not shown for a server's run.
ENGINE_ONLY = (
    *("speedup", "target_forwards", "target_step", "drafter_step", "cost_ratio", "distance"),
    *("experts_read", "draft_ms", "verify_ms"),
)

# Numbers that only a server's run has. The catalogues have the words: served.own_numbers.NAME.
SERVER_NUMBERS = ("network_ms", "queue_ms", "server_prefill_ms", "decode_ms", "total_ms")

# Numbers and fates that have other words in a server's run: served.numbers.NAME, served.fates.NAME.
NUMBERS_SERVED = ("tokens_per_second", "acceptance_rate", "rounds", "ttft_ms")
FATES_SERVED = ("accepted", "rejected", "resampled", "sampled", "discarded")


def served(pair: PairInfo) -> Served | None:
    """What the page needs to know about the server."""
    server = pair.server
    return None if server is None else {"method": server.method, "gamma": server.gamma}


def counted(stats: Stats) -> Counted | None:
    """What the server's own counters say, if they say anything."""
    server = stats.server
    if server is None or not server.drafts or not server.accepted_by_place:
        return None
    return {"alone": server.alone, "drafts": server.drafts, "by_place": list(server.accepted_by_place)}


def drafting_in_words(server: ServerInfo) -> str:
    if server.gamma == 0:
        return say("served.nothing_drafted")
    if server.method:
        return say("served.drafting_by", method=printable(server.method))
    return say("served.how_not_told")


def server_in_words(server: ServerInfo) -> str:
    """The server's software, version and parallelism, as far as they are told."""
    version = printable(server.version) if server.version else say("served.version_not_told")
    parallel = f", {printable(server.parallel)}" if server.parallel else ""
    return f"{printable(server.software)} {version}{parallel}"


def served_numbers(trace: Trace) -> dict[str, str]:
    """The numbers of a server's run that differ from those of the engine, as the page writes them."""
    stats, server = trace.stats, trace.stats.server
    times = {
        "network_ms": server and server.network_ms,
        "queue_ms": server and server.queue_ms,
        "server_prefill_ms": server and server.prefill_ms,
        "decode_ms": server and server.decode_ms,
        "total_ms": server and server.total_ms,
    }
    not_told = say("served.not_told")
    numbers = {name: not_told if ms is None else f"{number(ms, ',.0f')} ms" for name, ms in times.items()}
    return numbers | ({"acceptance_rate": not_told} if stats.rejected is None else {})


def printable(text: str) -> str:
    """A name out of a file for use in a sentence: at most 80 characters, with unprintable ones escaped."""
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text[:80])
