"""What the target computes in a round: one forward over the draft, and the verdict. Nothing in the step waits
for the device, so that it can be captured."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specdemo.engine.drafters import Draft, is_unsure
from specdemo.engine.report import DRAFTED, Verified, gather
from specdemo.engine.rules import Decision, Rule, block, block_probs
from specdemo.engine.sampling import Sampler, Settings, Uniforms, probabilities
from specdemo.events import Gamma
from specdemo.runtime.device import to_device
from specdemo.runtime.lm import LM
from specdemo.runtime.values import Packed, RunStep, pack, to_host, varied_ids, varied_uniforms

NAN = "the {}'s probabilities are not numbers (NaN): its weights are broken or its dtype is too narrow"


@dataclass(frozen=True)
class VerifyInput:
    """What verifying a round reads, on the target's device. B rows, of which the first `k` are drafts, or
    fewer, if the drafter was not sure enough; the others only fill a captured step. The host's numbers come
    in one copy, as float64, which holds ids and positions exactly."""

    position: Tensor  # [1] float64: of the last token of the text
    last: Tensor  # [1] float64: that token
    k: Tensor  # [1] float64
    confidence: Tensor  # [1] float64
    drafted: Tensor  # [B] int64
    q: Tensor  # [B, V] float32
    raw_q: Tensor  # [B, V] float32
    q_exact: Tensor  # [B] bool
    u_accept: Tensor  # [B] float64
    u_next: Tensor  # [1] float64
    eos: Tensor  # [E] float64: the tokens that end a draft
    settings: Settings

    def varied(self) -> "VerifyInput":
        return replace(
            self,
            last=varied_ids(self.last),
            drafted=varied_ids(self.drafted),
            u_accept=varied_uniforms(self.u_accept),
            u_next=varied_uniforms(self.u_next),
        )


@dataclass(frozen=True)
class VerifyOutput:
    verified: Packed  # a Verified
    logits: Tensor  # [B+1, V], to judge again


@dataclass(frozen=True)
class Verifier:
    """Verifies drafts with one target, sampler and rule. `gamma`: the longest draft. `alternatives`,
    `wants_top`: how many likely tokens are reported at each position for the trace, and for the drafter to
    learn from. eos: the tokens that end a text; what is drafted after one is not judged. `confidence`: of
    Params."""

    target: LM
    sampler: Sampler
    rule: Rule
    run_step: RunStep
    gamma: Gamma
    alternatives: int
    wants_top: int
    eos: tuple[int, ...] = ()
    confidence: float = 0.0

    def rows(self, k: int) -> int:
        """How many rows the steps of a round with k drafts have."""
        return self.run_step.rows(k, self.gamma)

    def verify(self, ids: list[int], draft: Draft, u: Uniforms) -> Verified:
        """The verdict on a draft that follows `ids`, on the host. RuntimeError when probabilities are NaN."""
        rows = self.rows(draft.k)
        padded = draft.padded(rows)
        self.target.reserve(len(ids) - 1, len(ids) + rows)
        first = [len(ids) - 1, ids[-1], draft.k, self.confidence, u.next]
        numbers = [*first, *self.sampler.numbers, *self.eos, *u.accept[:rows]]
        on_device = to_device(numbers, torch.float64, padded.ids.device)
        sizes = [1, 1, 1, 1, 1, 3, len(self.eos), rows]
        position, last, k, confidence, u_next, settings, eos, u_accept = on_device.split(sizes)
        value = VerifyInput(
            position=position,
            last=last,
            k=k,
            confidence=confidence,
            drafted=padded.ids,
            q=padded.q,
            raw_q=padded.raw_q,
            q_exact=padded.exact,
            u_accept=u_accept,
            u_next=u_next,
            eos=eos,
            settings=Settings.of(settings),
        )
        shapes = (rows, self.target.kv_length, self.target.buffer_epoch, self.target.features is not None)
        reported = (self.alternatives, self.wants_top)
        key = ("verify", *shapes, self.sampler.key, self.rule, len(self.eos), self.confidence > 0, *reported)
        read, output = self.run_step(key, self.step, value)
        on_host = self._checked(output.verified)
        width = self.sampler.key
        while not _is_exact(on_host):  # rare: the nucleus of p is wider than what top-p looked at
            self.sampler.widen()
            on_host = self._checked(self.judge(output.logits, read))
        if not on_host.q_exact[: int(on_host.k)].all() and self.sampler.key == width:
            self.sampler.widen()  # for the next rounds; this one is lossless all the same
        return on_host

    def step(self, value: VerifyInput) -> VerifyOutput:
        tokens = torch.cat([value.last.long(), value.drafted])  # [B+1]
        logits = self.target.forward(tokens, value.position[0].long())  # [B+1, V]
        return VerifyOutput(self.judge(logits, value), logits)

    def judge(self, logits: Tensor, value: VerifyInput) -> Packed:
        ends = (value.drafted[:, None] == value.eos).any(1)  # [B]
        after_end = ends.cumsum(0) > ends.long()
        is_draft = (torch.arange(len(value.drafted), device=logits.device) < value.k) & ~after_end  # [B]
        k = value.k
        if self.confidence > 0:  # up to the first unsure place
            is_draft &= is_unsure(value.raw_q, value.confidence).cumsum(0) == 0
            k = is_draft.sum(0, keepdim=True)
        q = torch.where(is_draft[:, None], value.q, 0.0)
        raw_q = torch.where(is_draft[:, None], value.raw_q, 0.0)
        # Rejects what is no draft; as q is 0 there, the next token is drawn from p.
        u_accept = torch.where(is_draft, value.u_accept, torch.inf)
        p, exact = self.sampler.shape(logits, value.settings)  # [B+1, V], [B+1]
        decision = self.rule(p, q, value.drafted, u_accept, value.u_next)
        return pack(
            gather(
                decision,
                k=k,
                block_prob=self._block_prob(decision, p, q, value.drafted),
                p=p,
                raw_p=probabilities(logits),
                p_exact=exact,
                q_exact=value.q_exact,
                drafted=value.drafted,
                q=q,
                raw_q=raw_q,
                u_accept=u_accept,
                u_next=value.u_next,
                alternatives=min(self.alternatives, self.target.vocab_size),
                wants_top=min(self.wants_top, self.target.vocab_size),
            )
        )

    def _block_prob(self, decision: Decision, p: Tensor, q: Tensor, drafted: Tensor) -> Tensor:
        """h of block verification [B], whatever the rule; [0] in a run without alternatives, since h takes a
        fifth of the launches."""
        if self.rule == block:
            return decision.accept_prob
        return block_probs(p, q, drafted)[0] if self.alternatives else decision.accept_prob[:0]

    @staticmethod
    def _checked(packed: Packed) -> Verified:
        on_host = to_host(packed, Verified)
        k = int(on_host.k)
        # One NaN in the logits makes all of a softmax NaN.
        if on_host.raw_q[:k, DRAFTED].isnan().any():
            raise RuntimeError(NAN.format("drafter"))
        if on_host.raw_p[: k + 1, DRAFTED].isnan().any():
            raise RuntimeError(NAN.format("target"))
        return on_host


def _is_exact(on_host: Verified) -> bool:
    """At each position that the verdict depends on: those of the draft, and that of the next token."""
    return bool(on_host.p_exact[: int(on_host.k)].all() and on_host.p_exact[on_host.accepted])
