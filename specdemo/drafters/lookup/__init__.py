"""Copies of what stands earlier in the text."""

from specdemo.drafters.row import Method

METHOD = Method(
    "lookup",
    "lookup",
    "copies what followed the same words earlier in the text",
    fields=("gamma", "ngram"),
    takes_the=False,
    manner="copy",
)
