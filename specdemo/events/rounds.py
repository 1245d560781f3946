"""The events of a run: `Started`, then one `Round` after another, then `Finished`. Standard library only.

Everything that page, terminal, trace file and benchmark need to know about a run is in these frozen values.
They are named like the keys of the trace's JSON. p is the target's distribution and q the drafter's, both
after temperature and filters; raw_p and raw_q are the same two at temperature 1 without filters (Leviathan et
al. 2023, Chen et al. 2023).
"""

from dataclasses import dataclass
from typing import Literal

from specdemo.events.params import Params

# Why a draft has no more tokens: it has gamma of them; the drafter was not sure enough (Params.confidence);
# it has drafted an eos; the text has no room for more; the drafter has no more to offer.
EndedBy = Literal["gamma", "confidence", "eos", "length", "drafter"]


@dataclass(frozen=True, slots=True)
class ByModel:
    """A property of each model (its dtype, its quantisation); None where there is none."""

    target: str | None
    drafter: str | None


@dataclass(frozen=True, slots=True)
class PairInfo:
    """Which pair ran where. `target` and `drafter` are hub ids, directories, or class names of models in
    memory."""

    name: str
    target: str
    drafter: str | None
    device: str
    device_name: str
    dtype: ByModel
    quantize: ByModel


Fate = Literal["accepted", "rejected", "discarded"]  # of a drafted token
Source = Literal["resampled", "bonus", "sampled"]  # of the target's own token

# One of the likeliest tokens at a position: id, text, p, q, raw_p, raw_q. q and raw_q are None where nothing
# was drafted.
Alternative = tuple[int, str, float, float | None, float, float | None]


@dataclass(frozen=True, slots=True)
class Judged:
    """A drafted token and its fate: "accepted", "rejected" or "discarded".

    Rule `speculative`: accept_prob = min(1, p/q); accepted exactly when u < accept_prob. A token after the
    rejection was never judged: it is discarded, and its u and accept_prob are None. A token that was accepted
    after the end of the text is discarded, too, and keeps its u and accept_prob.

    Rule `block`: accept_prob is h of Sun et al. 2024, and all up to the last with u < accept_prob are
    accepted. So all are judged, and all keep u and accept_prob.

    Rules `typical` and `lenient`: as `speculative`, but with another accept_prob. distance: the total
    variation distance, from 0 to 1, between p and the distribution of the token that the rule emits at this
    place, whatever is drafted. None of a lossless rule, and of a token that was never judged.
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
    distance: float | None = None


@dataclass(frozen=True, slots=True)
class Next:
    """The token that the target itself adds at the end of a round.

    source: "resampled" after a rejection, from norm(max(p - q, 0)), whose mass before normalising is
    `residual_mass`; "bonus" when all drafts were accepted and "sampled" when nothing was drafted, both from
    p. u is the uniform number it was drawn with. q and raw_q are None unless it was resampled.
    """

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
class Kept:
    """How many of one draft's tokens each lossless rule keeps, judged with the same uniform numbers."""

    speculative: int
    block: int


@dataclass(frozen=True, slots=True)
class Round:
    """One target forward: the draft, its verdicts, and the target's own token.

    `next` is None only when the text ended inside the accepted drafts. draft_ms and verify_ms are the
    engine's own time, without what a consumer does between events. `kept` is None where nothing was drafted,
    and with `alternatives` 0 under any rule but `block`.
    gamma: the most tokens that this round could draft; ended_by: why it drafted no more. made: how many
    tokens the drafter made, which are those of the draft and those that it was not sure enough of. Older
    traces lack these three, and plain decoding has no ended_by.
    """

    index: int
    draft: tuple[Judged, ...]
    next: Next | None
    emitted: tuple[int, ...]
    draft_ms: float
    verify_ms: float
    kept: Kept | None = None
    gamma: int | None = None
    ended_by: EndedBy | None = None
    made: int | None = None


@dataclass(frozen=True, slots=True)
class Stats:
    """The numbers of a run so far; metrics.py computes them. A quotient 0/0 is None.

    target_step_ms: a plain round (nothing drafted), timed on this run's own text right after it;
    target_step_spread: its 10th and 90th percentile. They are None while the run goes on, after a cancelled
    one, and where too few plain rounds were timed; so are cost_ratio and speedup, which divide by them.
    speedup: how many times as fast as the target alone; 1 within the spread for plain decoding.
    made: how many tokens the drafter made, with those that were dropped because it was not sure enough;
    drafter_step_ms is draft_ms divided by it. Older traces lack it.
    distance: of a lossy rule, the mean over the text's tokens of the total variation distance between the
    target's distribution and the one that the token was drawn from. None of a lossless rule.
    """

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
    target_step_spread: tuple[float, float] | None = None
    speedup: float | None = None
    distance: float | None = None
    made: int | None = None


@dataclass(frozen=True, slots=True)
class Started:
    """First event: everything that determines the run. `params` holds the seed that is really used."""

    pair: PairInfo
    versions: dict[str, str]
    params: Params
    prompt: str
    prompt_ids: tuple[int, ...]


Finish = Literal["eos", "stop", "length", "cancelled", "error"]  # why a run ended


@dataclass(frozen=True, slots=True)
class Finished:
    """Last event. `error` is what failed, and None unless finish is "error"."""

    finish: Finish
    error: str | None
    output_ids: tuple[int, ...]
    text: str
    stats: Stats
