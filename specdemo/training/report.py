"""Measures a finished target with each of its drafters, by the engine, and writes their model card."""

import random
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import torch

from specdemo import Params, load_pair
from specdemo.bench.contestants import ours
from specdemo.bench.measure import (
    Sample,
    acceptance_rate,
    cost_ratio,
    first_differences,
    in_turns,
    ms_per_token,
    tokens_per_round,
)
from specdemo.training.data import BadInput, encode_documents, read_documents
from specdemo.training.train import heldout_loss, load

GAMMA, NEW_TOKENS, PROMPT_WORDS, SHOWN = 4, 200, 8, 10
SETTINGS = {"greedy": {"temperature": 0.0}, "sampled (temperature 0.8, top-p 0.9)": {"temperature": 0.8, "top_p": 0.9}}


@dataclass(frozen=True)
class Runs:
    """One drafter in one setting, every prompt once with it and once without."""

    plain: list[Sample]
    drafting: list[Sample]
    texts: list[str]  # of `drafting`, without the prompts
    where: str


def write_card(args):
    """Measure losses, acceptance and speed of the models in OUT, and write everything to OUT/README.md."""
    out = Path(args.out)
    if args.sources and not Path(args.sources).is_file():
        raise BadInput(f"the file {args.sources} does not exist")
    drafters = drafters_in(out)
    training, heldout = read_documents(args.data, args.files, args.seed)
    prompts = [opening(document) for document in heldout[: args.prompts]]
    losses = measure_losses(out, ["target", *drafters], heldout)
    runs = {drafter: measure_runs(out, drafter, prompts, args.seed) for drafter in drafters}
    sources = Path(args.sources).read_text(encoding="utf-8") if args.sources else "The files below; their origin was not stated.\n"
    card = [
        INTRODUCTION,
        "## Texts",
        sources,
        file_table(args, training, heldout),
        "## Training",
        TRAINING,
        commands(args, drafters),
        "## Figures",
        loss_table(losses),
        drafting_table(runs),
        "## Samples",
        samples(prompts, runs[drafters[0]]),
        LIMITS,
    ]
    (out / "README.md").write_text("\n\n".join(part.strip() for part in card) + "\n", encoding="utf-8")


def drafters_in(out):
    """The names of the drafters beside the target, the one called drafter first."""
    names = sorted((file.parent.name for file in out.glob("*/config.json")), key=lambda name: (name != "drafter", name))
    names = [name for name in names if name != "target"]
    if not names:
        raise BadInput(f"there is no trained drafter in {out} yet")
    return names


def measure_losses(out, names, heldout):
    """For each model: (parameters, nats per token, nats per character) over the documents that fit into the context."""
    losses = {}
    for name in names:
        model, tokenizer = load(out / name)
        pairs = zip(encode_documents(tokenizer, heldout), heldout, strict=True)
        encoded, texts = zip(*[(ids, text) for ids, text in pairs if len(ids) <= 1024], strict=True)
        per_token = heldout_loss(model, encoded)
        predicted = sum(len(ids) - 1 for ids in encoded)
        losses[name] = model.num_parameters(), per_token, per_token * predicted / sum(map(len, texts))
    return losses


def opening(document):
    """The first words of a document, as a prompt."""
    return re.match(rf"(\S+\s+){{0,{PROMPT_WORDS - 1}}}\S+", document).group()


def measure_runs(out, drafter, prompts, seed):
    """{setting: Runs}: the engine with and without this drafter, in turns on every prompt."""
    pair = load_pair(target=str(out / "target"), drafter=str(out / drafter))
    ids = [pair.tokenizer(prompt).input_ids for prompt in prompts]
    with pair.threads():
        where = f"{pair.info.device_name}, CPU threads: {torch.get_num_threads()}"
    runs = {}
    for setting, sampler in SETTINGS.items():
        print(f"{drafter}, {setting}: {len(prompts)} prompts", flush=True)
        how = {"gamma": GAMMA, "max_new_tokens": NEW_TOKENS, "seed": seed, **sampler}
        both = [ours(pair, "plain", Params(draft_with="none", **how)), ours(pair, "drafting", Params(**how))]
        times, _ = in_turns(both, ids, repeats=1)
        texts = [pair.tokenizer.decode(sample.ids, skip_special_tokens=True) for sample in times["drafting"]]
        runs[setting] = Runs(times["plain"], times["drafting"], texts, where)
    return runs


def interval(runs):
    """95 % of the acceptance rates that come out when whole prompts are drawn again: (low, high)."""
    draw = random.Random(0)
    again = sorted(acceptance_rate(draw.choices(runs, k=len(runs))) or 0.0 for _ in range(2000))
    return again[50], again[-51]


def file_table(args, training, heldout):
    rows = [
        ("trained on", f"files `{args.files}`", len(training), sum(map(len, training))),
        ("held out", "`heldout*.txt`, or a seeded 1 %", len(heldout), sum(map(len, heldout))),
    ]
    return table("use | where | documents | characters", [f"{a} | {b} | {c:,} | {d:,}" for a, b, c, d in rows])


