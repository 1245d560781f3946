"""A smaller model of the same vocabulary drafts (Leviathan et al. 2023), or the target's own first layers
(LayerSkip, Elhoushi et al. 2024; see runtime/early_exit.py)."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from specdemo.engine.drafters import Draft, is_unsure, one_hot_draft
from specdemo.engine.sampling import Sampler, Settings, probabilities
from specdemo.events import Gamma
from specdemo.runtime.device import to_device
from specdemo.runtime.lm import LM
from specdemo.runtime.values import RunStep, varied_ids, varied_uniforms


@dataclass(frozen=True)
class DraftInput:
    """What drafting reads, on the drafter's device: the host's numbers, in one copy."""

    position: Tensor  # [1] float64: of the first of the last tokens
    last: Tensor  # [1 or 2] float64: the last tokens of the text
    u: Tensor  # [B] float64
    settings: Settings

    def varied(self) -> "DraftInput":
        return replace(self, last=varied_ids(self.last), u=varied_uniforms(self.u))


class ModelDrafter:
    """Drafts token by token. A vocabulary wider than the target's is cut and renormalised,
    a narrower one padded with q = 0. Beyond the drafter's own context nothing is drafted.

    exit_layer: how many of the target's layers `lm` has, over the target's own cache; None: it is another
    model, with a cache of its own."""

    wants_top = 0

    def __init__(
        self,
        lm: LM,
        context: float,
        sampler: Sampler,
        vocab_size: int,  # the target's
        device: torch.device,  # the target's
        run_step: RunStep,
        gamma: Gamma,
        is_over: Callable[[], bool] = lambda: False,
        confidence: float = 0.0,
        exit_layer: int | None = None,
    ):
        self.lm = lm
        self.context = context
        self.sampler = sampler
        self.vocab_size = vocab_size
        self.device = device
        self.run_step = run_step
        self.gamma = gamma
        self.is_over = is_over  # of Decoder
        self.confidence = confidence
        # A GPU would have to be waited for at each token: there the draft is only cut when it is verified.
        self.stops_below = confidence if lm.device.type == "cpu" else 0.0
        self.exit_layer = exit_layer

    def start(self, ids: list[int]) -> None:
        if len(ids) <= self.context:
            self.lm.prefill(torch.tensor(ids[:-2], dtype=torch.long), self.is_over)

    def propose(self, ids: list[int], k: int, u: list[float]) -> Draft:
        k = int(min(k, self.context - len(ids) + 1))
        if k <= 0:
            return one_hot_draft([], self.vocab_size, self.device)
        rows = self.run_step.rows(k, self.gamma)
        # After a fully accepted round the cache lacks the last draft, which was never fed. Feeding the last
        # two tokens in every round keeps the shapes the same whatever was accepted. The target's cache lacks
        # the last token only.
        last = ids[-2:] if self.exit_layer is None else ids[-1:]
        start = len(ids) - len(last)
        self.lm.reserve(start, len(ids) + rows)
        numbers = [start, *last, *self.sampler.numbers, *u[:rows]]
        on_device = to_device(numbers, torch.float64, self.lm.device)
        position, tokens, settings, u_draft = on_device.split([1, len(last), 3, rows])
        value = DraftInput(position, tokens, u_draft, Settings.of(settings))
        shapes = (rows, len(last), self.lm.kv_length, self.lm.buffer_epoch)
        key = ("draft", *shapes, self.sampler.key, self.exit_layer)
        _, draft = self.run_step(key, self.step, value)
        if self.lm.device != self.device:
            draft = Draft(
                draft.k, *(part.to(self.device) for part in (draft.ids, draft.q, draft.raw_q, draft.exact))
            )
        return replace(draft, k=min(k, len(draft.ids)))

    def step(self, value: DraftInput) -> Draft:
        position, tokens = value.position[0].long(), value.last.long()
        drafted, qs, raw_logits, exact = [], [], [], []
        for u in value.u.split(1):
            logits = self.in_targets_ids(self.lm.forward(tokens, position)[-1:])  # [1, V]
            position = position + len(tokens)
            tokens, q, is_exact = self.sampler.sample(logits, u, value.settings)  # [1], [1, V], [1]
            drafted.append(tokens)
            tokens = self.in_own_ids(tokens)
            qs.append(q)
            raw_logits.append(logits)
            exact.append(is_exact)
            if self.stops_below and is_unsure(probabilities(logits), self.stops_below):
                break  # the verifier drops this token
        raw_q = probabilities(torch.cat(raw_logits))  # [B, V]
        return Draft(len(drafted), torch.cat(drafted), torch.cat(qs), raw_q, torch.cat(exact))

    def in_targets_ids(self, logits: Tensor) -> Tensor:
        """logits [1, of the drafter's width] -> [1, V]"""
        missing = self.vocab_size - self.lm.vocab_size
        return pad(logits, (0, missing), value=-torch.inf) if missing else logits  # a negative number cuts

    def in_own_ids(self, tokens: Tensor) -> Tensor:
        """Drafted tokens [N], to be fed."""
        return tokens

    def learn(self, ids: list[int], draft: list[int], likely: list[list[tuple[int, float]]]) -> None:
        pass
