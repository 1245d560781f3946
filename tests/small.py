"""A small model of every kind of causal language model that transformers has, made from its config alone."""

import torch
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tests.tiny import COMMON, SHAPE, VOCAB, WINDOW, random_weights

PROMPT = [5, 17, 3, 88, 42, 9, 9, 17, 61, 30, 2, 71]
LARGEST = 20e6  # parameters

# Whatever a config calls its sizes.
HIDDEN = "d_model n_embd embedding_size word_embed_proj_dim moe_intermediate_size"
INNER = "ffn_dim d_ff n_inner encoder_ffn_dim decoder_ffn_dim"
LAYERS = "n_layer n_layers num_layers encoder_layers decoder_layers num_decoder_layers num_experts_per_tok"
HEADS = "n_head n_heads num_heads encoder_attention_heads decoder_attention_heads"
EXPERTS = "num_experts num_local_experts n_routed_experts"
SIZES = {
    32: HIDDEN, 64: INNER, 2: f"{LAYERS} linear_num_key_heads",
    4: f"{HEADS} {EXPERTS} linear_num_heads linear_num_value_heads",
    1: "n_group topk_group", 256: "n_positions n_ctx max_seq_len",
    16: "kv_lora_rank q_lora_rank attention_chunk_size",
    8: "d_head head_dim rotary_dim qk_rope_head_dim qk_nope_head_dim v_head_dim linear_head_dim "
       "linear_key_head_dim linear_value_head_dim",
}  # fmt: skip
SMALL = COMMON | SHAPE | {name: size for size, names in SIZES.items() for name in names.split()}
SMALL |= {"sliding_window": WINDOW, "is_decoder": True, "default_language": "en_XX"}
KEY_VALUE_HEADS = (2, 4)  # grouped, or where the model does not allow that one for each query

# What small configs of kinds with recurrent layers need besides: layers of both kinds, and sizes that fit.
# The chunks in which such a layer computes are far shorter than the tests' texts.
BOTH = dict(layer_types=["linear_attention", "full_attention"])
CONV = dict(layer_types=["conv", "full_attention"])
HYBRID = dict(layers_block_type=["linear_attention", "hybrid"])
MAMBA = dict(mamba_n_heads=8, mamba_d_head=8, mamba_d_state=16, mamba_chunk_size=32)
RECURRENT = {
    "bailing_hybrid": BOTH,
    "bamba": dict(MAMBA, attn_layer_indices=[1]),
    "falcon_h1": dict(MAMBA, mamba_d_ssm=64),
    "granitemoehybrid": MAMBA | BOTH,
    "inkling2_loop_text": dict(unpadded_vocab_size=VOCAB),
    "inkling2_text": dict(unpadded_vocab_size=VOCAB),
    "jamba": dict(attn_layer_period=2, attn_layer_offset=1),
    "kimi_linear": BOTH,
    "lfm2": CONV,
    "lfm2_moe": dict(CONV, num_dense_layers=1),
    "lfm3": CONV,
    "mamba2": dict(num_heads=8, head_dim=8, state_size=16, chunk_size=32),
    "nemotron_h": dict(mamba_num_heads=8, mamba_head_dim=8, ssm_state_size=16, chunk_size=32, n_groups=2),
    "qwen3_5_moe_text": BOTH,
    "qwen3_5_text": BOTH,
    "qwen3_next": BOTH,
    "zamba": HYBRID,
    "zamba2": dict(HYBRID, mamba_d_state=16, chunk_size=32),
}


def small_config(kind: type, key_value_heads: int):
    default = kind()
    known = default.to_dict().keys() | default.attribute_map.keys()
    sizes = SMALL | {"num_key_value_heads": key_value_heads}
    changes = {name: size for name, size in sizes.items() if name in known}
    for name, stored_as in default.attribute_map.items():
        if name in changes:
            changes.pop(stored_as, None)
    for name in ("text_config", "decoder"):
        if hasattr(part := getattr(default, name, None), "to_dict"):
            changes[name] = small_config(type(part), key_value_heads).to_dict()
    return kind(**changes | RECURRENT.get(default.model_type, {}))


def small_model(name: str):
    """Raises what the config or the model itself raises about such a size."""
    for key_value_heads in KEY_VALUE_HEADS:
        config = small_config(CONFIG_MAPPING[name], key_value_heads)
        with torch.device("meta"):
            size = AutoModelForCausalLM.from_config(config).num_parameters()
        if size > LARGEST:
            raise ValueError(f"it has {size:,} parameters")
        torch.manual_seed(0)  # some of its biases stay near what they are at first
        model = random_weights(AutoModelForCausalLM.from_config(config)).eval()
        model.generation_config.eos_token_id = None
        try:
            cacheless(model, PROMPT)
        except RuntimeError:
            if key_value_heads == KEY_VALUE_HEADS[-1]:
                raise
        else:
            return model


@torch.no_grad()
def cacheless(model, ids: list[int]) -> torch.Tensor:
    """The probabilities [N, V] after each of the ids."""
    return model(torch.tensor([ids]), use_cache=False).logits[0].softmax(-1)
