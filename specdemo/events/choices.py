"""What a run can choose: the rules, one row each, and what is said of the drafting methods, whose rows stand
in `drafters/`. Standard library only.

Everything that names them reads these rows: `Params`, the command line, the engine, the comparison, the page
and its scripts. How a rule judges is its function in `engine/rules.py`."""

from dataclasses import dataclass

from specdemo.drafters import DRAFTER_KINDS, METHODS
from specdemo.drafters.row import Manner


@dataclass(frozen=True, slots=True)
class Rule:
    """A way to judge a draft. The texts are for the page's scripts. A rule compares u with a number at each
    place, or p with a threshold."""

    name: str  # Params.rule
    sentence: str  # what it does, in the drop-down
    lossless: bool  # whether the text has the target's own distribution
    symbol: str  # what decides
    meaning: str  # of that number
    residual: str | None  # "A − B": after a rejection a token is drawn from max(A - B, 0); None: from p
    accepted: str  # when a draft is accepted
    recorded: str = "p, q and u"  # what the verdicts are computed from again
    about: str = ""  # how it works, in two or three sentences; of the speculative rule the page tells more
    fields: tuple[str, ...] = ()  # of Params, that it uses
    # a field of Params and its value with which a lossy rule is not lossy
    lossless_at: tuple[str, float] | None = None
    judges_whole_draft: bool = False  # places after a rejection, too
    threshold: str | None = None  # what p is compared with, by a rule that does not use u

    @property
    def label(self) -> str:
        return f"{self.name}{'' if self.lossless else ' (lossy)'}: {self.sentence}"


GONE_RULES = ("relaxed", "fly", "synthetic")  # which older traces and links can name
RULES = {
    rule.name: rule
    for rule in (
        Rule("speculative", "u < min(1, p/q)", lossless=True,
             symbol="min(1, p/q)", meaning="acceptance probability", residual="p − q",
             accepted="when u < min(1, p/q)"),
        Rule("block", "judges the whole draft", lossless=True,
             symbol="h", meaning="this place passes if u is below it", residual="w·p − q",
             accepted="up to the last draft with u < h", recorded="h and u", judges_whole_draft=True,
             about="Block verification judges the draft as a whole: all tokens up to the last place with u "
                   "below h are kept, and the next one is drawn from the part of w·p that exceeds q. A "
                   "later place can save an earlier one, so no fewer are kept on average, and the text "
                   "still has the target's own distribution (Sun et al. 2024)."),
        Rule("typical", "likely enough", lossless=False,
             symbol="p > min(ε, δ·e^−H)", meaning="1 if it holds", residual=None,
             accepted="when p was above the threshold", recorded="verdicts on p",
             threshold="min(ε, δ·e^−H)",
             about="Typical acceptance keeps each draft that the target gives more than min(ε, δ·e^−H), "
                   "where ε is 0.09, δ is 0.3 and H is the entropy of p; in place of a rejected one a "
                   "token is drawn from p. What the drafter likes and the target finds likely enough then "
                   "comes more often than from the target alone (Medusa, Cai et al. 2024)."),
        Rule("lenient", "u < min(1, p/(l·q))", lossless=False,
             symbol="min(1, p/(l·q))", meaning="acceptance probability", residual="p − l·q",
             accepted="when u < min(1, p/(l·q))", fields=("lenience",), lossless_at=("lenience", 1.0),
             about="Lenience accepts a draft with min(1, p/(l·q)), and after a rejection draws from the "
                   "part of p that exceeds l·q. So a token can come up to 1/l times as often as from the "
                   "target alone (Leviathan et al. 2023, appendix A.5)."),
    )
}  # fmt: skip


def manner_of(method: str, drafter_kind: str | None) -> Manner | None:
    """How a draft by this method comes about; None where nothing is drafted, or a server does not tell."""
    if not METHODS[method].is_by_drafter:
        return METHODS[method].manner
    kind = DRAFTER_KINDS.get(drafter_kind or "")
    return kind.manner if kind else None


def drafter_label(method: str, drafter_kind: str | None) -> str:
    """What drafts by this method: "EAGLE-3 head", "lookup"."""
    kind = DRAFTER_KINDS.get(drafter_kind or "")
    return kind.label if kind and METHODS[method].is_by_drafter else METHODS[method].label


def drafting_sentence(method: str, drafter_kind: str | None) -> str:
    """How a draft by this method comes about; empty where nothing is drafted."""
    chosen, kind = METHODS[method], DRAFTER_KINDS.get(drafter_kind or "")
    if kind and chosen.is_by_drafter:
        return kind.sentence
    return "" if method == "none" else f"{_capital(chosen.label)}: {chosen.sentence}."


def _capital(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}"


def lossy_in_words() -> str:
    """The lossy rules in words: "typical and lenient are lossy"."""
    *first, last = (rule.name for rule in RULES.values() if not rule.lossless)
    return f"{', '.join(first)} and {last} are lossy"
