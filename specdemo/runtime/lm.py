"""A causal language model over a cache that is written by position (cache.py), or whose states are put back
(states.py): all that the engine and the drafters need of a model.

A forward runs in one of two modes: *plain*, as transformers would run it with a cache of its own; or
*static*, so that it can be captured: positions are tensors, attention is given more of the cache than is
filled, and nothing waits for the device."""

import inspect
from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Protocol
from weakref import ref

import torch
from torch import Tensor
from torch.nn import Module
from transformers import DynamicCache, PreTrainedModel, cache_utils
from transformers.cache_utils import (
    Cache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionLayer,
)

from specdemo.runtime import cuda
from specdemo.runtime.agreement import check_alike
from specdemo.runtime.attention import Branches, static_attention
from specdemo.runtime.cache import (
    NEW_BUFFERS,
    Cached,
    CachedByPosition,
    Features,
    HybridLayer,
    PositionalCache,
    PositionalLayer,
    why_not,
)
from specdemo.runtime.cuda import to_device
from specdemo.runtime.fused import FusedForward, is_of_family
from specdemo.runtime.linear import MOST_BY_TRITON
from specdemo.runtime.native import MOST_PREFILLED, Copies, Drawing, Native, NativeForward, can_be_native
from specdemo.runtime.states import StateLayer, States
from specdemo.words.message import Message, message

WARM_UP_FORWARDS = 3
TRIED_AFTER = 200  # tokens: see CachedLM._check_fused
TRIED_ROWS = (10, *range(8, 0, -1))  # of compiled forwards, whose products take up to 8 rows at once
# Tokens per forward: bounds the memory that a long prompt takes. A GPU waits for the launches of so few, so
# more are taken where attention needs no mask.
PREFILL_CHUNK, LARGE_PREFILL_CHUNK = 1024, 4096
# The type of a cache's layers that hold nothing, which transformers has from 5.23 on.
EMPTY_LAYERS = (cache_utils.DummyLayer,) if hasattr(cache_utils, "DummyLayer") else ()


class LM(Protocol):
    """What the engine needs of a model. The tests' toy tables are LMs too."""

    vocab_size: int
    known_ids: int  # the ids below this have an embedding
    buffer_epoch: int  # of NEW_BUFFERS when the cache got its own; captured steps hold for these alone
    features: Features | None  # what its forwards keep of their layers' inputs; None: nothing
    states: States | None  # what it keeps of recurrent layers; None: it has none

    @property
    def device(self) -> torch.device:
        """The device that the logits are on."""

    @property
    def kv_length(self) -> int:
        """How many positions of the cache a forward is given to attend to."""

    def reserve(self, start: int, length: int) -> None:
        """Call before consecutive forwards: the first begins at position `start`, none reaches position
        `length`."""

    def forward(self, ids: Tensor, start: Tensor, branches: Branches | None = None) -> Tensor:
        """ids [N] at the positions start [], start + 1, ... -> logits [N, V]: row i predicts the token after
        ids[i]. branches: where they stand in the text, and what each of them sees, where they do not follow
        each other; start: then of their rows in the cache."""

    def keep(self, start: int, kept: list[int]) -> None:
        """Leaves one branch of what forwards with branches have written: row start + kept[i] of the cache
        becomes row start + i."""

    @property
    def drafts_itself(self) -> bool:
        """Whether it has `draft` in this run."""

    def draft(self, ids: Tensor, start: Tensor, drawing: "Drawing") -> tuple[Tensor, Tensor | None, Tensor]:
        """Runs many forwards as one call, where the model `drafts_itself`: feeds ids [N], and then the tokens
        that it draws, each from the last logits. Returns these K tokens [K], what they were drawn from [K, V]
        (None when greedy), and the logits [K, V]. K is less than what is asked for where the draft ends at a
        place that the model is not sure of."""

    def reads_branches(self) -> bool:
        """Whether its forwards can be given branches."""

    def prefill(self, ids: Tensor, is_over: Callable[[], bool] = lambda: False) -> int:
        """Fills the cache with ids [N] from position 0 on; N may be 0. Returns the number of forwards that it
        takes. is_over: asked before each; the rest is left out once it is true."""


