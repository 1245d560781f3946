"""EAGLE-3 heads of several layers, with sliding windows, and with every kind of rotary positions: what they
say, row by row, against a computation that shares no code with them."""

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, PhiConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.phi.modeling_phi import PhiRotaryEmbedding

from specdemo import Params, generate, load_pair
from specdemo.drafters.config_reader import LAYER_CONFIG
from specdemo.drafters.eagle3.head import CachedEagle3
from specdemo.drafters.speculators import read_head, read_speculator
from specdemo.errors import LoadError
from tests.checkpoints import change_config
from tests.heads import save_authors_head, save_head, tiny_head
from tests.models.test_eagle3_drafter import said_anew
from tests.tiny import greedy, tiny

LENGTH = 24  # rows
TWO = ["sliding_attention", "full_attention"]
LONG = dict(rope_type="longrope", rope_theta=10_000.0, original_max_position_embeddings=9, factor=8.0)
LONG |= dict(short_factor=[1.0, 1.5, 2.0, 2.5], long_factor=[2.0, 5.0, 9.0, 16.0])
SHAPES = {
    "two layers": dict(layers=2),
    "three layers with norms": dict(layers=3, layer="qwen3", norm_before_residual=True),
    "a window": dict(shape=dict(sliding_window=4, layer_types=TWO[:1])),
    "a window in one of two layers": dict(layers=2, shape=dict(sliding_window=5, layer_types=TWO)),
    "half of the channels rotated": dict(
        layers=2,
        shape=dict(rope_parameters=dict(rope_type="default", rope_theta=500.0, partial_rotary_factor=0.5)),
    ),
    "yarn": dict(shape=dict(rope_parameters=dict(rope_type="yarn", rope_theta=100.0, factor=4.0))),
    "dynamic": dict(shape=dict(rope_parameters=dict(rope_type="dynamic", rope_theta=100.0, factor=4.0))),
    "longrope": dict(layers=2, shape=dict(rope_parameters=LONG)),
}


def normed(x, weight, eps):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight


def cos_and_sin(config: LlamaConfig, position: int):
    """Of one position alone, by transformers: [r] each."""
    part = config.rope_parameters.get("partial_rotary_factor", 1)
    if part == 1:
        rotary = LlamaRotaryEmbedding(config)
    else:  # Llama's own does not know it
        heads = config.num_attention_heads
        shape = dict(hidden_size=config.head_dim * heads, num_attention_heads=heads)
        rotary = PhiRotaryEmbedding(PhiConfig(**shape, rope_parameters=dict(config.rope_parameters)))
    both = rotary(torch.zeros(1, 1, 1), torch.tensor([[position]]))
    return [each[0, 0].double().numpy() for each in both]


