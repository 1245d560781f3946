"""The command line: ``python -m specdemo.training {target,drafter,eagle3,dflash,report} --data DIR --out
DIR``."""

import sys

import torch

from specdemo.errors import PairError
from specdemo.training.data import BadInput
from specdemo.training.dflash import train_dflash
from specdemo.training.eagle3 import train_eagle3
from specdemo.training.options import DFlashOptions, Eagle3Options, ReportOptions, TargetOptions, parse
from specdemo.training.train import train_drafter, train_target
from specdemo.words.message import harmless


def main(argv: list[str] | None = None) -> int:
    """Runs one command and returns the exit status (2: bad input, explained in one sentence on stderr)."""
    options = parse(argv)
    if options.threads:
        torch.set_num_threads(options.threads)
    try:
        if isinstance(options, ReportOptions):
            from specdemo.training.card import write_card  # imports the engine, which training doesn't need

            write_card(options)
        elif isinstance(options, TargetOptions):
            train_target(options)
        elif isinstance(options, Eagle3Options):
            train_eagle3(options)
        elif isinstance(options, DFlashOptions):
            train_dflash(options)
        else:
            train_drafter(options)
    except (BadInput, PairError, OSError) as problem:
        print(harmless(f"error: {problem}"), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        hint = "" if isinstance(options, ReportOptions) else ": run the same command again to continue"
        print(f"stopped{hint}", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