class CachedLM(Native, CachedByPosition):
    """A transformers model as an `LM`. It keeps its cache from run to run; the next run overwrites it.
    compiled: whether its static forwards are to be one call each, where it can have these on a CPU."""

    def __init__(self, model: PreTrainedModel, compiled: bool = False):
        self.model = model
        self.compiles_itself = compiled and can_be_native(model)
        self.device = torch.device(model.get_input_embeddings().weight.device)
        self.dtype = model.dtype
        self.vocab_size = logits_width(model)
        self.static = False  # the mode of this run, see begin_run
        self.buffer_epoch = next(NEW_BUFFERS)
        self.features: Features | None = None
        self.fused: FusedForward | None = None  # runs static forwards; None: the model itself does
        self._may_use_triton = True  # where there is Triton
        self._is_chosen = False  # whether `fused` was
        self._reads_branches: dict[bool, bool] = {}  # by `static`
        self.branches_by_torch = False  # whether they were read more slowly than other rows are
        self.known_ids = embedded_ids(model)
        self.last_position = context_of(model) - 1
        self.cache, self._cache_name = positional_cache(model, self), cache_argument(model)
        self.states = States.of(model, self.cache, self.device)
        self.parameters = inspect.signature(model.forward).parameters
        # A prefill needs no logits, and [prompt, V] of them can be gigabytes.
        self._prefill_arguments = {"logits_to_keep": 1} if "logits_to_keep" in self.parameters else {}
        self.reserve(0, 1)

    def begin_run(self, static: bool) -> None:
        """Sets the mode of the forwards that follow."""
        self.static, self.branches_by_torch = static, False
        if static and not self._is_chosen:
            self._choose_forward()
            self._is_chosen = True
        if static and self.fused is not None:
            self.fused.begin_run()
            if self.native is not None:
                self._trying(partial(self._find_weights, self.fused.has_moved))
        if self.compiles_itself and self.native is None:
            self.static = False

    def _choose_forward(self) -> None:
        """Takes the fused forward, and then the compiled one, if they predict what the model itself does."""
        self.fused = self.native = None
        for triton in (True, False) if self._may_use_triton and cuda.has_triton(self.device) else (False,):
            if self.tries("no_triton" if triton else "not_fused", partial(self._take_fused, triton)):
                break
            self.fused = None
        else:
            self.faults.pop("no_triton", None)  # which says that the forward is fused
        if self.compiles_itself and self.fused is not None:
            self._trying(self._choose_native)

    def _take_fused(self, triton: bool) -> None:
        if is_of_family(self.model):
            self.fused = FusedForward(self.model, self.last_position, triton)
            self._check_fused()

    def _check_fused(self) -> None:
        """Raises ValueError if the fused forward predicts something other than the model; with kernels, tried
        after so many other tokens that attention has several parts to combine."""
        otherwise = "its fused forward predicts something other than the model"
        if self.fused is not None and self.fused.triton:
            counts = MOST_BY_TRITON, 9, 2, 1
            self.compare(self.static_forward, counts, otherwise, after=TRIED_AFTER)
        else:
            self.compare(self.static_forward, (12, 1), otherwise)

    def _choose_native(self) -> None:
        fused = self.fused
        assert fused is not None
        self.native = NativeForward(lambda: fused.decoder, self._shared_copies())
        otherwise = "its compiled forward predicts something other than the model"
        self.compare(partial(self.native, self), TRIED_ROWS, otherwise)

    def _shared_copies(self) -> Copies | None:
        return None

    @torch.no_grad()
    def compare(
        self,
        forward: Callable[[Tensor, Tensor], Tensor],
        counts: Sequence[int],
        otherwise: str,
        after: int = 0,
    ) -> None:
        """Raises ValueError, which says `otherwise`, if forwards of so many rows predict something other than
        the model. counts: numbers of rows, the largest first. after: how many tokens come before these, if
        the model's context has room."""
        n = int(min(after + counts[0], self.last_position + 1))
        few = min(n, counts[0])
        positions = torch.arange(n, device=self.device)
        ids = positions % self.known_ids
        self.reserve(0, n)
        if n > few:
            self._plain_forward(ids[:-few], **self._prefill_arguments)
        expected = self._plain_forward(ids[-few:])  # [few, V]
        for rows in (min(count, few) for count in counts):
            self.reserve(n - rows, n)
            check_alike(expected[-rows:], forward(ids[-rows:], positions[-rows]), self.dtype, otherwise)

    def notes_as(self, role: str) -> list[Message]:
        is_so = {
            "one_by_one": self.states is not None and self.states.rows == "one",
            "branches_by_torch": self.branches_by_torch,
        }
        others = [message(key, who=message(f"the_{role}")) for key, is_one in is_so.items() if is_one]
        return super().notes_as(role) + others

    def free(self) -> None:
        super().free()
        self.states = None

    def make_room(self, length: int) -> None:
        self.reserve(0, length)

    def reserve(self, start: int, length: int) -> None:
        self._next = start
        self.grow(length)
        if self.static and self.fused is not None and self.fused.triton:
            self.key_positions = self.all_positions  # one capture serves all lengths of the text
        if self.features is not None:
            self.features.reserve(self.capacity)
        if self.states is not None:
            self.states.reserve(start, self.capacity)

    def forward(self, ids: Tensor, start: Tensor, branches: Branches | None = None) -> Tensor:
        if self.static and self.native is not None:
            if self.native.takes(branches):
                return self.native(self, ids, start, branches=branches)
            self.branches_by_torch = True
        if self.static:
            return self.static_forward(ids, start, branches)
        if branches is None:
            return self._plain_forward(ids)
        return self._static(ids, self._write_next(len(ids)), branches)

    @property
    def drafts_itself(self) -> bool:
        return self.static and self.native is not None

    def draft(self, ids: Tensor, start: Tensor, drawing: Drawing) -> tuple[Tensor, Tensor | None, Tensor]:
        assert self.native is not None
        return self.native.draft(self, ids, start, drawing)

    def static_forward(self, ids: Tensor, start: Tensor, branches: Branches | None = None) -> Tensor:
        self._next += len(ids)
        return self._static(ids, self.write_at(start, len(ids)), branches)

    def _write_next(self, count: int) -> Tensor:
        """Where the keys and values of a plain forward's tokens go: positions [N]. It sees them and those
        before."""
        start, self._next = self._next, self._next + count
        self.key_positions = self.all_positions[: self._next]
        return self.write_at(start, count)

    def _static(self, ids: Tensor, rows: Tensor, branches: Branches | None) -> Tensor:
        """A forward with masks of this project. rows [N]: where the cache is written."""
        if self.fused is not None:
            return self.fused(self, self._known(ids), rows, branches)
        positions = rows if branches is None else branches.positions(rows)
        # Rows that only fill a captured step may lie beyond the model's last position.
        positions = positions.clamp(max=self.last_position)
        arguments = {
            "position_ids": positions[None],
            "attention_mask": torch.ones_like(self.key_positions)[None],  # nothing is padding
        }
        arguments = {name: value for name, value in arguments.items() if name in self.parameters}
        with static_attention(self.model.config, branches):
            return self._call(ids, arguments)

    @torch.no_grad()
    def reads_branches(self) -> bool:
        """Whether forwards with branches predict what the others do. It is tried once, in the mode of the
        run, before the prompt is read: what places a model knows of a token beside those that it is told
        (ALiBi, a mask of its own) shows in what it predicts. Where it is the kernels in Triton that cannot,
        the model goes on without them."""
        if self.static not in self._reads_branches:
            fault = why_not(self._try_branches)
            if fault is not None and self.static and self.fused is not None and self.fused.triton:
                self._may_use_triton = False
                self._choose_forward()
                self.faults["no_triton"] = fault
                self.buffer_epoch = next(NEW_BUFFERS)  # what was captured has the kernels
                fault = why_not(self._try_branches)
            cuda.synchronize(self.device)  # which raises after an error of the GPU
            self._reads_branches[self.static] = fault is None
        return self._reads_branches[self.static]

    def _try_branches(self) -> None:
        """Reads a tree of four tokens after a text (the last of them follows the third, which is a sibling of
        the second), and goes on after the longer branch; and reads it depth by depth, as a drafter does.
        Raises ValueError if that differs from reading each branch by itself."""
        if "position_ids" not in self.parameters or self.last_position < 12:
            raise ValueError("it takes no positions, or few")
        ids = torch.arange(3, 12, device=self.device) % self.known_ids
        text, tree, following = ids[:4], ids[4:8], ids[8:]
        depths = torch.tensor([0, 1, 1, 2], device=self.device)
        seen = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]], device=self.device)
        start = torch.tensor(len(text), device=self.device)

        def read(part: Tensor, at: Tensor, branches: Branches | None = None) -> Tensor:
            self.reserve(int(at), int(at) + len(part))
            return self.forward(part, at, branches)

        read(text, start - len(text))
        one = read(tree[:2], start)
        other = read(torch.cat([tree[:1], tree[2:], following]), start)
        both = read(tree, start, Branches(depths, seen == 0))
        self.keep(len(text), [0, 2, 3])
        logits = [both, read(following, start + 3), read(tree[:1], start)]
        apart = torch.eye(2, dtype=torch.bool, device=self.device)
        logits.append(read(tree[1:3], start + 1, Branches(depths[[0, 0]], ~apart)))
        logits.append(read(tree[3:], start + 3, Branches(depths[[0, 0, 1]], seen[3:, 1:] == 0)))
        expected = torch.cat([other[:1], one[1:], other[1:], other[:1], one[1:], other[1:3]])
        otherwise = "it predicts something else from a tree"
        check_alike(expected, torch.cat(logits), self.dtype, otherwise)

    def _plain_forward(self, ids: Tensor, **arguments: object) -> Tensor:
        if self.states is None:
            return self._feed(ids, arguments)
        start, logits = self._next, []
        for position, part in self.states.parts(ids, start):
            self._next = position
            if position + len(part) <= start:  # only for the state after it
                self._feed(part, self._prefill_arguments)
            else:
                logits.append(self._feed(part, arguments))
        return torch.cat(logits)[-len(ids) :]

    def _feed(self, ids: Tensor, arguments: dict) -> Tensor:
        positions = self._write_next(len(ids))
        if self.states is not None and "position_ids" in self.parameters:
            # Bamba would count from 0, as if there were no cache.
            arguments = {"position_ids": positions[None], **arguments}
        return self._call(ids, arguments)

    def _call(self, ids: Tensor, arguments: dict) -> Tensor:
        ids = self._known(ids)[None]
        features = self.features
        with nullcontext() if features is None else features.watching(self.positions):
            output = self.model(input_ids=ids, use_cache=True, **{self._cache_name: self.cache}, **arguments)
        return output.logits[0]  # [N, V]

    def _known(self, ids: Tensor) -> Tensor:
        """The ids, with the last known one in place of those that the model lacks. A drafter with the
        target's tokenizer can lack some of the target's ids. Any known id can replace one: a drafter's
        context need not be right for q to be what its draft is drawn from. A target lacks none, unless it
        predicts more tokens than it has embeddings, which the pair's notes say."""
        return ids.clamp(max=self.known_ids - 1)

    @property
    def _reads_prompts_unmasked(self) -> bool:
        """Whether prompts are read by this project's attention, on a GPU: only of a model whose fused forward
        is used, and whose own attention is torch's."""
        is_known = self.static and self.fused is not None and self.states is None
        attention = getattr(self.model.config, "_attn_implementation", None)
        return is_known and attention == "sdpa" and cuda.is_cuda(self.device)

    def prefill(self, ids: Tensor, is_over: Callable[[], bool] = lambda: False) -> int:
        native = self.native
        if self.static and native is not None and 0 < len(ids) <= MOST_PREFILLED and not is_over():
            self.reserve(0, len(ids))
            native(self, ids, torch.zeros((), dtype=torch.long), with_logits=False)
            return 1
        states, unmasked = self.states, self._reads_prompts_unmasked
        size = LARGE_PREFILL_CHUNK if unmasked else PREFILL_CHUNK
        starts = list(range(0, len(ids), size))
        if states is not None:
            starts = states.begin_prompt(len(ids), size)
        for start, end in pairwise([*starts, len(ids)]):
            if is_over():
                break
            chunk = to_device(ids[start:end].tolist(), torch.long, self.device)
            self.reserve(start, end)
            with static_attention(self.model.config) if unmasked else nullcontext():
                self._plain_forward(chunk, **self._prefill_arguments)
        if states is not None:
            states.end_prompt()
        return len(starts)

    def warm_up(self, rows: int) -> None:
        length = max(0, int(min(32, self.last_position + 1 - rows)))
        self.prefill(torch.zeros(length, dtype=torch.long))
        start = torch.tensor(length, device=self.device)
        for tokens in (1, rows):
            for _ in range(WARM_UP_FORWARDS):
                self.reserve(length, length + tokens)
                self.forward(torch.zeros(tokens, dtype=torch.long, device=self.device), start)


