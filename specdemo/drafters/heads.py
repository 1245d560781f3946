"""A head: a drafter that is made for one target and drafts from the target's own hidden states. What all
kinds of heads have in common: the target that they belong to, the tokens that they can draft, rotary
positions, and a cache that is written by position."""

from collections.abc import Callable
from typing import Literal, Protocol, get_args

import torch
from torch import Tensor
from torch.nn import Linear, Module, ModuleDict
from transformers import LlamaConfig, PreTrainedModel, Qwen3Config

from specdemo.drafters.rotary import RotaryPositions
from specdemo.runtime.lm import MIN_CAPACITY, NEW_BUFFERS, Cached, Features, context_of, kv_length_for, longer

HEAD_PREFILL_CHUNK = 256  # rows per forward: a mask can have a row for each query head of each of them
# How much of its target a head holds: all of it, so that the two can run; only the embeddings and the output
# layer, which training needs while the features come from elsewhere; or nothing.
Attachment = Literal["full", "train_only", "detached"]


class HeadConfig(Protocol):
    """What all heads' configs tell. V and the rotary positions are in `layer`."""

    @property
    def layer(self) -> LlamaConfig | Qwen3Config: ...

    @property
    def draft_vocab_size(self) -> int:
        """Vd: the tokens that it can draft."""

    @property
    def feature_size(self) -> int:
        """The target's hidden size."""

    def layer_ids_for(self, depth: int) -> tuple[int, ...]:
        """The target's layers whose inputs it reads, for a target of so many layers; see `Features`."""


Rotate = Callable[[Tensor], Tensor]  # turns [..., N, heads, d] by the positions of the N rows


class DraftHead(Module):
    """The weights, all of one dtype. `.to(device)` moves them; a dtype is chosen when the head is built."""

    target_ids: Tensor  # [Vd] int64: the target's id of each draft id
    d2t: Tensor | None  # [Vd] int64: the same as offsets, None where all tokens can be drafted
    t2d: Tensor | None  # [V] bool: whether a token can be drafted
    fc: Linear  # from the target's hidden states, side by side, to one

    def __init__(self, config: HeadConfig):
        super().__init__()
        self.config = config
        layer, drafts = config.layer, config.draft_vocab_size
        whole = drafts == layer.vocab_size
        self.register_buffer("d2t", None if whole else torch.zeros(drafts, dtype=torch.long))
        self.register_buffer("t2d", None if whole else torch.zeros(layer.vocab_size, dtype=torch.bool))
        self.rotary = RotaryPositions(layer)
        with torch.device("cpu"):  # also where the weights are on the meta device
            ids = torch.arange(drafts)
        self.register_buffer("target_ids", ids, persistent=False)
        self.verifier: tuple[PreTrainedModel, ...] = ()  # a tuple, so that its weights are not the head's
        self.verifier_head: tuple[Module, ...] = ()  # the target's output layer
        self.shared_embedding: tuple[Tensor, ...] = ()  # the target's [V, H]

    @property
    def device(self) -> torch.device:
        return self.fc.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.fc.weight.dtype

    @property
    def kind(self) -> str:
        """A name in DRAFTER_KINDS."""
        raise NotImplementedError

    @property
    def uses_target_s_embeddings(self) -> bool:
        raise NotImplementedError

    def cached(self, target: PreTrainedModel) -> "CachedHead":
        """It, with a cache, drafting for this target."""
        raise NotImplementedError

    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())

    def get_output_embeddings(self) -> Module | None:
        """Its own; None where it uses the target's."""
        raise NotImplementedError

    def begin_run(self) -> None:
        """Call when weights were loaded or moved, not inside a step."""
        for layer in self.layers:
            layer.begin_run()
        if self.d2t is not None:
            self.target_ids = torch.arange(len(self.d2t), device=self.d2t.device) + self.d2t

    def rotate_at(self, positions: Tensor, dtype: torch.dtype) -> Rotate:
        """positions [..., N]"""
        cos, sin = self.rotary(positions, dtype)
        return lambda x: self.rotary.rotate(x, cos, sin)

    def for_target(self, logits: Tensor) -> Tensor:
        """[N, Vd] -> [N, V]: a token that cannot be drafted gets -inf."""
        if self.d2t is None:
            return logits
        wide = logits.new_full((len(logits), self.config.layer.vocab_size), -torch.inf)
        return wide.index_copy_(1, self.target_ids, logits)

    @property
    def attachment(self) -> Attachment:
        if self.verifier:
            return "full"
        return "train_only" if self.verifier_head else "detached"

    def attach_verifier(self, target: PreTrainedModel, mode: Attachment = "full") -> None:
        """Holds as much of the target as `mode` says, in place of what it held. A head without embeddings of
        its own then uses the target's. That the two fit each other, `loading.assemble.check_fit` says.
        ValueError for another mode."""
        if mode not in get_args(Attachment):
            raise ValueError(f"mode must be full, train_only or detached, not {mode!a}")
        self.detach_verifier()
        if mode == "detached":
            return
        if self.uses_target_s_embeddings:
            self.shared_embedding = (target.get_input_embeddings().weight.detach(),)
        self.verifier_head = (target.get_output_embeddings(),)
        if mode == "full":
            self.verifier = (target,)

    def detach_verifier(self) -> None:
        """Holds nothing of a target."""
        self.verifier, self.verifier_head, self.shared_embedding = (), (), ()

    def targets_embedding(self) -> Tensor:
        """[V, H]. ValueError before the target is attached."""
        if not self.shared_embedding:
            raise ValueError("the head has no embeddings of its own: attach its target first")
        return self.shared_embedding[0]

    def verifier_logits(self, last: Tensor) -> Tensor:
        """What the attached target predicts, [..., V], from its last hidden states [..., T], after its last
        norm."""
        return self.verifier_head[0](last)


