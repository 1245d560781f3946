"""The loop of speculative decoding (Leviathan et al. 2023, algorithm 1; Chen et al. 2023, algorithm 2).

Each round drafts up to gamma tokens, runs the target once over all of them, judges them, and takes one token
from the target itself. Plain decoding is the same loop with nothing drafted."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from specdemo.engine.drafters import Draft, Drafter
from specdemo.engine.emit import Emitted, Emitter
from specdemo.engine.length import DraftLength
from specdemo.engine.report import DRAFTED
from specdemo.engine.sampling import uniforms
from specdemo.engine.step import Verifier
from specdemo.events import EndedBy, Finish, Round
from specdemo.runtime.clock import Clock


@dataclass(frozen=True)
class Prefilled:
    """The prompt is in both caches, except for its last token, which the first round feeds."""

    forwards: int  # of the target
    ms: float


@dataclass(frozen=True)
class Decoder:
    """One run. length: of the drafts. longest: tokens that the text may have, prompt included. seed: of the
    run's uniform numbers. is_over: once it is true, no round may follow, and what is left of the prefill is
    left out."""

    drafter: Drafter
    verifier: Verifier
    emitter: Emitter
    length: DraftLength
    longest: int
    seed: int
    clock: Clock
    is_over: Callable[[], bool] = lambda: False

    def decode(self, prompt_ids: list[int]) -> Iterator[Prefilled | Round]:
        """Yields Prefilled, then one Round per target forward. It is pulled: nothing is computed between a
        `yield` and the consumer's next request, and no clock runs there."""
        ids = list(prompt_ids)
        yield self._prefill(ids)
        index = 0
        while self.finish is None:
            this_round = self.round(ids, index)
            ids += this_round.emitted
            index += 1
            yield this_round

    @property
    def finish(self) -> Finish | None:
        """Why the text has ended, None while it goes on."""
        return self.emitter.stop.finish

    @torch.no_grad()  # not inference_mode: quanto's packed int4 and int2 weights fail under it
    def round(self, ids: list[int], index: int) -> Round:
        """One round after `ids`, the text so far; its uniform numbers are those of round `index`."""
        device = self.verifier.target.device
        start = self.clock.timestamp()
        gamma = self.length.gamma
        k = min(gamma, self.longest - len(ids) - 1)
        u = uniforms(self.seed, index, self.verifier.rows(k))

        before_draft = self.clock.timestamp(device)
        draft = self.drafter.propose(ids, k, u.draft)  # x_i drawn from q_i
        after_draft = self.clock.timestamp(device)
        verified = self.verifier.verify(ids, draft, u)  # p_i, the accepted x_i, one token more
        kept = int(verified.k)
        emitted = self.emitter.emit(verified, kept)  # fates, text, and whether that ends it
        if self.drafter.wants_top:
            drafted_ids = verified.token_ids[:kept, DRAFTED].tolist()
            self.drafter.learn(ids, drafted_ids, verified.likely(kept))
        self.length.learn(emitted.draft)

        ended_by = self._ended_by(gamma, k, draft, kept, emitted)
        made = len(emitted.draft) if ended_by == "eos" else draft.k + draft.dropped
        round_ms = self.clock.ms_between(start, self.clock.timestamp())
        draft_ms = self.clock.ms_between(before_draft, after_draft)
        return Round(
            index,
            emitted.draft,
            emitted.next,
            emitted.token_ids,
            draft_ms,
            round_ms - draft_ms,
            emitted.kept,
            gamma,
            ended_by,
            made,
        )

    def _ended_by(self, gamma: int, k: int, draft: Draft, kept: int, emitted: Emitted) -> EndedBy | None:
        """Why a draft is no longer. k: what was asked for. kept: how many of its tokens the drafter was sure
        enough of."""
        if gamma == 0:
            return None
        if emitted.draft and emitted.draft[-1].id in self.emitter.stop.eos:
            return "eos"
        if kept < draft.k or draft.dropped:
            return "confidence"
        if draft.k < k:
            return "drafter"
        return "length" if k < gamma else "gamma"

    @torch.no_grad()
    def _prefill(self, ids: list[int]) -> Prefilled:
        start = self.clock.timestamp()
        forwards = self.verifier.target.prefill(torch.tensor(ids[:-1], dtype=torch.long), self.is_over)
        self.drafter.start(ids)
        self.clock.wait()  # or the first round would be charged with it
        return Prefilled(forwards, self.clock.ms_between(start, self.clock.timestamp()))
