"""What real servers have sent: one greedy run a way of drafting, kept in tests/recordings. tests/models/
test_vllm_server.py and test_llama_server.py record it (SPECDEMO_RECORD=1)."""

import json
import os
import re
import urllib.request
from pathlib import Path
from typing import Any

from specdemo import Params
from specdemo.servers.software import ServedPair
from specdemo.servers.vllm import COUNTER_LINE
from specdemo.session import prepare

FOLDER = Path(__file__).parent / "recordings"
RECORD = os.environ.get("SPECDEMO_RECORD") == "1"


def recorded(name: str, of: str = "vllm") -> dict[str, Any]:
    return json.loads((FOLDER / f"{of}-{name}.json").read_text(encoding="utf-8"))


def save(name: str, recording: dict[str, Any], of: str = "vllm") -> None:
    FOLDER.mkdir(exist_ok=True)
    rows = ",\n".join(json.dumps(event, ensure_ascii=False) for event in recording["events"])
    rest = json.dumps({**recording, "events": []}, indent=1, ensure_ascii=False)
    text = rest.replace('"events": []', f'"events": [\n{rows}\n]') + "\n"
    (FOLDER / f"{of}-{name}.json").write_text(text, encoding="utf-8")


def record(pair: ServedPair, key: str | None, prompt: str) -> dict[str, Any]:
    """A greedy run of 24 tokens, as vLLM sends it."""
    before = _got(pair, "/metrics")
    body, events = _sent(pair, key, prompt, Params(temperature=0, max_new_tokens=24, seed=1, alternatives=2))
    assert events.pop() == "[DONE]"
    return {
        "version": json.loads(_got(pair, "/version"))["version"],
        "models": json.loads(_got(pair, "/v1/models")),
        "metrics": [counted(before), counted(_got(pair, "/metrics"))],
        "request": body,
        "events": [json.loads(event) for event in events],
    }


def record_llama(pair: ServedPair, prompt: str, params: Params) -> dict[str, Any]:
    """A run as llama.cpp sends it, of its settings those of drafting."""
    body, events = _sent(pair, None, prompt, params)
    props, read = json.loads(_got(pair, "/props")), [json.loads(event) for event in events]
    settings, context = read[-1]["generation_settings"], props["default_generation_settings"]
    context = {"n_ctx": context["n_ctx"]}
    read[-1]["generation_settings"] = {name: settings[name] for name in settings if "speculative" in name}
    return {
        "models": json.loads(_got(pair, "/v1/models")),
        "props": {"build_info": props["build_info"], "default_generation_settings": context},
        "request": body,
        "events": read,
    }


def _sent(pair: ServedPair, key: str | None, prompt: str, params: Params) -> tuple[dict[str, Any], list[str]]:
    """A run's request, and the events that answer it."""
    started = prepare(pair, prompt, params)
    request = pair.answer(started.params, prompt, started.prompt_ids).request
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    url, content = f"{pair.client.address}{request.path}", json.dumps(request.body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, content, headers), timeout=600) as answer:
        lines = [line.decode().strip() for line in answer]
    return request.body, [line.removeprefix("data: ") for line in lines if line]


def _got(pair: ServedPair, path: str) -> str:
    return (pair.client.ask(path) or b"").decode()


def counted(metrics: str) -> list[str]:
    """The lines of /metrics that are read."""
    return [line[0] for line in re.finditer(COUNTER_LINE, metrics)]


def labels_of(lines: list[str]) -> dict[str, set[str]]:
    """The names of the counters that are read, with the names of their labels."""
    samples = COUNTER_LINE.finditer("\n".join(lines))
    return {sample[1]: {*re.findall(r'(\w+)="', sample[2])} for sample in samples}


def keys_of(value: Any, path: str = "") -> set[str]:
    """The paths to all that JSON holds, without the places in lists and without the alternatives' texts."""
    if isinstance(value, list):
        return {path}.union(*(keys_of(each, path) for each in value))
    if isinstance(value, dict) and not path.endswith("logprobs.top_logprobs"):
        return {path}.union(*(keys_of(each, f"{path}.{key}") for key, each in value.items()))
    return {path}