HYBRID = (LinearAttentionAndFullAttentionLayer, LinearAttentionAndSlidingWindowAttentionLayer)


def check_writes_text(model: PreTrainedModel) -> None:
    """Raises ValueError for a model in memory that is of another class than those that write text."""
    if model.get_output_embeddings() is None:
        raise ValueError("it has no output layer over a vocabulary: load it with AutoModelForCausalLM")


def final_norm(target: PreTrainedModel) -> Module:
    """The norm between the target's last layer and its output layer. Raises ValueError where it is not
    known."""
    norm = getattr(target.get_decoder(), "norm", None)
    if norm is None:
        raise ValueError("its last norm is not found")
    return norm


def logits_width(model: PreTrainedModel) -> int:
    """V: the width of the logits, padding included."""
    return (model.get_output_embeddings() or model.get_input_embeddings()).weight.shape[0]


def embedded_ids(model: PreTrainedModel) -> int:
    """How many tokens the model can be fed: the ids below this have a row of its input embeddings."""
    return model.get_input_embeddings().weight.shape[0]


def context_of(model: Module) -> float:
    """The most tokens that a text can have; infinite where the config names no limit."""
    return min(positions_of(model), longrope_end(model))


def positions_of(model: Module) -> float:
    """How many positions the model's config names; infinite where it names no limit."""
    return getattr(model.config.get_text_config(), "max_position_embeddings", None) or float("inf")


