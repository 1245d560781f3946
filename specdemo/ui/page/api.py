"""The API on Gradio: `generate` and `pairs`, the same as tools, and who calls. Every private name of Gradio
that is used at all is used here. PRIVATE says what each stands in for."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import fields
from inspect import Parameter, Signature
from itertools import groupby
from typing import Any
from uuid import uuid4

import gradio as gr
from gradio.context import LocalContext
from starlette.requests import Request

from specdemo.events import PARAMETERS, Params, Round, is_tree
from specdemo.events.params import as_text, described
from specdemo.events.trace import Trace, rounds_json
from specdemo.events.verdict import verdict
from specdemo.ui.front.calls import Endpoint
from specdemo.ui.runs.limits import Limits, Visitor, request_address
from specdemo.ui.runs.models import Choice, Models
from specdemo.ui.runs.queue import RunQueue
from specdemo.ui.runs.run import RunProgress, Waiting, follow, is_for_visitor, message_about
from specdemo.ui.view.settings import in_words, judging_in_words
from specdemo.ui.view.texts import drafting_in_words
from specdemo.words.catalogue import speaking

_LOG = logging.getLogger(__name__)
# The keys are private names, as paths from Gradio's objects.
PRIVATE = {
    "Blocks._queue.start": "leaving out the queue, whose tasks look a thousand times a second for events",
    "Blocks.mcp_server_obj": "choosing which functions are tools",
    "LocalContext.request": "telling ZeroGPU's package who asks by a route that is not Gradio's",
}
# Private options of launch(). Without `_frontend`, Gradio waits for its own page, and gives up after 3 s.
PRIVATE_OPTIONS: dict[str, Any] = {"_frontend": False}
ENDPOINTS = {"generate": "generate_in_words", "pairs": "pairs_in_words"}  # of each tool, in Gradio
SHOWN_ROUNDS = 200
ARGUMENTS = {
    "prompt": "the text to continue; or token ids, or messages with role and content for the chat template",
    "pair": "a name that the tool pairs lists",
} | {
    name: described(name) + (f"; null is {row.none_is}" if row.none_is else "")
    for name, row in PARAMETERS.items()
}
ARGUMENTS["alternatives"] += "; this answer does not show them"
GENERATE = """Continues a prompt by speculative decoding. Answers with the text, with how well it went \
(acceptance rate, tokens a round, speed-up over the target alone or why there is none), and with the fate of \
every drafted token, a line a round.

