"""Measures a trained target with each of its drafters."""

import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from specdemo import Pair, Params, Trace, generate, load_pair
from specdemo.bench.measure import Contestant, Sample, acceptance_rate, in_turns
from specdemo.loading.fetch import is_speculator
from specdemo.training.data import BadInput, encode_documents, fingerprint
from specdemo.training.eagle3 import first_token_loss, load_head
from specdemo.training.losses import heldout_loss
from specdemo.training.models import CONTEXT, HISTORY_FILE, History, embedding, load

GAMMA, NEW_TOKENS, PROMPT_WORDS, PROMPT_TOKENS, SAMPLES = 4, 200, 8, 64, 10
DECODING = {
    "greedy": Params(temperature=0.0),
    "sampled (temperature 0.8, top-p 0.9)": Params(temperature=0.8, top_p=0.9),
}


@dataclass(frozen=True)
class Loss:
    parameters: int
    per_token: float  # nats
    per_character: float  # nats


@dataclass(frozen=True)
class Text:
    prompt: str
    continuation: str
    cut: bool  # whether the token limit ended it


@dataclass(frozen=True)
class Comparison:
    """Plain decoding and one drafter, both on every prompt once."""

    plain: list[Sample]
    drafting: list[Sample]
    texts: list[Text]  # what `drafting` wrote
    new_tokens: int  # at most, in each text
    device: str


def read_histories(out: Path) -> dict[str, History]:
    """How each model in OUT was trained, by its name: first the target, then the drafter named "drafter"."""
    names = sorted(
        (file.parent.name for file in out.glob(f"*/{HISTORY_FILE}")),
        key=lambda name: (name != "target", name != "drafter", name),
    )
    if names[:1] != ["target"]:
        raise BadInput(f"there is no trained target in {out} yet")
    if names == ["target"]:
        raise BadInput(f"there is no trained drafter in {out} yet")
    histories = {name: json.loads((out / name / HISTORY_FILE).read_text(encoding="utf-8")) for name in names}
    target = fingerprint([embedding(load(out / "target")[0])])
    for name in names[1:]:
        if histories[name]["target"] != target:
            raise BadInput(f"{out / name} was trained for another target: train it again, or delete it")
    return histories


def measure_losses(out: Path, names: list[str], heldout: list[str]) -> tuple[dict[str, Loss], int]:
    """The loss by model over the held-out documents that fit into the context, and the number of these."""
    losses = {}
    target, tokenizer = load(out / "target")
    for name in names:
        if is_speculator(out / name):
            model = load_head(out / name, target)
            loss_of = partial(first_token_loss, model, target)
        else:
            model = load(out / name)[0]
            loss_of = partial(heldout_loss, model)
        encoded = zip(encode_documents(tokenizer, heldout), heldout, strict=True)
        fitting = [(ids, text) for ids, text in encoded if len(ids) <= CONTEXT]
        if not fitting:
            raise BadInput(
                f"every held-out document is longer than the context of {CONTEXT:,} tokens: "
                "divide them into shorter ones"
            )
        per_token = loss_of([ids for ids, _ in fitting])
        predicted = sum(len(ids) - 1 for ids, _ in fitting)
        characters = sum(len(text) for _, text in fitting)
        losses[name] = Loss(model.num_parameters(), per_token, per_token * predicted / characters)
    return losses, len(fitting)


def first_words(document: str) -> str:
    """The first words of a document, as a prompt."""
    return re.match(rf"(\S+\s+){{0,{PROMPT_WORDS - 1}}}\S+", document).group()


def compare(out: Path, drafter: str, prompts: list[str]) -> dict[str, Comparison]:
    """The engine with and without this drafter, for each of DECODING. A prompt's index is its seed."""
    pair = load_pair(target=str(out / "target"), drafter=str(out / drafter))
    prompt_ids = [pair.tokenizer(prompt).input_ids[:PROMPT_TOKENS] for prompt in prompts]
    with pair.runner.threads():
        device = f"{pair.info.device_name}, CPU threads: {torch.get_num_threads()}"
    comparisons = {}
    for decoding, sampling in DECODING.items():
        print(f"{drafter}, {decoding}: {len(prompts)} prompts", flush=True)
        params = replace(sampling, gamma=GAMMA, max_new_tokens=NEW_TOKENS)
        ways = {"plain": replace(params, draft_with="none"), "drafting": params}
        contestants = [Contestant(name, seeded(pair, prompt_ids, way)) for name, way in ways.items()]
        times, _ = in_turns(contestants, prompt_ids, repeats=1)
        texts = []
        for ids, sample in zip(prompt_ids, times["drafting"], strict=True):
            prompt, text = pair.tokenizer.batch_decode([ids, sample.ids], skip_special_tokens=True)
            texts.append(Text(prompt, text, cut=len(sample.ids) == NEW_TOKENS))
        comparisons[decoding] = Comparison(times["plain"], times["drafting"], texts, NEW_TOKENS, device)
    return comparisons


def seeded(
    pair: Pair, prompts: list[list[int]], params: Params
) -> Callable[[list[int]], tuple[list[int], Trace]]:
    """A contestant's function that takes a prompt's index for its seed."""

    def run(ids: list[int]) -> tuple[list[int], Trace]:
        trace = generate(pair, ids, replace(params, seed=prompts.index(ids)), measure=False)
        return trace.output_ids, trace

    return run


def interval(samples: list[Sample]) -> tuple[float, float]:
    """The bootstrap's 95 % interval of the acceptance rate: whole prompts are drawn with replacement."""
    draw = random.Random(0)
    rates = sorted(acceptance_rate(draw.choices(samples, k=len(samples))) or 0.0 for _ in range(2000))
    return rates[50], rates[-51]
