"""/health, over a queue of runs with and without its thread."""

from types import SimpleNamespace

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from specdemo.ui.runs.routes import health_route


@pytest.mark.parametrize(
    ("busy", "waiting", "stopped", "works", "answer"),
    [
        (False, 0, False, True, (200, {"status": "ok", "busy": False, "waiting": 0})),
        (True, 2, False, True, (200, {"status": "ok", "busy": True, "waiting": 2})),
        (True, 0, True, True, (503, {"status": "stopped", "busy": True, "waiting": 0})),
        (True, 0, False, False, (503, {"status": "stopped", "busy": True, "waiting": 0})),
    ],
)
def test_health(busy, waiting, stopped, works, answer):
    runs = SimpleNamespace(busy=busy, waiting=waiting, thread=SimpleNamespace(is_alive=lambda: works))
    with TestClient(Starlette(routes=[health_route(runs, lambda: stopped)])) as client:
        said = client.get("/health")
    assert (said.status_code, said.json()) == answer
