"""The page's tools for language models, through the reference client."""

from contextlib import asynccontextmanager

import pytest

from specdemo.events import Params
from specdemo.ui.page.api import SHOWN_ROUNDS, trace_in_words
from tests.pure.test_feed import ROUNDS, trace
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


def test_runs_and_pairs_are_told_in_words(url, generated):
    failed, said = call(url, "generate", prompt=PROMPT, **SETTINGS)
    same = generated(PROMPT, **SETTINGS)
    numbers, rounds = said.split("\n\n")[-2:]
    assert not failed and said.startswith(f"Text:\n{same.text}\n\nNumbers:\n")
    assert f"{same.stats.accepted} accepted, {same.stats.rejected} rejected" in numbers
    assert f"tokens a round: {same.stats.mean_tokens_per_round:.2f}" in numbers
    assert "speed: " in numbers and "seed 3" in numbers
    assert rounds == trace_in_words(same).split("\n\n")[-1]
    failed, said = call(url, "pairs")
    assert not failed and said.startswith("embedded: target ")


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


def test_the_trace_in_words():
    record = trace(*ROUNDS, finish="length")
    *_, rounds = trace_in_words(record).split("\n\n")
    assert rounds.splitlines()[1:] == [
        "1: [accepted: a] [rejected: b -> resampled: d] [discarded: c]",
        "2: [accepted: e] [bonus: \\n]",
        "3: [sampled: f<END]",
        "4: [accepted: > g] [discarded: h]",
    ]
    record.rounds *= 100
    assert f"and {400 - SHOWN_ROUNDS} more rounds" in trace_in_words(record)
