"""Measures a trained target with each of its drafters, and writes their model card."""

import json
import random
import re
import shlex
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from html import escape
from pathlib import Path

import torch

from specdemo.bench.measure import (
    Contestant,
    Sample,
    acceptance_rate,
    cost_ratio,
    first_differences,
    in_turns,
    ms_per_token,
    tokens_per_round,
)
from specdemo.bench.methods import rounded
from specdemo.drafters.dflash.head import DFlashHead
from specdemo.drafters.eagle3.head import Eagle3Head
from specdemo.drafters.kinds import kind_in
from specdemo.events import Params
from specdemo.events.metrics import ratio
from specdemo.events.trace import Trace
from specdemo.loading.load import load_pair
from specdemo.session import generate
from specdemo.training.data import BadInput, encode_documents, fingerprint, read_documents
from specdemo.training.dflash import first_place_loss
from specdemo.training.eagle3 import first_token_loss, load_trained_head
from specdemo.training.models import CONTEXT, HISTORY_FILE, History, embedding, load_trained
from specdemo.training.options import ReportOptions
from specdemo.training.train import heldout_loss

GAMMA, NEW_TOKENS, PROMPT_WORDS, PROMPT_TOKENS, SAMPLES = 4, 200, 8, 64, 10
LENGTHS, LENGTH_PROMPTS = (3, 5, 7), 10  # gammas that are compared, and on how many prompts
DECODING = {
    "greedy": Params(temperature=0.0),
    "sampled (temperature 0.8, top-p 0.9)": Params(temperature=0.8, top_p=0.9),
}


def write_card(options: ReportOptions) -> None:
    """Measures losses, acceptance and speed of the models in OUT, and writes the card to OUT/README.md."""
    out = options.out
    if options.sources and not options.sources.is_file():
        raise BadInput(f"--sources must be a file, which {options.sources} is not")
    histories = read_histories(out)
    files = histories["target"]["settings"]["files"]
    training, heldout = read_documents(options.data, files)
    drafters = list(histories)[1:]
    losses, documents = measure_losses(out, list(histories), heldout)
    prompts = list(dict.fromkeys(map(first_words, heldout)))[: options.prompts]
    comparisons = {drafter: run_drafter(out, drafter, prompts) for drafter in drafters}
    lengths = lengths_table(out, drafters, prompts[:LENGTH_PROMPTS])
    origin = "The files below; their origin was not stated."
    sources = options.sources.read_text(encoding="utf-8") if options.sources else origin
    heads = {drafter: head for drafter in drafters if (head := head_class(out / drafter))}
    by_class = {each: [name for name, own in heads.items() if own is each] for each in HEADS}
    card = [
        CARD_INTRODUCTION.format(drafters=folders(drafters)),
        *(HEADS[each][0].format(heads=folders(names)) for each, names in by_class.items() if names),
        "## Texts",
        sources,
        file_table(files, training, heldout),
        "## Training",
        TRAINING,
        commands(options, histories),
        "## Figures",
        loss_table(losses, documents),
        speed_table(comparisons),
        head_verdicts(list(heads), comparisons, histories),
        lengths,
        "## Samples",
        samples(comparisons[drafters[0]]),
        LIMITS_SECTION,
    ]
    text = "\n\n".join(part.strip() for part in card if part)
    (out / "README.md").write_text(text + "\n", encoding="utf-8")


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
class DrafterRuns:
    """Plain decoding and one drafter, both on every prompt once."""

    plain: list[Sample]
    drafting: list[Sample]
    texts: list[Text]  # what `drafting` wrote
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
    target = fingerprint([embedding(load_trained(out / "target")[0])])
    for name in names[1:]:
        if histories[name]["target"] != target:
            raise BadInput(f"{out / name} was trained for another target: train it again, or delete it")
    return histories


