"""Whether one thread can load pairs while another one runs, as the page does."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import torch

from specdemo.doctor.sections.cuda import device
from specdemo.doctor.sections.runs import SAMPLERS, TOKENS, embedded, text
from specdemo.doctor.trials import Failed, Trial
from specdemo.loading.load import load_pair
from specdemo.loading.pool import ModelPool
from specdemo.loading.request import resolve

LOADS = {"cuda": 8, "cpu": 2}
GAMMAS = range(2, 9) if torch.cuda.is_available() else range(2, 5)


def trials() -> Iterator[Trial]:
    yield Trial("loading pairs while another one runs", loading_and_running)
    yield Trial("two pairs run at once", two_runs)


def params(gamma: int):
    return replace(SAMPLERS["top-p"], gamma=gamma, max_new_tokens=TOKENS, ignore_eos=True, seed=gamma)


def load_again_and_again() -> None:
    pool = ModelPool(share=0.0)  # each load drops the pair before it
    names = ("embedded", "embedded-poor")
    for i in range(LOADS[device()]):
        pool.get(resolve(names[i % 2], device=device(), dtype="float32"))


def loading_and_running() -> str:
    """Each gamma needs captures of its own, so that some happen during loads."""
    alone = embedded(device(), "float32").with_capture("off")
    expected = {gamma: text(alone, params(gamma)) for gamma in GAMMAS}
    pair = load_pair(device=device(), dtype="float32")
    runs = 0
    with ThreadPoolExecutor(1) as executor:
        loading = executor.submit(load_again_and_again)
        while not loading.done() or runs < len(GAMMAS):
            gamma = GAMMAS[runs % len(GAMMAS)]
            if text(pair, params(gamma)) != expected[gamma]:
                raise Failed(f"with gamma {gamma} another text was written than alone")
            runs += 1
        loading.result()
    _check_notes([pair])
    return f"{LOADS[device()]} loads during {runs} runs, each with the text that it has alone"


def two_runs() -> str:
    pairs = [load_pair(device=device(), dtype="float32") for _ in range(2)]
    alone = embedded(device(), "float32").with_capture("off")
    expected = [text(alone, params(gamma)) for gamma in GAMMAS]

    @torch.no_grad()
    def run(pair) -> list[list[int]]:
        return [text(pair, params(gamma)) for gamma in GAMMAS]

    with ThreadPoolExecutor(2) as executor:
        texts = list(executor.map(run, pairs))
    if texts != [expected, expected]:
        raise Failed("another text was written than alone")
    _check_notes(pairs)
    return f"{2 * len(expected)} runs, each with the text that it has alone"


def _check_notes(pairs) -> None:
    """A capture that failed leaves a note."""
    if notes := [note for pair in pairs for note in pair.runner.notes]:
        raise Failed(notes[0])
