"""What the target computes in a round: one forward over the draft, the verdict, and the numbers of the trace,
which come home in one copy. Nothing in the step waits for the device, so that it can be captured."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, isnan

import torch
from torch import Tensor
from torch.nn.functional import pad

from specdemo.engine.draft import Draft, is_unsure
from specdemo.engine.grammar import Allowed
from specdemo.engine.rules import Decision, Judge, block, block_probs
from specdemo.engine.sampling import Sampler, Settings, Uniforms, one_hot, probabilities
from specdemo.engine.tree import AnyTree, Fates, Nodes, speculative_tree
from specdemo.events import ExpertsRead, Gamma
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


@dataclass(frozen=True)
class Verified:
    """A verified round of B rows, the first of which are drafts, on the device. Each of the B+1 positions has
    2+A tokens, in the columns above. q and raw_q are 0 in rows without a draft.

    Of a tree (tree.py) the first B positions are those of its tokens, and the last one follows the path: p of
    a judged token is what its earlier siblings have left. Only a tree has the last three fields."""

    accepted: Tensor  # [] int64: how many drafted tokens are accepted
    k: Tensor  # [] float64 or int64: how many rows are drafts
    accept_prob: Tensor  # [B] float64
    block_prob: Tensor  # [B] float64: what block verification would compare u with; [0] if not recorded
    distance: Tensor  # [B] float64; [0] of a lossless rule
    u_accept: Tensor  # [B] float64; infinite in rows without a draft
    u_next: Tensor  # [] float64
    residual_mass: Tensor  # [] float64
    token_ids: Tensor  # [B+1, 2+A] int64
    p: Tensor  # [B+1, 2+A] float32
    q: Tensor  # [B, 2+A] float32
    raw_p: Tensor  # as p
    raw_q: Tensor  # as q
    likely_ids: Tensor  # [B+1, F] int64: the target's likeliest tokens, for the drafter to learn from
    likely_p: Tensor  # [B+1, F] float32: their raw_p
    p_exact: Tensor  # [B+1] bool: whether p is what the sampler asks for (see Sampler.shape); [0]: it is
    q_exact: Tensor  # [B] bool; [0]: q is
    experts_read: Tensor  # [B+1] float64, see Experts.read; [0] of a target without experts
    parents: Tensor | None  # [B] int64, see Draft, like the next one
    fed: Tensor | None  # [B] int64
    fates: Fates | None


class VerifiedOnHost(OnHost):
    """A Verified on the host."""

    accepted: int
    k: float
    accept_prob: list[float]
    block_prob: list[float]
    distance: list[float]
    u_accept: list[float]
    u_next: float
    residual_mass: float
    token_ids: list[list[int]]
    p: list[list[float]]
    q: list[list[float]]
    raw_p: list[list[float]]
    raw_q: list[list[float]]
    likely_ids: list[list[int]]
    likely_p: list[list[float]]
    p_exact: list[bool]
    q_exact: list[bool]
    experts_read: list[float]
    parents: list[int]  # these of a tree only
    fed: list[int]  # of one that does not show its tokens in their order
    judged: list[bool]
    on_path: list[bool]
    masses: list[float]
    refused: int

    @property
    def is_tree(self) -> bool:
        return "parents" in self._layout

    @cached_property
    def drafts(self) -> list[int]:
        """The numbers of the rows that are drafts: not those that fill a step, nor what the drafter was not
        sure of, what follows an eos, and what is too deep in a tree."""
        return [number for number, u in enumerate(self.u_accept) if u < inf]

    @cached_property
    def drafted(self) -> list[int]:
        """The tokens of all rows that the drafter was sure of."""
        return [row[DRAFTED] for row in self.token_ids[: int(self.k)]]

    @cached_property
    def parent_of(self) -> Sequence[int]:
        """The number of the token that each follows; -1: the text."""
        return self.parents if self.is_tree else range(-1, len(self.drafted))

    @cached_property
    def path(self) -> list[int]:
        """The numbers of the accepted tokens, in the order of the text."""
        if not self.is_tree:
            return list(range(self.accepted))
        return [number for number, is_accepted in enumerate(self.on_path) if is_accepted]

    @cached_property
    def rejected(self) -> list[int]:
        """The numbers of the tokens that were judged and refused."""
        if not self.is_tree:
            return self.drafts[self.accepted :][:1]
        return [number for number in self.drafts if self.judged[number] and not self.on_path[number]]

    @property
    def position_of_next(self) -> int:
        """The position that has the round's next token, with the q of the token that was refused there."""
        return self.refused if self.is_tree else self.accepted

    def has_q(self, position: int) -> bool:
        """Whether a draft stands at the position: none does after a whole one."""
        return position < (len(self.parents) if self.is_tree else len(self.drafts))

    @property
    def next_id(self) -> int:
        return self.token_ids[self.position_of_next][NEXT]

    @property
    def emitted(self) -> tuple[int, ...]:
        """What the round emits unless the text ends within."""
        return (*(self.drafted[number] for number in self.path), self.next_id)

    @property
    def fed_path(self) -> list[int]:
        """Which of the tokens that the drafter was shown are accepted."""
        if "fed" not in self._layout:
            return self.path
        return [self.fed[number] for number in self.path if self.fed[number] >= 0]

    def check(self) -> None:
        """Raises RuntimeError when probabilities are NaN."""
        k = int(self.k)
        # One NaN in the logits makes all of a softmax NaN.
        if any(isnan(row[DRAFTED]) for row in self.raw_q[:k]):
            raise RuntimeError(NAN.format("drafter"))
        rows = self.raw_p if self.is_tree else self.raw_p[: k + 1]
        if any(isnan(row[DRAFTED]) for row in rows):
            raise RuntimeError(NAN.format("target"))

    def experts(self, k: int) -> ExpertsRead | None:
        """What the k+1 rows of a draft of k tokens and the text's last one read. Rows that only fill a step
        come after them."""
        read = self.experts_read
        return ExpertsRead(check=read[k], row=read[0]) if read else None

    def likely_by_path(self) -> Iterator[tuple[list[int], list[tuple[int, float]]]]:
        """The target's likeliest (token, raw_p) after the text and each token of a tree that has children,
        and after its path; and the tokens up to there."""
        rows = self._likely(len(self.parents))
        paths: dict[int, list[int]] = {-1: []}
        done = set()
        for number, (token, parent) in enumerate(zip(self.drafted, self.parents, strict=False)):
            paths[number] = [*paths[parent], token]
            if parent not in done:
                done.add(parent)
                yield paths[parent], rows[number]
        end = self.path[-1] if self.accepted else -1
        if end not in done:
            yield paths[end], rows[-1]

    @property
    def likely(self) -> list[list[tuple[int, float]]]:
        """The target's likeliest (token, raw_p) at each of the k+1 positions of a draft of k tokens."""
        return self._likely(int(self.k))

    def _likely(self, k: int) -> list[list[tuple[int, float]]]:
        rows = zip(self.likely_ids[: k + 1], self.likely_p[: k + 1], strict=True)
        return [list(zip(token_ids, probs, strict=True)) for token_ids, probs in rows]