def longrope_end(model: Module) -> float:
    """The length beyond which "longrope" has other factors: transformers rotates all tokens of a forward by
    the long ones if a single one lies there, but keys that are cached were rotated by the short ones. So what
    a token is predicted from would depend on how the text was cut into forwards. Infinite without such
    factors, and for a drafting head, which rotates each token by its own position alone."""
    if not isinstance(model, PreTrainedModel):
        return float("inf")
    rope = getattr(model.config.get_text_config(), "rope_parameters", None) or {}
    kinds = [rope, *(kind for kind in rope.values() if isinstance(kind, dict))]  # or one for each layer type
    ends = [kind["original_max_position_embeddings"] for kind in kinds if _has_two_lengths(kind)]
    return min(ends, default=float("inf"))


def _has_two_lengths(rope: dict) -> bool:
    by_length = ("factor", "mscale")
    return rope.get("rope_type") == "longrope" and any(
        rope.get(f"short_{name}") != rope.get(f"long_{name}") for name in by_length
    )


def state_of(model: Module) -> tuple:
    """What the owner of a model in memory may change between two runs, to be compared: all that is kept of a
    model holds for this state. The numbers of its weights are no part of it."""
    attention = getattr(model.config, "_attn_implementation", None)
    modules = list(model.modules())
    weights = tuple(
        (weight.shape, weight.dtype)
        for module in modules
        for weight in module._parameters.values()
        if weight is not None
    )
    parts = tuple(map(ref, modules)), weights
    return model.device, model.dtype, attention, context_of(model), parts


