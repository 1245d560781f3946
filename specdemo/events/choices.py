"""What a run can choose: the drafting methods, the kinds of drafters and the rules, one row each. Standard
library only.

Everything that names them reads these rows: `Params`, the command line, the engine, the comparison, the page
and its scripts. A row has no words: those stand in the catalogues by its name, and `words_of_row` says them.
What drafts by a method or a kind is in `drafters/table.py`; how a rule judges is its function in
`engine/rules.py`."""

from dataclasses import dataclass
from typing import Literal

from specdemo.words.catalogue import say, speaking

# How the tokens of a draft come about: each from the one before it; all in one forward; all in one forward,
# and then corrected one after another; or copied from the text.
Manner = Literal["chain", "block", "block and chain", "copy"]

# The fields of Params that each drafter that is a model uses.
BY_MODEL = ("gamma", "confidence", "draft_temperature")


@dataclass(frozen=True, slots=True)
class Method:
    """A way to draft."""

    name: str  # Params.draft_with
    fields: tuple[str, ...]  # of Params, that it uses
    is_by_drafter: bool = False  # whether the pair's drafter drafts
    needs_drafter: bool = False  # whether the pair must have one
    is_usual: bool = True  # whether a target nearly always can: False for what few targets have
    takes_the: bool = True  # whether "the" stands before its label in a sentence
    manner: Manner | None = None  # None: that of the pair's drafter, or nothing is drafted


@dataclass(frozen=True, slots=True)
class DrafterKind:
    """What a pair's drafter can be. What is told of a head's files is in drafters/configs.py."""

    name: str  # PairInfo.drafter_kind
    manner: Manner
    drafts_trees: bool = False  # Params.tree
    in_speculators: bool = False  # whether the library speculators has such heads, of the type `name`
    authors: str | None = None  # a pattern of what their authors call class or type, in small letters


@dataclass(frozen=True, slots=True)
class Rule:
    """A way to judge a draft. It compares u with a number at each place, or p with a threshold."""

    name: str  # Params.rule
    lossless: bool  # whether the text has the target's own distribution
    symbol: str  # what decides
    residual: str | None  # "A − B": after a rejection a token is drawn from max(A - B, 0); None: from p
    fields: tuple[str, ...] = ()  # of Params, that it uses
    judges_whole_draft: bool = False  # places after a rejection, too
    threshold: str | None = None  # what p is compared with, by a rule that does not use u


def _joined(first: Method, second: Method) -> Method:
    return Method(
        f"{first.name}+{second.name}",
        fields=tuple(one for one in dict.fromkeys((*first.fields, *second.fields)) if one != "tree"),
        needs_drafter=second.needs_drafter,
        is_usual=second.is_usual,
        takes_the=False,
        manner=first.manner,
    )


MODEL = Method("model", (*BY_MODEL, "tree"), is_by_drafter=True, needs_drafter=True)
LOOKUP = Method("lookup", ("gamma", "ngram"), takes_the=False, manner="copy")
LISTED = {
    method.name: method
    for method in (  # in the order of the page's menu
        MODEL,
        Method("mtp", BY_MODEL, is_usual=False, takes_the=False, manner="chain"),
        LOOKUP,
        _joined(LOOKUP, MODEL),
        Method("ngram", ("gamma", "ngram", "tree"), manner="copy"),
        Method("ngram-one-level", ("gamma", "ngram", "tree"), manner="copy"),
        Method("suffix", ("gamma", "tree"), manner="copy"),
        Method("early-exit", (*BY_MODEL, "exit_layer"), takes_the=False, manner="chain"),
        Method("none", ()),
    )
}
_SINGLE = [method for name, method in LISTED.items() if name not in ("lookup+model", "none")]
# All methods: those that are listed, and two of them by their names. The first of two, which copies from the
# text, drafts where it finds something, and the second elsewhere.
METHODS = LISTED | {
    f"{first.name}+{second.name}": _joined(first, second)
    for first in _SINGLE
    for second in _SINGLE
    if first.manner == "copy" and second is not first
}
DRAFTER_KINDS = {
    kind.name: kind
    for kind in (
        DrafterKind("model", "chain", drafts_trees=True),
        DrafterKind("pard", "block"),
        DrafterKind("eagle", "chain", drafts_trees=True,
                    authors=r"^eagle(?![\d_]).*causallm|causallmeagle$|^eagle$"),
        DrafterKind("eagle3", "chain", drafts_trees=True, in_speculators=True, authors=r"eagle_?3"),
        DrafterKind("peagle", "block", drafts_trees=True, in_speculators=True),
        DrafterKind("assistant", "chain"),
        DrafterKind("dflash", "block", drafts_trees=True, in_speculators=True, authors=r"dflash(?!_?2)"),
        DrafterKind("dflash2", "block and chain", drafts_trees=True, in_speculators=True,
                    authors=r"dflash_?2"),
        DrafterKind("dspark", "block and chain", drafts_trees=True, in_speculators=True),
    )
}  # fmt: skip

RULES = {
    rule.name: rule
    for rule in (
        Rule("speculative", True, symbol="min(1, p/q)", residual="p − q"),
        Rule("block", True, symbol="h", residual="w·p − q", judges_whole_draft=True),
        Rule("typical", False, symbol="p > min(ε, δ·e^−H)", residual=None, threshold="min(ε, δ·e^−H)"),
        Rule("lenient", False, symbol="min(1, p/(l·q))", residual="p − l·q",
             fields=("lenience",)),
    )
}  # fmt: skip


def words_of_row(table: Literal["methods", "kinds", "rules"], name: str, part: str) -> str:
    """The words of a row in the language that is spoken. part: "label", in tables and, but for a method, in
    the drop-down; "menu", a method in the drop-down; "sentence", what a method does or how a kind drafts; and
    of a rule "name", "meaning" (of the number that decides), "accepted" (when a draft is), "recorded" (what
    the verdicts are computed from again) and "about" (how it works; of the speculative rule the page tells
    more). KeyError for what the catalogue lacks."""
    if table == "methods" and "+" in name:
        first, second = (words_of_row(table, one, part) for one in name.split("+"))
        return say(f"choices.chain.{part}", first=first, second=second)
    return say(f"choices.{table}.{name}.{part}")


def manner_of(method: str, drafter_kind: str | None) -> Manner | None:
    """How a draft by this method comes about; None where nothing is drafted, or a server does not tell."""
    if not METHODS[method].is_by_drafter:
        return METHODS[method].manner
    kind = DRAFTER_KINDS.get(drafter_kind or "")
    return kind.manner if kind else None


def drafter_label(method: str, drafter_kind: str | None) -> str:
    """What drafts by this method, in English, whatever is spoken: "EAGLE-3 head", "lookup"."""
    with speaking("en"):
        if drafter_kind in DRAFTER_KINDS and METHODS[method].is_by_drafter:
            return words_of_row("kinds", drafter_kind, "label")
        return words_of_row("methods", method, "label")
