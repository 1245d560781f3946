"""The composition root: a pair, a prompt and Params become one running, closable stream of events."""

import threading
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from math import inf
from random import SystemRandom

from specdemo.drafters.base import Materials
from specdemo.drafters.table import drafting_by, longest_draft, make_drafter
from specdemo.engine.compiled import compiled
from specdemo.engine.draft import LONGEST_DRAFT, DraftLength, GivenDrafter, NoDrafter
from specdemo.engine.emit import Emitter, Pieces, StopCriteria
from specdemo.engine.loop import Loop
from specdemo.engine.rules import rule_of
from specdemo.engine.sampling import Sampler
from specdemo.engine.step import Verifier
from specdemo.engine.tree import tree_of
from specdemo.errors import PairError, failure, no_mistakes
from specdemo.events import (
    METHODS,
    Finish,
    Finished,
    Params,
    Prompt,
    Round,
    Started,
    Stats,
    __version__,
    is_lossy,
)
from specdemo.events.params import check_messages, field_of_grammar, is_conversation, of_drafter
from specdemo.events.speedup import FEWEST_PLAIN, NO_COST, SHORTEST, after_plain_rounds
from specdemo.events.thoughts import Thoughts
from specdemo.events.trace import Trace
from specdemo.loading.checks import look_at
from specdemo.loading.pair import AnyPair, Pair, encode
from specdemo.runtime.lm import CachedLM
from specdemo.runtime.steps import EagerSteps
from specdemo.runtime.weights import expert_weights, weight_bytes
from specdemo.servers.pair import served_events
from specdemo.servers.software import ServedPair
from specdemo.words.message import about, message

Event = Started | Round | Finished
IsOver = Callable[[], bool]
Alter = Callable[[Loop], Loop]
BUSY = message("pair_busy")
SHARE = 0.1  # of a run's own time, for plain rounds after it
LEAST_MS = 250.0  # where that share is less
MOST_PLAIN = 64  # rounds


def stream(
    pair: AnyPair,
    prompt: Prompt,
    params: Params | None = None,
    *,
    measure: bool = True,
    is_over: IsOver = lambda: False,
) -> "Run":
    """Starts a run: an iterator of Started, one Round per target forward after the prefill, and Finished.

    prompt: text, token ids, or messages ([{"role": "user", "content": "..."}]), which go through the
    tokenizer's chat template.
    measure: plain rounds are timed before Finished, for `stats.speedup`: at least 8, and as many as fit in a
    tenth of the run's time or in a quarter of a second, whichever is longer; not after a run of fewer than 24
    tokens, nor of a server. is_over: asked during the prefill, and while a server is asked for the prompt's
    tokens; once true, the run is closed. Raises ValueError for a prompt or Params that this pair cannot take,
    PairError while it is busy with another run."""
    return begin(pair, prepare(pair, prompt, params, is_over), measure, is_over)


def begin(
    pair: AnyPair,
    started: Started,
    measure: bool,
    is_over: IsOver = lambda: False,
    alter: Alter = lambda loop: loop,
) -> "Run":
    """Starts the run of a first event; the rest is as for `stream`. alter: what the lessons of trials/ put
    into the loop of a pair that runs here."""
    if not pair.lock.acquire(blocking=False):
        raise PairError(BUSY)
    try:
        if not isinstance(pair, ServedPair):
            look_at(pair)
        return Run(pair, replace(started, pair=pair.info), measure, is_over, alter)
    except BaseException:
        pair.lock.release()
        raise


def prepare(
    pair: AnyPair,
    prompt: Prompt,
    params: Params | None = None,
    is_over: IsOver = lambda: False,
) -> Started:
    """Makes a run's first event: its prompt as token ids, its Params with a seed. Raises ValueError as
    `stream` does, and touches no device. is_over: see `stream`."""
    params = Params() if params is None else params
    if not isinstance(params, Params):
        raise ValueError(f"params must be a Params, not {type(params).__name__}")
    messages = None
    if is_conversation(prompt):
        messages, params = check_messages(prompt), replace(params, chat=True)
        if params.system is not None:
            raise ValueError("system must be left out for messages: give it as the first of them")
    for field in ("system", "chat_template_kwargs"):
        if getattr(params, field) is not None and not params.chat:
            raise ValueError(f"{field} is part of the chat template, so it needs chat to be true")
    prompt_ids = encode(pair, prompt, params, is_over)
    text = prompt if isinstance(prompt, str) else ""
    params = _seeded(pair.check(params))
    versions = {"specdemo": __version__, **pair.versions}
    return Started(pair.info, versions, params, text, tuple(prompt_ids), messages, pair.marks)


