"""Where plain and speculative greedy text part, and why, as the page tells it. Without Gradio."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from specdemo import zero
from specdemo.errors import PairError
from specdemo.events import Params, check_prompt
from specdemo.events.params import check_greedy_drafts
from specdemo.loading.pair import AnyPair
from specdemo.trials.fork import Candidate, Fork, ForkReport, find_fork
from specdemo.ui.runs.measuring import Link, MeasurementRequest, Work, prompt_in_words
from specdemo.ui.runs.models import Choice
from specdemo.ui.runs.queue import Ticket
from specdemo.ui.view import wire
from specdemo.ui.view.settings import in_words
from specdemo.ui.view.texts import drafter_in_words
from specdemo.words.catalogue import number, say
from specdemo.words.message import message

COLUMNS = ("forward", "plain", "speculative", "margin", "likeliest", "apart")


@dataclass(frozen=True)
class ForkRequest(MeasurementRequest):
    """The comparison of the greedy text with drafts to the one without."""

    def work(self, ticket: Ticket) -> Work:
        def compared(pair: AnyPair) -> Iterator[dict[str, Any]]:
            if zero.GPU is not None:
                raise PairError(message("fork_zero"))
            where = say("run.on_device", name=pair.info.name, device=pair.info.device_name)
            how = [drafter_in_words(self.params, pair.info), f"γ {self.params.gamma}"]
            told = {"whose": ", ".join([prompt_in_words(self.prompt), where, *how]), "share": 0.0}
            yield told | {"text": say("exactness.fork.comparing")}
            params = replace(self.params, alternatives=0)
            if report := find_fork(pair, self.prompt, params, lambda: ticket.is_over):
                yield told | {"share": 1.0, "fork": fork_of(report)}

        return compared


def fork_request(
    wanted: dict[str, Any], choice: Choice, prompt: str, params: Params, link: Link
) -> ForkRequest:
    """What the page's script asks for."""
    check_prompt(prompt)
    check_greedy_drafts(params)
    return ForkRequest("exactness", choice, prompt, params, link)


def fork_of(report: ForkReport) -> wire.Fork:
    fork = report.fork
    return {
        "verdict": report.verdict,
        "sentence": in_words(report.sentence),
        "place": "" if fork is None else _place(fork),
        "columns": [say(f"exactness.fork.columns.{name}") for name in COLUMNS],
        "rows": [] if fork is None else _rows(fork),
        "notes": "" if fork is None else _notes(fork),
        "json": json.dumps(asdict(report), indent=1),
    }


def _place(fork: Fork) -> str:
    plain, speculative = map(_named, (fork.plain, fork.speculative))
    values = {"place": number(fork.place + 1), "before": fork.before}
    return say("exactness.fork.place", **values, plain=plain, speculative=speculative)


def _named(candidate: Candidate | None) -> str:
    if candidate is None:
        return say("exactness.fork.nothing")
    return say("exactness.fork.token", text=candidate.text, id=candidate.id)


def _rows(fork: Fork) -> list[list[str]]:
    names = {name: say(f"exactness.fork.forwards.{name.replace(' ', '_')}") for name in ("one row", "own")}
    names |= {"float32": "float32", "several rows": say("exactness.fork.several", count=fork.rows)}
    return [
        [
            names[said.forward],
            *(number(value, ".4f") for value in (said.plain, said.speculative, said.margin)),
            _named(said.likeliest),
            number(said.apart, ".2g"),
        ]
        for said in fork.said
    ]


def _notes(fork: Fork) -> str:
    rounding = fork.rounding
    if rounding is None:
        return ""
    values = {"places": rounding.places, "rows": number(rounding.rows, ".2g")}
    if rounding.not_float32:
        why = in_words(rounding.not_float32)
        return say("exactness.fork.not_compared", **values, why=why)
    return say("exactness.fork.measured", **values, float32=number(rounding.float32 or 0.0, ".2g"))