def turned(x, cos, sin):
    """x [d], of which the first r channels are pairs of complex parts."""
    r = len(cos)
    pairs = x[: r // 2] + 1j * x[r // 2 : r]
    pairs = pairs * (cos + 1j * sin)[: r // 2]
    return np.concatenate([pairs.real, pairs.imag, x[r:]])


def plainly(head, tokens, g, positions):
    """y [N, H] in float64, a row, a head and a key at a time."""
    config, weights = head.config.layer, {name: w.double().numpy() for name, w in head.state_dict().items()}
    heads, groups = config.num_attention_heads, config.num_key_value_heads
    d, eps = config.head_dim, config.rms_norm_eps
    turns = [cos_and_sin(config, position) for position in positions]
    x = g
    for i in range(config.num_hidden_layers):
        w = {name[10:]: each for name, each in weights.items() if name.startswith(f"layers.{i}.self_attn.")}
        w |= {name[9:]: each for name, each in weights.items() if name.startswith(f"layers.{i}.")}
        read, residual = normed(x, w["input_layernorm.weight"], eps), x
        if i == 0:
            e = normed(weights["embed_tokens.weight"][tokens], w["input_layernorm.weight"], eps)
            h = normed(x, w["hidden_norm.weight"], eps)
            read, residual = np.concatenate([e, h], -1), h if head.config.norm_before_residual else x
        q, k, v = (
            (read @ w[f"self_attn.{name}_proj.weight"].T).reshape(len(x), -1, d) for name in ("q", "k", "v")
        )
        if "self_attn.q_norm.weight" in w:
            q = normed(q, w["self_attn.q_norm.weight"], eps)
            k = normed(k, w["self_attn.k_norm.weight"], eps)
        types = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
        window = config.sliding_window if types[i] == "sliding_attention" else len(x)
        attended = np.zeros((len(x), heads, d))
        for row in range(len(x)):
            for j in range(heads):
                group, first = j * groups // heads, max(0, row - window + 1)
                own = turned(q[row, j], *turns[row])
                scores = [own @ turned(k[n, group], *turns[n]) / d**0.5 for n in range(first, row + 1)]
                shares = np.exp(np.array(scores) - max(scores))
                attended[row, j] = shares / shares.sum() @ v[first : row + 1, group]
        x = residual + attended.reshape(len(x), -1) @ w["self_attn.o_proj.weight"].T
        inner = normed(x, w["post_attention_layernorm.weight"], eps)
        gate, up = inner @ w["mlp.gate_proj.weight"].T, inner @ w["mlp.up_proj.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ w["mlp.down_proj.weight"].T
    return x


@pytest.mark.parametrize("name", SHAPES)
def test_rows_are_those_of_a_plain_computation(name):
    """In parts of every length, and over what rejected drafts have left."""
    target = tiny(vocab_size=40, hidden_size=32, num_hidden_layers=3)
    head = tiny_head(target, **SHAPES[name])
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(40, (LENGTH,), generator=generator)
    g = torch.randn(LENGTH, head.config.hidden_size, generator=generator)
    expected = plainly(head, tokens.numpy(), g.double().numpy(), range(1, LENGTH + 1))
    cached = CachedEagle3(head, target)
    cached.grow(LENGTH)
    said, start = [], 0
    with torch.no_grad():
        for rows in (7, 1, 2, 1, 4, 9):
            rejected = min(3, LENGTH - start)
            cached.rows(tokens[:rejected], g[:rejected].clone(), torch.tensor(start))
            part = slice(start, start + rows)
            said.append(cached.rows(tokens[part], g[part].clone(), torch.tensor(start)))
            start += rows
    said = torch.cat(said).double().numpy()
    scale = np.abs(expected).max()
    assert np.abs(said - expected).max() < 1e-4 * scale and scale > 1
    if name != "dynamic":  # which is the default one up to max_position_embeddings
        options = {key: value for key, value in SHAPES[name].items() if key != "shape"}
        plain = tiny_head(target, **(options if "shape" in SHAPES[name] else {}))
        others = plainly(plain, tokens.numpy(), g.double().numpy(), range(1, LENGTH + 1))
        assert np.abs(others - expected).max() > 1e-2 * scale, "each kind makes a difference here"


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, save",
    [("three layers with norms", save_head), ("a window in one of two layers", save_authors_head)],
)
def test_they_are_read_and_draft(name, save, tmp_path):
    """Sampled, every q is what the head says without a cache; greedily the text is the target's."""
    target = tiny(vocab_size=12, seed=2)
    folder = save(tiny_head(target, **SHAPES[name]), tmp_path)
    pair = load_pair(target=target, drafter=folder)
    params = Params(temperature=1.5, top_p=1.0, gamma=2, max_new_tokens=30, seed=1, alternatives=3)
    trace = generate(pair, [3, 1, 4, 1, 5], params, measure=False)
    head = read_head(folder, read_speculator(folder), torch.float32)
    assert {0, 1} <= set(said_anew(head, target, [3, 1, 4, 1, 5], trace.rounds))
    trace = generate(pair, [3, 1, 4, 1, 5], Params(temperature=0, max_new_tokens=30), measure=False)
    assert trace.stats.drafted and trace.output_ids == greedy(target, [3, 1, 4, 1, 5], 30)


SPIRAL = dict(rope_type="spiral", rope_theta=1e4)
NESTED = {"sliding_attention": dict(rope_type="default", rope_theta=1e4)}
NONE_ROTATED = dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=0.1)
ONE_ROTATION = "rope_parameters must be of one rotation with a rope_type of default, linear"
WRONG = [  # changes of its layers' config, and what is said
    (dict(num_hidden_layers=65), "num_hidden_layers must be a whole number from 1 to 64"),
    (dict(layer_types=["chunked_attention"]), "layer_types must be a list of 1 times full"),
    (dict(layer_types=TWO), "layer_types must be a list of 1 times full"),
    (dict(layer_types=TWO[:1], sliding_window=None), "sliding_window must be given for"),
    (dict(sliding_window=0), "sliding_window must be a whole number from 1 to"),
    (dict(rope_parameters=SPIRAL), ONE_ROTATION),
    (dict(rope_parameters=NESTED), ONE_ROTATION),
    (dict(rope_parameters=NONE_ROTATED), "partial_rotary_factor must be above 0 to 1 and rotate an even"),
]


def test_what_cannot_be_run_is_refused_by_name(tmp_path):
    for changes, words in WRONG:
        change_config(save_head(tiny_head(tiny()), tmp_path), LAYER_CONFIG, **changes)
        with pytest.raises(LoadError, match=f"^drafter: .* because of its config.json: {words}"):
            read_speculator(tmp_path)
