"""N-grams that are counted in the text."""

from specdemo.drafters.row import Method

METHOD = Method(
    "ngram",
    "n-gram store",
    "n-grams of all lengths, counted in the text so far, write the drafts",
    fields=("gamma", "ngram", "tree"),
    manner="copy",
)
ONE_LEVEL = Method(
    "ngram-one-level",
    "one-level n-gram store",
    "n-grams of one length, counted in the text so far, write the drafts",
    fields=("gamma", "ngram", "tree"),
    manner="copy",
)
