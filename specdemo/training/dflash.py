"""Trains a DFlash head for a target (Chen et al. 2026, arXiv 2602.06036): blocks that begin at random places
of a text, the anchors, are filled in by one forward, and compared with what the target predicts there."""

import json
import math
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaForCausalLM, Qwen3Config

from specdemo.drafters.dflash.head import WHOLE_BLOCK, DFlashConfig, DFlashHead
from specdemo.drafters.formats import SPECULATOR
from specdemo.runtime.decoder import Layer
from specdemo.training.data import (
    EOS,
    PAD,
    BadInput,
    Encoded,
    Rows,
    encode_documents,
    fingerprint,
    read_documents,
)
from specdemo.training.eagle3 import target_states
from specdemo.training.models import (
    CONTEXT,
    DEVICE,
    History,
    embedding,
    llama_sizes,
    load_trained,
    write_history,
)
from specdemo.training.optimise import optimise
from specdemo.training.options import DFlashOptions
from specdemo.training.train import SCORED, compiled, quartered, target_rows

BLOCK_DECAY = math.exp(-1 / 4)  # how much less each further place counts, as in the paper for blocks of 8
SCORED_EVERY = 4  # tokens between the anchors of a held-out text


def train_dflash(options: DFlashOptions) -> None:
    """Trains the head on the texts, then as long on the target's own writing; saves it in OUT/NAME."""
    target, tokenizer = load_trained(options.out / "target")
    training, heldout = read_documents(options.data, options.files)
    encoded = encode_documents(tokenizer, training)
    head = new_block_head(options, target)
    rows = Rows(encoded, options.length, options.batch, options.seed)
    data = fingerprint([*encoded, embedding(target)])
    on_texts = options.tokens // (options.batch * options.length)
    if options.sampled:
        on_texts //= 2
    loss = compiled(block_loss, options.compile)
    own_rows = cache(partial(target_rows, options, target, encoded, data))

    def loss_at(step: int) -> Tensor:
        batch = rows(step) if step < on_texts or not options.sampled else own_rows()(step - on_texts)
        batch = quartered(batch, step, options.whole_every)
        return loss(head, target, batch, random_anchors(options, step, batch))

    heldout_ids = encode_documents(tokenizer, heldout)[:SCORED]
    score = partial(first_place_loss, head, target, heldout_ids)
    history = optimise(options, head, loss_at, options.tokens, score, data)
    history["target"] = fingerprint([embedding(target)])
    save_block_head(head, options.out / options.name, str(options.out / "target"), history)


