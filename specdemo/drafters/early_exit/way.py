"""The target's own first layers draft (LayerSkip, Elhoushi et al. 2024; see layers.py)."""

from dataclasses import replace

from specdemo.drafters.base import Materials, Models, Way
from specdemo.drafters.early_exit.layers import exit_layer, first_layers, first_layers_lm, layer_count
from specdemo.drafters.model.drafter import ModelDrafter
from specdemo.events import Params
from specdemo.events.speedup import DraftingCost
from specdemo.runtime.runner import OfTarget
from specdemo.runtime.weights import weight_bytes


class EarlyExitWay(Way):
    def lacks(self, pair: Models) -> str | None:
        try:
            exit_layer(pair.target, 1)
        except ValueError:
            return "its target has no first layers that could draft alone"
        return None

    def largest(self, pair: Models, field: str) -> int | None:
        return layer_count(pair.target) - 1 if field == "exit_layer" else None

    def check(self, pair: Models, params: Params) -> Params:
        return replace(params, exit_layer=exit_layer(pair.target, params.exit_layer))

    def own(self, pair: Models, params: Params) -> OfTarget:
        count = params.exit_layer
        return OfTarget(("early-exit", count), lambda target: first_layers_lm(target, count))

    def cost(self, pair: Models, params: Params) -> DraftingCost:
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
