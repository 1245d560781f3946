"""What vLLM counts: its /metrics, in Prometheus' text format, read at one moment. Other visitors'
requests count there, too. And what follows for one run: from two readings, or from what the server tells of
that request alone."""

import re
import time
from collections import Counter
from dataclasses import dataclass
from itertools import islice

from prometheus_client.parser import text_string_to_metric_families

from specdemo.events import ServerStats
from specdemo.servers.chunks import MOST_DRAFT, MOST_OF_A_RUN, PerRequest
from specdemo.servers.client import Client, Condition, never

LONGEST_METRICS = 8_000_000  # bytes; those of many engines take about 1,000,000
LONGEST_SAMPLE = 10_000  # characters: a line of /metrics
MOST_SAMPLES = 20_000  # of the counters that are read: 64 engines that draft 256 tokens have 18,000
MOST_COUNTED = 2**53  # by a counter since the server started: floats are exact up to here
LATE = 2.0  # s
SPEC = "vllm:spec_decode_num_"
TIMES = {
    "queue": "vllm:request_queue_time_seconds",
    "prefill": "vllm:request_prefill_time_seconds",
    "decode": "vllm:request_decode_time_seconds",
    "total": "vllm:e2e_request_latency_seconds",
}


@dataclass(frozen=True)
class Counters:
    """What a server has counted since it started, over all its engines. drafts: how many were judged;
    drafted, accepted: tokens; by_place: how many drafts were accepted up to this place and beyond, one entry
    for each place that a draft can have. These are None where the server does not draft. ended: requests, but
    not those that were aborted; running: those that wait or run; generated: tokens. times: seconds of all
    ended requests, by the names in TIMES."""

    drafts: int | None
    drafted: int | None
    accepted: int | None
    by_place: tuple[int, ...]
    ended: int
    running: int
    generated: int
    times: dict[str, float]

    @property
    def is_of_one(self) -> bool:
        """Whether, in a difference of counters, one request ended and nothing else goes on."""
        return self.ended == 1 and self.running == 0

    @property
    def totals(self) -> tuple[int | None, int | None, int | None]:
        """Drafts, and tokens that were drafted and accepted."""
        return self.drafts, self.drafted, self.accepted

    def since(self, before: "Counters") -> "Counters | None":
        """What has been added, None if it has counted anew since, or more than it can have. `running` is that
        of both moments: 0 if nothing else ran."""
        counts = {
            name: None if (now := getattr(self, name)) is None else now - (getattr(before, name) or 0)
            for name in ("drafts", "drafted", "accepted", "ended", "generated")
        }
        counts["running"] = self.running + before.running
        earlier = before.by_place or (0,) * len(self.by_place)
        places = tuple(now - then for now, then in zip(self.by_place, earlier, strict=False))
        times = {name: seconds - before.times.get(name, 0.0) for name, seconds in self.times.items()}
        numbers = [number for number in (*counts.values(), *places) if number is not None]
        is_sound = all(0 <= number <= MOST_OF_A_RUN for number in numbers) and min([0, *times.values()]) >= 0
        return Counters(**counts, by_place=places, times=times) if is_sound else None


def read_counters(
    client: Client, model: str, before: Counters | None = None, idle: bool = False, is_over: Condition = never
) -> Counters | None:
    """The server's counters now; None where it does not tell them. before: asks again for a moment, until one
    more request has ended since then, because a server counts it a little later. idle: also until none runs,
    because a server that is told to end one goes on for a round. is_over: asked again and again; once true,
    nothing is awaited."""
    until = time.monotonic() + LATE
    while True:
        text = client.optional("/metrics", is_over, most=LONGEST_METRICS)
        now = None if text is None else counters_of(text, model)
        if now is None or time.monotonic() > until:
            return now
        added = now if before is None else now.since(before)
        if added is None or is_over() or ((before is None or added.ended) and not (idle and now.running)):
            return now
        time.sleep(LATE / 20)


