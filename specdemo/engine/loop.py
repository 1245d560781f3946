"""The loop of speculative decoding (Leviathan et al. 2023, algorithm 1; Chen et al. 2023, algorithm 2).

Each round drafts up to gamma tokens, runs the target once over all of them, judges them, and takes one token
from the target itself. Plain decoding is the same loop with nothing drafted."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from specdemo.engine.draft import MOST_DRAFTED, Draft, Drafter, one_hot_draft
from specdemo.engine.emit import Emitter, Tokens
from specdemo.engine.grammar import Allowed
from specdemo.engine.sampling import Uniforms, uniforms
from specdemo.engine.step import Judging, VerifiedOnHost, Verifier
from specdemo.events import EndedBy, Finish, Gamma, Round, places_of
from specdemo.events.speedup import NO_COST, DraftingCost, expected_speedup
from specdemo.runtime.device import Clock, Timestamp
from specdemo.runtime.steps import AUTO_ROWS

EXPECTED, WEIGHT = 0.7, 4.0  # before the first verdict: this acceptance rate, as if seen in so many verdicts
HALF_LIFE = 32  # verdicts, after which one counts half
# Where drafting does not pay, so many rounds draft nothing; then so many verdicts tell whether it does now.
PAUSE, TRIAL = 32, 8
# What a drafted token costs besides its drafting and the experts that it reads: a row in the target's
# forward, in parts of a plain one. It was 0.03 to 0.08 for the embedded target on a CPU, and was not measured
# on a GPU.
ROW_COST = 0.05


@dataclass(frozen=True)
class Prefilled:
    """The prompt is in both caches, except for its last token, which the first round feeds."""

    forwards: int  # of the target
    ms: float


@dataclass(frozen=True)
class Launched:
    """A round that the device has been given. gamma: the longest draft allowed. k: how many tokens were
    asked for. room: the most tokens that can follow each other. allowed: what the grammar allows; None
    without one. The last three timestamps are the device's."""

    index: int
    gamma: int
    k: int
    room: int
    draft: Draft
    allowed: Allowed | None
    judging: Judging
    fed_again: int | None  # see Round, like the next one
    target_forwards: int
    start: Timestamp
    before_draft: Timestamp
    after_draft: Timestamp
    after_verify: Timestamp


