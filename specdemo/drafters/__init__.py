"""The table of drafters: the rows of the folders below. Standard library only, so that `Params`, the command
line and the page can read it. What drafts by each row is in ways.py and kinds.py."""

from typing import Any

from specdemo.drafters import (
    assistant,
    dflash,
    dflash2,
    eagle,
    eagle3,
    early_exit,
    lookup,
    model,
    mtp,
    ngram,
    pard,
    peagle,
    suffix,
)
from specdemo.drafters.chain import chained
from specdemo.drafters.row import DrafterKind, Method

NONE = Method("none", "target alone", "plain decoding", fields=(), menu_label="none: the target alone")


class Methods(dict[str, Method]):
    """The methods by name. Two names joined by "+" are a method, too, though most of these are not listed:
    the first, which copies from the text, drafts where it finds something, and the second elsewhere."""

    def __missing__(self, name: str) -> Method:
        first, _, second = name.partition("+")
        if not self._can_be_joined(first, second):
            raise KeyError(name)
        return chained(self[first], self[second])

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        first, _, second = name.partition("+")
        return super().__contains__(name) or self._can_be_joined(first, second)

    def get(self, name: str, default: Any = None) -> Any:
        try:
            return self[name]
        except KeyError:
            return default

    def _can_be_joined(self, first: str, second: str) -> bool:
        singles = [name for name in self if "+" not in name and name != NONE.name]
        known = first in singles and second in singles and first != second
        return known and self[first].manner == "copy"


METHODS = Methods(
    (method.name, method)
    for method in (
        model.METHOD,
        mtp.METHOD,
        lookup.METHOD,
        chained(lookup.METHOD, model.METHOD),
        ngram.METHOD,
        ngram.ONE_LEVEL,
        suffix.METHOD,
        early_exit.METHOD,
        NONE,
    )
)
DRAFTER_KINDS: dict[str, DrafterKind] = {
    kind.name: kind
    for kind in (
        model.KIND,
        pard.KIND,
        eagle.KIND,
        eagle3.KIND,
        peagle.KIND,
        assistant.KIND,
        dflash.KIND,
        dflash2.KIND,
        dflash.DSPARK,
    )
}
