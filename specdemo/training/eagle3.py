"""Trains an EAGLE-3 head for a target (Li et al. 2025): each step of the training drafts from the head's own
outputs, as it will when it is used ("training-time test")."""

import json
import math
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from specdemo.drafters.config_reader import EMBEDDINGS
from specdemo.drafters.eagle3.head import Eagle3Config, Eagle3Head
from specdemo.drafters.formats import SPECULATOR
from specdemo.drafters.heads import DraftHead
from specdemo.drafters.kinds import kind_of
from specdemo.drafters.speculators import read_head, read_speculator
from specdemo.runtime.decoder import Layer
from specdemo.training.data import BadInput, Encoded, Rows, encode_documents, fingerprint, read_documents
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
from specdemo.training.options import Eagle3Options
from specdemo.training.train import SCORED, compiled, quartered, target_rows

DECAY = 0.8  # how much less each further step counts: a token is only judged if those before it were accepted


def train_eagle3(options: Eagle3Options) -> None:
    """Trains the head on the texts, then as long on the target's own writing; saves it in OUT/NAME."""
    target, tokenizer = load_trained(options.out / "target")
    training, heldout = read_documents(options.data, options.files)
    encoded = encode_documents(tokenizer, training)
    head = new_head(options, target)
    rows = Rows(encoded, options.length, options.batch, options.seed)
    data = fingerprint([*encoded, embedding(target)])
    on_texts = options.tokens // (options.batch * options.length)
    if options.sampled:
        on_texts //= 2
    loss = compiled(unrolled_loss, options.compile)
    own_rows = cache(partial(target_rows, options, target, encoded, data))

    def loss_at(step: int) -> Tensor:
        batch = rows(step) if step < on_texts or not options.sampled else own_rows()(step - on_texts)
        return loss(head, target, quartered(batch, step, options.whole_every), options.steps)

    heldout_ids = encode_documents(tokenizer, heldout)[:SCORED]
    score = partial(first_token_loss, head, target, heldout_ids)
    history = optimise(options, head, loss_at, options.tokens, score, data)
    history["target"] = fingerprint([embedding(target)])
    save_head(head, options.out / options.name, str(options.out / "target"), options.steps, history)


