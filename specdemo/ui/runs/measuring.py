"""What all instruments have in common that the server measures for: what they are asked, and what they
tell. Without Gradio."""

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, ClassVar

from specdemo.events import Params
from specdemo.ui.runs.models import Choice, Models
from specdemo.ui.runs.queue import Ticket
from specdemo.ui.runs.run import Waiting, in_turn
from specdemo.ui.view import wire
from specdemo.ui.view.feed import nothing_yet
from specdemo.ui.view.settings import in_words
from specdemo.words.catalogue import say

SHOWN_PROMPT = 40  # characters of a prompt, to tell it from others
PERIOD = 0.3  # s between two looks at a measurement
TELLING = 1.0  # s, from which on what was measured tells what is left
Link = Callable[[str, Params], str]  # from a pair's name and Params, the query of the address of a new game
Work = Callable[..., Iterator[dict[str, Any]]]


@dataclass(frozen=True)
class MeasurementRequest:
    """What a visitor wants to be measured, and how that is done."""

    kind: wire.MeasurementKind
    choice: Choice
    prompt: str
    params: Params
    link: Link
    report: deque[str] = field(default_factory=lambda: deque(maxlen=1), init=False)  # a page to save, if any
    period: ClassVar[float | None] = PERIOD  # s between two looks; None: it is shown at its end only

    async def choices(self, models: Models) -> list[Choice]:
        """The choices whose pairs it is measured with."""
        return [self.choice]

    def work(self, ticket: Ticket) -> Work:
        """What happens in the ticket's turn, as `in_turn` takes it. It yields all that is known so far, as
        parts of wire.Measurement. `share` is 1 when nothing is left to measure."""
        raise NotImplementedError


async def measure(
    models: Models, ticket: Ticket, request: MeasurementRequest, name: str = ""
) -> AsyncIterator[wire.Measurement]:
    """Measures when the ticket's turn comes. Yields all that is measured so far, whenever there is more.
    Errors are raised. Closing or cancelling this generator stops the measurement. name: the name that the
    measurement is followed by."""
    told = nothing_yet({"kind": request.kind}, name)
    ends: float | None = None  # seconds that it takes in all, by what its parts took so far
    try:
        choices = await request.choices(models)
        turns = in_turn(models, ticket, choices, request.work(ticket), request.period)
        async with aclosing(turns) as reports:
            async for report in reports:
                if isinstance(report, Waiting):
                    yield told | {"text": report.sentence, "share": told["share"] or report.share}
                    continue
                (latest, ended), before = report, told
                told = told | {"state": "running", **latest}
                spent, share = ticket.seconds, told["share"]
                if share and share != before["share"] and spent >= TELLING:
                    ends = spent / share
                told["left"] = ends and max(0, round(ends - spent))  # so that it is sent once a second
                if told != before and not ended:
                    yield told
    finally:
        ticket.cancel()
    if told["share"] == 1:
        yield told | {"state": "ended", "text": "", "share": None}
    else:
        text = in_words(ticket.ending) if ticket.is_late else say("run.stopped")
        yield told | {"state": "stopped", "text": text, "share": None}


def prompt_in_words(prompt: str) -> str:
    """The prompt's first words, to tell it from others."""
    start = " ".join(prompt.split())
    start = start if len(start) <= SHOWN_PROMPT else f"{start[:SHOWN_PROMPT]}…"
    return say("run.this_prompt", start=start)