def gated_mlp(layer: LlamaConfig | Qwen3Config, dtype: torch.dtype) -> ModuleDict:
    """The weights of an MLP, by the format's names."""
    size, width = layer.hidden_size, layer.intermediate_size
    shapes = {"gate_proj": (size, width), "up_proj": (size, width), "down_proj": (width, size)}
    options = {"bias": getattr(layer, "mlp_bias", False), "dtype": dtype}
    return ModuleDict({name: Linear(*shape, **options) for name, shape in shapes.items()})


class CachedHead(Cached):
    """A head with keys and values of its own, by position, and with the features of its target.

    Nothing is rewound: a forward is told its first row, and what lies after its last is left over from
    rejected drafts, or empty, and masked."""

    written_for_capture = True

    def __init__(self, head: DraftHead, target: PreTrainedModel, layers: int):
        """layers: that keep keys and values."""
        self.model = head
        self.target = target
        self.device = head.device
        self.dtype = head.dtype
        self.context = context_of(head)
        head.attach_verifier(target)
        head.begin_run()
        depth = target.config.get_text_config().num_hidden_layers
        self.features = Features(target, head.config.layer_ids_for(depth))
        self.buffer_epoch = next(NEW_BUFFERS)  # see LM
        layer = head.config.layer
        shape = (layers, 1, layer.num_key_value_heads, 0, layer.head_dim)
        self.keys = self.values = torch.zeros(shape, dtype=self.dtype, device=self.device)  # [n, 1, G, C, d]
        self.reserve(1)

    @property
    def reads(self) -> Features:
        return self.features

    def begin_run(self, static: bool) -> None:
        """Its forwards are the same in both modes."""

    def free(self) -> None:
        """Gives the memory of the cache and of the features back at once."""
        self.features.states = self.features.states[:0].clone()
        self.keys = self.values = self.keys[..., :0, :].clone()

    @property
    def kv_length(self) -> int:
        return len(self.kv_ruler)

    def make_room(self, length: int) -> None:
        self.reserve(length)

    def reserve(self, length: int) -> None:
        """Call before forwards of which none reaches row `length`."""
        kv_length = kv_length_for(length, self.device)
        capacity = self.keys.shape[-2]
        if kv_length > capacity:
            capacity = max(kv_length, 2 * capacity, MIN_CAPACITY)
            self._ruler_buffer = torch.arange(capacity, device=self.device)
            self.keys, self.values = longer(self.keys, capacity), longer(self.values, capacity)
            self.buffer_epoch = next(NEW_BUFFERS)
        self.kv_ruler = self._ruler_buffer[:kv_length]

    def true_features(self, rows: Tensor) -> Tensor:
        """The target's, at the positions `rows` [N], as the head computes: [N, A * T]."""
        states = self.features.at(rows.to(self.features.states.device))
        return states.to(self.device, self.dtype)
