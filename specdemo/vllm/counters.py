"""What a server counts: its /metrics, in Prometheus' text format, read at one moment. Other visitors'
requests count there, too."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from prometheus_client.parser import text_string_to_metric_families

from specdemo.vllm.client import Client

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
    """Since the server started, over all its engines. drafts: how many were judged; drafted, accepted:
    tokens; by_place: how many drafts were accepted up to this place and beyond, one entry for each place that
    a draft can have. These are None where the server does not draft. ended: requests, but not those that were
    aborted; running: those that wait or run; generated: tokens. times: seconds of all ended requests, by
    the names in TIMES."""

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
        """Of a difference: whether one request ended and nothing else goes on."""
        return self.ended == 1 and self.running == 0

    def with_others(self) -> "Counters":
        """The same difference, once it is known that others have a part in it: aborted requests are not
        counted as ended."""
        return replace(self, ended=max(self.ended, 2))

    def since(self, before: "Counters") -> "Counters | None":
        """What has been added, None if it has counted anew since. `running` is that of both moments: 0 if
        nothing else ran."""

        def added(now: int | None, then: int | None) -> int | None:
            return None if now is None else now - (then or 0)

        if self.ended < before.ended or self.generated < before.generated:
            return None
        earlier = before.by_place or (0,) * len(self.by_place)
        return Counters(
            added(self.drafts, before.drafts),
            added(self.drafted, before.drafted),
            added(self.accepted, before.accepted),
            tuple(now - then for now, then in zip(self.by_place, earlier, strict=False)),
            self.ended - before.ended,
            self.running + before.running,
            self.generated - before.generated,
            {name: seconds - before.times.get(name, 0.0) for name, seconds in self.times.items()},
        )


def read_counters(
    client: Client,
    model: str,
    before: Counters | None = None,
    idle: bool = False,
    is_over: Callable[[], bool] = lambda: False,
) -> Counters | None:
    """The server's counters now; None where it does not tell them. before: asks again for a moment, until one
    more request has ended since then, because a server counts it a little later. idle: also until none runs,
    because a server that is told to end one goes on for a round. is_over: asked again and again; once true,
    nothing is awaited."""
    until = time.monotonic() + LATE
    while True:
        text = client.optional("/metrics", is_over)
        now = None if text is None else counters_of(text, model)
        if now is None or time.monotonic() > until:
            return now
        added = now if before is None else now.since(before)
        if added is None or is_over() or ((before is None or added.ended) and not (idle and now.running)):
            return now
        time.sleep(LATE / 20)


def counters_of(text: str, model: str) -> Counters | None:
    """None for what vLLM does not write. model: others that the server may serve are left out."""
    sums: dict[str, float] = {}
    places: dict[int, float] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.labels.get("model_name", model) != model:
                    continue
                sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
                if sample.name == f"{SPEC}accepted_tokens_per_pos_total":
                    place = int(sample.labels["position"])
                    places[place] = places.get(place, 0.0) + sample.value
        counts = {name: int(value) for name, value in sums.items() if name not in SECONDS}
    except (ValueError, KeyError, AttributeError, IndexError, OverflowError):  # its parser's, for other texts
        return None
    if ENDED not in sums and RUNNING not in sums:
        return None

    return Counters(
        counts.get(f"{SPEC}drafts_total"),
        counts.get(f"{SPEC}draft_tokens_total"),
        counts.get(f"{SPEC}accepted_tokens_total"),
        tuple(int(places[place]) for place in sorted(places)),
        counts.get(ENDED) or 0,
        (counts.get(RUNNING) or 0) + (counts.get(WAITING) or 0),
        counts.get("vllm:generation_tokens_total") or 0,
        {name: sums[f"{metric}_sum"] for name, metric in TIMES.items() if f"{metric}_sum" in sums},
    )


SECONDS = {f"{metric}_sum" for metric in TIMES.values()}
ENDED = "vllm:request_success_total"
RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
