"""The table of drafters: the rows of the folders below. Standard library only, so that `Params`, the command
line and the page can read it. What drafts by each row is in ways.py and kinds.py."""

from specdemo.drafters import (
    assistant,
    dflash,
    eagle3,
    early_exit,
    lookup,
    lookup_then_model,
    model,
    mtp,
    ngram,
    suffix,
)
from specdemo.drafters.row import DrafterKind, Method

NONE = Method("none", "target alone", "plain decoding", fields=(), menu_label="none: the target alone")

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        model.METHOD,
        mtp.METHOD,
        lookup.METHOD,
        lookup_then_model.METHOD,
        ngram.METHOD,
        ngram.ONE_LEVEL,
        suffix.METHOD,
        early_exit.METHOD,
        NONE,
    )
}
DRAFTER_KINDS: dict[str, DrafterKind] = {
    kind.name: kind for kind in (model.KIND, eagle3.KIND, assistant.KIND, dflash.KIND, dflash.DSPARK)
}
