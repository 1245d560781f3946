"""Command line of the training script: ``python -m specdemo.training {target,drafter,report} --data DIR --out DIR``."""

import argparse
import sys

import torch

from specdemo.loading.errors import PairError
from specdemo.training.data import BadInput
from specdemo.training.train import train_drafter, train_target


def main(argv=None):
    """Run one command; returns the exit status (2: bad input, explained in one sentence on stderr)."""
    args = parse(argv)
    if args.threads:
        torch.set_num_threads(args.threads)
    try:
        args.run(args)
    except (BadInput, PairError, OSError) as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        goes_on = "" if args.command == "report" else ": the same command goes on from the last checkpoint"
        print(f"stopped{goes_on}", file=sys.stderr)
        return 130
    return 0


def parse(argv):
    parser = argparse.ArgumentParser(
        prog="python -m specdemo.training", description="Train a speculative-decoding pair from text files."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    target = commands.add_parser("target", help="train the shared tokenizer and the target")
    drafter = commands.add_parser("drafter", help="train the drafter, then distil the target into it")
    report = commands.add_parser(
        "report", help="measure the target with each of its drafters and write the model card"
    )
    target.add_argument(
        "--vocab", type=positive, default=4096, help="size of the tokenizer's vocabulary (4096)"
    )
    add_training(target, train_target, tokens=12_000_000, layers=16, hidden=256, heads=4, kv_heads=2, ffn=704)
    target.set_defaults(name="target")
    add_training(drafter, train_drafter, tokens=3_000_000, layers=1, hidden=192, heads=3, kv_heads=1, ffn=512)
    drafter.add_argument(
        "--name",
        type=folder_name,
        default="drafter",
        help="its folder in --out, beside the target's (drafter)",
    )
    drafter.add_argument(
        "--distil", type=natural, default=3_000_000, help="tokens of distillation after --tokens (3,000,000)"
    )
    drafter.add_argument(
        "--sampled",
        type=natural,
        default=500_000,
        help="tokens that the target writes for it, by 16,384 (500,000)",
    )
    report.set_defaults(run=write_report)
    report.add_argument("--sources", help="markdown file about where the texts come from, for the card")
    report.add_argument("--prompts", type=positive, default=40, help="held-out prompts to measure on (40)")
    for command in (target, drafter):
        command.add_argument(
            "--files", default="*.txt", help="which files of --data to train on, as a glob pattern"
        )
        command.add_argument("--seed", type=natural, default=0)
        command.add_argument("--work", default=".training", help="folder for checkpoints (.training)")
    for command in (target, drafter, report):
        command.add_argument(
            "--data", required=True, help="folder of *.txt files; heldout*.txt are only evaluated on"
        )
        command.add_argument(
            "--out",
            required=True,
            help="folder of the pair; gets target/, a folder for each drafter and README.md",
        )
        command.add_argument(
            "--threads", type=natural, default=0, help="CPU threads (0: as many as PyTorch chooses)"
        )
    return parser.parse_args(argv)


def add_training(command, run, tokens, layers, hidden, heads, kv_heads, ffn):
    command.set_defaults(run=run)
    command.add_argument(
        "--tokens", type=positive, default=tokens, help=f"training tokens to see ({tokens:,})"
    )
    command.add_argument("--layers", type=positive, default=layers)
    command.add_argument("--hidden", type=positive, default=hidden)
    command.add_argument("--heads", type=positive, default=heads)
    command.add_argument("--kv-heads", type=positive, default=kv_heads)
    command.add_argument("--ffn", type=positive, default=ffn)
    command.add_argument("--length", type=positive, default=1024, help="tokens per row (1024)")
    command.add_argument(
        "--whole-every",
        type=positive,
        default=4,
        help="use whole rows every N-th step, else quarters of them (4)",
    )
    command.add_argument("--batch", type=positive, default=4, help="rows per optimiser step (4)")
    command.add_argument("--lr", type=rate, default=0.015, help="peak learning rate of Muon (0.015)")
    command.add_argument(
        "--embedding-lr", type=rate, default=0.006, help="peak learning rate of AdamW (0.006)"
    )
    command.add_argument(
        "--compile",
        action="store_true",
        help="torch.compile the loss: a quarter faster on a CPU, needs a C++ compiler",
    )
    command.add_argument("--every", type=natural, default=120, help="seconds between checkpoints (120)")


def write_report(args):
    from specdemo.training.report import write_card  # needs the engine, which training does not

    write_card(args)


def folder_name(text):
    if not text.isidentifier() or text == "target":  # the target's own folder and checkpoint stay its own
        raise argparse.ArgumentTypeError(
            f"must be letters, digits and underscores, no digit first, and not target, not {text!a}"
        )
    return text


def natural(text):
    return number(text, int, lambda value: 0 <= value < 2**63, "a whole number from 0 up")


def positive(text):
    return number(text, int, lambda value: value >= 1, "a whole number from 1 up")


def rate(text):
    return number(text, float, lambda value: 0 < value < 10, "between 0 and 10")


def number(text, kind, fits, allowed):
    try:
        value = kind(text)
    except ValueError:
        value = None
    if value is None or not fits(value):
        raise argparse.ArgumentTypeError(f"must be {allowed}, not {text!a}")
    return value


if __name__ == "__main__":
    sys.exit(main())
