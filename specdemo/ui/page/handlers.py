"""What Gradio's events do for an open page: they begin runs and measurements, and fill the controls.

What is begun here is read by a route of its own (runs/routes.py), under the name that the event answers with.
It begins in a Gradio event, whose request has whose quota counts on ZeroGPU.
"""

import json
import time
from dataclasses import replace
from typing import Any

import gradio as gr

from specdemo.errors import PairError
from specdemo.events import ChatMessage, Params, check_prompt
from specdemo.events.params import check_number
from specdemo.events.trace import Trace
from specdemo.ui.front.gradio import event_data, spoken_by, visitor_of
from specdemo.ui.page import links
from specdemo.ui.runs.board import (
    RECORDED_RUN,
    Board,
    Followed,
    FollowedMeasurement,
    FollowedRun,
    failed,
    wrong,
)
from specdemo.ui.runs.guess import GuessRequest, Halls
from specdemo.ui.runs.instruments import measurement_request
from specdemo.ui.runs.limits import Limits
from specdemo.ui.runs.models import Choice, Models
from specdemo.ui.runs.queue import Asked, RunQueue, Ticket
from specdemo.ui.runs.run import follow, measure
from specdemo.ui.view.feed import nothing_yet, notice
from specdemo.ui.view.settings import choice_of, in_words, names_of, params_from_controls, values_held
from specdemo.words.catalogue import say


