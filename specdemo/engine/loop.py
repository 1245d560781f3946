"""The loop of speculative decoding (Leviathan et al. 2023, algorithm 1; Chen et al. 2023, algorithm 2).

Draft gamma tokens, run the target once over all of them, judge, take one token from the target itself. Plain
decoding is the same loop with nothing drafted. The drafter, the sampler, the rule, the text pieces and the end of the
text are handed in. What a round computes is two steps, drafting and verifying, that never wait for the device: the same functions
run as they are or are recorded (record.py), and one packed copy brings the record home.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor
from torch.nn.functional import pad

from specdemo.engine.detokenize import Pieces
from specdemo.engine.drafters import Draft, Drafter
from specdemo.engine.rules import Decision
from specdemo.engine.sampling import Dice, Sampler, probabilities
from specdemo.events import Alternative, Judged, Next, Round
from specdemo.runtime.device import sent
from specdemo.runtime.graphs import Eager, Graphs
from specdemo.runtime.lm import LM

NOT_NUMBERS = (
    "the {}'s probabilities are not numbers (NaN): its weights are broken or its dtype is too narrow"
)


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
    run: Eager | Graphs


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


@torch.no_grad()  # not inference_mode: quanto's packed int4 and int2 weights fail under it
def _prefill(task: Task, ids: list[int]) -> Prefilled:
    start = perf_counter()
    forwards = task.target.prefill(torch.tensor(ids[:-1], dtype=torch.long))
    task.drafter.start(ids)
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()  # or the first round would be charged with it
    return Prefilled(forwards, 1000 * (perf_counter() - start))


@torch.no_grad()
def _round(task: Task, ids: list[int], index: int) -> tuple[Round, str | None]:
    """Draft, verify, judge. Between rounds the target's cache holds the text but for its last token."""
    start = perf_counter()
    k = min(task.gamma, task.room(len(ids)) - 1)
    dice = task.throw(index, task.run.rows(k, task.gamma))
    before_draft = _mark(dice.next.device)
    draft = task.drafter.propose(ids, k, dice.draws)
    behind_draft = _mark(dice.next.device)
    record = verify(task, ids, draft, dice)
    task.drafter.learn(ids, record.ids, record.likely)

    draft_tokens, next_token, emitted, finish = _tell(task, record)
    round_ms = 1000 * (perf_counter() - start)
    draft_ms = _ms_between(before_draft, behind_draft)
    return Round(index, draft_tokens, next_token, emitted, draft_ms, round_ms - draft_ms), finish


