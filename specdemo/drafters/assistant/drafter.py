"""A Gemma 4 assistant drafts from the target's own keys and values (see model.py)."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from specdemo.drafters.assistant.model import CachedAssistant
from specdemo.drafters.model.drafter import DraftInput
from specdemo.engine.draft import Draft, Drafter, draft_in_turn, one_hot_draft
from specdemo.engine.sampling import Sampler
from specdemo.events import Gamma
from specdemo.runtime.lm import CachedLM
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
