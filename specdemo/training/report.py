"""Measures a finished pair with the engine and writes its model card."""

import random
import re
import shlex
from pathlib import Path

import torch
from tqdm import tqdm

from specdemo import Params, load_pair, stream
from specdemo.training.data import BadInput, encode_documents, read_documents
from specdemo.training.train import heldout_loss, load

GAMMA, NEW_TOKENS, PROMPT_WORDS = 4, 128, 8
SETTINGS = {"greedy": {"temperature": 0.0}, "sampled (temperature 0.8, top-p 0.9)": {"temperature": 0.8, "top_p": 0.9}}


def write_card(args):
    """Measure held-out loss and acceptance of the pair in OUT, and write everything to OUT/README.md."""
    out = Path(args.out)
    if args.sources and not Path(args.sources).is_file():
        raise BadInput(f"the file {args.sources} does not exist")
    training, heldout = read_documents(args.data, args.files, args.seed)
    losses = measure_losses(out, heldout)
    runs = measure_runs(out, [opening(document) for document in heldout[: args.prompts]])
    sources = Path(args.sources).read_text(encoding="utf-8") if args.sources else "The files below; their origin was not stated.\n"
    card = [
        INTRODUCTION,
        "## Texts",
        sources,
        file_table(args, training, heldout),
        "## Training",
        TRAINING,
        commands(args),
        "## Figures",
        loss_table(losses),
        acceptance_table(runs),
        "## Samples",
        samples(runs),
        LIMITS,
    ]
    (out / "README.md").write_text("\n\n".join(part.strip() for part in card) + "\n", encoding="utf-8")


def measure_losses(out, heldout):
    """For both models: (parameters, nats per token, nats per character) over the documents that fit into the context."""
    losses = {}
    for role in ("target", "drafter"):
        model, tokenizer = load(out / role)
        pairs = zip(encode_documents(tokenizer, heldout), heldout, strict=True)
        encoded, texts = zip(*[(ids, text) for ids, text in pairs if len(ids) <= 1024], strict=True)
        per_token = heldout_loss(model, encoded)
        predicted = sum(len(ids) - 1 for ids in encoded)
        losses[role] = model.num_parameters(), per_token, per_token * predicted / sum(map(len, texts))
    return losses


def opening(document):
    """The first words of a document, as a prompt."""
    return re.match(rf"(\S+\s+){{0,{PROMPT_WORDS - 1}}}\S+", document).group()


def measure_runs(out, prompts):
    """Decode every prompt in both settings, the seed being the prompt's index. Returns {setting: traces}."""
    pair = load_pair(target=str(out / "target"), drafter=str(out / "drafter"))
    runs = {}
    for name, sampler in SETTINGS.items():
        runs[name] = []
        for seed, prompt in enumerate(tqdm(prompts, desc=name, unit="prompt")):
            run = stream(pair, prompt, Params(gamma=GAMMA, max_new_tokens=NEW_TOKENS, seed=seed, **sampler))
            for _ in run:
                pass
            runs[name].append(run.trace)
    return runs


def acceptance(traces):
    """Accepted drafts per judged draft over all runs, with a 95 % interval from resampling whole prompts."""
    counts = [(trace.stats.accepted, trace.stats.accepted + trace.stats.rejected) for trace in traces]

    def share(some):
        return sum(accepted for accepted, _ in some) / max(1, sum(judged for _, judged in some))

    draw = random.Random(0)
    again = sorted(share(draw.choices(counts, k=len(counts))) for _ in range(2000))
    return share(counts), again[50], again[-51]


def file_table(args, training, heldout):
    rows = [
        ("trained on", f"files `{args.files}`", len(training), sum(map(len, training))),
        ("held out", "`heldout*.txt`, or a seeded 1 %", len(heldout), sum(map(len, heldout))),
    ]
    return table("use | where | documents | characters", [f"{a} | {b} | {c:,} | {d:,}" for a, b, c, d in rows])


