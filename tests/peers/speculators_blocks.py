"""Runs in an environment that has the package `speculators`: makes a DFlash or DSpark head, or reads one, and
writes down the logits of its own forward. The tests of this project compare them with theirs.

    python speculators_blocks.py read FOLDER OUTPUT
    python speculators_blocks.py make FOLDER OUTPUT '{"kind": "dflash", ...}' VERIFIER
"""

import json
import sys

import torch
from safetensors.torch import save_file
from speculators.config import SpeculatorsConfig, VerifierConfig
from speculators.models.dflash import DFlashDraftModel, DFlashSpeculatorConfig
from speculators.models.dspark import DSparkDraftModel, DSparkSpeculatorConfig
from speculators.proposals.greedy import GreedyTokenProposalConfig
from transformers import Qwen3Config

TOKENS, BLOCKS = 40, 6
KINDS = {
    "dflash": (DFlashDraftModel, DFlashSpeculatorConfig),
    "dspark": (DSparkDraftModel, DSparkSpeculatorConfig),
}


def made(options: dict, verifier: str):
    """A head with random weights; where its vocabulary is reduced, it drafts every second token."""
    torch.manual_seed(0)
    model_class, config_class = KINDS[options.pop("kind")]
    reduced = options.pop("reduced", False)
    windows = {"layer_types": ["sliding_attention", "full_attention"], "use_sliding_window": True}
    layer = Qwen3Config(
        vocab_size=96,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        **(windows | {"sliding_window": options.pop("window")} if "window" in options else {}),
    )
    layer._attn_implementation = "eager"
    model = model_class(
        config_class(
            transformer_layer_config=layer,
            draft_vocab_size=48 if reduced else 96,
            mask_token_id=1,
            aux_hidden_state_layer_ids=[1, 2, 4],
            speculators_config=SpeculatorsConfig(
                algorithm="dflash",
                proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=4)],
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
        made(json.loads(options), verifier).save_pretrained(folder)
    with open(f"{folder}/config.json", encoding="utf-8") as file:
        kind = json.load(file)["speculators_model_type"]
    model_class, config_class = KINDS[kind]
    config = config_class.from_pretrained(folder)
    config.transformer_layer_config._attn_implementation = "eager"
    model = model_class.from_pretrained(folder, config=config, dtype=torch.float32)
    model.load_verifier_weights()
    model.float().eval()
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(model.embed_tokens.weight.shape[0], (1, TOKENS), generator=generator)
    hidden = torch.randn(1, TOKENS, model.fc.in_features, generator=generator)
    size = config.transformer_layer_config.hidden_size
    with torch.no_grad():
        rows, logits, _, _, places = model._backbone_forward(
            hidden,
            tokens,
            torch.ones(1, TOKENS),
            torch.randn(1, TOKENS, size, generator=generator),
            torch.zeros(1, TOKENS, dtype=torch.long),
            max_anchors=BLOCKS,
        )
        written = {"tokens": tokens[0], "hidden": hidden[0], "places": places, "logits": logits[0]}
        blocks = tokens[0, places].view(BLOCKS, -1)
        if not config.sample_from_anchor:
            blocks = torch.cat([blocks[:, :1], blocks[:, :-1]], 1)
        rows, before = rows.view(BLOCKS, model.block_size, -1), None
        if getattr(model, "markov_head", None) is not None:
            before = model.markov_head.prev_embeddings(blocks)
            bias = model.markov_head.block_bias(prev_token_ids=blocks, hidden_states=rows)
            written["logits"] = logits[0] + bias.flatten(0, 1)
        if getattr(model, "confidence_head", None) is not None:
            seen = torch.cat([rows, before], -1) if config.confidence_head_with_markov else rows
            written["sure"] = model.confidence_head(seen).sigmoid().flatten()
    save_file({name: value.contiguous() for name, value in written.items()}, output)


if __name__ == "__main__":
    main(*sys.argv[1:])