def measure_losses(out: Path, names: list[str], heldout: list[str]) -> tuple[dict[str, Loss], int]:
    """The loss by model over the held-out documents that fit into the context, and the number of these."""
    losses = {}
    target, tokenizer = load_trained(out / "target")
    encoded = zip(encode_documents(tokenizer, heldout), heldout, strict=True)
    fitting = [(ids, text) for ids, text in encoded if len(ids) <= CONTEXT]
    if not fitting:
        longer = f"every held-out document is longer than the context of {CONTEXT:,} tokens"
        raise BadInput(f"{longer}: divide them into shorter ones")
    predicted = sum(len(ids) - 1 for ids, _ in fitting)
    characters = sum(len(text) for _, text in fitting)
    for name in names:
        if head := head_class(out / name):
            model = load_trained_head(out / name, target)
            loss_of = partial(HEADS[head][1], model, target)
        else:
            model = load_trained(out / name)[0]
            loss_of = partial(heldout_loss, model)
        per_token = loss_of([ids for ids, _ in fitting])
        losses[name] = Loss(model.num_parameters(), per_token, per_token * predicted / characters)
    return losses, len(fitting)


def head_class(folder: Path) -> type | None:
    """The class of the head that was trained, one of HEADS; None for a model."""
    kind = kind_in(folder)
    with torch.device("meta"):
        return type(kind.skeleton(folder, str(folder))) if kind.is_head else None


def first_words(document: str) -> str:
    """The first words of a document, as a prompt."""
    return re.match(rf"(\S+\s+){{0,{PROMPT_WORDS - 1}}}\S+", document).group()


def run_drafter(out: Path, drafter: str, prompts: list[str]) -> dict[str, DrafterRuns]:
    """The engine with and without this drafter, for each of DECODING. A prompt's index is its seed."""
    pair = load_pair(target=str(out / "target"), drafter=str(out / drafter))
    prompt_ids = [pair.tokenizer(prompt).input_ids[:PROMPT_TOKENS] for prompt in prompts]
    with pair.runner.torch_settings():
        device = f"{pair.info.device_name}, CPU threads: {torch.get_num_threads()}"

    def run(params: Params, ids: list[int]) -> tuple[list[int], Trace]:
        trace = generate(pair, ids, replace(params, seed=prompt_ids.index(ids)), measure=False)
        return trace.output_ids, trace

    comparisons = {}
    for decoding, sampling in DECODING.items():
        print(f"{drafter}, {decoding}: {len(prompts)} prompts", flush=True)
        params = replace(sampling, gamma=GAMMA, max_new_tokens=NEW_TOKENS)
        ways = {"plain": replace(params, draft_with="none"), "drafting": params}
        contestants = [Contestant(name, partial(run, way)) for name, way in ways.items()]
        times, _ = in_turns(contestants, prompt_ids, repeats=1)
        texts = []
        for ids, sample in zip(prompt_ids, times["drafting"], strict=True):
            prompt, text = pair.tokenizer.batch_decode([ids, sample.ids], skip_special_tokens=True)
            texts.append(Text(prompt, text, cut=len(sample.ids) == NEW_TOKENS))
        comparisons[decoding] = DrafterRuns(times["plain"], times["drafting"], texts, device)
    return comparisons


def lengths_table(out: Path, drafters: list[str], prompts: list[str]) -> str:
    """Every drafter at every one of LENGTHS, and plain decoding, in turns."""
    pairs = {name: load_pair(target=str(out / "target"), drafter=str(out / name)) for name in drafters}
    plain, rows = next(iter(pairs.values())), []
    prompt_ids = [plain.tokenizer(prompt).input_ids[:PROMPT_TOKENS] for prompt in prompts]
    for decoding, sampling in DECODING.items():
        print(f"draft lengths, {decoding}: {len(prompts)} prompts", flush=True)
        traces: dict[tuple[str, int], list[Trace]] = defaultdict(list)

        def run(name: str, params: Params, kept: list[Trace], ids: list[int]) -> tuple[list[int], Trace]:
            trace = generate(pairs[name], ids, replace(params, seed=prompt_ids.index(ids)), measure=False)
            kept.append(trace)
            return trace.output_ids, trace

        params = replace(sampling, max_new_tokens=NEW_TOKENS)
        ways = {(name, gamma): replace(params, gamma=gamma) for name in drafters for gamma in LENGTHS}
        contestants = [
            Contestant(f"{name} {gamma}", partial(run, name, way, traces[name, gamma]))
            for (name, gamma), way in ways.items()
        ]
        alone = Contestant("plain", partial(run, drafters[0], replace(params, draft_with="none"), []))
        times, _ = in_turns([alone, *contestants], prompt_ids, repeats=1)
        plain_ms = ms_per_token(times["plain"])
        for name, gamma in ways:
            samples = times[f"{name} {gamma}"]
            places = " ".join(f"{share:.2f}" for share in accepted_by_place(traces[name, gamma][2:]))
            ms = ms_per_token(samples)
            rows.append(
                f"{name} | {decoding} | {gamma} | {places} | {rounded(tokens_per_round(samples))}"
                f" | {ms:.2f} | {rounded(ratio(plain_ms, ms))}"
            )
    head = "drafter | decoding | gamma | accepted by place | tokens per round | ms | speed-up"
    return f"{LENGTHS_TEXT.format(count=len(prompts)).strip()}\n\n{markdown_table(head, rows)}"


