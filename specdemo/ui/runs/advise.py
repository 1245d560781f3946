"""The adviser on the page: what pays for kinds of work, with the chosen pair and whatever else is at hand for
its target. Without Gradio."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from specdemo import zero
from specdemo.errors import PairError
from specdemo.events import Params
from specdemo.loading.catalog import WORKS
from specdemo.loading.pair import AnyPair
from specdemo.measure import report
from specdemo.measure.advise import advise
from specdemo.measure.prompts import prompts_of
from specdemo.measure.results import work_in_words
from specdemo.measure.settings import EVERY
from specdemo.servers.software import ServedPair
from specdemo.ui.runs.models import Choice
from specdemo.ui.runs.queue import Ticket
from specdemo.ui.runs.run import Link, MeasurementRequest, Wanted
from specdemo.ui.view.settings import in_words, sampler_in_words
from specdemo.words.catalogue import say
from specdemo.words.message import message

BUDGET = 120.0  # s
TOKENS = 96  # of a text, at most
SAVED_EVERY = 5.0  # s, after which the report is made anew


@dataclass(frozen=True)
class AdviseRequest(MeasurementRequest):
    works: tuple[str, ...]

    def work(self, ticket: Ticket, *pairs: AnyPair) -> Iterator[dict[str, Any]]:
        pair = pairs[0]
        if zero.GPU is not None or isinstance(pair, ServedPair):
            raise PairError(message("advise_not_here"))
        where = say("run.on_device", name=pair.info.target, device=pair.info.device_name)
        whose = f"{where}, {sampler_in_words(self.params)}"
        told: dict[str, Any] = {"whose": whose, "text": say("run.warming_up"), "share": 0.0}
        yield told
        most = min(TOKENS, self.params.max_new_tokens)
        params = replace(self.params, max_new_tokens=most, alternatives=0, tree=())
        command, saved = _command(self.works, params), 0.0
        how = (prompts_of(self.works), params, BUDGET, command, lambda: ticket.is_over)
        for progress in advise(pair, [EVERY], *how):
            measured = progress.measured
            is_over = measured.ended != "running"
            is_whole = is_over and measured.ended != "interrupted"
            left, spent = max(0.0, BUDGET - measured.seconds), ticket.seconds
            share = 1.0 if is_whole else min(0.99, spent / (spent + left or 1.0))
            told |= {"text": in_words(progress.doing), "share": share}
            if measured.samples or is_over:
                told |= {"advice": report.advice_in_words(measured)}
                if is_over or measured.seconds > saved + SAVED_EVERY:
                    saved = measured.seconds
                    self.report.append(report.page_of(measured))
            yield told


def advise_request(wanted: Wanted, choice: Choice, prompt: str, params: Params, link: Link) -> AdviseRequest:
    """What the page's script asks for."""
    works = str(wanted.get("works", "")).split(",")
    if any(work not in WORKS for work in works):
        raise ValueError(message("advice_works", names=", ".join(map(work_in_words, WORKS))))
    return AdviseRequest("advise", choice, prompt, params, link, tuple(dict.fromkeys(works)))


def _command(works: tuple[str, ...], params: Params) -> str:
    """What would measure the same, but for the pair, which the report names."""
    options = [f"--work={','.join(works)}", f"--budget={BUDGET:g}s"]
    for name in ("temperature", "top_k", "top_p", "min_p", "rule", "seed", "max_new_tokens"):
        options.append(f"--{name.replace('_', '-')}={getattr(params, name)}")
    if params.chat:
        options.append("--chat")
    return shlex.join(["python", "-m", "specdemo", "advise", *options])