def new_block_head(options: DFlashOptions, target: LlamaForCausalLM) -> DFlashHead:
    """A head with random weights, seeded; it uses the target's embeddings and output layer."""
    own = target.config
    if own.hidden_size % options.heads or options.heads % options.kv_heads:
        sizes = "the target's hidden size must be a multiple of --heads"
        raise BadInput(f"{sizes} and --heads a multiple of --kv-heads")
    if options.block < 2:
        raise BadInput("--block must be at least 2: the last token, and a place to draft")
    least = 4 * (options.block + options.anchor_every)
    if options.length % 4 or not least <= options.length <= CONTEXT:
        raise BadInput(f"--length must be a multiple of 4 from {least} (by --block) to {CONTEXT}")
    torch.manual_seed(options.seed)
    special = {name: getattr(own, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    sizes = llama_sizes(options, own.vocab_size, own.hidden_size, options.layers)
    layer = Qwen3Config(**sizes, **special, rms_norm_eps=own.rms_norm_eps)
    depth = own.num_hidden_layers
    ids = tuple(sorted({max(1, depth * part // 5) for part in range(1, 6)}))
    config = DFlashConfig(layer, options.block, PAD, ids, own.vocab_size, (WHOLE_BLOCK,) * options.layers)
    head = DFlashHead(config)
    # The head starts with the logits that the target's output layer gives for a mask's embedding.
    torch.nn.init.zeros_(head.fc.weight)
    head.fc.weight.data[:, -own.hidden_size :].fill_diagonal_(1.0)
    for part in head.layers:
        torch.nn.init.zeros_(part.self_attn.o_proj.weight)
        torch.nn.init.zeros_(part.mlp.down_proj.weight)
    head.norm.weight.data.copy_(target.base_model.norm.weight)
    head = head.to(DEVICE)
    head.attach_verifier(target, "train_only")
    head.begin_run()
    return head


def random_anchors(options: DFlashOptions, step: int, rows: Tensor) -> Tensor:
    """The positions where the blocks of a step begin: [B, n], a function of the seed and the step alone."""
    generator = np.random.default_rng([options.seed, step])
    length = rows.shape[1]
    shape = (len(rows), length // options.anchor_every)
    return torch.from_numpy(generator.integers(1, length - options.block + 1, size=shape)).to(rows.device)


def block_losses(head: DFlashHead, target: LlamaForCausalLM, rows: Tensor, anchors: Tensor) -> Tensor:
    """The mean KL divergence, in nats, from the target's distribution to the head's at each place of the
    blocks: [B - 1]. rows [R, T], anchors [R, n]. What follows the end of a text in a block does not count."""
    size = head.config.block_size
    hidden, last = target_states(target, rows, head.config.layer_ids)  # [R, T, A * H], [R, T, H]
    with torch.autocast(DEVICE.type, torch.bfloat16):
        positions = anchors[..., None] + torch.arange(size, device=rows.device)  # [R, n, B]
        before = positions[..., :-1].flatten(1)  # [R, n * (B - 1)]: where the target predicts each place
        with torch.no_grad():
            log_p = target.get_output_embeddings()(last).float().log_softmax(-1)  # [R, T, V]
            p = log_p.exp()
            entropy = -(p * log_p).sum(-1).gather(1, before)  # [R, n * (B - 1)]
            p = torch.stack([each[index] for each, index in zip(p, before, strict=True)])
            tokens = rows.gather(1, before).view_as(positions[..., :-1])  # [R, n, B - 1]
            counts = ((tokens == EOS).cumsum(-1) == 0).float()
        logits = head.logits(head.drafting_rows(drafted(head, hidden, rows, positions))).float()
        logits = logits.flatten(1, 2)  # [R, n * (B - 1), V]
        losses = logits.logsumexp(-1) - (p * logits).sum(-1) - entropy
    losses = losses.view_as(counts) * counts
    return losses.sum((0, 1)) / counts.sum((0, 1)).clamp(min=1)


def drafted(head: DFlashHead, hidden: Tensor, rows: Tensor, positions: Tensor) -> Tensor:
    """The hidden states [R, n, B, H] of blocks at `positions` [R, n, B] of texts `rows` [R, T]. hidden: see
    `target_states`."""
    context = head.context(hidden)  # [R, T, H]
    text = torch.arange(rows.shape[1], device=rows.device)
    rotation = head.rotary(text, context.dtype)
    cached = [layer.keys_and_values(context, rotation) for layer in head.decoding]
    anchors = positions[..., 0]
    attention = BlocksAttention(head, positions, cached, text < anchors[..., None])
    tokens = head.block_of(rows.gather(1, anchors)[..., None], positions.shape[-1])
    return head(tokens, attention)


def block_loss(head: DFlashHead, target: LlamaForCausalLM, rows: Tensor, anchors: Tensor) -> Tensor:
    """The losses of the places as one loss. Each further place is weighted less."""
    losses = block_losses(head, target, rows, anchors)
    weights = torch.tensor([BLOCK_DECAY**place for place in range(len(losses))], device=losses.device)
    return (weights * losses).sum() / weights.sum()


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


@torch.no_grad()
def first_place_loss(head: DFlashHead, target: LlamaForCausalLM, heldout: Encoded) -> float:
    """Mean nats per token of the first token of blocks, over the documents, each on its own."""
    total, count, size = 0.0, 0, head.config.block_size
    for ids in heldout:
        row = torch.from_numpy(ids[:CONTEXT].astype(np.int64)).to(DEVICE)[None]  # [1, T]
        anchors = torch.tensor(range(1, row.shape[1] - size + 1, SCORED_EVERY), device=DEVICE)
        if not len(anchors):
            continue
        hidden, _ = target_states(target, row, head.config.layer_ids)
        positions = anchors[None, :, None] + torch.arange(size, device=DEVICE)
        logits = head.logits(head.drafting_rows(drafted(head, hidden, row, positions))[0, :, 0])  # [n, V]
        total += F.cross_entropy(logits.float(), row[0, anchors + 1], reduction="sum").item()
        count += len(anchors)
    return total / max(1, count)


def save_block_head(head: DFlashHead, folder: Path, verifier: str, history: History) -> None:
    """Saves the head in the speculators format, in bf16, with the target's place as its verifier."""
    folder.mkdir(parents=True, exist_ok=True)
    config = head.config
    written = {
        "architectures": ["DFlashDraftModel"],
        SPECULATOR: "dflash",
        "speculators_version": "0.9.0",
        "block_size": config.block_size,
        "mask_token_id": config.mask_token_id,
        "draft_vocab_size": config.draft_vocab_size,
        "aux_hidden_state_layer_ids": list(config.layer_ids),
        "sample_from_anchor": config.samples_from_anchor,
        "sliding_window_non_causal": False,
        "transformer_layer_config": config.layer.to_diff_dict(),
        "speculators_config": {
            "algorithm": "dflash",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": config.places}],
            "verifier": {"name_or_path": verifier, "architectures": ["LlamaForCausalLM"]},
        },
        "dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")
    own = {name: value.to(torch.bfloat16).contiguous().cpu() for name, value in head.state_dict().items()}
    save_file(own, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    write_history(folder, history)