class Handlers:
    """The handlers of Gradio's events. models, queue, limits: those of the server. board: has what pages
    follow."""

    def __init__(self, models: Models, queue: RunQueue, board: Board, limits: Limits) -> None:
        self.models, self.queue, self.board, self.limits = models, queue, board, limits
        self.halls = Halls(limits)
        self.names = names_of(limits.hosted)

    async def run_on_stage(self, request: gr.Request, prompt: str, *held: Any) -> str:
        with spoken_by(request):
            return self._run(request, (), prompt, *held)

    async def reply_on_stage(self, event: gr.EventData, request: gr.Request, prompt: str, *held: Any) -> str:
        """Begins the next turn of the conversation whose run is on the stage: the prompt is what the user
        says next."""
        name = str(event_data(event).get("run"))
        shown = self.board.get(name)
        said = shown.kept.conversation if isinstance(shown, FollowedRun) and shown.kept else None
        with spoken_by(request):
            if said is None:
                return json.dumps(wrong(ValueError(say("run.no_conversation"))))
            return self._run(request, (), prompt, *held, messages=said, before=(*shown.before, name))

    def _run(
        self,
        request: gr.Request,
        remarks: tuple[str, ...],
        prompt: str,
        *held: Any,
        messages: tuple[ChatMessage, ...] = (),
        before: tuple[str, ...] = (),
    ) -> str:
        """Begins a run. messages: those of the conversation that the prompt continues, if any, with its
        system prompt. before: see FollowedRun."""
        try:
            values = values_held(held, self.limits.hosted)
            params, choice = params_from_controls(values), Choice(**choice_of(values))
            check_prompt(prompt)
            asked: str | tuple[ChatMessage, ...] = prompt
            if messages:
                asked = (*messages, ChatMessage("user", prompt))
                params = replace(params, chat=True, system=None)
            self.limits.check(asked, params)

            def link(trace: Trace) -> str:
                if choice.server:  # an address must not name servers
                    return ""
                return links.write(prompt, trace.pair.name, choice_of(values), trace.params, messages)

            run = FollowedRun(self.limits, params, link, remarks, before)
            ticket = self._join(request, "run", run)
            self.board.begin(run, follow(self.models, ticket, choice, asked, params))
        except Exception as error:  # what is on the stage stays there, and goes on
            return json.dumps(wrong(error))
        return json.dumps({"follow": run.name, "at": time.time_ns()})

    def _join(self, request: gr.Request, asked: Asked, one: Followed) -> Ticket:
        """Gives a place in line to a new run or measurement that a page follows."""
        visitor = visitor_of(request, self.limits)
        one.session, one.address = visitor.session, visitor.address
        visitor = replace(visitor, listens=one.is_awaited, is_read=lambda: one.was_read)
        one.was_read = self.board.is_read_by(visitor.session)  # or it would lose the place that it takes over
        self.board.make_room(one.address)
        one.ticket = ticket = self.queue.join(visitor, asked, replaces=True)
        self.board.put(one)
        return ticket

    def open_link(self, event: gr.EventData, request: gr.Request | None = None) -> tuple:
        """What the page's address says, in the controls; what is wrong with it, on the stage; and the address
        again, if it asks for a run.

        The other controls are skipped, since the visitor may have changed them meanwhile.
        """
        query, skipped = event_data(event).get("query", ""), gr.skip()
        with spoken_by(request):
            try:
                link = links.read_link(query, self.models.names, self.limits)
            except ValueError as error:
                return json.dumps(wrong(error)), "", skipped, *(skipped for _ in self.names)
            prompt = skipped if link.prompt is None else link.prompt
            asks = query if link.runs or link.guesses else ""
            values, notes = link.values, [link.note] if link.note else []
            if link.trace and (recorded := self.board.get(link.trace)) and recorded.kept:
                if link.digest not in recorded.kept.link:
                    notes.append(say("run.link_recorded_again", name=link.trace))
                if link.trace != RECORDED_RUN:  # which every page shows at first, beside any controls
                    values = recorded.kept.values
                    prompt = values["prompt"]
            said = json.dumps({"notice": notice("note", *notes)}) if notes else skipped
            return said, asks, prompt, *(values.get(name, skipped) for name in self.names)

    async def run_link(self, request: gr.Request, query: str, prompt: str, *held: Any) -> Any:
        """The run or the game that the address asks for, if it does. Any web site can have led here, so a
        pair that is not loaded waits until the visitor presses Generate."""
        if not query:
            return gr.skip()
        with spoken_by(request):
            link = links.read_link(query, self.models.names, self.limits)
            remarks = (link.note,) if link.note else ()
            if name := self._not_loaded(*held):
                kind = "continues" if link.messages else "guesses" if link.guesses else "asks"
                asks = say(f"run.link_{kind}", name=name)
                return json.dumps({"notice": notice("note", *remarks, asks)})
            if link.guesses:
                return self._measure(request, {"kind": "guess", "hall": link.hall}, prompt, *held)
            return self._run(request, remarks, prompt, *held, messages=link.messages)

    def _not_loaded(self, *held: Any) -> str:
        """The name of the pair in the controls, if a run would first load it or ask a server what it is;
        empty if not, and for what the server was started with."""
        values = values_held(held, self.limits.hosted)
        choice = Choice(**choice_of(values))
        if choice in (Choice(), Choice(self.models.default)):
            return ""
        try:
            return "" if self.models.loaded(choice) else str(choice.server or choice.pair)
        except PairError:  # its own run says so
            return ""

    async def measure_on_stage(
        self, event: gr.EventData, request: gr.Request, prompt: str, *held: Any
    ) -> str:
        """Begins what an instrument asks for. Where no seed is set, it is that of the run on the stage."""
        with spoken_by(request):
            return self._measure(request, event_data(event), prompt, *held)

    def _measure(self, request: gr.Request, wanted: dict[str, Any], prompt: str, *held: Any) -> str:
        try:
            values = values_held(held, self.limits.hosted)
            params = params_from_controls(values)
            shown = self.board.get(str(wanted.get("run")))
            if params.seed is None and isinstance(shown, FollowedRun):
                params = replace(params, seed=shown.seed)

            def link(pair: str, params: Params) -> str:
                return links.write(prompt, pair, choice_of(values), params, starts="guess")

            asked = measurement_request(wanted, Choice(**choice_of(values)), prompt, params, link)
            self.limits.check(prompt, params)
            one = FollowedMeasurement(self.limits, wanted, asked.report)
            ticket = self._join(request, "measurement", one)
            reports = measure(self.models, ticket, asked, one.name)
            if isinstance(asked, GuessRequest) and asked.hall:
                reports = self.halls.counted(one.session, asked, reports)
            self.board.begin(one, reports)
        except Exception as error:  # what is being measured goes on
            return json.dumps({"measurement": failed(nothing_yet(wanted), error)})
        return json.dumps({"measure": one.name, "at": time.time_ns()})

    def choose_gamma(self, event: gr.EventData, draft_with: str) -> tuple:
        """The drafting method and the draft length chosen in the gamma panel, which is then no longer chosen
        round by round; 0 is plain decoding."""
        gamma = event_data(event).get("gamma")
        if type(gamma) is int and gamma == 0:
            return "none", gr.update(), gr.update()
        try:
            gamma = check_number("gamma", gamma)
        except ValueError as error:
            raise gr.Error(in_words(error), print_exception=False) from None
        return "model" if draft_with == "none" else draft_with, gamma, False

    def fill_controls(self, event: gr.EventData) -> tuple:
        """The prompt and the settings of a trace that has been opened. The stage shows it when they are
        there."""
        name = str(event_data(event).get("run"))
        shown = self.board.get(name)
        values = shown.kept.values if shown and shown.kept else {}
        answer = json.dumps({"name": name, "at": time.time_ns()})
        return answer, *(values.get(each, gr.skip()) for each in ("prompt", *self.names))
