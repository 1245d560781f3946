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
from specdemo.trials.fork import ForkReport, find_fork
from specdemo.trials.fork_told import told
from specdemo.ui.runs.measuring import Link, MeasurementRequest, Work, prompt_in_words
from specdemo.ui.runs.models import Choice
from specdemo.ui.runs.queue import Ticket
from specdemo.ui.view import wire
from specdemo.ui.view.texts import drafter_in_words
from specdemo.words.catalogue import say
from specdemo.words.message import message


@dataclass(frozen=True)
class ForkRequest(MeasurementRequest):
    """The comparison of the greedy text with drafts to the one without."""

    def work(self, ticket: Ticket) -> Work:
        def compared(pair: AnyPair) -> Iterator[dict[str, Any]]:
            if zero.GPU is not None:
                raise PairError(message("fork_zero"))
            where = say("run.on_device", name=pair.info.name, device=pair.info.device_name)
            how = [drafter_in_words(self.params, pair.info), f"γ {self.params.gamma}"]
            news = {"whose": ", ".join([prompt_in_words(self.prompt), where, *how]), "share": 0.0}
            yield news | {"text": say("exactness.fork.comparing")}
            params = replace(self.params, alternatives=0)
            if report := find_fork(pair, self.prompt, params, lambda: ticket.is_over):
                yield news | {"share": 1.0, "fork": fork_of(report)}

        return compared


def fork_request(
    wanted: dict[str, Any], choice: Choice, prompt: str, params: Params, link: Link
) -> ForkRequest:
    """What the page's script asks for."""
    check_prompt(prompt)
    check_greedy_drafts(params)
    return ForkRequest("exactness", choice, prompt, params, link)


def fork_of(report: ForkReport) -> wire.Fork:
    return {"verdict": report.verdict, "json": json.dumps(asdict(report), indent=1), **vars(told(report))}
