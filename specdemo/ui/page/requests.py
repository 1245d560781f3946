"""What an open page asks for: a run, a reply, a measurement, what its address says, the settings of a run
that it shows, and what stands beside its controls.

One route takes what the page's script sends: what is asked, and what the controls hold. What it begins is
read by another route (runs/routes.py), under the name in the answer.
"""

import asyncio
import json
import time
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from specdemo.events import LISTED, RULES, ChatMessage, Params, check_prompt
from specdemo.events.trace import Trace
from specdemo.ui.front.checks import NotLetIn, name_in, read_json, short
from specdemo.ui.page import links
from specdemo.ui.page.api import note_visitor
from specdemo.ui.page.hints import hints
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
from specdemo.ui.runs.limits import Limits, Visitor, request_address
from specdemo.ui.runs.models import Choice, Models
from specdemo.ui.runs.queue import Asked, RunQueue, Ticket
from specdemo.ui.runs.routes import RUNS
from specdemo.ui.runs.run import follow, measure
from specdemo.ui.view.feed import nothing_yet, notice
from specdemo.ui.view.settings import (
    FIRST,
    SAMPLERS,
    UNCHOSEN,
    WEIGHT_CHOICES,
    Values,
    choice_of,
    label_of,
    names_of,
    params_from_controls,
    visible,
)
from specdemo.words.catalogue import say, speaking

CHOICES = {"draft_with": LISTED, "sampler": SAMPLERS, "rule": RULES, **WEIGHT_CHOICES}  # and the pairs


