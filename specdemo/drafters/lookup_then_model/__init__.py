"""Lookup where it finds something, else the pair's drafter."""

from specdemo.drafters.row import BY_MODEL, Method

METHOD = Method(
    "lookup+model",
    "lookup, else the drafter",
    "copies what followed the same words earlier in the text; where nothing did, the pair's drafter writes "
    "the draft",
    fields=(*BY_MODEL, "ngram"),
    needs_drafter=True,
    takes_the=False,
    menu_label="lookup, else the pair's drafter",
    manner="copy",
)
