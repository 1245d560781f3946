"""Tiny EAGLE-3 heads for tiny targets, and what they must say, computed without a cache."""

import copy
import json
from functools import cache
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import silu
from transformers import LlamaConfig, PhiConfig, PreTrainedModel, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.phi.modeling_phi import PhiRotaryEmbedding

from specdemo.drafters.eagle import Eagle3Config, Eagle3Head, PEagleConfig, PEagleHead
from specdemo.drafters.table import HEAD
from specdemo.runtime.lm import logits_width

LAYER_IDS = (0, 1)


def tiny_head(
    target: PreTrainedModel, seed: int = 3, layer: str = "llama", draft_ids=None, **options
) -> Eagle3Head:
    """A head with random weights in the default dtype. draft_ids: the tokens that it can draft, None for all.
    options: of Eagle3Config, with a mask_token_id of PEagleConfig; layers, shape: of its layers' config."""
    config = target.config.get_text_config()
    width = logits_width(target)
    shape = dict(
        vocab_size=width,
        hidden_size=options.pop("hidden_size", config.hidden_size),
        intermediate_size=48,
        num_hidden_layers=options.pop("layers", 1),
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=options.pop("context", 256),
        **options.pop("shape", {}),
    )
    options = dict(layer_ids=LAYER_IDS, target_hidden_size=config.hidden_size) | options
    layers = (Qwen3Config if layer == "qwen3" else LlamaConfig)(**shape)
    is_parallel, drafts = "mask_token_id" in options, width if draft_ids is None else len(draft_ids)
    own = (PEagleConfig if is_parallel else Eagle3Config)(layers, draft_vocab_size=drafts, **options)
    head = (PEagleHead if is_parallel else Eagle3Head)(own)
    return randomised(head, seed, 2.0, draft_ids)


def randomised(head, seed: int, scale: float, draft_ids):
    """The same head with random weights, ready to run."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in head.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim > 1:
                parameter.copy_(scale * noise / parameter.shape[-1] ** 0.5)
            elif name.endswith("bias"):  # torch has begun it with numbers of its own
                parameter.copy_(0.2 * noise)
            else:
                parameter += 0.2 * noise
        if draft_ids is not None:
            head.d2t.copy_(torch.tensor(draft_ids) - torch.arange(len(draft_ids)))
    head.requires_grad_(False).begin_run()
    return head.eval()


@torch.no_grad()
def hidden_states(target: PreTrainedModel, ids: list[int], layer_ids=LAYER_IDS) -> torch.Tensor:
    """transformers' own [N, A * T], from a copy, on which it leaves hooks."""
    output = copy.deepcopy(target)(torch.tensor([ids]), output_hidden_states=True, use_cache=False)
    return torch.cat([output.hidden_states[i][0] for i in layer_ids], -1)


@cache
def turns(rope: str, sizes: tuple[int, int, int], position: int):
    """cos and sin [r] of one position alone, by transformers."""
    d, heads, longest = sizes
    shape = dict(
        hidden_size=d * heads, num_attention_heads=heads, head_dim=d, max_position_embeddings=longest
    )
    parameters = json.loads(rope)
    if "partial_rotary_factor" in parameters:  # which Llama's own does not know
        rotary = PhiRotaryEmbedding(PhiConfig(**shape, rope_parameters=parameters))
    else:
        rotary = LlamaRotaryEmbedding(LlamaConfig(**shape, rope_parameters=parameters))
    return [each[0, 0].double() for each in rotary(torch.zeros(1, 1, 1), torch.tensor([[position]]))]


def turned(x: Tensor, positions, config) -> Tensor:
    """x [N, heads, d], of which the first r channels are pairs of complex parts."""
    sizes = config.head_dim, config.num_attention_heads, config.max_position_embeddings
    found = [turns(json.dumps(dict(config.rope_parameters)), sizes, at) for at in positions]
    cos, sin = (torch.stack(each)[:, None] for each in zip(*found, strict=True))
    half = cos.shape[-1] // 2
    pairs = torch.complex(x[..., :half], x[..., half : 2 * half])
    pairs = pairs * torch.complex(cos, sin)[..., :half]
    return torch.cat([pairs.real, pairs.imag, x[..., 2 * half :]], -1)


def normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


def part_of(weights: dict[str, Tensor], start: str) -> dict[str, Tensor]:
    return {name.removeprefix(start): each for name, each in weights.items() if name.startswith(start)}


def as_it_is(name: str, x: Tensor):
    return x, lambda y: y


def decoder_layer(
    w, layer, x: Tensor, read: Tensor, before: Tensor, visible: Tensor, first=0, around=as_it_is
):
    """A layer's output [N, H], by the names of its weights. x: the residual stream. read: what the rows read.
    before: what stands before them and gives keys and values only. visible [N, L]: what each row sees.
    first: the first position. around: what is done to what attention and MLP read, and to what they give."""
    d, eps = layer.head_dim, layer.rms_norm_eps
    read, finish = around("attention_conv", read)
    both = torch.cat([before, read])
    q, k, v = (
        (given @ w[f"self_attn.{name}_proj.weight"].T).unflatten(-1, (-1, d))
        for name, given in (("q", read), ("k", both), ("v", both))
    )
    if "self_attn.q_norm.weight" in w:
        q, k = normed(q, w["self_attn.q_norm.weight"], eps), normed(k, w["self_attn.k_norm.weight"], eps)
    positions = [*range(first, first + len(both))]
    q, k = turned(q, positions[len(before) :], layer), turned(k, positions, layer)
    k, v = (each.repeat_interleave(q.shape[1] // k.shape[1], 1) for each in (k, v))
    scores = torch.einsum("nhd,lhd->hnl", q, k) / d**0.5
    attended = torch.einsum("hnl,lhd->nhd", scores.masked_fill(~visible, -torch.inf).softmax(-1), v)
    x = x + finish(attended.flatten(1) @ w["self_attn.o_proj.weight"].T)
    read, finish = around("mlp_conv", normed(x, w["post_attention_layernorm.weight"], eps))
    gated = silu(read @ w["mlp.gate_proj.weight"].T) * (read @ w["mlp.up_proj.weight"].T)
    return x + finish(gated @ w["mlp.down_proj.weight"].T)


@torch.no_grad()
def rows_of(head: Eagle3Head, tokens: Tensor, g: Tensor) -> Tensor:
    """y [N, H] of all tokens at once, by the weights' names and the paper's formulas, in float64."""
    config, x = head.config.layer, g.double()
    weights = {name: value.double() for name, value in head.state_dict().items()}
    embeddings = weights["embed_tokens.weight"] if head.config.own_embeddings else head.targets_embedding()
    every = torch.ones(len(tokens), len(tokens), dtype=torch.bool)
    for i, mask in enumerate(head.masks):
        w = part_of(weights, f"layers.{i}.")
        norm, eps = w["input_layernorm.weight"], config.rms_norm_eps
        read, residual = normed(x, norm, eps), x
        if i == 0:
            h = normed(x, w["hidden_norm.weight"], eps)
            read = torch.cat([normed(embeddings[tokens].double(), norm, eps), h], -1)
            residual = h if head.config.norm_before_residual else x
        visible = every.tril() if mask.window is None else every.tril() & every.triu(1 - mask.window)
        x = decoder_layer(w, config, residual, read, read[:0], visible, head.first_position)
    return x.to(head.dtype)


@torch.no_grad()
def logits_without_cache(head, target, text: list[int], draft: list[int]) -> torch.Tensor:
    """What the head says after text + draft[:i], for each i up to len(draft): [K+1, V]. Everything is
    computed anew: the text's features from the target, those of the draft from the head itself."""
    head.attach_verifier(target)
    g = head.features(hidden_states(target, text[:-1], head.config.layer_ids).to(head.dtype))  # [L-1, H]
    tokens = text[1:]
    rows = []
    for x in [*draft, None]:
        y = rows_of(head, torch.tensor(tokens), g)[-1:]
        own, logits = head.predict(y)
        rows.append(head.for_target(logits))
        g, tokens = torch.cat([g, own]), [*tokens, x]
    return torch.cat(rows)


@torch.no_grad()
def parallel_logits(head, target, text: list[int], draft: list[int]) -> torch.Tensor:
    """What a P-EAGLE head says of each of these K tokens: [K, V]. Everything is computed anew, in one forward
    over the text and the masks."""
    head.attach_verifier(target)
    masks = len(draft) - 1
    true = hidden_states(target, text[:-1], head.config.layer_ids).to(head.dtype)
    hidden = torch.cat([true, head.mask_hidden.reshape(1, -1).repeat(masks, 1)])
    tokens = text[1:] + [head.config.mask_token_id] * masks
    y = rows_of(head, torch.tensor(tokens), head.features(hidden))
    return head.for_target(head.predict(y)[1])[-len(draft) :]


@torch.no_grad()
def fitted(head: Eagle3Head, target: PreTrainedModel, text: list[int]) -> Eagle3Head:
    """The same head with an output layer that is fitted to the target's logits on a text, so that some of its
    drafts are accepted."""
    head.attach_verifier(target)
    g = head.features(hidden_states(target, text[:-1], head.config.layer_ids))
    y = rows_of(head, torch.tensor(text[1:]), g)
    logits = target(torch.tensor([text])).logits[0, 1:].index_select(1, head.target_ids)  # [N, Vd]
    solution = torch.linalg.lstsq(head.norm(y).double(), logits.double()).solution
    head.lm_head.weight.copy_(solution.T)
    return head


def save_authors_head(head: Eagle3Head, path: Path, **changes) -> Path:
    """Writes a head as the authors of EAGLE-3 do: its sizes stand beside each other in config.json, and its
    layer is called midlayer. changes: of config.json."""
    own = head.config
    config = own.layer.to_dict() | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": own.draft_vocab_size,
        "eagle_aux_hidden_state_layer_ids": own.layer_ids and list(own.layer_ids),
    }
    if "eagle_config" in changes:
        del config["eagle_aux_hidden_state_layer_ids"]
    tensors = {name.replace("layers.0.", "midlayer."): value for name, value in head.state_dict().items()}
    return write_head(path, config | changes, tensors)


def save_head(head: Eagle3Head, path: Path, verifier: str | None = None, **changes) -> Path:
    """Writes a head as the speculators library does. changes: of config.json."""
    own = head.config
    alike = ("draft_vocab_size", "target_hidden_size", "norm_before_residual", "norm_before_fc", "fc_norm")
    of_peagle = {"mask_token_id": own.mask_token_id} if head.kind == "peagle" else {}
    config = {name: getattr(own, name) for name in (*alike, "norm_output")} | of_peagle
    config |= {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": head.kind,
        "eagle_aux_hidden_state_layer_ids": own.layer_ids and list(own.layer_ids),
        "transformer_layer_config": own.layer.to_dict(),
        "speculators_config": speculators_config(head.kind, 3, verifier),
    }
    return write_head(path, config | changes, head.state_dict())


def read_head(folder: Path):
    return HEAD.read(HEAD.skeleton(folder), folder, torch.float32, "drafter")


def speculators_config(algorithm: str, tokens: int, verifier: str | None) -> dict:
    return {
        "algorithm": algorithm,
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": tokens}],
        "verifier": {"name_or_path": verifier, "architectures": ["LlamaForCausalLM"]},
    }


def write_head(path: Path, config: dict, tensors: dict[str, torch.Tensor]) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    save_file({name: value.contiguous() for name, value in tensors.items()}, path / "model.safetensors")
    return path
