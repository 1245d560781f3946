"""What the server does for one open page: its runs, links, measurements and trace files.

Each handler takes the page's session and what its controls hold, and returns JSON texts for the stage, which
shows errors, too.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import gradio as gr

from specdemo.events import check_number
from specdemo.events.trace import Trace
from specdemo.session import Run, check_prompt
from specdemo.ui import links
from specdemo.ui.feed import RunFeed, notice, trace_file
from specdemo.ui.instruments import measure, nothing_yet, request_of
from specdemo.ui.models import Choice, Models
from specdemo.ui.queue import REPORT_PERIOD, RunQueue, Waiting, follow, sentence
from specdemo.ui.settings import NAMES, about_file, choice_of, in_labels, params_of, values_of, weights_of
from specdemo.ui.texts import describe_pair, describe_recorded
from specdemo.ui.wire import Measurement, Message


class PageSession:
    """What the server remembers about one open page: what its stage shows, and the run that goes on there."""

    def __init__(self) -> None:
        self.number = 1
        self.feed: RunFeed | None = None
        self.run: Run | None = None
        self.waiting = False  # for a run to begin
        self.measuring: object | None = None  # which measurement goes on
        self.measurement: Measurement | None = None  # the latest of it
        self.runs_link = False  # the page's address asks for a run that has not been asked for yet
        self.note = ""  # about the page's address, for the next run's notice
        self.pair: str | None = None  # the visitor's own choice, while an example has set another pair

    def begin(self) -> int:
        """Makes room on the stage for something new, and returns its number. Messages with an older number
        are ignored."""
        self.number = max(self.number + 1, time.time_ns() // 1_000_000)
        if self.feed:
            self.feed.ended = True  # nobody follows its run any more
        self.run, self.waiting = None, False
        return self.number

    def end_run(self) -> None:
        if self.run and self.feed:
            self.run.close()
            self.feed.ended = True  # the event that would report it may be gone already


class Handlers:
    """models, queue: of the server. recorded: what every stage shows at first."""

    def __init__(self, models: Models, queue: RunQueue, recorded: RunFeed) -> None:
        self.models, self.queue, self.recorded = models, queue, recorded

    def whole(self, session: PageSession) -> Message:
        """All that the stage shows, as one message with the page's latest number."""
        return (session.feed or self.recorded).snapshot(session.number)

    async def run_on_stage(self, session: PageSession, prompt: str, *held: Any) -> AsyncIterator[str]:
        """The page's own run."""
        try:
            values = dict(zip(NAMES, held, strict=True))
            params, choice = params_of(values), Choice(**choice_of(values))
            check_prompt(prompt)
        except Exception as error:  # what is on the stage stays there, and goes on
            yield json.dumps(wrong(session.number, error))
            return
        number, feed, shown = session.begin(), None, None
        remarks, session.note = [session.note] if session.note else [], ""
        session.waiting = True
        try:
            async with aclosing(follow(self.models, self.queue, choice, prompt, params)) as reports:
                async for report in reports:
                    if session.number != number:  # the stage shows something newer by now
                        return
                    if isinstance(report, Waiting):
                        yield json.dumps(notice(number, "wait", report.sentence, share=report.share))
                        continue
                    if feed is None:
                        trace = report.run.trace
                        link = links.write(prompt, trace.pair.name, choice_of(values), trace.params)
                        feed = session.feed = RunFeed(number, trace, report.pair.tokenizer, link=link)
                        session.run, session.waiting = report.run, False
                    message = feed.update(report.ended)
                    if (state := (report.pair.runner.warming_up, report.pair.notes)) != shown:
                        shown = state
                        message |= notice(number, "note", *remarks, *describe_pair(report.pair, params))
                    yield json.dumps(message)
        except Exception as error:
            if session.number == number:
                session.waiting = False
                yield json.dumps(self.whole(session) | wrong(number, error))

    def open_link(self, session: PageSession, query: str) -> tuple:
        """What the page's address says, in the controls; what is wrong with it, on the stage.

        The other controls are skipped, since the visitor may have changed them meanwhile.
        """
        skipped = gr.skip()
        try:
            link = links.read(query, self.models.arguments)
        except ValueError as error:
            return json.dumps(wrong(session.number, error)), skipped, *(skipped for _ in NAMES)
        session.runs_link, session.note = link.runs, link.note
        said = json.dumps(notice(session.number, "note", link.note)) if link.note else skipped
        prompt = skipped if link.prompt is None else link.prompt
        return said, prompt, *(link.values.get(name, skipped) for name in NAMES)

    async def run_link(self, session: PageSession, *asked: Any) -> AsyncIterator[Any]:
        """The run that the address asks for, if it does."""
        if not session.runs_link:
            yield gr.skip()
            return
        session.runs_link = False
        async with aclosing(self.run_on_stage(session, *asked)) as texts:
            async for text in texts:
                yield text

    async def measure_on_stage(
        self, event: gr.EventData, session: PageSession, prompt: str, *held: Any
    ) -> AsyncIterator[str]:
        """What an instrument asks for: JSON texts for the stage's panels."""

        def message(measurement: Measurement) -> str:
            return json.dumps({"run": session.number, "measurement": measurement})

        latest = nothing_yet(event._data)
        try:
            values = dict(zip(NAMES, held, strict=True))
            params = params_of(values)
            if params.seed is None and session.feed:  # that of the run which it is compared with
                params = replace(params, seed=session.feed.trace.params.seed)
            request = request_of(event._data, Choice(**choice_of(values)), prompt, params)
        except Exception as error:  # what is being measured goes on
            yield message(failed(latest, error))
            return
        own = session.measuring = object()  # it ends the one before
        session.measurement = latest
        try:
            async with aclosing(measure(self.models, self.queue, request)) as measurements:
                async for latest in measurements:
                    if session.measuring is not own:  # stopped, or another one has begun
                        return
                    session.measurement = latest
                    yield message(latest)
            # Once more, since a message that another follows at once may never be seen.
            await asyncio.sleep(REPORT_PERIOD)
            if session.measuring is own:
                yield message(latest)
        except Exception as error:
            if session.measuring is own:
                yield message(failed(latest, error))
        finally:
            if session.measuring is own:
                session.measuring = session.measurement = None

    def choose_gamma(self, event: gr.EventData, draft_with: str) -> tuple:
        """The drafting method and the draft length chosen in the gamma panel; 0 is plain decoding."""
        gamma = event._data.get("gamma") if isinstance(event._data, dict) else None
        if type(gamma) is int and gamma == 0:
            return "none", gr.update()
        try:
            gamma = check_number("gamma", gamma)
        except ValueError as error:
            raise gr.Error(in_labels(str(error)), print_exception=False) from None
        return "model" if draft_with == "none" else draft_with, gamma

    def stop(self, session: PageSession) -> str:
        """Ends the run or the replay, and the measurement, and shows all of it. Gradio cancels the events
        that wait or run."""
        message: Message = {"run": session.number}
        if session.measurement:
            stopped = {"state": "stopped", "text": "Stopped.", "share": None}
            message["measurement"] = session.measurement | stopped
            session.measuring = session.measurement = None
            if not (session.waiting or (session.run and session.run.trace.finish is None)):
                return json.dumps(message)
        if session.run:
            session.end_run()
            return json.dumps(message | self.whole(session))
        waiting = session.waiting
        session.begin()
        stopped = notice(session.number, "note", "Stopped before the run began.") if waiting else {}
        return json.dumps(message | self.whole(session) | stopped)

    def save_trace(self, session: PageSession) -> str:
        """The trace of what the stage shows, for the page to offer as a file."""
        return json.dumps(trace_file(session.number, (session.feed or self.recorded).trace))

    def open_trace(self, session: PageSession, file: str) -> tuple:
        """Shows a trace file on the stage, without models, and its settings in the controls."""
        skipped = gr.skip()
        try:
            trace = Trace.load(file)
        except ValueError as error:
            said = json.dumps(notice(session.number, "error", about_file(str(error))))
            return said, skipped, *(skipped for _ in NAMES)
        finally:
            Path(file).unlink(missing_ok=True)  # the visitor has it
        known = trace.pair.name in self.models.arguments
        usual = self.models.loaded(Choice(trace.pair.name)) if known else None
        values = values_of(trace.params)
        if known:
            values |= {"pair": trace.pair.name} | weights_of(trace.pair, usual and usual.info)
        if session.run:
            session.run.close()
        session.begin()
        session.feed = RunFeed(session.number, trace, usual and usual.tokenizer, recorded=True)
        message = self.whole(session) | notice(session.number, "recorded", describe_recorded(trace))
        return json.dumps(message), trace.prompt, *(values.get(name, skipped) for name in NAMES)


def wrong(number: int, error: Exception) -> Message:
    return notice(number, "error", _words_of(error))


def failed(latest: Measurement, error: Exception) -> Measurement:
    return latest | {"state": "failed", "text": _words_of(error), "share": None}


def _words_of(error: Exception) -> str:
    return in_labels(sentence(error))
