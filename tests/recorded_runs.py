"""Records the runs in assets/traces again, each with the pair, the prompt and the settings that its file has.

python -m tests.recorded_runs           all of them
python -m tests.recorded_runs NAME ...  only these; "worlds" are the stops of "Two worlds"

Each is run, always with the same text, and its rounds are timed again in turns with plain ones, until RUNS of
its runs were undisturbed by other programs. The one with the median speed-up is kept. So no run is chosen by
its speed.
"""

import json
import sys
from dataclasses import replace
from datetime import date
from itertools import islice
from pathlib import Path
from typing import Any

from specdemo import Params, load_pair, stream
from specdemo.events.speedup import is_wide
from specdemo.events.trace import Trace
from specdemo.loading.pair import AnyPair
from specdemo.measure.turns import SETTLING_SECONDS, time_in_turns
from specdemo.ui.runs.models import Choice
from specdemo.ui.runs.trials import WorldsRequest
from specdemo.ui.view.feed import rounds_to_draw
from specdemo.ui.view.kept import RECORDINGS, TRACES_FOLDER, WORLDS, recorded_trace

RUNS = 5
TRIES = 200
WORLDS_RUNS = 2_000  # of the tiny pair at each stop
DECIDING = ("p", "q", "u", "accept_prob")  # what a verdict follows from: with every digit
USUAL: dict[str, Any] = {
    "distance": None,
    "arrival_ms": None,
    "drafts_told": True,
    "fed_again": None,
    "target_forwards": 1,
}


def compact(trace: Trace) -> str:
    """The trace's JSON with what the page shows of it: alternatives as they are sent to a page, what decided
    with all its digits, other numbers with six, and nothing that is as usual."""
    whole = json.loads(replace(trace, rounds=[]).to_json())
    whole["rounds"] = [_compact(one) for one in rounds_to_draw(trace.rounds)]
    return json.dumps(whole, ensure_ascii=False, separators=(",", ":"))


def _compact(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {key: one for key, one in value.items() if key not in USUAL or one != USUAL[key]}
        judged = value.get("u") is not None
        return {key: one if judged and key in DECIDING else _compact(one) for key, one in kept.items()}
    if isinstance(value, list | tuple):
        return [_compact(one) for one in value]
    if isinstance(value, float) and value != 1:
        rounded = float(f"{value:.6g}")
        return value if rounded == 1 else rounded
    return value


def save(trace: Trace, path: Path) -> None:
    text = compact(trace)
    Trace.from_json(text)  # raises where something that is needed was left out
    path.write_text(text, encoding="utf-8")


def record(name: str, prompt: str, params: Params) -> Trace:
    """Of the undisturbed runs the one with the median speed-up. name: of the pair."""
    pair = load_pair(name)
    runs = (timed(pair, prompt, params) for _ in range(TRIES))
    kept = list(islice((run for run in runs if is_undisturbed(run)), RUNS))
    if len(kept) < RUNS:
        sys.exit(f"Only {len(kept)} of {TRIES} runs were undisturbed.")
    return sorted(kept, key=lambda run: run.stats.speedup)[RUNS // 2]


def is_undisturbed(run: Trace) -> bool:
    """Whether its speed-up is claimed, and its times are those of a machine that does nothing else."""
    return run.stats.speedup is not None and not is_wide(run.stats.target_step_spread)


def timed(pair: AnyPair, prompt: str, params: Params) -> Trace:
    with stream(pair, prompt, params) as run:
        for _ in run:
            pass
        for _ in time_in_turns(run, SETTLING_SECONDS):
            pass
    return run.trace


def record_worlds() -> dict[str, Any]:
    """All stops of "Two worlds", and what they are of. The one with the pair's own drafter is the recorded
    run "warm" again."""
    warm, wanted = recorded_trace("warm"), {"kind": "worlds", "stop": 0}
    pair = load_pair(warm.pair.name)
    worlds = WorldsRequest(wanted, Choice(), warm.prompt, warm.params, lambda *_: "")
    worlds.most, params = WORLDS_RUNS, worlds.params
    worlds.begin(pair)
    while worlds.go_on(lambda: False, pair) < 1:
        pass
    told = {name: getattr(params, name) for name in ("gamma", "temperature", "seed")}
    told |= {"prompt": warm.prompt, "pair": pair.info.name, "machine": pair.info.device_name}
    return told | {"worlds": worlds.so_far()}


def main(*names: str) -> None:
    for name in names or (*RECORDINGS, "worlds"):
        if name == "worlds":
            text = json.dumps(_compact(record_worlds()), ensure_ascii=False, separators=(",", ":"))
            WORLDS.write_text(text, encoding="utf-8")
            print(f"worlds: {WORLDS.stat().st_size:,} bytes", flush=True)
            continue
        before = recorded_trace(name)
        run = record(before.pair.name, before.prompt, before.params)
        path = TRACES_FOLDER / f"{name}.json"
        save(replace(run, date=date.today()), path)
        stats = run.stats
        low, high = stats.speedup_interval
        print(
            f"{name}: {stats.acceptance_rate:.0%} accepted, {stats.speedup:.2f} times as fast "
            f"({low:.2f} to {high:.2f}), {path.stat().st_size:,} bytes",
            flush=True,
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
