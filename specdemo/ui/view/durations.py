"""How often each instrument measures, and how long that will take. Without torch and without Gradio."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from specdemo.bench.methods import WARM_UP_TOKENS
from specdemo.events import DRAFTER_KINDS, METHODS, Params
from specdemo.events.params import takes_tree
from specdemo.events.speedup import Estimate
from specdemo.events.trace import Trace
from specdemo.loading.catalog import others_at_hand

GAMMAS = (1, 2, 3, 4, 6, 8, 12, 16)  # besides that of the run
REPEATS = 5  # of each setting on one prompt, where they are not timed in turns with plain rounds
SECONDS_IN_TURNS = 5.0  # that all settings together are made again, where they are
SET_SIZE = 5  # prompts in a set


def seconds(trace: Trace, found: Sequence[Estimate]) -> dict[str, float]:
    """How long each kind of measurement takes, if its texts are as long as this run's and its rounds take as
    long. A drafter of which nothing is known is taken to be as fast as the target alone. The result is empty
    for a run without times."""
    stats = trace.stats
    if not stats.rounds or not stats.run_ms:
        return {}
    before_ms = stats.prefill_ms if trace.pair.server is None else 0.0
    step_ms = stats.target_step_ms or (stats.verify_ms or stats.run_ms) / stats.rounds
    own_ms, alone_ms = before_ms + stats.run_ms, before_ms + stats.tokens * step_ms
    warm_up = min(1.0, WARM_UP_TOKENS / stats.tokens)
    # Only of a target with recurrent layers it is told.
    in_turns = trace.pair.server is None and all(one.fed_again is None for one in trace.rounds)
    repeats, again_ms = (1, 1000 * SECONDS_IN_TURNS) if in_turns else (REPEATS, 0.0)
    repeats += warm_up
    times = {"race": (1 + warm_up) * (own_ms + alone_ms)}
    if trace.pair.server is not None:
        return _in_seconds(times | {"compare": repeats * (own_ms + alone_ms)})
    lengths = {*GAMMAS, *([trace.params.gamma] if trace.params.gamma != "auto" else [])}
    of_lengths = [
        before_ms + stats.tokens / one.seen_tokens * (step_ms + one.gamma * (stats.drafter_step_ms or 0.0))
        for one in found
        if one.gamma in lengths
    ]
    if of_lengths:
        times["gamma"] = repeats * (alone_ms + sum(of_lengths)) + again_ms
    times["compare"] = repeats * (own_ms + alone_ms * (sum(1 for _ in _drafters(trace)) - 1)) + again_ms
    return _in_seconds(times)


def _drafters(trace: Trace) -> Iterator[str]:
    """The names of what a comparison would measure."""
    # A trace does not tell what few targets have, except when it drafted.
    has_trees = _can_have_trees(trace.params)
    for name, method in METHODS.items():
        usual = bool(trace.pair.drafter) if method.needs_drafter else method.is_usual
        if usual or trace.params.draft_with == name:
            yield name
            kind = DRAFTER_KINDS[trace.pair.drafter_kind or "model"]
            if method.is_by_drafter and takes_tree(name, "auto") and kind.drafts_trees and has_trees:
                yield f"{name}, tree"
    for other in others_at_hand(trace.pair.name):
        yield from (other, f"{other}, tree") if has_trees else (other,)


def _can_have_trees(params: Params) -> bool:
    try:
        replace(params, tree="auto")
    except ValueError:
        return False
    return True


def _in_seconds(times_ms: dict[str, float]) -> dict[str, float]:
    return {kind: ms / 1000 for kind, ms in times_ms.items()}
