"""Traces of a server's runs, as a client of one makes them: one that tells how much it drafts, one that does
not."""

from dataclasses import replace

from specdemo.events import (
    ByModel,
    Judged,
    Next,
    PairInfo,
    Params,
    Round,
    ServerInfo,
    ServerStats,
    Started,
)
from specdemo.events.trace import Trace

SERVER = ServerInfo("http://host:8000", "vllm", "0.11.0", "org/target-8b", "eagle3", 3, "2 GPUs")
SILENT = replace(SERVER, version=None, method=None, gamma=None, parallel=None)
WORDS = (" there", " was", " a", " girl", " who", " had", " one", " dog", " and", " no", " cat", ".")
CHUNKS = (1, 3, 4, 1, 3)  # tokens that arrive at once; the first is the prefill's


def served_trace(told: bool = True, finish: str | None = "length", **params) -> Trace:
    """Rounds: the prefill's; two of three drafts accepted; all three; none; two of three."""
    nothing = ByModel(None, None)
    server = SERVER if told else SILENT
    pair = PairInfo("far", server.model, None, "server", "vllm", nothing, nothing, server)
    trace = Trace.begin(Started(pair, {}, Params(seed=7, **params), "Once upon a time", ()))
    for index, tokens in enumerate(CHUNKS):
        trace.add(_round(index, len(trace.output_ids), tokens, told))
    drafts = len(CHUNKS) - 1
    times = (3.0, 180.0, 620.0, 803.0, 41.0) if told else ()
    counted = ServerStats(told, drafts, 3 * drafts, trace.stats.accepted, (3, 3, 1), *times)
    trace.stats = replace(trace.stats, server=counted)
    if finish:
        trace.end(finish)
    return trace


def _round(index: int, at: int, tokens: int, told: bool) -> Round:
    *accepted, own = (_known(place) for place in range(at, at + tokens))
    draft = [Judged(**known, u=None, accept_prob=None, fate="accepted") for known in accepted]
    refused = ("rejected", "discarded", "discarded")[: 3 - len(draft)] if told and index else ()
    draft += [Judged(None, "", None, None, None, None, None, None, fate, ()) for fate in refused]
    source = "sampled" if not (told and index) else "resampled" if refused else "bonus"
    return Round(
        index,
        tuple(draft),
        Next(**own, source=source, u=None, residual_mass=None),
        tuple(range(at, at + tokens)),
        None,
        None,
        gamma=3 if told and index else None,
        arrival_ms=30.0 if index else 240.0,
        drafts_told=told or not index,
    )


def _known(place: int) -> dict:
    """What a server tells of a token that it has emitted; it has the place as its id."""
    text = WORDS[place]
    top = ((place, text, None, None, 0.625, None), (None, " other", None, None, 0.25, None))
    return {"id": place, "text": text, "p": None, "q": None, "raw_p": 0.625, "raw_q": None, "top": top}
