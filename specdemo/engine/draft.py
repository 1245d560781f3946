"""What the loop takes from whatever drafts: a `Draft`, and how long it may be. Drafters stand in `drafters/`;
one that drafts nothing and one that is given its draft stand here."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from specdemo.engine.sampling import Sampler, Settings, masked, one_hot, probabilities
from specdemo.events import LIMITS, Gamma
from specdemo.events.params import MOST_NODES
from specdemo.events.speedup import NO_COST, DraftingCost, expected_speedup
from specdemo.runtime.cuda import to_device
from specdemo.runtime.states import States
from specdemo.runtime.steps import AUTO_ROWS

LONGEST_DRAFT = int(LIMITS["gamma"].largest)  # tokens in a draft
MOST_DRAFTED = max(LONGEST_DRAFT, MOST_NODES)  # tokens in a draft or a tree
EXPECTED, WEIGHT = 0.7, 4.0  # before the first verdict: this acceptance rate, as if seen in so many verdicts
HALF_LIFE = 32  # verdicts, after which one counts half
# Where drafting does not pay, so many rounds draft nothing; then so many verdicts tell whether it does now.
PAUSE, TRIAL = 32, 8
# What a drafted token costs besides its drafting and the experts that it reads: a row in the target's
# forward, in parts of a plain one. It was 0.03 to 0.08 for the embedded target on a CPU, and was not measured
# on a GPU.
ROW_COST = 0.05
# What a draft has of each row, and what it is in a row that only fills a step.
FILLED = {"ids": 0, "q": 0.0, "raw_q": 0.0, "sure": 1.0, "parents": -1, "fed": -1}


@dataclass(frozen=True)
class Draft:
    """k drafted tokens and the distributions that they were drawn from, on the target's device and at its
    width V; k may be 0. There may be more rows than k, B in all, which only fill a captured step. dropped:
    how many tokens the drafter made besides these and dropped itself, because it was not sure enough.
    parents: of a tree, the number of the token that each follows; -1: the text. fed: of a tree, which of the
    tokens that were shown to the drafter each is; -1: it was not. logits: what ids, q and raw_q come from,
    where the drafter is; of a tree, those after the text and after each token that was shown to the drafter.
    None: from no model."""

    k: int
    ids: Tensor  # [B] int64
    q: Tensor  # [B, V] float32: ids[i] was drawn from q[i]
    raw_q: Tensor  # [B, V] float32: the same at temperature 1, unfiltered
    sure: Tensor | None = None  # [B] float32: how sure the drafter is of each place; None: see `is_unsure`
    dropped: int = field(default=0, kw_only=True)
    parents: Tensor | None = field(default=None, kw_only=True)  # [B] int64; None: each follows the one before
    fed: Tensor | None = field(default=None, kw_only=True)  # [B] int64; None: the first, the second, ...
    logits: Tensor | None = field(default=None, kw_only=True)  # [B, V]

    @classmethod
    def drawn(cls, ids: Tensor, q: Tensor | None, logits: Tensor, of_graph: Tensor | None = None) -> "Draft":
        """Makes a draft of what Sampler.sample gives for the drafter's logits [B, V], or for those of a graph
        in their place."""
        q = one_hot(ids, logits.shape[-1]) if q is None else q
        raw_q = probabilities(logits if of_graph is None else of_graph)
        return cls(len(ids), ids, q, raw_q, logits=logits)

    @property
    def _rows(self) -> list[tuple[str, Tensor]]:
        parts = ((name, getattr(self, name)) for name in FILLED)
        return [(name, part) for name, part in parts if part is not None]

    def on(self, device: torch.device) -> "Draft":
        return replace(self, **{name: part.to(device) for name, part in self._rows})

    def padded(self, rows: int) -> "Draft":
        """Fills the draft up to `rows` rows, each of which drafts token 0, with q = 0."""
        new = rows - len(self.ids)
        if new == 0:
            return self
        below = {1: (0, new), 2: (0, 0, 0, new)}  # by the number of dimensions
        parts = {name: pad(part, below[part.ndim], value=FILLED[name]) for name, part in self._rows}
        return replace(self, **parts)


class Drafter:
    """Drafts the tokens of each round. `ids` is always the whole text so far, prompt included, as a list on
    the host.

    wants_top: how many of the target's likeliest tokens at each position `learn` uses; 0 if it learns
    nothing. follows_any: whether `propose` takes any text that goes on after the prompt, also one that it has
    not drafted and the target has not read."""

    wants_top = 0
    follows_any = False

    @property
    def states(self) -> States | None:
        """Gives the states of its model's recurrent layers, if it has such a model."""
        return None

    def start(self, ids: list[int]) -> None:
        """Takes the prompt, before the first round."""

    def propose(self, ids: list[int], k: int, u: list[float]) -> Draft:
        """Drafts at most k tokens to follow `ids`, each drawn from the q that is returned with it. u: k or
        more uniform numbers to draw them with."""
        raise NotImplementedError

    def keep(self, ids: list[int], path: list[int]) -> None:
        """Takes note after each round of the path: the numbers, among the tokens that it was shown, of those
        that were accepted. ids: the text before the round."""

    def skip(self, ids: list[int]) -> None:
        """Takes note of a round after `ids` in which it does not draft, in place of `propose`."""

    def learn(self, ids: list[int], draft: list[int], likely: list[list[tuple[int, float]]]) -> None:
        """Learns after each round, where `wants_top` is not 0. ids: the text before the round. likely[i]: the
        target's `wants_top` likeliest (token, raw_p) after ids + draft[:i]."""


