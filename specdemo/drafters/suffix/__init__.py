"""What followed the end of the text before."""

from specdemo.drafters.row import Method

METHOD = Method(
    "suffix",
    "suffix tree",
    "copies what most often followed the end of the text, as long as that is likely",
    fields=("gamma", "tree"),
    manner="copy",
)
