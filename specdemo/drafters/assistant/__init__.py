"""Gemma 4's assistants."""

from specdemo.drafters.row import DrafterKind

KIND = DrafterKind(
    "assistant",
    "assistant",
    "chain",
    "An assistant drafts one token after another. It has no keys and values of its own, but attends to the "
    "target's.",
)
