"""From a verdict to the round that everybody reads: fates, text pieces, and where the text ends."""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, fields

from specdemo.engine.detokenize import Pieces
from specdemo.engine.grammar import Allowed
from specdemo.engine.step import ALTERNATIVES, DRAFTED, NEXT, VerifiedOnHost
from specdemo.events import RULES, Alternative, Fate, Finish, Judged, JudgedInTree, Kept, Next, Round, Source


class StopCriteria:
    """Takes each emitted token, in order, and says whether the text ends with it, and why: eos before stop
    before length.

    eos: ids that end a text. stops: strings that end it. room: how many tokens the text may still get, at
    least 1. stop_ids: the ids of special tokens that are stop strings: they add nothing to the text, so that
    no string is found there."""

    def __init__(
        self,
        eos: frozenset[int],
        stops: tuple[str, ...],
        room: int,
        stop_ids: frozenset[int] = frozenset(),
    ):
        self.eos = eos
        self.stops = stops
        self.stop_ids = stop_ids
        self.room = room
        self.finish: Finish | None = None
        self._tail = ""  # the last characters, as many as a stop string that began before this token can need

    def add(self, token_id: int, piece: str) -> Finish | None:
        self.room -= 1
        self._tail = self._tail[-max(map(len, self.stops), default=1) :] + piece
        if token_id in self.eos:
            self.finish = "eos"
        elif token_id in self.stop_ids or any(stop in self._tail for stop in self.stops):
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
    context, for the alternatives. rule: the name of the rule that judged. is_lossy: whether its distance from
    the target is recorded."""

    pieces: Pieces
    token_text: Callable[[int], str]
    stop: StopCriteria
    rule: str = "speculative"
    is_lossy: bool = False

    def tokens(self, verdict: VerifiedOnHost, k: int) -> Tokens:
        """What the verdict on a draft of k tokens says without its text."""
        drafted_ids, accepted = self._drafted(verdict, k), verdict.accepted
        path, rejected = range(accepted), accepted < len(drafted_ids)
        if verdict.is_tree:
            drafted_ids, path = verdict.drafted(k), verdict.whole_path
            rejected = any(verdict.judged[number] and not verdict.path[number] for number in range(k))
        next_id = verdict.token_ids[verdict.position_of_next][NEXT]
        emitted = (*(drafted_ids[number] for number in path), next_id)
        end_ids = self.stop.eos | self.stop.stop_ids
        ends = 0 < self.stop.room <= len(emitted) or not end_ids.isdisjoint(emitted)
        return Tokens(accepted, rejected, emitted, ends)

    def _drafted(self, verdict: VerifiedOnHost, k: int) -> list[int]:
        """The drafted tokens up to an eos, which ends a draft. A drafter on the device cannot know that it
        has drafted one, so the rest, which was not judged, is cut here."""
        drafted_ids = verdict.drafted(k)
        k = next((i + 1 for i, token_id in enumerate(drafted_ids) if token_id in self.stop.eos), k)
        return drafted_ids[:k]

    def emit(self, index: int, verdict: VerifiedOnHost, k: int, allowed: Allowed | None = None) -> Round:
        """Round `index`, of a verified draft of k tokens, without its times; `stop.finish` then says whether
        the text has ended. allowed: what the grammar allows; None without one."""
        if verdict.is_tree:
            return self._emit_tree(index, verdict, k)
        drafted_ids = self._drafted(verdict, k)
        k, accepted = len(drafted_ids), verdict.accepted
        events = _Events(verdict, k, self, allowed)
        draft: list[Judged] = []
        for i, token_id in enumerate(drafted_ids[:accepted]):
            draft.append(events.judged(i, self._push(token_id), "accepted"))
            if self.stop.finish:
                break
        emitted = tuple(drafted_ids[: len(draft)])

        # The rest was rejected, follows the rejection, or follows the end of the text.
        rest = range(len(draft), k)
        for i, piece in zip(rest, self.pieces.preview(drafted_ids[len(draft) : k]), strict=True):
            fate: Fate = "rejected" if i == accepted else "discarded"
            draft.append(events.judged(i, piece, fate))

        next_token = None
        if not self.stop.finish:
            next_id = verdict.token_ids[accepted][NEXT]
            source: Source = "resampled" if accepted < k else "bonus" if k else "sampled"
            next_token = events.next(self._push(next_id), source)
            emitted = (*emitted, next_id)
        return Round(
            index=index,
            draft=tuple(draft),
            next=next_token,
            emitted=emitted,
            draft_ms=None,
            verify_ms=None,
            kept=events.kept(),
            experts_read=verdict.experts(k),
        )

    def _emit_tree(self, index: int, verdict: VerifiedOnHost, k: int) -> Round:
        drafted_ids = verdict.drafted(k)
        parents = [None if parent < 0 else parent for parent in verdict.parents]
        counted: dict[int, int] = {}  # the tree's numbers -> those in the draft, which ends after an eos
        depths: dict[int | None, int] = {None: 0}
        states: dict[int | None, Pieces] = {None: copy(self.pieces)}  # of the text up to each token
        texts: dict[int, str] = {}
        for number, token_id in enumerate(drafted_ids):
            parent = parents[number]
            follows = parent is None or (parent in counted and drafted_ids[parent] not in self.stop.eos)
            if follows and depths[parent] + 1 < self.stop.room:
                counted[number], depths[number] = len(counted), depths[parent] + 1
                state = states[number] = copy(states[parent])
                texts[number] = state.push(token_id) + state.flush()
        kept: list[int] = []
        for number in verdict.whole_path:
            texts[number] = self._push(drafted_ids[number])
            kept.append(number)
            if self.stop.finish:
                break

        events = _Events(verdict, len(verdict.judged), self, None)
        draft: list[JudgedInTree] = []
        reached = {None, *(kept[:-1] if self.stop.finish else kept)}  # nothing follows the end of the text
        for number in counted:
            parent, refused = parents[number], verdict.judged[number] and not verdict.path[number]
            rejected = refused and parent in reached
            fate: Fate = "accepted" if number in kept else "rejected" if rejected else "discarded"
            token = events.judged(number, texts[number], fate)
            own = {field.name: getattr(token, field.name) for field in fields(token)}
            mass = verdict.masses[number] if refused else None
            parent = None if parent is None else counted[parent]
            draft.append(JudgedInTree(**own, parent=parent, residual_mass=mass))
        emitted = [drafted_ids[number] for number in kept]
        next_token = None
        if not self.stop.finish:
            emitted.append(verdict.token_ids[verdict.refused][NEXT])
            source: Source = "bonus" if verdict.refused == len(verdict.judged) else "resampled"
            next_token = events.next(self._push(emitted[-1]), source)
        return Round(index, tuple(draft), next_token, tuple(emitted), draft_ms=None, verify_ms=None)

    def _push(self, token_id: int) -> str:
        """The text of the next token. One that ends the text is no part of it, even if it is an ordinary
        token."""
        piece = "" if token_id in self.stop.eos else self.pieces.push(token_id)
        return piece + (self.pieces.flush() if self.stop.add(token_id, piece) else "")


class _Events:
    """Makes the events of a verdict on a draft of k tokens."""

    def __init__(self, verdict: VerifiedOnHost, k: int, emitter: Emitter, allowed: Allowed | None):
        self.verdict = verdict
        self.allowed = allowed
        self.k = k
        self.judges_whole_draft = RULES[emitter.rule].judges_whole_draft
        self.is_lossy = emitter.is_lossy
        self.token_text = emitter.token_text

    def judged(self, i: int, text: str, fate: Fate) -> Judged:
        verdict = self.verdict
        was_judged = i <= verdict.accepted or self.judges_whole_draft
        if verdict.is_tree:
            was_judged = verdict.judged[i]
        u, accept_prob = (verdict.u_accept[i], verdict.accept_prob[i]) if was_judged else (None, None)
        distance = verdict.distance[i] if was_judged and self.is_lossy else None
        return Judged(
            id=verdict.token_ids[i][DRAFTED],
            text=text,
            p=verdict.p[i][DRAFTED],
            q=verdict.q[i][DRAFTED],
            raw_p=verdict.raw_p[i][DRAFTED],
            raw_q=verdict.raw_q[i][DRAFTED],
            u=u,
            accept_prob=accept_prob,
            fate=fate,
            top=self.top(i),
            distance=distance,
            allowed=self.count(i),
            forbidden=self.is_forbidden(i),
        )

    def count(self, i: int) -> int | None:
        """How many tokens the grammar allows at position i; None without one."""
        return None if self.allowed is None else self.allowed.counts[i]

    def is_forbidden(self, i: int) -> bool:
        """Whether the grammar forbids the drafted token."""
        return self.allowed is not None and not self.allowed.masks[i, self.verdict.token_ids[i][DRAFTED]]

    def kept(self) -> Kept | None:
        """How much of this draft each lossless rule keeps with these uniform numbers, if that is known."""
        verdict = self.verdict
        if not self.k or not verdict.block_prob:
            return None
        probs = [verdict.p[i][DRAFTED] / verdict.q[i][DRAFTED] for i in range(self.k)]
        refused = (
            i for i, (u, prob) in enumerate(zip(verdict.u_accept, probs, strict=False)) if not u < prob
        )
        by_block = [i + 1 for i in range(self.k) if verdict.u_accept[i] < verdict.block_prob[i]]
        return Kept(speculative=next(refused, self.k), block=max(by_block, default=0))

    def next(self, text: str, source: Source) -> Next:
        verdict = self.verdict
        i = verdict.position_of_next
        q, raw_q = (verdict.q[i][NEXT], verdict.raw_q[i][NEXT]) if i < self.k else (None, None)
        return Next(
            id=verdict.token_ids[i][NEXT],
            text=text,
            source=source,
            p=verdict.p[i][NEXT],
            q=q,
            raw_p=verdict.raw_p[i][NEXT],
            raw_q=raw_q,
            u=verdict.u_next,
            residual_mass=verdict.residual_mass if source == "resampled" else None,
            top=self.top(i),
            allowed=self.count(i),
        )

    def top(self, i: int) -> tuple[Alternative, ...]:
        """The alternatives at position i; after the last draft there is no q."""
        verdict = self.verdict
        tokens = ((t, self.token_text(t)) for t in verdict.token_ids[i][ALTERNATIVES])
        p, raw_p = verdict.p[i][ALTERNATIVES], verdict.raw_p[i][ALTERNATIVES]
        if i == self.k:
            rows = zip(tokens, p, raw_p, strict=True)
            return tuple((*token, p, None, raw_p, None) for token, p, raw_p in rows)
        q, raw_q = verdict.q[i][ALTERNATIVES], verdict.raw_q[i][ALTERNATIVES]
        rows = zip(tokens, p, q, raw_p, raw_q, strict=True)
        return tuple((*token, p, q, raw_p, raw_q) for token, p, q, raw_p, raw_q in rows)
