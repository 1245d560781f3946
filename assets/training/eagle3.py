"""Trains an EAGLE-3 head (Li et al. 2025): each step of the training drafts from the head's own outputs, as
it will when it is used ("training-time test")."""

import math
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import Module, Sequential
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from assets.training.heads import HeadTrainer, start_at_target, target_states
from assets.training.options import Options
from assets.training.trainer import divergence, layer_config
from specdemo.drafters.configs import EMBEDDINGS
from specdemo.drafters.eagle import Eagle3Config, Eagle3Head
from specdemo.runtime.decoder import Layer

DECAY = 0.8  # how much less each further step counts: a token is only judged if those before it were accepted


class Eagle3Trainer(HeadTrainer):
    @staticmethod
    def new(options: Options, target: LlamaForCausalLM, vocab: int) -> Sequential:
        """A head that uses the target's embeddings and begins with its output layer."""
        layer = LlamaConfig(**layer_config(options, vocab, target.config.hidden_size, 1))
        depth = target.config.num_hidden_layers
        ids = (depth // 4, depth // 2, depth)
        head = Eagle3Head(Eagle3Config(layer, vocab, ids, fc_norm=True, own_embeddings=False))
        head.lm_head.weight.data.copy_(target.get_output_embeddings().weight)
        start_at_target(head, target)
        return Sequential(head)

    def loss(self, model: Module, rows: Tensor) -> Tensor:
        losses = unrolled_losses(model[0], self.target, rows, self.options.draft_steps)
        weights = [DECAY**step for step in range(len(losses))]
        return sum(weight * loss for weight, loss in zip(weights, losses, strict=True)) / sum(weights)

    def nats(self, model: Module, rows: Tensor) -> Tensor:
        """Of the first token that the head drafts."""
        head = model[0]
        hidden, _ = target_states(self.target, rows, head.config.layer_ids)
        y = head(rows[:, 1:-1], head.features(hidden[:, :-2]), [UnrolledAttention(head)])
        logits = head.predict(y)[1].float()
        return cross_entropy(logits.flatten(0, 1), rows[:, 2:].flatten(), reduction="none")

    def save(self, folder: Path, tokenizer: PreTrainedTokenizerFast) -> None:
        """With the target's embeddings: speculators 0.9 reads a head without any as one of zeros."""
        head = self.model[0]
        names = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
        config = {
            "architectures": ["Eagle3DraftModel"],
            "eagle_aux_hidden_state_layer_ids": head.config.layer_ids,
            **{name: getattr(head.config, name) for name in names},
        }
        self.save_head(folder, self.options.draft_steps, config, **{EMBEDDINGS: head.targets_embedding()})


def unrolled_losses(head: Eagle3Head, target: LlamaForCausalLM, rows: Tensor, steps: int) -> list[Tensor]:
    """The mean KL divergence, in nats, from the target's distribution to the head's at each of `steps`
    drafted places, from every prefix of rows [B, T].

    Step s drafts the token after x_(t+s+1) from the pairs (x_1, g_0) ... (x_(t+1), g_t), whose features g are
    the target's, and from its own outputs of the steps before, for the same t."""
    hidden, log_p = target_states(target, rows, head.config.layer_ids)
    g = head.features(hidden[:, :-1])  # [B, T - 1, H]
    attention, losses = [UnrolledAttention(head)], []
    for step in range(steps):
        tokens = rows[:, 1 + step :]  # [B, N]
        g, logits = head.predict(head(tokens, g[:, : tokens.shape[1]], attention))
        losses.append(divergence(log_p[:, 1 + step :], logits).mean())
    return losses


class UnrolledAttention:
    """The `Attention` of all steps of one batch: the first step is causal; a later step's query sees what the
    first one's saw from the same place, and its own chain: one key of each step since, at the same index."""

    def __init__(self, head: Eagle3Head):
        self.head = head
        self.keys: list[Tensor] = []  # of each step [B, N, groups, d]
        self.values: list[Tensor] = []

    def __call__(self, layer: Layer, qkv: Tensor) -> Tensor:
        first = 1 + len(self.keys)
        positions = torch.arange(first, first + qkv.shape[1], device=qkv.device)
        rotation = self.head.rotary(positions, qkv.dtype)
        q, k, v = layer.by_head(qkv, rotation)  # [B, N, heads, d], [B, N, groups, d] twice
        self.keys.append(k)
        self.values.append(v)
        n, heads, d = q.shape[1:]
        groups = k.shape[2]
        q = q.unflatten(2, (groups, heads // groups))  # [B, N, groups, shared, d]
        keys, values = ([part[:, :n] for part in parts] for parts in (self.keys, self.values))
        prefix = torch.einsum("bigsd,bjgd->bgsij", q, keys[0])  # [B, groups, shared, N, N]
        future = torch.ones(n, n, dtype=torch.bool, device=q.device).triu(1)
        prefix = prefix.masked_fill(future, -torch.inf)
        chain = [torch.einsum("bigsd,bigd->bgsi", q, key)[..., None] for key in keys[1:]]
        weights = (torch.cat([prefix, *chain], -1) / math.sqrt(d)).softmax(-1, dtype=torch.float32)
        weights = weights.to(q.dtype)
        output = torch.einsum("bgsij,bjgd->bigsd", weights[..., :n], values[0])
        for step, value in enumerate(values[1:]):
            output = output + torch.einsum("bgsi,bigd->bigsd", weights[..., n + step], value)
        return output.flatten(2)
