"""The target's part of a round: one forward over the draft, the verdict, and the numbers of the trace,
which come home in one copy. Nothing in the step waits for the device, so that it can be captured."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from math import inf, isnan
from typing import Annotated, Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from specdemo.engine.draft import Draft, is_unsure
from specdemo.engine.grammar import Allowed
from specdemo.engine.rules import Judge
from specdemo.engine.sampling import Sampler, Settings, Uniforms, masked, one_hot, probabilities
from specdemo.engine.tree import AnyTree, Nodes, speculative_tree
from specdemo.events import Gamma
from specdemo.runtime.lm import LM
from specdemo.runtime.steps import (
    HostNumbers,
    OnHost,
    Packed,
    RunStep,
    pack,
    to_host,
    varied_ids,
    varied_uniforms,
)

NAN = "the {}'s probabilities are not numbers (NaN): its weights are broken or its dtype is too narrow"
# Columns of the tokens at a position: the drafted one (meaningless in the last row), the round's next token
# (which counts in row `accepted` only), and the alternatives, likeliest first.
DRAFTED, NEXT, ALTERNATIVES = 0, 1, slice(2, None)

WHOLE, REAL, SINGLE, FLAG = torch.int64, torch.float64, torch.float32, torch.bool
Ints, Floats, Flags = list[int], list[float], list[bool]


class Verified(OnHost):
    """A verified round of B rows on the host: each field with its dtype and shape on the device. Each of the
    B+1 positions has 2+A tokens, in the columns above. q and raw_q are 0 in rows without a draft.

    Of a tree (tree.py) the first B positions are those of its tokens, and the last one follows the
    path: p of a judged token is what its earlier siblings have left. A chain is one in which each token
    follows the one before, but its positions are in the order of the text."""

    accepted: Annotated[int, WHOLE]  # how many drafted tokens are
    k: Annotated[float, REAL]  # how many rows the drafter was sure of
    u_next: Annotated[float, REAL]
    residual_mass: Annotated[float, REAL]
    accept_prob: Annotated[Floats, REAL, "rows"]
    distance: Annotated[Floats, REAL, "rows"]  # of a lossy rule
    u_accept: Annotated[Floats, REAL, "rows"]  # infinite in rows without a draft
    token_ids: Annotated[list[Ints], WHOLE, "positions", "tokens"]
    p: Annotated[list[Floats], SINGLE, "positions", "tokens"]
    q: Annotated[list[Floats], SINGLE, "rows", "tokens"]
    raw_p: Annotated[list[Floats], SINGLE, "positions", "tokens"]
    raw_q: Annotated[list[Floats], SINGLE, "rows", "tokens"]
    likely_ids: Annotated[list[Ints], WHOLE, "positions", "likely"]  # for the drafter to learn from
    likely_p: Annotated[list[Floats], SINGLE, "positions", "likely"]  # their raw_p
    masses: Annotated[Floats, REAL, "rows"]  # of a tree
    fed: Annotated[Ints, WHOLE, "rows"]  # of a tree that does not show its tokens in their order
    # Those of a chain are made at home.
    parents: Annotated[Ints, WHOLE, "rows"]  # the number of the token that each follows; -1: the text
    judged: Annotated[Flags, FLAG, "rows"]
    on_path: Annotated[Flags, FLAG, "rows"]
    refused: Annotated[int, WHOLE]  # the position of the next token, with the q of the token refused there

    @classmethod
    def of(cls, packed: Packed) -> "Verified":
        """Waits for a verdict."""
        verdict = to_host(packed, cls)
        if not verdict.is_tree:
            accepted, rows = verdict.accepted, range(len(verdict.u_accept))
            verdict.parents = [row - 1 for row in rows]
            verdict.judged = [row <= accepted for row in rows]
            verdict.on_path = [row < accepted for row in rows]
            verdict.refused = accepted
        return verdict

    @property
    def is_tree(self) -> bool:
        return "parents" in self._layout

    @cached_property
    def drafts(self) -> list[int]:
        """Numbers the rows that are drafts: not those that fill a step, nor what the drafter was not
        sure of, what follows an eos, and what is too deep in a tree."""
        return [number for number, u in enumerate(self.u_accept) if u < inf]

    @cached_property
    def drafted(self) -> list[int]:
        """Lists the tokens of all rows that the drafter was sure of."""
        return [row[DRAFTED] for row in self.token_ids[: int(self.k)]]

    @cached_property
    def path(self) -> list[int]:
        """Lists the numbers of the accepted tokens, in the order of the text."""
        return [number for number, is_accepted in enumerate(self.on_path) if is_accepted]

    @cached_property
    def rejected(self) -> list[int]:
        """Lists the numbers of the tokens that were judged and refused."""
        return [number for number in self.drafts if self.judged[number] and not self.on_path[number]]

    def at(self, i: int, column: int | slice) -> dict[str, Any]:
        """Gives p, q, raw_p and raw_q of a token, or of several, at a position; after a whole draft there is
        no q."""
        q, raw_q = (self.q[i][column], self.raw_q[i][column]) if i in self.drafts else (None, None)
        return {"p": self.p[i][column], "q": q, "raw_p": self.raw_p[i][column], "raw_q": raw_q}

    @property
    def next_id(self) -> int:
        return self.token_ids[self.refused][NEXT]

    @property
    def emitted(self) -> tuple[int, ...]:
        """Lists what the round emits unless the text ends within."""
        return (*(self.drafted[number] for number in self.path), self.next_id)

    @property
    def fed_path(self) -> list[int]:
        """Lists which of the tokens that the drafter was shown are accepted."""
        if not self.fed:
            return self.path
        return [self.fed[number] for number in self.path if self.fed[number] >= 0]

    def check(self) -> None:
        """Raises RuntimeError when probabilities are NaN."""
        k = int(self.k)
        # One NaN in the logits makes all of a softmax NaN.
        if any(isnan(row[DRAFTED]) for row in self.raw_q[:k]):
            raise RuntimeError(NAN.format("drafter"))
        if any(isnan(row[DRAFTED]) for row in (*self.raw_p[: k + 1], self.raw_p[self.refused])):
            raise RuntimeError(NAN.format("target"))

    @property
    def likely(self) -> Iterator[tuple[list[int], list[int], list[list[tuple[int, float]]]]]:
        """Gives what the drafter can learn: tokens that follow the text, a draft after them, and the target's
        likeliest (token, raw_p) after those and after each token of the draft. Of a tree: after each token
        that has children, and after its path, without a draft."""
        rows = [list(zip(*row, strict=True)) for row in zip(self.likely_ids, self.likely_p, strict=True)]
        if not self.is_tree:
            yield [], self.drafted, rows[: len(self.drafted) + 1]
            return
        paths: dict[int, list[int]] = {-1: []}
        done = set()
        for number, (token, parent) in enumerate(zip(self.drafted, self.parents, strict=False)):
            paths[number] = [*paths[parent], token]
            if parent not in done:
                done.add(parent)
                yield paths[parent], [], [rows[number]]
        end = self.path[-1] if self.accepted else -1
        if end not in done:
            yield paths[end], [], [rows[-1]]


class VerifyNumbers(HostNumbers):
    """What verifying a round of B rows reads from the host. Those of a sampler are `Sampler.numbers`."""

    position: Tensor  # [1]: that of the last token of the text
    last: Tensor  # [1]: the last token of the text
    k: Tensor  # [1]: how many rows are drafts, or fewer, if the drafter was not sure enough
    confidence: Tensor  # [1]
    room: Tensor  # [1]: for so many tokens before the next one; what is deeper in a tree is no draft
    u_next: Tensor  # [1]: the uniform number that draws the next token
    temperature: Tensor  # [1]
    top_k: Tensor  # [1]
    top_p: Tensor  # [1]
    min_p: Tensor  # [1]
    repetition: Tensor  # [1]
    presence: Tensor  # [1]
    frequency: Tensor  # [1]
    biased: Tensor  # [N]: the tokens with a bias
    bias: Tensor  # [N]
    eos: Tensor  # [E]: the tokens that end a draft
    u_accept: Tensor  # [B]: the uniform numbers that decide which drafts are accepted


@dataclass(frozen=True)
class VerifyInput:
    """What verifying a round reads, on the target's device. B rows, of which the first ones are drafts; the
    others only fill a captured step."""

    numbers: VerifyNumbers
    drafted: Tensor  # [B] int64
    q: Tensor  # [B, V] float32
    raw_q: Tensor  # [B, V] float32
    sure: Tensor | None = None  # [B] float32: how sure the drafter is; None: it has no measure of its own
    seen: Tensor | None = None  # [V] float32: what Sampler.seen gives
    allowed: Tensor | None = None  # [B+1, V] bool: the tokens that the grammar allows; None: all
    parents: Tensor | None = None  # [B] int64: of a tree, those of Draft
    fed: Tensor | None = None  # [B] int64: of a tree, those of Draft

    def on_device(self) -> "VerifyInput":
        return replace(self, numbers=self.numbers.on_device())

    def varied(self) -> "VerifyInput":
        numbers = self.numbers
        uniforms = {name: varied_uniforms(numbers.parts[name]) for name in ("u_next", "u_accept")}
        numbers = numbers.with_parts(last=varied_ids(numbers.last), **uniforms)
        return replace(self, numbers=numbers, drafted=varied_ids(self.drafted))


@dataclass(frozen=True)
class VerifyOutput:
    verified: Packed  # a Verified
    logits: Tensor  # [B+1, V]


@dataclass(frozen=True)
class Verifier:
    """Verifies drafts with one target, sampler and rule. `gamma`: the longest draft. `alternatives`,
    `wants_top`: how many likely tokens are reported at each position for the trace, and for the drafter to
    learn from. eos: the tokens that end a text; what is drafted after one is not judged. `confidence`: that
    of Params. compiled_verdict: the same function as `judge`, compiled; it returns None of what it does not
    judge. tree: what a drafted tree is a part of; None: chains are drafted. gamma: then its size."""

    target: LM
    sampler: Sampler
    rule: Judge
    run_step: RunStep
    gamma: Gamma
    alternatives: int
    wants_top: int
    eos: tuple[int, ...] = ()
    confidence: float = 0.0
    compiled_verdict: "Callable[[Verifier, Tensor, VerifyInput], Packed | None] | None" = None
    tree: AnyTree | None = None

    def drafts_in(self, room: int, gamma: int) -> int:
        """Says how many tokens a round drafts where so many can follow each other. gamma: the most."""
        return min(gamma, room) if self.tree is None or not gamma else self.tree.in_room(room).size

    def launch(
        self, ids: list[int], draft: Draft, u: Uniforms, allowed: Allowed | None = None, room: float = inf
    ) -> Packed:
        """Gives the device the step that verifies, and does not wait for the verdict, a Verified. allowed:
        what the grammar allows; None without one. room: see VerifyInput."""
        rows = self.run_step.rows(draft.k, self.gamma)
        padded = draft.padded(rows)
        self.target.reserve(len(ids) - 1, len(ids) + rows)
        numbers = VerifyNumbers.of(
            padded.ids.device,
            position=[len(ids) - 1],
            last=ids[-1:],
            k=[draft.k],
            confidence=[self.confidence],
            room=[room],
            u_next=[u.next],
            eos=self.eos,
            u_accept=u.accept[:rows],
            **self.sampler.numbers,
        )
        masks = None  # where no draft is, all is allowed
        if allowed is not None:
            filling = (0, 0, 0, rows + 1 - len(allowed.masks))
            masks = pad(allowed.masks, filling, value=True).to(padded.ids.device)
        value = VerifyInput(
            numbers=numbers,
            drafted=padded.ids,
            q=padded.q,
            raw_q=padded.raw_q,
            sure=padded.sure,
            seen=self.sampler.seen(ids, self.target.vocab_size, padded.ids.device),
            allowed=masks,
            parents=padded.parents,
            fed=padded.fed,
        )
        key = ("verify", rows, *self._key(is_tree=value.parents is not None))
        _, output = self.run_step(key, self.step, value, self.expected)
        return output.verified

    def _key(self, is_tree: bool) -> Iterable[object]:
        """Gives whatever else a step depends on: all that this verifier has, but for what is an input, or is
        asked outside of a step."""
        left_out = ("run_step", "gamma", "eos", "compiled_verdict")
        key = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in left_out}
        # Which features the target keeps counts, too: two drafters of it can need different ones.
        features = self.target.features
        kept = None if features is None else features.buffer_epoch
        key["target"] = (self.target.kv_length, self.target.buffer_epoch, kept)
        key |= {"sampler": self.sampler.key, "confidence": self.confidence > 0}
        key["tree"] = self.tree if is_tree else None
        return key.values()

    def step(self, value: VerifyInput) -> VerifyOutput:
        tokens = torch.cat([value.numbers.last.long(), value.drafted])  # [B+1]
        nodes = None if value.parents is None else self._nodes(value)
        branches, start = nodes.branches if nodes else None, value.numbers.position[0].long()
        logits = self.target.forward(tokens, start, branches)  # [B+1, V]
        return VerifyOutput(self.judge(logits, value, nodes), logits)

    def _nodes(self, value: VerifyInput) -> Nodes:
        if value.parents is None:
            return Nodes.of_chain(len(value.drafted), value.drafted.device)
        assert self.tree is not None, "what was drafted is a part of it"
        return Nodes.of(value.parents, self.tree)

    def expected(self, value: VerifyInput, given: VerifyOutput) -> VerifyOutput:
        """Gives the right output (RunStep): the target's own logits, and the verdict on those of a graph's
        output."""
        return VerifyOutput(self.judge(given.logits, value), self.step(value).logits)

    def judge(self, logits: Tensor, value: VerifyInput, nodes: Nodes | None = None) -> Packed:
        """Gives the verdict, a Verified, on logits [B+1, V]. nodes: those of the value, if they are known."""
        if self.compiled_verdict:
            verdict = self.compiled_verdict(self, logits, value)
            if verdict is not None:
                return verdict
        nodes, numbers = nodes or self._nodes(value), value.numbers
        ends = (value.drafted[:, None] == numbers.eos).any(1)  # [B]
        no_drafts = nodes.no_drafts(ends, numbers.room)  # [B]
        is_draft = (torch.arange(len(value.drafted), device=logits.device) < numbers.k) & ~no_drafts  # [B]
        k = numbers.k[0]
        if self.confidence > 0:  # up to the first unsure place
            is_draft &= is_unsure(value.raw_q, numbers.confidence, value.sure).cumsum(0) == 0
            k = is_draft.sum()
        q = torch.where(is_draft[:, None], value.q, 0.0)
        raw_q = torch.where(is_draft[:, None], value.raw_q, 0.0)
        # Rejects what is no draft; as q is 0 there, the next token is drawn from p.
        u_accept = torch.where(is_draft, numbers.u_accept, torch.inf)
        seen, logits = value.seen, logits.float()
        if seen is not None:  # as Sampler.seen, in the text and the drafts before each row: [B+1, V]
            seen = seen + nodes.up_to_each(one_hot(value.drafted, self.target.vocab_size))
        allowed = masked(logits, value.allowed)
        p = self.sampler.probabilities(allowed, Settings(numbers.parts), seen)  # [B+1, V]
        raw_p = probabilities(logits)
        rule = self.rule if nodes.branches is None else partial(speculative_tree, nodes)
        decision = rule(p, q, value.drafted, u_accept, numbers.u_next)
        if decision.by_place is not None:
            rows, p = decision.by_place
            raw_p = raw_p[rows]

        # What the trace needs of the distributions.
        width, size = self.target.vocab_size, len(q)
        next_id = decision.next.expand(size + 1, 1)
        here = torch.cat([value.drafted[:, None], next_id[:1]])  # [B+1, 1]; no token is drafted in the last
        likeliest = _likeliest(p, raw_p, q, raw_q, min(self.alternatives, width))
        token_ids = torch.cat([here, next_id, likeliest], 1)  # [B+1, 2+A]
        likely = raw_p.topk(min(self.wants_top, width))  # [B+1, F]
        return pack(
            **decision.recorded,
            k=k,
            u_accept=u_accept,
            u_next=numbers.u_next[0],
            token_ids=token_ids,
            p=p.gather(1, token_ids),
            q=q.gather(1, token_ids[:size]),
            raw_p=raw_p.gather(1, token_ids),
            raw_q=raw_q.gather(1, token_ids[:size]),
            likely_ids=likely.indices,
            likely_p=likely.values,
            parents=value.parents,
            fed=value.fed,
        )


def _likeliest(p: Tensor, raw_p: Tensor, q: Tensor, raw_q: Tensor, count: int) -> Tensor:
    """Finds the ids [B+1, count] that are likeliest under target and drafter together. Tokens that the
    sampler has filtered out (all but one when greedy) come last, ordered by their raw probability."""
    if count == 0:
        return torch.empty(len(p), 0, dtype=torch.long, device=p.device)
    weight = torch.add(p, raw_p, alpha=1e-9)
    weight[:-1].add_(torch.add(q, raw_q, alpha=1e-9))
    return weight.topk(count).indices
