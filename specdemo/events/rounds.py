"""What a run says: `Started`, `Round` after `Round`, `Finished`. Standard library only.

Everything that a reader of a run needs (page, terminal, trace file, benchmark) is in these frozen values, named like the
keys of the trace's JSON. p is the target's distribution and q the drafter's, both after the sampler has shaped them; raw_p
and raw_q are the same two at temperature 1 without filters (Leviathan et al. 2023, Chen et al. 2023).
"""

from dataclasses import dataclass
from typing import Literal

from specdemo.events.params import Params


@dataclass(frozen=True, slots=True)
class ByModel:
    """One thing that target and drafter have each (a dtype, a quantisation); None where there is none."""

    target: str | None
    drafter: str | None


@dataclass(frozen=True, slots=True)
class PairInfo:
    """Which pair ran where; `target` and `drafter` are hub ids, directories, or class names of models in memory."""

    name: str
    target: str
    drafter: str | None
    device: str
    device_name: str
    dtype: ByModel
    quantize: ByModel


Fate = Literal["accepted", "rejected", "discarded"]  # of a drafted token
Source = Literal["resampled", "bonus", "sampled"]  # of the target's own token

# A likely token at a position: id, text, p, q, raw_p, raw_q. q and raw_q are None where nothing was drafted.
Alternative = tuple[int, str, float, float | None, float, float | None]


@dataclass(frozen=True, slots=True)
class Judged:
    """A drafted token and its fate: "accepted", "rejected" or "discarded".

    Rule `speculative`: accept_prob = min(1, p/q); accepted exactly when u < accept_prob. A token behind the rejection
    was never judged: u and accept_prob are None. One that was accepted behind the end of the text is discarded, with all kept.
    """

    id: int
    text: str
    p: float
    q: float
    raw_p: float
    raw_q: float
    u: float | None
    accept_prob: float | None
    fate: Fate
    top: tuple[Alternative, ...]


@dataclass(frozen=True, slots=True)
class Next:
    """The target's own token of a round: "resampled" after a rejection (from norm(max(p - q, 0)), whose mass before
    normalising is `residual_mass`), "bonus" when all drafts were accepted, "sampled" when nothing was drafted (both
    from p). u is the number it was drawn with; q and raw_q are None unless it was resampled."""

    id: int
    text: str
    source: Source
    p: float
    q: float | None
    raw_p: float
    raw_q: float | None
    u: float
    residual_mass: float | None
    top: tuple[Alternative, ...]


@dataclass(frozen=True, slots=True)
class Round:
    """One target forward: what was drafted, what became of it, what came next. `next` is None only when the text ended
    inside the accepted drafts. Milliseconds are the engine's own."""

    index: int
    draft: tuple[Judged, ...]
    next: Next | None
    emitted: tuple[int, ...]
    draft_ms: float
    verify_ms: float


@dataclass(frozen=True, slots=True)
class Stats:
    """The numbers of a run so far, defined in metrics.py. A quotient 0/0 is None."""

    tokens: int
    rounds: int
    drafted: int
    accepted: int
    rejected: int
    acceptance_rate: float | None
    mean_tokens_per_round: float | None
    target_forwards: int
    prefill_ms: float
    draft_ms: float
    verify_ms: float
    ttft_ms: float | None
    tokens_per_second: float | None
    target_step_ms: float | None
    drafter_step_ms: float | None
    cost_ratio: float | None


@dataclass(frozen=True, slots=True)
class Started:
    """First event: everything that determines the run, with the seed that is used."""

    pair: PairInfo
    versions: dict[str, str]
    params: Params
    prompt: str
    prompt_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    """Last event. finish: "eos", "stop", "length", "cancelled" or "error" (then `error` says what failed)."""

    finish: str
    error: str | None
    output_ids: tuple[int, ...]
    text: str
    stats: Stats
