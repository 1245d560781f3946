"""The target's own first layers."""

from specdemo.drafters.row import Method

METHOD = Method(
    "early-exit",
    "early exit",
    "the target's own first layers write the drafts, one token after another",
    fields=("gamma", "confidence", "exit_layer"),
    takes_the=False,
    manner="chain",
)
