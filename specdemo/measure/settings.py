"""What is measured: settings, each with its pair and Params, and what can draft for a target at all."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from specdemo.drafters.table import drafting_by, kind_in
from specdemo.errors import LoadError, PairError
from specdemo.events import METHODS, Params, drafter_label, manner_of
from specdemo.events.params import DraftTree, takes_tree, tree_text
from specdemo.loading.catalog import CATALOGUE, ROOT, others_at_hand
from specdemo.loading.pair import AnyPair, Pair
from specdemo.measure.results import ALONE, Contender
from specdemo.measure.table import usual_tree
from specdemo.words.message import Message, about, message, message_of

EVERY = "all"  # in place of drafters: whatever is at hand


@dataclass(frozen=True)
class Setting:
    """One row to measure. name: the row's name, which no other row has. is_extra: whether it is left out
    where it turns out that the pair's models cannot read its trees."""

    name: str
    pair: AnyPair
    params: Params
    is_extra: bool = False


def methods_at_hand(pair: Pair) -> list[str]:
    """The names in METHODS of those that the pair can have."""
    return [name for name in METHODS if pair.lacks(name) is None]


def methods_of(pair: Pair, names: Sequence[str], params: Params) -> list[Setting]:
    """One setting, which drafts chains, for each of these names in METHODS. ValueError for what the pair
    cannot have."""
    own = {name: replace(params, draft_with=name, tree=()) for name in names}
    for name in names:
        if why := pair.lacks(name):
            raise ValueError(f'methods must not include "{name}" for this pair: {why}')
    kind = pair.info.drafter_kind
    return [Setting(drafter_label(name, kind), pair, params) for name, params in own.items()]


def settings_for(pairs: Sequence[Pair], names: Sequence[str], params: Params) -> list[Setting]:
    """The settings for pairs with the same target. A method that needs a drafter gives a setting for each of
    them, the others one for the first. Raises as `methods_of` does."""
    settings = methods_of(pairs[0], names, params)
    by_drafter = [name for name in names if METHODS[name].needs_drafter]
    if not by_drafter or len(pairs) == 1:
        return settings
    of_each = [
        replace(setting, name=f"{setting.name} ({pair.info.name})")
        for pair in pairs
        for setting in methods_of(pair, by_drafter, params)
    ]
    return of_each + [one for one in settings if one.params.draft_with not in by_drafter]


def with_trees(settings: Sequence[Setting], params: Params, trees: Sequence[DraftTree] = ()) -> list[Setting]:
    """The settings, each followed by those with trees in place of its chains, as far as its pair drafts trees
    with such Params: the given ones (where there are none, the usual tree of a model) and that of `params`.
    ValueError for one of `trees` that nothing drafts, and for that of `params` where each pair that could
    draft it refuses it."""
    asked = list(dict.fromkeys([*trees, *([params.tree] if params.tree else [])]))
    found: list[Setting] = []
    refused: dict[DraftTree, ValueError] = {}
    for setting in settings:
        found.append(setting)
        method = setting.params.draft_with
        usual = [usual_tree(params)] if METHODS[method].is_by_drafter and not trees else []
        for tree in dict.fromkeys([*usual, *asked]):
            if not takes_tree(method, tree):
                continue
            try:
                own = setting.pair.check(replace(setting.params, tree=tree))
            except ValueError as error:
                refused[tree] = error
            else:
                name = f"{setting.name}, tree {tree_text(tree)}"
                found.append(replace(setting, name=name, params=own, is_extra=tree not in asked))
    for tree in asked:
        if any(one.params.tree == tree for one in found):
            continue
        if tree in refused:
            raise refused[tree]
        if tree in trees:
            able = ", ".join(name for name in METHODS if takes_tree(name, tree))
            why = f"none of these methods drafts it (only {able} can)"
            raise ValueError(f"trees must not include {tree_text(tree)} here: {why}")
    return found


def has_head(name: str) -> bool:
    """Whether the drafter of a pair that comes with the project is a head, which cannot be quantised."""
    return kind_in(ROOT / CATALOGUE[name].drafter).is_head


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
