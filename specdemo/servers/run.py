"""One run on a server, as the events of any run."""

import time
from collections.abc import Generator, Iterator
from concurrent.futures import Future
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any

from specdemo.errors import PairError, failure
from specdemo.events import Finish, Finished, Round, Started
from specdemo.events.trace import Trace
from specdemo.servers.chunks import Chunk, Misread, PerRequest, Steps
from specdemo.servers.client import Condition, Request, ServerError, Stream, run_in_loop
from specdemo.servers.counters import LONGEST_METRICS, Counters, counters_of, server_stats
from specdemo.servers.pair import ServedPair
from specdemo.servers.rounds import check_drafted, round_of, settled, unjudged, untold, with_last
from specdemo.servers.software import Asked

STOP_PERIOD = 0.1  # s between two looks whether the run is to end
COUNT_PERIOD = 1.0  # s between two readings of the counters while the run goes on
TAIL_SECONDS = 2.0  # s that what comes after the text's end is awaited


def served_events(
    pair: ServedPair, started: Started, trace: Trace, is_closing: Condition
) -> Generator[Started | Round | Finished, None, None]:
    """The events of a run on a server. is_closing: whether the run is to end early; once true, always true.
    trace: filled meanwhile; its rounds are revised at the end, if the server then tells more of them."""
    yield started
    try:
        before = pair.counters(is_closing)
        if is_closing():
            return
        with closing(_Answer(pair, started, before, is_closing)) as answer:
            for chunk, arrival_ms in answer.chunks():
                if pair.is_sound and not answer.reader.is_sound:
                    pair.distrust()
                    trace.revise([*map(unjudged, trace.rounds)])
                if chunk.prompt_ids and not trace.prompt_ids:
                    trace.prompt_ids = chunk.prompt_ids
                if chunk.pieces:
                    a_round = round_of(len(trace.rounds), chunk, arrival_ms, pair.longest, pair.always)
                    a_round = a_round if pair.is_sound else unjudged(a_round)
                    trace.add(a_round)
                    check_drafted(trace.stats.drafted)
                    answer.count(trace)
                if chunk.finish:  # before the yield, so that whoever sees the last round sees a whole text
                    trace.end(_finish(chunk))
                if chunk.pieces:
                    yield a_round
        if is_closing() and trace.finish is None:
            trace.count(None)  # they were read before its end
            return
        if trace.finish is None:
            raise Misread("ended its answer without saying why")
        answer.settle(trace)
    except Exception as error:
        pair.failed = True
        told = pair.client.error(str(error)) if isinstance(error, Misread) else error
        trace.end("error", str(told if isinstance(told, PairError) else failure(told)))
        raise told from None
    assert trace.finished is not None
    yield trace.finished


