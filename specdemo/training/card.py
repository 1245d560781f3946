"""The model card of a trained target and its drafters."""

import re
import shlex
from html import escape

from specdemo.bench.measure import (
    acceptance_rate,
    cost_ratio,
    first_differences,
    ms_per_token,
    tokens_per_round,
)
from specdemo.events.metrics import ratio
from specdemo.loading.fetch import is_speculator
from specdemo.training.data import BadInput, read_documents
from specdemo.training.figures import (
    GAMMA,
    PROMPT_WORDS,
    SAMPLES,
    Comparison,
    Loss,
    compare,
    first_words,
    interval,
    measure_losses,
    read_histories,
)
from specdemo.training.models import History
from specdemo.training.options import ReportOptions


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
    comparisons = {drafter: compare(out, drafter, prompts) for drafter in drafters}
    sources = "The files below; their origin was not stated."
    if options.sources:
        sources = options.sources.read_text(encoding="utf-8")
    heads = [drafter for drafter in drafters if is_speculator(out / drafter)]
    card = [
        INTRODUCTION.format(drafters=folders(drafters)),
        HEADS.format(heads=folders(heads)) if heads else "",
        "## Texts",
        sources,
        file_table(files, training, heldout),
        "## Training",
        TRAINING,
        commands(options, histories),
        "## Figures",
        loss_table(losses, documents),
        speed_table(comparisons),
        head_verdicts(heads, comparisons, histories),
        "## Samples",
        samples(comparisons[drafters[0]]),
        LIMITS,
    ]
    (out / "README.md").write_text(
        "\n\n".join(part.strip() for part in card if part) + "\n", encoding="utf-8"
    )


def folders(names: list[str]) -> str:
    """`a/`, `b/` and `c/`"""
    *most, last = [f"`{name}/`" for name in names]
    return f"{', '.join(most)} and {last}" if most else last


def head_verdicts(
    heads: list[str], comparisons: dict[str, dict[str, Comparison]], histories: dict[str, History]
) -> str:
    """Whether each head's drafts are accepted more often than those of the drafter named "drafter"."""
    if "drafter" not in comparisons:
        return ""
    sentences = []
    for head in heads:
        for decoding, comparison in comparisons[head].items():
            own = acceptance_rate(comparison.drafting)
            other = acceptance_rate(comparisons["drafter"][decoding].drafting)
            if own is None or other is None:
                continue
            which = "more" if own >= other else "less"
            sentences.append(
                f"{decoding.capitalize()}, `{head}/` has {own:.3f} of its judged drafts accepted, "
                f"{abs(round(own, 3) - round(other, 3)):.3f} {which} than `drafter/`."
            )
            own_speedup, other_speedup = (
                ratio(ms_per_token(one.plain), ms_per_token(one.drafting))
                for one in (comparison, comparisons["drafter"][decoding])
            )
            if own_speedup is not None and other_speedup is not None and own_speedup < other_speedup:
                sentences.append(
                    f"With it the target is {own_speedup:.2f} times as fast, with `drafter/` "
                    f"{other_speedup:.2f} times, because its drafts take longer."
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
    return table(
        "use | where | documents | characters", [f"{a} | {b} | {c:,} | {d:,}" for a, b, c, d in rows]
    )


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
            as_option(key, value) for key, value in sorted(given.items()) if value is not False
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


def as_option(key: str, value: object) -> str:
    name = "--" + key.replace("_", "-")
    return name if value is True else f"{name} {shlex.quote(str(value))}"


def loss_table(losses: dict[str, Loss], documents: int) -> str:
    rows = [
        f"{name} | {loss.parameters / 1e6:.1f} M | {loss.per_token:.3f} | {loss.per_character:.3f}"
        for name, loss in losses.items()
    ]
    start = f"Held-out loss, over the {documents:,} held-out documents that fit into the context:"
    return f"{start}\n\n" + table("model | parameters | nats per token | nats per character", rows)


def speed_table(comparisons: dict[str, dict[str, Comparison]]) -> str:
    """All drafters in all settings, one row each."""
    rows = []
    for drafter, by_decoding in comparisons.items():
        for decoding, comparison in by_decoding.items():
            plain, drafting = comparison.plain, comparison.drafting
            low, high = interval(drafting)
            ms, plain_ms = ms_per_token(drafting), ms_per_token(plain)
            cells = [
                drafter,
                decoding,
                number(acceptance_rate(drafting), 3),
                f"{low:.3f} to {high:.3f}",
                number(tokens_per_round(drafting), 2),
                number(cost_ratio(plain, drafting, GAMMA), 3),
                f"{ms:.2f}",
                f"{plain_ms:.2f}",
                number(ratio(plain_ms, ms), 2),
            ]
            rows.append(" | ".join(cells))
    greedy = [by_decoding["greedy"] for by_decoding in comparisons.values()]
    same = sum(first_differences(one.drafting, one.plain).count(None) for one in greedy)
    count = len(greedy[0].plain)
    head = (
        "drafter | decoding | accepted / judged | 95 % interval | tokens per round | cost ratio"
        " | ms | without | speed-up"
    )
    explanation = SPEED.format(
        gamma=GAMMA, count=count, words=PROMPT_WORDS, new_tokens=greedy[0].new_tokens, device=greedy[0].device
    ).strip()
    verdict = f"Greedy, {same} of {count * len(greedy)} texts are the same as without a drafter."
    return f"{explanation}\n\n{table(head, rows)}\n\n{verdict}"


def number(value: float | None, places: int) -> str:
    return "–" if value is None else f"{value:.{places}f}"


def samples(comparisons: dict[str, Comparison]) -> str:
    """What the pair wrote for the first prompts."""
    count = min(SAMPLES, *(len(comparison.texts) for comparison in comparisons.values()))
    length = max(comparison.new_tokens for comparison in comparisons.values())
    parts = [f"The first {count} prompts, not selected. A text that {length} tokens cut off ends in […]."]
    for decoding, comparison in comparisons.items():
        for text in comparison.texts[:count]:
            end = " […]" if text.cut else ""
            parts.append(
                f"{decoding}:\n\n> **{quoted(text.prompt)}**{quoted(text.continuation.rstrip())}{end}"
            )
    return "\n\n".join(parts)


def quoted(text: str) -> str:
    """Escaped for a quotation in Markdown."""
    return re.sub(r"\s*\n\s*", "\n> \n> ", re.sub(r"([*_`\\])", r"\\\1", escape(text, quote=False)))


def table(head: str, rows: list[str]) -> str:
    return "\n".join([f"| {head} |", "|" + "---|" * (head.count("|") + 1), *(f"| {row} |" for row in rows)])


INTRODUCTION = """
---
library_name: transformers
pipeline_tag: text-generation
---

# Target and drafter

Small Llama models with one tokenizer, made to show speculative decoding on an ordinary computer: a drafter
({drafters}) proposes tokens, the target (`target/`) checks them. Written by
`python -m specdemo.training report`; the figures are measured, not edited.
"""

HEADS = """
{heads}: an EAGLE-3 head (Li et al. 2025, "EAGLE-3: Scaling up Inference Acceleration of Large Language Models
via Training-Time Test"), in the format of the speculators library. It is one layer that reads the target's
hidden states, so it drafts for this target alone; its loss below is that of the first token that it drafts.
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

LIMITS = """
## Limits

The models know only what their texts contain and write in the same manner; other prompts lead back to it or
to nonsense. There is no chat template and no filter. The context is 1,024 tokens. On a CPU run the pair in
fp32: in bf16, one token at a time and several at once are rounded differently, so greedy texts can differ
from plain decoding.
"""
