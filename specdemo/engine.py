"""The loop of speculative decoding (Leviathan et al. 2023, algorithm 1; Chen et al. 2023, algorithm 2).

Draft gamma tokens, run the target once over all of them, judge, take one token from the target itself, rewind. Plain
decoding is the same loop with nothing drafted. The drafter, the sampler, the rule, the text pieces and the end of the
text are handed in; whatever a round computes stays on the device until one packed copy brings its record home.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor

from specdemo.drafters import Draft, Drafter
from specdemo.events import Alternative, Judged, Next, Round
from specdemo.lm import LM
from specdemo.rules import Decision
from specdemo.sampling import Dice, Sampler, probabilities
from specdemo.text import Pieces


@dataclass(frozen=True)
class Prefilled:
    """The prompt is in both caches (but for its last token, which the first round feeds)."""

    forwards: int  # of the target
    ms: float


@dataclass(frozen=True)
class Task:
    """One run's parts. `room(n)`: how many tokens may still follow a text of n. `ending(id, piece)`: called for each
    emitted token in order, says "eos", "stop", "length" or None. `throw(round, k)`: the round's dice."""

    target: LM
    drafter: Drafter
    sampler: Sampler
    rule: Callable[..., Decision]
    gamma: int
    prompt_ids: list[int]
    room: Callable[[int], int]
    ending: Callable[[int, str], str | None]
    eos: frozenset[int]  # a draft ends behind one of these
    throw: Callable[[int, int], Dice]
    pieces: Pieces
    spell: Callable[[int], str]  # a token's text out of context, for the alternatives
    alternatives: int


def decode(task: Task) -> Iterator[Prefilled | Round]:
    """Yields Prefilled, then one Round per target forward; returns why the text ended: "eos", "stop" or "length".

    Pulled: nothing is computed between a `yield` and the consumer's next request, and no clock runs there.
    """
    ids = list(task.prompt_ids)
    yield _prefill(task, ids)
    for index in range(task.room(len(ids)) + 1):
        round, finish = _round(task, ids, index)
        ids += round.emitted
        yield round
        if finish:
            return finish
    raise AssertionError("every round emits a token, so the text must have ended")


@torch.inference_mode()
def _prefill(task: Task, ids: list[int]) -> Prefilled:
    start = perf_counter()
    forwards = task.target.prefill(torch.tensor(ids[:-1], dtype=torch.long))
    task.drafter.start(ids)
    return Prefilled(forwards, 1000 * (perf_counter() - start))


@torch.inference_mode()
def _round(task: Task, ids: list[int], index: int) -> tuple[Round, str | None]:
    """Draft, verify, judge, rewind. Between rounds the target's cache holds the text but for its last token."""
    start = perf_counter()
    k = min(task.gamma, task.room(len(ids)) - 1)
    dice = task.throw(index, k)
    draft = task.drafter.propose(ids, k, dice.draws)
    drafted = perf_counter()

    last = torch.tensor(ids[-1:], dtype=torch.long, device=draft.ids.device)
    logits = task.target.forward(torch.cat([last, draft.ids]))  # [K+1, V]
    p = task.sampler(logits)
    decision = task.rule(p, draft.q, draft.ids, dice.coins[: len(draft.ids)], dice.next)
    record = bring_home(p, probabilities(logits), draft, decision, dice, task.alternatives, task.drafter.fill)
    task.drafter.learn(ids, record.ids, record.likely)

    draft_tokens, next_token, emitted, finish = _tell(task, record)
    task.target.rewind(len(ids) + len(emitted) - 1)
    end = perf_counter()
    return Round(index, draft_tokens, next_token, emitted, 1000 * (drafted - start), 1000 * (end - drafted)), finish


@dataclass(frozen=True)
class Place:
    """One of a round's K+1 places: a token and what both models thought of it there."""

    id: int
    p: float
    q: float | None
    raw_p: float
    raw_q: float | None
    u: float
    accept_prob: float | None
    top: list[tuple[int, float, float | None, float, float | None]]  # id, p, q, raw_p, raw_q


@dataclass(frozen=True)
class Record:
    """A round as plain numbers on the host: the K drafted places, and that of the target's own token."""

    drafted: list[Place]
    next: Place
    accepted: int
    residual_mass: float
    likely: list[list[tuple[int, float]]]  # for the drafter to learn from: K+1 x (id, raw_p)

    @property
    def ids(self) -> list[int]:
        return [place.id for place in self.drafted]


