"""EAGLE-3 heads."""

from specdemo.drafters.row import DrafterKind

KIND = DrafterKind(
    "eagle3",
    "EAGLE-3 head",
    "chain",
    "An EAGLE-3 head drafts one token after another: the first from the target's own hidden states, each "
    "later one from its own.",
    drafts_trees=True,
    in_speculators=True,
    authors=r"eagle_?3",
)
