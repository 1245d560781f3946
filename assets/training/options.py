"""What the commands take: what is trained, and Trainer's own options, with defaults of this project."""

from dataclasses import dataclass
from pathlib import Path

from transformers import TrainingArguments
from transformers.hf_argparser import HfArg


@dataclass
class Options:
    """What is trained, and on what. The sizes are the target's."""

    data: Path = HfArg(help="folder of *.txt files; heldout*.txt are only scored on")
    pair: Path = HfArg(help="folder of the pair: target/, and a folder for each drafter")
    name: str | None = HfArg(default=None, help="folder in --pair, if not what is trained")
    files: str = HfArg(default="*.txt", help="which files of --data to train on, as a glob pattern")
    length: int = HfArg(default=1024, help="tokens of a row, a multiple of 4")
    whole_every: int = HfArg(default=4, help="use whole rows every N-th step, else quarters of them")
    vocab: int = HfArg(default=4096, help="target: tokens of the tokenizer")
    layers: int = HfArg(default=16, help="of a target, a drafter or a DFlash head")
    hidden: int = HfArg(default=256, help="hidden size of a target or a drafter")
    heads: int = HfArg(default=4, help="of attention")
    kv_heads: int = HfArg(default=2, help="of keys and values")
    ffn: int = HfArg(default=704, help="width of the MLPs")
    on_texts: float = HfArg(default=0.5, help="share of the steps that use the texts alone, first")
    sampled: int = HfArg(default=500_000, help="tokens that the target writes; 0: learn from the texts alone")
    draft_steps: int = HfArg(default=5, help="EAGLE-3: tokens drafted from the head's own outputs")
    block: int = HfArg(default=8, help="DFlash: rows of a block, of which the first is the last token")
    anchor_every: int = HfArg(default=4, help="DFlash: tokens of a row for each block that begins in it")


@dataclass
class Arguments(TrainingArguments):
    """How it is trained."""

    output_dir: str | None = ".training"  # of checkpoints, in a folder for each name
    max_steps: int = 2929
    per_device_train_batch_size: int = 4
    learning_rate: float = 0.006  # peak, of AdamW
    muon_learning_rate: float = HfArg(default=0.015, help="peak learning rate of the matrices, by Muon")
    warmup_steps: float = 0.02  # share of all steps
    adam_beta2: float = 0.95
    seed: int = 0
    logging_steps: float = 10
    logging_nan_inf_filter: bool = False
    save_total_limit: int | None = 1
    report_to: str | None = "none"
    remove_unused_columns: bool = False
    dataloader_pin_memory: bool = False
    train_sampling_strategy: str = "sequential"  # the rows are shuffled already
    use_cache: bool = True  # written into the model's config
