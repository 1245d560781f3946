"""Runs in an environment that has the package `speculators`: reads a head, or makes one and writes it, and
writes down the logits of its own forward. The tests of this project compare them with theirs.

    python speculators_forward.py read FOLDER OUTPUT
    python speculators_forward.py make FOLDER OUTPUT '{"model_type": "llama", ...}' VERIFIER
"""

import json
import sys

import torch
from safetensors.torch import save_file
from speculators.config import SpeculatorsConfig, VerifierConfig
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
from speculators.proposals.greedy import GreedyTokenProposalConfig
from transformers import LlamaConfig, Qwen3Config

TOKENS, STEPS = 12, 4


def made(options: dict, verifier: str) -> Eagle3DraftModel:
    """A head with random weights, for a vocabulary of which it drafts every second token."""
    torch.manual_seed(0)
    sizes = {
        "vocab_size": 96,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
    }
    kind = {"llama": LlamaConfig, "qwen3": Qwen3Config}[options.pop("model_type")]
    reduced, sizes = options.pop("reduced"), sizes | options.pop("layers", {})
    model = Eagle3DraftModel(
        Eagle3SpeculatorConfig(
            transformer_layer_config=kind(**sizes, _attn_implementation="eager"),
            draft_vocab_size=48 if reduced else 96,
            eagle_aux_hidden_state_layer_ids=[1, 2, 4],
            speculators_config=SpeculatorsConfig(
                algorithm="eagle3",
                proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=STEPS)],
                default_proposal_method="greedy",
                verifier=VerifierConfig(name_or_path=verifier, architectures=["LlamaForCausalLM"]),
            ),
            **options,
        )
    )
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter.data, std=0.3)
    if reduced:
        model.t2d[1::2] = True
        model.d2t.copy_(torch.arange(48) + 1)  # draft id j is token 2 j + 1
    return model


def main(command: str, folder: str, output: str, options: str = "{}", verifier: str = "") -> None:
    if command == "make":
        model = made(json.loads(options), verifier)
        model.save_pretrained(folder)
    config = Eagle3SpeculatorConfig.from_pretrained(folder)
    config.transformer_layer_config._attn_implementation = "eager"
    model = Eagle3DraftModel.from_pretrained(folder, config=config, dtype=torch.float32)
    model.load_verifier_weights()  # the embeddings, where the head has none
    model.float().eval()
    vocabulary, features = model.embed_tokens.weight.shape[0], model.fc.in_features
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(vocabulary, (1, TOKENS), generator=generator)
    hidden = torch.randn(1, TOKENS, features, generator=generator)
    logits = []
    model.lm_head.register_forward_hook(lambda module, given, result: logits.append(result[0].clone()))
    with torch.no_grad():
        model(hidden, tokens, torch.zeros(1, TOKENS, dtype=torch.long), ttt_steps=STEPS)
    save_file({"tokens": tokens[0], "hidden": hidden[0], "logits": torch.stack(logits)}, output)


if __name__ == "__main__":
    main(*sys.argv[1:])
