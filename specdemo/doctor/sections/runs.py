"""Runs of the embedded pair that the sections have in common."""

from functools import cache

import torch

from specdemo.doctor.trials import Failed
from specdemo.events import Params
from specdemo.loading.load import load_pair
from specdemo.loading.pair import Pair
from specdemo.session import generate

PROMPT = "Once upon a time there was a little fox who"
TOKENS = 48 if torch.cuda.is_available() else 24
SAMPLERS = {
    "greedy": Params(temperature=0.0),
    "temperature": Params(temperature=0.8),
    "top-p": Params(temperature=0.8, top_p=0.9),
    "all filters": Params(temperature=1.2, top_k=20, top_p=0.95, min_p=0.05),
}


@cache
def embedded(device: str, dtype: str) -> Pair:
    return load_pair(device=device, dtype=dtype)


def text(pair: Pair, params: Params) -> list[int]:
    """The run's token ids. Fails if it does not get to its end; NaN raises in the engine."""
    trace = generate(pair, PROMPT, params, measure=False)
    if trace.stats.tokens != params.max_new_tokens:
        raise Failed(f"a run ended after {trace.stats.tokens} of {params.max_new_tokens} tokens")
    return trace.output_ids


def check_captured(pair: Pair) -> None:
    """Fails if the pair's last run was not captured."""
    if pair.runner.notes:
        raise Failed(pair.runner.notes[0])
    if pair.target.device.type == "cuda" and not pair.runner.graphs.graphs:
        raise Failed("nothing was captured, and no reason is given")
