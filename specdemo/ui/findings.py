"""What a measurement has found, as the page takes it. Without Gradio."""

import json
from collections.abc import Sequence
from dataclasses import asdict

from specdemo.bench.compare import Setting
from specdemo.bench.methods import COLUMNS, cells, comparison_csv, is_noisy, winner
from specdemo.bench.results import MethodRow, MethodsResult
from specdemo.events import is_lossy
from specdemo.events.trace import Trace
from specdemo.ui import wire
from specdemo.ui.feed import cut_output, wire_round


def race_of(traces: Sequence[Trace], settings: Sequence[Setting]) -> wire.Race:
    lanes = [_lane(trace, setting.name) for trace, setting in zip(traces, settings, strict=True)]
    return {"lanes": lanes, "verdict": same_text(*traces)}


def _lane(trace: Trace, title: str) -> wire.Lane:
    rounds = [wire_round(one) for one in trace.rounds]
    cut_output(rounds, trace.text)
    for one in rounds:
        for token in (*one["draft"], one["next"]):
            if token:
                token["top"] = []
    stats = trace.stats
    before_ms = stats.prefill_ms if trace.pair.server is None else stats.ttft_ms
    return {
        "title": title,
        "tokens": stats.tokens,
        "ms": sum(one.ms for one in trace.rounds),  # of a server from the request on
        "prefill_ms": before_ms,
        "rounds": rounds,
    }


def same_text(alone: Trace, drafted: Trace) -> str:
    """In what sense the two texts of a race are the same."""
    if is_lossy(drafted.params):
        return (
            f'Two texts, two distributions: the rule "{drafted.params.rule}" is lossy, so the drafted text '
            "is not drawn from the target's own distribution."
        )
    if alone.params.temperature and alone.pair.server is not None:
        return (
            "Two texts: with drafts a server uses its random numbers in another way, so the words can "
            "differ. Whether both have the target's distribution cannot be seen from here."
        )
    if alone.params.temperature:
        return (
            "Two texts, one distribution: with drafts the random numbers are used in another way, so the "
            "words can differ, but both texts are drawn from the target's own distribution."
        )
    pairs = list(zip(alone.output_ids, drafted.output_ids, strict=False))
    equal = next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
    length = max(len(alone.output_ids), len(drafted.output_ids))
    if equal == length:
        return f"Identical: {equal:,} of {length:,} tokens, compared."
    if alone.pair.server is not None:
        return (
            f"The texts differ from token {equal + 1:,} on. A forward of several tokens rounds differently "
            "from one of a single token, which can decide between two tokens that are about equally likely."
        )
    return (
        f"The texts differ from token {equal + 1:,} on. In {alone.pair.dtype.target} a forward of several "
        "tokens rounds differently from one of a single token, which can decide between two tokens that are "
        "about equally likely."
    )


def length_of(row: MethodRow) -> int:
    """Of a measured draft length; 0 is plain decoding."""
    assert row.gamma != "auto", "only given lengths are measured"
    return row.gamma or 0


def gamma_point(row: MethodRow) -> wire.GammaPoint:
    low, high = row.speedup_interval or (None, None)
    is_plain = row.draft_with == "none"
    return {
        "gamma": length_of(row),
        # Without an interval, or with a wide one, it says nothing.
        "speedup": row.speedup if is_plain or (low is not None and not is_noisy(row)) else None,
        "low": low,
        "high": high,
        "tokens_per_round": row.tokens_per_round,
        "runs": row.samples,
    }


def comparison_of(result: MethodsResult) -> wire.Comparison:
    rows = result.rows
    return {
        "columns": list(COLUMNS),
        "rows": [list(cells(row).values()) for row in rows],
        "winner": winner(rows),
        "csv": comparison_csv(rows),
        "json": json.dumps(asdict(result), indent=1),
    }
