"""An EAGLE-3 head over a cache that is written by position."""

from collections.abc import Callable

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specdemo.runtime.buffers import MIN_CAPACITY, kv_length_for, longer
from specdemo.runtime.device import to_device
from specdemo.runtime.eagle3 import Eagle3Head, PositionalAttention
from specdemo.runtime.features import Features
from specdemo.runtime.lm import context_of

PREFILL_CHUNK = 256  # pairs per forward: the mask has a row for each query head of each of them

DrafterModel = PreTrainedModel | Eagle3Head  # what a pair's drafter can be


class CachedHead:
    """A head with its own keys and values, and with the features of its target. Row t is that of the pair of
    the token at position t + 1 and the target's feature at position t.

    Nothing is rewound: a forward is told its first row, and what lies after its last is left over from
    rejected drafts, or empty, and masked."""

    def __init__(self, head: Eagle3Head, target: PreTrainedModel):
        self.model = head
        self.target = target
        self.device = head.device
        self.dtype = head.dtype
        self.context = context_of_drafter(head)
        head.attach_verifier(target)
        head.begin_run()
        depth = target.config.get_text_config().num_hidden_layers
        self.features = Features(target, head.config.layer_ids_for(depth))
        self.buffer_epoch = 0  # see LM
        layer = head.config.layer
        shape = (1, layer.num_key_value_heads, 0, layer.head_dim)
        self.keys = self.values = torch.zeros(shape, dtype=self.dtype, device=self.device)  # [1, G, C, d]
        self.reserve(1)

    def begin_run(self, static: bool) -> None:
        """Its forwards can always be captured."""

    @property
    def is_current(self) -> bool:
        """False when the target was moved or cast: a model in memory belongs to its owner."""
        weight = self.target.get_input_embeddings().weight
        return (weight.device, self.target.dtype) == (self.features.states.device, self.features.states.dtype)

    def free(self) -> None:
        """Gives the memory of the cache and of the features back at once."""
        self.features.states = self.features.states[:0].clone()
        self.keys = self.values = self.keys[:, :, :0].clone()

    @property
    def kv_length(self) -> int:
        return len(self.kv_ruler)

    def reserve(self, length: int) -> None:
        """Call before forwards of which none reaches row `length`."""
        kv_length = kv_length_for(length, self.device)
        capacity = self.keys.shape[2]
        if kv_length > capacity:
            capacity = max(kv_length, 2 * capacity, MIN_CAPACITY)
            self.keys, self.values = longer(self.keys, capacity), longer(self.values, capacity)
            self._ruler_buffer = torch.arange(capacity, device=self.device)
            self.buffer_epoch += 1
        self.kv_ruler = self._ruler_buffer[:kv_length]

    def forward(self, tokens: Tensor, g: Tensor, start: Tensor) -> Tensor:
        """tokens [N] and what came before each, g [N, H], in the rows start [], start + 1, ... -> y [N, H],
        see Eagle3Head."""
        rows = start + torch.arange(len(tokens), device=self.device)
        attend = PositionalAttention(self.keys, self.values, rows, self.kv_ruler)
        return self.model(tokens, g, rows + 1, attend)

    def forward_true(self, tokens: Tensor, start: Tensor) -> Tensor:
        """The same with the target's true features."""
        rows = start + torch.arange(len(tokens), device=self.device)
        states = self.features.at(rows.to(self.features.states.device))  # [N, A * T]
        return self.forward(tokens, self.model.features(states.to(self.device, self.dtype)), start)

    def predict(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """y [N, H] -> what the next forward takes as g [N, H], and the logits [N, V] of the token after
        each."""
        g, logits = self.model.predict(y)
        return g, self.model.for_target(logits)

    def prefill(self, ids: list[int], start: int, end: int, is_over: Callable[[], bool]) -> None:
        """Fills the rows from `start` to before `end`. ids: the text. is_over: as of LM.prefill."""
        for first in range(start, end, PREFILL_CHUNK):
            if is_over():
                return
            last = min(first + PREFILL_CHUNK, end)
            tokens = to_device(ids[first + 1 : last + 1], torch.long, self.device)
            self.reserve(last)
            self.forward_true(tokens, torch.full((), first, device=self.device))


def context_of_drafter(model: DrafterModel) -> float:
    """The most tokens that a text can have; infinite where the config names no limit."""
    if isinstance(model, Eagle3Head):
        return model.config.layer.max_position_embeddings or float("inf")
    return context_of(model)