def windows_of(model: PreTrainedModel) -> list[int]:
    """The sizes, in tokens, of the windows and chunks within which some of its layers attend."""
    settings = model.config.get_text_config().to_dict().items()
    sizes = (size for key, size in settings if "window" in key or "chunk" in key)
    return [size for size in sizes if isinstance(size, int) and size > 1]


def cache_argument(model: PreTrainedModel) -> str:
    """How the model's forward names the cache: `past_key_values`, or `cache` from transformers 5.24 on, which
    in some old models is a dict of another kind; models without attention had `cache_params` before. Raises
    ValueError when it takes none."""
    arguments = inspect.signature(model.forward).parameters
    if "past_key_values" in arguments:
        return "past_key_values"
    if "cache" in arguments and "dict" not in str(arguments["cache"].annotation):
        return "cache"
    if "cache_params" in arguments:
        return "cache_params"
    raise ValueError("it takes no cache, so every forward would begin anew")


def positional_cache(model: PreTrainedModel, lm: CachedLM | None = None) -> Cache:
    """An empty cache for the model; ValueError when the model has none that can be written by position."""
    if model.config.is_encoder_decoder:
        raise ValueError("it is an encoder-decoder model, and only decoder-only models can be run")
    # The list's length matters: models whose last layers share keys and values have fewer.
    layers = [_by_position(layer, lm) for layer in DynamicCache(config=model.config).layers]
    cache_argument(model)
    return PositionalCache(lm, layers)


def keeps_state(model: PreTrainedModel) -> bool:
    """Whether some of the model's layers keep a state in place of keys and values."""
    return any(isinstance(layer, StateLayer) for layer in positional_cache(model).layers)


def _by_position(layer: object, lm: CachedLM | None) -> object:
    """What takes the place of a layer of transformers' cache; ValueError if there is nothing for it."""
    if isinstance(layer, EMPTY_LAYERS):
        return layer
    if type(layer) in (DynamicLayer, DynamicSlidingWindowLayer):
        return PositionalLayer(lm)
    if type(layer) is LinearAttentionLayer:
        return StateLayer(layer.number_of_states)
    if type(layer) in HYBRID:
        return HybridLayer(lm, layer.number_of_states)
    raise ValueError(f"its cache has layers of type {type(layer).__name__}, which cannot be rewound")


@dataclass(frozen=True)
class OfTarget:
    """A part of the target that drafts in place of the pair's drafter. key: one is made for each key."""

    key: Hashable
    make: Callable[[CachedLM], Cached]
