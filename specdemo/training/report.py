"""Measures a finished target with each of its drafters, by the engine, and writes their model card."""

import json
import random
import re
import shlex
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path

import torch

from specdemo import Params, load_pair
from specdemo.bench.contestants import Contestant, traced
from specdemo.bench.measure import (
    Sample,
    acceptance_rate,
    cost_ratio,
    first_differences,
    in_turns,
    ms_per_token,
    tokens_per_round,
)
from specdemo.events.metrics import ratio
from specdemo.training.data import BadInput, encode_documents, fingerprint, read_documents
from specdemo.training.models import RECORD, embedding, load
from specdemo.training.train import heldout_loss

GAMMA, NEW_TOKENS, PROMPT_WORDS, PROMPT_TOKENS, SHOWN = 4, 200, 8, 64, 10
SETTINGS = {
    "greedy": {"temperature": 0.0},
    "sampled (temperature 0.8, top-p 0.9)": {"temperature": 0.8, "top_p": 0.9},
}


@dataclass(frozen=True)
class Runs:
    """One drafter in one setting, every prompt once with it and once without."""

    plain: list[Sample]
    drafting: list[Sample]
    texts: list[
        tuple[str, str, bool]
    ]  # of `drafting`: the prompt, what was written, and whether it was cut there
    where: str


def write_card(args):
    """Measure losses, acceptance and speed of the models in OUT, and write everything to OUT/README.md."""
    out = Path(args.out)
    if args.sources and not Path(args.sources).is_file():
        raise BadInput(f"--sources must be a file, which {args.sources} is not")
    records = read_records(out)
    training, heldout = read_documents(args.data, records["target"]["settings"]["files"])
    drafters = list(records)[1:]
    losses, measured = measure_losses(out, list(records), heldout)
    prompts = list(dict.fromkeys(map(opening, heldout)))[: args.prompts]
    runs = {drafter: measure_runs(out, drafter, prompts) for drafter in drafters}
    sources = (
        Path(args.sources).read_text(encoding="utf-8")
        if args.sources
        else "The files below; their origin was not stated."
    )
    card = [
        INTRODUCTION.format(drafters=" and ".join(f"`{drafter}/`" for drafter in drafters)),
        "## Texts",
        sources,
        file_table(records["target"]["settings"]["files"], training, heldout),
        "## Training",
        TRAINING,
        commands(args, records),
        "## Figures",
        loss_table(losses, measured),
        drafting_table(runs),
        "## Samples",
        samples(runs[drafters[0]]),
        LIMITS,
    ]
    (out / "README.md").write_text("\n\n".join(part.strip() for part in card) + "\n", encoding="utf-8")


def read_records(out):
    """How each model in OUT was made: {name: what its training saved}, the target first, then the drafter called so."""
    names = sorted(
        (file.parent.name for file in out.glob(f"*/{RECORD}")),
        key=lambda name: (name != "target", name != "drafter", name),
    )
    if names[:1] != ["target"]:
        raise BadInput(f"there is no trained target in {out} yet")
    if names == ["target"]:
        raise BadInput(f"there is no trained drafter in {out} yet")
    records = {name: json.loads((out / name / RECORD).read_text(encoding="utf-8")) for name in names}
    target = fingerprint([embedding(load(out / "target")[0])])
    for name in names[1:]:
        if records[name]["target"] != target:
            raise BadInput(f"{out / name} was trained for another target: train it again, or delete it")
    return records


def measure_losses(out, names, heldout):
    """{name: (parameters, nats per token, nats per character)} over the documents that fit into the context, and their number."""
    losses = {}
    for name in names:
        model, tokenizer = load(out / name)
        pairs = zip(encode_documents(tokenizer, heldout), heldout, strict=True)
        short = [(ids, text) for ids, text in pairs if len(ids) <= 1024]
        if not short:
            raise BadInput(
                "every held-out document is longer than the context of 1,024 tokens: divide them into shorter ones"
            )
        per_token = heldout_loss(model, [ids for ids, _ in short])
        predicted = sum(len(ids) - 1 for ids, _ in short)
        losses[name] = (
            model.num_parameters(),
            per_token,
            per_token * predicted / sum(len(text) for _, text in short),
        )
    return losses, len(short)


def opening(document):
    """The first words of a document, as a prompt."""
    return re.match(rf"(\S+\s+){{0,{PROMPT_WORDS - 1}}}\S+", document).group()