Args:
"""
GENERATE += "\n".join(f"    {name}: {about}" for name, about in ARGUMENTS.items())
PAIRS = "Lists the pairs of models that the tool generate takes, with what each is; the first is the default."


@speaking("en")
def trace_in_words(trace: Trace) -> str:
    stats, params = trace.stats, trace.params
    rejected = "the server does not tell how many were" if stats.rejected is None else f"{stats.rejected:,}"
    unknown = "not known" if stats.rejected is None else "none judged"
    rate = unknown if stats.acceptance_rate is None else f"{stats.acceptance_rate:.0%}"
    per_round = stats.mean_tokens_per_round or 0
    numbers = (
        f"acceptance rate: {rate} ({stats.accepted:,} accepted, {rejected} rejected)",
        f"tokens a round: {per_round:.2f} ({stats.tokens:,} tokens, {stats.rounds:,} rounds)",
        f"speed: {verdict(trace, trace.finish).text}",
        f"pair {trace.pair.name}, {_drafting(trace)}, "
        f"{''.join(f'{words}, ' for words in judging_in_words(params))}"
        f"temperature {params.temperature:g}, seed {params.seed}; ended by: {trace.finish}",
    )
    shown = trace.rounds[:SHOWN_ROUNDS]
    lines = [f"{one.index + 1}{_length(one, params)}: {' '.join(_parts(one))}" for one in shown]
    if (left := len(trace.rounds) - SHOWN_ROUNDS) > 0:
        lines.append(f"and {left:,} more rounds")
    sections = (("Text", (trace.text,)), ("Numbers", numbers), ("Rounds", lines))
    return "\n\n".join(f"{title}:\n" + "\n".join(body) for title, body in sections)


def _drafting(trace: Trace) -> str:
    if trace.pair.server is not None:
        return f"{drafting_in_words(trace.pair.server)} (p, q, u and rejected tokens are not told)"
    has_trees = any(is_tree(one.draft) for one in trace.rounds)
    tree = as_text(trace.params.tree) if has_trees else ""
    how = f"tree {tree}" if tree else f"gamma {trace.params.gamma}"
    return f"drafting with {trace.params.draft_with}, {how}"


def _length(a_round: Round, params: Params) -> str:
    """How long the draft could be and what ended it, where the settings let that change."""
    can_change = params.draft_with != "none" and (params.gamma == "auto" or params.confidence)
    if a_round.gamma is None or not can_change:
        return ""
    return f" (gamma {a_round.gamma}, draft ended by {a_round.ended_by})"


def _parts(a_round: Round) -> list[str]:
    """Such as [accepted: there] [rejected: lived -> resampled: was] [discarded: a]."""
    kept, dropped = [], []
    added = f"{a_round.next.source}: {_shown(a_round.next.text)}" if a_round.next else None
    between = " | " if is_tree(a_round.draft) else ""  # its discarded tokens stand between the others
    draft = sorted(a_round.draft, key=lambda token: bool(between) and token.fate == "discarded")
    for fate, tokens in groupby(draft, key=lambda token: token.fate):
        part = f"{fate}: {_shown(between.join('?' if token.id is None else token.text for token in tokens))}"
        if fate == "rejected" and added:
            part, added = f"{part} -> {added}", None
        (dropped if fate == "discarded" else kept).append(f"[{part}]")
    return [*kept, *([f"[{added}]"] if added else []), *dropped]


def _shown(text: str) -> str:
    return text.strip(" ").replace("\\", "\\\\").replace("\n", "\\n")


def in_a_sentence(error: Exception) -> str:
    """What a program is told of an error. What is no visitor's mistake is logged."""
    if not is_for_visitor(error):
        _LOG.error("What a program asked for has failed.", exc_info=error)
    return str(message_about(error))


def note_visitor(request: Request) -> None:
    """Notes in this context who asks, as Gradio does for its events: ZeroGPU's package finds there whose
    quota counts. The headers alone, since the context is kept as long as what is asked for."""
    LocalContext.request.set(gr.Request(Request({"type": "http", "headers": request.scope["headers"]})))


def choose_tools(demo: gr.Blocks) -> None:
    """Leaves the two tools of Gradio's MCP server, whose functions are ENDPOINTS."""
    served = demo.mcp_server_obj
    if served is None:  # the package mcp is not installed
        return
    served.tool_to_endpoint = {served.tool_prefix + tool: f"/{name}" for tool, name in ENDPOINTS.items()}
    for function in demo.fns.values():
        if function.api_name in ENDPOINTS.values():
            function.api_visibility = "private"  # the tools' server knows them by now, and nobody else is to
    demo.config = demo.get_config_file()


def leave_out_queue(demo: gr.Blocks) -> None:
    """Nothing goes through Gradio's queue: front/calls.py answers the calls of the API."""
    demo._queue.start = lambda: None  # type: ignore[method-assign]


