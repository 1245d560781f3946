"""The recorded runs that the page shows without models: what each one runs. tests/recorded_runs.py records
them into assets/traces; their questions, and what to look at, are in the catalogues, under "recorded".
"""

from dataclasses import dataclass, replace
from typing import Any

from specdemo.events import Params
from specdemo.events.trace import Trace
from specdemo.loading.catalog import POOR, ROOT

TRACES_FOLDER = ROOT / "assets" / "traces"
WORLDS = ROOT / "assets" / "worlds.json"  # of "Two worlds", with the prompt and Params of "warm"
STORY = "One day, a girl named Mia found a tiny kitten in the rain."
_TRAIN = (
    'The little train went up the hill. "I can do it, I can do it, I can do it," said the train. '
    '"I can do it,'
)
_WHEELS = (
    "The wheels on the bus go round and round, round and round, round and round. The wheels on the bus go "
    "round and round,"
)


@dataclass(frozen=True)
class Recording:
    """What a recorded run runs. pair: a name in the catalogue of pairs."""

    prompt: str
    params: Params
    pair: str


# Without filters, and with as much recorded as the inspector needs.
_USUAL = Params(gamma=4, top_p=1.0, seed=1, max_new_tokens=44, alternatives=3)


def _recording(prompt: str, temperature: float, pair: str = "embedded", **more: Any) -> Recording:
    return Recording(prompt, replace(_USUAL, temperature=temperature, **more), pair)


# In the order of the examples. "greedy", "warm" and "hot" are one prompt at three temperatures. "poor",
# "long" and "tree" differ from "warm" in one setting each; the first two are shorter.
RECORDINGS = {
    "poor": _recording(STORY, 0.7, pair=POOR, max_new_tokens=32),
    "long": _recording(STORY, 0.7, gamma=16, max_new_tokens=32),
    "greedy": _recording(STORY, 0.0),
    "warm": _recording(STORY, 0.7),
    "hot": _recording(STORY, 1.2),
    "tree": _recording(STORY, 0.7, tree=(2, 2, 1, 1)),
    "lookup": _recording(_TRAIN, 0.0, draft_with="lookup", max_new_tokens=48),
    "ngram": _recording(_WHEELS, 0.0, draft_with="ngram", max_new_tokens=52),
}


def recorded_trace(name: str) -> Trace:
    return Trace.load(TRACES_FOLDER / f"{name}.json")
