"""Layers for multi-token prediction that a target has."""

from specdemo.drafters.row import BY_MODEL, Method

METHOD = Method(
    "mtp",
    "multi-token prediction",
    "layers that the target has for multi-token prediction write the drafts",
    fields=BY_MODEL,
    is_usual=False,
    takes_the=False,
    manner="chain",
)
