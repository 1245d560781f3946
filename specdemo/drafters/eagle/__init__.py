"""EAGLE heads of the first two versions, which differ in the tree alone."""

from specdemo.drafters.row import DrafterKind

KIND = DrafterKind(
    "eagle",
    "EAGLE head",
    "chain",
    "An EAGLE head drafts one token after another, each from the token before it and the hidden state there: "
    "the first from the target's last one, each later one from its own.",
    drafts_trees=True,
    authors=r"^eagle(?![\d_]).*causallm|causallmeagle$|^eagle$",
)
