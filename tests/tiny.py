"""Tiny models of many architectures, made from their configs, whose greedy text is lively enough to show
something.

Freshly initialised models repeat one or two tokens for ever, and a test over such a text proves little. These
draw all their weights anew at a scale that makes the text wander, from a generator of their own, so that
nothing else moves them."""

import copy

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

VOCAB = 96
WINDOW = 16  # of the sliding-window layers: far shorter than the texts that the tests write

COMMON = dict(
    vocab_size=VOCAB,
    max_position_embeddings=256,
    tie_word_embeddings=False,
    bos_token_id=0,
    eos_token_id=None,
    pad_token_id=1,
)
SHAPE = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
WIDE = dict(vocab_size=304, hidden_size=256, intermediate_size=512, head_dim=64)  # as int4 needs it on CUDA
GROUPED = dict(SHAPE, num_key_value_heads=2)
MIXED = ["sliding_attention", "full_attention"]
SLIDING = dict(GROUPED, head_dim=8, sliding_window=WINDOW)

# name: (model type, what its config needs beyond COMMON)
ARCHITECTURES = {
    "llama": ("llama", GROUPED),
    "qwen2": ("qwen2", GROUPED),
    "qwen3": ("qwen3", dict(GROUPED, head_dim=8)),
    "mistral": ("mistral", SLIDING),
    # eager, as it is loaded: transformers before 5.21 would choose an attention that ignores its softcap
    "gemma2": (
        "gemma2",
        dict(SLIDING, layer_types=MIXED, query_pre_attn_scalar=8, attn_implementation="eager"),
    ),
    "gemma3": ("gemma3_text", dict(SLIDING, layer_types=MIXED, query_pre_attn_scalar=8)),
    "gpt2": ("gpt2", dict(n_embd=32, n_layer=2, n_head=4, n_positions=256)),
    "gpt_neox": ("gpt_neox", SHAPE),
    "opt": (
        "opt",
        dict(hidden_size=32, ffn_dim=64, num_hidden_layers=2, num_attention_heads=4, word_embed_proj_dim=32),
    ),
    "phi3": ("phi3", dict(GROUPED, sliding_window=WINDOW)),
    "smollm3": ("smollm3", dict(GROUPED, no_rope_layers=[1, 0])),
    "olmo2": ("olmo2", GROUPED),
}


def longrope(end: int, short: float = 1.0, long: float = 4.0) -> dict:
    """For a config: rotary factors that are short up to `end` tokens and long beyond, for heads of 8."""
    rope = {"rope_type": "longrope", "rope_theta": 100.0, "factor": 4.0}
    rope |= {"short_factor": [short] * 4, "long_factor": [long] * 4, "original_max_position_embeddings": end}
    return {"rope_parameters": rope, "original_max_position_embeddings": end}  # Phi-3 reads the second


def tiny(name: str = "llama", seed: int = 0, scale: float = 2.0, **changes) -> PreTrainedModel:
    """A model of some ten thousand parameters, at rest, in float32. `changes` go into its config."""
    model_type, shape = ARCHITECTURES[name]
    settings = {**COMMON, **shape, **changes}
    if name == "gpt2":
        settings.pop("max_position_embeddings")  # its config's own name for it is n_positions
    model = random_weights(
        AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **settings)), seed, scale
    ).eval()
    model.generation_config.eos_token_id = None
    return model


def random_weights(model: PreTrainedModel, seed: int = 0, scale: float = 2.0) -> PreTrainedModel:
    """The same model with weights that make a lively text."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                width = parameter.shape[-1]
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale / width**0.5)
            else:  # biases start at 0, norms at 1 (or 0): moved, so that each of them counts
                parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
    return model


def noisy(model: PreTrainedModel, noise: float = 0.05, seed: int = 1) -> PreTrainedModel:
    """A near drafter: a copy with each weight matrix disturbed by `noise` of its own size."""
    near = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in near.parameters():
            if parameter.ndim > 1:
                parameter += noise * parameter.std() * torch.randn(parameter.shape, generator=generator)
    return near


def shorter(model: PreTrainedModel, layers: int = 1) -> PreTrainedModel:
    """A near drafter: the same weights with only the first layers of a model whose config asks for no mix of
    layers."""
    config = copy.deepcopy(model.config)
    config.num_hidden_layers = layers
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:layers]
    short = type(model)(config).eval()
    short.load_state_dict(model.state_dict(), strict=False)
    return short


def greedy(model: PreTrainedModel, ids: list[int], new: int) -> list[int]:
    """What transformers itself makes of it, and nothing of ours: plain greedy decoding."""
    prompt = torch.tensor([ids])
    output = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=new, pad_token_id=0
    )
    return output[0, len(ids) :].tolist()


def tokenizer(
    extra: int = 0, eos: str | None = "<end>", sentences: list[str] | None = None
) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer of 300 tokens. `extra`: so many added tokens more at the end."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<start>", "<end>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(
        sentences
        or ["the cat sat on the mat", "the dog and the cat ran", "once there was a small red hen"] * 5,
        trainer,
    )
    bpe.add_tokens([f"<extra{i}>" for i in range(extra)])
    return PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token="<start>", eos_token=eos)
