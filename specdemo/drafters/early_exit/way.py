"""The target's own first layers draft (LayerSkip, Elhoushi et al. 2024; see layers.py)."""

from dataclasses import replace
from typing import TYPE_CHECKING

from specdemo.drafters.base import Materials, Way
from specdemo.drafters.early_exit.layers import exit_layer, first_layers, first_layers_lm
from specdemo.drafters.model.drafter import ModelDrafter
from specdemo.events import Params
from specdemo.events.speedup import DraftingCost
from specdemo.runtime.runner import OfTarget
from specdemo.runtime.weights import weight_bytes

if TYPE_CHECKING:
    from specdemo.loading.pair import Pair


class EarlyExitWay(Way):
    def lacks(self, pair: "Pair") -> str | None:
        return None if pair.largest_exit else "its target has no first layers that could draft alone"

    def check(self, pair: "Pair", params: Params) -> Params:
        return replace(params, exit_layer=exit_layer(pair.target, params.exit_layer))

    def own(self, pair: "Pair", params: Params) -> OfTarget:
        count = params.exit_layer
        return OfTarget(("early-exit", count), lambda target: first_layers_lm(target, count))

    def cost(self, pair: "Pair", params: Params) -> DraftingCost:
        read = weight_bytes(first_layers(pair.target, params.exit_layer))
        return DraftingCost(token=read / weight_bytes(pair.target))

    def build(self, given: Materials) -> ModelDrafter:
        return ModelDrafter(
            given.drafter,
            given.context,
            given.sampler,
            *given.of_target,
            *given.how_to_draft,
            given.params.exit_layer,
        )