@dataclass(frozen=True)
class Decoder:
    """One run. length: that of the drafts. longest: how many tokens the text may have, prompt included. seed:
    that of the run's uniform numbers. is_over: once it is true, no round may follow, and what is left of the
    prefill is left out. ahead: whether each round is launched before the last one is written down, so that
    the device has work meanwhile, and what is launched after the end of a text is thrown away. It is for
    devices that the host does not wait for while it launches."""

    drafter: Drafter
    verifier: Verifier
    emitter: Emitter
    length: "DraftLength"
    longest: int
    seed: int
    clock: Clock
    is_over: Callable[[], bool] = lambda: False
    ahead: bool = False

    def decode(self, prompt_ids: list[int]) -> Iterator[Prefilled | Round]:
        """Yields Prefilled, then one Round per target forward. It is pulled: the host computes nothing
        between a `yield` and the consumer's next request, and no clock runs there."""
        ids = list(prompt_ids)
        yield self._prefill(ids)

        def longer(emitted: Sequence[int]) -> list[int]:
            ids.extend(emitted)
            return ids

        yield from self.rounds(ids, 0, longer)

    def rounds(
        self, ids: list[int], index: int, following: Callable[[Sequence[int]], list[int] | None]
    ) -> Iterator[Round]:
        """Algorithm 1: round `index` after the text `ids`, and those after it until the text ends. following:
        is given what a round has emitted, and gives the text of the next one; None: there is none."""
        if self.ahead:
            yield from self._rounds_ahead(ids, index, following)
            return
        text: list[int] | None = ids
        while text is not None:
            launched = self._launch(text, index)  # drafts x_i from q_i; one forward of the target over them
            verdict, _ = self._verdict(text, launched)  # which x_i are accepted, and one token more
            this_round = self._record(launched, verdict, self.clock.timestamp())
            yield this_round
            if self.finish is not None:
                return
            text, index = following(this_round.ids), index + 1

    def _rounds_ahead(
        self, ids: list[int], index: int, following: Callable[[Sequence[int]], list[int] | None]
    ) -> Iterator[Round]:
        """Yields what `rounds` does; each round is launched before the last one is written down."""
        launched: Launched | Exception | None = self._launch(ids, index)
        away_ms = 0.0  # of the consumer, since that was launched
        u = None  # of the next round, made while the device works
        while launched is not None:
            if isinstance(launched, Exception):
                raise launched
            verdict, tokens = self._verdict(ids, launched)
            arrived, ahead = self.clock.timestamp(), None
            if not tokens.ends and (text := following(tokens.emitted)) is not None:
                ids, ahead = text, self._launched(text, index + 1, u)
                u = uniforms(self.seed, index + 2, MOST_DRAFTED)
            this_round = self._record(launched, verdict, arrived, is_last=ahead is None, away_ms=away_ms)
            away = self.clock.timestamp()
            yield this_round
            if self.finish is not None:
                return  # what was launched ahead is thrown away
            launched, index = ahead, index + 1
            away_ms = self.clock.ms_between(away, self.clock.timestamp())

    def _launched(self, ids: list[int], index: int, u: Uniforms | None) -> Launched | Exception:
        """Launches a round, and returns an error in place of raising it. An error belongs to the round that
        it is of: it is kept until the one before has been yielded, and goes with what is thrown away."""
        try:
            return self._launch(ids, index, u)
        except Exception as error:
            return error

    @property
    def finish(self) -> Finish | None:
        """Why the text has ended, None while it goes on."""
        return self.emitter.stop.finish

    def round(self, ids: list[int], index: int) -> Round:
        """One round after `ids`, the text so far; its uniform numbers are those of round `index`."""
        return next(replace(self, ahead=False).rounds(ids, index, lambda _: None))

    @torch.no_grad()  # not inference_mode: quanto's packed int4 and int2 weights fail under it
    def _launch(self, ids: list[int], index: int, u: Uniforms | None = None) -> Launched:
        device = self.verifier.target.device
        start = self.clock.timestamp()
        gamma, tree = self.length.gamma, self.verifier.tree
        room = self.longest - len(ids) - 1  # of the longest path of a tree
        k = min(gamma, room) if tree is None or not gamma else tree.in_room(room).size
        u = u or uniforms(self.seed, index, self.verifier.rows(k))

        fed_before, forwards_before = self._fed_again, self._extra_forwards
        grammar, allowed = self.verifier.sampler.grammar, None
        before_draft = self.clock.timestamp(device)
        if grammar is not None:
            grammar.go_to(ids)
        draft = self._draft(ids, k, u.draft)  # x_i drawn from q_i
        after_draft = self.clock.timestamp(device)
        if grammar is not None:
            kept, allowed = grammar.allowed(draft.ids[: draft.k].tolist())
            draft = replace(draft, k=kept, dropped=draft.dropped + draft.k - kept)
        judging = self.verifier.launch(ids, draft, u, allowed, room)  # p_i, the accepted x_i, one token more
        return Launched(
            index=index,
            gamma=gamma,
            k=k,
            room=room,
            draft=draft,
            allowed=allowed,
            judging=judging,
            fed_again=since(self._fed_again, fed_before),
            target_forwards=1 + self._extra_forwards - forwards_before,
            start=start,
            before_draft=before_draft,
            after_draft=after_draft,
            after_verify=self.clock.timestamp(device),
        )

    def _draft(self, ids: list[int], k: int, u: list[float]) -> Draft:
        if not self.length.is_paused:
            return self.drafter.propose(ids, k, u)
        self.drafter.skip(ids)
        return one_hot_draft([], self.verifier.target.vocab_size, self.verifier.target.device)

    @torch.no_grad()
    def _verdict(self, ids: list[int], launched: Launched) -> tuple[VerifiedOnHost, Tokens]:
        """Waits for the verdict, and learns from it what the next draft depends on. ids: the text before the
        round."""
        verdict = self.verifier.verdict(launched.judging)
        kept = int(verdict.k)
        tokens = self.emitter.tokens(verdict, kept)
        if self.drafter.wants_top and verdict.is_tree:
            for path, likely in verdict.likely_by_path(kept):
                self.drafter.learn([*ids, *path], [], [likely])
        elif self.drafter.wants_top:
            self.drafter.learn(ids, verdict.drafted(kept), verdict.likely(kept))
        if verdict.is_tree:
            self.verifier.target.keep(len(ids), verdict.whole_path)
            self.drafter.keep(ids, verdict.fed_path)
        self.length.learn(tokens.accepted, tokens.rejected)
        return verdict, tokens

    def _record(
        self,
        launched: Launched,
        verdict: VerifiedOnHost,
        arrived: Timestamp,
        is_last: bool = True,
        away_ms: float = 0.0,
    ) -> Round:
        """The round of a verdict, with its times. arrived: when the verdict had come. is_last: whether no
        other round has been launched since. away_ms: the consumer's time within the round's."""
        clock, draft = self.clock, launched.draft
        began, kept = clock.timestamp(), int(verdict.k)
        verdict.check()
        # fates, text, and whether that ends it
        emitted = self.emitter.emit(launched.index, verdict, kept, launched.allowed)
        ended_by = self._ended_by(launched, kept, emitted)
        round_ms = clock.ms_between(launched.start, arrived) - away_ms
        if is_last or self.finish is not None:  # else it is in the time of the next round
            round_ms += clock.ms_between(began, clock.timestamp())
        if self.ahead:  # the device may have worked while the consumer did
            round_ms = max(round_ms, clock.ms_between(launched.before_draft, launched.after_verify))
        draft_ms = clock.ms_between(launched.before_draft, launched.after_draft)
        return replace(
            emitted,
            draft_ms=draft_ms,
            verify_ms=round_ms - draft_ms,
            gamma=launched.gamma,
            ended_by=ended_by,
            made=len(emitted.draft) if ended_by == "eos" else draft.k + draft.dropped,
            fed_again=launched.fed_again,
            target_forwards=launched.target_forwards,
        )

    @property
    def _fed_again(self) -> int | None:
        """Tokens of texts that either model was fed again so far; None where neither keeps a state."""
        counts = [states.fed_again for states in (self.verifier.target.states, self.drafter.states) if states]
        return sum(counts) if counts else None

    @property
    def _extra_forwards(self) -> int:
        """The target's forwards so far, besides one a round."""
        states = self.verifier.target.states
        return states.extra_forwards if states else 0

    def _ended_by(self, launched: Launched, kept: int, emitted: Round) -> EndedBy | None:
        """Why a draft is no longer. kept: how many of its tokens the drafter was sure enough of."""
        gamma, k, draft = launched.gamma, launched.k, launched.draft
        if gamma == 0:
            return "pause" if self.length.is_auto else None
        if kept == draft.k and launched.allowed is not None and launched.allowed.is_cut:
            return "grammar"
        if self.verifier.tree is None:
            ends = emitted.draft and emitted.draft[-1].id in self.emitter.stop.eos
        else:
            is_cut = len(emitted.draft) < kept
            places = zip(emitted.draft, places_of(emitted.draft), strict=True)
            has_eos = any(one.id in self.emitter.stop.eos and at + 1 < launched.room for one, at in places)
            ends = is_cut and has_eos
            if is_cut and not ends:  # the others were too deep
                return "length"
        if ends:
            return "eos"
        if kept < draft.k or draft.dropped:
            return "confidence"
        if draft.k < k:
            return "grammar" if draft.ends_by_grammar else "drafter"
        return "length" if k < gamma else "gamma"

    @torch.no_grad()
    def _prefill(self, ids: list[int]) -> Prefilled:
        self.clock.wait()  # for a round that was thrown away
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
    the acceptance rate of the run's latest verdicts and a given cost. Where none makes the run faster, PAUSE
    rounds draft nothing; then TRIAL verdicts are waited for, which count as much as the first ones did. It
    depends on the rounds before, so that the output keeps the target's distribution, and on no clock, so that
    the same seed gives the same rounds again. longest: the most tokens that the drafter can draft; None where
    there is no such limit."""

    def __init__(self, gamma: Gamma, cost: DraftingCost = NO_COST, longest: int | None = None):
        self.is_auto = gamma == "auto"
        self.cost = cost
        self.lengths = sorted({min(rows, longest or rows) for rows in AUTO_ROWS})
        self.accepted, self.judged = EXPECTED * WEIGHT, WEIGHT
        self.trial, self.pause = TRIAL, 0  # verdicts before it may pause; rounds that the pause still lasts
        self.gamma = self._best() if gamma == "auto" else gamma

    @property
    def is_paused(self) -> bool:
        return self.pause > 0

    def learn(self, accepted: int, rejected: bool) -> None:
        """Takes how many tokens of a draft were accepted, and whether one was rejected."""
        if not self.is_auto:
            return
        if self.is_paused:
            self._wait()
            return
        kept = 0.5 ** (1 / HALF_LIFE)
        for verdict in [1] * accepted + [0] * rejected:
            self.accepted = kept * self.accepted + verdict
            self.judged = kept * self.judged + 1
            self.trial -= 1
        self.gamma = self._best()
        if self.trial <= 0 and self._speedup(self.gamma) <= 1:
            self.gamma, self.pause = 0, PAUSE

    def _wait(self) -> None:
        """One round of the pause. After the last one the same rate counts as if seen in few verdicts."""
        self.pause -= 1
        if self.pause == 0:
            self.accepted, self.judged = WEIGHT * self.accepted / self.judged, WEIGHT
            self.trial, self.gamma = TRIAL, self._best()

    def _best(self) -> int:
        return max(self.lengths, key=self._speedup)

    def _speedup(self, gamma: int) -> float:
        cost = self.cost.of_a_draft(gamma) / gamma + ROW_COST
        return expected_speedup(self.accepted / self.judged, gamma, cost)