def new_head(options: Eagle3Options, target: LlamaForCausalLM) -> Eagle3Head:
    """A head with random weights, seeded, and the target's output layer; it uses the target's embeddings."""
    own = target.config
    if own.hidden_size % options.heads or options.heads % options.kv_heads:
        sizes = "the target's hidden size must be a multiple of --heads"
        raise BadInput(f"{sizes} and --heads a multiple of --kv-heads")
    least = 4 * (options.steps + 2)
    if options.length % 4 or not least <= options.length <= CONTEXT:
        raise BadInput(f"--length must be a multiple of 4 from {least} (by --steps) to {CONTEXT}")
    torch.manual_seed(options.seed)
    special = {name: getattr(own, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    layer = LlamaConfig(**llama_sizes(options, own.vocab_size, own.hidden_size, 1), **special)
    depth = own.num_hidden_layers
    ids = (depth // 4, depth // 2, depth)
    config = Eagle3Config(layer, own.vocab_size, layer_ids=ids, fc_norm=True, own_embeddings=False)
    head = Eagle3Head(config)
    kind_of(head).check_fit(head, target, options.name, "target")
    # The head starts with what the target has just predicted: the layer as the identity, g as the last
    # feature, and the output layer as the target's.
    torch.nn.init.zeros_(head.fc.weight)
    head.fc.weight.data[:, -own.hidden_size :].fill_diagonal_(1.0)
    torch.nn.init.zeros_(head.layers[0].self_attn.o_proj.weight)
    torch.nn.init.zeros_(head.layers[0].mlp.down_proj.weight)
    head.lm_head.weight.data.copy_(target.get_output_embeddings().weight)
    head.norm.weight.data.copy_(target.base_model.norm.weight)
    head = head.to(DEVICE)
    head.attach_verifier(target, "train_only")
    return head


@torch.no_grad()
def target_states(target: LlamaForCausalLM, rows: Tensor, layer_ids: Sequence[int]) -> tuple[Tensor, Tensor]:
    """What the target computes for token ids [B, T]: the streams that enter these layers, side by side [B, T,
    A * H], and the last hidden states, normed [B, T, H]. The number of layers stands for the stream after the
    last one."""
    seen = []
    hooks = [
        module.register_forward_pre_hook(lambda _, a, __, i=i: seen.append((i, a[0])), with_kwargs=True)
        for i, module in enumerate([*target.base_model.layers, target.base_model.norm])
        if i in layer_ids
    ]
    try:
        with torch.autocast(DEVICE.type, torch.bfloat16):
            last = target.base_model(input_ids=rows, use_cache=False).last_hidden_state
    finally:
        for hook in hooks:
            hook.remove()
    streams = dict(seen)
    return torch.cat([streams[i] for i in layer_ids], -1), last


def unrolled_losses(head: Eagle3Head, hidden: Tensor, last: Tensor, rows: Tensor, steps: int) -> list[Tensor]:
    """The mean KL divergence, in nats, from the target's distribution to the head's at each of `steps`
    drafted places, from every prefix of `rows` [B, T]. hidden, last: see `target_states`.

    Step s drafts the token after x_(t+s+1) from the pairs (x_1, g_0) ... (x_(t+1), g_t), whose features g are
    the target's, and from its own outputs of the steps before, for the same t."""
    with torch.autocast(DEVICE.type, torch.bfloat16):
        with torch.no_grad():
            log_p = head.verifier_logits(last).float().log_softmax(-1)  # [B, T, V]
            p = log_p.exp()
            entropy = -(p * log_p).sum(-1)  # [B, T]
        g = head.features(hidden[:, :-1])  # [B, T - 1, H]
        attention = [UnrolledAttention(head)]
        losses = []
        for step in range(steps):
            tokens = rows[:, 1 + step :]  # [B, N]
            count = tokens.shape[1]
            y = head(tokens, g[:, :count], attention)
            g, logits = head.predict(y)
            logits = logits.float()
            expected = (p[:, 1 + step :] * logits).sum(-1)  # [B, N]
            cross_entropy = logits.logsumexp(-1) - expected
            losses.append((cross_entropy - entropy[:, 1 + step :]).mean())
    return losses


def unrolled_loss(head: Eagle3Head, target: LlamaForCausalLM, rows: Tensor, steps: int) -> Tensor:
    """The losses of the steps as one loss. Each further step is weighted less."""
    hidden, last = target_states(target, rows, head.config.layer_ids)
    losses = unrolled_losses(head, hidden, last, rows, steps)
    weights = [DECAY**step for step in range(steps)]
    return sum(weight * loss for weight, loss in zip(weights, losses, strict=True)) / sum(weights)


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


@torch.no_grad()
def first_token_loss(head: Eagle3Head, target: LlamaForCausalLM, heldout: Encoded) -> float:
    """Mean nats per token of the first token that the head drafts, over the documents, each on its own."""
    total, count = 0.0, 0
    for ids in heldout:
        row = torch.from_numpy(ids[:CONTEXT].astype(np.int64)).to(DEVICE)[None]  # [1, T]
        hidden, _ = target_states(target, row, head.config.layer_ids)
        tokens, g = row[:, 1:-1], head.features(hidden[:, :-2])
        _, logits = head.predict(head(tokens, g, [UnrolledAttention(head)]))
        total += F.cross_entropy(logits[0].float(), row[0, 2:], reduction="sum").item()
        count += tokens.shape[1]
    return total / max(1, count)


def save_head(head: Eagle3Head, folder: Path, verifier: str, steps: int, history: History) -> None:
    """Saves the head in the speculators format, in bf16, with the target's place as its verifier. The
    target's embeddings are saved with it: speculators 0.9 reads a head without any as one of zeros."""
    folder.mkdir(parents=True, exist_ok=True)
    config = head.config
    written = {
        "architectures": ["Eagle3DraftModel"],
        SPECULATOR: "eagle3",
        "speculators_version": "0.9.0",
        **{name: getattr(config, name) for name in ("draft_vocab_size", "norm_before_residual")},
        **{name: getattr(config, name) for name in ("norm_before_fc", "fc_norm", "norm_output")},
        "eagle_aux_hidden_state_layer_ids": None if config.layer_ids is None else list(config.layer_ids),
        "transformer_layer_config": {**config.layer.to_diff_dict(), "num_hidden_layers": 1},
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": steps}],
            "verifier": {"name_or_path": verifier, "architectures": ["LlamaForCausalLM"]},
        },
        "dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")
    own = head.state_dict()
    if head.shared_embedding:
        own[EMBEDDINGS] = head.shared_embedding[0]
    for name, value in own.items():
        own[name] = (value.to(torch.bfloat16) if value.is_floating_point() else value).contiguous().cpu()
    save_file(own, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    write_history(folder, history)


def load_trained_head(folder: Path, target: LlamaForCausalLM) -> DraftHead:
    """A saved head of any kind in fp32, with the target's embeddings."""
    head = read_head(folder, read_speculator(folder), torch.float32).to(DEVICE)
    head.begin_run()
    head.attach_verifier(target, "train_only")
    return head
