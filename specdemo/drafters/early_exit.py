"""A target's first layers as its drafter, with the target's final norm and head after them (LayerSkip,
Elhoushi et al. 2024; Draft & Verify, Zhang et al. 2024).

The modules are the target's own, and so is the cache: the drafter finds the text's keys and values there, and
needs no prefill and no memory. It writes at the positions of the last token and of the draft. The target's
forward over the draft writes all of these again before it reads them, so nothing that drafting wrote is in
what the target computes. A target that was not trained for it drafts poorly from few layers."""

import copy
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace

from torch import Tensor
from torch.nn import Module
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from specdemo.drafters.base import Drafting, Materials, PairModels
from specdemo.drafters.model import ModelDrafter
from specdemo.events import Params
from specdemo.events.speedup import DraftingCost
from specdemo.runtime.cache import layers_of
from specdemo.runtime.lm import CachedLM, OfTarget, keeps_state
from specdemo.runtime.native import Copies
from specdemo.runtime.weights import weight_bytes
from specdemo.words.message import about, message, refusal


def exit_layer(model: PreTrainedModel, asked: int) -> int:
    """How many of the model's layers draft if `Params.exit_layer` is `asked`; ValueError if they cannot."""
    total, name = model.config.get_text_config().num_hidden_layers, type(model).__name__
    if total < 2:
        raise ValueError(about("draft_with", "cannot_exit", name=name, reason=message("one_layer")))
    if keeps_state(model):
        raise ValueError(about("draft_with", "cannot_exit", name=name, reason=message("keeps_state")))
    count = asked or -(-total // 4)
    if count >= total:
        raise ValueError(refusal("exit_layer", "exit_layer", asked, most=total - 1, name=name, layers=total))
    try:
        first_layers(model, count)
    except ValueError as error:
        raise ValueError(about("draft_with", "cannot_exit", name=name, reason=str(error))) from None
    return count


def first_layers(model: PreTrainedModel, count: int) -> PreTrainedModel:
    """The model with its first `count` layers only: the same modules and weights, nothing copied. Hooks on
    the whole model do not see it. ValueError if it is not known where its layers are."""
    layers = layers_of(model)
    *path, last = next(name for name, part in model.named_modules() if part is layers).split(".")
    cut = owner = _shell(model)
    for name in path:
        owner._modules[name] = _shell(getattr(owner, name))
        owner = owner._modules[name]
    owner._modules[last] = getattr(owner, last)[:count]
    return cut


def _shell(module: Module) -> Module:
    """A module with the same parts and weights, and without its hooks."""
    shell = copy.copy(module)
    shell._modules = dict(module._modules)
    shell._forward_hooks, shell._forward_pre_hooks = OrderedDict(), OrderedDict()
    vars(shell).pop("forward", None)  # a forward that was replaced is bound to the whole model
    shell.training = False
    return shell


class FirstLayersLM(CachedLM):
    """The first layers of another LM's model, over that LM's cache, which its prefill has filled."""

    def __init__(self, owner: CachedLM, layers: int):
        self.owner = owner
        super().__init__(first_layers(owner.model, layers), compiled=owner.compiles_itself)
        self.cache = Cache(layers=owner.cache.layers[:layers])

    def reserve(self, start: int, length: int) -> None:
        owner = self.owner
        owner.reserve(start, length)
        self.capacity, self.all_positions = owner.capacity, owner.all_positions
        self.buffer_epoch = owner.buffer_epoch
        super().reserve(start, length)

    def write_at(self, start: int | Tensor, count: int) -> Tensor:
        # The cache's layers ask the owner where to write. Its own next forward sets all of this anew.
        owner = self.owner
        owner.key_positions, owner.positions = self.key_positions, super().write_at(start, count)
        owner.start, owner.visible = self.start, self.visible
        return owner.positions

    def prefill(self, ids: Tensor, is_over: Callable[[], bool] = lambda: False) -> int:
        return 0

    def _shared_copies(self) -> Copies | None:
        return None if self.owner.native is None else self.owner.native.copies


class EarlyExitDrafting(Drafting):
    def lacks(self, pair: PairModels) -> str | None:
        try:
            exit_layer(pair.target, 1)
        except ValueError:
            return "its target has no first layers that could draft alone"
        return None

    def check(self, pair: PairModels, params: Params) -> Params:
        return replace(params, exit_layer=exit_layer(pair.target, params.exit_layer))

    def own(self, pair: PairModels, params: Params) -> OfTarget:
        count = params.exit_layer
        return OfTarget(("early-exit", count), lambda owner: FirstLayersLM(owner, count))

    def cost(self, pair: PairModels, params: Params) -> DraftingCost:
        read = weight_bytes(first_layers(pair.target, params.exit_layer))
        return DraftingCost(token=read / weight_bytes(pair.target))

    def build(self, given: Materials) -> ModelDrafter:
        return ModelDrafter(replace(given, drafter_context=given.context), given.params.exit_layer)
