"""Tiny DFlash, DFlash 2 and DSpark heads for tiny targets, and what they must say, computed anew and in
another way."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel, Qwen3Config

from specdemo.drafters.dflash import WHOLE_BLOCK, DFlash2Config, DFlash2Head, DFlashConfig, DFlashHead
from specdemo.runtime.decoder import RowMask
from specdemo.runtime.lm import logits_width
from tests.heads import (
    as_it_is,
    decoder_layer,
    hidden_states,
    normed,
    part_of,
    randomised,
    speculators_config,
    write_head,
)

LAYERS = 2
DFLASH2 = dict(taps=2, group_size=8, selector_rank=6, candidates=4)  # the options of a DFlash 2 head
# What config.json calls them.
DFLASH2_NAMES = dict(
    taps="conv_kernel_size",
    group_size="conv_group_size",
    selector_rank="selector_rank",
    candidates="selector_top_k",
)


def tiny_block_head(
    target: PreTrainedModel,
    seed: int = 3,
    draft_ids=None,
    block_size=5,
    context=256,
    intermediate_size=48,
    head_dim=8,
    **options,
) -> DFlashHead:
    """A head with random weights in the default dtype. draft_ids: the tokens that it can draft, None for all.
    options: of DFlashConfig, or of DFlash2Config."""
    config = target.config.get_text_config()
    width = logits_width(target)
    layer = Qwen3Config(
        vocab_size=width,
        hidden_size=config.hidden_size,
        intermediate_size=intermediate_size,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=head_dim,
        max_position_embeddings=context,
    )
    options = dict(masks=(WHOLE_BLOCK,) * LAYERS, layer_ids=(0, 1)) | options
    drafts = width if draft_ids is None else len(draft_ids)
    is_second = "taps" in options
    options |= dict(mask_token_id=1, draft_vocab_size=drafts)
    own = (DFlash2Config if is_second else DFlashConfig)(layer, block_size, **options)
    head = (DFlash2Head if is_second else DFlashHead)(own)
    return randomised(head, seed, 1.5, draft_ids)


@torch.no_grad()
def block_logits(
    head: DFlashHead,
    target: PreTrainedModel,
    text: list[int],
    draft: list[int],
    embed: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """The logits [K, V] from which each of these K tokens was drafted after the text, by the weights' names
    and the papers' formulas, without a cache. embed: gives tokens' embeddings, in place of the target's raw
    ones times what the head's config says."""
    config, weights = head.config, {name: value.double() for name, value in head.state_dict().items()}
    rows = len(draft) + (not config.samples_from_anchor)
    past = len(text) - 1
    tokens = torch.tensor([text[-1]] + [config.mask_token_id] * (rows - 1))
    raw = target.get_input_embeddings().weight
    x = (raw[tokens] * config.embedding_scale if embed is None else embed(tokens)).double()
    features = torch.zeros(0, weights["fc.weight"].shape[1]).double()
    if past:
        features = hidden_states(target, text[:-1], config.layer_ids).double()
    eps = config.layer.rms_norm_eps
    context = normed(features @ weights["fc.weight"].T, weights["hidden_norm.weight"], eps)
    for index, mask in enumerate(config.masks):
        w = part_of(weights, f"layers.{index}.")
        read = normed(x, w["input_layernorm.weight"], eps)
        around = partial(convolutions, config, w)
        x = decoder_layer(w, config.layer, x, read, context, seen(mask, past, rows), around=around)
    x = normed(x, weights["norm.weight"], eps)[-len(draft) :]
    output = weights.get("lm_head.weight", target.get_output_embeddings().weight.double())
    logits = x @ output.T * config.logit_scale
    if config.logit_cap:
        logits = config.logit_cap * torch.tanh(logits / config.logit_cap)
    if isinstance(config, DFlash2Config):
        return selected(config, weights, x, logits, [text[-1], *draft[:-1]])
    if config.markov_rank:
        first, second = (weights[f"markov_head.markov_w{which}.weight"] for which in (1, 2))
        logits = logits + first[[text[-1], *draft[:-1]]] @ second.T
    if head.d2t is None:
        return logits
    wide = torch.full((len(draft), config.layer.vocab_size), -torch.inf).double()
    wide[:, torch.arange(len(head.d2t)) + head.d2t] = logits
    return wide


