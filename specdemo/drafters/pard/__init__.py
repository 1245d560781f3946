"""Models that draft in parallel: PARD."""

from specdemo.drafters.row import DrafterKind

KIND = DrafterKind(
    "pard",
    "PARD model",
    "block",
    "A PARD model drafts all tokens in one forward: it reads a mask token in the place of each token before "
    "the last, so no token of the draft has seen the others.",
)