def add_api(models: Models, queue: RunQueue, limits: Limits) -> dict[str, Endpoint]:
    """Adds the API and the tools to the Blocks in whose context this is called. Returns what answers the
    calls of the API, by name."""

    async def reports(
        visitor: Visitor, prompt: str, pair: str, *values: Any
    ) -> AsyncIterator[Waiting | RunProgress]:
        """What happens until the run is complete: a program does not wait for its speed-up to settle. What
        goes wrong is told in a sentence; Gradio's own errors would show it in quotes."""
        try:
            params = Params(**dict(zip(PARAMETERS, values, strict=True)))
            limits.check(prompt, params)
            ticket = queue.join(visitor, "run")
            async with aclosing(follow(models, ticket, Choice(pair), prompt, params)) as following:
                async for report in following:
                    yield report
                    if _is_complete(report):
                        return
        except Exception as error:
            raise ValueError(in_a_sentence(error)) from None

    async def generate(visitor: Visitor, *asked: Any) -> AsyncIterator[str]:
        """Continues a prompt, streaming {"text": so far, "rounds": the new ones}; the last one has the
        "trace", too, and a "note" if the server has ended the run early. While the run has to wait, the text
        and the rounds are empty, and "waiting" says for what: the pair, or the place in line."""
        since = 0
        async with aclosing(reports(visitor, *asked)) as following:
            async for report in following:
                if isinstance(report, Waiting):
                    yield json.dumps({"text": "", "rounds": [], "waiting": in_words(report.what)})
                    continue
                trace = report.run.trace
                rounds = await asyncio.to_thread(rounds_json, trace.rounds[since : report.until])
                news = {"text": json.dumps(trace.text), "rounds": rounds}
                if report.note:
                    news["note"] = json.dumps(str(report.note))
                if _is_complete(report):
                    news["trace"] = await asyncio.to_thread(trace.to_json)
                yield "{" + ", ".join(f'"{name}": {part}' for name, part in news.items()) + "}"
                since = report.until

    async def generate_in_words(request: gr.Request, *asked: Any) -> str:
        caller = Visitor(uuid4().hex, request_address(request.scope, limits))  # it has no session
        async with aclosing(reports(caller, *asked)) as following:
            last = [report async for report in following][-1]
        return await asyncio.to_thread(trace_in_words, last.run.trace)

    def pairs() -> list[dict]:
        """The pairs that `generate` takes; the first is the default."""
        return models.listed()

    async def pairs_as_json(visitor: Visitor) -> str:
        return json.dumps(await asyncio.to_thread(pairs))

    def pairs_in_words() -> str:
        line = "{name}: target {target}, drafter {drafter}; {about}"
        return "\n".join(line.format_map(pair) for pair in models.listed())

    generate_in_words.__doc__, pairs_in_words.__doc__ = GENERATE, PAIRS
    arguments = _arguments(models.default)
    _set_signature(generate, arguments, AsyncIterator[dict])
    # Gradio fills it in, and documents the others.
    request = Parameter("request", Parameter.POSITIONAL_OR_KEYWORD, annotation=gr.Request)
    _set_signature(generate_in_words, [request, *arguments], str)

    gr.api(generate, api_name="generate")
    gr.api(pairs, api_name="pairs")
    # Gradio's queue is never started.
    gr.api(generate_in_words, api_name=ENDPOINTS["generate"], queue=False)
    gr.api(pairs_in_words, api_name=ENDPOINTS["pairs"], queue=False)
    return {"generate": Endpoint(generate, arguments), "pairs": Endpoint(pairs_as_json)}


def _is_complete(report: Waiting | RunProgress) -> bool:
    return isinstance(report, RunProgress) and (report.is_timed or report.ended)


def _arguments(default: str) -> list[Parameter]:
    """The arguments that the API documents: prompt, pair, and the fields of Params with their defaults."""
    documented: dict[str, tuple[Any, Any]] = {
        "prompt": (str | list[int] | list[dict[str, str]], Parameter.empty),
        "pair": (str, default),
    }
    for field in fields(Params):
        value = [] if field.default == () else field.default
        documented[field.name] = PARAMETERS[field.name].codec.in_json or field.type, value
    return [
        Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=value, annotation=kind)
        for name, (kind, value) in documented.items()
    ]


def _set_signature(function: Callable, arguments: Sequence[Parameter], returned: Any) -> None:
    function.__signature__ = Signature(arguments, return_annotation=returned)
    function.__annotations__ = {one.name: one.annotation for one in arguments} | {"return": returned}