def measure_runs(out, drafter, prompts):
    """{setting: Runs}: the engine with and without this drafter, in turns on every prompt; a prompt's index is its seed."""
    pair = load_pair(target=str(out / "target"), drafter=str(out / drafter))
    ids = [pair.tokenizer(prompt).input_ids[:PROMPT_TOKENS] for prompt in prompts]
    seeds = {tuple(prompt): seed for seed, prompt in enumerate(ids)}

    def contestant(name, params):
        def run(prompt):
            trace = traced(pair, prompt, replace(params, seed=seeds[tuple(prompt)]))
            return trace.output_ids, trace

        return Contestant(name, run)

    def text(ids):
        return pair.tokenizer.decode(ids, skip_special_tokens=True)

    with pair.runner.threads():
        where = f"{pair.info.device_name}, CPU threads: {torch.get_num_threads()}"
    runs = {}
    for setting, sampler in SETTINGS.items():
        print(f"{drafter}, {setting}: {len(prompts)} prompts", flush=True)
        params = Params(gamma=GAMMA, max_new_tokens=NEW_TOKENS, **sampler)
        both = [contestant("plain", replace(params, draft_with="none")), contestant("drafting", params)]
        times, _ = in_turns(both, ids, repeats=1)
        cut = [len(sample.ids) == NEW_TOKENS for sample in times["drafting"]]
        texts = [
            (text(prompt), text(sample.ids), long)
            for prompt, sample, long in zip(ids, times["drafting"], cut, strict=True)
        ]
        runs[setting] = Runs(times["plain"], times["drafting"], texts, where)
    return runs


def interval(samples):
    """95 % of the acceptance rates that come out when whole prompts are drawn again: (low, high)."""
    draw = random.Random(0)
    again = sorted(acceptance_rate(draw.choices(samples, k=len(samples))) or 0.0 for _ in range(2000))
    return again[50], again[-51]


def file_table(files, training, heldout):
    rows = [
        ("trained on", f"files `{files}`", len(training), sum(map(len, training))),
        ("held out", "`heldout*`, or 1 %", len(heldout), sum(map(len, heldout))),
    ]
    return table(
        "use | where | documents | characters", [f"{a} | {b} | {c:,} | {d:,}" for a, b, c, d in rows]
    )


def commands(args, records):
    """The commands that made the models, from what their training saved."""
    out, lines = shlex.quote(str(args.out)), []
    for name, record in records.items():
        settings, budgets = record["settings"], record["budgets"]
        options = {key: value for key, value in settings.items() if key not in ("command", "data")} | {
            "tokens": budgets[-1]
        }
        if settings["command"] != name:
            options["name"] = name
        written = " ".join(
            as_option(key, value) for key, value in sorted(options.items()) if value is not False
        )
        begun = "".join(f", begun with --tokens {budget}" for budget in budgets[:-1])
        begun += ", changed on the way: this command alone gives other weights" if begun else ""
        versions = ", ".join(f"{library} {version}" for library, version in record["versions"].items())
        seconds = record["seconds"]
        took = f"{seconds / 60:.0f} minutes" if seconds >= 120 else f"{seconds} seconds"
        lines.append(f"# {name}: {took} on {record['device']}, {versions}{begun}")
        lines.append(f"python -m specdemo.training {settings['command']} --data DIR --out {out} {written}")
    sources = f" --sources {shlex.quote(args.sources)}" if args.sources else ""
    lines.append(
        f"python -m specdemo.training report --data DIR --out {out} --prompts {args.prompts}{sources}"
    )
    return "```bash\n" + "\n".join(lines) + "\n```\n\n" + AGAIN


def as_option(key, value):
    name = "--" + key.replace("_", "-")
    return name if value is True else f"{name} {shlex.quote(str(value))}"


def loss_table(losses, measured):
    rows = [
        f"{name} | {size / 1e6:.1f} M | {token:.3f} | {letter:.3f}"
        for name, (size, token, letter) in losses.items()
    ]
    start = f"Held-out loss, over the {measured:,} held-out documents that fit into the context:"
    return f"{start}\n\n" + table("model | parameters | nats per token | nats per character", rows)