def seen(mask: RowMask, past: int, rows: int) -> Tensor:
    """Which of the text's and the block's places each row attends to: [rows, past + rows]."""
    found = torch.zeros(rows, past + rows, dtype=torch.bool)
    for row in range(rows):
        for place in range(past + rows):
            own = past + row
            in_window = mask.window is None or place >= (
                past - mask.window if mask.from_first else own - mask.window + 1
            )
            found[row, place] = in_window and (place <= own or mask.later)
    return found


def convolutions(config: DFlashConfig, w, name: str, h: Tensor):
    """h [N, H] after the first of a pair of convolutions, and the second one, as vLLM defines them. A head of
    another kind has none."""
    if f"{name}.base_kernel" not in w:
        return as_it_is(name, h)
    base = w[f"{name}.base_kernel"]  # [2, taps, H]
    added = (h @ w[f"{name}.kernel_projection.weight"].T).view(len(h), 2, config.taps, -1)

    def convolve(side: int, x: Tensor) -> Tensor:
        result = torch.zeros_like(x)
        for tap in range(min(config.taps, len(x))):
            kernel = base[side, tap] + added[:, side, tap].repeat_interleave(config.group_size, -1)
            result[tap:] += kernel[tap:] * x[: len(x) - tap]
        return result

    return convolve(0, h), partial(convolve, 1)


def selected(config: DFlash2Config, weights, x: Tensor, logits: Tensor, before: list[int]) -> Tensor:
    """The logits [K, V] of the places whose tokens before them are these, as the authors' class defines them:
    U(b) + <A(a) * H x, B(b)> of the likeliest tokens b of a place."""
    name = "candidate_selector."
    first, second = (weights[f"{name}{which}_codebook"] for which in ("predecessor", "successor"))
    gates, result = (
        x @ weights[f"{name}hidden_projection.weight"].T,
        torch.full_like(logits, -torch.inf),
    )
    for place, token in enumerate(before):
        for candidate in logits[place].argsort(descending=True)[: config.candidates].tolist():
            bilinear = (first[token] * gates[place] * second[candidate]).sum()
            result[place, candidate] = logits[place, candidate] + bilinear
    return result


def sizes_of_second(config: DFlashConfig) -> dict[str, int]:
    """What config.json says of a DFlash 2 head alone."""
    is_second = isinstance(config, DFlash2Config)
    return {key: getattr(config, name) for name, key in DFLASH2_NAMES.items()} if is_second else {}


def save_block_head(head: DFlashHead, path: Path, verifier: str | None = None, **changes) -> Path:
    """Writes a head as the speculators library does. changes: of config.json."""
    own = head.config
    is_dspark = bool(own.markov_rank) or own.has_confidence
    config = sizes_of_second(own) | {
        "speculators_model_type": "dspark" if is_dspark else head.kind,
        "block_size": own.block_size,
        "mask_token_id": own.mask_token_id,
        "draft_vocab_size": own.draft_vocab_size,
        "aux_hidden_state_layer_ids": list(own.layer_ids),
        "sample_from_anchor": own.samples_from_anchor,
        "transformer_layer_config": own.layer.to_dict(),
        "speculators_config": speculators_config("dflash", own.places, verifier),
    }
    if is_dspark:
        config |= {
            "markov_rank": own.markov_rank,
            "markov_head_type": "vanilla",
            "enable_confidence_head": own.has_confidence,
        }
    return write_head(path, config | changes, head.state_dict())


def save_authors_block_head(head: DFlashHead, path: Path, **changes) -> Path:
    """Writes a head as its authors do. changes: of config.json."""
    own = head.config
    config = own.layer.to_dict() | {
        "architectures": [f"DFlash{'2' * (head.kind == 'dflash2')}DraftModel"],
        "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
        "block_size": own.block_size,
        "dflash_config": {
            "mask_token_id": own.mask_token_id,
            "target_layer_ids": [i - 1 for i in own.layer_ids],
        }
        | sizes_of_second(own),
    }
    return write_head(path, config | changes, head.state_dict())
