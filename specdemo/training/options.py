"""What the training commands take: each field is one option, with its default and its help."""

from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, ClassVar


def _checked(number: type, fits: Callable[[Any], bool], allowed: str, text: str) -> Any:
    try:
        value = number(text)
    except ValueError:
        value = None
    if value is None or not fits(value):
        raise ArgumentTypeError(f"must be {allowed}, not {text!a}")
    return value


natural = partial(_checked, int, lambda value: 0 <= value < 2**63, "a whole number from 0 up")
positive = partial(_checked, int, lambda value: value >= 1, "a whole number from 1 up")
rate = partial(_checked, float, lambda value: 0 < value < 10, "between 0 and 10")


def folder_name(text: str) -> str:
    if not text.isidentifier() or text == "target":  # the target has its own folder and checkpoint
        allowed = "letters, digits and underscores, no digit first, and not target"
        raise ArgumentTypeError(f"must be {allowed}, not {text!a}")
    return text


def option(kind: Callable[[str], Any], default: Any = MISSING, help_text: str = "") -> Any:
    """A field that is one option; `kind` parses its value. Without a default it must be given."""
    return field(default=default, metadata={"type": kind, "help": help_text})


@dataclass(frozen=True, kw_only=True)
class Options:
    """What all commands take."""

    command: ClassVar[str]
    data: Path = option(Path, help_text="folder of *.txt files; heldout*.txt are only evaluated on")
    out: Path = option(Path, help_text="folder of the pair: target/, a folder per drafter and README.md")
    threads: int = option(natural, 0, "CPU threads; 0: as many as PyTorch chooses")


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(Options):
    """What all training commands take. The defaults of the sizes are the target's."""

    files: str = option(str, "*.txt", "which files of --data to train on, as a glob pattern")
    seed: int = option(natural, 0)
    work: Path = option(Path, Path(".training"), "folder for checkpoints")
    tokens: int = option(positive, 12_000_000, "training tokens to see")
    heads: int = option(positive, 4)
    kv_heads: int = option(positive, 2)
    ffn: int = option(positive, 704)
    length: int = option(positive, 1024, "tokens per row")
    whole_every: int = option(positive, 4, "use whole rows every N-th step, else quarters of them")
    batch: int = option(positive, 4, "rows per optimiser step")
    lr: float = option(rate, 0.015, "peak learning rate of Muon")
    embedding_lr: float = option(rate, 0.006, "peak learning rate of AdamW")
    compile: bool = option(
        bool, False, "torch.compile the loss: a quarter faster on a CPU, needs a C++ compiler"
    )
    every: int = option(natural, 120, "seconds between checkpoints")


@dataclass(frozen=True, kw_only=True)
class ModelOptions(TrainingOptions):
    """What training a model of its own takes."""

    layers: int = option(positive, 16)
    hidden: int = option(positive, 256)


@dataclass(frozen=True, kw_only=True)
class TargetOptions(ModelOptions):
    """Train the shared tokenizer and the target."""

    command = "target"
    name: ClassVar[str] = "target"
    vocab: int = option(positive, 4096, "size of the tokenizer's vocabulary")


@dataclass(frozen=True, kw_only=True)
class DrafterOptions(ModelOptions):
    """Train the drafter, then distil the target into it."""

    command = "drafter"
    name: str = option(folder_name, "drafter", "its folder in --out, next to the target's")
    tokens: int = option(positive, 3_000_000, "training tokens to see before distillation")
    layers: int = option(positive, 1)
    hidden: int = option(positive, 192)
    heads: int = option(positive, 3)
    kv_heads: int = option(positive, 1)
    ffn: int = option(positive, 512)
    distil: int = option(natural, 3_000_000, "tokens of distillation after --tokens")
    sampled: int = option(natural, 500_000, "tokens that the target writes for it, by 16,384")


@dataclass(frozen=True, kw_only=True)
class Eagle3Options(TrainingOptions):
    """Train an EAGLE-3 head for the target, on the texts and on the target's own writing."""

    command = "eagle3"
    name: str = option(folder_name, "eagle3", "its folder in --out, next to the target's")
    tokens: int = option(positive, 3_000_000, "training tokens to see")
    length: int = option(positive, 512, "tokens per row")
    embedding_lr: float = option(rate, 0.002, "peak learning rate of AdamW")
    steps: int = option(positive, 5, "tokens drafted from the head's own outputs, in training")
    sampled: int = option(natural, 500_000, "tokens that the target writes for it, by 16,384")


@dataclass(frozen=True, kw_only=True)
class DFlashOptions(TrainingOptions):
    """Train a DFlash head for the target, on the texts and on the target's own writing."""

    command = "dflash"
    name: str = option(folder_name, "dflash", "its folder in --out, next to the target's")
    tokens: int = option(positive, 3_000_000, "training tokens to see")
    length: int = option(positive, 512, "tokens per row")
    layers: int = option(positive, 2)
    block: int = option(positive, 8, "rows of a block: the last token, and places to draft")
    anchor_every: int = option(positive, 4, "tokens of a row for each block that begins in it")
    embedding_lr: float = option(rate, 0.004, "peak learning rate of AdamW")
    sampled: int = option(natural, 500_000, "tokens that the target writes for it, by 16,384")


@dataclass(frozen=True, kw_only=True)
class ReportOptions(Options):
    """Measure the target with each of its drafters and write the model card."""

    command = "report"
    sources: Path | None = option(Path, None, "markdown file about where the texts come from, for the card")
    prompts: int = option(positive, 40, "held-out prompts to measure on")


def parse(
    argv: list[str] | None,
) -> TargetOptions | DrafterOptions | Eagle3Options | DFlashOptions | ReportOptions:
    about = "Train a speculative-decoding pair from text files."
    parser = ArgumentParser(prog="python -m specdemo.training", description=about)
    commands = parser.add_subparsers(dest="command", required=True)
    every = (TargetOptions, DrafterOptions, Eagle3Options, DFlashOptions, ReportOptions)
    kinds = {kind.command: kind for kind in every}
    for name, kind in kinds.items():
        command = commands.add_parser(name, help=kind.__doc__, description=kind.__doc__)
        for item in fields(kind):
            flag, default = "--" + item.name.replace("_", "-"), item.default
            parse_value, about = item.metadata["type"], item.metadata["help"]
            if item.type is bool:
                command.add_argument(flag, action="store_true", help=about)
            elif default is MISSING:
                command.add_argument(flag, required=True, type=parse_value, help=about)
            else:
                about += f" (default {default})" if default is not None else ""
                command.add_argument(flag, default=default, type=parse_value, help=about)
    given = vars(parser.parse_args(argv))
    return kinds[given.pop("command")](**given)
