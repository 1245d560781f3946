"""Gemma 4's assistants: small models that draft from their target's own keys and values (transformers'
`SinglePositionMultiTokenCandidateGenerator`).

An assistant keeps no keys and values. Each of its layers attends to those of one of the target's layers: of
the last one of the same type that has its own. All tokens of a draft come from one position, that of the
text's last token. Each is drafted from the embedding of the token before it and, beside that, the target's
last hidden state (the first token) or the assistant's own output (the others)."""

from functools import partial

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specdemo.drafters.base import Drafting, PairModels, agrees_with_target, check_sizes, share_read
from specdemo.drafters.configs import ASSISTANTS
from specdemo.drafters.model import DraftInput, FeatureDrafter, Fed
from specdemo.engine.draft import Draft
from specdemo.engine.tree import Shown
from specdemo.errors import PairError
from specdemo.events.speedup import DraftingCost
from specdemo.runtime.cache import Cached, Features, layers_of
from specdemo.runtime.lm import CachedLM, context_of, final_norm, logits_width
from specdemo.runtime.shared import evaluating, in_training


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
            kind: tuple(one[:, :, :length].to(self.device, self.dtype) for one in (layer.keys, layer.values))
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


class AssistantDrafter(FeatureDrafter):
    """Drafts token by token, all from the position of the text's last token. The target has not computed that
    token's keys and values yet, so the assistant attends to those before it. It keeps nothing from round to
    round. Beyond its own context, and after a single token, nothing is drafted."""

    head: CachedAssistant
    target: CachedLM

    def longest(self, ids: list[int]) -> float:
        return torch.inf if 1 < len(ids) <= self.head.context else 0

    def begin(self, ids: list[int], rows: int) -> Fed:
        self.position = len(ids) - 1
        return Fed(self.position, ids[-1:])

    def step(self, value: DraftInput) -> Draft:
        """The draft made from `value`. The step is never captured: it begins at `position`."""
        assistant, position = self.head, self.position
        shared = assistant.keys_and_values(self.target, position)
        hidden = assistant.hidden(position - 1)  # [1, H]

        def predict(shown: Shown | None) -> Tensor:
            nonlocal hidden
            token = value.last.long() if shown is None else shown.tokens
            hidden, logits = assistant.forward(token.to(hidden.device), hidden, position, shared)
            return logits

        return self.in_shape(predict, value)


class AssistantDrafting(Drafting[PreTrainedModel]):
    kind = "assistant"
    is_for_a_target = "an assistant"

    def cached(self, model: PreTrainedModel, target: PreTrainedModel) -> CachedAssistant:
        return CachedAssistant(model, target)

    def check_fit(
        self, model: PreTrainedModel, target: PreTrainedModel, drafter_id: str, target_id: str
    ) -> None:
        own, of_target = model.config.get_text_config(), target.config.get_text_config()
        where = f"drafter {drafter_id} does not fit target {target_id}"
        wanted = ASSISTANTS[model.config.model_type]
        if of_target.model_type != wanted:
            kinds = f"{model.config.model_type} drafts for targets of the kind {wanted}"
            raise PairError(f"{where}: {kinds}, and this one is of the kind {of_target.model_type}")
        sizes = [
            ("hidden states of size {:,}", model.config.backbone_hidden_size, of_target.hidden_size),
            ("a vocabulary of {:,} tokens", logits_width(model), logits_width(target)),
        ]
        layers = shared_layers(target)
        for index, kind in enumerate(own.layer_types):
            if kind not in layers:
                raise PairError(f"{where}: it attends to layers of the type {kind}, which the target lacks")
            mine, theirs = own.per_layer_config[index], of_target.per_layer_config[layers[kind]]
            heads, width = mine.num_key_value_heads, mine.head_dim
            sizes.append((f"{kind} with key heads: {{}}", heads, theirs.num_key_value_heads))
            sizes.append((f"{kind} with keys of size {{}}", width, theirs.head_dim))
        check_sizes(where, sizes)

    def needs_targets_device(self, model: PreTrainedModel) -> str:
        return "attends to the target's keys and values"

    def cost(self, pair: PairModels, params: object) -> DraftingCost:
        return DraftingCost(token=share_read(pair))

    def agrees(self, model: PreTrainedModel, target: PreTrainedModel) -> bool:
        """Whether the assistant predicts the same from the target's cache as from what the target's own
        forward shares."""

        def compare(lm: CachedLM, _: object, cached: CachedAssistant, ids: Tensor) -> list:
            n = len(ids) - 1  # the position of the last token, which the assistant is given
            whole = target.get_decoder()(
                input_ids=ids[None, :n], use_cache=False, return_shared_kv_states=True
            )
            shared = {
                kind: tuple(states.to(cached.device, cached.dtype) for states in both)
                for kind, both in whole.shared_kv_states.items()
            }
            _, expected = cached.forward(ids[n:], whole.last_hidden_state[0, -1:], n, shared)
            _, said = cached.forward(ids[n:], cached.hidden(n - 1), n, cached.keys_and_values(lm, n))
            return [(expected, said)]

        make = partial(CachedAssistant, model, target)
        with evaluating(in_training(model)):
            return agrees_with_target(target, make, compare, context_of(model), model.dtype)
