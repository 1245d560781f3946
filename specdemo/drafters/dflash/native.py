"""A DFlash head's block on a CPU as one call of compiled code (native.py)."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import Embedding
from transformers import PreTrainedModel, Qwen3ForCausalLM

from specdemo.drafters.dflash.head import CachedDFlash, DFlashHead, Sight
from specdemo.runtime.fused import FusedForward
from specdemo.runtime.graphs import one_line
from specdemo.runtime.lm import Features, logits_tolerance
from specdemo.runtime.native import NativeForward, compile_function, float32

TRIED_BEFORE = 8  # rows of the cache before the block that is tried


@dataclass(frozen=True)
class LayerCache:
    """One layer's keys and values, [1, groups, C, d]."""

    keys: Tensor
    values: Tensor


class NativeDFlash(CachedDFlash):
    """A head on a CPU whose blocks are one call each, where that predicts what the head does. Else
    `not_native` says why."""

    compiles_itself = True

    def __init__(self, head: DFlashHead, target: PreTrainedModel):
        super().__init__(head, target)
        self.native: NativeBlock | None = None
        self.not_native: str | None = None

    def begin_run(self, static: bool) -> None:
        if not static or self.not_native is not None:
            self.native = None
            return
        try:
            if self.native is None:
                self.native = NativeBlock(self)
            else:
                self.native.begin_run()
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # of numba, among others
            self.native, self.not_native = None, one_line(error) or type(error).__name__

    def read_from(self, start: Tensor, count: int) -> None:
        native = self.native
        if native is None or self.features.states.dtype != torch.float32:
            super().read_from(start, count)
        else:
            native.forward.read(native, self.features, start, count)

    def drafting_logits(self, anchor: Tensor, start: Tensor, count: int) -> Tensor:
        if self.native is None:
            return super().drafting_logits(anchor, start, count)
        return self.model.drafting_rows(self.native.logits(anchor, start, count))

    @property
    def copied_bytes(self) -> int:
        """Of copies in 16 bits, which its blocks read in place of twice as many bytes."""
        return 0 if self.native is None else self.native.forward.copied_bytes

    def free(self) -> None:
        super().free()
        self.native = None

    def notes_as(self, role: str) -> list[str]:
        if self.not_native is None:
            return []
        return [f"the {role} runs operation by operation, which is slower: {self.not_native}"]


