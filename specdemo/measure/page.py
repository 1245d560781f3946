"""The report's page: what was measured, and what to type into servers."""

from specdemo.measure.decide import contender_of
from specdemo.measure.report import Advice, html_report
from specdemo.measure.typed import Choice, Typed, typed_into

# What servers are told of besides drafter and draft length.
OF_PARAMS = ("confidence", "temperature", "top_k", "top_p", "min_p", "draft_temperature", "ngram")


def page_of(advice: Advice) -> str:
    """The page, in the language that is spoken."""
    return html_report(advice, typed_of(advice))


def typed_of(advice: Advice) -> list[Typed]:
    """The one setting for all of the work, as what is typed into servers; nothing where none is known."""
    measured, one = advice.measured, advice.recommended[-1]
    if one.best is None:
        return []
    contender = contender_of(measured, one.best)
    choice = Choice(
        target=measured.target,
        drafter=contender.drafter,
        drafter_kind=contender.drafter_kind,
        draft_with=contender.draft_with,
        gamma=one.best.gamma,
        speculates=one.draft_with != "none",
        tree=contender.tree,
        **{name: measured.params[name] for name in OF_PARAMS},
    )
    return typed_into(choice)
