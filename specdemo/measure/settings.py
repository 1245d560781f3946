"""What is measured: settings, each with its pair and Params, and what can draft for a target at all."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

from specdemo.drafters.table import HEAD, kind_in, longest_draft
from specdemo.errors import LoadError, PairError
from specdemo.events import LISTED, METHODS, Params, drafter_label, manner_of
from specdemo.events.params import DraftTree, as_text, takes_tree
from specdemo.loading.catalog import CATALOGUE, ROOT, others_at_hand
from specdemo.loading.pair import AnyPair, Pair
from specdemo.measure.results import Contender
from specdemo.words.message import Message, about, message, message_of

EVERY = "all"  # in place of drafters: whatever is at hand


@dataclass(frozen=True)
class Setting:
    """One row to measure. name: the row's name, which no other row has."""

    name: str
    pair: AnyPair
    params: Params


def how_measured(pair: AnyPair, params: Params, *fields: str) -> dict[str, Any]:
    """What a result says of what was measured, where and when, with these fields of the Params."""
    info = pair.info
    return {
        "target": info.target,
        "device": info.device,
        "device_name": info.device_name,
        "dtype": info.dtype.target,
        "date": date.today().isoformat(),
        **{name: getattr(params, name) for name in fields},
    }


def methods_at_hand(pair: Pair) -> list[str]:
    """The names in LISTED of those that the pair can have."""
    return [name for name in LISTED if pair.lacks(name) is None]


def settings_for(pairs: Sequence[Pair], names: Sequence[str], params: Params) -> list[Setting]:
    """One setting, which drafts chains, for each of these names in METHODS. Of several pairs, which have the
    same target, what drafts by the drafter alone gives one for each pair, and another method one for the
    first. ValueError for what a pair cannot have."""
    names = list(dict.fromkeys(names))
    by_drafter = [name for name in names if METHODS[name].is_by_drafter] if len(pairs) > 1 else []
    of_each = [(pair, name) for pair in pairs for name in by_drafter]
    settings = []
    for pair, name in [*of_each, *((pairs[0], name) for name in names if name not in by_drafter)]:
        if why := pair.lacks(name):
            raise ValueError(f'methods must not include "{name}" for this pair: {why}')
        label = drafter_label(name, pair.info.drafter_kind)
        label = f"{label} ({pair.info.name})" if name in by_drafter else label
        settings.append(Setting(label, pair, replace(params, draft_with=name, tree=())))
    return settings


def with_trees(settings: Sequence[Setting], params: Params, trees: Sequence[DraftTree] = ()) -> list[Setting]:
    """The settings, each followed by those with these trees and that of `params` in place of its chains, as
    far as its pair drafts them with such Params. ValueError for one of `trees` that nothing drafts, and for
    that of `params` where each pair that could draft it refuses it."""
    asked = list(dict.fromkeys([*trees, *([params.tree] if params.tree else [])]))
    found, refused = list[Setting](), dict[DraftTree, ValueError]()
    for setting in settings:
        found.append(setting)
        for tree in asked:
            if not takes_tree(setting.params.draft_with, tree):
                continue
            try:
                own = setting.pair.check(replace(setting.params, tree=tree))
            except ValueError as error:
                refused[tree] = error
            else:
                found.append(Setting(f"{setting.name}, tree {as_text(tree)}", setting.pair, own))
    for tree in asked:
        if not any(one.params.tree == tree for one in found) and (tree in trees or tree in refused):
            why = f"trees must not include {as_text(tree)} here: none of these methods drafts it"
            raise refused.get(tree, ValueError(why))
    return found


def has_head(name: str) -> bool:
    """Whether the drafter of a pair that comes with the project is a head, which cannot be quantised."""
    return kind_in(ROOT / CATALOGUE[name].drafter) is HEAD


def check_asked(asked: Sequence[str]) -> None:
    """ValueError for drafters that cannot be asked for together."""
    if EVERY in asked and len(asked) > 1:
        raise ValueError(about("drafters", "advice_all_or_some", all=EVERY))
    if "none" in asked:
        raise ValueError(about("drafters", "advice_not_none"))


def field_of(pair: Pair, asked: Sequence[str], params: Params) -> tuple[list[Setting], list[Message]]:
    """What can draft for the target, in chains, and why the rest is left out; PairError or LoadError where
    nothing can. asked: as `check_asked` takes them: drafters (hub ids, directories), methods (names in
    METHODS), or EVERY."""
    settings, left_out, error = list[Setting](), list[Message](), None
    places: dict[str, Any] = {name: None if name in METHODS else name for name in asked}
    if list(asked) == [EVERY]:
        others = others_at_hand(pair.info.name)
        places = dict.fromkeys(name for name in methods_at_hand(pair) if name != "none")
        places |= {name: ROOT / CATALOGUE[name].drafter for name in others}
    for name, place in sorted(places.items(), key=lambda each: each[1] is not None):
        method, own, why = "model" if place else name, pair, None
        try:
            own = pair.with_drafter(place) if place else pair
            why = own.lacks(method)
        except (PairError, LoadError) as failed:
            error, why = failed, message_of(failed)
        if why:
            left_out.append(message("advice_left_out", name=name, why=why))
            continue
        label = drafter_label(method, own.info.drafter_kind)
        if any(places.values()) and METHODS[method].needs_drafter:
            label += f" ({name if place else pair.info.name})"
        settings.append(Setting(label, own, replace(params, draft_with=method, tree=())))
    if not settings:
        raise error or PairError("; ".join(left_out) or message("advice_nothing_drafts"))
    return settings, left_out


def as_contender(setting: Setting) -> Contender:
    method, info = setting.params.draft_with, setting.pair.info
    needs_drafter = METHODS[method].needs_drafter
    return Contender(
        setting.name,
        method,
        drafter=info.drafter if needs_drafter else None,
        drafter_kind=info.drafter_kind if needs_drafter else None,
        at_once=manner_of(method, info.drafter_kind) in ("block", "block and chain"),
        longest=longest_draft(method, setting.pair.drafter),
    )
