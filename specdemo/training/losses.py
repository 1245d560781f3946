"""What the target and the drafter learn from rows of tokens, and how well they predict held-out text."""

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from specdemo.training.data import Encoded
from specdemo.training.models import CONTEXT, DEVICE

SCORED = 40  # held-out documents that a checkpoint is scored on


def quartered(rows: Tensor, step: int, whole_every: int) -> Tensor:
    """Rows [B, T] on the device: whole on every `whole_every`-th step, else cut into quarters [4 B, T / 4].

    On a CPU attention over whole rows takes half of the time, and most stories fit in a quarter.
    """
    rows = rows if step % whole_every == 0 else rows.reshape(-1, rows.shape[1] // 4)
    return rows.to(DEVICE)


def logits_of(model: PreTrainedModel, rows: Tensor) -> Tensor:
    """Token ids [B, T] -> float32 logits [B, T, V], computed in bf16 autocast."""
    with torch.autocast(DEVICE.type, torch.bfloat16):
        return model(input_ids=rows, use_cache=False).logits.float()


def cross_entropy(model: PreTrainedModel, rows: Tensor) -> Tensor:
    """Mean nats per token of predicting every next token of `rows` [B, T]."""
    next_ids = F.pad(rows[:, 1:], (0, 1), value=-100)  # [B, T]; the last position has no next token: ignored
    return F.cross_entropy(logits_of(model, rows).flatten(0, 1), next_ids.flatten(), ignore_index=-100)


def distillation(model: PreTrainedModel, target: PreTrainedModel, rows: Tensor) -> Tensor:
    """Mean KL divergence from the target's next-token distribution to the model's, in nats per token of
    `rows` [B, T]."""
    with torch.no_grad():
        log_p = logits_of(target, rows).log_softmax(-1)  # [B, T, V]
    log_q = logits_of(model, rows).log_softmax(-1)  # [B, T, V]
    return F.kl_div(log_q.flatten(0, 1), log_p.flatten(0, 1), log_target=True, reduction="batchmean")


def compiled(loss: Callable[..., Tensor], compile_it: bool) -> Callable[..., Tensor]:
    """Rows come in two shapes only, so each shape gets its own code."""
    return torch.compile(loss, dynamic=False) if compile_it else loss


@torch.no_grad()
def heldout_loss(model: PreTrainedModel, heldout: Encoded) -> float:
    """Mean nats per token over the documents, each evaluated on its own from BOS to EOS."""
    total, count = 0.0, 0
    for ids in heldout:
        row = torch.from_numpy(ids[:CONTEXT].astype(np.int64)).to(DEVICE)[None]  # [1, T]
        total += cross_entropy(model, row).item() * (row.shape[1] - 1)
        count += row.shape[1] - 1
    return total / max(1, count)
