"""The server's own numbers of a run: from its counters before and after, or from what it tells of one
request."""

from specdemo.events import ServerStats
from specdemo.vllm.chunks import PerRequest
from specdemo.vllm.counters import Counters


def server_stats(added: Counters | None, told: PerRequest | None, ours_ms: float | None) -> ServerStats:
    """added: since the run began. told: of this request alone, at its end. ours_ms: from the request to the
    last token's arrival, once that is known."""
    steps = told.steps if told else None
    if steps is not None:
        accepted = steps.per_step_accepted or []
        places = range(steps.num_spec_tokens) if accepted else ()
        drafts = {
            "alone": True,
            "drafts": steps.num_spec_steps,
            "drafted": steps.num_draft_tokens,
            "accepted": steps.num_accepted_draft_tokens,
            "accepted_by_place": tuple(sum(count > place for count in accepted) for place in places),
        }
    elif added is not None:
        drafts = {
            "alone": added.ended + added.running == 1,
            "drafts": added.drafts,
            "drafted": added.drafted,
            "accepted": added.accepted,
            "accepted_by_place": added.by_place,
        }
    else:
        drafts = {"alone": False, "drafts": None, "drafted": None, "accepted": None}
    queue, prefill, decode, total = _times(added, told)
    network = None if total is None or ours_ms is None else max(0.0, ours_ms - total)
    return ServerStats(
        **drafts, queue_ms=queue, prefill_ms=prefill, decode_ms=decode, total_ms=total, network_ms=network
    )


def _times(added: Counters | None, told: PerRequest | None) -> tuple[float | None, ...]:
    """ms of waiting, reading the prompt, generating, and all together; None where they are not this request's
    alone."""
    if told is not None:
        times = (told.queue_time_ms, told.time_to_first_token_ms, told.generation_time_ms)
        if None not in times:
            return (*times, sum(ms for ms in times if ms is not None))
    if added is None or not added.is_of_one:
        return None, None, None, None
    names = ("queue", "prefill", "decode", "total")
    return tuple(None if name not in added.times else 1000 * added.times[name] for name in names)
