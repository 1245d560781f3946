"""The API on Gradio: `generate` and `pairs`, the same as tools, and who calls."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import fields
from inspect import Parameter, Signature
from typing import Any
from uuid import uuid4

import gradio as gr
from gradio.context import LocalContext

from specdemo.events import Params
from specdemo.events.trace import rounds_json
from specdemo.ui.fragments import fragment
from specdemo.ui.limits import Limits
from specdemo.ui.line import RunQueue
from specdemo.ui.models import Choice, Models
from specdemo.ui.queue import Progress, Waiting, follow, is_told, sentence
from specdemo.ui.tools import ENDPOINTS, GENERATE, PAIRS, in_words, listed_in_words
from specdemo.ui.visitor import Visitor, address_of

PARAMS = [field.name for field in fields(Params)]


def add_api(models: Models, queue: RunQueue, limits: Limits) -> None:
    """Adds the endpoints to the Blocks in whose context this is called."""

    async def reports(prompt: str, pair: str, *values: Any) -> AsyncIterator[Waiting | Progress]:
        params = Params(**dict(zip(PARAMS, values, strict=True)))
        limits.check(prompt, params)
        ticket = queue.join(visitor_now(limits), "run")
        async with aclosing(follow(models, ticket, Choice(pair), prompt, params)) as following:
            async for report in following:
                yield report

    async def generate(*asked: Any) -> AsyncIterator[dict]:
        """Continues a prompt, streaming {"text": so far, "rounds": the new ones}; the last one has the
        "trace", too, and a "note" if the server has ended the run early. While the run has to wait, the text
        and the rounds are empty, and "waiting" says for what: the pair, or the place in line."""
        since = 0
        try:
            async with aclosing(reports(*asked)) as following:
                async for report in following:
                    if isinstance(report, Waiting):
                        yield {"text": "", "rounds": [], "waiting": report.sentence}
                        continue
                    trace = report.run.trace
                    rounds = await asyncio.to_thread(rounds_json, trace.rounds[since : report.until])
                    news = {"text": trace.text, "rounds": fragment(rounds)}
                    if report.note:
                        news["note"] = report.note
                    if report.ended:
                        news["trace"] = fragment(await asyncio.to_thread(trace.to_json))
                    yield news
                    since = report.until
        except Exception as error:
            raise gr.Error(sentence(error), print_exception=not is_told(error)) from None

    async def generate_in_words(*asked: Any) -> str:
        try:
            async with aclosing(reports(*asked)) as following:
                async for report in following:
                    last = report
        except Exception as error:  # Gradio's own errors show their message in quotes
            raise ValueError(sentence(error)) from None
        return await asyncio.to_thread(in_words, last.run.trace)

    def pairs() -> list[dict]:
        """The pairs that `generate` takes; the first is the default."""
        return models.listed()

    def pairs_in_words() -> str:
        return listed_in_words(models.listed())

    generate_in_words.__doc__, pairs_in_words.__doc__ = GENERATE, PAIRS
    for function in (generate, generate_in_words):
        _set_signature(function, models.default)

    gr.api(generate, api_name="generate", concurrency_limit=None)
    gr.api(pairs, api_name="pairs")
    # In Gradio's queue all tools' calls would be one session's.
    gr.api(generate_in_words, api_name=ENDPOINTS["generate"], queue=False)
    gr.api(pairs_in_words, api_name=ENDPOINTS["pairs"], queue=False)


def _set_signature(generate: Callable, default: str) -> None:
    """Sets the arguments that the API documents: prompt, pair, and the fields of Params with their
    defaults."""
    arguments = [("prompt", str, Parameter.empty), ("pair", str, default)]
    for field in fields(Params):
        is_stop = field.name == "stop"  # a list in JSON
        arguments.append((field.name, list[str] if is_stop else field.type, [] if is_stop else field.default))
    parameters = [
        Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=value, annotation=kind)
        for name, kind, value in arguments
    ]
    returned = generate.__annotations__["return"]
    generate.__annotations__ = {name: kind for name, kind, _ in arguments} | {"return": returned}
    generate.__signature__ = Signature(parameters, return_annotation=returned)


def visitor_now(limits: Limits) -> Visitor:
    """Who has asked for what this function is called in, as Gradio knows it."""
    request, blocks, own = (
        variable.get() for variable in (LocalContext.request, LocalContext.blocks, LocalContext.event_id)
    )
    assert request is not None and blocks is not None, "every run is asked for through Gradio"
    client = request.client.host if request.client else ""
    address = address_of(client, request.headers, limits.behind_proxy)
    if own is None:  # one of the tools, whose callers have no session and do not go through Gradio's queue
        return Visitor(uuid4().hex, address)
    events = blocks._queue.event_ids_to_events

    def listens() -> bool:
        event = events.get(own)
        return event is not None and event.alive

    return Visitor(request.session_hash, address, listens)
