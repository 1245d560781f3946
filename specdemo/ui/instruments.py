"""What the page measures on request: a race, draft lengths, drafters. Without Gradio.

All three are comparisons (bench/compare.py) of settings on prompts. A measurement waits in the same line as
any run, and what is measured before it is stopped stays.
"""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from dataclasses import dataclass, replace
from random import SystemRandom
from typing import Any, Literal

from specdemo.bench.compare import (
    Comparison,
    Setting,
    compare,
    has_head,
    others_at_hand,
    result_of,
    settings_for,
)
from specdemo.bench.methods import METHODS
from specdemo.bench.prompts import prompts_for
from specdemo.errors import PairError
from specdemo.events import DRAFT_WITH, Params
from specdemo.loading.pair import AnyPair, Pair
from specdemo.loading.prompt import check_prompt
from specdemo.ui import wire
from specdemo.ui.findings import comparison_of, gamma_point, length_of, race_of
from specdemo.ui.line import Ticket, fulfil
from specdemo.ui.models import Choice, Models
from specdemo.ui.numbers import later_number
from specdemo.ui.queue import awaitable, turn_with
from specdemo.ui.settings import judging_in_words, sampler_in_words
from specdemo.vllm.pair import ServedPair

Kind = Literal["race", "gamma", "compare"]
KINDS: tuple[Kind, ...] = ("race", "gamma", "compare")
ALONE = METHODS["none"]
GAMMAS = (1, 2, 3, 4, 6, 8, 12, 16)  # besides that of the run
REPEATS = 5  # of each setting on one prompt
SET_SIZE = 5  # prompts in a set
SERVERS_LENGTH = "A server drafts as it was started, so other draft lengths cannot be measured on it"
SHOWN = 40  # characters of a prompt, to tell it from others
PERIOD = 0.3  # s between two looks at a measurement


@dataclass(frozen=True)
class Request:
    """What a visitor wants to be measured. prompts: for a comparison, "this" prompt or a "set"."""

    kind: Kind
    prompts: Literal["this", "set"]
    choice: Choice
    prompt: str
    params: Params


@dataclass(frozen=True)
class Plan:
    """What is compared. whose: the same in words."""

    settings: list[Setting]
    prompts: Sequence[str]
    repeats: int
    whose: str


def request_of(wanted: object, choice: Choice, prompt: str, params: Params) -> Request:
    """wanted: what the page's script asks for. ValueError: one sentence."""
    asked = wanted if isinstance(wanted, dict) else {}
    kind, prompts = asked.get("kind"), asked.get("prompts", "this")
    if kind not in KINDS or prompts not in ("this", "set"):
        raise ValueError(f"a measurement must be one of {', '.join(KINDS)}, not {ascii(wanted)[:60]}")
    if prompts == "this":
        check_prompt(prompt)
    if kind != "compare" and params.draft_with == "none":
        raise ValueError("Drafting method is none, so there is nothing to measure: choose a drafter first")
    if params.seed is None:
        params = replace(params, seed=SystemRandom().randrange(2**32))
    return Request(kind, prompts, choice, prompt, params)


def nothing_yet(wanted: object) -> wire.Measurement:
    """A measurement of which nothing is known yet. wanted: as request_of takes it."""
    kind = wanted.get("kind") if isinstance(wanted, dict) else None
    kind = kind if kind in KINDS else "compare"
    return {
        "id": later_number(),
        "kind": kind,
        "state": "waiting",
        "whose": "",
        "text": "",
        "share": None,
    }


async def measure(models: Models, ticket: Ticket, request: Request) -> AsyncIterator[wire.Measurement]:
    """Measures when the ticket's turn comes. Yields all that is measured so far, whenever there is more.
    Errors are raised. Closing or cancelling this generator stops the measurement."""
    told = nothing_yet({"kind": request.kind})
    started: Future[Plan] = Future()
    latest: deque[Comparison] = deque(maxlen=1)

    def work(*pairs: AnyPair) -> None:
        own = [pair for pair in pairs if isinstance(pair, Pair)]
        served = [pair for pair in pairs if isinstance(pair, ServedPair)]
        plan = plan_of_servers(request, served) if served else PLANS[request.kind](request, own)
        started.set_result(plan)
        for so_far in compare(plan.settings, plan.prompts, plan.repeats, lambda: ticket.is_over):
            latest.append(so_far)
            if ticket.is_over:
                break

    begun, done = awaitable(started), awaitable(ticket.done)
    try:
        choices = [request.choice, *await _others(models, request)]
        async with aclosing(turn_with(models, ticket, choices, work, begun, done)) as before:
            async for waiting in before:
                yield told | {"text": waiting.sentence, "share": waiting.share}
        if done.done():
            done.result()  # raises what went wrong before it began
        plan = begun.result()
        told |= {"whose": plan.whose, "state": "running", "text": "Warming up …", "share": 0.0}
        yield told
        shown = None
        while not done.done():
            if latest and latest[0] is not shown:
                shown = latest[0]
                if shown.rows and shown.measuring:
                    told["text"] = f"Measuring {shown.measuring} …"
                told["share"] = shown.done / shown.total
                told |= found(request, plan, shown)
                yield told
            await asyncio.wait([done], timeout=PERIOD)
        told |= found(request, plan, latest[0]) if latest else {}
        if done.exception():
            yield told  # what came before it failed
        done.result()
        is_cut = ticket.is_late and (not latest or latest[0].done < latest[0].total)
        ending = {"state": "stopped", "text": ticket.ending} if is_cut else {"state": "ended", "text": ""}
        yield told | ending | {"share": None}
    finally:
        ticket.cancel()


