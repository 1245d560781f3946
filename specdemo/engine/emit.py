"""From a verdict to the round that everybody reads: fates, text pieces, and where the text ends."""

from collections.abc import Callable
from dataclasses import dataclass

from specdemo.engine.detokenize import Pieces
from specdemo.engine.step import ALTERNATIVES, DRAFTED, NEXT, Verified
from specdemo.events import RULES, Alternative, Fate, Finish, Judged, Kept, Next, Round, Source


class StopCriteria:
    """Is given each emitted token, in order, and says whether the text ends with it, and why: eos before stop
    before length.

    eos: ids that end a text. stops: strings that end it. room: how many tokens the text may still get, at
    least 1."""

    def __init__(self, eos: frozenset[int], stops: tuple[str, ...], room: int):
        self.eos = eos
        self.stops = stops
        self.room = room
        self.finish: Finish | None = None
        self._tail = ""  # the last characters, as many as a stop string that began before this token can need

    def add(self, token_id: int, piece: str) -> Finish | None:
        self.room -= 1
        self._tail = self._tail[-max(map(len, self.stops), default=1) :] + piece
        if token_id in self.eos:
            self.finish = "eos"
        elif any(stop in self._tail for stop in self.stops):
            self.finish = "stop"
        elif self.room == 0:
            self.finish = "length"
        return self.finish


@dataclass(frozen=True)
class Tokens:
    """What a verdict says without its text: how many drafted tokens are accepted, whether one is rejected,
    and what is emitted unless the text ends within. ends: whether it is known to end there. A stop string
    can still end it where this is false."""

    accepted: int
    rejected: bool
    emitted: tuple[int, ...]
    ends: bool


@dataclass(frozen=True)
class Emitter:
    """Turns verdicts into rounds. pieces: the text so far, token by token. token_text: a token's text out of
    context, for the alternatives. rule: the name of the one that judged. is_lossy: whether its distance from
    the target is recorded."""

    pieces: Pieces
    token_text: Callable[[int], str]
    stop: StopCriteria
    rule: str = "speculative"
    is_lossy: bool = False

    def tokens(self, verified: Verified, k: int) -> Tokens:
        """Of a verified draft of k tokens."""
        drafted_ids = self._drafted(verified, k)
        accepted = int(verified.accepted)
        emitted = (*drafted_ids[:accepted], int(verified.token_ids[accepted, NEXT]))
        ends = 0 < self.stop.room <= len(emitted) or not self.stop.eos.isdisjoint(emitted)
        return Tokens(accepted, accepted < len(drafted_ids), emitted, ends)

    def _drafted(self, verified: Verified, k: int) -> list[int]:
        """A draft ends with an eos. A drafter on the device cannot know that it has drafted one, so the rest,
        which was not judged, is cut here."""
        drafted_ids = verified.token_ids[:k, DRAFTED].tolist()
        k = next((i + 1 for i, token_id in enumerate(drafted_ids) if token_id in self.stop.eos), k)
        return drafted_ids[:k]

    def emit(self, index: int, verified: Verified, k: int) -> Round:
        """Round `index`, of a verified draft of k tokens, without its times; `stop.finish` then says whether
        the text has ended."""
        drafted_ids = self._drafted(verified, k)
        k = len(drafted_ids)
        table = _Table(verified, k, self)
        accepted = table.accepted
        draft: list[Judged] = []
        for i, token_id in enumerate(drafted_ids[:accepted]):
            draft.append(table.judged(i, self._push(token_id), "accepted"))
            if self.stop.finish:
                break
        emitted = tuple(drafted_ids[: len(draft)])

        # The rest was rejected, follows the rejection, or follows the end of the text.
        rest = range(len(draft), k)
        for i, piece in zip(rest, self.pieces.preview(drafted_ids[len(draft) : k]), strict=True):
            fate: Fate = "rejected" if i == table.accepted else "discarded"
            draft.append(table.judged(i, piece, fate))

        next_token = None
        if not self.stop.finish:
            next_id = table.token_ids[accepted][NEXT]
            source: Source = "resampled" if accepted < k else "bonus" if k else "sampled"
            next_token = table.next(self._push(next_id), source)
            emitted = (*emitted, next_id)
        return Round(
            index=index,
            draft=tuple(draft),
            next=next_token,
            emitted=emitted,
            draft_ms=None,
            verify_ms=None,
            kept=table.kept(),
        )

    def _push(self, token_id: int) -> str:
        piece = self.pieces.push(token_id)
        return piece + (self.pieces.flush() if self.stop.add(token_id, piece) else "")


