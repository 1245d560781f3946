"""The words of the page about a run that a server has made: what of it is told, and by whom.

Without torch and without Gradio. What a server does not tell is left out or called so, and never guessed.
"""

from specdemo.events import PairInfo, ServerInfo, Stats
from specdemo.events.trace import Trace
from specdemo.ui.view.wire import Counted, Served

NOT_TOLD = "not told"

# Numbers that only the engine here can know: they are not shown for a server's run.
ENGINE_ONLY = (
    *("speedup", "target_forwards", "target_step", "drafter_step", "cost_ratio", "distance"),
    *("draft_ms", "verify_ms"),
)

# Numbers that only a server's run has: (the name on the page, the definition).
SERVER_NUMBERS = {
    "network_ms": (
        "network and the rest",
        "How much longer the run took here than the server says: the network, and what lies between. Known "
        "only if this was the only request that ended on the server meanwhile.",
    ),
    "queue_ms": ("server: waiting", "How long the request waited for its turn, by the server's own clock."),
    "server_prefill_ms": (
        "server: prefill",
        "How long the server read the prompt, up to the first token, by its own clock.",
    ),
    "decode_ms": (
        "server: generating",
        "How long the server generated after the first token, by its own clock.",
    ),
    "total_ms": ("server: all", "From the request's arrival to its last token, by the server's own clock."),
}

# Other words for a number of a server's run: (the name on the page, the definition).
NUMBERS_SERVED = {
    "tokens_per_second": (
        "tokens/s by arrival",
        "Tokens after the first one, divided by the time from its arrival to that of the last one. The "
        "network is in this time, and so are other visitors' requests.",
    ),
    "acceptance_rate": (
        "acceptance rate",
        "Accepted drafts as a share of those that were judged: accepted / (accepted + rejected). It is known "
        "only where the server tells how many tokens it drafts.",
    ),
    "rounds": (
        "rounds",
        "What arrived at once is one round: the drafts that the target accepted, and its own token. The "
        "first round is the prefill's.",
    ),
    "ttft_ms": (
        "first token after",
        "From the request to the first token's arrival: the network, the server's queue and its prefill.",
    ),
}

# Other definitions of a fate in a server's run.
FATES_SERVED = {
    "accepted": "Drafted by the server, and accepted by its target.",
    "rejected": "Drafted, and rejected by the target. Which token it was is not told by the server.",
    "resampled": "The target's own token in a round in which a draft was rejected.",
    "sampled": (
        "The target's own token: from the prefill, or in a round of which the server does not tell how many "
        "tokens it drafted. Whether it is a resampled or a bonus one is not known then."
    ),
    "discarded": "Drafted after a rejection or after the end of the text. Which token it was is not told.",
}


def served(pair: PairInfo) -> Served | None:
    """What the page needs to know of the server."""
    server = pair.server
    return None if server is None else {"method": server.method, "gamma": server.gamma}


def counted(stats: Stats) -> Counted | None:
    """What the server's own counters say, if there is anything."""
    server = stats.server
    if server is None or not server.drafts or not server.accepted_by_place:
        return None
    return {"alone": server.alone, "drafts": server.drafts, "by_place": list(server.accepted_by_place)}


def drafting_in_words(server: ServerInfo) -> str:
    if server.gamma == 0:
        return "nothing drafted"
    return f"drafting by {printable(server.method)}" if server.method else "how it drafts is not told"


def server_in_words(server: ServerInfo) -> str:
    """Software, version and parallelism, as far as they are told."""
    version = printable(server.version) if server.version else "(version not told)"
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
    numbers = {name: NOT_TOLD if ms is None else f"{ms:,.0f} ms" for name, ms in times.items()}
    return numbers | ({"acceptance_rate": NOT_TOLD} if stats.rejected is None else {})


def printable(text: str) -> str:
    """A name out of a file for use in a sentence: at most 80 characters, with unprintable ones escaped."""
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text[:80])
