"""What can draft for a target, with the pairs that it drafts in."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from specdemo.drafters.table import drafting_by
from specdemo.errors import LoadError, PairError
from specdemo.events import METHODS, Params, drafter_label, manner_of
from specdemo.loading.catalog import CATALOGUE, ROOT, others_at_hand
from specdemo.loading.pair import Pair
from specdemo.measure.compare import Setting, methods_at_hand, with_trees
from specdemo.measure.results import ALONE, Contender
from specdemo.words.message import Message, about, message, message_of

EVERY = "all"  # in place of drafters: whatever is at hand


@dataclass
class Field:
    """The contenders, the target alone first, each with its pair. left_out: what cannot draft, and why."""

    contenders: list[Contender] = field(default_factory=lambda: [ALONE])
    pairs: dict[str, Pair] = field(default_factory=dict)
    left_out: list[Message] = field(default_factory=list)

    def add(self, pair: Pair, method: str, params: Params, told: str = "") -> None:
        """Adds what drafts chains so, and then each tree that it can draft with such Params. told: the
        drafter's name, where several are compared."""
        info, needs_drafter = pair.info, METHODS[method].needs_drafter
        name = drafter_label(method, info.drafter_kind)
        if told and needs_drafter:
            name += f" ({told})"
        chains = Setting(name, pair, replace(params, draft_with=method, tree=()))
        for setting in with_trees([chains], params):
            contender = Contender(
                setting.name,
                method,
                drafter=info.drafter if needs_drafter else None,
                drafter_kind=info.drafter_kind if needs_drafter else None,
                at_once=manner_of(method, info.drafter_kind) in ("block", "block and chain"),
                longest=drafting_by(method).longest_draft(pair.drafter),
                tree=setting.params.tree,
            )
            self.contenders.append(contender)
            self.pairs[setting.name] = pair

    def leave_out(self, name: str, why: Message | str) -> None:
        self.left_out.append(message("advice_left_out", name=name, why=why))


def check_asked(asked: Sequence[str]) -> None:
    """ValueError for drafters that cannot be asked for together."""
    if EVERY in asked and len(asked) > 1:
        raise ValueError(about("drafters", "advice_all_or_some", all=EVERY))
    if "none" in asked:
        raise ValueError(about("drafters", "advice_not_none"))


def field_of(pair: Pair, asked: Sequence[str], params: Params) -> Field:
    """asked: as `check_asked` takes them: drafters (hub ids, directories), methods (names in METHODS), or
    EVERY. What cannot draft for the target is left out; PairError or LoadError where nothing is left."""
    found = Field(pairs={ALONE.name: pair})
    if list(asked) == [EVERY]:
        methods = [name for name in methods_at_hand(pair) if name != "none"]
        drafters = {name: ROOT / CATALOGUE[name].drafter for name in others_at_hand(pair.info.name)}
    else:
        methods = [name for name in dict.fromkeys(asked) if name in METHODS]
        drafters = {name: name for name in asked if name not in METHODS}
    own = pair.info.name if drafters else ""
    for method in methods:
        if why := pair.lacks(method):
            found.leave_out(method, why)
        else:
            found.add(pair, method, params, own)
    error: Exception | None = None
    for name, place in drafters.items():
        try:
            found.add(pair.with_drafter(place), "model", params, name if own else "")
        except (PairError, LoadError) as failed:
            error = failed
            found.leave_out(name, message_of(failed))
    if len(found.contenders) == 1:
        raise error or PairError("; ".join(found.left_out) or message("advice_nothing_drafts"))
    return found
