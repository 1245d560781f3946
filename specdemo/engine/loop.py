"""The loop of speculative decoding (Leviathan et al. 2023, algorithm 1; Chen et al. 2023, algorithm 2).

Each round drafts up to gamma tokens, runs the target once over all of them, judges them, and takes one token
from the target itself. Plain decoding is the same loop with nothing drafted."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import count

import torch

from specdemo.engine.draft import MOST_DRAFTED, Draft, Drafter, DraftLength, one_hot_draft
from specdemo.engine.emit import Emitter, Launched, Stopwatch
from specdemo.engine.sampling import Uniforms, uniforms
from specdemo.engine.step import Verified, Verifier
from specdemo.events import Finish, Round
from specdemo.runtime.cuda import Clock

Following = Callable[[Sequence[int]], list[int] | None]


@dataclass(frozen=True)
class Loop:
    """Writes one text. length: that of the drafts. longest: how many tokens the text may have, prompt
    included. seed: that of the run's uniform numbers. is_over: once it is true, no round may follow, and what
    is left of the prefill is left out. ahead: whether each round is launched before the last one is written
    down, so that the device has work meanwhile, and what is launched after the end of a text is thrown away.
    It is for devices that the host does not wait for while it launches. active: a context that whoever drives
    it enters for the prefill and for each round."""

    drafter: Drafter
    verifier: Verifier
    emitter: Emitter
    length: DraftLength
    longest: int
    seed: int
    clock: Clock
    is_over: Callable[[], bool] = lambda: False
    ahead: bool = False
    active: Callable[[], AbstractContextManager[None]] = nullcontext

    @torch.no_grad()
    def prefill(self, ids: list[int]) -> tuple[int, float]:
        """Reads the prompt into both caches, except for its last token, which the first round feeds. Gives
        the target's forwards and the time in ms."""
        self.clock.wait()  # for a round that was thrown away
        start = self.clock.timestamp()
        forwards = self.verifier.target.prefill(torch.tensor(ids[:-1], dtype=torch.long), self.is_over)
        self.drafter.start(ids)
        self.clock.wait()  # or the first round would be charged with it
        return forwards, self.clock.ms_between(start, self.clock.timestamp())

    def rounds(self, ids: list[int], index: int = 0, following: Following | None = None) -> Iterator[Round]:
        """Runs algorithm 1: round `index` after the text `ids`, and those after it until the text ends; each
        is one forward of the target. following: is given what a round has emitted, and gives the text of the
        next one; None: there is none. It is pulled: the host computes nothing between a `yield` and the
        consumer's next request, and no clock runs there."""
        ids = list(ids)

        def longer(emitted: Sequence[int]) -> list[int]:
            ids.extend(emitted)
            return ids

        following = following or longer
        dice = (uniforms(self.seed, each, MOST_DRAFTED) for each in count(index))
        text: list[int] | None = ids
        launch = self._launching(ids, index, next(dice))
        while text is not None:
            launched = launch()  # drafts x_i from q_i; one forward of the target over them gives p_i
            u = next(dice)  # of the next round, while the device works
            verdict = self._judged(text, launched)  # which x_i are accepted, and one token more
            text = None if self.emitter.is_end(verdict.emitted) else following(verdict.emitted)
            if text is not None:
                launch = self._launching(text, launched.index + 1, u)
            yield self._written(launched, verdict, is_last=text is None or not self.ahead)
            if self.finish is not None:
                return  # what was launched ahead is thrown away
            launched.watch.leave_out_consumer()

    def _launching(self, ids: list[int], index: int, u: Uniforms) -> Callable[[], Launched]:
        """Gives a round that has been launched, or, unless it is launched ahead, launches it when it is
        called. An error of what is launched ahead is raised then, too: it belongs to its own round, and goes
        with what is thrown away."""
        launch = partial(self._launch, ids, index, u)
        if not self.ahead:
            return launch
        launched: Future[Launched] = Future()
        try:
            launched.set_result(launch())
        except Exception as error:
            launched.set_exception(error)
        return launched.result

    @property
    def finish(self) -> Finish | None:
        """Says why the text has ended; None while it goes on."""
        return self.emitter.stop.finish

    def round(self, ids: list[int], index: int) -> Round:
        """Makes one round after `ids`, the text so far; its uniform numbers are those of round `index`."""
        return next(self.rounds(ids, index, lambda _: None))

    @torch.no_grad()  # not inference_mode: quanto's packed int4 and int2 weights fail under it
    def _launch(self, ids: list[int], index: int, u: Uniforms) -> Launched:
        """Gives the device a round after `ids`: a draft, and the target's step over it."""
        target, grammar = self.verifier.target, self.verifier.sampler.grammar
        watch, (fed_before, forwards_before) = Stopwatch(self.clock), self._extra
        gamma = self.length.gamma
        room = self.longest - len(ids) - 1  # for the longest path of a draft
        k = self.verifier.drafts_in(room, gamma)
        watch.mark("draft", target.device)
        if grammar is not None:
            grammar.go_to(ids)
        draft, allowed = self._draft(ids, k, u.draft), None  # x_i drawn from q_i
        watch.mark("verify", target.device)
        if grammar is not None:
            kept, allowed = grammar.allowed(draft.ids[: draft.k].tolist())
            draft = replace(draft, k=kept, dropped=draft.dropped + draft.k - kept)
        verified = self.verifier.launch(ids, draft, u, allowed, room)  # p_i, the accepted x_i, one token more
        watch.mark("verified", target.device)
        fed, forwards = self._extra
        return Launched(
            index=index,
            gamma=gamma,
            is_paused=self.length.is_paused,
            k=k,
            draft=draft,
            allowed=allowed,
            verified=verified,
            fed_again=None if fed is None or fed_before is None else fed - fed_before,
            target_forwards=1 + forwards - forwards_before,
            watch=watch,
        )

    def _draft(self, ids: list[int], k: int, u: list[float]) -> Draft:
        if not self.length.is_paused:
            return self.drafter.propose(ids, k, u)
        self.drafter.skip(ids)
        return one_hot_draft([], self.verifier.target.vocab_size, self.verifier.target.device)

    @torch.no_grad()
    def _judged(self, ids: list[int], launched: Launched) -> Verified:
        """Waits for the verdict, and learns from it what the next draft depends on. ids: the text before the
        round."""
        verdict = Verified.of(launched.verified)
        if self.drafter.wants_top:
            for path, drafted, likely in verdict.likely:
                self.drafter.learn([*ids, *path], drafted, likely)
        self.verifier.target.keep(len(ids), verdict.path)
        self.drafter.keep(ids, verdict.fed_path)
        self.length.learn(verdict.accepted, bool(verdict.rejected))
        launched.watch.mark("judged")
        return verdict

    def _written(self, launched: Launched, verdict: Verified, is_last: bool) -> Round:
        """Writes the round of a verdict. is_last: whether no other one has been launched since, in whose time
        writing this one would be."""
        launched.watch.mark("write")
        verdict.check()
        one = self.emitter.emit(launched, verdict)  # fates, text, and whether that ends it
        return launched.watch.timed(one, is_last or self.finish is not None)

    @property
    def _extra(self) -> tuple[int | None, int]:
        """Counts what states of recurrent layers have cost so far: the tokens that either model was fed again
        (None where neither keeps a state), and the target's forwards besides one a round."""
        target, drafter = self.verifier.target.states, self.drafter.states
        counts = [states.fed_again for states in (target, drafter) if states]
        return sum(counts) if counts else None, target.extra_forwards if target else 0
