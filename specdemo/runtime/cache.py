"""Caches that are written by position, and what a model's forwards keep of its layers' inputs by position.

No keys and values are ever rewound: a forward is told the position of its first token, and what the cache
held from there on is overwritten or masked."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property, partial
from itertools import count

import torch
from torch import Tensor
from torch.nn import Module, ModuleList
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer

from specdemo.errors import in_short, is_out_of_memory
from specdemo.runtime.cuda import to_device
from specdemo.runtime.states import StateLayer
from specdemo.runtime.weights import in_this_thread
from specdemo.words.message import Message, message

MIN_CAPACITY = 256  # tokens that there is room for
FINER_FROM = 16_384  # tokens: beyond them, reading twice as many as there are would take too long
NEW_BUFFERS = count(1)  # a number for each set of buffers of a cache; none comes twice in this process


class Features:
    """The inputs of A of a model's layers, by position: transformers' hidden_states[i] for each i of
    `layer_ids`. The number of layers itself stands for the last layer's output, before the last norm.

    They are written where the forward's tokens stand, as the cache is. What rejected drafts have left over is
    overwritten before it is read."""

    def __init__(self, model: PreTrainedModel, layer_ids: tuple[int, ...]):
        """Raises ValueError if the model has no single list of its layers."""
        config = model.config.get_text_config()
        self.layer_ids = layer_ids
        self.size: int = config.hidden_size  # H
        self._layers = layers_of(model)
        device = model.get_input_embeddings().weight.device
        width = len(layer_ids) * self.size
        self.states = torch.zeros(0, width, dtype=model.dtype, device=device)  # [C, A * H]
        self.buffer_epoch = next(NEW_BUFFERS)  # see LM

    def reserve(self, capacity: int) -> None:
        """Makes room for the positions below `capacity`."""
        if capacity > len(self.states):
            self.buffer_epoch = next(NEW_BUFFERS)
            self.states = longer(self.states, capacity)

    def keep(self, layer: int, x: Tensor, rows: Tensor) -> None:
        """Keeps x [N, H], the input of this layer at the positions `rows` [N], if it is asked for."""
        if layer in self.layer_ids:
            start = self.layer_ids.index(layer) * self.size
            self.states[:, start : start + self.size].index_copy_(0, rows, x.to(self.states.dtype))

    def at(self, rows: Tensor) -> Tensor:
        """The features at the positions `rows` [N]: [N, A * H], the layers side by side in the order of
        `layer_ids`."""
        return self.states.index_select(0, rows)

    def free(self) -> None:
        """Gives its memory back at once."""
        self.states = self.states[:0].clone()

    @contextmanager
    def watching(self, rows: Tensor) -> Iterator[None]:
        """A context that keeps what the model's own layers are given in this thread, at the positions `rows`
        [N]. (transformers' output_hidden_states leaves hooks on the model for good.)"""
        depth = len(self._layers)

        def keep_input(layer: int, _: Module, args: tuple, kwargs: dict) -> None:
            self.keep(layer, (args[0] if args else kwargs["hidden_states"])[0], rows)

        def keep_output(_: Module, args: tuple, output: Tensor | tuple) -> None:
            self.keep(depth, (output[0] if isinstance(output, tuple) else output)[0], rows)

        with ExitStack() as hooks:
            for layer in self.layer_ids:
                if layer < depth:
                    hook = in_this_thread(partial(keep_input, layer))
                    handle = self._layers[layer].register_forward_pre_hook(hook, with_kwargs=True)
                else:
                    handle = self._layers[-1].register_forward_hook(in_this_thread(keep_output))
                hooks.callback(handle.remove)
            yield


class Cached:
    """A model with its cache, as the runner sees it."""

    device: torch.device
    dtype: torch.dtype
    compiles_itself = False  # if not, its forwards are captured with the steps that they are part of
    is_captured = True  # whether steps over it may be captured
    written_for_capture = False  # if not, it is tried first whether its forward can be captured
    warming_up: Message | None = None  # what it is compiling now
    reads: Features | None = None  # what it drafts from: its target must keep them

    def begin_run(self, static: bool) -> None:
        """Sets the mode of the forwards that follow; they may be the same in both."""

    def make_room(self, length: int) -> None:
        """Makes room for a whole text of this length, before it begins."""
        raise NotImplementedError

    def warm_up(self, rows: int) -> None:
        """Runs a few forwards of one token and of `rows` tokens, for what happens at the first ones."""

    @cached_property
    def faults(self) -> dict[str, str]:
        """Why faster ways are not taken, by the keys of the messages that say it."""
        return {}

    def tries(self, key: str, work: Callable[[], object]) -> bool:
        """Tries a faster way: does its work, and compares it with the slower one. Returns whether it can be
        taken; if not, the notes say why, by the message with this key."""
        self.faults.pop(key, None)
        if why := why_not(work):
            self.faults[key] = why
        return key not in self.faults

    def notes_as(self, role: str) -> list[Message]:
        """Why its forwards are slower than they might be, a sentence each. role: what it is in its pair."""
        return [message(key, who=message(f"the_{role}"), why=why) for key, why in self.faults.items()]

    def free(self) -> None:
        """Gives back at once the memory that it keeps from run to run."""
        if self.reads is not None:
            self.reads.free()


def why_not(work: Callable[[], object]) -> str | None:
    """Does what may fail. Returns why it has failed, on one line; None if it has not. Raises what says that
    memory is out: at the next run there may be room."""
    try:
        work()
    except Exception as error:  # of transformers, of numba or of a compiler, whose next version may differ
        if is_out_of_memory(error):
            raise
        return in_short(error)
    return None


class CachedByPosition(Cached):
    """A model with a cache that is written by position and grows with the text: it tells the cache's layers
    where to write."""

    cache: "PositionalCache"
    start: int | Tensor  # [], the position of the next forward's first token
    positions: Tensor  # [N], those of all of its tokens
    visible: int  # how many positions it is given to attend to
    key_positions: Tensor  # [visible]: 0, 1, ...
    capacity = 0
    buffer_epoch: int  # see LM
    features: Features | None = None  # see LM

    @property
    def layers(self) -> "list[PositionalLayer]":
        """The cache's layers that hold something."""
        return [
            layer
            for layer in self.cache.layers
            if isinstance(layer, PositionalLayer) and layer.is_initialized
        ]

    @property
    def kv_length(self) -> int:
        return len(self.key_positions)

    def grow(self, length: int) -> None:
        """Makes room for so many positions."""
        kv_length = kv_length_for(length, self.device)
        if kv_length > self.capacity:
            capacity = max(kv_length, 2 * self.capacity, MIN_CAPACITY)
            self.buffer_epoch = next(NEW_BUFFERS)
            for layer in self.layers:
                layer.grow(capacity)
            self.all_positions = torch.arange(capacity, device=self.device)
            self.capacity = capacity  # last: without memory for all layers, there is no room
        # A captured forward can follow the length of a tensor, but not an int.
        self.key_positions = self.all_positions[:kv_length]

    def write_at(self, start: int | Tensor, count: int) -> Tensor:
        """Sets and returns where the keys and values of the next forward's tokens go: positions [N]."""
        self.start, self.visible = start, self.key_positions.shape[0]
        is_there = count == 1 and isinstance(start, Tensor)  # which spares a launch
        self.positions = start.view(1) if is_there else start + self.key_positions[:count]
        return self.positions

    def keep(self, start: int, kept: list[int]) -> None:
        """Puts rows that do not follow each other where they would stand if they did: row start + kept[i] of
        the cache and of the features becomes row start + i, by one gather in each layer. kept: ascending
        numbers."""
        moved = [(start + to, start + at) for to, at in enumerate(kept) if to != at]
        if not moved:
            return
        to, at = to_device([*zip(*moved, strict=True)], torch.long, self.device)
        kept_by_row = [] if self.features is None else [self.features.states]
        for rows in (*kept_by_row, *(each for layer in self.layers for each in (layer.keys, layer.values))):
            rows.index_copy_(-2, to, rows.index_select(-2, at))

    def free(self) -> None:
        """Also empties the cache: its layers point back here, so the collector would have to find them."""
        super().free()
        self.cache.layers.clear()


class PositionalLayer(DynamicLayer):
    """One layer's keys and values, by position. Sliding-window layers keep the full length too (the mask does
    the sliding), because the next round may begin before what the window has left."""

    def __init__(self, lm: CachedByPosition):
        super().__init__()
        self.lm = lm

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys, self.values = key_states[..., :0, :], value_states[..., :0, :]  # [1, heads, 0, head_dim]
        self.is_initialized = True
        self.grow(self.lm.capacity)

    def grow(self, capacity: int) -> None:
        """Makes room for `capacity` positions. There may be more already, where memory ran out before the
        next layer could grow."""
        if capacity > self.keys.shape[-2]:
            self.keys, self.values = longer(self.keys, capacity), longer(self.values, capacity)

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.keys.index_copy_(2, self.lm.positions, key_states)
        self.values.index_copy_(2, self.lm.positions, value_states)
        return self.keys[:, :, : self.lm.visible], self.values[:, :, : self.lm.visible]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.lm.key_positions.shape[0], 0

    def get_seq_length(self) -> int | Tensor:
        return self.lm.start


class PositionalCache(Cache):
    """A cache that asks its model for the length. transformers' own asks the first layer with keys and
    values, and there may be none."""

    def __init__(self, lm: CachedByPosition, layers: list):
        super().__init__(layers=layers)
        self.lm = lm

    def get_seq_length(self, layer_idx: int = 0) -> int | Tensor:
        return self.lm.start

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self.lm.key_positions.shape[0], 0


class HybridLayer(StateLayer, PositionalLayer):
    """A layer that keeps keys and values as well as a state."""

    def __init__(self, lm: CachedByPosition, number_of_states: int):
        StateLayer.__init__(self, number_of_states)
        self.lm = lm
        self.keys = self.values = None
        self.is_initialized = False

    def lazy_initialization(self, *arguments: Tensor, **named: object) -> None:
        """Initializes keys and values, which are given by place, or states, which are given by name."""
        kind = PositionalLayer if arguments else StateLayer
        kind.lazy_initialization(self, *arguments, **named)


# Buffers outlive a caller's inference mode, and if they were made in it, could not be written to after it.
@torch.inference_mode(False)
def longer(old: Tensor, length: int) -> Tensor:
    """`old` [..., n, d] followed by zeros up to [..., length, d]. The memory is not left uninitialised:
    masked values are multiplied by 0, and NaN would survive that."""
    new = old.new_zeros(*old.shape[:-2], length, old.shape[-1])
    new[..., : old.shape[-2], :] = old
    return new


def kv_length_for(length: int, device: torch.device) -> int:
    """How many positions a forward is given when the text has this length: few different numbers on a GPU,
    where each has to be captured (256, 512, 1024, ..., 16384, 24576, 32768, 49152, ...), and the next
    multiple of 64 on a CPU."""
    if device.type == "cpu":
        return -(-length // 64) * 64
    power = max(MIN_CAPACITY, 1 << (length - 1).bit_length())
    return power * 3 // 4 if length <= power * 3 // 4 and power > FINER_FROM else power


def layers_of(model: PreTrainedModel) -> ModuleList:
    """The model's decoder layers; ValueError if it has no single list of them."""
    depth = model.config.get_text_config().num_hidden_layers
    lists = [part for part in model.modules() if isinstance(part, ModuleList) and len(part) == depth]
    if len(lists) != 1:
        raise ValueError(f"its {depth} layers are not one list of modules")
    return lists[0]
