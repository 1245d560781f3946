"""Trains a target, or a drafter for it: python -m assets.training.train KIND --data DIR --pair PAIR, see
README.md."""

import json
import shlex
import sys

import torch
import transformers
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, HfArgumentParser, LlamaForCausalLM, set_seed

from assets.training.data import encoded, packed, read_documents, shared_tokenizer, written_by
from assets.training.dflash import DFlashTrainer
from assets.training.eagle3 import Eagle3Trainer
from assets.training.options import Arguments, Options
from assets.training.trainer import DrafterTrainer, PairTrainer, TargetTrainer

KINDS: dict[str, type[PairTrainer]] = {
    "target": TargetTrainer,
    "drafter": DrafterTrainer,
    "eagle3": Eagle3Trainer,
    "dflash": DFlashTrainer,
}


def main(argv: list[str]) -> None:
    parser = HfArgumentParser((Options, Arguments), description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    options, args, given = parser.parse_args_into_dataclasses(argv)
    kind, name = KINDS[given.kind], options.name or given.kind
    args.output_dir += f"/{name}"
    set_seed(args.seed)
    training, heldout = read_documents(options.data, options.files)
    folder, target = options.pair / "target", None
    if given.kind == "target":
        tokenizer = shared_tokenizer(folder, training, options.vocab)
    else:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        target = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        target.to(args.device).requires_grad_(False)
    rows = rows_of(kind, options, args, encoded(tokenizer, training), target)
    data = {"train_dataset": rows, "eval_dataset": encoded(tokenizer, heldout)}
    trainer = kind(kind.new(options, target, len(tokenizer)), args, **data)
    trainer.options, trainer.target = options, target
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    made = {
        "command": shlex.join(["python", "-m", "assets.training.train", *argv]),
        "heldout_loss": trainer.evaluate()["eval_loss"],
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }
    folder = options.pair / name
    trainer.save(folder, tokenizer)
    (folder / "training.json").write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


def rows_of(
    kind: type[PairTrainer],
    options: Options,
    args: Arguments,
    documents: list[Tensor],
    target: LlamaForCausalLM | None,
) -> list[dict[str, Tensor]]:
    """The rows of all steps, one after the other: of the documents, or of what the target wrote."""
    batch, first = args.per_device_train_batch_size, int(options.on_texts * args.max_steps)
    shape = options.length, args.max_steps * batch, args.seed
    rows, steps = packed(documents, *shape), range(args.max_steps)
    if target is not None and options.sampled:
        own = packed(written_by(target, documents, options.sampled), *shape)
        for step in steps[first + kind.own_every - 1 :: kind.own_every]:
            rows[step * batch : (step + 1) * batch] = own[step * batch : (step + 1) * batch]
    return [{"input_ids": row} for row in rows]


if __name__ == "__main__":
    main(sys.argv[1:])
