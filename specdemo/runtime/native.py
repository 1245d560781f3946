"""A decoder's forward on a CPU as one call of compiled code (kernels.py).

What a forward of few tokens costs on a CPU is its dispatch and the reading of its weights. One call has no
dispatch. Weights that are bfloat16 or float16 numbers in float32, as those of most checkpoints are, are read
from a copy in 16 bits: the same numbers, half the bytes. A bfloat16 model's weights, and weights that are
quantised to int8, are read as they are. It computes in float32 whatever the model's dtype."""

import ctypes
import os
import platform
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Module
from torch.profiler import record_function
from transformers import PreTrainedModel

from specdemo.events.params import MOST_NODES
from specdemo.runtime import records
from specdemo.runtime.attention import Branches, masking
from specdemo.runtime.cache import Cached, CachedByPosition
from specdemo.runtime.decoder import Decoder, Layer, Norm
from specdemo.runtime.device import free_memory
from specdemo.runtime.fused import is_of_family
from specdemo.runtime.linear import int8_of, is_plain

SMALL_MODEL = 50_000_000  # parameters of a model for which Python's part of a forward counts
NATIVE_DTYPES = (torch.float32, torch.bfloat16)  # of models
MOST_PREFILLED = 128  # tokens of a prompt; with more, transformers' own forward is faster


def registers() -> tuple[int, int]:
    """How many float32 numbers are in a register of those that torch may use here, and how many registers
    there are."""
    by_capability = {"AVX512": (16, 32), "AVX2": (8, 16)}
    few = 32 if platform.machine().lower() in ("arm64", "aarch64") else 16
    return by_capability.get(torch.backends.cpu.get_cpu_capability(), (4, few))


@dataclass(frozen=True)
class Drawing:
    """How the tokens of a draft are drawn on a CPU. numbers: see records.DRAWING, float64. seen: see
    Sampler.seen."""

    is_greedy: bool  # each is the likeliest, whatever u is
    u: Tensor  # [B] float64: a uniform number for each token
    numbers: Tensor
    seen: Tensor | None  # [V] float32


class Team:
    """Calls a function of compiled code in several threads at once, which share its work."""

    def __init__(self) -> None:
        system = ctypes.windll.kernel32.SwitchToThread if os.name == "nt" else ctypes.CDLL(None).sched_yield
        self.state = record(records.TEAM, give_way=ctypes.cast(system, ctypes.c_void_p).value)
        self.pool: ThreadPoolExecutor | None = None

    def call(self, threads: int, function: Callable, *given: np.ndarray) -> None:
        if threads > 1 and (self.pool is None or self.pool._max_workers < threads - 1):
            self.pool = ThreadPoolExecutor(threads - 1, "specdemo")
        self.state["arrived"] = self.state["given_up"] = 0
        arguments = [each.ctypes.data for each in (*given, self.state)]
        others = []
        try:
            for me in range(1, threads):
                assert self.pool is not None
                others.append(self.pool.submit(function, *arguments, me, threads))
        except BaseException as error:  # those that have begun would wait for the others forever
            self.state["given_up"] = 1
            wait(others)
            if not isinstance(error, RuntimeError):  # which says that the system gives no more threads
                raise
            threads, others = 1, []
        function(*arguments, 0, threads)
        wait(others)


def record(dtype: np.dtype, **fields: "Tensor | np.ndarray | float | None") -> np.ndarray:
    """A record for compiled code. Of a tensor it holds the address. What is not named is 0."""
    return np.array(tuple(map(address, map(fields.get, dtype.names))), dtype)


def address(value: Any) -> Any:
    """The address of a tensor, 0 for None, and any other value as it is."""
    if isinstance(value, Tensor):
        return value.data_ptr()
    return 0 if value is None else value


def float32(*shape: int) -> Tensor:
    """Memory that compiled code may write to. It is not of torch's default dtype, which is another one while
    transformers builds a model in another thread: half as many bytes would be written beyond their end."""
    return torch.empty(*shape, dtype=torch.float32)


