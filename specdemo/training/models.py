"""The models that are trained: made, saved with how they were made, loaded."""

import json
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from specdemo.training.data import BOS, EOS, PAD, BadInput

RECORD = "training.json"  # beside the weights: how they were made
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def new_model(args, vocab):
    """A Llama model with random weights, seeded."""
    if args.hidden % args.heads or args.heads % args.kv_heads:
        raise BadInput("--hidden must be a multiple of --heads and --heads a multiple of --kv-heads")
    if args.hidden // args.heads % 2:
        raise BadInput("--hidden divided by --heads must be even, as positions turn pairs of numbers")
    if args.length % 4 or not 8 <= args.length <= 1024:
        raise BadInput("--length must be a multiple of 4 from 8 to 1024")
    torch.manual_seed(args.seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocab,
            hidden_size=args.hidden,
            intermediate_size=args.ffn,
            num_hidden_layers=args.layers,
            num_attention_heads=args.heads,
            num_key_value_heads=args.kv_heads,
            head_dim=args.hidden // args.heads,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
            bos_token_id=BOS,
            eos_token_id=EOS,
            pad_token_id=PAD,
        )
    )
    for (
        layer
    ) in model.model.layers:  # every layer starts as the identity, which deep narrow models learn faster from
        torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
        torch.nn.init.zeros_(layer.mlp.down_proj.weight)
    return model.to(DEVICE)


def save(model, tokenizer, folder, history):
    """Save in bf16 in the Hugging Face layout, in files below 9 MB, with how it was made; `model` itself becomes bf16, too."""
    for file in (
        *folder.glob("*.safetensors"),
        *folder.glob("*.safetensors.index.json"),
        *folder.glob(RECORD),
    ):
        file.unlink()  # those of another model would be read in place of these, or tell of it
    model.to(torch.bfloat16).save_pretrained(folder, max_shard_size="9MB")
    tokenizer.save_pretrained(folder)
    for file in folder.glob("*.safetensors"):
        file.chmod(0o644)  # they are written for their owner only
    (folder / RECORD).write_text(json.dumps(history, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def load(folder):
    """Model (fp32, evaluation mode) and tokenizer of a saved folder."""
    if not (Path(folder) / "config.json").is_file():
        raise BadInput(f"there is no trained model in {folder} yet")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.to(DEVICE).eval(), AutoTokenizer.from_pretrained(folder)


def embedding(model):
    """The (tied) embedding as an array, by which a model is recognised."""
    return model.get_input_embeddings().weight.detach().float().cpu().numpy()
