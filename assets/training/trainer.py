"""What is common to all that is trained, and the two models: a target that learns from texts, and a drafter
that learns from texts and then from the target."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.functional import cross_entropy, kl_div
from torch.optim import AdamW, Muon, Optimizer
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Trainer

from assets.training.data import BOS, CONTEXT, EOS, PAD
from assets.training.options import Arguments, Options


class MuonAndAdamW(Optimizer):
    """Muon for the matrices between the embeddings and the output layer, AdamW for all else."""

    def __init__(self, model: Module, args: Arguments):
        parameters = dict(model.named_parameters())
        ends = {"embed_tokens", "lm_head"}
        inner = {name for name, one in parameters.items() if one.ndim == 2 and not ends & {*name.split(".")}}
        matrices = [one for name, one in parameters.items() if name in inner]
        others = [one for name, one in parameters.items() if name not in inner]
        adam = {"lr": args.learning_rate, "betas": (args.adam_beta1, args.adam_beta2), "weight_decay": 0.0}
        muon = {"lr": args.muon_learning_rate, "momentum": 0.95, "weight_decay": 0.05}
        self.parts = [AdamW(others, **adam), Muon(matrices, **muon)]
        super().__init__(others + matrices, {})
        self.param_groups = [group for part in self.parts for group in part.param_groups]

    def step(self, closure: None = None) -> None:
        for part in self.parts:
            part.step()

    def state_dict(self) -> dict[str, Any]:
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for part, state in zip(self.parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
        self.param_groups = [group for part in self.parts for group in part.param_groups]


class PairTrainer(Trainer):
    """Trains on rows of token ids, and scores the held-out documents, each on its own.

    A subclass has `new`, what is trained, with random weights; `loss` [] of rows [B, T]; `nats`, the cross
    entropy [N] of each token of rows that is predicted; and `save`, in bf16, as the engine reads it."""

    options: Options
    target: LlamaForCausalLM | None
    own_every = 1  # of the steps after --on_texts, every N-th is on what the target wrote

    def compute_loss(self, model: Module, inputs: dict[str, Tensor], *_: Any, **__: Any) -> Tensor:
        rows = inputs["input_ids"]
        if self.state.global_step % self.options.whole_every:  # faster, and most stories fit in a quarter
            rows = rows.reshape(-1, rows.shape[1] // 4)
        with torch.autocast(rows.device.type, torch.bfloat16):
            return self.loss(model, rows)

    @torch.no_grad()
    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """The mean over all tokens of the held-out documents."""
        self.model.eval()
        rows = [ids[None, :CONTEXT].to(self.args.device) for ids in self.eval_dataset]
        with torch.autocast(self.args.device.type, torch.bfloat16):
            nats = torch.cat([self.nats(self.model, row) for row in rows])
        metrics = {"eval_loss": nats.mean().item()}
        self.log(metrics)
        return metrics

    def create_optimizer(self, model: Module | None = None) -> Optimizer:
        self.optimizer = self.optimizer or MuonAndAdamW(self.model, self.args)
        return self.optimizer


class TargetTrainer(PairTrainer):
    """Trains a Llama model by cross entropy."""

    @staticmethod
    def new(options: Options, target: LlamaForCausalLM | None, vocab: int) -> LlamaForCausalLM:
        config = LlamaConfig(**layer_config(options, vocab, options.hidden, options.layers))
        config.tie_word_embeddings = True
        model = LlamaForCausalLM(config)
        # Every layer starts as the identity: deep narrow models learn faster from there.
        for layer in model.model.layers:
            torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
            torch.nn.init.zeros_(layer.mlp.down_proj.weight)
        return model

    def loss(self, model: Module, rows: Tensor) -> Tensor:
        return self.nats(model, rows).mean()

    def nats(self, model: Module, rows: Tensor) -> Tensor:
        logits = logits_of(model, rows)[:, :-1]
        return cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten(), reduction="none")

    def save(self, folder: Path, tokenizer: PreTrainedTokenizerFast) -> None:
        for file in folder.glob("*.safetensors*"):  # which could be read instead of the new ones
            file.unlink()
        self.model.to(torch.bfloat16).save_pretrained(folder, max_shard_size="9MB")
        tokenizer.save_pretrained(folder)


class DrafterTrainer(TargetTrainer):
    """Trains by cross entropy, then from the target's distribution, on texts and on its writing in turns."""

    own_every = 2

    def loss(self, model: Module, rows: Tensor) -> Tensor:
        if self.state.global_step < self.options.on_texts * self.args.max_steps:
            return super().loss(model, rows)
        with torch.no_grad():
            log_p = logits_of(self.target, rows).log_softmax(-1)
        return divergence(log_p, logits_of(model, rows)).mean()


def layer_config(options: Options, vocab: int, hidden: int, layers: int) -> dict[str, int]:
    """The sizes and special tokens of a Llama model, by LlamaConfig's names."""
    return {
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": options.ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": options.heads,
        "num_key_value_heads": options.kv_heads,
        "head_dim": hidden // options.heads,
        "max_position_embeddings": CONTEXT,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
    }


def logits_of(model: Module, rows: Tensor) -> Tensor:
    """Token ids [B, T] -> float32 logits [B, T, V]"""
    return model(input_ids=rows, use_cache=False).logits.float()


def divergence(log_p: Tensor, logits: Tensor) -> Tensor:
    """The KL divergence [...], in nats, from the target's distribution to that of logits [..., V]."""
    return kl_div(logits.float().log_softmax(-1), log_p, log_target=True, reduction="none").sum(-1)