def is_narrow(tensor: Tensor) -> bool:
    return tensor.dtype == torch.bfloat16


# The copies in 16 bits and their kinds, by a layer and the first row of a part of its weight.
Copies = dict[tuple[Module, int], tuple[Tensor, int]]


class Described:
    """A decoder as compiled code is told it, with its weights as they are now. A ValueError says why that is
    not possible.

    copies: those that were made before, to which new ones are added. are_upcast: what
    kernels.are_upcast_function compiles. leaves: see NativeForward."""

    def __init__(self, decoder: Decoder, copies: Copies, are_upcast: Callable, leaves: int):
        decoder.check()
        self.decoder = decoder
        self.dtype = decoder.dtype
        self.copies = copies
        self._are_upcast = are_upcast
        self._has_room = 2 * decoder.weights < free_memory("cpu") / 2  # for copies in 16 bits
        self._held: list[Tensor] = []  # what the addresses are of
        self._compared: list[np.ndarray] = []  # COPYs: weights and their copies in bfloat16
        self._read = False  # whether other numbers depend on those of the weights
        self.kinds: set[int] = set()  # how weights are kept
        first, size = decoder.layers[0], decoder.size
        table, outputs = decoder.embed.weight, decoder.head.out_features
        is_head = decoder.reads is not None
        self.vocab_size = outputs if decoder.vocab_size is None else decoder.vocab_size
        begins = decoder.reads is not None and not decoder.reads.are_keys
        rows = leaves or (MOST_NODES if begins else 0)
        self.stream = float32(rows, size).zero_()  # [rows, H]: what the last layer gives
        self._check_weight(table, len(table), size, of_target=is_head)
        self.layers = np.array([self._layer(layer) for layer in decoder.layers], records.LAYER)
        self.model = record(
            records.MODEL,
            layer_count=len(decoder.layers),
            hidden=size,
            heads=first.attends.heads,
            groups=first.attends.groups,
            head_dim=first.attends.head_dim,
            width=first.mlp_width,
            output_width=outputs,
            vocab=self.vocab_size,
            draft_ids=None if decoder.draft_ids is None else self._hold(decoder.draft_ids.contiguous()),
            known=len(table),
            embedding_table=self._hold(table),
            narrow_table=is_narrow(table),
            narrow=self.dtype == torch.bfloat16,
            tanh_gelu=bool(first.gelu),
            norm_heads=first.norms_each_head,
            embedding_scale=decoder.embedding_scale,
            logits_scale=decoder.logit_scale,
            softcap=decoder.softcap,
            last_norm=self._norm(decoder.norm, size),
            head=self._product(decoder.head, 0, outputs, of_target=is_head),
            stream=self.stream if rows else 0,
            stream_is_normed=bool(leaves) or decoder.norms_output,
            begins_with_reads=begins,
            **self._reading(),
        )

    def _reading(self) -> dict[str, Any]:
        """What is read of the target's hidden states."""
        reads, size = self.decoder.reads, self.decoder.size
        if reads is None:
            return {}
        width, parts = reads.fc.in_features - (size if reads.with_embeddings else 0), len(reads.norms)
        for norm in reads.norms:
            self._check_weight(norm.module.weight, width // parts, of_target=reads.with_embeddings)
        weight = self._wide(torch.cat([norm.weight for norm in reads.norms])) if parts else None
        return {
            "reads": True,
            "states_width": width,
            "parts": parts,
            "reads_embeddings": reads.with_embeddings,
            "read": self._product(reads.fc, 0, size),
            "read_norm": record(records.NORM, weight=weight, eps=reads.norms[0].eps if parts else 0),
            "read_after": self._norm(reads.after, size),
        }

    def _layer(self, layer: Layer) -> np.ndarray:
        size, attends = self.decoder.size, layer.attends
        d, width = attends.head_dim, layer.mlp_width
        queries, keys = attends.heads * d, attends.groups * d
        products = {
            ("q", "k", "v"): (layer.qkv, (queries, keys, keys)),
            ("out",): (layer.out, (size,)),
            ("gate", "up"): (layer.gate_up, (width, width)),
            ("down",): (layer.down, (size,)),
        }
        described: dict[str, Any] = {}
        for names, (joined, sizes) in products.items():
            described |= zip(names, self._split(joined.layers, sizes), strict=True)
        normed = {"q_norm": d, "k_norm": d} if layer.norms_each_head else {"q_norm": queries, "k_norm": keys}
        for name in records.NORMS.split():
            described[name] = self._norm(getattr(layer, name), normed.get(name, size))
        described |= {"scaling": attends.scaling, "softcap": attends.softcap, **vars(attends.mask)}
        return record(records.LAYER, keeps_normed=layer.keeps_normed, **described)

    def _norm(self, norm: Norm | None, size: int) -> np.ndarray:
        if norm is None:
            return record(records.NORM)
        self._check_weight(norm.module.weight, size)
        return record(records.NORM, weight=self._wide(norm.weight), eps=norm.eps)

    def _split(self, layers: tuple[Module, ...], sizes: tuple[int, ...]) -> list[np.ndarray]:
        """Products that are a layer each, or parts of a single one."""
        if len(layers) == len(sizes):
            return [self._product(layer, 0, size) for layer, size in zip(layers, sizes, strict=True)]
        firsts = accumulate(sizes[:-1], initial=0)
        return [self._product(layers[0], first, size) for first, size in zip(firsts, sizes, strict=True)]

    def _product(self, layer: Module, first: int, size: int, of_target: bool = False) -> np.ndarray:
        part, scales, bias = slice(first, first + size), None, layer.bias
        if size < records.FEWEST_OUTPUTS or layer.in_features % 16:
            raise ValueError(f"it has a product of {layer.in_features} numbers to {size}")
        if is_plain(layer):
            given = layer.weight.detach()[part]
            self._check_weight(given, size, layer.in_features, of_target=of_target)
            weight, kind = self._as_in_checkpoint((layer, first), given)
        elif (quantised := int8_of(layer)) is not None and layer.weight.device.type == "cpu":
            weight, kind = quantised.weight[part], records.INT8
            scales = self._wide(quantised.scale[part])
        else:
            raise ValueError("it has linear layers that are neither plain nor quantised to int8")
        self.kinds.add(kind)
        if bias is not None:
            bias = bias.detach()[part]
            self._check_weight(bias, size)
            bias = self._wide(bias)
        address_of = {"weight": self._hold(weight), "scales": scales, "bias": bias}
        return record(records.PRODUCT, kind=kind, outputs=size, inputs=layer.in_features, **address_of)

    def _as_in_checkpoint(self, place: tuple[Module, int], weight: Tensor) -> tuple[Tensor, int]:
        """The weight in 16 bits, if these hold its numbers exactly."""
        if weight.dtype == torch.bfloat16:
            return weight, records.BFLOAT16
        for narrow, kind in self._in_16_bits(place, weight):
            if self._is_exact(weight, narrow):
                self.copies[place] = narrow, kind
                self._compared.append(copy_of(weight, narrow))
                self._read |= kind != records.BFLOAT16
                return narrow, kind
        self.copies.pop(place, None)
        self._read = True  # it may be exact later
        return weight, records.FLOAT32

    def _in_16_bits(self, place: tuple[Module, int], weight: Tensor) -> Iterator[tuple[Tensor, int]]:
        """The copy that was made before, of a weight that may have changed in place; and new ones, where a
        first row is exact, which spares a copy of the whole weight in each run."""
        if place in self.copies:
            yield self.copies[place]
        for dtype, kind in ((torch.bfloat16, records.BFLOAT16), (torch.float16, records.FLOAT16)):
            if self._has_room and self._is_exact(weight[0], weight[0].to(dtype)):
                yield weight.to(dtype), kind

    def _is_exact(self, weight: Tensor, narrow: Tensor) -> bool:
        if weight.shape != narrow.shape or weight.dtype != torch.float32 or not weight.is_contiguous():
            return False
        if is_narrow(narrow):
            return self._all_exact([copy_of(weight, narrow)])
        return torch.equal(narrow.float(), weight)

    def _all_exact(self, copies: list[np.ndarray]) -> bool:
        """copies: COPYs."""
        table = np.array(copies, records.COPY)
        return bool(self._are_upcast(table.ctypes.data, len(table)))

    def still_holds(self) -> bool:
        """Whether what was read of the weights' numbers is still right, where no weight has moved since."""
        return not self._read and self._all_exact(self._compared)

    def _check_weight(self, tensor: Tensor, *shape: int, of_target: bool = False) -> None:
        """Raises ValueError for a weight that compiled code would read beyond its end, or as other numbers.
        of_target: whether its dtype can be another one, because it is a head's target's."""
        is_own = tensor.dtype in (NATIVE_DTYPES if of_target else (self.dtype,))
        is_here = tensor.device.type == "cpu" and tensor.is_contiguous()
        if not is_own or not is_here or tensor.shape != shape:
            name = str(self.dtype).removeprefix("torch.")
            raise ValueError(f"a weight is not contiguous {name} numbers of the layer's own shape in memory")

    def _wide(self, tensor: Tensor) -> Tensor:
        """A tensor's numbers in float32: its own, or a copy for this run."""
        wide = tensor.float().contiguous()
        self._read |= wide.data_ptr() != tensor.data_ptr()
        return self._hold(wide)

    def _hold(self, tensor: Tensor) -> Tensor:
        self._held.append(tensor.detach())
        return tensor


def copy_of(wide: Tensor, narrow: Tensor) -> np.ndarray:
    return record(records.COPY, wide=wide, narrow=narrow, count=wide.numel())


class NativeForward:
    """Computes a decoder's logits over a cache that is written by position. A ValueError says why it cannot
    for this decoder.

    describe: gives the decoder with its weights as they are now. copies: those of another forward that reads
    the same layers, which are shared. leaves: for how many rows what the last layer gives, normed, is left in
    `stream`."""

    def __init__(self, describe: Callable[[], Decoder], copies: Copies | None = None, leaves: int = 0):
        # These import numba, which takes 0.2 s and may be missing.
        from specdemo.runtime import intrinsics, kernels, shaping

        self.code, self.compiling, self._buckets = kernels, intrinsics, shaping.BUCKETS
        self._describe = describe
        self._forward = intrinsics.compile_function(kernels.forward_function)
        self._are_upcast = intrinsics.compile_function(kernels.are_upcast_function).ctypes
        self._products = np.zeros(records.KINDS, np.int64)  # addresses, by how weights are kept
        self.copies = {} if copies is None else copies
        self._scratch = float32(0)
        self._team = Team()
        self._leaves = leaves
        self.begin_run()

    def begin_run(self) -> None:
        """Finds the weights again, which may have moved or changed since the last run."""
        self.described: Described | None = None  # after an error, of memory that is short, all is found again
        described = Described(self._describe(), self.copies, self._are_upcast, self._leaves)
        self._model, self._layers, self.stream = described.model, described.layers, described.stream
        self._memory = {
            "made": torch.zeros(2, dtype=torch.long),
            "adjusted": float32(described.vocab_size),
            "masses": float32(described.vocab_size),
            "sums": torch.empty(self._buckets, dtype=torch.float64),
        }
        for kind in sorted(described.kinds):
            function = self.compiling.product_function
            self._products[kind] = self.compiling.compile_function(function, kind, *registers()).address
        self._epoch: int | None = None  # of the cache whose addresses are known
        self._states: Tensor | None = None
        self.described = described

    @property
    def decoder(self) -> Decoder:
        assert self.described is not None
        return self.described.decoder

    def __call__(
        self,
        lm: CachedByPosition,
        ids: Tensor,
        start: Tensor,
        with_logits: bool = True,
        branches: Branches | None = None,
        left: Tensor | None = None,
    ) -> Tensor:
        """ids [N] at the positions start [], start + 1, ... of the LM's cache -> logits [N, V], if asked for.
        branches: see LM.forward, and `takes`. left [N, H]: what the stream of a head begins with, in place of
        embeddings."""
        logits = float32(len(ids) if with_logits else 0, int(self._model["output_width"]))
        how: dict[str, Any] = {"begins": records.EMBEDDINGS, "logits": logits}
        if left is not None:
            self.stream[: len(left)], how["begins"] = left, records.LEFT
        if branches is not None:
            hidden = branches.hidden.float().mul_(masking(torch.float32))
            depths = branches.depths.contiguous()
            how |= {"newest": len(depths), "depths": depths, "hidden": hidden}
        self._run(lm, ids.contiguous(), start, len(ids), **how)
        return logits

    def takes(self, branches: Branches | None) -> bool:
        """Whether it computes forwards with these: no window may end within them."""
        if branches is None:
            return True
        windows = [layer.attends.mask.window for layer in self.decoder.layers]
        return all(window is None or window >= len(branches.depths) for window in windows)

    def fill(self, lm: CachedByPosition, ids: Tensor, start: Tensor) -> None:
        """Runs a forward that begins with the target's features, without logits. It leaves the last row's
        output in `stream`."""
        self._run(lm, ids.contiguous(), start, len(ids), begins=records.FEATURES, last_alone=True)

    def last(self, lm: CachedByPosition, ids: Tensor, start: Tensor, from_features: bool) -> Tensor:
        """The logits [1, V] of the last of ids [N], of a head whose stream begins with its target's features,
        or, for a single token, with what the last forward has left in `stream`."""
        begins = records.FEATURES if from_features else records.LEFT
        return self.draft(lm, ids, start, LIKELIEST, begins)[2]

    def draft(
        self, lm: CachedByPosition, ids: Tensor, start: Tensor, drawing: Drawing, begins: int | None = None
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """Drafts as LM.draft says. begins: what the stream begins with; None: the target's features where the
        decoder does, else embeddings."""
        if begins is None:
            begins = records.FEATURES if self._model["begins_with_reads"] else records.EMBEDDINGS
        rows, count = len(ids), len(drawing.u)
        tokens, logits = torch.cat([ids, ids.new_zeros(count)]), float32(count, int(self._model["vocab"]))
        probs = None if drawing.is_greedy else float32(count, int(self._model["vocab"]))
        self._run(
            lm,
            tokens,
            start,
            rows,
            begins=begins,
            last_alone=True,
            logits=float32(1, int(self._model["output_width"])),
            drafts=count,
            draft_logits=logits,
            drawing=drawing.numbers,
            seen=None if drawing.seen is None else drawing.seen.clone(),  # it counts the drafts, too
            uniforms=drawing.u,
            probs=probs,
            **self._memory,
        )
        made = int(self._memory["made"][0])
        return tokens[rows : rows + made], None if probs is None else probs[:made], logits[:made]

    def read(self, lm: CachedByPosition, start: Tensor, rows: int) -> None:
        """Makes keys and values of the target's features at `rows` positions from start [] on."""
        self._run(lm, None, start, rows, self.code.reading_function)

    def _run(
        self,
        lm: CachedByPosition,
        ids: Tensor | None,
        start: Tensor,
        rows: int,
        make: Callable | None = None,
        **how: Any,
    ) -> None:
        """Runs what `make` compiles: the forward, unless given. how: other fields of a CALL."""
        self._find_cache(lm)
        threads = torch.get_num_threads()  # once, since another thread can change it
        size = scratch_size(self._model, rows, threads)
        if len(self._scratch) < size:
            self._scratch = float32(size).zero_()
        call = record(
            records.CALL,
            ids=ids,
            start=start,
            rows=rows,
            kernels=self._products.ctypes.data,
            scratch=self._scratch,
            **how,
        )
        function = self._forward if make is None else self.compiling.compile_function(make)
        # A profiler sees nothing of it otherwise.
        with record_function("compiled forward" if make is None else "compiled reading"):
            self._team.call(threads, function.ctypes, self._model, self._layers, call)

    def _find_cache(self, lm: CachedByPosition) -> None:
        """Finds the addresses of the cache, of the rotations for all its positions, and of the features."""
        layers = self.decoder.layers
        if self._epoch != lm.buffer_epoch:
            self._epoch = lm.buffer_epoch
            self._cached = [(layer.keys, layer.values) for layer in lm.layers]
            capacity = self._cached[0][0].shape[2]
            self._model["capacity"] = capacity
            rotations = self.decoder.rotations_at(torch.arange(capacity), torch.float32).items()
            self._rotations = {name: tuple(part.contiguous() for part in parts) for name, parts in rotations}
            for row, layer, cached in zip(self._layers, layers, self._cached, strict=True):
                row["key_cache"], row["value_cache"] = map(address, cached)
                rotation = self._rotations[layer.attends.rotation]
                self._model["rotated"] = rotation[0].shape[-1]
                if layer.attends.rotates:
                    row["cos"], row["sin"] = map(address, rotation)
        keeps = None if self.decoder.reads is not None else lm.features
        features = lm.reads if keeps is None else keeps
        states = None if features is None else features.states
        if states is not self._states:
            self._states = states
            places = [] if keeps is None else keeps.layer_ids
            columns = {layer: 1 + index * keeps.size for index, layer in enumerate(places)}
            self._layers["feature"] = [columns.get(layer, 0) for layer in range(len(layers))]
            self._model["last_feature"] = columns.get(len(layers), 0)
            if states is not None:
                self._model["states"], self._model["states_width"] = address(states), states.shape[1]
                self._model["narrow_states"] = is_narrow(states)


NOTHING = torch.zeros(9, dtype=torch.float64)
LIKELIEST = Drawing(True, NOTHING[:1], NOTHING, None)  # of one token


def scratch_size(model: np.ndarray, rows: int, threads: int) -> int:
    """How many numbers of scratch memory a forward of so many rows takes, or reading so many features. model:
    a MODEL."""
    names = ("hidden", "capacity", "states_width", "heads", "groups", "head_dim", "width")
    hidden, capacity, features, heads, groups, d, width = (int(model[name]) for name in names)
    alone = rows * hidden * (4 if model["begins_with_reads"] else 2) + capacity
    read = features + (hidden if model["reads_embeddings"] else 0) if model["reads"] else 0
    return threads * alone + rows * (hidden + max((heads + 2 * groups) * d, 2 * width, read))


class Native(Cached):
    """A model whose static forwards on a CPU are one call each, where that predicts what they do
    otherwise."""

    compiles_itself = True
    native: NativeForward | None = None

    def _choose_native(self) -> None:
        """Sets `native` to a NativeForward that was tried. Any error ends it."""
        raise NotImplementedError

    def _trying(self, work: Callable[[], None]) -> None:
        """Does the work; an error in it ends all native forwards, and never the run."""
        if not self.tries("by_operation", work):
            self.native = None

    def _find_weights(self, may_have_moved: bool = True) -> None:
        assert self.native is not None
        before = self.native.described
        if before is not None and not may_have_moved and before.still_holds():
            return
        kinds, before = before and before.kinds, None  # its copies are freed before others are made
        self.native.begin_run()
        after = self.native.described
        if kinds is None or after is None or after.kinds != kinds:  # whose products were not tried
            self._choose_native()

    def free(self) -> None:
        super().free()
        self.native = None


def is_small(model: Module) -> bool:
    """Whether the model is so small that Python's part of its forwards counts."""
    return model.device.type == "cpu" and model.num_parameters() <= SMALL_MODEL


def can_be_native(model: PreTrainedModel) -> bool:
    """Whether the model's forwards may be one call, from its type alone."""
    return model.device.type == "cpu" and model.dtype in NATIVE_DTYPES and is_of_family(model)