def accepted_by_place(traces: list[Trace]) -> list[float]:
    """The share of the drafts judged at each place that were accepted."""
    judged: dict[int, list[bool]] = defaultdict(list)
    for one in (one for trace in traces for one in trace.rounds):
        for place, token in enumerate(one.draft):
            if token.fate != "discarded":
                judged[place].append(token.fate == "accepted")
    return [sum(fates) / len(fates) for _, fates in sorted(judged.items())]


def interval(samples: list[Sample]) -> tuple[float, float]:
    """The bootstrap's 95 % interval of the acceptance rate: whole prompts are drawn with replacement."""
    draw = random.Random(0)
    rates = sorted(acceptance_rate(draw.choices(samples, k=len(samples))) or 0.0 for _ in range(2000))
    return rates[50], rates[-51]


def folders(names: list[str]) -> str:
    """The names as folders in words: `a/`, `b/` and `c/`."""
    *most, last = [f"`{name}/`" for name in names]
    return f"{', '.join(most)} and {last}" if most else last


def head_verdicts(
    heads: list[str], comparisons: dict[str, dict[str, DrafterRuns]], histories: dict[str, History]
) -> str:
    """Whether each head's drafts are accepted more often than those of the drafter named "drafter"."""
    if "drafter" not in comparisons:
        return ""
    sentences = []
    for head in heads:
        for decoding, comparison in comparisons[head].items():
            both = (comparison, comparisons["drafter"][decoding])
            own, other = (acceptance_rate(one.drafting) for one in both)
            if own is None or other is None:
                continue
            which = "more" if own >= other else "less"
            sentences.append(
                f"{decoding.capitalize()}, `{head}/` has {own:.3f} of its judged drafts accepted, "
                f"{abs(round(own, 3) - round(other, 3)):.3f} {which} than `drafter/`."
            )
            times = ((ms_per_token(one.plain), ms_per_token(one.drafting)) for one in both)
            own_speedup, other_speedup = (ratio(plain, drafting) for plain, drafting in times)
            if own_speedup is not None and other_speedup is not None and own_speedup < other_speedup:
                sentences.append(
                    f"With it the target is {own_speedup:.2f} times as fast, with `drafter/` "
                    f"{other_speedup:.2f} times."
                )
            if own < other:
                seen, given = (tokens_seen(histories[name]) for name in (head, "drafter"))
                sentences.append(f"It was trained on {seen:,} tokens, `drafter/` on {given:,}.")
    return " ".join(sentences)


def tokens_seen(history: History) -> int:
    """Training tokens, those of distillation included."""
    return history["budgets"][-1] + history["settings"].get("distil", 0)


def file_table(files: str, training: list[str], heldout: list[str]) -> str:
    rows = [
        ("trained on", f"files `{files}`", len(training), sum(map(len, training))),
        ("held out", "`heldout*`, or 1 %", len(heldout), sum(map(len, heldout))),
    ]
    cells = [f"{a} | {b} | {c:,} | {d:,}" for a, b, c, d in rows]
    return markdown_table("use | where | documents | characters", cells)