class _Answer:
    """The server's answer to one request, and what it counts meanwhile."""

    def __init__(self, pair: ServedPair, started: Started, before: Counters | None, is_closing: Condition):
        """before: what the server has counted up to now."""
        self.pair, self.client, self.is_closing = pair, pair.client, is_closing
        self.told: PerRequest | None = None  # what the server tells of this request at its end
        self.before = before
        if before is not None and pair.longest is not None and len(before.by_place) != pair.longest:
            raise Misread("drafts otherwise than when it was asked before: load it again")
        pair.left = True  # until the text has ended
        self.counting: Future[str | None] | None = None  # a reading of the counters that is under way
        request = server_request(pair, started)
        self.stream = Stream(self.client, request)
        self.reader = pair.software.reader(request)
        self.counted_at = self.last_at = self.stream.asked_at

    def chunks(self) -> Iterator[tuple[Chunk, float]]:
        """Each chunk, and the time in ms since the tokens before it. Ends early if `is_closing`. An error of
        the connection after the text has ended is left out."""
        has_ended = False
        while True:
            seconds = TAIL_SECONDS if has_ended else self.client.read_seconds
            try:
                arrived = self._next(seconds)
                if arrived is None:
                    return
                event, at = arrived
                chunks = self.reader.read(event)
                if not any(chunk.pieces for chunk in chunks) and at - self.last_at > seconds:
                    raise self.client.silent()
            except ServerError:
                if has_ended:
                    return
                raise
            for chunk in chunks:
                if has_ended and (chunk.pieces or chunk.finish):
                    raise Misread("goes on after the end of its text")
                has_ended = has_ended or chunk.finish is not None
                self.told = chunk.told or self.told
                yield chunk, 1000 * (at - self.last_at)
                if chunk.pieces:
                    self.last_at = at

    def _next(self, seconds: float) -> tuple[dict[str, Any], float] | None:
        """The next event of the stream, and its arrival; None at its end and once `is_closing`. seconds: the
        longest time since the last token in which something else may come."""
        while not self.is_closing():
            with suppress(TimeoutError):
                return self.stream.next(STOP_PERIOD)
            if time.perf_counter() - self.last_at > seconds:
                raise self.client.silent()
        return None

    def count(self, trace: Trace) -> None:
        """Reads the counters about once a second, without waiting for them."""
        if self.before is None:
            return
        if self.counting is None and time.perf_counter() - self.counted_at > COUNT_PERIOD:
            self.counting = run_in_loop(self.client.ask("GET", "/metrics", None, True, LONGEST_METRICS))
        if self.counting is not None and self.counting.done():
            reading, self.counting, self.counted_at = self.counting, None, time.perf_counter()
            with suppress(ServerError):  # the run goes on without the counters
                now = counters_of(reading.result() or "", self.pair.software.model)
                if now is not None and (added := now.since(self.before)) is not None:
                    trace.count(server_stats(added, None, None))

    def settle(self, trace: Trace) -> None:
        """Adds what the server tells after the end: its counters, and of each round what was drafted."""
        now, was_stopped = None, trace.finish == "stop"
        self.pair.left = False
        if self.before is not None:
            with suppress(ServerError):
                now = self.pair.software.counters(self.before, was_stopped, self.is_closing)
        added = now.since(self.before) if now and self.before else None
        ours_ms = 1000 * (self.last_at - self.stream.asked_at)
        steps = self.told.steps if self.told else None
        # Counted before the text is cut at a stop string; else another number is that of others.
        ours = added is not None and (added.generated == trace.stats.tokens or was_stopped)
        if added is not None and not ours:  # their aborted requests are not counted as ended
            added = replace(added, ended=max(added.ended, 2))
        revised = trace.rounds if self.pair.software.tells_rounds else None
        if revised is None and steps is not None:
            revised = settled(trace.rounds, steps)
        if revised is None:
            counted = steps or (added if added is not None and added.is_of_one else None)
            revised = self._checked(trace.rounds, was_stopped, counted)
        if revised != trace.rounds:
            trace.revise(revised)
        known = added is not None or self.told is not None
        trace.count(server_stats(added, self.told, ours_ms) if known else None)

    def _checked(
        self, rounds: list[Round], was_stopped: bool, counted: Steps | Counters | None
    ) -> list[Round]:
        """The rounds with the last one settled, or what is left of them if the server counts otherwise.
        was_stopped: whether a stop string ended the text, after which the server may have judged one more
        draft. counted: what the server has counted of this request alone."""
        judged = len(rounds) - 1
        drafts, drafted, accepted = counted.totals if counted else (None, None, None)
        if drafts is None or drafted is None or accepted is None:
            return rounds
        if drafts > judged and not was_stopped:
            raise Misread(
                f"has judged {drafts} drafts and sent {judged} chunks after the first: some chunks hold more "
                "than one round, so which tokens were drafted is not known"
            )
        if drafts == judged and drafted == drafts * (self.pair.longest or 0):
            return with_last(rounds, accepted, drafted) if drafts and self.pair.always else rounds
        return untold(rounds)

    def close(self) -> None:
        self.stream.close()
        if self.counting is not None:
            self.counting.cancel()


def _finish(chunk: Chunk) -> Finish:
    if chunk.finish == "length":
        return "length"
    if chunk.finish not in ("stop", "tool_calls"):
        raise Misread(f"gave the run up: {chunk.finish}")
    return "stop" if isinstance(chunk.stop, str) else "eos"


def server_request(pair: ServedPair, started: Started) -> Request:
    """The request for a run."""
    ids, params = started.prompt_ids, started.params
    most = int(min(params.max_new_tokens, pair.context - len(ids)))
    return pair.software.request(Asked(started.prompt, ids, started.messages, params, most))
