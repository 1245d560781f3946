"""Times contestants in turns, and computes numbers from the times.

Whole generations are timed, including prefill and everything else, by the wall clock and by the processor
time of this process, in which all contestants run. They take turns, so that noise on the machine affects all
of them. What counts is the ratio of the medians.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import median, quantiles
from time import perf_counter, process_time, sleep

from specdemo.events import Round
from specdemo.events.metrics import ratio
from specdemo.events.speedup import expected_speedup
from specdemo.events.trace import Trace
from specdemo.measure.bench_results import Differences, Drafting

RunIds = Callable[[list[int]], tuple[list[int], Trace | None]]  # prompt ids -> output ids, the engine's trace

PAUSE = 0.02  # seconds between turns, until the threads of the last one have gone to sleep


@dataclass(frozen=True)
class Sample:
    """One generation. For transformers `trace` is None."""

    seconds: float
    processor_seconds: float  # of all threads
    ids: list[int]
    trace: Trace | None

    @property
    def ms_per_token(self) -> float:
        return 1000 * self.seconds / len(self.ids)

    @property
    def processor_ms_per_token(self) -> float:
        return 1000 * self.processor_seconds / len(self.ids)


def in_turns(
    contestants: dict[str, RunIds], prompts: list[list[int]], repeats: int
) -> dict[str, list[Sample]]:
    """Runs every contestant on every prompt `repeats` times, after a warm-up.

    Returns the samples by contestant (all prompts, then all again)."""
    samples: dict[str, list[Sample]] = {}
    for name, run in contestants.items():
        # The longest prompt first: code that is compiled or captured for its buffers serves all others.
        for choose in (max, min):
            run(choose(prompts, key=len))
        samples[name] = []
    for _ in range(repeats):
        for prompt in prompts:
            for name, run in contestants.items():
                sleep(PAUSE)
                start, processor_start = perf_counter(), process_time()
                ids, trace = run(prompt)
                times = perf_counter() - start, process_time() - processor_start
                samples[name].append(Sample(*times, ids, trace))
    return samples


def spread(values: Iterable[float]) -> tuple[float, float, float]:
    """10th percentile, median, 90th percentile."""
    values = list(values)
    if len(values) == 1:
        return (values[0],) * 3
    deciles = quantiles(values, n=10, method="inclusive")
    return deciles[0], median(values), deciles[-1]


def ms_per_token(samples: list[Sample]) -> float:
    return median(sample.ms_per_token for sample in samples)


def processor_ms_per_token(samples: list[Sample]) -> float:
    return median(sample.processor_ms_per_token for sample in samples)


def cost_ratio(plain: list[Sample], drafting: list[Sample], gamma: int) -> float | None:
    """c: the time per draft in a full round (one with gamma drafts), divided by the time of a round of plain
    decoding."""
    draft_ms = _median(each.draft_ms / gamma for each in _rounds(drafting) if len(each.draft) == gamma)
    return ratio(draft_ms, _median(each.draft_ms + each.verify_ms for each in _rounds(plain)))


def acceptance_rate(samples: list[Sample]) -> float | None:
    accepted, rejected = _total(samples, "accepted"), _total(samples, "rejected")
    return ratio(accepted, accepted + rejected)


def tokens_per_round(samples: list[Sample]) -> float | None:
    return ratio(_total(samples, "tokens"), _total(samples, "rounds"))


def drafting(plain: list[Sample], samples: list[Sample], gamma: int) -> Drafting:
    """What drafting achieved, from samples of the engine's plain decoding and of the engine with `gamma`
    drafts per round."""
    alpha, c = acceptance_rate(samples), cost_ratio(plain, samples, gamma)
    return Drafting(
        acceptance_rate=alpha,
        mean_tokens_per_round=tokens_per_round(samples),
        cost_ratio=c,
        expected_x_plain=None if alpha is None or c is None else expected_speedup(alpha, gamma, c),
    )


def first_differences(samples: list[Sample], reference: list[Sample]) -> list[int | None]:
    """For each text, the index of the first token that differs from the reference; None if they are equal."""
    return [
        next((i for i, (a, b) in enumerate(zip(one.ids, other.ids, strict=True)) if a != b), None)
        for one, other in zip(samples, reference, strict=True)
    ]


def differences(samples: list[Sample], reference: list[Sample]) -> Differences:
    first_at = first_differences(samples, reference)
    return Differences(len(first_at) - first_at.count(None), first_at)


def _rounds(samples: list[Sample]) -> list[Round]:
    return [each for sample in samples for each in sample.trace.rounds]


def _total(samples: list[Sample], name: str) -> int:
    return sum(getattr(sample.trace.stats, name) for sample in samples)


def _median(values: Iterable[float]) -> float | None:
    values = list(values)
    return median(values) if values else None
