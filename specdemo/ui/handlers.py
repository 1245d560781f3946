"""What the server does for one open page: its runs, links, measurements and trace files.

Each handler takes the page's session and what its controls hold, and returns JSON texts for the stage, which
shows errors, too.
"""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import gradio as gr

from specdemo.events import check_number
from specdemo.loading.prompt import check_prompt
from specdemo.ui import links
from specdemo.ui.api import visitor_now
from specdemo.ui.desk import Desk
from specdemo.ui.feed import RunFeed, notice, trace_file
from specdemo.ui.instruments import measure, nothing_yet, request_of
from specdemo.ui.limits import Limits
from specdemo.ui.line import RunQueue
from specdemo.ui.models import Choice, Models
from specdemo.ui.page_session import Kept, PageSession
from specdemo.ui.queue import REPORT_PERIOD, Waiting, follow, sentence, warming_up
from specdemo.ui.settings import (
    choice_of,
    in_labels,
    names_of,
    params_of,
    values_held,
    values_of,
    weights_of,
)
from specdemo.ui.shelf import GONE, packed, update_text
from specdemo.ui.texts import describe_pair, describe_recorded
from specdemo.ui.wire import Measurement, Message


class Handlers:
    """models, queue, limits: of the server. recorded: what every stage shows at first. desk: takes the traces
    that are opened; large texts lie on its shelf."""

    def __init__(
        self, models: Models, queue: RunQueue, recorded: RunFeed, desk: Desk, limits: Limits
    ) -> None:
        self.models, self.queue, self.recorded, self.limits = models, queue, recorded, limits
        self.names = names_of(limits.hosted)
        self.desk, self.shelf = desk, desk.shelf

    def whole(self, session: PageSession) -> Message:
        """All that the stage shows, as one message with the page's latest number; an error if it was a run of
        a session that has been dropped."""
        if session.kept:
            return {"run": session.number, "stored": session.kept.update}
        if not session.knows_stage:
            return notice(session.number, "error", GONE)
        return (session.feed or self.recorded).snapshot(session.number)

    def whole_text(self, session: PageSession) -> str:
        return self._text_of(session, self.whole(session))

    def _text_of(self, session: PageSession, message: Message) -> str:
        return self.shelf.text_of(message, session.address)

    def keep(self, session: PageSession, feed: RunFeed) -> None:
        """Puts the session's run on the shelf when it has ended; its rounds take much more memory."""
        feed.ended = True
        update, file = packed(update_text(feed.snapshot()["update"])), packed(feed.trace.to_json())
        if session.feed is not feed:  # it shows something newer by now
            return
        names = (self.shelf.put(text, session.address) for text in (update, file))
        session.kept = Kept(*names, feed.trace.params, own=True)
        session.feed = session.run = None

    def settle(self, session: PageSession) -> None:
        """Something new is on the stage, and nobody can ask for what was there before."""
        before, session.before = session.before, None
        self._drop(before)

    def forget(self, session: PageSession) -> None:
        """When nobody can ask for what the stage showed any more."""
        self._drop(session.before)
        self._drop(session.kept)

    def _drop(self, kept: Kept | None) -> None:
        if kept and kept.own:
            self.shelf.drop(kept.update, kept.file)

    def leave(self, session: PageSession, feed: RunFeed) -> None:
        """The page no longer follows its run, which has ended or is to end."""
        run = session.run
        if run and session.feed is feed:
            run.close()
            self.keep(session, feed)

    async def run_on_stage(self, session: PageSession, prompt: str, *held: Any) -> AsyncIterator[str]:
        """The page's own run."""
        try:
            values = values_held(held, self.limits.hosted)
            params, choice = params_of(values), Choice(**choice_of(values))
            check_prompt(prompt)
            self.limits.check(prompt, params)
            visitor = visitor_now(self.limits)
            ticket = self.queue.join(visitor, "run", replaces=True)
        except Exception as error:  # what is on the stage stays there, and goes on
            yield json.dumps(wrong(session.number, error))
            return
        number, feed, shown = session.begin(), None, None
        session.address = visitor.address
        remarks, session.note = [session.note] if session.note else [], ""
        session.waiting = True
        try:
            async with aclosing(follow(self.models, ticket, choice, prompt, params)) as reports:
                async for report in reports:
                    if session.number != number:  # the stage shows something newer by now
                        return
                    if isinstance(report, Waiting):
                        yield json.dumps(notice(number, "wait", report.sentence, share=report.share))
                        continue
                    if feed is None:
                        self.settle(session)
                        trace = report.run.trace
                        name = "" if choice.vllm else trace.pair.name  # an address must not name servers
                        link = name and links.write(prompt, name, choice_of(values), trace.params)
                        tokenizer = getattr(report.pair, "tokenizer", None)  # a server has none
                        feed = session.feed = RunFeed(number, trace, tokenizer, link=link)
                        session.run, session.waiting = report.run, False
                    message = await asyncio.to_thread(feed.update, report.ended)
                    if (state := (warming_up(report.pair), report.pair.notes)) != shown:
                        shown = state
                        message |= notice(number, "note", *remarks, *describe_pair(report.pair, params))
                    if report.note:
                        message |= notice(number, "note", report.note)
                    if report.ended:
                        await asyncio.to_thread(self.keep, session, feed)
                    yield await asyncio.to_thread(self._text_of, session, message)
        except Exception as error:
            if session.number == number:
                session.waiting = False
                if feed is None:
                    session.restore()
                yield self._text_of(session, self.whole(session) | wrong(number, error))
        finally:
            if feed and session.feed is feed:  # the page has left, or the run has failed
                threading.Thread(target=self.leave, args=(session, feed), daemon=True).start()

    def open_link(self, session: PageSession, query: str) -> tuple:
        """What the page's address says, in the controls; what is wrong with it, on the stage.

        The other controls are skipped, since the visitor may have changed them meanwhile.
        """
        session.knows_stage, skipped = True, gr.skip()
        try:
            link = links.read(query, self.models.names, self.limits)
        except ValueError as error:
            return json.dumps(wrong(session.number, error)), skipped, *(skipped for _ in self.names)
        session.runs_link, session.note = link.runs, link.note
        said = json.dumps(notice(session.number, "note", link.note)) if link.note else skipped
        prompt = skipped if link.prompt is None else link.prompt
        return said, prompt, *(link.values.get(name, skipped) for name in self.names)

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
            values = values_held(held, self.limits.hosted)
            params = params_of(values)
            shown = session.kept or (session.feed and session.feed.trace)
            if params.seed is None and shown:  # that of the run which it is compared with
                params = replace(params, seed=shown.params.seed)
            request = request_of(event._data, Choice(**choice_of(values)), prompt, params)
            self.limits.check(prompt, params)
            ticket = self.queue.join(visitor_now(self.limits), "measurement", replaces=True)
        except Exception as error:  # what is being measured goes on
            yield message(failed(latest, error))
            return
        own = session.measuring = object()  # it ends the one before
        session.measurement = latest
        try:
            async with aclosing(measure(self.models, ticket, request)) as measurements:
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
        """The drafting method and the draft length chosen in the gamma panel, which is then no longer chosen
        round by round; 0 is plain decoding."""
        gamma = event._data.get("gamma") if isinstance(event._data, dict) else None
        if type(gamma) is int and gamma == 0:
            return "none", gr.update(), gr.update()
        try:
            gamma = check_number("gamma", gamma)
        except ValueError as error:
            raise gr.Error(in_labels(str(error)), print_exception=False) from None
        return "model" if draft_with == "none" else draft_with, gamma, False

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
        if session.run and session.feed:
            self.leave(session, session.feed)
            return self._text_of(session, message | self.whole(session))
        if not session.waiting:  # nothing goes on
            return self._text_of(session, message | self.whole(session))
        number = session.begin()
        session.restore()
        stopped = notice(number, "note", "Stopped before the run began.")
        return self._text_of(session, message | self.whole(session) | stopped)

    def save_trace(self, session: PageSession) -> str:
        """The trace of what the stage shows, for the page to offer as a file."""
        if kept := session.kept:
            return json.dumps(trace_file(session.number, kept.params, kept.file))
        if not session.knows_stage:
            return json.dumps(notice(session.number, "error", GONE))
        trace = (session.feed or self.recorded).trace
        stored = self.shelf.put(packed(trace.to_json()), session.address)
        return json.dumps(trace_file(session.number, trace.params, stored))

    def open_trace(self, event: gr.EventData, session: PageSession) -> tuple:
        """Shows a trace that the page has sent to the desk, without models, and its settings in the
        controls."""
        skipped = gr.skip()
        name = event._data.get("name") if isinstance(event._data, dict) else None
        opened = self.desk.opened(name) if isinstance(name, str) else None
        if opened is None:
            return json.dumps(notice(session.number, "error", GONE)), skipped, *(skipped for _ in self.names)
        trace = opened.head
        known = trace.pair.name in self.models.names
        usual = self.models.loaded(Choice(trace.pair.name)) if known else None
        values = values_of(trace.params)
        if known:
            values |= {"pair": trace.pair.name, "vllm": ""} | weights_of(trace.pair, usual and usual.info)
        if session.run:
            session.run.close()
        number = session.begin()
        self.settle(session)
        session.kept = Kept(opened.update, opened.file, trace.params, own=False)
        message = self.whole(session) | notice(number, "recorded", describe_recorded(trace))
        return json.dumps(message), trace.prompt, *(values.get(name, skipped) for name in self.names)


def wrong(number: int, error: Exception) -> Message:
    return notice(number, "error", _words_of(error))


def failed(latest: Measurement, error: Exception) -> Measurement:
    return latest | {"state": "failed", "text": _words_of(error), "share": None}


def _words_of(error: Exception) -> str:
    return in_labels(sentence(error))