def _seeded(params: Params) -> Params:
    return params if params.seed is not None else replace(params, seed=SystemRandom().randrange(2**32))


def generate(
    pair: AnyPair,
    prompt: Prompt,
    params: Params | None = None,
    *,
    measure: bool = True,
    is_over: IsOver = lambda: False,
) -> Trace:
    """Makes the whole run at once, and gives its trace. Raises as `stream` does, and what fails while it
    runs."""
    run = stream(pair, prompt, params, measure=measure, is_over=is_over)
    for _ in run:
        pass
    return run.trace


def one_round(
    pair: Pair,
    started: Started,
    output_ids: Sequence[int],
    index: int,
    given: Sequence[int] | None = None,
    is_over: IsOver = lambda: False,
) -> tuple[Round, Finish | None] | None:
    """Makes round `index` alone of a run that has written `output_ids` so far, and why the text ends with it;
    None if is_over was true before. The prompt and the text are read anew, so a drafter that learns in the
    course of a run knows the text only.

    given: token ids that are judged as the round's draft in place of the drafter's own, with the uniform
    numbers of the same places. Raises ValueError where the text has ended before the round, PairError while
    the pair is busy with a run."""
    params = started.params if given is None else replace(started.params, draft_with="none")
    ids = [*started.prompt_ids, *output_ids]
    with held(pair):
        look_at(pair)
        with no_mistakes():
            loop = loop_of(pair, replace(started, params=params), is_over)
        emitter = loop.emitter
        if any(emitter.stop.add(one, emitter.pieces.push(one)) for one in output_ids):
            raise ValueError("The text has ended, so no round can follow")
        if given is not None:
            drafter = GivenDrafter(list(given), pair.vocab_size, loop.verifier.target.device)
            loop = replace(loop, drafter=drafter, length=DraftLength(len(given)))
        with no_mistakes(), loop.active():
            loop.prefill(ids)
            return None if is_over() else (loop.round(ids, index), loop.finish)


@contextmanager
def held(pair: Pair) -> Iterator[None]:
    """Holds the pair for a while. PairError while it is busy with a run."""
    if not pair.lock.acquire(blocking=False):
        raise PairError(BUSY)
    try:
        yield
    finally:
        pair.lock.release()


class Run:
    """One run of a pair. Iterate over it for the events; `trace` is the trace so far; `close()` ends it
    early.

    Any thread may close it: the pair is free when `close` returns, at the latest one round or one part of the
    prefill later. A run that is dropped closes itself."""

    def __init__(
        self,
        pair: AnyPair,
        started: Started,
        measure: bool,
        is_over: IsOver = lambda: False,
        alter: Alter = lambda loop: loop,
        events: Callable[..., Generator[Event, None, None]] | None = None,
    ):
        """events: in place of the pair's own, those that such a function yields with the pair, the first
        event, the trace, whether the run is closing, and `measure`."""
        self.trace = Trace.begin(started)
        self._computing = threading.Lock()  # held while an event is computed
        closing = self._closing = threading.Event()

        def is_closing() -> bool:
            if is_over():
                closing.set()
            return closing.is_set()

        self._free = weakref.finalize(self, _free, pair, self.trace)
        self.pair, self.started = pair, started
        if isinstance(pair, ServedPair):
            made = served_events(pair, started, self.trace, is_closing)
        elif events is not None:
            made = events(pair, started, self.trace, is_closing, measure)
        else:
            made = _events(pair, started, self.trace, is_closing, measure, alter)
        self._events = _without_mistakes(made)

    def __iter__(self) -> "Run":
        return self

    def __next__(self) -> Event:
        with self._computing:
            if self._closing.is_set():
                raise StopIteration
            try:
                event = next(self._events)
            except BaseException:
                self._free()
                raise
            if isinstance(event, Finished):
                self._end()
            return event

    def close(self) -> None:
        """Ends the run after the round that is being computed; the trace's `finish` is then "cancelled",
        unless the run had ended before."""
        self._closing.set()
        with self._computing:
            self._end()

    def _end(self) -> None:
        self._events.close()
        self._free()

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _without_mistakes(events: Iterator[Event]) -> Generator[Event, None, None]:
    with no_mistakes():
        yield from events