async def _others(models: Models, request: Request) -> list[Choice]:
    """What else is measured, besides the choice itself."""
    if models.is_server(request.choice):
        if request.kind == "gamma":
            raise PairError(SERVERS_LENGTH)
        beside: Future[list[Choice]] = Future()  # asking servers takes time
        threading.Thread(target=fulfil, args=(beside, models.beside, request.choice), daemon=True).start()
        return await awaitable(beside)
    if request.kind != "compare":
        return []
    others = [
        replace(request.choice, pair=name) for name in others_at_hand(request.choice.pair or models.default)
    ]
    heads = [has_head(other.pair) for other in others if other.pair]
    return [
        replace(other, quantize_drafter="none") if is_head else other
        for other, is_head in zip(others, heads, strict=True)
    ]


def _race(request: Request, pairs: list[Pair]) -> Plan:
    params = request.params
    drafting = [METHODS[params.draft_with], f"γ {params.gamma}", *judging_in_words(params)]
    settings = [
        Setting(ALONE, pairs[0], replace(params, draft_with="none")),
        Setting(", ".join(drafting), pairs[0], params),
    ]
    return Plan(settings, [request.prompt], 1, f"{_in_words(pairs, request)}, one run each")


def _gammas(request: Request, pairs: list[Pair]) -> Plan:
    params = request.params
    own = () if params.gamma == "auto" else (params.gamma,)
    gammas = sorted({*GAMMAS, *own})
    settings = [Setting(ALONE, pairs[0], replace(params, draft_with="none"))]
    settings += [Setting(f"γ {gamma}", pairs[0], replace(params, gamma=gamma)) for gamma in gammas]
    drafting = METHODS[params.draft_with]
    return Plan(settings, [request.prompt], REPEATS, f"{_in_words(pairs, request)}, {drafting}")


def _drafters(request: Request, pairs: list[Pair]) -> Plan:
    lacking = {"model": pairs[0].drafter is None, "early-exit": pairs[0].largest_exit == 0}
    names = [name for name in DRAFT_WITH if not lacking.get(name)]
    params = request.params
    if params.draft_with != "early-exit":  # its control is hidden, and can hold what another target allows
        params = replace(params, exit_layer=0)
    settings = settings_for(pairs, names, params)
    whose = f"{_in_words(pairs, request)}, γ {request.params.gamma}"
    if request.prompts == "this":
        return Plan(settings, [request.prompt], REPEATS, f"{whose}, {REPEATS} times")
    return Plan(settings, prompts_for(pairs[0], SET_SIZE), 1, whose)


PLANS: dict[Kind, Callable[[Request, list[Pair]], Plan]] = {
    "race": _race,
    "gamma": _gammas,
    "compare": _drafters,
}


def plan_of_servers(request: Request, pairs: list[ServedPair]) -> Plan:
    """pairs: the chosen server, and the others with the same model. PairError says what is lacking."""
    alone, drafting = ([pair for pair in pairs if pair.drafts is drafts] for drafts in (False, True))
    if not alone or not drafting:
        lacks = "drafts" if drafting == [] else "does not draft"
        raise PairError(
            f"Drafting cannot be switched off for a request to vLLM, and no other server here {lacks} and "
            f"serves {pairs[0].server.model}: start one, and give both with --vllm"
        )
    params = request.params
    used = [pairs[0] if pairs[0].drafts else drafting[0]] if request.kind == "race" else drafting
    settings = [Setting(ALONE, alone[0], alone[0].check(params))]
    settings += [Setting(f"drafting ({pair.info.name})", pair, pair.check(params)) for pair in used]
    whose = _in_words(pairs, request)
    if request.kind == "race":
        return Plan(settings, [request.prompt], 1, f"{whose}, one run each")
    if request.prompts == "this":
        return Plan(settings, [request.prompt], REPEATS, f"{whose}, {REPEATS} times")
    return Plan(settings, prompts_for(pairs[0], SET_SIZE), 1, whose)


def _in_words(pairs: Sequence[AnyPair], request: Request) -> str:
    info, params = pairs[0].info, request.params
    where = info.name if info.server else f"{info.name} on {info.device_name}"
    seed = f", seed {params.seed}" if params.temperature else ""
    start = " ".join(request.prompt.split())
    start = start if len(start) <= SHOWN else f"{start[:SHOWN]}…"
    judging = "".join(f"{words}, " for words in judging_in_words(params))
    prompts = f"“{start}”" if request.prompts == "this" else f"a set of {SET_SIZE} prompts"
    return f"{prompts}, {where}, {judging}{sampler_in_words(params)}{seed}"


def found(request: Request, plan: Plan, so_far: Comparison) -> dict[str, Any]:
    """The part of a measurement that has the results."""
    result: dict[str, Any] = {}
    if request.kind == "race" and len(so_far.traces) == 2:
        result["race"] = race_of([so_far.traces[each.name] for each in plan.settings], plan.settings)
    elif request.kind == "gamma" and so_far.rows:
        result["gammas"] = [gamma_point(row) for row in sorted(so_far.rows, key=length_of)]
    elif request.kind == "compare" and so_far.rows:
        rows = result_of(plan.settings, plan.prompts, plan.repeats, so_far.rows)
        result["comparison"] = comparison_of(rows)
    return result
