"""The states of a model's recurrent layers and convolutions, kept by position.

Keys and values have a place for each token, so rejected drafts are overwritten. A state has not: it stands
for all tokens before a position, and every forward changes it. So it is saved before a forward. A forward
that begins before that position puts back the latest saved one at or before its first token. It is then fed
the tokens in between once more, in front of its own: they are carried, and need no forward of their own."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import Module
from transformers.cache_utils import Cache, LinearAttentionLayer

# How many tokens of the text a forward carries at most. With more, they have a forward of their own, after
# which the state is saved. See README.md for what was measured.
MOST_CARRIED = 16
CATCH_UP = 1024  # tokens of the text that are fed at once after that
# How many rows a forward that begins from a state may have, so that it predicts what one without a cache
# does. Some layers begin anew when they are given several tokens; others compute one token in a way of their
# own.
RowsAtOnce = Literal["any", "one", "several"]
ROWS: tuple[RowsAtOnce, ...] = ("any", "several", "one")  # in the order in which they are tried

tried_rows: WeakKeyDictionary[Module, RowsAtOnce] = WeakKeyDictionary()  # as the probe found out


def possible_rows(model: Module) -> tuple[RowsAtOnce, ...]:
    """How many rows the model's forwards from a state may have, in the order in which that is to be tried.
    Where Mamba 2's time step has a limit, transformers' form for one token ignores it, which shows with some
    tokens only."""
    limits = (getattr(module, "time_step_limit", None) for module in model.modules())
    if any(limit and tuple(limit) != (0.0, float("inf")) for limit in limits):
        return ("several",)
    return ROWS


class StateLayer(LinearAttentionLayer):
    """A layer's states as transformers keeps them: [1, ...], of the same shape whatever the position."""

    # Like buffers of keys and values, the states outlive a caller's inference mode.
    @torch.inference_mode(False)
    def lazy_initialization(self, *arguments: Tensor, **named: object) -> None:
        super().lazy_initialization(*arguments, **named)

    def reset_states(self) -> None:
        """Sets the states as before the first token."""
        LinearAttentionLayer.reset(self)


@dataclass(frozen=True)
class _Saved:
    tensors: list[Tensor]
    has_previous: list[dict[int, bool]]  # of each layer


class States:
    """All states of one cache."""

    def __init__(self, layers: list[StateLayer], rows: RowsAtOnce, device: torch.device):
        self.layers = layers
        self.rows = rows
        self.fed_again = 0  # tokens of the text so far, because the state did not stand where it was needed
        self.extra_forwards = 0  # so far, besides one for each time that tokens were to be fed
        self._tokens = torch.zeros(0, dtype=torch.long, device=device)  # [C]: what was fed, by position
        self._position = -1  # how many tokens the state stands for; -1: not known
        self._saved: dict[int, _Saved] = {}  # by position, in ascending order
        self._prompt = 0  # the position of the prompt's end, where a state stays saved

    @classmethod
    def of(cls, model: Module, cache: Cache, device: torch.device) -> "States | None":
        """The states of the model's cache; None if it has none."""
        layers = [layer for layer in cache.layers if isinstance(layer, StateLayer)]
        return cls(layers, tried_rows.get(model, possible_rows(model)[0]), device) if layers else None

    @torch.inference_mode(False)  # as for the layers' own tensors
    def reserve(self, start: int, capacity: int) -> None:
        """Makes room for the positions below `capacity`, and lets go of states that forwards from `start` on
        do not need."""
        if capacity > len(self._tokens):
            self._tokens = torch.cat([self._tokens, self._tokens.new_zeros(capacity - len(self._tokens))])
        before = [position for position in self._saved if position <= start]
        needed = {self._prompt, *before[-2 if self.rows == "several" else -1 :]}
        self._saved = {at: state for at, state in self._saved.items() if at in needed or at > start}

    def begin_prompt(self, length: int, chunk: int) -> list[int]:
        """Where the parts of a prompt begin that are fed one after the other, of at most `chunk` tokens where
        the model allows it."""
        self._position, self._prompt = -1, 0
        if self.rows == "one":
            return [0][:length]  # from nothing, it may have any number of rows
        # The last part is two tokens, so that a forward of one row after the prompt has a state two tokens
        # back.
        last = [length - 2] if self.rows == "several" and length > 3 else []
        return [*range(0, last[0] if last else length, chunk), *last]

    def end_prompt(self) -> None:
        """Keeps the state at the prompt's end until the next prompt."""
        self._save()
        self._prompt = self._position

    def parts(self, ids: Tensor, start: int) -> Iterator[tuple[int, Tensor]]:
        """ids [N] are to be fed at the positions start, start + 1, ... Yields what is to be fed for that, one
        part after the other: the position of its first token, and its tokens. The state stands there when a
        part is yielded, and after the part when the next is asked for."""
        end = start + len(ids)
        self._tokens[start:end] = ids
        self._saved = {at: state for at, state in self._saved.items() if at <= start}
        # Where a token may not be fed alone, the one before it is fed with it.
        begin = max(0, start - 1) if self.rows == "several" and len(ids) == 1 else start
        if self._position != begin:
            self._put_back(begin)
        self.fed_again += start - self._position
        stops = list(self._stops(begin, end))
        self.extra_forwards += len(stops) - 1
        for stop in stops:
            position = self._position
            self._save()
            self._position = -1  # in case the forward fails
            yield position, self._tokens[position:stop]
            self._position = stop

    def _stops(self, begin: int, end: int) -> Iterator[int]:
        """Where each of the next forwards ends. begin: where the last of them should, or may, begin."""
        position = self._position
        if self.rows == "one" and position > 0:
            yield from range(position + 1, end)
        elif self.rows != "one" and begin - position > MOST_CARRIED:
            # No part has one token only.
            yield from range(position + CATCH_UP, begin - 1, CATCH_UP)
            yield begin
        yield end

    def _save(self) -> None:
        """Saves the state. The one before the first token is not saved: nothing is there."""
        if self._position > 0 and self._position not in self._saved:
            self._saved[self._position] = _Saved(
                [tensor.clone() for tensor in self._tensors()],
                [dict(layer.has_previous_state) for layer in self.layers],
            )

    def _put_back(self, position: int) -> None:
        """Puts back the latest state that stands at or before `position`."""
        self._position = max((at for at in self._saved if at <= position), default=0)
        if self._position == 0:
            for layer in self.layers:
                layer.reset_states()
            return
        saved = self._saved[self._position]
        for tensor, before in zip(self._tensors(), saved.tensors, strict=True):
            tensor.copy_(before)
        for layer, has_previous in zip(self.layers, saved.has_previous, strict=True):
            layer.has_previous_state = dict(has_previous)

    def _tensors(self) -> list[Tensor]:
        """The states of all layers, in one order."""
        return [
            state
            for layer in self.layers
            for states in (layer.conv_states, layer.recurrent_states)
            for state in states.values()
            if state is not None
        ]