def _free(pair: AnyPair, trace: Trace) -> None:
    """Frees the pair at the end of every run, once, whether the run finished, failed, was closed or was
    dropped."""
    try:
        if trace.finish is None:
            trace.end("cancelled")
    finally:
        pair.lock.release()


def _events(
    pair: Pair, started: Started, trace: Trace, is_closing: IsOver, measure: bool, alter: Alter
) -> Generator[Event, None, None]:
    """Yields the events of a run. is_closing: whether the run is to end early; once true, always true.
    measure: see `stream`. alter: see `begin`."""
    yield started
    try:
        loop = alter(loop_of(pair, started, is_closing))
        ids = list(started.prompt_ids)
        with loop.active():
            forwards, prefill_ms = loop.prefill(ids)
        trace.stats = replace(trace.stats, target_forwards=forwards, prefill_ms=prefill_ms)
        if is_closing():  # the caches can lack a part of the prompt
            return
        rounds = loop.rounds(ids)
        while trace.finish is None:
            with loop.active():
                event = next(rounds)
            trace.add(event, loop.emitter.pieces.flush())
            if loop.finish:  # before the yield, so that whoever sees the last round sees a whole text
                trace.end(loop.finish)
            yield event
    except Exception as error:
        trace.end("error", str(failure(error)))
        raise
    if measure and trace.stats.tokens >= SHORTEST:
        # The text is complete, so an error here (too little memory) only leaves the speed-up unknown.
        with suppress(RuntimeError):
            times_ms = [one.ms for one in plain_rounds(loop, started, trace, is_closing)]
            if not is_closing():
                trace.stats = after_plain_rounds(trace.stats, trace.rounds, times_ms)
    assert trace.finished is not None
    yield trace.finished


