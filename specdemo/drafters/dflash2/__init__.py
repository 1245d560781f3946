"""DFlash 2 heads."""

from specdemo.drafters.row import DrafterKind

KIND = DrafterKind(
    "dflash2",
    "DFlash 2 head",
    "block and chain",
    "A DFlash 2 head drafts a block in one forward, from the target's own hidden states, and then draws each "
    "token from the likeliest of its place, weighted by the token drafted before it.",
    drafts_trees=True,
    in_speculators=True,
    authors=r"dflash_?2",
)
