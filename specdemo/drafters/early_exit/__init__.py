"""The target's own first layers."""

from specdemo.drafters.row import BY_MODEL, Method

METHOD = Method(
    "early-exit",
    "early exit",
    "the target's own first layers write the drafts, one token after another",
    fields=(*BY_MODEL, "exit_layer"),
    takes_the=False,
    manner="chain",
)
