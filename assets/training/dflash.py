"""Trains a DFlash head (Chen et al. 2026, arXiv 2602.06036): blocks that begin at random places of a text,
the anchors, are filled in by one forward, and compared with what the target predicts there."""

import math
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import Module, Sequential
from torch.nn.functional import cross_entropy
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast, Qwen3Config

from assets.training.data import EOS, PAD
from assets.training.heads import HeadTrainer, start_at_target, target_states
from assets.training.options import Options
from assets.training.trainer import divergence, layer_config
from specdemo.drafters.dflash import WHOLE_BLOCK, DFlashConfig, DFlashHead
from specdemo.runtime.decoder import Layer

DECAY = math.exp(-1 / 4)  # how much less each further place counts, as in the paper for blocks of 8
SCORED_EVERY = 4  # tokens between the anchors of a held-out text


class DFlashTrainer(HeadTrainer):
    @staticmethod
    def new(options: Options, target: LlamaForCausalLM, vocab: int) -> Sequential:
        """A head that uses the target's embeddings and its output layer."""
        own, masks = target.config, (WHOLE_BLOCK,) * options.layers
        layer = Qwen3Config(**layer_config(options, vocab, own.hidden_size, options.layers))
        ids = tuple(sorted({max(1, own.num_hidden_layers * part // 5) for part in range(1, 6)}))
        head = DFlashHead(DFlashConfig(layer, options.block, PAD, ids, vocab, masks))
        start_at_target(head, target)
        return Sequential(head)

    def loss(self, model: Module, rows: Tensor) -> Tensor:
        latest, count = rows.shape[1] - self.options.block, rows.shape[1] // self.options.anchor_every
        anchors = torch.randint(1, latest + 1, (len(rows), count), device=rows.device)
        losses = block_losses(model[0], self.target, rows, anchors)
        weights = DECAY ** torch.arange(len(losses), device=rows.device)
        return (weights * losses).sum() / weights.sum()

    def nats(self, model: Module, rows: Tensor) -> Tensor:
        """Of the first token of blocks."""
        head = model[0]
        end = max(1, rows.shape[1] - head.config.block_size + 1)
        anchors = torch.arange(1, end, SCORED_EVERY, device=rows.device)
        hidden, _ = target_states(self.target, rows, head.config.layer_ids)
        logits = drafted(head, hidden, rows, anchors[None])[0, :, 0].float()  # [n, V]
        return cross_entropy(logits, rows[0, anchors + 1], reduction="none")

    def save(self, folder: Path, tokenizer: PreTrainedTokenizerFast) -> None:
        config = self.model[0].config
        written = {
            "architectures": ["DFlashDraftModel"],
            "block_size": config.block_size,
            "mask_token_id": config.mask_token_id,
            "aux_hidden_state_layer_ids": config.layer_ids,
            "sample_from_anchor": config.samples_from_anchor,
            "sliding_window_non_causal": False,
        }
        self.save_head(folder, config.places, written)


def block_losses(head: DFlashHead, target: LlamaForCausalLM, rows: Tensor, anchors: Tensor) -> Tensor:
    """The mean KL divergence, in nats, from the target's distribution to the head's at each place of the
    blocks: [B - 1]. rows [R, T], anchors [R, n]. What follows the end of a text in a block does not count."""
    hidden, log_p = target_states(target, rows, head.config.layer_ids)  # [R, T, A * H], [R, T, V]
    places = torch.arange(head.config.block_size - 1, device=rows.device)
    before = anchors[..., None] + places  # [R, n, B - 1]: where the target predicts each place
    expected = torch.stack([each[index] for each, index in zip(log_p, before, strict=True)])
    tokens = rows.gather(1, before.flatten(1)).view_as(before)
    counts = ((tokens == EOS).cumsum(-1) == 0).float()
    losses = divergence(expected, drafted(head, hidden, rows, anchors)) * counts
    return losses.sum((0, 1)) / counts.sum((0, 1)).clamp(min=1)


def drafted(head: DFlashHead, hidden: Tensor, rows: Tensor, anchors: Tensor) -> Tensor:
    """The logits [R, n, B - 1, V] of blocks that begin at `anchors` [R, n] of texts `rows` [R, T]. hidden:
    see `target_states`."""
    positions = anchors[..., None] + torch.arange(head.config.block_size, device=rows.device)  # [R, n, B]
    context = head.context(hidden)  # [R, T, H]
    text = torch.arange(rows.shape[1], device=rows.device)
    rotation = head.rotary(text, context.dtype)
    cached = [layer.keys_and_values(context, rotation) for layer in head.decoding]
    attention = BlocksAttention(head, positions, cached, text < anchors[..., None])
    tokens = head.block_of(rows.gather(1, anchors)[..., None], head.config.block_size)
    return head.logits(head.drafting_rows(head(tokens, attention)))


class BlocksAttention:
    """The `Attention` of many blocks of each text: a row sees the text before its anchor, and its block."""

    def __init__(
        self, head: DFlashHead, positions: Tensor, cached: list[tuple[Tensor, Tensor]], visible: Tensor
    ):
        """The attention of blocks at `positions` [R, n, B]. cached: for each layer the text's keys and
        values, [R, T, groups, d]. visible [R, n, T]."""
        self.head, self.positions = head, positions
        self.cached, self.hidden = cached, ~visible

    def __call__(self, layer: Layer, qkv: Tensor) -> Tensor:
        rotation = self.head.rotary(self.positions, qkv.dtype)
        q, k, v = layer.by_head(qkv, rotation)  # [R, n, B, heads, d], [R, n, B, groups, d] twice
        keys, values = self.cached[layer.attends.index]
        heads, d = q.shape[-2:]
        groups, length = k.shape[-2], keys.shape[1]
        q = q.unflatten(-2, (groups, heads // groups))  # [R, n, B, groups, shared, d]
        text = torch.einsum("rnbgsd,rtgd->rngsbt", q, keys)
        text = text.masked_fill(self.hidden[:, :, None, None, None], -torch.inf)
        block = torch.einsum("rnbgsd,rncgd->rngsbc", q, k)
        weights = (torch.cat([text, block], -1) / math.sqrt(d)).softmax(-1, dtype=torch.float32).to(q.dtype)
        output = torch.einsum("rngsbt,rtgd->rnbgsd", weights[..., :length], values)
        output = output + torch.einsum("rngsbc,rncgd->rnbgsd", weights[..., length:], v)
        return output.flatten(-3)