def counters_of(text: str, model: str) -> Counters | None:
    """The counters in the text of /metrics; None for a text that vLLM does not write. model: others that the
    server may serve are left out."""
    sums: Counter[str] = Counter()
    places: Counter[int] = Counter()
    lines = [found.group() for found in islice(COUNTER_LINE.finditer(text), MOST_SAMPLES + 1)]
    if len(lines) > MOST_SAMPLES or any(len(line) > LONGEST_SAMPLE for line in lines):
        return None
    try:
        for family in text_string_to_metric_families("\n".join(lines) + "\n"):
            for sample in family.samples:
                if not 0 <= sample.value <= MOST_COUNTED:  # nor NaN
                    return None
                if sample.labels.get("model_name", model) != model:
                    continue
                sums[sample.name] += sample.value
                if sample.name == f"{SPEC}accepted_tokens_per_pos_total":
                    places[int(sample.labels["position"])] += sample.value
        counts = {name: int(value) for name, value in sums.items() if name not in SUMS.values()}
    except (ValueError, KeyError, AttributeError, IndexError):  # its parser's, for other texts
        return None
    is_vllms = (ENDED in sums or RUNNING in sums) and sorted(places) == list(range(len(places)))
    if not is_vllms or len(places) > MOST_DRAFT:
        return None
    return Counters(
        drafts=counts.get(f"{SPEC}drafts_total"),
        drafted=counts.get(f"{SPEC}draft_tokens_total"),
        accepted=counts.get(f"{SPEC}accepted_tokens_total"),
        by_place=tuple(int(places[place]) for place in sorted(places)),
        ended=counts.get(ENDED, 0),
        running=counts.get(RUNNING, 0) + counts.get(WAITING, 0),
        generated=counts.get(GENERATED, 0),
        times={name: sums[metric] for name, metric in SUMS.items() if metric in sums},
    )


ENDED, GENERATED = "vllm:request_success_total", "vllm:generation_tokens_total"
RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
SUMS = {name: f"{metric}_sum" for name, metric in TIMES.items()}
COUNTER_NAMES = (  # those that are read
    *(
        f"{SPEC}{what}_total"
        for what in ("drafts", "draft_tokens", "accepted_tokens", "accepted_tokens_per_pos")
    ),
    *(*SUMS.values(), ENDED, RUNNING, WAITING, GENERATED),
)
# A server writes thousands of others.
COUNTER_LINE = re.compile(rf"^(?:{'|'.join(COUNTER_NAMES)})[ {{].*$", re.MULTILINE)


def server_stats(added: Counters | None, told: PerRequest | None, ours_ms: float | None) -> ServerStats:
    """What is told of one run. added: what the server has counted since the run began. told: what it tells of
    this request alone, at its end. ours_ms: from the request to the last token's arrival, once that is
    known."""
    steps = told.steps if told else None
    alone, totals, places = False, (None, None, None), ()
    if steps is not None:
        alone, totals, places = True, steps.totals, steps.by_place
    elif added is not None:
        alone, totals, places = added.ended + added.running == 1, added.totals, added.by_place
    *times, total = _times(added, told)
    network = None if total is None or ours_ms is None else max(0.0, ours_ms - total)
    drafts, drafted, accepted = totals
    queue, prefill, decode = times
    return ServerStats(
        alone=alone,
        drafts=drafts,
        drafted=drafted,
        accepted=accepted,
        accepted_by_place=places,
        queue_ms=queue,
        prefill_ms=prefill,
        decode_ms=decode,
        total_ms=total,
        network_ms=network,
    )


def _times(added: Counters | None, told: PerRequest | None) -> tuple[float | None, ...]:
    """ms of waiting, reading the prompt, generating, and all together; None where they are not this request's
    alone."""
    if told is not None and any(ms is not None for ms in told.times):
        return told.times
    if added is None or not added.is_of_one:
        return (None,) * 4
    seconds = (added.times.get(name) for name in TIMES)
    return tuple(None if s is None or 1000 * s > MOST_OF_A_RUN else 1000 * s for s in seconds)
