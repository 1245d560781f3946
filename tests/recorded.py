"""What a real vLLM server has sent: one greedy run a way of drafting, kept in tests/recordings. tests/models/
test_vllm_server.py records it (SPECDEMO_RECORD=1)."""

import json
import os
import urllib.request
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from specdemo import Params
from specdemo.servers.client import run_in_loop
from specdemo.servers.counters import COUNTER_NAMES, TIMES
from specdemo.servers.pair import ServedPair
from specdemo.servers.run import server_request
from specdemo.session import prepare

FOLDER = Path(__file__).parent / "recordings"
RECORD = os.environ.get("SPECDEMO_RECORD") == "1"


def recorded(name: str) -> dict[str, Any]:
    return json.loads((FOLDER / f"vllm-{name}.json").read_text(encoding="utf-8"))


def save(name: str, recording: dict[str, Any]) -> None:
    FOLDER.mkdir(exist_ok=True)
    rows = ",\n".join(json.dumps(event, ensure_ascii=False) for event in recording["events"])
    rest = json.dumps({**recording, "events": []}, indent=1, ensure_ascii=False)
    text = rest.replace('"events": []', f'"events": [\n{rows}\n]') + "\n"
    (FOLDER / f"vllm-{name}.json").write_text(text, encoding="utf-8")


def record(pair: ServedPair, key: str | None, prompt: str) -> dict[str, Any]:
    """A greedy run of 24 tokens, as the server sends it."""
    params = Params(temperature=0, max_new_tokens=24, seed=1, alternatives=2)
    asked_for = server_request(pair, prepare(pair, prompt, params))

    def get(at: str) -> str | None:
        return run_in_loop(pair.client.ask("GET", at)).result()

    before = get("/metrics")
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    asked = urllib.request.Request(
        f"{pair.client.address}{asked_for.path}", json.dumps(asked_for.body).encode(), headers
    )
    with urllib.request.urlopen(asked, timeout=600) as answer:
        lines = [line.decode().strip() for line in answer]
    events = [line.removeprefix("data: ") for line in lines if line]
    assert events.pop() == "[DONE]"
    return {
        "version": json.loads(get("/version"))["version"],
        "models": json.loads(get("/v1/models")),
        "metrics": [counted(before), counted(get("/metrics"))],
        "request": asked_for.body,
        "events": [json.loads(event) for event in events],
    }


def counted(metrics: str) -> list[str]:
    """The lines of /metrics that are read."""
    names = [
        line.removeprefix("# TYPE ").partition(" ")[0].partition("{")[0] for line in metrics.splitlines()
    ]
    kept = {*COUNTER_NAMES, *TIMES.values()}
    return [line for line, name in zip(metrics.splitlines(), names, strict=True) if name in kept]


def labels_of(lines: list[str]) -> dict[str, set[str]]:
    """The names of the counters that are read, with the names of their labels."""
    families = text_string_to_metric_families("\n".join(lines) + "\n")
    samples = [sample for family in families for sample in family.samples]
    return {sample.name: set(sample.labels) for sample in samples if sample.name in COUNTER_NAMES}


def keys_of(value: Any, path: str = "") -> set[str]:
    """The paths to all that JSON holds, without the places in lists and without the alternatives' texts."""
    if isinstance(value, list):
        return {path}.union(*(keys_of(each, path) for each in value))
    if isinstance(value, dict) and not path.endswith("logprobs.top_logprobs"):
        return {path}.union(*(keys_of(each, f"{path}.{key}") for key, each in value.items()))
    return {path}