def plain_rounds(loop: Loop, started: Started, trace: Trace, is_closing: IsOver) -> Iterator[Round]:
    """Makes plain rounds (nothing drafted) at places spread over the text of a run that has ended. Where the
    target keeps a state, which has to be computed from a place before, the places follow each other in the
    middle of the text. What the rounds write into the cache is what it holds there already."""
    stats, target = trace.stats, loop.verifier.target
    ids = [*started.prompt_ids, *(token_id for one in trace.rounds for token_id in one.ids)]
    plain, first, wanted = plain_loop(loop), len(started.prompt_ids), how_many(stats)
    ends = [first + i * stats.tokens // wanted for i in range(wanted)]
    with loop.active():
        target.features = None  # the target alone
        loop.clock.wait()  # for a round that was thrown away
        if target.states is not None:
            wanted = min(wanted, stats.tokens - 1)
            middle = first + (stats.tokens - 1 - wanted) // 2
            plain.round(ids[:middle], stats.rounds)  # not timed: the text before is fed again
            ends = [middle + 1 + i for i in range(wanted)]
    rounds = rounds_after(plain, ids, ends, stats.rounds)
    yield from as_in_a_run(loop, Trace.begin(started), is_closing, rounds)


def how_many(stats: Stats) -> int:
    """Says how many plain rounds a run of these numbers has. It is settled before the first of them: rounds
    that were added until a time is up would be the longer ones."""
    share_ms = max(SHARE * stats.run_ms, LEAST_MS)
    # A plain round takes no longer than one that verifies drafts.
    affordable = share_ms * stats.rounds / max(stats.verify_ms or 0.0, 1e-6)
    return max(FEWEST_PLAIN, min(MOST_PLAIN, stats.tokens, int(affordable)))


def plain_loop(loop: Loop) -> Loop:
    """Makes the loop of the target alone, as the run's would run it."""
    verifier = replace(loop.verifier, wants_top=0)
    drafter = NoDrafter(verifier.target.vocab_size, verifier.target.device)
    pieces, stop = Pieces(loop.emitter.pieces.tokenizer), StopCriteria(frozenset(), (), room=inf)
    emitter = Emitter(pieces, loop.emitter.token_text, stop)
    return replace(loop, drafter=drafter, verifier=verifier, emitter=emitter, length=DraftLength(0))


def rounds_after(loop: Loop, ids: list[int], ends: Iterable[int], index: int) -> Iterator[Round]:
    """Makes a round after each of the texts ids[:end]. index: of the first of them."""
    texts = (ids[:end] for end in ends)
    yield from loop.rounds(next(texts), index, lambda _: next(texts, None))


def as_in_a_run(loop: Loop, beside: Trace, is_closing: IsOver, rounds: Iterator[Round]) -> Iterator[Round]:
    """Yields the rounds. Between two of them it does what a run does, since that changes how long the next
    one takes. beside: a trace for them, which nobody reads."""
    while not is_closing():
        with loop.active():
            event = next(rounds, None)
        if event is None:
            return
        beside.add(event, loop.emitter.pieces.flush())
        yield event


def loop_of(pair: Pair, started: Started, is_over: IsOver) -> Loop:
    """Makes the loop of a run, which has not begun. Who drives it holds the pair's lock."""
    params = started.params
    method = drafting_by(params.draft_with)
    setup = pair.runner.begin_run(method.own(pair, params))
    code = compiled() if setup.on_cpu else None
    draw = code.draw if code else None
    of_prompt, theirs = len(started.prompt_ids), of_drafter(params)
    grammar = None
    if field_of_grammar(params):
        opened = pair.opened(started.messages or started.prompt or None, params, started.prompt_ids)
        grammar = pair.grammars.compiled(params, of_prompt, Thoughts.at_first(started.marks, opened))
    sampler = Sampler(params, of_prompt, draw, grammar)
    drafting = sampler if theirs == params else Sampler(theirs, of_prompt, draw, grammar)
    longest = int(min(len(started.prompt_ids) + params.max_new_tokens, pair.context))
    tree = tree_of(params) if params.tree else None
    if tree is not None:
        with setup.active():
            by_drafter = METHODS[params.draft_with].is_by_drafter
            readers = [("target", setup.target), *([("drafter", setup.drafter)] if by_drafter else [])]
            for role, lm in readers:
                if isinstance(lm, CachedLM) and not lm.reads_branches():  # heads are this project's own
                    raise PairError(about("tree", "tree_forward", who=message(f"the_{role}")))
    beyond = LONGEST_DRAFT if tree is None else tree.size  # rows that only fill a step
    setup.make_room(longest + beyond)
    eos = frozenset() if params.ignore_eos else pair.eos
    room = longest - len(started.prompt_ids)
    stop = StopCriteria(eos, params.stop, room, pair.stop_ids(params.stop))
    drafter = make_drafter(
        Materials(
            params=theirs,
            sampler=drafting,
            target=setup.target,
            drafter=setup.drafter,
            # Which tokens a grammar allows is known on the host alone, which then waits for each drafted one.
            run_step=setup.run_drafting if grammar is None else EagerSteps(),
            context=pair.context,
            drafter_context=pair.drafter_context,
            tokenizer=pair.tokenizer,
            other_tokenizer=pair.other_tokenizer,
            is_over=is_over,
            tree=tree,
        )
    )
    verifier = Verifier(
        target=setup.target,
        sampler=sampler,
        rule=rule_of(params),
        run_step=setup.run_step,
        gamma=params.gamma if tree is None else tree.size,
        alternatives=params.alternatives,
        wants_top=drafter.wants_top,
        eos=tuple(sorted(eos)),
        confidence=params.confidence,
        compiled_verdict=code.judge if code else None,
        tree=tree,
    )
    cost = NO_COST
    if params.gamma == "auto" and tree is None:
        experts = expert_weights(pair.target)  # a forward reads what any of its rows goes through
        share = experts.size * experts.chosen / weight_bytes(pair.target)
        cost = replace(method.cost(pair, params), experts=share, chosen=experts.chosen)
    gamma = 0 if params.draft_with == "none" else verifier.gamma
    length = DraftLength(gamma, cost, longest_draft(params.draft_with, pair.drafter))
    emitter = Emitter(Pieces(pair.tokenizer), pair.token_text, stop, params.rule, is_lossy(params))
    assert params.seed is not None, "stream has drawn one"
    clock, ahead = pair.runner.clock, setup.runs_ahead and grammar is None
    how = (longest, params.seed, clock, is_over, ahead, setup.active)
    return Loop(drafter, verifier, emitter, length, *how)
