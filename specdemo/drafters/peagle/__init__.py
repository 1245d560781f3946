"""P-EAGLE heads."""

from specdemo.drafters.row import DrafterKind

KIND = DrafterKind(
    "peagle",
    "P-EAGLE head",
    "block",
    "A P-EAGLE head drafts all tokens in one forward: the first from the target's own hidden states, each "
    "other from a mask, so no token of the draft has seen the others.",
    drafts_trees=True,
    in_speculators=True,
)