def commands(args):
    """The commands that made the models, from the settings in their last checkpoints."""
    lines = []
    for role in ("target", "drafter"):
        checkpoint = Path(args.work) / f"{role}.pt"
        if not checkpoint.is_file():
            return f"(The exact commands are unknown: {checkpoint} is gone.)"
        state = torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True)
        _, seconds, budgets = state["progress"]
        options = {key: value for key, value in state["settings"].items() if key not in ("command", "data")} | {"tokens": budgets[-1]}
        written = " ".join(as_option(key, value) for key, value in sorted(options.items()) if value is not False)
        begun = "".join(f", begun with --tokens {budget}" for budget in budgets[:-1])
        begun += ", changed on the way: this command alone gives other weights" if begun else ""
        lines.append(f"# {seconds / 60:.0f} minutes{begun}\npython -m specdemo.training {role} --data DIR --out {args.out} {written}")
    lines.append(
        f"python -m specdemo.training report --data DIR --out {args.out} --files {shlex.quote(args.files)} --prompts {args.prompts} "
        f"--seed {args.seed}" + (f" --sources {args.sources}" if args.sources else "")
    )
    note = f"Everything random comes from these seeds. The minutes are those of {machine()}; writing the target's text is not counted."
    return "```bash\n" + "\n".join(lines) + f"\n```\n\n{note}"


def as_option(key, value):
    name = "--" + key.replace("_", "-")
    return name if value is True else f"{name} {shlex.quote(str(value))}"


def machine():
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"a CPU ({torch.get_num_threads()} threads), shared with other programs"


def loss_table(losses):
    rows = [f"{role} | {size / 1e6:.1f} M | {token:.3f} | {letter:.3f}" for role, (size, token, letter) in losses.items()]
    return "Held-out loss:\n\n" + table("model | parameters | nats per token | nats per character", rows)


def acceptance_table(runs):
    rows = []
    for name, traces in runs.items():
        share, low, high = acceptance(traces)
        tokens, rounds = (sum(getattr(trace.stats, field) for trace in traces) for field in ("tokens", "rounds"))
        rows.append(f"{name} | {share:.3f} | {low:.3f} to {high:.3f} | {tokens / rounds:.2f}")
    count = len(next(iter(runs.values())))
    start = f"Drafts accepted at gamma {GAMMA}: {count} held-out prompts (first {PROMPT_WORDS} words), at most {NEW_TOKENS} new tokens:"
    return start + "\n\n" + table("decoding | accepted / judged | 95 % interval | tokens per round", rows)


def samples(runs):
    """What the pair wrote for the first prompts, whatever it was."""
    parts = [f"The first three prompts as they came, none picked, cut at {NEW_TOKENS} tokens."]
    for name, traces in runs.items():
        for trace in traces[:3]:
            text = re.sub(r"\s*\n\s*", "\n> \n> ", trace.text.rstrip())
            parts.append(f"{name}:\n\n> **{trace.prompt}**{text}")
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
the target in `target/` checks. The weights are under the MIT licence, like the code; the texts have their own. Written by
`python -m specdemo.training report`; the figures are measured, not edited.
"""

TRAINING = """
Any folder of text files will do: `*.txt` in UTF-8, documents divided by `<|endoftext|>` lines (or by empty lines, where there are none).
Files whose names start with `heldout` are only evaluated on; without one, a seeded 1 % of the documents is.

The tokenizer is a byte-level BPE trained on the same texts. Documents are packed into rows of `--length` tokens, shuffled anew in every
epoch; most steps see the rows cut into quarters, which is faster, and every `--whole-every`-th step sees them whole. Matrices are trained
with Muon, the rest with AdamW, in bf16 autocast, the learning rate falling linearly to zero. The drafter first learns from the texts with
cross-entropy, then from the target by KL divergence, in turn on the texts and on stories that the target itself continued at temperatures
from 0.1 to 1. Weights are saved in bf16.

A run that was stopped or killed goes on from its last checkpoint when the same command is given again. On a CPU that other programs use,
too, set `OMP_WAIT_POLICY=passive`: threads that spin while they wait for each other made training up to ten times slower.
"""

LIMITS = """
## Limits

The models know only what their texts are made of and write in that manner; other prompts lead back there or into nonsense. Sentences are
mostly sound, plots are loose, facts are none. There is no chat template and no filter. The context is 1,024 tokens. On a CPU run the pair
in fp32: in bf16, one token at a time and several at once round differently, so that greedy texts can differ from plain decoding.
"""
