"""Whether the server works, and how its API is called: /health and /openapi.json."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import specdemo
from specdemo.ui.limits import Limits
from specdemo.ui.line import RunQueue

if TYPE_CHECKING:
    from gradio import Blocks


def health_route(runs: RunQueue, is_stopped: Callable[[], bool]) -> Route:
    async def health(request: Request) -> JSONResponse:
        status = "stopped" if is_stopped() or not runs.thread.is_alive() else "ok"
        answer = {"status": status, "busy": runs.busy, "waiting": runs.waiting}
        return JSONResponse(answer, status_code=200 if status == "ok" else 503)

    return Route("/health", health)


def openapi_route(demo: "Blocks", limits: Limits) -> Route:
    endpoints = demo.get_api_info()["named_endpoints"]
    described = document({name: endpoints[name] for name in ("/generate", "/pairs")}, limits)

    async def openapi(request: Request) -> JSONResponse:
        return JSONResponse(described)

    return Route("/openapi.json", openapi)


def document(endpoints: dict[str, Any], limits: Limits) -> dict[str, Any]:
    """endpoints: as Gradio describes them, by their names with a slash."""
    paths: dict[str, Any] = {"/health": {"get": _health()}}
    for name, endpoint in endpoints.items():
        paths[f"/gradio_api/call/v2{name}"] = {"post": _call(name, endpoint, limits)}
        paths[f"/gradio_api/call{name}/{{event_id}}"] = {"get": _answer_of(name, endpoint)}
    paths["/specdemo/trace"] = {"post": _open_trace(limits)}
    return {
        "openapi": "3.1.0",
        "info": {"title": "SpecDemo", "version": specdemo.__version__},
        "paths": paths,
    }


def _health() -> dict[str, Any]:
    state = _object(
        status={"enum": ["ok", "stopped"]},
        busy={"type": "boolean"},
        waiting={"type": "integer", "minimum": 0, "description": "Runs that wait for their turn."},
    )
    return {
        "summary": "Whether the server works",
        "operationId": "health",
        "responses": {"200": _json("It works.", state), "503": _json("It has to be started again.", state)},
    }


def _open_trace(limits: Limits) -> dict[str, Any]:
    name = _object(name={"type": "string", "description": "What the page opens it by."})
    wrong = _object(wrong={"type": "string", "description": "What is wrong with the file."})
    mistakes = {
        "408": "The file took too long to arrive.",
        "413": f"The file is larger than {limits.trace_bytes} bytes.",
        "429": "The server is busy; Retry-After says for about how many seconds.",
    }
    return {
        "summary": "Takes a trace file that is to be opened",
        "operationId": "open_trace",
        "requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}},
        "responses": {"200": _json("It has been read.", {"oneOf": [name, wrong]})}
        | {status: {"description": words} for status, words in mistakes.items()},
    }


def _call(name: str, endpoint: dict[str, Any], limits: Limits) -> dict[str, Any]:
    parameters = endpoint["parameters"]
    properties = {one["parameter_name"]: _schema(one) for one in parameters}
    arguments = _object(**properties) | {
        "required": [one["parameter_name"] for one in parameters if not one["parameter_has_default"]],
        "additionalProperties": False,
    }
    mistakes = {
        "400": "The body is not what is asked for.",
        "408": "The body took too long to arrive.",
        "413": f"The body is larger than {limits.body_bytes} bytes.",
        "429": "The server is busy; Retry-After says for about how many seconds.",
    }
    return {
        "summary": f"Asks for {name.removeprefix('/')}",
        "description": f"{endpoint.get('description', '')}\nThe answer is read with the event_id.".strip(),
        "operationId": f"ask_{name.removeprefix('/')}",
        "requestBody": {"required": True, "content": {"application/json": {"schema": arguments}}},
        "responses": {"200": _json("It is in line.", _object(event_id={"type": "string"}))}
        | {status: _json(words, _object(detail={"type": "string"})) for status, words in mistakes.items()},
    }


def _answer_of(name: str, endpoint: dict[str, Any]) -> dict[str, Any]:
    event_id = {"name": "event_id", "in": "path", "required": True, "schema": {"type": "string"}}
    words = (
        "Server-sent events. `generating` and `complete` carry a JSON list with one value, `error` an object "
        "with the sentence under `error`; `heartbeat` carries null."
    )
    return {
        "summary": f"Reads the answer of {name.removeprefix('/')}, once",
        "operationId": f"read_{name.removeprefix('/')}",
        "parameters": [event_id],
        "responses": {
            "200": {"description": words, "content": {"text/event-stream": {"schema": {"type": "string"}}}},
            "404": _json("There is no such event, or it was read.", _object(detail={"type": "string"})),
        },
    }


def _schema(parameter: dict[str, Any]) -> dict[str, Any]:
    schema = {name: value for name, value in parameter["type"].items() if name != "additional_description"}
    if parameter["parameter_has_default"]:
        schema["default"] = parameter["parameter_default"]
    return schema


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _json(words: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": words, "content": {"application/json": {"schema": schema}}}
