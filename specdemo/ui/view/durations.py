"""How often each instrument measures, and how long that will take. Without torch and without Gradio."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from specdemo.events import DRAFTER_KINDS, METHODS, Params
from specdemo.events.params import takes_tree
from specdemo.events.speedup import Estimate
from specdemo.events.trace import Trace
from specdemo.loading.catalog import others_at_hand
from specdemo.measure.table import WARM_UP_TOKENS

GAMMAS = (1, 2, 3, 4, 6, 8, 12, 16)  # besides that of the run
IN_TURNS = 2  # times that each setting runs on one prompt, its rounds in turns with plain ones
REPEATS = 5  # the same where that cannot be, or the text is too short for it
PLAIN_IN_TURNS = 5 / 3  # plain rounds beside each of a run in turns, at most: SHORT_TURN in measure/turns.py
SET_SIZE = 5  # prompts in a set


def seconds(trace: Trace, found: Sequence[Estimate]) -> dict[str, float]:
    """How long each kind of measurement takes ("set": a comparison on a set of prompts), if its texts are as
    long as this run's and its rounds take as long. A drafter of which nothing is known is taken to be as fast
    as the target alone. The result is empty for a run without times."""
    stats = trace.stats
    if not stats.rounds or not stats.run_ms:
        return {}
    served = trace.pair.server is not None
    before_ms = 0.0 if served else stats.prefill_ms
    step_ms = stats.target_step_ms or (stats.verify_ms or stats.run_ms) / stats.rounds
    own_ms, alone_ms = before_ms + stats.run_ms, before_ms + stats.tokens * step_ms
    warm_up = min(1.0, WARM_UP_TOKENS / stats.tokens)
    times = {"race": (1 + warm_up) * (own_ms + alone_ms)}
    # Only of a target with recurrent layers it is told.
    in_turns = not served and all(one.fed_again is None for one in trace.rounds)

    def all_of(runs: Sequence[tuple[float, float]], texts: int) -> float:
        """Runs with so many rounds and ms, each on so many texts, with plain rounds in turns."""
        once_ms = sum(ms for _, ms in runs)
        plain = sum(min(PLAIN_IN_TURNS * rounds, stats.tokens) for rounds, _ in runs) if in_turns else 0
        return warm_up * once_ms + texts * (once_ms + plain * step_ms)

    lengths = {*GAMMAS, *([trace.params.gamma] if trace.params.gamma != "auto" else [])}
    alone, own = (stats.tokens, alone_ms), (stats.rounds, own_ms)
    of_lengths = []
    for one in found:
        if one.gamma in lengths and not served:
            rounds = stats.tokens / one.seen_tokens
            ms = before_ms + rounds * (step_ms + one.gamma * (stats.drafter_step_ms or 0.0))
            of_lengths.append((rounds, ms))
    if of_lengths:
        times["gamma"] = all_of([alone, *of_lengths], SET_SIZE)
    others = 1 if served else sum(1 for _ in _drafters(trace)) - 1
    for kind, texts in (("compare", IN_TURNS if in_turns else REPEATS), ("set", SET_SIZE)):
        times[kind] = all_of([own, *others * [alone]], texts)
    return {kind: ms / 1000 for kind, ms in times.items()}


def _drafters(trace: Trace) -> Iterator[str]:
    """The names of what a comparison would measure."""
    # A trace does not tell what few targets have, except when it drafted.
    has_trees = _can_have_trees(trace.params)
    for name, method in METHODS.items():
        usual = bool(trace.pair.drafter) if method.needs_drafter else method.is_usual
        if usual or trace.params.draft_with == name:
            yield name
            kind = DRAFTER_KINDS.get(trace.pair.drafter_kind or "model")  # None: one of an older trace, gone
            of_kind = kind is not None and kind.drafts_trees
            if method.is_by_drafter and takes_tree(name, "auto") and of_kind and has_trees:
                yield f"{name}, tree"
    for other in others_at_hand(trace.pair.name):
        yield from (other, f"{other}, tree") if has_trees else (other,)


def _can_have_trees(params: Params) -> bool:
    try:
        replace(params, tree="auto")
    except ValueError:
        return False
    return True