def bring_home(p: Tensor, raw_p: Tensor, draft: Draft, decision: Decision, dice: Dice, alternatives: int, fill: int) -> Record:
    """Picks what the record needs out of p and raw_p [K+1, V] on the device and copies it in one piece.

    A float64 holds ids and probabilities alike without loss. Raises RuntimeError when a model's probabilities are NaN. The drafter says nothing about the place behind a full draft: q is None there.
    """
    k, vocab_size = draft.q.shape
    silent = torch.full_like(p[:1], torch.nan)
    q, raw_q = torch.cat([draft.q, silent]), torch.cat([draft.raw_q, silent])  # [K+1, V]
    four = torch.stack([p, q, raw_p, raw_q], -1)  # [K+1, V, 4]

    # Likeliest under both together; among what the sampler has filtered out (all but one when greedy), by raw likelihood.
    weight = p + q.nan_to_num(0.0) + 1e-9 * (raw_p + raw_q.nan_to_num(0.0))
    top = weight.topk(min(alternatives, vocab_size)).indices  # [K+1, A]
    likely = raw_p.topk(min(fill, vocab_size))  # [K+1, F]
    n = decision.accepted[None]  # [1]
    parts = [
        n,
        decision.residual_mass[None],
        draft.ids,
        _pick(four[:k], draft.ids[:, None]),
        dice.coins[:k],
        decision.accept_prob,
        decision.next[None],
        _pick(four[n], decision.next[None, None]),
        dice.next,
        top,
        _pick(four, top),
        likely.indices,
        likely.values,
    ]
    home = torch.cat([part.flatten().double() for part in parts]).tolist()  # the round's one copy

    take = iter(home).__next__
    accepted, mass = int(take()), take()
    ids = [int(take()) for _ in range(k)]
    fours = [_four(take) for _ in range(k)]
    coins = [take() for _ in range(k)]
    accept_probs = [take() for _ in range(k)]
    next_id, next_four, next_u = int(take()), _four(take), take()
    _refuse_nan("target", next_four[2])
    for four_of_draft in fours:
        _refuse_nan("drafter", four_of_draft[3])
    top_ids = [[int(take()) for _ in range(top.shape[1])] for _ in range(k + 1)]
    tops = [[(id, *_four(take)) for id in row] for row in top_ids]
    likely_ids = [[int(take()) for _ in range(likely.indices.shape[1])] for _ in range(k + 1)]
    pairs = [[(id, take()) for id in row] for row in likely_ids]
    return Record(
        drafted=[Place(ids[i], *fours[i], coins[i], accept_probs[i], tops[i]) for i in range(k)],
        next=Place(next_id, *next_four, next_u, None, tops[accepted]),
        accepted=accepted,
        residual_mass=mass,
        likely=pairs,
    )


def _pick(four: Tensor, ids: Tensor) -> Tensor:
    """four [N, V, 4], ids [N, A] -> [N, A, 4]."""
    return four.gather(1, ids[..., None].expand(-1, -1, 4))


def _refuse_nan(model: str, probability: float | None) -> None:
    if probability is None or probability != probability:
        raise RuntimeError(f"the {model}'s probabilities are not numbers (NaN): its weights are broken or its dtype is too narrow")


def _four(take) -> tuple[float, float | None, float, float | None]:
    """p, q, raw_p, raw_q; NaN stands for "the drafter says nothing"."""
    p, q, raw_p, raw_q = take(), take(), take(), take()
    return p, (q if q == q else None), raw_p, (raw_q if raw_q == raw_q else None)


def _tell(task: Task, record: Record) -> tuple[tuple[Judged, ...], Next | None, tuple[int, ...], str | None]:
    """The round as events: fates, text pieces, and where the text ends."""
    # A draft ends behind an eos. A drafter on the device cannot know that it has drafted one, so the rest is cut here.
    k = next((i + 1 for i, id in enumerate(record.ids) if id in task.eos), len(record.drafted))
    accepted = min(record.accepted, k)
    tokens: list[Judged] = []
    emitted: list[int] = []
    finish = None

    for place in record.drafted[:accepted]:
        piece = task.pieces.push(place.id)
        finish = task.ending(place.id, piece)
        emitted.append(place.id)
        tokens.append(_judged(task, place, piece + (task.pieces.flush() if finish else ""), "accepted"))
        if finish:
            break

    # What is left was refused, stands behind the refusal, or stands behind the end of the text.
    left = record.drafted[len(tokens) : k]
    for place, piece in zip(left, task.pieces.preview([place.id for place in left])):
        i = len(tokens)
        fate = "rejected" if i == record.accepted and not finish else "discarded"
        was_judged = fate == "rejected" or i < record.accepted
        tokens.append(_judged(task, place, piece, fate, was_judged))

    if finish:
        return tuple(tokens), None, tuple(emitted), finish
    place = record.next
    source = "resampled" if accepted < k else "bonus" if k else "sampled"
    piece = task.pieces.push(place.id)
    finish = task.ending(place.id, piece)
    next_token = Next(
        place.id, piece + (task.pieces.flush() if finish else ""), source, place.p, place.q, place.raw_p, place.raw_q,
        place.u, record.residual_mass if source == "resampled" else None, _top(task, place),
    )  # fmt: skip
    return tuple(tokens), next_token, (*emitted, place.id), finish


def _judged(task: Task, place: Place, text: str, fate: str, was_judged: bool = True) -> Judged:
    u, accept_prob = (place.u, place.accept_prob) if was_judged else (None, None)
    return Judged(place.id, text, place.p, place.q, place.raw_p, place.raw_q, u, accept_prob, fate, _top(task, place))


def _top(task: Task, place: Place) -> tuple[Alternative, ...]:
    return tuple((id, task.spell(id), *four) for id, *four in place.top)