class _Table:
    """A verdict as plain numbers, and the events that are made of them."""

    def __init__(self, verified: Verified, k: int, emitter: Emitter):
        self.k = k
        self.judges_whole_draft = RULES[emitter.rule].judges_whole_draft
        self.is_lossy = emitter.is_lossy
        self.token_text = emitter.token_text
        self.accepted = int(verified.accepted)
        self.residual_mass = verified.residual_mass.item()
        self.u_next = verified.u_next.item()
        self.accept_prob: list[float] = verified.accept_prob.tolist()
        self.block_prob: list[float] = verified.block_prob.tolist()
        self.distance: list[float] = verified.distance.tolist()
        self.u_accept: list[float] = verified.u_accept.tolist()
        self.token_ids: list[list[int]] = verified.token_ids.tolist()
        self.p, self.raw_p = verified.p.tolist(), verified.raw_p.tolist()
        self.q, self.raw_q = verified.q.tolist(), verified.raw_q.tolist()

    def judged(self, i: int, text: str, fate: Fate) -> Judged:
        was_judged = i <= self.accepted or self.judges_whole_draft
        u, accept_prob = (self.u_accept[i], self.accept_prob[i]) if was_judged else (None, None)
        distance = self.distance[i] if was_judged and self.is_lossy else None
        return Judged(
            id=self.token_ids[i][DRAFTED],
            text=text,
            p=self.p[i][DRAFTED],
            q=self.q[i][DRAFTED],
            raw_p=self.raw_p[i][DRAFTED],
            raw_q=self.raw_q[i][DRAFTED],
            u=u,
            accept_prob=accept_prob,
            fate=fate,
            top=self.top(i),
            distance=distance,
        )

    def kept(self) -> Kept | None:
        """How much of this draft each lossless rule keeps with these uniform numbers, if that is known."""
        if not self.k or not self.block_prob:
            return None
        probs = [self.p[i][DRAFTED] / self.q[i][DRAFTED] for i in range(self.k)]
        refused = (i for i, (u, prob) in enumerate(zip(self.u_accept, probs, strict=False)) if not u < prob)
        by_block = [i + 1 for i in range(self.k) if self.u_accept[i] < self.block_prob[i]]
        return Kept(speculative=next(refused, self.k), block=max(by_block, default=0))

    def next(self, text: str, source: Source) -> Next:
        i = self.accepted
        q, raw_q = (self.q[i][NEXT], self.raw_q[i][NEXT]) if i < self.k else (None, None)
        return Next(
            id=self.token_ids[i][NEXT],
            text=text,
            source=source,
            p=self.p[i][NEXT],
            q=q,
            raw_p=self.raw_p[i][NEXT],
            raw_q=raw_q,
            u=self.u_next,
            residual_mass=self.residual_mass if source == "resampled" else None,
            top=self.top(i),
        )

    def top(self, i: int) -> tuple[Alternative, ...]:
        """The alternatives at position i; after the last draft there is no q."""
        columns = (self.token_ids, self.p, self.q, self.raw_p, self.raw_q)
        rows = zip(*(column[i][ALTERNATIVES] for column in columns), strict=True)
        if i < self.k:
            return tuple((t, self.token_text(t), p, q, raw_p, raw_q) for t, p, q, raw_p, raw_q in rows)
        return tuple((t, self.token_text(t), p, None, raw_p, None) for t, p, _, raw_p, _ in rows)
