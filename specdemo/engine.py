"""The loop of speculative decoding (Leviathan et al. 2023, algorithm 1; Chen et al. 2023, algorithm 2).

Draft gamma tokens, run the target once over all of them, judge, take one token from the target itself, rewind. Plain
decoding is the same loop with nothing drafted. The drafter, the sampler, the rule, the text pieces and the end of the
text are handed in; whatever a round computes stays on the device until one packed copy brings its record home.
"""

import math
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
    """Draft, verify, judge, rewind. Between rounds the target's cache holds the text but for its last token."""
    start = perf_counter()
    k = min(task.gamma, task.room(len(ids)) - 1)
    dice = task.throw(index, k)
    before_draft = _mark(dice.next.device)
    draft = task.drafter.propose(ids, k, dice.draws)
    behind_draft = _mark(dice.next.device)

    last = torch.tensor(ids[-1:], dtype=torch.long, device=draft.ids.device)
    logits = task.target.forward(torch.cat([last, draft.ids]))  # [K+1, V]
    p = task.sampler(logits)
    decision = task.rule(p, draft.q, draft.ids, dice.coins[: len(draft.ids)], dice.next)
    record = bring_home(p, probabilities(logits), draft, decision, dice, task.alternatives, task.drafter.fill)
    task.drafter.learn(ids, record.ids, record.likely)

    draft_tokens, next_token, emitted, finish = _tell(task, record)
    task.target.rewind(len(ids) + len(emitted) - 1)
    round_ms = 1000 * (perf_counter() - start)
    draft_ms = _ms_between(before_draft, behind_draft)
    return Round(index, draft_tokens, next_token, emitted, draft_ms, round_ms - draft_ms), finish


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


def bring_home(p: Tensor, raw_p: Tensor, draft: Draft, decision: Decision, dice: Dice, alternatives: int, fill: int) -> Record:
    """Picks what the record needs out of p and raw_p [K+1, V] on the device and copies it in one piece.

    A float64 holds ids and probabilities alike without loss. Raises RuntimeError when a model's probabilities are NaN.
    """
    k, vocab_size = draft.q.shape
    likely = raw_p.topk(min(fill, vocab_size))  # [K+1, F]
    top = _likeliest(p, raw_p, draft, min(alternatives, vocab_size))  # [K+1, A]
    # Column 0: the drafted token (none in the last row); column 1: the next token, which counts in one row only.
    next_id = decision.next.expand(k + 1, 1)
    ids = torch.cat([torch.cat([draft.ids[:, None], next_id[:1]]), next_id, top], 1)  # [K+1, 2+A]
    silent = torch.full_like(ids[:1], torch.nan, dtype=torch.float64)  # behind a full draft the drafter says nothing
    of_q = torch.cat([draft.q.gather(1, ids[:k]), silent])
    of_raw_q = torch.cat([draft.raw_q.gather(1, ids[:k]), silent])
    chosen = torch.stack([p.gather(1, ids), of_q, raw_p.gather(1, ids), of_raw_q], -1)  # [K+1, 2+A, 4]
    numbers = torch.stack([decision.accepted.double(), decision.residual_mass, dice.next[0]])
    judged = torch.stack([dice.coins[:k], decision.accept_prob])  # [2, K]
    home = _copy_in_one(numbers, judged, ids, chosen, likely.indices, likely.values)
    (accepted, residual_mass, next_u), (coins, accept_probs), ids, chosen, likely_ids, likely_p = (part.tolist() for part in home)

    accepted = int(accepted)
    tops = [[(int(id), *_known(four)) for id, four in zip(ids[i][2:], chosen[i][2:], strict=True)] for i in range(k + 1)]
    drafted = [Place(int(ids[i][0]), *_known(chosen[i][0]), coins[i], accept_probs[i], tops[i]) for i in range(k)]
    next_place = Place(int(ids[0][1]), *_known(chosen[accepted][1]), next_u, None, tops[accepted])
    for model, raw in (("target", [place.raw_p for place in (*drafted, next_place)]), ("drafter", [place.raw_q for place in drafted])):
        if any(probability is None or math.isnan(probability) for probability in raw):
            raise RuntimeError(f"the {model}'s probabilities are not numbers (NaN): its weights are broken or its dtype is too narrow")
    pairs = [[(int(id), p) for id, p in zip(*row, strict=True)] for row in zip(likely_ids, likely_p, strict=True)]
    return Record(drafted, next_place, accepted, residual_mass, pairs)


def _likeliest(p: Tensor, raw_p: Tensor, draft: Draft, count: int) -> Tensor:
    """The ids [K+1, count] that are likeliest under target and drafter together. What the sampler has filtered out (all
    but one token when greedy) is ranked behind, by its raw likelihood."""
    if count == 0:
        return draft.ids.new_empty(len(p), 0)
    weight = torch.add(p, raw_p, alpha=1e-9)
    weight[:-1] += torch.add(draft.q, draft.raw_q, alpha=1e-9)
    return weight.topk(count).indices


def _copy_in_one(*tensors: Tensor) -> list[Tensor]:
    """The tensors on the host, as float64, through a single copy."""
    packed = torch.cat([tensor.flatten().double() for tensor in tensors]).cpu()
    parts = packed.split([tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]


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
    return Judged(place.id, text, place.p, place.q, place.raw_p, place.raw_q, u, accept_prob, fate, _top(task, place))


def _top(task: Task, place: Place) -> tuple[Alternative, ...]:
    return tuple((id, task.spell(id), *four) for id, *four in place.top)
