"""The loop of speculative decoding (Leviathan et al. 2023, algorithm 1; Chen et al. 2023, algorithm 2).

Each round drafts up to gamma tokens, runs the target once over all of them, judges them, and takes one token
from the target itself. Plain decoding is the same loop with nothing drafted: some such rounds are timed right
after a run, on its text, in its cache and under its load, to tell what the target alone takes for a token."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from specdemo.engine.detokenize import Pieces
from specdemo.engine.drafters import Draft, Drafter, NoDrafter
from specdemo.engine.emit import Emitter, StopCriteria
from specdemo.engine.sampling import uniforms
from specdemo.engine.step import DRAFTED, Verifier
from specdemo.events import EndedBy, Finish, Gamma, Judged, Round, Stats
from specdemo.events.speedup import FEWEST_PLAIN, NO_COST, SHORTEST, DraftingCost, expected_speedup
from specdemo.runtime.device import Clock
from specdemo.runtime.graphs import AUTO_ROWS

EXPECTED, WEIGHT = 0.7, 4.0  # before the first verdict: this acceptance rate, as if seen in so many verdicts
HALF_LIFE = 32  # verdicts, after which one counts half
# What a drafted token costs besides its drafting: a row in the target's forward, in parts of a plain forward.
# It was 0.03 to 0.08 for the embedded target on a CPU, and was not measured on a GPU.
ROW_COST = 0.05
SHARE = 0.1  # of the run's own time, for plain rounds
LEAST_MS = 250.0  # where that share is less
MOST_PLAIN = 64  # rounds


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
    length: "DraftLength"
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

        fed_before, forwards_before = self._fed_again, self._extra_forwards
        before_draft = self.clock.timestamp(device)
        draft = self.drafter.propose(ids, k, u.draft)  # x_i drawn from q_i
        after_draft = self.clock.timestamp(device)
        verified = self.verifier.verify(ids, draft, u)  # p_i, the accepted x_i, one token more
        kept = int(verified.k)
        emitted = self.emitter.emit(index, verified, kept)  # fates, text, and whether that ends it
        if self.drafter.wants_top:
            drafted_ids = verified.token_ids[:kept, DRAFTED].tolist()
            self.drafter.learn(ids, drafted_ids, verified.likely(kept))
        self.length.learn(emitted.draft)

        ended_by = self._ended_by(gamma, k, draft, kept, emitted)
        round_ms = self.clock.ms_between(start, self.clock.timestamp())
        draft_ms = self.clock.ms_between(before_draft, after_draft)
        return replace(
            emitted,
            draft_ms=draft_ms,
            verify_ms=round_ms - draft_ms,
            gamma=gamma,
            ended_by=ended_by,
            made=len(emitted.draft) if ended_by == "eos" else draft.k + draft.dropped,
            fed_again=since(self._fed_again, fed_before),
            target_forwards=1 + self._extra_forwards - forwards_before,
        )

    @property
    def _fed_again(self) -> int | None:
        """Tokens of texts that either model was fed again so far; None where neither keeps a state."""
        counts = [states.fed_again for states in (self.verifier.target.states, self.drafter.states) if states]
        return sum(counts) if counts else None

    @property
    def _extra_forwards(self) -> int:
        """Of the target so far, besides one a round."""
        states = self.verifier.target.states
        return states.extra_forwards if states else 0

    def _ended_by(self, gamma: int, k: int, draft: Draft, kept: int, emitted: Round) -> EndedBy | None:
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


def since(after: int | None, before: int | None) -> int | None:
    """after - before, or None where either is unknown."""
    return None if after is None or before is None else after - before


class DraftLength:
    """`gamma` is the most tokens that the next round may draft.

    "auto" takes the length of AUTO_ROWS with the largest speed-up by Leviathan et al. 2023, theorem 3.8, for
    the acceptance rate of the run's latest verdicts and a given cost. It depends on the rounds before, so
    that the output keeps the target's distribution, and on no clock, so that the same seed gives the same
    rounds again. longest: the most tokens that the drafter can draft; None where there is no such limit."""

    def __init__(self, gamma: Gamma, cost: DraftingCost = NO_COST, longest: int | None = None):
        self.is_auto = gamma == "auto"
        self.cost = cost
        self.lengths = sorted({min(rows, longest or rows) for rows in AUTO_ROWS})
        self.accepted, self.judged = EXPECTED * WEIGHT, WEIGHT
        self.gamma = self._best() if gamma == "auto" else gamma

    def learn(self, draft: Sequence[Judged]) -> None:
        """Is given each round's draft."""
        for token in draft:
            if self.is_auto and token.fate != "discarded":
                kept = 0.5 ** (1 / HALF_LIFE)
                self.accepted = kept * self.accepted + (token.fate == "accepted")
                self.judged = kept * self.judged + 1
        if self.is_auto:
            self.gamma = self._best()

    def _best(self) -> int:
        alpha = self.accepted / self.judged

        def speedup(gamma: int) -> float:
            return expected_speedup(alpha, gamma, self.cost.token + ROW_COST + self.cost.draft / gamma)

        return max(self.lengths, key=speedup)


def plain_rounds(decoder: Decoder, pieces: Pieces, ids: list[int], stats: Stats) -> Iterator[Round]:
    """Plain rounds (nothing drafted) at places spread over the text of a run that has ended; none after a run
    that is too short for a speed-up. Where the target keeps a state, which has to be computed from a place
    before, the places follow each other in the middle of the text.

    decoder: the run's. pieces: fresh ones. ids: prompt and text. What the rounds write into the cache is what
    it holds there already."""
    if stats.tokens < SHORTEST:
        return
    verifier = replace(decoder.verifier, wants_top=0)
    drafter = NoDrafter(verifier.target.vocab_size, verifier.target.device)
    unending = StopCriteria(frozenset(), (), room=-1)
    emitter = Emitter(pieces, decoder.emitter.token_text, unending)
    plain = replace(decoder, drafter=drafter, verifier=verifier, emitter=emitter, length=DraftLength(0))
    verifier.target.features = None  # the target alone
    first = len(ids) - stats.tokens  # where the prompt ends
    count = how_many(stats)
    if verifier.target.states is not None:
        count = min(count, stats.tokens - 1)
        middle = first + (stats.tokens - 1 - count) // 2
        plain.round(ids[:middle], stats.rounds)  # not timed: the text before is fed again
        for i in range(count):
            yield plain.round(ids[: middle + 1 + i], stats.rounds + i)
        return
    for i in range(count):
        yield plain.round(ids[: first + i * stats.tokens // count], stats.rounds + i)


def how_many(stats: Stats) -> int:
    """Plain rounds for a run of these numbers. Settled before the first of them: rounds that were added until
    a time is up would be the longer ones."""
    share_ms = max(SHARE * stats.run_ms, LEAST_MS)
    # A plain round takes no longer than one that verifies drafts.
    affordable = share_ms * stats.rounds / max(stats.verify_ms or 0.0, 1e-6)
    return max(FEWEST_PLAIN, min(MOST_PLAIN, stats.tokens, int(affordable)))