class BlockForward(NativeForward):
    """The layers of a head, whose rows attend to each other in both directions, and what they read of the
    target's features before."""

    def __init__(self, head: DFlashHead):
        self.head = head
        super().__init__(FusedForward(as_language_model(head)), sees_later=True)
        self._read = compile_function(self.kernels.reading_function)

    def begin_run(self) -> None:
        super().begin_run()
        norm = self.head.hidden_norm
        self._fc = np.zeros(self.kernels.PRODUCT_FIELDS, np.int64)
        self._product(self._fc, 0, self.head.fc, 0, self._sizes[0])
        self._check_weight(norm.weight, self._sizes[0])
        self._norm_weight = self._wide(norm.weight)
        self._eps = np.array([norm.eps], np.float32)

    def compile_all(self) -> None:
        """The products of every number of rows: a draft that had to wait for one would be timed with it."""
        self._products.clear()
        for block in range(1, self.products.MOST_BLOCK + 1):
            self.compile(block)

    def read(self, lm: "NativeBlock", features: Features, start: Tensor, rows: int) -> None:
        """Keys and values of the features, float32, at `rows` positions from start [] on. It reads whole
        blocks."""
        block = self.block_for(rows)
        padded = -(-rows // block) * block
        first = int(start)
        features.reserve(first + padded)
        self._find_cache(lm)
        size, _, groups, d, _ = self._sizes
        scratch = float32(padded * (size + 2 * groups * d))
        self._read.ctypes(
            self._model.ctypes.data,
            self._layers.ctypes.data,
            self._layer_numbers.ctypes.data,
            self._products[block][0].ctypes.data,
            features.states[first].data_ptr(),
            self._fc.ctypes.data,
            self._norm_weight,
            self._eps.ctypes.data,
            start.data_ptr(),
            rows,
            block,
            scratch.data_ptr(),
        )


class NativeBlock:
    """The logits of a head's block. ValueError says why it cannot be used for this head."""

    def __init__(self, cached: CachedDFlash):
        head, self.cached = cached.model, cached
        config = head.config
        if config.markov is not None:
            raise ValueError("it has a Markov head")
        if (config.embedding_scale, config.logit_scale, config.logit_cap) != (1.0, 1.0, None):
            raise ValueError("it scales its embeddings or its logits")
        if any(sight != Sight() for sight in config.sights):
            raise ValueError("it has sliding windows")
        # What NativeForward reads of a CachedLM.
        self.features, self.last_position = None, int(cached.context) - 1
        self.forward = BlockForward(head)
        self.rows = config.block_size
        self.masks = torch.full((self.rows - 1,), config.mask_token_id)
        self._try()

    @property
    def buffer_epoch(self) -> int:
        return self.cached.buffer_epoch

    @property
    def layers(self) -> list[LayerCache]:
        return [LayerCache(*both) for both in zip(self.cached.keys, self.cached.values, strict=True)]

    def begin_run(self) -> None:
        kinds = self.forward.kinds
        self.forward.fused.begin_run()
        self.forward.begin_run()
        if self.forward.kinds != kinds:  # products of another kind were not compiled
            self._try()

    def logits(self, anchor: Tensor, start: Tensor, count: int) -> Tensor:
        """[count, Vd] of the first rows of a block: anchor [1] at position start []."""
        ids = torch.cat([anchor, self.masks[: count - 1]])
        return self.forward(self, ids, start, self.forward.block_for(count))

    @torch.no_grad()
    def _try(self) -> None:
        """Compares it with the head's own forwards, on features that are random numbers."""
        before_it = min(TRIED_BEFORE, self.last_position + 1 - self.rows)
        if before_it < 1:
            raise ValueError("its context is no longer than a block")
        self.forward.compile_all()
        cached, start, anchor = self.cached, torch.tensor(before_it), torch.tensor([0])
        cached.reserve(before_it + self.rows)
        states, before = cached.features.states, torch.tensor(0)
        generator = torch.Generator().manual_seed(0)
        random = torch.randn(2 * TRIED_BEFORE, states.shape[1], generator=generator, dtype=torch.float32)
        cached.features.states = random
        try:
            cached.read(torch.arange(before_it))
            expected = cached.model.logits(cached.block(anchor, start, self.rows))
            cached.keys.zero_()
            self.forward.read(self, cached.features, before, before_it)
            said = self.logits(anchor, start, self.rows)
        finally:
            cached.features.states = states
        if not (said - expected).abs().max() <= logits_tolerance(expected, cached.dtype):
            raise ValueError("its compiled forward predicts something other than the head")


def as_language_model(head: DFlashHead) -> Qwen3ForCausalLM:
    """A language model of the head's layers, the target's embeddings, and the output layer that it uses."""
    target = head.verifier[0]
    embeddings = target.get_input_embeddings()
    if type(embeddings) is not Embedding:
        raise ValueError("the target's embeddings are more than a table")
    with torch.device("meta"):
        model = Qwen3ForCausalLM(head.config.layer)
    base = model.model
    base.embed_tokens, base.norm = embeddings, head.norm
    base.rotary_emb = type(base.rotary_emb)(head.config.layer)
    model.lm_head = head.verifier_head[0] if head.lm_head is None else head.lm_head
    for layer, own in zip(base.layers, head.layers, strict=True):
        layer.input_layernorm = own.input_layernorm
        layer.post_attention_layernorm = own.post_attention_layernorm
        for theirs, ours in ((layer.self_attn, own.self_attn), (layer.mlp, own.mlp)):
            for name, part in ours.items():
                setattr(theirs, name, part)
    return model.eval()