def commands(options: ReportOptions, histories: dict[str, History]) -> str:
    """The commands that made the models, from their histories."""
    program, out = "python -m specdemo.training", shlex.quote(str(options.out))
    lines = []
    for name, history in histories.items():
        settings, budgets, seconds = history["settings"], history["budgets"], history["seconds"]
        given = {key: value for key, value in settings.items() if key not in ("command", "data")}
        given["tokens"] = budgets[-1]
        if settings["command"] != name:
            given["name"] = name
        written = " ".join(
            f"--{key.replace('_', '-')}" + ("" if value is True else f" {shlex.quote(str(value))}")
            for key, value in sorted(given.items())
            if value is not False
        )
        changed = "".join(f", started with --tokens {budget}" for budget in budgets[:-1])
        if changed:
            changed += ", changed later: this command alone gives other weights"
        versions = ", ".join(f"{library} {version}" for library, version in history["versions"].items())
        duration = f"{seconds / 60:.0f} minutes" if seconds >= 120 else f"{seconds} seconds"
        lines.append(f"# {name}: {duration} on {history['device']}, {versions}{changed}")
        lines.append(f"{program} {settings['command']} --data DIR --out {out} {written}")
    sources = f" --sources {shlex.quote(str(options.sources))}" if options.sources else ""
    lines.append(f"{program} report --data DIR --out {out} --prompts {options.prompts}{sources}")
    return "```bash\n" + "\n".join(lines) + "\n```\n\n" + REPRODUCING


def loss_table(losses: dict[str, Loss], documents: int) -> str:
    rows = [
        f"{name} | {loss.parameters / 1e6:.1f} M | {loss.per_token:.3f} | {loss.per_character:.3f}"
        for name, loss in losses.items()
    ]
    start = f"Held-out loss, over the {documents:,} held-out documents that fit into the context:"
    return f"{start}\n\n" + markdown_table("model | parameters | nats per token | nats per character", rows)


def speed_table(comparisons: dict[str, dict[str, DrafterRuns]]) -> str:
    """All drafters in all settings, one row each."""
    rows = []
    for drafter, by_decoding in comparisons.items():
        for decoding, comparison in by_decoding.items():
            plain, drafting = comparison.plain, comparison.drafting
            low, high = interval(drafting)
            ms, plain_ms = ms_per_token(drafting), ms_per_token(plain)
            rate, cost = acceptance_rate(drafting), cost_ratio(plain, drafting, GAMMA)
            rows.append(
                f"{drafter} | {decoding} | {rounded(rate, 3)} | {low:.3f} to {high:.3f}"
                f" | {rounded(tokens_per_round(drafting))} | {rounded(cost, 3)} | {ms:.2f} | {plain_ms:.2f}"
                f" | {rounded(ratio(plain_ms, ms))}"
            )
    greedy = [by_decoding["greedy"] for by_decoding in comparisons.values()]
    same = sum(first_differences(one.drafting, one.plain).count(None) for one in greedy)
    count = len(greedy[0].plain)
    head = (
        "drafter | decoding | accepted / judged | 95 % interval | tokens per round | cost ratio"
        " | ms | without | speed-up"
    )
    about = {"gamma": GAMMA, "words": PROMPT_WORDS, "new_tokens": NEW_TOKENS, "device": greedy[0].device}
    explanation = SPEED.format(count=count, **about).strip()
    verdict = f"Greedy, {same} of {count * len(greedy)} texts are the same as without a drafter."
    return f"{explanation}\n\n{markdown_table(head, rows)}\n\n{verdict}"


def samples(comparisons: dict[str, DrafterRuns]) -> str:
    """What the pair wrote for the first prompts."""
    count = min(SAMPLES, *(len(comparison.texts) for comparison in comparisons.values()))
    parts = [f"The first {count} prompts, not selected. A text that {NEW_TOKENS} tokens cut off ends in […]."]
    for decoding, comparison in comparisons.items():
        for text in comparison.texts[:count]:
            end = " […]" if text.cut else ""
            written = quoted(text.continuation.rstrip())
            parts.append(f"{decoding}:\n\n> **{quoted(text.prompt)}**{written}{end}")
    return "\n\n".join(parts)


def quoted(text: str) -> str:
    """The text, escaped for a quotation in Markdown."""
    return re.sub(r"\s*\n\s*", "\n> \n> ", re.sub(r"([*_`\\])", r"\\\1", escape(text, quote=False)))


def markdown_table(head: str, rows: list[str]) -> str:
    return "\n".join([f"| {head} |", "|" + "---|" * (head.count("|") + 1), *(f"| {row} |" for row in rows)])


CARD_INTRODUCTION = """
---
library_name: transformers
pipeline_tag: text-generation
---

# Target and drafter

Small Llama models with one tokenizer, made to show speculative decoding on an ordinary computer: a drafter
({drafters}) proposes tokens, the target (`target/`) checks them. Written by
`python -m specdemo.training report`; the figures are measured, not edited.
"""