@dataclass(frozen=True)
class VerifyInput:
    """What verifying a round reads, on the target's device. B rows, of which the first `k` are drafts, or
    fewer, if the drafter was not sure enough; the others only fill a captured step."""

    host: HostNumbers  # the properties below, by their names
    drafted: Tensor  # [B] int64
    q: Tensor  # [B, V] float32
    raw_q: Tensor  # [B, V] float32
    q_exact: Tensor | None  # [B] bool, see Draft
    sure: Tensor  # [B] float32, see Draft; [0] where the drafter has none
    seen: Tensor | None  # see Sampler.seen
    allowed: Tensor | None = None  # [B+1, V] bool: the tokens that the grammar allows; None: all
    parents: Tensor | None = None  # [B] int64, see Draft, like the next one
    fed: Tensor | None = None  # [B] int64

    @property
    def position(self) -> Tensor:
        """The position of the last token of the text: [1] float64, like the next five."""
        return self.host.parts["position"]

    @property
    def last(self) -> Tensor:
        """The last token of the text."""
        return self.host.parts["last"]

    @property
    def k(self) -> Tensor:
        return self.host.parts["k"]

    @property
    def confidence(self) -> Tensor:
        return self.host.parts["confidence"]

    @property
    def room(self) -> Tensor:
        """How many tokens the text has room for before the next one: what is deeper in a tree is no draft."""
        return self.host.parts["room"]

    @property
    def u_next(self) -> Tensor:
        """The uniform number that draws the next token: [1] float64."""
        return self.host.parts["u_next"]

    @property
    def settings(self) -> Settings:
        return Settings(self.host.parts)

    @property
    def eos(self) -> Tensor:
        """The tokens that end a draft: [E] float64."""
        return self.host.parts["eos"]

    @property
    def u_accept(self) -> Tensor:
        """The uniform numbers that decide which drafts are accepted: [B] float64."""
        return self.host.parts["u_accept"]

    def on_device(self) -> "VerifyInput":
        return replace(self, host=self.host.on_device())

    def varied(self) -> "VerifyInput":
        uniforms = {"u_next": varied_uniforms(self.u_next), "u_accept": varied_uniforms(self.u_accept)}
        host = self.host.with_parts(last=varied_ids(self.last), **uniforms)
        return replace(self, host=host, drafted=varied_ids(self.drafted))


