"""Views of the page: so many are made at once, and none waits until another one has been read."""

import asyncio

from specdemo.ui.front.gate import MAKING, Gate
from specdemo.ui.runs.limits import LOCAL

VIEWS = 5 * MAKING


def test_few_views_are_made_at_once_and_a_reader_who_stops_holds_nobody_up():
    making, most, sent = 0, 0, 0

    async def app(scope, receive, send):
        nonlocal making, most
        making += 1
        most = max(most, making)
        await asyncio.sleep(0.01)
        making -= 1
        if scope["fails"]:
            raise RuntimeError
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message):
        nonlocal sent
        sent += 1
        await asyncio.Event().wait()  # it takes nothing more

    async def views() -> None:
        gate = Gate(app, LOCAL, None, {}, ())
        asked = {"type": "http", "method": "GET", "headers": [], "query_string": b""}
        kinds = [("/", False), ("/config", False), ("/", True)] * VIEWS
        scopes = [{**asked, "path": path, "fails": fails} for path, fails in kinds]
        tasks = [asyncio.create_task(gate(scope, None, send)) for scope in scopes]
        while sent < 2 * VIEWS or sum(task.done() for task in tasks) < VIEWS:
            await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()

    asyncio.run(asyncio.wait_for(views(), 30))
    assert sent == 2 * VIEWS and most == MAKING
