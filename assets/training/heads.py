"""What is common to the heads that are trained."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaForCausalLM

from assets.training.trainer import PairTrainer
from specdemo.drafters.dflash import DFlashHead
from specdemo.drafters.eagle import Eagle3Head


class HeadTrainer(PairTrainer):
    """Trains a head, which is the one module of a Sequential: Trainer would write into its config."""

    def save_head(self, folder: Path, drafts: int, config: dict[str, Any], **tensors: Tensor) -> None:
        """Saves it in the speculators format, with the target's place as its verifier. drafts: the tokens
        that it was trained to draft. config, tensors: what it has beside what all heads have."""
        head, place = self.model[0], str(self.options.pair / "target")
        written = {
            "speculators_model_type": head.kind,
            "speculators_version": "0.9.0",
            "draft_vocab_size": head.config.draft_vocab_size,
            "transformer_layer_config": head.config.layer.to_diff_dict(),
            "speculators_config": {
                "algorithm": head.kind,
                "default_proposal_method": "greedy",
                "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": drafts}],
                "verifier": {"name_or_path": place, "architectures": ["LlamaForCausalLM"]},
            },
            "dtype": "bfloat16",
        }
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config | written, indent=2) + "\n", encoding="utf-8")
        tensors |= head.state_dict()
        own = {name: value.to("cpu", torch.bfloat16).contiguous() for name, value in tensors.items()}
        save_file(own, folder / "model.safetensors", metadata={"format": "pt"})


def start_at_target(head: Eagle3Head | DFlashHead, target: LlamaForCausalLM) -> None:
    """The head starts with what the target has just predicted: its layers as the identity, and of the
    target's hidden states the last one."""
    torch.nn.init.zeros_(head.fc.weight)
    head.fc.weight.data[:, -target.config.hidden_size :].fill_diagonal_(1.0)
    for layer in head.layers:
        torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
        torch.nn.init.zeros_(layer.mlp.down_proj.weight)
    head.norm.weight.data.copy_(target.base_model.norm.weight)
    head.to(target.device)
    head.attach_verifier(target)
    head.begin_run()


@torch.no_grad()
def target_states(target: LlamaForCausalLM, rows: Tensor, layer_ids: Sequence[int]) -> tuple[Tensor, Tensor]:
    """What the target computes for token ids [B, T]: the streams that enter these layers, side by side [B, T,
    A * H], and the logarithms of its distributions [B, T, V]. The number of layers stands for the stream
    after the last one."""
    streams = {}
    hooks = [
        module.register_forward_pre_hook(lambda _, args, index=index: streams.update({index: args[0]}))
        for index, module in enumerate([*target.base_model.layers, target.base_model.norm])
        if index in layer_ids
    ]
    logits = target(input_ids=rows, use_cache=False).logits
    for hook in hooks:
        hook.remove()
    return torch.cat([streams[index] for index in layer_ids], -1), logits.float().log_softmax(-1)
