"""Runs in an environment that has the package `speculators`: makes an EAGLE-3, P-EAGLE, DFlash, DFlash 2 or
DSpark head, or reads one, and writes down the logits of its own forward. The tests of this project compare
them with theirs.

    python speculators_heads.py read FOLDER OUTPUT
    python speculators_heads.py make FOLDER OUTPUT '{"kind": "dflash", ...}' VERIFIER
"""

import json
import sys

import torch
from safetensors.torch import save_file
from speculators.config import SpeculatorsConfig, VerifierConfig
from speculators.models.dflash import DFlashDraftModel, DFlashSpeculatorConfig
from speculators.models.dflash2 import DFlash2DraftModel, DFlash2SpeculatorConfig
from speculators.models.dspark import DSparkDraftModel, DSparkSpeculatorConfig
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
from speculators.models.peagle import PEagleDraftModel, PEagleSpeculatorConfig, core
from speculators.proposals.greedy import GreedyTokenProposalConfig
from transformers import LlamaConfig, Qwen3Config

STEPS, BLOCKS = 4, 6
TOKENS = {"eagle3": 12, "peagle": 12, "dflash": 40, "dflash2": 40, "dspark": 40}
KINDS = {
    "eagle3": (Eagle3DraftModel, Eagle3SpeculatorConfig),
    "peagle": (PEagleDraftModel, PEagleSpeculatorConfig),
    "dflash": (DFlashDraftModel, DFlashSpeculatorConfig),
    "dflash2": (DFlash2DraftModel, DFlash2SpeculatorConfig),
    "dspark": (DSparkDraftModel, DSparkSpeculatorConfig),
}
LAYERS = {"llama": LlamaConfig, "qwen3": Qwen3Config}
WINDOWS = {"layer_types": ["sliding_attention", "full_attention"], "use_sliding_window": True}


def made(kind: str, options: dict, verifier: str):
    """A head with random weights; where its vocabulary is reduced, it drafts every second token."""
    torch.manual_seed(0)
    model_class, config_class = KINDS[kind]
    reduced, layer_type = options.pop("reduced", False), options.pop("layer", "qwen3")
    windows = WINDOWS | {"sliding_window": options.pop("window")} if "window" in options else {}
    layer = LAYERS[layer_type](
        vocab_size=96,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=options.pop("layers"),
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        **windows,
    )
    layer._attn_implementation = "eager"
    is_eagle = kind in ("eagle3", "peagle")
    layer_ids = "eagle_aux_hidden_state_layer_ids" if is_eagle else "aux_hidden_state_layer_ids"
    options |= {layer_ids: [1, 2, 4]} | ({} if kind == "eagle3" else {"mask_token_id": 1})
    model = model_class(
        config_class(
            transformer_layer_config=layer,
            draft_vocab_size=48 if reduced else 96,
            speculators_config=SpeculatorsConfig(
                algorithm=kind if is_eagle else "dflash",
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


def steps_of(model, hidden: torch.Tensor, tokens: torch.Tensor) -> dict:
    """What an EAGLE-3 head says in each step of its training."""
    logits = []
    model.lm_head.register_forward_hook(lambda module, given, result: logits.append(result[0].clone()))
    model(hidden, tokens, torch.zeros_like(tokens), ttt_steps=STEPS)
    return {"logits": torch.stack(logits)}


def masks_of(model, hidden: torch.Tensor, tokens: torch.Tensor) -> dict:
    """What a P-EAGLE head says after all of the tokens, and in the rows of masks behind them: [STEPS, Vd]."""
    logits, last = [], tokens.shape[1] - 1
    behind = torch.arange(1, STEPS)
    anchors = torch.cat([torch.arange(last + 1), torch.full((STEPS - 1,), last)])
    depths = torch.cat([torch.zeros(last + 1, dtype=torch.long), behind])
    # Its training draws which masks are learned from; here these are all that one draft reads.
    core.generate_cod_sample_indices = lambda **_: (anchors, depths)
    core.compute_metrics = lambda **_: (None, {})
    longer = last + STEPS  # the positions of masks must lie inside of what it is given
    hidden, tokens = (torch.cat([each, each[:, : longer - last - 1]], 1) for each in (hidden, tokens))
    model.lm_head.register_forward_hook(lambda module, given, result: logits.append(result[0].clone()))
    states = torch.zeros(1, longer, model.config.transformer_layer_config.hidden_size)
    documents = torch.zeros(1, longer, dtype=torch.long)
    model(hidden, tokens, documents, verifier_last_hidden_states=states)
    return {"logits": logits[0][-STEPS:]}


def blocks_of(model, hidden: torch.Tensor, tokens: torch.Tensor, generator: torch.Generator) -> dict:
    """What a DFlash, DFlash 2 or DSpark head says in some blocks. Of tokens that are no candidates: 0."""
    config, count = model.config, tokens.shape[1]
    size = config.transformer_layer_config.hidden_size
    rows, logits, _, _, places = model._backbone_forward(
        hidden,
        tokens,
        torch.ones(1, count),
        torch.randn(1, count, size, generator=generator),
        torch.zeros(1, count, dtype=torch.long),
        max_anchors=BLOCKS,
    )
    written = {"places": places, "logits": logits[0]}
    blocks = tokens[0, places].view(BLOCKS, -1)
    if not config.sample_from_anchor:
        blocks = torch.cat([blocks[:, :1], blocks[:, :-1]], 1)
    rows, before = rows.view(BLOCKS, model.block_size, -1), None
    if getattr(model, "markov_head", None) is not None:
        before = model.markov_head.prev_embeddings(blocks)
        bias = model.markov_head.block_bias(prev_token_ids=blocks, hidden_states=rows)
        written["logits"] = logits[0] + bias.flatten(0, 1)
    if getattr(model, "candidate_selector", None) is not None:
        ids, scores = model.candidate_selector.select(logits[0], rows.flatten(0, 1), blocks.flatten())
        written["logits"] = torch.zeros_like(logits[0]).scatter(-1, ids, scores)
    if getattr(model, "confidence_head", None) is not None:
        seen = torch.cat([rows, before], -1) if config.confidence_head_with_markov else rows
        written["sure"] = model.confidence_head(seen).sigmoid().flatten()
    return written


@torch.no_grad()
def main(command: str, folder: str, output: str, options: str = "{}", verifier: str = "") -> None:
    if command == "make":
        given = json.loads(options)
        made(given.pop("kind"), given, verifier).save_pretrained(folder)
    with open(f"{folder}/config.json", encoding="utf-8") as file:
        kind = json.load(file)["speculators_model_type"]
    model_class, config_class = KINDS[kind]
    config = config_class.from_pretrained(folder)
    config.transformer_layer_config._attn_implementation = "eager"
    model = model_class.from_pretrained(folder, config=config, dtype=torch.float32)
    model.load_verifier_weights()  # the embeddings, where the head has none
    model.float().eval()
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(model.embed_tokens.weight.shape[0], (1, TOKENS[kind]), generator=generator)
    hidden = torch.randn(1, TOKENS[kind], model.fc.in_features, generator=generator)
    if kind in ("eagle3", "peagle"):
        said = (steps_of if kind == "eagle3" else masks_of)(model, hidden, tokens)
    else:
        said = blocks_of(model, hidden, tokens, generator)
    written = {"tokens": tokens[0], "hidden": hidden[0], **said}
    save_file({name: value.contiguous() for name, value in written.items()}, output)


if __name__ == "__main__":
    main(*sys.argv[1:])
