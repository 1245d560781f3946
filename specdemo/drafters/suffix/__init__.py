"""What followed the end of the text before."""

from specdemo.drafters.row import Method

METHOD = Method(
    "suffix",
    "suffix tree",
    "copies what most often followed the end of the text, as far as that is sure enough",
    fields=("gamma",),
    manner="copy",
)