@dataclass(frozen=True)
class VerifyOutput:
    verified: Packed  # a Verified
    logits: Tensor  # [B+1, V], to judge again, like the next one
    experts_read: Tensor | None  # see Verified; None of a target without experts


@dataclass(frozen=True)
class Judging:
    """A round that the device verifies: what its step reads, and writes."""

    read: VerifyInput
    output: VerifyOutput


@dataclass(frozen=True)
class Verifier:
    """Verifies drafts with one target, sampler and rule. `gamma`: the longest draft. `alternatives`,
    `wants_top`: how many likely tokens are reported at each position for the trace, and for the drafter to
    learn from. eos: the tokens that end a text; what is drafted after one is not judged. `confidence`: that
    of Params. draft_sampler: the drafter's, if it is another one. compiled_verdict:
    the same function as `judge`, compiled; it returns None for a rule that is not. tree: what a drafted tree
    is a part of; None: chains are drafted. gamma: then its size."""

    target: LM
    sampler: Sampler
    rule: Judge
    run_step: RunStep
    gamma: Gamma
    alternatives: int
    wants_top: int
    eos: tuple[int, ...] = ()
    confidence: float = 0.0
    draft_sampler: Sampler | None = None
    compiled_verdict: "Callable[[Verifier, Tensor, VerifyInput, Tensor | None], Packed | None] | None" = None
    tree: AnyTree | None = None

    def rows(self, k: int) -> int:
        """How many rows the steps of a round with k drafts have."""
        return self.run_step.rows(k, self.gamma)

    def verify(self, ids: list[int], draft: Draft, u: Uniforms) -> VerifiedOnHost:
        """The verdict on a draft that follows `ids`."""
        return self.verdict(self.launch(ids, draft, u))

    def launch(
        self, ids: list[int], draft: Draft, u: Uniforms, allowed: Allowed | None = None, room: float = inf
    ) -> Judging:
        """Gives the device the step that verifies, and does not wait for it. allowed: what the grammar
        allows; None without one. room: see VerifyInput."""
        rows = self.rows(draft.k)
        padded = draft.padded(rows)
        self.target.reserve(len(ids) - 1, len(ids) + rows)
        numbers: dict[str, Sequence[float]] = {
            "position": [len(ids) - 1],
            "last": ids[-1:],
            "k": [draft.k],
            "confidence": [self.confidence],
            "room": [room],
            "u_next": [u.next],
            **self.sampler.numbers,
            "eos": self.eos,
            "u_accept": u.accept[:rows],
        }
        value = VerifyInput(
            host=HostNumbers.of(padded.ids.device, **numbers),
            drafted=padded.ids,
            q=padded.q,
            raw_q=padded.raw_q,
            q_exact=padded.exact,
            sure=padded.raw_q.new_zeros(0) if padded.sure is None else padded.sure,
            seen=self.sampler.seen(ids, self.target.vocab_size, padded.ids.device),
            allowed=None if allowed is None else self._of_rows(allowed.masks, rows, padded.ids.device),
            parents=padded.parents,
            fed=padded.fed,
        )
        # The key has which features the target keeps, not only whether: two drafters of it can need different
        # ones.
        features = self.target.features
        kept = None if features is None else features.buffer_epoch
        shapes = (rows, self.target.kv_length, self.target.buffer_epoch, kept)
        reported = (self.alternatives, self.wants_top)
        looked_at = (self.confidence > 0, len(value.sure), value.q_exact is None, value.allowed is None)
        how = (self.sampler.key, self.rule, value.parents is not None and self.tree, len(self.eos))
        key = ("verify", *shapes, *how, *looked_at, *reported)
        return Judging(*self.run_step(key, self.step, value, self.expected))

    def _of_rows(self, masks: Tensor, rows: int, device: torch.device) -> Tensor:
        """What is allowed in each row of a step [B+1, V], on the device: everything, where no draft is.
        masks: [k+1, V], on the host."""
        return pad(masks, (0, 0, 0, rows + 1 - len(masks)), value=True).to(device)

    def verdict(self, judging: Judging) -> VerifiedOnHost:
        """Waits for the verdict. No other step may have been run in between."""
        verdict = to_host(judging.output.verified, VerifiedOnHost)
        drafting = self.draft_sampler or self.sampler
        width = drafting.key
        while not _is_exact(verdict):  # rare: the nucleus of p is wider than what top-p looked at
            self.sampler.widen()
            output = judging.output
            again = self.judge(output.logits, judging.read, output.experts_read)
            verdict = to_host(again, VerifiedOnHost)
        if not all(verdict.q_exact[: int(verdict.k)]) and drafting.key == width:
            drafting.widen()  # for the next rounds; this one is lossless all the same
        return verdict

    def step(self, value: VerifyInput) -> VerifyOutput:
        tokens = torch.cat([value.last.long(), value.drafted])  # [B+1]
        nodes = self._nodes(value)
        branches = () if nodes is None else (nodes.branches,)
        start, read = value.position[0].long(), None
        experts = self.target.experts if nodes is None else None
        with nullcontext([]) if experts is None else experts.watching() as chosen:
            logits = self.target.forward(tokens, start, *branches)  # [B+1, V]
        if experts is not None:
            read = experts.read(chosen, len(tokens))
        return VerifyOutput(self.judge(logits, value, read, nodes), logits, read)

    def _nodes(self, value: VerifyInput) -> Nodes | None:
        if value.parents is None:
            return None
        assert self.tree is not None, "what was drafted is a part of it"
        return Nodes.of(value.parents, self.tree)

    def expected(self, value: VerifyInput, said: VerifyOutput) -> VerifyOutput:
        """What the step should have said (see RunStep): the target's own logits, and the verdict on those
        that a graph has said. Rounding can choose other experts, too."""
        read = said.experts_read
        return VerifyOutput(self.judge(said.logits, value, read), self.step(value).logits, read)

    def judge(
        self,
        logits: Tensor,
        value: VerifyInput,
        experts_read: Tensor | None = None,
        nodes: Nodes | None = None,
    ) -> Packed:
        """The verdict, a Verified, on logits [B+1, V]. experts_read: what belongs into it; None: [0]. nodes:
        those of the value, if they are known."""
        if self.compiled_verdict:
            verdict = self.compiled_verdict(self, logits, value, experts_read)
            if verdict is not None:
                return verdict
        nodes = nodes or self._nodes(value)
        ends = (value.drafted[:, None] == value.eos).any(1)  # [B]
        if nodes is None:
            after_end = ends.cumsum(0) > ends
        else:
            is_too_deep = nodes.path[1:].sum(1) > value.room
            after_end = (nodes.path[nodes.rows] & ends).any(1) | is_too_deep
        is_draft = (torch.arange(len(value.drafted), device=logits.device) < value.k) & ~after_end  # [B]
        k = value.k[0]
        if self.confidence > 0:  # up to the first unsure place
            sure = value.sure if len(value.sure) else None
            is_draft &= is_unsure(value.raw_q, value.confidence, sure).cumsum(0) == 0
            k = is_draft.sum()
        q = torch.where(is_draft[:, None], value.q, 0.0)
        raw_q = torch.where(is_draft[:, None], value.raw_q, 0.0)
        # Rejects what is no draft; as q is 0 there, the next token is drawn from p.
        u_accept = torch.where(is_draft, value.u_accept, torch.inf)
        seen = None if value.seen is None else self._seen_by_row(value.drafted, value.seen, nodes)
        logits = logits.float()
        allowed = masked(logits, value.allowed)
        p, exact = self.sampler.probabilities(allowed, value.settings, seen)  # [B+1, V], [B+1]
        raw_p = probabilities(logits)
        decision: Decision
        fates, judging = None, (p, q, value.drafted)
        if nodes is None:
            decision = self.rule(*judging, u_accept, value.u_next)
            block_prob = self._block_prob(decision, *judging)
        else:
            decision = speculative_tree(*judging, nodes, u_accept, value.u_next)
            fates, p, block_prob = decision.fates, decision.p, decision.accept_prob[:0]
            rows = torch.cat([nodes.rows, decision.end[None]])  # [B+1]: of the forward, by position
            raw_p, exact = raw_p[rows], None if exact is None else exact[rows]

        # What the trace needs of the distributions.
        width, size = self.target.vocab_size, len(q)
        next_id = decision.next.expand(size + 1, 1)
        here = torch.cat([value.drafted[:, None], next_id[:1]])  # [B+1, 1]; no token is drafted in the last
        likeliest = _likeliest(p, raw_p, q, raw_q, min(self.alternatives, width))
        token_ids = torch.cat([here, next_id, likeliest], 1)  # [B+1, 2+A]
        likely = raw_p.topk(min(self.wants_top, width))  # [B+1, F]
        return pack(
            Verified(
                k=k,
                accepted=decision.accepted,
                accept_prob=decision.accept_prob,
                block_prob=block_prob,
                distance=decision.accept_prob[:0] if decision.distance is None else decision.distance,
                u_accept=u_accept,
                u_next=value.u_next[0],
                residual_mass=decision.residual_mass,
                token_ids=token_ids,
                p=p.gather(1, token_ids),
                q=q.gather(1, token_ids[:size]),
                raw_p=raw_p.gather(1, token_ids),
                raw_q=raw_q.gather(1, token_ids[:size]),
                likely_ids=likely.indices,
                likely_p=likely.values,
                p_exact=is_draft[:0] if exact is None else exact,
                q_exact=is_draft[:0] if value.q_exact is None else value.q_exact,
                experts_read=u_accept[:0] if experts_read is None else experts_read,
                parents=value.parents,
                fed=value.fed,
                fates=fates,
            )
        )

    def _seen_by_row(self, drafted: Tensor, seen: Tensor, nodes: Nodes | None) -> Tensor:
        """The `seen` of the text and of the drafts before each row, [B+1, V] (see Sampler.seen)."""
        each = one_hot(drafted, self.target.vocab_size)  # [B, V]
        if nodes is not None:
            return seen + nodes.path.to(each.dtype) @ each
        return seen + pad(each.cumsum(0), (0, 0, 1, 0))

    def _block_prob(self, decision: Decision, p: Tensor, q: Tensor, drafted: Tensor) -> Tensor:
        """h of block verification [B], whatever the rule; [0] in a run without alternatives, since h takes a
        fifth of the launches."""
        if self.rule == block:
            return decision.accept_prob
        return block_probs(p, q, drafted)[0] if self.alternatives else decision.accept_prob[:0]


def masked(logits: Tensor, allowed: Tensor | None) -> Tensor:
    """The logits [..., V] of what is allowed [..., V]; None: all."""
    return logits if allowed is None else logits.masked_fill(~allowed, -torch.inf)


def _is_exact(verdict: VerifiedOnHost) -> bool:
    """Whether p is exact at each position that the verdict depends on: those of the draft, and that of the
    next token."""
    exact = verdict.p_exact
    return not exact or (all(exact[: int(verdict.k)]) and exact[verdict.position_of_next])


def _likeliest(p: Tensor, raw_p: Tensor, q: Tensor, raw_q: Tensor, count: int) -> Tensor:
    """The ids [B+1, count] that are likeliest under target and drafter together. Tokens that the sampler has
    filtered out (all but one when greedy) come last, ordered by their raw probability."""
    if count == 0:
        return torch.empty(len(p), 0, dtype=torch.long, device=p.device)
    weight = torch.add(p, raw_p, alpha=1e-9)
    weight[:-1].add_(torch.add(q, raw_q, alpha=1e-9))
    return weight.topk(count).indices
