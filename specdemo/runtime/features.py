"""The hidden states of a target that an EAGLE-3 head drafts from."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from threading import get_ident

import torch
from torch import Tensor
from torch.nn import Module, ModuleList
from transformers import PreTrainedModel

from specdemo.runtime.buffers import longer


class Features:
    """The inputs of A of a model's layers, by position: transformers' hidden_states[i] for each i of
    `layer_ids`. The number of layers itself stands for the last layer's output, before the last norm.

    They are written where the forward's tokens stand, as the cache is. What rejected drafts have left over is
    overwritten before it is read."""

    def __init__(self, model: PreTrainedModel, layer_ids: tuple[int, ...]):
        """ValueError if the model has no single list of its layers."""
        config = model.config.get_text_config()
        self.layer_ids = layer_ids
        self.size: int = config.hidden_size  # H
        self._layers = layers_of(model)
        device = model.get_input_embeddings().weight.device
        self.states = torch.zeros(
            0, len(layer_ids) * self.size, dtype=model.dtype, device=device
        )  # [C, A * H]

    def reserve(self, capacity: int) -> None:
        """Makes room for the positions below `capacity`."""
        if capacity > len(self.states):
            self.states = longer(self.states, capacity)

    def keep(self, layer: int, x: Tensor, rows: Tensor) -> None:
        """x [N, H]: the input of this layer at the positions `rows` [N]. Nothing if it is not asked for."""
        if layer in self.layer_ids:
            start = self.layer_ids.index(layer) * self.size
            self.states[:, start : start + self.size].index_copy_(0, rows, x.to(self.states.dtype))

    def at(self, rows: Tensor) -> Tensor:
        """Positions [N] -> [N, A * H], the layers side by side in the order of `layer_ids`."""
        return self.states.index_select(0, rows)

    @contextmanager
    def watching(self, rows: Tensor) -> Iterator[None]:
        """Keeps what the model's own layers are given in this thread meanwhile, at the positions `rows` [N].
        (transformers' output_hidden_states leaves hooks on the model for good.)"""
        thread = get_ident()

        def keep(layer: int, x: Tensor) -> None:
            if get_ident() == thread:  # another pair may share the model
                self.keep(layer, x[0], rows)

        def keep_input(layer: int) -> object:
            def hook(_: Module, args: tuple, kwargs: dict) -> None:
                keep(layer, args[0] if args else kwargs["hidden_states"])

            return hook

        def keep_output(_: Module, args: tuple, output: Tensor | tuple) -> None:
            keep(len(self._layers), output[0] if isinstance(output, tuple) else output)

        with ExitStack() as hooks:
            for layer in self.layer_ids:
                if layer < len(self._layers):
                    hook = self._layers[layer].register_forward_pre_hook(keep_input(layer), with_kwargs=True)
                else:
                    hook = self._layers[-1].register_forward_hook(keep_output)
                hooks.callback(hook.remove)
            yield


def layers_of(model: PreTrainedModel) -> ModuleList:
    """The model's decoder layers; ValueError if it has no single list of them."""
    count = model.config.get_text_config().num_hidden_layers
    lists = [part for part in model.modules() if isinstance(part, ModuleList) and len(part) == count]
    if len(lists) != 1:
        raise ValueError(f"its {count} layers are not one list of modules")
    return lists[0]