def commands(args, drafters):
    """The commands that made the models, from the settings in their last checkpoints."""
    lines = []
    for name in ("target", *drafters):
        checkpoint = Path(args.work) / f"{name}.pt"
        if not checkpoint.is_file():
            return f"(The exact commands are unknown: {checkpoint} is gone.)"
        state = torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True)
        _, seconds, budgets = state["progress"]
        options = {key: value for key, value in state["settings"].items() if key not in ("command", "data")} | {"tokens": budgets[-1]}
        if state["settings"]["command"] != name:
            options["name"] = name
        written = " ".join(as_option(key, value) for key, value in sorted(options.items()) if value is not False)
        begun = "".join(f", begun with --tokens {budget}" for budget in budgets[:-1])
        begun += ", changed on the way: this command alone gives other weights" if begun else ""
        command = f"python -m specdemo.training {state['settings']['command']} --data DIR --out {args.out} {written}"
        lines.append(f"# {name}, {seconds / 60:.0f} minutes{begun}\n{command}")
    lines.append(
        f"python -m specdemo.training report --data DIR --out {args.out} --files {shlex.quote(args.files)} --prompts {args.prompts} "
        f"--seed {args.seed}" + (f" --sources {args.sources}" if args.sources else "")
    )
    note = (
        "Everything random comes from these seeds. The minutes are those of the machine that the models were trained on, with whatever "
        "else ran there; writing the target's text is not counted."
    )
    return "```bash\n" + "\n".join(lines) + f"\n```\n\n{note}"


def as_option(key, value):
    name = "--" + key.replace("_", "-")
    return name if value is True else f"{name} {shlex.quote(str(value))}"


def loss_table(losses):
    rows = [f"{role} | {size / 1e6:.1f} M | {token:.3f} | {letter:.3f}" for role, (size, token, letter) in losses.items()]
    return "Held-out loss:\n\n" + table("model | parameters | nats per token | nats per character", rows)


def drafting_table(runs):
    rows = []
    for drafter, settings in runs.items():
        for setting, both in settings.items():
            low, high = interval(both.drafting)
            c, fast, slow = cost_ratio(both.plain, both.drafting, GAMMA), ms_per_token(both.drafting), ms_per_token(both.plain)
            rows.append(
                f"{drafter} | {setting} | {acceptance_rate(both.drafting):.3f} | {low:.3f} to {high:.3f} | "
                f"{tokens_per_round(both.drafting):.2f} | {c:.3f} | {fast:.2f} | {slow:.2f} | {slow / fast:.2f}"
            )
    greedy = [settings["greedy"] for settings in runs.values()]
    same = sum(first_differences(both.drafting, both.plain).count(None) for both in greedy)
    count = len(greedy[0].plain)
    return (
        f"Speculative decoding at gamma {GAMMA}: {count} held-out prompts (first {PROMPT_WORDS} words), at most {NEW_TOKENS} new tokens, "
        f"on {greedy[0].where}. The cost ratio is the time of a drafter step over that of a target step. Milliseconds per token are "
        "medians over whole texts, by the wall, with the drafter and without it in turns.\n\n"
        + table("drafter | decoding | accepted / judged | 95 % interval | tokens per round | cost ratio | ms | without | speed-up", rows)
        + f"\n\nGreedy, {same} of {count * len(greedy)} texts are the same as without a drafter."
    )


def samples(prompts, runs):
    """What the pair wrote for the first prompts, whatever it was."""
    shown = min(SHOWN, len(prompts))
    parts = [f"The first {shown} prompts as they came, none picked, cut at {NEW_TOKENS} tokens."]
    for setting, both in runs.items():
        for prompt, text in list(zip(prompts, both.texts, strict=True))[:shown]:
            written = re.sub(r"\s*\n\s*", "\n> \n> ", text.rstrip())
            parts.append(f"{setting}:\n\n> **{prompt}**{written}")
    return "\n\n".join(parts)


def table(head, rows):
    return "\n".join([f"| {head} |", "|" + "---|" * (head.count("|") + 1), *(f"| {row} |" for row in rows)])


INTRODUCTION = """
---
license: mit
language: en
library_name: transformers
pipeline_tag: text-generation
---

# Target and drafter

Two small Llama models with one tokenizer, made to show speculative decoding on an ordinary CPU: the drafter in `drafter/` guesses,
the target in `target/` checks. Every further folder holds another drafter for the same target; one that was taught little shows what a bad
match does. The weights are under the MIT licence, like the code; the texts have their own. Written by
`python -m specdemo.training report`; the figures are measured, not edited.
"""

TRAINING = """
Any folder of text files will do: `*.txt` in UTF-8, documents divided by `<|endoftext|>` lines (or by empty lines, where there are none).
Files whose names start with `heldout` are only evaluated on; without one, a seeded 1 % of the documents is.

The tokenizer is a byte-level BPE trained on the same texts. Documents are packed into rows of `--length` tokens, shuffled anew in every
epoch; most steps see the rows cut into quarters, which is faster, and every `--whole-every`-th step sees them whole. Matrices are trained
with Muon, the rest with AdamW, in bf16 autocast, the learning rate falling linearly to zero. The drafter first learns from the texts with
cross-entropy, then (`--distil`) from the target by KL divergence, in turn on the texts and on stories that the target itself continued at
temperatures from 0.1 to 1 (`--sampled`). A target can have several drafters, each in a folder of its own (`--name`). Weights are saved in
bf16. On a GPU the same commands use it.

A run that was stopped or killed goes on from its last checkpoint when the same command is given again. On a CPU that other programs use,
too, set `OMP_WAIT_POLICY=passive`: threads that spin while they wait for each other made training up to ten times slower.
"""

LIMITS = """
## Limits

The models know only what their texts are made of and write in that manner; other prompts lead back there or into nonsense. Sentences are
mostly sound, plots are loose, facts are none. There is no chat template and no filter. The context is 1,024 tokens. On a CPU run the pair
in fp32: in bf16, one token at a time and several at once round differently, so that greedy texts can differ from plain decoding.
"""
