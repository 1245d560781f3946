"""The report's page: what was measured, what to type into servers, and the count of other cards."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from torch.nn import Module
from transformers import PreTrainedModel

from specdemo.advise.decide import contender_of
from specdemo.advise.elsewhere import CARDS, MeasuredWork, elsewhere, picture
from specdemo.advise.report import Advice, html_report
from specdemo.advise.results import Measured, Setting, Together
from specdemo.advise.typed import Choice, Typed, typed_into
from specdemo.bench.by_count import ITEMSIZE, ForwardBytes, bytes_of_model
from specdemo.events import METHODS
from specdemo.loading.pair import Pair
from specdemo.runtime.weights import expert_weights

# What servers are told of besides drafter and draft length.
OF_PARAMS = ("confidence", "temperature", "top_k", "top_p", "min_p", "draft_temperature", "ngram")


def page_of(pairs: Mapping[str, Pair], advice: Advice, cards: Sequence[str] = tuple(CARDS)) -> str:
    """The page, in the language that is spoken. pairs: by contender. cards: of CARDS, the first of them with
    several texts at once."""
    return html_report(advice, typed_of(advice), _picture(pairs, advice, cards))


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


def _picture(pairs: Mapping[str, Pair], advice: Advice, cards: Sequence[str]) -> str:
    """What the best setting for all of the work would bring on other cards; empty where that is not known,
    where a part of the target drafts, whose share of it is not counted, of a tree, and of a mixture of
    experts."""
    best = advice.recommended[-1].best
    if best is None or not cards or expert_weights(pairs[best.contender].target).size:
        return ""
    contender = contender_of(advice.measured, best)
    method, pair = METHODS[contender.draft_with], pairs[contender.name]
    if contender.tree or (not method.needs_drafter and method.manner != "copy"):
        return ""
    drafter = bytes_in_16_bits(pair.drafter) if method.needs_drafter and pair.drafter is not None else None
    work = MeasuredWork(
        target=bytes_in_16_bits(pair.target),
        drafter=drafter,
        at_once=contender.at_once,
        survival=survival(advice.measured, best),
        text=round(fmean(one.length for one in advice.measured.samples)),
    )
    return picture(elsewhere(work, cards))


def survival(measured: Measured, setting: Setting) -> tuple[float, ...]:
    """At each place, the share of rounds in which its draft and all before it were accepted, in the texts
    with long drafts."""
    own = tuple(one for one in measured.probes if one.setting.contender == setting.contender)
    return tuple(Together(own).share_above("accepted", max((max(one.drafted) for one in own), default=0)))


def bytes_in_16_bits(model: Module) -> ForwardBytes:
    """What a forward reads where weights, keys and values have 16 bits, as servers load them."""
    if isinstance(model, PreTrainedModel):
        read = bytes_of_model(model, 0)
        position = ITEMSIZE * read.position // model.dtype.itemsize
        return replace(read, weights=ITEMSIZE * read.parameters, position=position)
    parameters = sum(one.numel() for one in model.parameters())
    return ForwardBytes(ITEMSIZE * parameters, layers=1, parameters=parameters)
