"""Which experts a model's forwards read, where its layers are mixtures of experts."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from threading import get_ident

import torch
from torch import Tensor
from torch.nn import Module
from transformers import PreTrainedModel

from specdemo.runtime.weights import expert_layers


@dataclass(frozen=True)
class Experts:
    """The experts of a model's layers. layers: each with the name of the argument that tells which of them
    are chosen. count: how many experts a layer has, the most of any."""

    model: PreTrainedModel
    layers: dict[Module, str]
    count: int

    @classmethod
    def of(cls, model: PreTrainedModel) -> "Experts | None":
        """None for a model without experts, and where they are not told which are chosen."""
        layers = expert_layers(model)
        return cls(model, layers, max(layer.num_experts for layer in layers)) if layers else None

    @contextmanager
    def watching(self) -> Iterator[list[Tensor]]:
        """A context with a list of what was chosen in the model's latest forward in this thread: the numbers
        of the experts [N, k], for each layer."""
        thread, chosen = get_ident(), list[Tensor]()

        def begin(*_: object) -> None:
            if get_ident() == thread:  # another pair may share the model
                chosen.clear()

        def note(layer: Module, args: tuple, kwargs: dict) -> None:
            if get_ident() == thread:
                name = self.layers[layer]
                chosen.append(kwargs[name] if name in kwargs else args[1])

        with ExitStack() as hooks:
            hooks.callback(self.model.register_forward_pre_hook(begin).remove)
            for layer in self.layers:
                hooks.callback(layer.register_forward_pre_hook(note, with_kwargs=True).remove)
            yield chosen

    def read(self, chosen: list[Tensor], rows: int) -> Tensor:
        """How many experts of a layer the first row of a forward reads, the first two, ..., all `rows`, each
        expert once: [rows] float64, the means over the layers. What is chosen stays on its device, and
        nothing waits. Tokens that are fed again come before these rows, and do not count. [0] where it is not
        known: layers choose different numbers of experts, or for fewer tokens."""
        shapes = {ids.shape for ids in chosen}
        if len(shapes) != 1 or len(chosen[0]) < rows:
            return torch.empty(0, dtype=torch.float64, device=self.model.device)
        ids = torch.stack([ids.to(chosen[0].device) for ids in chosen])[:, -rows:]  # [L, rows, k]
        reads = torch.zeros(len(chosen), rows, self.count + 1, dtype=torch.uint8, device=ids.device)
        reads.scatter_(2, ids.long().clamp(max=self.count), 1)  # a number beyond the last is no expert
        by_row = reads[..., : self.count].cummax(1).values  # [L, rows, E]: by this row or one before it
        return by_row.sum((0, 2), dtype=torch.float64) / len(chosen)