class PageRequests:
    """Answers what pages ask for. models, queue, limits: those of the server. board: has what pages
    follow."""

    def __init__(self, models: Models, queue: RunQueue, board: Board, limits: Limits) -> None:
        self.models, self.queue, self.board, self.limits = models, queue, board, limits
        self.names = ("prompt", *names_of(limits.hosted))
        self.halls = Halls(limits)

    def route(self) -> Route:
        return Route(RUNS, self.answer, methods=["POST"])

    async def answer(self, request: Request) -> Response:
        body = await read_json(request)
        visitor = Visitor(name_in(body, "session"), request_address(request.scope, self.limits))
        asked, controls = _object_in(body, "asked"), _object_in(body, "controls")
        values = {name: controls.get(name) for name in self.names}
        for name, value in values.items():
            self._check(name, value)
        note_visitor(request)
        answer = await self.begin(visitor, asked, UNCHOSEN | values)
        return Response(json.dumps(answer), media_type="application/json")

    def _check(self, name: str, value: Any) -> None:
        """Checks that a control can hold the value; whether a run can is for Params to judge."""
        first = FIRST.get(name, "")
        if name in CHOICES or name == "pair":
            choices = tuple(CHOICES.get(name, self.models.names))
            right, what = isinstance(value, str) and value in choices, f"one of {', '.join(choices)}"
        elif isinstance(first, str):
            right, what = isinstance(value, str), "text"
        elif isinstance(first, bool):
            right, what = value is None or isinstance(value, bool), "true or false"
        else:
            is_number = type(value) in (int, float) and abs(value) < 1e300
            right, what = value is None or is_number, "a number"
        if not right:
            with speaking("en"):
                label = say("page.prompt") if name == "prompt" else label_of(name)
            raise NotLetIn(400, f"{label} must be {what}, not {short(value)}.")

    async def begin(self, visitor: Visitor, asked: dict[str, Any], values: Values) -> dict[str, Any]:
        """Begins what is asked for; the answer to it. What is on the stage stays there, and goes on, if it is
        refused."""
        match asked.get("kind"):
            case "run":
                return self._run(visitor, values)
            case "reply":
                return self._reply(visitor, str(asked.get("run")), values)
            case "link":
                return await self._link(visitor, str(asked.get("query", "")), values)
            case "controls":
                shown = self.board.get(str(asked.get("run")))
                return self._filled(shown.kept.values if shown and shown.kept else {})
            case "hints":
                return {"hints": await asyncio.to_thread(self._hints, values)}
        return self._measure(visitor, asked, values)

    def _run(
        self,
        visitor: Visitor,
        values: Values,
        remarks: tuple[str, ...] = (),
        messages: tuple[ChatMessage, ...] = (),
    ) -> dict[str, Any]:
        """Begins a run. messages: those of the conversation that the prompt continues, if any, with its
        system prompt."""
        try:
            prompt, params, choice = values["prompt"], params_from_controls(values), _choice(values)
            check_prompt(prompt)
            asked: str | tuple[ChatMessage, ...] = prompt
            if messages:
                asked = (*messages, ChatMessage("user", prompt))
                params = replace(params, chat=True, system=None)
            self.limits.check(asked, params)

            def link(trace: Trace) -> str:
                return links.write(prompt, trace.pair.name, choice_of(values), trace.params, messages)

            run = FollowedRun(self.limits, params, link, remarks)
            ticket = self._join(visitor, "run", run)
            self.board.begin(run, follow(self.models, ticket, choice, asked, params))
        except Exception as error:
            return wrong(error)
        return {"follow": run.name, "at": time.time_ns()}

    def _reply(self, visitor: Visitor, name: str, values: Values) -> dict[str, Any]:
        """Begins the next turn of the conversation whose run is on the stage: the prompt is what the user
        says next."""
        shown = self.board.get(name)
        said = shown.kept.conversation if shown and shown.kept else None
        if said is None:
            return wrong(ValueError(say("run.no_conversation")))
        return self._run(visitor, values, messages=said)

    def _measure(self, visitor: Visitor, wanted: dict[str, Any], values: Values) -> dict[str, Any]:
        """Begins what an instrument asks for. Where no seed is set, it is that of the run on the stage."""
        try:
            prompt, params, choice = values["prompt"], params_from_controls(values), _choice(values)
            shown = self.board.get(str(wanted.get("run")))
            if params.seed is None and shown:
                params = replace(params, seed=shown.seed)

            def link(pair: str, params: Params) -> str:
                return links.write(prompt, pair, choice_of(values), params, starts="guess")

            asked = measurement_request(wanted, choice, prompt, params, link)
            self.limits.check(prompt, params)
            one = FollowedMeasurement(self.limits, wanted, asked.report)
            ticket = self._join(visitor, "measurement", one)
            reports = measure(self.models, ticket, asked, one.name)
            if isinstance(asked, GuessRequest) and asked.hall:
                reports = self.halls.counted(one.session, asked, reports)
            self.board.begin(one, reports)
        except Exception as error:  # what is being measured goes on
            return {"measurement": failed(nothing_yet(wanted), error)}
        return {"measure": one.name, "at": time.time_ns()}

    def _join(self, visitor: Visitor, asked: Asked, one: Followed) -> Ticket:
        """Gives a place in line to a new run or measurement that a page follows."""
        one.session, one.address = visitor.session, visitor.address
        visitor = replace(visitor, listens=one.is_awaited, is_read=lambda: one.was_read)
        one.was_read = self.board.is_read_by(visitor.session)  # or it would lose the place that it takes over
        self.board.make_room(one.address)
        one.ticket = ticket = self.queue.join(visitor, asked, replaces=True)
        self.board.put(one)
        return ticket

    async def _link(self, visitor: Visitor, query: str, values: Values) -> dict[str, Any]:
        """What the page's address says, for the controls; what is wrong with it; and the run or the game that
        it asks for, if it does. Any web site can have led here, so a pair that is not loaded waits until the
        visitor presses Generate."""
        try:
            link = await asyncio.to_thread(links.read_link, query, self.models.names, self.limits)
        except ValueError as error:
            return wrong(error)
        filled = link.values
        notes = [link.note] if link.note else []
        if link.trace not in ("", RECORDED_RUN):  # every page shows that one at first, beside any controls
            recorded = self.board.get(link.trace)
            filled = recorded.kept.values if recorded and recorded.kept else filled
        values, answer = values | filled, self._filled(filled)
        asks = link.starts and self._not_loaded(values)
        if asks:
            kind = "continues" if link.messages else "guesses" if link.starts == "guess" else "asks"
            notes.append(say(f"run.link_{kind}", name=asks))
        if notes:
            answer["notice"] = notice("note", *notes)
        if link.starts == "guess" and not asks:
            answer |= self._measure(visitor, {"kind": "guess", "hall": link.hall}, values)
        elif link.starts and not asks:
            answer |= self._run(visitor, values, tuple(notes), link.messages)
        return answer

    def _hints(self, values: Values) -> dict[str, dict[str, Any]]:
        """What stands beside each control and the prompt, and which are shown, as Gradio's updates."""
        choice = _choice(values)
        needs, pair = self.models.needs(choice), self.models.loaded(choice)
        texts = hints(values, values["prompt"], needs, pair, self.limits)
        beside = {name: {"info": texts[name] or None} for name in self.names}
        beside["prompt"] = {"value": texts["prompt"], "visible": bool(texts["prompt"])}
        shown = {name: {"visible": one} for name, one in visible(values).items()}
        return {name: {"__type__": "update", **one, **shown.get(name, {})} for name, one in beside.items()}

    def _not_loaded(self, values: Values) -> str:
        """The name of the pair in the controls, if a run would first load it or ask a server what it is;
        empty if not, and for what the server was started with."""
        choice = _choice(values)
        if choice in (Choice(), Choice(self.models.default)) or self.models.loaded(choice):
            return ""
        return values["pair"]

    def _filled(self, values: Values) -> dict[str, Any]:
        """An answer that fills the controls; those stay as they are for which there is no value."""
        filled = {name: values[name] for name in self.names if name in values}
        return {"controls": filled} if filled else {}


def _object_in(body: dict[str, Any], name: str) -> dict[str, Any]:
    if not isinstance(body.get(name), dict):
        raise NotLetIn(400, f"{name} must be an object.")
    return body[name]


def _choice(values: Values) -> Choice:
    return Choice(**choice_of(values))
