"""What the lessons put into the engine's loop: four mistakes that can be made in speculative decoding; and a
drafter that goes, in a few stops, from noise over the pair's own drafter to the target itself. At each stop
the engine judges it as it judges any drafter, so the text keeps the target's distribution; only how much is
rejected changes. No Params name these, so no run, request or trace can have one."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from specdemo.engine.draft import Draft, Drafter, one_hot_draft
from specdemo.engine.loop import Loop
from specdemo.engine.rules import Decision, Judge, speculative
from specdemo.engine.sampling import Sampler, Settings, draw, one_hot, probabilities
from specdemo.errors import PairError
from specdemo.events import Params, Prompt
from specdemo.events.trace import Trace
from specdemo.loading.pair import Pair
from specdemo.runtime.cuda import to_device
from specdemo.runtime.lm import LM
from specdemo.session import Alter, IsOver, begin, prepare
from specdemo.words.message import message

STOPS = 9  # an odd number: the one in the middle is the pair's own drafter
OWN = STOPS // 2
TOLD_TEMPERATURE = 2.0  # at which a drafter tells its q that tells another than it drew from


def replaces_from_p(p: Tensor, q: Tensor, drafted: Tensor, u_accept: Tensor, u_next: Tensor) -> Decision:
    """`speculative`, but a rejected draft is replaced by a draw from p, not from norm(max(p - q, 0))."""
    right = speculative(p, q, drafted, u_accept, u_next)
    p_next = p[right.accepted[None]]  # [1, V]
    return replace(right, next=draw(p_next, u_next)[0], residual_mass=p_next.sum(dtype=torch.float64))


def accepts_when_larger(p: Tensor, q: Tensor, drafted: Tensor, u_accept: Tensor, u_next: Tensor) -> Decision:
    """`speculative`, but a draft is accepted when p > q and never otherwise. u decides nothing: in its place
    0 accepts what has any chance, and so inf rejects the rest; rows without a draft keep their inf."""
    p_drafted, q_drafted = (one[: len(drafted)].gather(1, drafted[:, None])[:, 0] for one in (p, q))  # [K]
    u = torch.where(p_drafted > q_drafted, u_accept * 0.0, torch.inf)
    u = torch.where(u_accept.isinf(), torch.inf, u)
    right = speculative(p, q, drafted, u, u_next)
    return replace(right, accept_prob=(p_drafted > q_drafted).double())


@dataclass(eq=False)
class Misreporting(Drafter):
    """Drafts like another drafter, but tells another q than that one drew from: `told` of its draft."""

    drafter: Drafter
    told: Callable[[Draft], Tensor]  # [B, V]

    def keep(self, ids: list[int], path: list[int]) -> None:
        self.drafter.keep(ids, path)

    def start(self, ids: list[int]) -> None:
        self.drafter.start(ids)

    def propose(self, ids: list[int], k: int, u: list[float]) -> Draft:
        draft = self.drafter.propose(ids, k, u)
        return replace(draft, q=self.told(draft))


def _judged_by(rule: Judge) -> Alter:
    return lambda loop: replace(loop, verifier=replace(loop.verifier, rule=rule))


def _flattened(draft: Draft) -> Tensor:
    flat = draft.q ** (1 / TOLD_TEMPERATURE)
    return flat / flat.sum(-1, keepdim=True)


def _soft_greedy(loop: Loop) -> Loop:
    """The drafts are greedy, but the verdict is by p and q at temperature 1, unfiltered."""
    soft = replace(loop.verifier, sampler=Sampler(Params(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)))
    return replace(loop, verifier=soft, drafter=Misreporting(loop.drafter, lambda draft: draft.raw_q))


# The mistakes by their names, as the page's switches have them.
MISTAKES: dict[str, Alter] = {
    "from_p": _judged_by(replaces_from_p),
    "told": lambda loop: replace(loop, drafter=Misreporting(loop.drafter, _flattened)),
    "soft": _soft_greedy,
    "likelier": _judged_by(accepts_when_larger),
}
IN_TREES = ("told", "soft")  # those that can be made where several guesses are drafted at a place


class Shares(NamedTuple):
    """Of what q is mixed: q = noise · uniform + drafter · (the drafter's own q) + target · p. Their sum is
    1."""

    noise: float
    drafter: float
    target: float


def shares_at(stop: int) -> Shares:
    """The shares at a stop: 0 is noise, OWN the drafter as it is, and STOPS - 1 the target itself."""
    way = stop / OWN
    return Shares(1 - way, way, 0.0) if way <= 1 else Shares(0.0, 2 - way, way - 1)


@dataclass(eq=False)
class MixedDrafter(Drafter):
    """Drafts each token from a mixture of q's. Its p is a forward of the target over the draft so far, which
    writes into the target's cache what the verification writes there again; a drafter of any use would not
    have that time."""

    shares: Shares
    drafter: Drafter
    target: LM
    sampler: Sampler

    def start(self, ids: list[int]) -> None:
        self.drafter.start(ids)

    def propose(self, ids: list[int], k: int, u: list[float]) -> Draft:
        width, device = self.target.vocab_size, self.target.device
        self.target.reserve(len(ids) - 1, len(ids) + max(k, 1))
        text, drafts = list(ids), []
        for each in u[:k]:
            mixture = self._mixture(text, [each] * len(u))  # a captured drafter takes as many in every round
            if mixture is None:
                break
            token = draw(mixture[0], torch.tensor([each], dtype=torch.float64, device=device))  # [1]
            drafts.append((token, *mixture))
            text += token.tolist()
        if not drafts:
            return one_hot_draft([], width, device)
        tokens, q, raw_q = map(torch.cat, zip(*drafts, strict=True))
        # Greedily each of the three proposes one token (noise: any), and u chooses among them. The token is
        # then settled by the dice, like one that was looked up: q is one-hot at it.
        return Draft(len(drafts), tokens, one_hot(tokens, width) if self.sampler.greedy else q, raw_q)

    def _mixture(self, text: list[int], u: list[float]) -> tuple[Tensor, Tensor] | None:
        """q and raw_q [1, V] after the text; None where that is longer than the drafter can read. u: the same
        number at each place."""
        width = self.target.vocab_size
        q = torch.full((1, width), self.shares.noise / width, dtype=torch.float32, device=self.target.device)
        raw_q = q.clone()
        if own := self.shares.drafter:
            drafted = self.drafter.propose(text, 1, u)
            if drafted.k == 0:
                return None
            q, raw_q = q + own * drafted.q[:1], raw_q + own * drafted.raw_q[:1]
        if share := self.shares.target:
            p, raw_p = self._of_target(text)
            q, raw_q = q + share * p, raw_q + share * raw_p
        return q, raw_q

    def _of_target(self, text: list[int]) -> tuple[Tensor, Tensor]:
        """p and raw_p [1, V] after the text, of which the target's cache has all but the last token."""
        device = self.target.device
        place = to_device([text[-1], len(text) - 1], torch.long, device)
        logits = self.target.forward(place[:1], place[1])[-1:].float()
        seen = self.sampler.seen(text, self.target.vocab_size, device)
        numbers = self.sampler.numbers.items()
        settings = {name: torch.tensor(one, dtype=torch.float64, device=device) for name, one in numbers}
        return self.sampler.shape(logits, Settings(settings), seen), probabilities(logits)


def mixed(stop: int, loop: Loop) -> Loop:
    """The loop with the drafter of that stop. PairError where its own drafter cannot be mixed."""
    drafter, verifier = loop.drafter, loop.verifier
    keeps_state = verifier.target.states is not None or drafter.states is not None
    # Others draft as a block, by what the target has told of the text, or in tokens of their own, so they
    # have no q after tokens that they did not draw.
    if not drafter.follows_any or keeps_state:
        raise PairError(message("worlds_drafter"))
    if stop == OWN:
        return loop
    between = MixedDrafter(shares_at(stop), drafter, verifier.target, verifier.sampler)
    return replace(loop, drafter=between, ahead=False)


def world(pair: Pair, prompt: Prompt, params: Params, stop: int, is_over: IsOver = lambda: False) -> Trace:
    """A run with the drafter of a stop, untimed; it ends early once is_over is true."""
    with begin(pair, prepare(pair, prompt, params), False, is_over, partial(mixed, stop)) as run:
        for _ in run:
            pass
    return run.trace
