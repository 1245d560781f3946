"""Creates, saves and loads the models that are trained."""

import json
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import numpy as np
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from specdemo.training.data import BOS, EOS, PAD, BadInput
from specdemo.training.options import ModelOptions, TrainingOptions

LARGEST_FILE = "9MB"  # of a model's weights
HISTORY_FILE = "training.json"  # in a model's folder: how the model was trained
CONTEXT = 1024  # tokens
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class History(TypedDict):
    """How a model was trained; the content of HISTORY_FILE."""

    settings: dict[str, Any]  # the options that shape the weights, and a fingerprint of the data
    budgets: list[int]  # every --tokens that this training was given, in order
    seconds: int
    device: str
    versions: dict[str, str]
    target: NotRequired[str]  # only for a drafter: the fingerprint of its target


def new_model(options: ModelOptions, vocab_size: int) -> LlamaForCausalLM:
    """A Llama model with random weights, seeded."""
    hidden, heads = options.hidden, options.heads
    if hidden % heads or heads % options.kv_heads:
        raise BadInput("--hidden must be a multiple of --heads and --heads a multiple of --kv-heads")
    if hidden // heads % 2:
        raise BadInput("--hidden divided by --heads must be even, because rotary positions rotate pairs")
    if options.length % 4 or not 8 <= options.length <= CONTEXT:
        raise BadInput(f"--length must be a multiple of 4 from 8 to {CONTEXT}")
    torch.manual_seed(options.seed)
    special = {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD}
    sizes = llama_sizes(options, vocab_size, hidden, options.layers)
    model = LlamaForCausalLM(LlamaConfig(**sizes, **special, tie_word_embeddings=True))
    # Every layer starts as the identity: deep narrow models learn faster from there.
    for layer in model.model.layers:
        torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
        torch.nn.init.zeros_(layer.mlp.down_proj.weight)
    return model.to(DEVICE)


def llama_sizes(options: TrainingOptions, vocab_size: int, hidden: int, layers: int) -> dict[str, int]:
    """The sizes of a Llama model, by LlamaConfig's names."""
    return {
        "vocab_size": vocab_size,
        "hidden_size": hidden,
        "intermediate_size": options.ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": options.heads,
        "num_key_value_heads": options.kv_heads,
        "head_dim": hidden // options.heads,
        "max_position_embeddings": CONTEXT,
    }


def save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, folder: Path, history: History) -> None:
    """Saves in bf16 in the Hugging Face layout, in files below 9 MB. `model` itself becomes bf16."""
    # Files that an earlier model left could be loaded instead of the new ones.
    for pattern in ("*.safetensors", "*.safetensors.index.json", HISTORY_FILE):
        for file in folder.glob(pattern):
            file.unlink()
    model.to(torch.bfloat16).save_pretrained(folder, max_shard_size=LARGEST_FILE)
    tokenizer.save_pretrained(folder)
    for file in folder.glob("*.safetensors"):
        file.chmod(0o644)  # safetensors creates them readable by their owner only
    write_history(folder, history)


def write_history(folder: Path, history: History) -> None:
    (folder / HISTORY_FILE).write_text(json.dumps(history, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def load_trained(folder: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """The model (fp32, evaluation mode) and the tokenizer of a saved folder."""
    if not (folder / "config.json").is_file():
        raise BadInput(f"there is no trained model in {folder} yet")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.to(DEVICE).eval(), AutoTokenizer.from_pretrained(folder)


def embedding(model: PreTrainedModel) -> np.ndarray:
    """The (tied) embedding, float32 [V, H]; its fingerprint identifies the model."""
    return model.get_input_embeddings().weight.detach().float().cpu().numpy()