EAGLE3_SECTION = """
{heads}: an EAGLE-3 head (Li et al. 2025, "EAGLE-3: Scaling up Inference Acceleration of Large Language Models
via Training-Time Test"), in the format of the speculators library. It is one layer that reads the target's
hidden states, so it drafts for this target alone; its loss below is that of the first token that it drafts.
"""

DFLASH_SECTION = """
{heads}: a DFlash head (Chen et al. 2026, arXiv 2602.06036), in the format of the speculators library. It
drafts a whole block in one forward, from the target's hidden states, with the target's embeddings and output
layer. Its loss below is that of the first token that it drafts.
"""

# What the card says of each class of heads, and its loss.
HEADS: dict[type, tuple[str, Callable[..., float]]] = {
    Eagle3Head: (EAGLE3_SECTION, first_token_loss),
    DFlashHead: (DFLASH_SECTION, first_place_loss),
}

LENGTHS_TEXT = """
By draft length: {count} of the prompts, each by all drafters at all lengths and by the target alone in turns.
Accepted by place is the share of the drafts judged at the first, second, ... place of a draft.
"""

TRAINING = """
Any folder of text files will do: `*.txt` in UTF-8, with documents divided by `<|endoftext|>` lines (or by
empty lines, if there are none). Files whose names start with `heldout` are only evaluated on. Without such
a file about 1 % of the documents is held out, always the same ones.

The tokenizer is a byte-level BPE trained on the same texts. Documents are packed into rows of `--length`
tokens and shuffled in every epoch. Most steps cut the rows into quarters, which is faster; every
`--whole-every`-th step uses them whole. Matrices are trained with Muon, all other weights with AdamW, in
bf16 autocast, with a learning rate that falls linearly to zero. A drafter first learns from the texts with
cross-entropy, then (`--distil`) from the target by KL divergence, alternately on the texts and on stories
that the target itself continued at temperatures from 0.1 to 1 (`--sampled`). A target can have several
drafters, each in its own folder (`--name`). Weights are saved in bf16.

A head (`eagle3`) is trained on `--steps` tokens in a row from every place of a row. The first one is drafted
from the target's hidden states, each further one from the head's own output, which attends to the target's
part and to its own chain alone, as it will when it drafts. Each is compared with the target's distribution by
KL divergence, and counts 0.8 times as much as the one before it. The first half of the tokens are the texts,
the second half what the target wrote itself (`--sampled`, as above). Its embeddings are a copy of the
target's, which training leaves as they are, and its output layer starts as the target's.

A block head (`dflash`) is trained on blocks of `--block` rows, which begin at random places of a row, one for
every `--anchor-every` tokens. All places of a block are drafted at once, from what the target's hidden states
tell of the text before it, and compared with the target's distribution by KL divergence; each place counts
0.78 times as much as the one before it, and nothing counts after the end of a text. The texts are those of a
head.

If training was stopped or killed, the same command continues from the last checkpoint. If other programs
use the CPU, too, set `OMP_WAIT_POLICY=passive`: threads that spin while they wait for each other made
training up to ten times slower. `MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=8000000000` keeps large tensors'
memory, which can halve the time of training a head. A GPU is used if there is one.
"""

REPRODUCING = """
All randomness comes from the seeds in these commands; another machine or another version rounds
differently. The times include the effect of other programs on that machine, and exclude the sampling of the
target's texts. For other texts leave `--files` out and choose another `--out`: in this one the existing
tokenizer would be used.
"""

SPEED = """
Speculative decoding at gamma {gamma}: {count} held-out prompts (different openings of {words} words), at
most {new_tokens} new tokens, on {device}. The cost ratio is the time of a drafter step divided by that of a
target step. Milliseconds per token are medians of wall-clock time over whole texts, with and without the
drafter in turns.
"""

LIMITS_SECTION = """
## Limits

The models know only what their texts contain and write in the same manner; other prompts lead back to it or
to nonsense. There is no chat template and no filter. The context is 1,024 tokens. On a CPU run the pair in
fp32: in bf16, one token at a time and several at once are rounded differently, so greedy texts can differ
from plain decoding.
"""
