"""Traces of a server's runs, as a client of one makes them: one that tells how much it drafts, one that does
not."""

from dataclasses import replace

from specdemo.events import ByModel, PairInfo, Params, Round, ServerInfo, Started
from specdemo.events.trace import Trace
from specdemo.servers.software import Chunk, round_of, token

SERVER = ServerInfo("http://host:8000", "vllm", "0.11.0", "org/target-8b", "eagle3", 3)
SILENT = replace(SERVER, version=None, method=None, gamma=None)
WORDS = (" there", " was", " a", " girl", " who", " had", " one", " dog", " and", " no", " cat", ".")
OTHER = (None, " other", None, None, 0.25, None)  # beside each of them
CHUNKS = (1, 3, 4, 1, 3)  # tokens that arrive at once; the first is the prefill's


def served_trace(told: bool = True, finish: str | None = "length", **params) -> Trace:
    """Rounds: the prefill's; two of three drafts accepted; all three; none; two of three."""
    nothing = ByModel(None, None)
    server = SERVER if told else SILENT
    pair = PairInfo("far", server.model, None, "server", "vllm", nothing, nothing, server)
    trace = Trace.begin(Started(pair, {}, Params(seed=7, **params), "Once upon a time", ()))
    for index, tokens in enumerate(CHUNKS):
        trace.add(_round(index, len(trace.output_ids), tokens, told))
    if finish:
        trace.end(finish)
    return trace


def _round(index: int, at: int, count: int, told: bool) -> Round:
    """Of tokens that have their places as their ids."""
    tops = {place: ((place, WORDS[place], None, None, 0.625, None), OTHER) for place in range(at, at + count)}
    tokens = tuple(token(place, WORDS[place], 0.625, top) for place, top in tops.items())
    chunk = Chunk(tokens, arrival_ms=30.0 if index else 240.0)
    return replace(round_of(index, chunk, 3 if told else None, told), ended_by=None)