def is_unsure(raw_q: Tensor, confidence: float | Tensor, sure: Tensor | None = None) -> Tensor:
    """Says whether a draft ends before each token: raw_q [N, V] -> [N] bool, true where the drafter's
    likeliest token has a probability below `confidence`. NaN is not below it, so that broken weights are
    noticed. sure [N]: what counts in place of that probability, where a drafter has a measure of its own
    (DSpark's confidence head).

    It looks at the distribution and never at the token that is drawn from it. So whether a token is drafted
    depends on the tokens before it alone, and speculation stays lossless. The verifier applies this to every
    draft. A drafter that can read numbers without waiting may end its loop after such a place."""
    return (raw_q.amax(-1) if sure is None else sure).double() < confidence


def one_hot_draft(ids: list[int], vocab_size: int, device: torch.device) -> Draft:
    """Drafts without a distribution: q is one-hot, so that no rule has to know."""
    tensor = to_device(ids, torch.long, device)
    q = one_hot(tensor, vocab_size)
    return Draft(len(ids), tensor, q, q)


def draft_in_turn(
    predict: Callable[[Tensor | None], Tensor],
    u: Tensor,
    sampler: Sampler,
    settings: Settings,
    seen: Tensor | None,
    stops_below: float,
    of_graph: Tensor | None = None,
) -> Draft:
    """Drafts one token after another, each after those before it: a token for each of u [B].

    predict: is given the token drafted last [1], None at first, and returns the logits [1, V] of the next.
    seen: that of the text before, see Sampler.seen. stops_below: the draft ends after a place at which the
    drafter is less sure; 0 on a GPU, which would have to be waited for at each token. of_graph [B, V]: the
    logits of a graph, which the tokens are drawn from in place of those predicted; these are the draft's.

    Where the sampler has a grammar, each token is waited for, and the draft ends where the drafter has none
    that is allowed. How sure the drafter is of a place then counts only what is allowed there."""
    token, drafted, qs, predicted, sures = None, [], [], [], []
    for i, u_token in enumerate(u.split(1)):
        prediction = predict(token)  # [1, V]
        logits = prediction if of_graph is None else of_graph[i : i + 1]  # [1, V]
        shaped = logits
        if sampler.grammar is not None:
            allowed = sampler.grammar.after([int(one) for one in drafted])
            if allowed is None:  # the text has ended
                break
            shaped = masked(logits, allowed.to(logits.device))
            if bool((shaped == -torch.inf).all()):
                break
        predicted.append(prediction)
        token, q = sampler.sample(shaped, u_token, settings, seen)  # [1], [1, V]
        if seen is not None:
            seen = seen.index_add(0, token, torch.ones_like(u_token, dtype=seen.dtype))
        drafted.append(token)
        if q is not None:
            qs.append(q)
        if sampler.grammar is not None:
            sures.append(probabilities(shaped).amax(-1))
        if stops_below and is_unsure(probabilities(shaped), stops_below):
            break  # the verifier drops this token
    if not drafted:
        return one_hot_draft([], prediction.shape[-1], prediction.device)
    draft = Draft.drawn(torch.cat(drafted), torch.cat(qs) if qs else None, torch.cat(predicted), of_graph)
    return replace(draft, sure=torch.cat(sures) if sures else None)


def draft_at_once(
    logits: Tensor,
    u: Tensor,
    sampler: Sampler,
    settings: Settings,
    seen: Tensor | None,
    of_graph: Tensor | None = None,
) -> Draft:
    """Drafts a token from each row of the logits [B, V], none of which depends on the tokens drafted before
    it; what the sampler adjusts may. seen, of_graph: those of `draft_in_turn`."""
    if sampler.penalises or sampler.grammar is not None:
        rows = iter(logits.split(1))
        return draft_in_turn(lambda _: next(rows), u, sampler, settings, seen, 0.0, of_graph)
    drawn = sampler.sample(logits if of_graph is None else of_graph, u, settings)
    return Draft.drawn(*drawn, logits, of_graph)


class NoDrafter(Drafter):
    """Drafts nothing, for plain decoding."""

    def __init__(self, vocab_size: int, device: torch.device):
        self.nothing = one_hot_draft([], vocab_size, device)

    def propose(self, ids: list[int], k: int, u: list[float]) -> Draft:
        return self.nothing


@dataclass(eq=False)
class GivenDrafter(Drafter):
    """Drafts, in one round, tokens that somebody else has made: the words that a visitor of the page guesses.
    No drafting method of Params chooses it; see `one_round` in session.py. q is one-hot at each of them, so
    by the speculative rule a token is accepted with probability p."""

    ids: list[int]
    vocab_size: int
    device: torch.device

    def propose(self, ids: list[int], k: int, u: list[float]) -> Draft:
        return one_hot_draft(self.ids[:k], self.vocab_size, self.device)


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
            self.pause -= 1
            if not self.is_paused:  # the same rate counts as if seen in few verdicts
                self.accepted, self.judged = WEIGHT * self.accepted / self.judged, WEIGHT
                self.trial, self.gamma = TRIAL, self._best()
            return
        kept = 0.5 ** (1 / HALF_LIFE)
        for verdict in [1] * accepted + [0] * rejected:
            self.accepted = kept * self.accepted + verdict
            self.judged = kept * self.judged + 1
            self.trial -= 1
        self.gamma = self._best()
        if self.trial <= 0 and self._speedup(self.gamma) <= 1:
            self.gamma, self.pause = 0, PAUSE

    def _best(self) -> int:
        return max(self.lengths, key=self._speedup)

    def _speedup(self, gamma: int) -> float:
        cost = self.cost.of_a_draft(gamma) / gamma + ROW_COST
        return expected_speedup(self.accepted / self.judged, gamma, cost)
