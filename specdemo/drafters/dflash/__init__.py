"""DFlash and DSpark heads."""

from specdemo.drafters.row import DrafterKind

KIND = DrafterKind(
    "dflash",
    "DFlash head",
    "block",
    "A DFlash head drafts all tokens in one forward, from the target's own hidden states: no token of the "
    "draft has seen the others.",
    drafts_trees=True,
    in_speculators=True,
    authors=r"dflash(?!_?2)",
)
DSPARK = DrafterKind(
    "dspark",
    "DSpark head",
    "block and chain",
    "A DSpark head drafts a block in one forward, from the target's own hidden states, and then corrects "
    "each place by the token drafted before it.",
    drafts_trees=True,
    in_speculators=True,
)