def verify(task: Task, ids: list[int], draft: Draft, dice: Dice) -> "Record":
    """One forward of the target over the last token and the draft, the verdict, and the record brought home."""
    rows = task.run.rows(draft.k, task.gamma)
    draft = draft.filled(rows)
    task.target.reach(len(ids) - 1, len(ids) + rows)
    widths = min(task.alternatives, task.target.vocab_size), min(task.drafter.fill, task.target.vocab_size)

    def step(place: Tensor, ids: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        start, last, _ = place.split(1)
        logits = task.target.forward(torch.cat([last, ids]), start[0])  # [B+1, V]
        return judge(logits, place, ids, *rest), logits, ids, *rest[:2]

    def judge(
        logits: Tensor, place: Tensor, ids: Tensor, q: Tensor, raw_q: Tensor, coins: Tensor, next_u: Tensor
    ) -> Tensor:
        asked = (
            torch.arange(rows, device=ids.device) < place[2]
        )  # [B]; the rows behind only fill a recording up
        drafted = asked & (
            q[:, 0].isnan().cumsum(0) == 0
        )  # the draft ends where the sampler had looked at too few tokens
        k = torch.where((raw_q[:, 0].isnan() & asked).any(), -1, drafted.sum())
        coins = torch.where(
            drafted, coins, torch.inf
        )  # what is not drafted is refused, and leaves p as it is
        q, raw_q = (torch.where(drafted[:, None], each, 0.0) for each in (q, raw_q))
        p = task.sampler(logits)  # [B+1, V]
        decision = task.rule(p, q, ids, coins, next_u)
        return pack(p, probabilities(logits), k, Draft(rows, ids, q, raw_q), decision, coins, next_u, *widths)

    inputs = (
        sent([len(ids) - 1, ids[-1], draft.k], torch.long, draft.ids.device),
        draft.ids,
        draft.q,
        draft.raw_q,
    )
    inputs = *inputs, dice.coins[:rows], dice.next
    key = ("verifying", rows, task.target.span, task.target.moves, task.sampler.key, task.rule, *widths)
    packed, logits, *drafted = task.run(key, step, *inputs)
    widened = False
    while (record := unpack(packed.cpu(), rows, *widths)) is None:
        widened = task.sampler.widen()
        packed = judge(
            logits, inputs[0], *drafted, *inputs[4:]
        )  # what was given in may have been written over by now
    if len(record.drafted) < draft.k and not widened:
        task.sampler.widen()
    return record


def _mark(device: torch.device) -> float | torch.cuda.Event:
    """Now, on the device's own time line: a GPU works behind the host, and asking it for the time must not stop the host."""
    if device.type != "cuda":
        return perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _ms_between(start: float | torch.cuda.Event, end: float | torch.cuda.Event) -> float:
    return 1000 * (end - start) if isinstance(start, float) else start.elapsed_time(end)


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


def pack(
    p: Tensor, raw_p: Tensor, k: Tensor, draft: Draft, decision: Decision, coins: Tensor, next_u: Tensor, alternatives: int, fill: int
) -> Tensor:  # fmt: skip
    """What the record needs out of p and raw_p [B+1, V], in one piece on the device. A float64 holds ids and probabilities
    alike without loss. k []: how many of the B rows are drafts, -1 where the drafter's probabilities are NaN."""
    rows = draft.k
    likely = raw_p.topk(fill)  # [B+1, F]
    top = _likeliest(p, raw_p, draft, alternatives)  # [B+1, A]
    # Column 0: the drafted token (none in the last row); column 1: the next token, which counts in one row only.
    next_id = decision.next.expand(rows + 1, 1)
    ids = torch.cat([torch.cat([draft.ids[:, None], next_id[:1]]), next_id, top], 1)  # [B+1, 2+A]
    of_q, of_raw_q = (pad(each.gather(1, ids[:rows]), (0, 0, 0, 1)) for each in (draft.q, draft.raw_q))
    chosen = torch.stack([p.gather(1, ids), of_q, raw_p.gather(1, ids), of_raw_q], -1)  # [B+1, 2+A, 4]
    judged = (k, decision.accepted, decision.residual_mass, next_u, coins, decision.accept_prob)
    return torch.cat(
        [tensor.flatten().double() for tensor in (*judged, ids, chosen, likely.indices, likely.values)]
    )


def unpack(packed: Tensor, rows: int, alternatives: int, fill: int) -> "Record | None":
    """A packed round's record, on the host. None when the sampler had looked at too few tokens for p. Raises RuntimeError when a
    model's probabilities are NaN."""
    width = 2 + alternatives
    shapes = (
        (),
        (),
        (),
        (),
        (rows,),
        (rows,),
        (rows + 1, width),
        (rows + 1, width, 4),
        (rows + 1, fill),
        (rows + 1, fill),
    )
    parts = packed.split([math.prod(shape) for shape in shapes])
    k, accepted, residual_mass, next_u, coins, accept_probs, ids, chosen, likely_ids, likely_p = (
        part.view(shape).tolist() for part, shape in zip(parts, shapes, strict=True)
    )
    k, accepted = int(k), int(accepted)
    if k < 0:
        raise RuntimeError(NOT_NUMBERS.format("drafter"))
    chosen[k] = [
        (p, math.nan, raw_p, math.nan) for p, _, raw_p, _ in chosen[k]
    ]  # behind its drafts the drafter says nothing
    tops = [
        [(int(id), *_known(four)) for id, four in zip(ids[i][2:], chosen[i][2:], strict=True)]
        for i in range(k + 1)
    ]
    drafted = [
        Place(int(ids[i][0]), *_known(chosen[i][0]), coins[i], accept_probs[i], tops[i]) for i in range(k)
    ]
    next_place = Place(int(ids[0][1]), *_known(chosen[accepted][1]), next_u, None, tops[accepted])
    places = (*drafted, next_place)
    if any(math.isnan(place.raw_p) for place in places):
        raise RuntimeError(NOT_NUMBERS.format("target"))
    if any(math.isnan(place.p) for place in places):
        return None
    pairs = [
        [(int(id), p) for id, p in zip(*row, strict=True)]
        for row in zip(likely_ids[: k + 1], likely_p, strict=False)
    ]
    return Record(drafted, next_place, accepted, residual_mass, pairs)


def _likeliest(p: Tensor, raw_p: Tensor, draft: Draft, count: int) -> Tensor:
    """The ids [K+1, count] that are likeliest under target and drafter together. What the sampler has filtered out (all
    but one token when greedy) is ranked behind, by its raw likelihood."""
    if count == 0:
        return draft.ids.new_empty(len(p), 0)
    weight = torch.add(p, raw_p, alpha=1e-9)
    weight[:-1] += torch.add(draft.q, draft.raw_q, alpha=1e-9)
    return weight.topk(count).indices


def _known(four: list[float]) -> tuple[float, float | None, float, float | None]:
    """p, q, raw_p, raw_q; NaN stands for "the drafter says nothing"."""
    p, q, raw_p, raw_q = four
    return p, None if math.isnan(q) else q, raw_p, None if math.isnan(raw_q) else raw_q


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
    for place, piece in zip(left, task.pieces.preview([place.id for place in left]), strict=True):
        i = len(tokens)
        fate = "rejected" if i == record.accepted else "discarded"
        tokens.append(_judged(task, place, piece, fate, was_judged=i <= record.accepted))

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
    return Judged(
        place.id, text, place.p, place.q, place.raw_p, place.raw_q, u, accept_prob, fate, _top(task, place)
    )


def _top(task: Task, place: Place) -> tuple[Alternative, ...]:
    return tuple((id, task.spell(id), *four) for id, *four in place.top)
