"""Gemma 4's assistants: small models that draft from their target's own keys and values (transformers'
`SinglePositionMultiTokenCandidateGenerator`).

An assistant keeps no keys and values. Each of its layers attends to those of one of the target's layers: of
the last one of the same type that has its own. All tokens of a draft come from one position, that of the
text's last token. Each is drafted from the embedding of the token before it and, beside that, the target's
last hidden state (the first token) or the assistant's own output (the others)."""

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specdemo.runtime.cache import Cached, Features, layers_of
from specdemo.runtime.lm import CachedLM, context_of, final_norm

# The kinds of assistants (`model_type`), and the kind of the text model of the targets that each is made for.
ASSISTANTS = {"gemma4_assistant": "gemma4_text", "gemma4_unified_assistant": "gemma4_unified_text"}


def is_assistant(model: object) -> bool:
    return isinstance(model, PreTrainedModel) and model.config.model_type in ASSISTANTS


def shared_layers(target: PreTrainedModel) -> dict[str, int]:
    """The index of the target's last layer of each type that has keys and values of its own, by the type."""
    attentions = [layer.self_attn for layer in layers_of(target)]
    return {one.layer_type: index for index, one in enumerate(attentions) if one.store_full_length_kv}


class LastFeatures(Features):
    """Features of a target whose prefill can leave out what the last layers make of all tokens but the
    last."""

    def keep(self, layer: int, x: Tensor, rows: Tensor) -> None:
        super().keep(layer, x, rows[-len(x) :])


class CachedAssistant(Cached):
    """An assistant with the last hidden states of its target."""

    is_captured = False
    reads: LastFeatures

    def __init__(self, model: PreTrainedModel, target: PreTrainedModel):
        self.model = model
        self.target = target
        self.device = torch.device(model.pre_projection.weight.device)
        self.dtype = model.dtype
        self.context = context_of(model)
        self.embeddings = target.get_input_embeddings()  # which scale what they look up
        self.reads = LastFeatures(target, (target.config.get_text_config().num_hidden_layers,))
        self.norm = final_norm(target)
        self.shared = shared_layers(target)

    def hidden(self, position: int) -> Tensor:
        """The target's last hidden state at a position: [1, H]."""
        row = torch.full((1,), position, device=self.reads.states.device)
        return self.norm(self.reads.at(row))

    def keys_and_values(self, lm: CachedLM, length: int) -> dict[str, tuple[Tensor, Tensor]]:
        """The keys and values, each [1, G, length, d], of the target's positions before `length`, by the type
        of layer."""
        layers = {kind: lm.cache.layers[index] for kind, index in self.shared.items()}
        return {
            kind: tuple(
                states[:, :, :length].to(self.device, self.dtype) for states in (layer.keys, layer.values)
            )
            for kind, layer in layers.items()
        }

    def forward(
        self, token: Tensor, hidden: Tensor, position: int, shared: dict[str, tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, Tensor]:
        """One forward of token [1] and of what came before it, hidden [1, H]. Returns what the next forward
        takes as hidden, and the logits [1, V] of the token after it."""
        x = torch.cat([self.embeddings(token), hidden], -1).to(self.device, self.dtype)  # [1, 2H]
        output = self.model(
            inputs_embeds=x[None],
            position_ids=torch.full((1, 1), position, device=self.device),
            shared_kv_states=shared,
            use_cache=False,
        )
        return output.last_hidden_state[0].to(hidden.device, hidden.dtype), output.logits[0]
