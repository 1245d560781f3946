"""A Gemma 4 assistant drafts from the target's own keys and values (see model.py)."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import Module
from transformers import PreTrainedModel

from specdemo.drafters.assistant.model import ASSISTANTS, CachedAssistant, is_assistant, shared_layers
from specdemo.drafters.base import Kind, Materials
from specdemo.drafters.formats import known_config
from specdemo.drafters.model.drafter import DraftInput
from specdemo.engine.draft import Draft, Drafter, draft_in_turn, one_hot_draft
from specdemo.engine.sampling import Sampler
from specdemo.errors import PairError
from specdemo.events import Gamma
from specdemo.runtime.device import Clock
from specdemo.runtime.lm import CachedLM, context_of, evaluating, in_training, logits_width
from specdemo.runtime.probe import TRIED_TOKENS, alike, tried_tokens
from specdemo.runtime.steps import RunStep


@dataclass(eq=False)
class AssistantDrafter(Drafter):
    """Drafts token by token, all from the position of the text's last token. The target has not computed that
    token's keys and values yet, so the assistant attends to those before it. It keeps nothing from round to
    round. Beyond its own context, and after a single token, nothing is drafted."""

    assistant: CachedAssistant
    target: CachedLM
    sampler: Sampler
    run_step: RunStep
    gamma: Gamma
    is_over: Callable[[], bool] = lambda: False  # of Decoder
    confidence: float = 0.0

    def __post_init__(self) -> None:
        # As in ModelDrafter, a GPU is not waited for at each token.
        self.stops_below = self.confidence if self.assistant.device.type == "cpu" else 0.0
        self.target.features = self.assistant.reads

    def propose(self, ids: list[int], k: int, u: list[float]) -> Draft:
        if k <= 0 or len(ids) == 1 or len(ids) > self.assistant.context:
            return one_hot_draft([], self.target.vocab_size, self.target.device)
        rows = self.run_step.rows(k, self.gamma)
        seen = self.sampler.seen(ids, self.target.vocab_size, self.assistant.device)
        value = DraftInput.of(self.assistant.device, len(ids) - 1, ids[-1:], self.sampler, u[:rows], seen)
        self.position = len(ids) - 1
        _, draft = self.run_step(("draft", rows), self.step, value)
        return replace(draft.on(self.target.device), k=min(k, len(draft.ids)))

    def step(self, value: DraftInput) -> Draft:
        """The draft made from `value`. The step runs uncaptured: it begins at `position`."""
        assistant, position = self.assistant, self.position
        shared = assistant.keys_and_values(self.target, position)
        hidden = assistant.hidden(position - 1)  # [1, H]

        def predict(drafted: Tensor | None) -> Tensor:
            nonlocal hidden
            token = value.last.long() if drafted is None else drafted
            hidden, logits = assistant.forward(token.to(hidden.device), hidden, position, shared)
            return logits

        return draft_in_turn(predict, value.u, self.sampler, value.settings, value.seen, self.stops_below)


class AssistantKind(Kind[PreTrainedModel]):
    is_for_a_target = "an assistant"
    reads_hidden_states = True

    def describes(self, folder: Path) -> bool:
        return str((known_config(folder) or {}).get("model_type")) in ASSISTANTS

    def is_one(self, model: Module) -> bool:
        return is_assistant(model)

    def name_of(self, model: PreTrainedModel) -> str:
        return "assistant"

    def cached(self, model: PreTrainedModel, target: PreTrainedModel, clock: Clock) -> CachedAssistant:
        return CachedAssistant(model, target)

    def build(self, given: Materials) -> AssistantDrafter:
        assert isinstance(given.target, CachedLM), "an assistant reads the cache of a transformers model"
        return AssistantDrafter(given.drafter, given.target, given.sampler, *given.how_to_draft)

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
            ("hidden states of size", model.config.backbone_hidden_size, of_target.hidden_size),
            ("a vocabulary of", logits_width(model), logits_width(target)),
        ]
        layers = shared_layers(target)
        for index, kind in enumerate(own.layer_types):
            if kind not in layers:
                raise PairError(f"{where}: it attends to layers of the type {kind}, which the target lacks")
            mine, theirs = own.per_layer_config[index], of_target.per_layer_config[layers[kind]]
            heads, width = mine.num_key_value_heads, mine.head_dim
            sizes.append((f"{kind} with key heads:", heads, theirs.num_key_value_heads))
            sizes.append((f"{kind} with keys of size", width, theirs.head_dim))
        for what, asked, found in sizes:
            if asked != found:
                raise PairError(f"{where}: it was made for {what} {asked:,}, and the target has {found:,}")

    def needs_targets_device(self, model: PreTrainedModel) -> str:
        return "attends to the target's keys and values"

    def agrees(self, model: PreTrainedModel, target: PreTrainedModel) -> bool:
        """Whether the assistant predicts the same from the target's cache as from what the target's own
        forward shares."""
        with torch.no_grad(), evaluating(in_training(target)), evaluating(in_training(model)):
            lm, cached = CachedLM(target), CachedAssistant(model, target)
            lm.features = cached.reads
            ids = tried_tokens(lm, int(min(TRIED_TOKENS, context_of(target), cached.context)))
            n = len(ids) - 1  # the position of the last token, which the assistant is given
            lm.prefill(ids[:n])
            whole = target.get_decoder()(
                input_ids=ids[None, :n], use_cache=False, return_shared_kv_states=True
            )
            shared = {
                kind: tuple(states.to(cached.device, cached.dtype) for states in both)
                for kind, both in whole.shared_kv_states.items()
            }
            _, expected = cached.forward(ids[n:], whole.last_hidden_state[0, -1:], n, shared)
            _, said = cached.forward(ids[n:], cached.hidden(n - 1), n, cached.keys_and_values(lm, n))
            for each in (lm, cached):
                each.free()
        return bool(alike(expected, said, model.dtype).all())