def drafting_table(runs):
    rows = []
    for drafter, settings in runs.items():
        for setting, both in settings.items():
            low, high = interval(both.drafting)
            c, ms, without = (
                cost_ratio(both.plain, both.drafting, GAMMA),
                ms_per_token(both.drafting),
                ms_per_token(both.plain),
            )
            share, per_round = acceptance_rate(both.drafting), tokens_per_round(both.drafting)
            numbers = f"{shown(share, 3)} | {low:.3f} to {high:.3f} | {shown(per_round, 2)} | {shown(c, 3)} | {ms:.2f} | {without:.2f}"
            rows.append(f"{drafter} | {setting} | {numbers} | {shown(ratio(without, ms), 2)}")
    greedy = [settings["greedy"] for settings in runs.values()]
    same = sum(first_differences(both.drafting, both.plain).count(None) for both in greedy)
    count = len(greedy[0].plain)
    return (
        f"Speculative decoding at gamma {GAMMA}: {count} held-out prompts (different openings of {PROMPT_WORDS} words), at most "
        f"{NEW_TOKENS} new tokens, on {greedy[0].where}. The cost ratio is the time of a drafter step over that of a target step. "
        "Milliseconds per token are medians over whole texts, by the wall, with the drafter and without it in turns.\n\n"
        + table(
            "drafter | decoding | accepted / judged | 95 % interval | tokens per round | cost ratio | ms | without | speed-up",
            rows,
        )
        + f"\n\nGreedy, {same} of {count * len(greedy)} texts are the same as without a drafter."
    )


def shown(number, places):
    return "–" if number is None else f"{number:.{places}f}"


def samples(runs):
    """What the pair wrote for the first prompts, whatever it was."""
    count = min(SHOWN, *(len(both.texts) for both in runs.values()))
    parts = [
        f"The first {count} prompts as they came, none picked; what {NEW_TOKENS} tokens cut off ends in […]."
    ]
    for setting, both in runs.items():
        for prompt, text, cut in both.texts[:count]:
            parts.append(
                f"{setting}:\n\n> **{quoted(prompt)}**{quoted(text.rstrip())}" + (" […]" if cut else "")
            )
    return "\n\n".join(parts)


def quoted(text):
    """As a part of a quotation in Markdown."""
    return re.sub(r"\s*\n\s*", "\n> \n> ", re.sub(r"([*_`\\])", r"\\\1", escape(text, quote=False)))


def table(head, rows):
    return "\n".join([f"| {head} |", "|" + "---|" * (head.count("|") + 1), *(f"| {row} |" for row in rows)])


INTRODUCTION = """
---
library_name: transformers
pipeline_tag: text-generation
---

# Target and drafter

Small Llama models with one tokenizer, made to show speculative decoding on an ordinary computer: a drafter ({drafters}) guesses, the target
(`target/`) checks. Written by `python -m specdemo.training report`; the figures are measured, not edited.
"""

TRAINING = """
Any folder of text files will do: `*.txt` in UTF-8, documents divided by `<|endoftext|>` lines (or by empty lines, where there are none).
Files whose names start with `heldout` are only evaluated on; without one, about 1 % of the documents is, always the same ones.

The tokenizer is a byte-level BPE trained on the same texts. Documents are packed into rows of `--length` tokens, shuffled anew in every
epoch; most steps see the rows cut into quarters, which is faster, and every `--whole-every`-th step sees them whole. Matrices are trained
with Muon, the rest with AdamW, in bf16 autocast, the learning rate falling linearly to zero. A drafter first learns from the texts with
cross-entropy, then (`--distil`) from the target by KL divergence, in turn on the texts and on stories that the target itself continued at
temperatures from 0.1 to 1 (`--sampled`). A target can have several drafters, each in a folder of its own (`--name`). Weights are saved in
bf16.

A run that was stopped or killed goes on from its last checkpoint when the same command is given again. On a CPU that other programs use,
too, set `OMP_WAIT_POLICY=passive`: threads that spin while they wait for each other made training up to ten times slower. A GPU is used
where there is one.
"""

AGAIN = """
Everything random comes from the seeds in these commands; another machine or another version rounds differently. The times include what
else ran there, and leave out the target's writing. On other texts leave `--files` out, and choose an `--out` of your own: in this one the
tokenizer is used again.
"""

LIMITS = """
## Limits

The models know only what their texts are made of and write in that manner; other prompts lead back there or into nonsense. There is no chat
template and no filter. The context is 1,024 tokens. On a CPU run the pair in fp32: in bf16, one token at a time and several at once round
differently, so that greedy texts can differ from plain decoding.
"""
