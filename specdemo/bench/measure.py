"""Takes the contestants' times in turns, and makes numbers of them.

Whole generations are timed by the wall, prefill and everything else included, the contestants in turns, so that a noisy
machine is noisy for all of them. What counts is the ratio of the medians.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median, quantiles
from time import perf_counter

from specdemo.bench.contestants import Contestant
from specdemo.bench.theory import expected_speedup
from specdemo.events import Stats
from specdemo.events.metrics import ratio
from specdemo.events.trace import Trace


@dataclass(frozen=True)
class Sample:
    """One generation. stats and rounds are the engine's own (None and empty for transformers); rounds: (drafted, draft_ms, verify_ms)."""

    seconds: float
    ids: list[int]
    stats: Stats | None
    rounds: list[tuple[int, float, float]]

    @property
    def ms_per_token(self) -> float:
        return 1000 * self.seconds / len(self.ids)


def in_turns(
    contestants: list[Contestant], prompts: list[list[int]], repeats: int
) -> tuple[dict[str, list[Sample]], dict[str, str]]:
    """Every contestant on every prompt `repeats` times, after a warm-up: the samples by name, prompts within repeats; and who
    could not run, by name, with the reason in one line."""
    samples, failures = {}, {}
    for contestant in contestants:
        try:
            for choose in (
                max,
                min,
            ):  # the largest buffers first: what is compiled or recorded for them holds for all that follows
                contestant.run(choose(prompts, key=len))
        except Exception as error:
            if not contestant.may_fail:
                raise
            failures[contestant.name] = _reason(error)
        else:
            samples[contestant.name] = []
    for _ in range(repeats):
        for prompt in prompts:
            for contestant in contestants:
                if contestant.name in samples:
                    start = perf_counter()
                    ids, trace = contestant.run(prompt)
                    samples[contestant.name].append(_sample(perf_counter() - start, ids, trace))
    return samples, failures


def _sample(seconds: float, ids: list[int], trace: Trace | None) -> Sample:
    rounds = [(len(round.draft), round.draft_ms, round.verify_ms) for round in trace.rounds] if trace else []
    return Sample(seconds, ids, trace and trace.stats, rounds)


def _reason(error: Exception) -> str:
    """The first sentence of what a compiler may say in pages."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else ""
    return f"{type(error).__name__}: {text}"[:160]


def spread(values: Iterable[float]) -> tuple[float, float, float]:
    """10th percentile, median, 90th percentile."""
    values = list(values)
    if len(values) == 1:
        return values[0], values[0], values[0]
    tenths = quantiles(values, n=10, method="inclusive")
    return tenths[0], median(values), tenths[-1]


def ms_per_token(samples: list[Sample]) -> float:
    return median(sample.ms_per_token for sample in samples)


def round_ms(samples: list[Sample], gamma: int) -> float | None:
    """The median full round, one with gamma drafts: drafting and verifying."""
    return _median(draft + verify for drafted, draft, verify in _rounds(samples) if drafted == gamma)


def drafter_step_ms(samples: list[Sample], gamma: int) -> float | None:
    return _median(draft / gamma for drafted, draft, _ in _rounds(samples) if drafted == gamma)


def cost_ratio(plain: list[Sample], drafting: list[Sample], gamma: int) -> float | None:
    """c, measured where it counts: what a draft costs in a full round over what a round of plain decoding costs."""
    return ratio(drafter_step_ms(drafting, gamma), round_ms(plain, 0))


def acceptance_rate(samples: list[Sample]) -> float | None:
    accepted, rejected = _total(samples, "accepted"), _total(samples, "rejected")
    return ratio(accepted, accepted + rejected)


def tokens_per_round(samples: list[Sample]) -> float | None:
    return ratio(_total(samples, "tokens"), _total(samples, "rounds"))


def expected(alpha: float | None, gamma: int, c: float | None) -> float | None:
    """What the formula makes of measured numbers, where there are any."""
    return None if alpha is None or c is None else expected_speedup(alpha, gamma, c)


def first_differences(samples: list[Sample], reference: list[Sample]) -> list[int | None]:
    """For each text where it first differs from the reference's (counted from 0), None where it does not."""
    return [
        next((i for i, (a, b) in enumerate(zip(one.ids, other.ids, strict=True)) if a != b), None)
        for one, other in zip(samples, reference, strict=True)
    ]


def _rounds(samples: list[Sample]) -> Iterable[tuple[int, float, float]]:
    return (round for sample in samples for round in sample.rounds)


def _total(samples: list[Sample], name: str) -> int:
    return sum(getattr(sample.stats, name) for sample in samples)


def _median(values: Iterable[float]) -> float | None:
    values = list(values)
    return median(values) if values else None
