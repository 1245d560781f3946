"""The page's tools for language models, through the reference client."""

from contextlib import asynccontextmanager

import httpx
import pytest

from specdemo import Params, load_pair, stream
from specdemo.ui.page.api import SHOWN_ROUNDS, trace_in_words
from tests.web.server import awaited

mcp = pytest.importorskip("mcp", reason="gradio[mcp] is not installed")
from mcp.client.streamable_http import streamablehttp_client  # noqa: E402

PROMPT = "Once upon a time"
SETTINGS = {"seed": 3, "max_new_tokens": 40, "temperature": 1.0, "top_p": 1.0}


@asynccontextmanager
async def session(url: str):
    async with (
        streamablehttp_client(f"{url}/gradio_api/mcp/") as (read, write, _),
        mcp.ClientSession(read, write) as client,
    ):
        await client.initialize()
        yield client


def call(url: str, tool: str, **arguments) -> tuple[bool, str]:
    """Whether it failed, and what it said."""

    async def ask():
        async with session(url) as client:
            result = await client.call_tool(tool, arguments)
            (content,) = result.content
            return bool(result.isError), content.text

    return awaited(ask())


def test_there_are_two_tools_with_documented_arguments(url):
    async def ask():
        async with session(url) as client:
            return (await client.list_tools()).tools

    generate, pairs = awaited(ask())
    assert (generate.name, pairs.name) == ("generate", "pairs")
    assert "acceptance rate" in generate.description and "default" in pairs.description
    assert generate.inputSchema["required"] == ["prompt"] and not pairs.inputSchema["properties"]
    described = generate.inputSchema["properties"]
    assert all(one["description"] for one in described.values())
    assert "a whole number from 1 to 16" in described["gamma"]["description"]
    assert list(described) == ["prompt", "pair", *Params.__dataclass_fields__]


def test_a_run_is_told_in_words(url, generated):
    failed, said = call(url, "generate", prompt=PROMPT, **SETTINGS)
    trace = generated(PROMPT, **SETTINGS)
    text, numbers, rounds = said.split("\n\nNumbers:\n")[0], *said.split("\n\n")[-2:]
    assert not failed and text == f"Text:\n{trace.text}"
    assert f"{trace.stats.accepted} accepted, {trace.stats.rejected} rejected" in numbers
    assert f"tokens a round: {trace.stats.mean_tokens_per_round:.2f}" in numbers
    assert "speed: " in numbers and "seed 3" in numbers
    assert rounds.splitlines() == trace_in_words(trace).split("\n\n")[-1].splitlines()
    assert len(said) < 10_000


def test_pairs_are_told_in_words(url):
    failed, said = call(url, "pairs")
    assert not failed and said.splitlines()[0].startswith("embedded: target ")


@pytest.mark.parametrize(
    "tool, arguments, sentence",
    [
        ("generate", {"gamma": 99}, "gamma must be a whole number from 1 to 16 or auto, not 99"),
        ("generate", {"pair": "x"}, "pair must be one of embedded"),
        ("generate", {"gamma": "many"}, "'many' is not valid under any of the given schemas"),
        ("run_on_stage", {}, "Unknown tool"),
        ("upload_file_to_gradio", {}, "Unknown tool"),
    ],
)
def test_a_mistake_is_a_sentence(url, tool, arguments, sentence):
    failed, said = call(url, tool, prompt=PROMPT, **arguments)
    assert failed and sentence in said
    assert "Traceback" not in said and "\n" not in said


def test_nothing_listens_for_ever(url):
    at = f"{url}/gradio_api/mcp"
    listening = {"accept": "text/event-stream"}
    twice = [("accept", "text/event-stream"), ("accept", "text/html")]
    for headers in (listening, twice, twice[::-1]):
        assert httpx.get(f"{at}/", headers=headers, timeout=60).status_code == 405
    assert httpx.get(f"{at}/sse", headers=listening).status_code in (404, 405)
    assert httpx.post(f"{at}/messages/?session_id=1").status_code in (404, 405, 406)
    assert httpx.get(f"{at}/").status_code == 200  # the page for people


def test_the_trace_in_words():
    run = stream(load_pair(), PROMPT, Params(seed=3, max_new_tokens=20))
    for _ in run:
        pass
    said = trace_in_words(run.trace)
    assert "1: [accepted: , there was a] [bonus: little]" in said
    assert "3: [rejected: was -> resampled: loved] [discarded: three years old]" in said
    run.trace.rounds *= 100
    assert f"and {len(run.trace.rounds) - SHOWN_ROUNDS:,} more rounds" in trace_in_words(run.trace)
