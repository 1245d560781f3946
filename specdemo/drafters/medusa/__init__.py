"""Medusa heads."""

from specdemo.drafters.row import DrafterKind

OF_AUTHORS = "medusa_num_heads"  # the key of their config.json that tells it
KIND = DrafterKind(
    "medusa",
    "Medusa head",
    "block",
    "Medusa heads draft all tokens at once, a head for each place, all of them from the same hidden state of "
    "the target: no token of the draft has seen the others.",
    drafts_trees=True,
    authors=r"medusa",
    authors_key=OF_AUTHORS,
)
