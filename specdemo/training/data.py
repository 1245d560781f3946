"""Text files -> documents -> shared tokenizer -> packed rows of token ids."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedTokenizerFast

SEPARATOR = "<|endoftext|>"
BOS, EOS, PAD = 0, 1, 2
SPECIAL_TOKENS = ["<|bos|>", "<|eos|>", "<|pad|>"]  # their positions are their ids

Encoded = list[NDArray[np.int32]]  # documents as token ids, each [T], from BOS to EOS


class BadInput(Exception):
    """The user's input cannot be used; the message explains it in one sentence."""


def read_documents(folder: Path, pattern: str = "*.txt") -> tuple[list[str], list[str]]:
    """Reads a folder of UTF-8 text files. Returns the training documents and the held-out documents.

    Files named ``heldout*`` are only used for evaluation. Without such a file about 1 % of the documents is
    held out. Which ones depends on their own text only, so it does not change with the choice of files."""
    if not folder.is_dir():
        raise BadInput(f"--data must be a folder of text files, which {folder} is not")
    try:
        matching = {file for file in folder.glob(pattern) if file.is_file()}
    except (ValueError, NotImplementedError):
        allowed = "a pattern of names in the data folder, such as *.txt"
        raise BadInput(f"--files must be {allowed}, not {pattern!a}") from None
    readable = matching | {*folder.glob("heldout*.txt")}
    evaluation = {file for file in readable if file.name.startswith("heldout")}
    files = sorted(matching - evaluation)
    if not files:
        raise BadInput(f"the data folder {folder} has no training text that matches {pattern}")
    training = [document for file in files for document in split_documents(file)]
    heldout = [document for file in sorted(evaluation) for document in split_documents(file)]
    if not heldout and training:
        heldout = [text for text in training if hash_fraction(text) < 0.01]
        heldout = heldout or [min(training, key=hash_fraction)]
    excluded = set(heldout)  # a held-out document is not trained on, even if a training file repeats it
    training = [document for document in training if document not in excluded]
    if not training:
        raise BadInput(f"the data folder {folder} has too little text: no document is left to train on")
    return training, heldout


def hash_fraction(document: str) -> float:
    """A number in [0, 1) that depends only on the text."""
    return int.from_bytes(hashlib.sha256(document.encode()).digest()[:8], "big") / 2**64


def split_documents(file: Path) -> list[str]:
    """A file's documents: divided by separators if it has any, otherwise by empty lines."""
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise BadInput(f"the file {file} is not UTF-8 text") from None
    parts = text.split(SEPARATOR) if SEPARATOR in text else text.split("\n\n")
    return [part.strip() for part in parts if part.strip()]


def shared_tokenizer(folder: Path, documents: list[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Loads the tokenizer saved in `folder`, or trains a byte-level BPE on `documents` and saves it there."""
    if (folder / "tokenizer.json").is_file():
        tokenizer = AutoTokenizer.from_pretrained(folder)
        if len(tokenizer) != vocab_size:
            size = f"{len(tokenizer)}, the size of the tokenizer in {folder}"
            raise BadInput(f"--vocab must be {size}: choose another --out to train another tokenizer")
        print(f"using the tokenizer in {folder}")
        return tokenizer
    smallest = len(SPECIAL_TOKENS) + 256
    if vocab_size < smallest:
        raise BadInput(f"--vocab must be at least {smallest} (every byte needs a token)")
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(documents, trainer)
    bos = SPECIAL_TOKENS[BOS]
    special = [(bos, BOS)]
    bpe.post_processor = processors.TemplateProcessing(f"{bos} $A", f"{bos} $A $B", special)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=bos,
        eos_token=SPECIAL_TOKENS[EOS],
        pad_token=SPECIAL_TOKENS[PAD],
        clean_up_tokenization_spaces=False,
        split_special_tokens=True,
        model_max_length=1024,
    )
    if len(tokenizer) != vocab_size:
        raise BadInput(f"--vocab must be at most {len(tokenizer)}: these texts do not give more tokens")
    tokenizer.save_pretrained(folder)
    return tokenizer


def encode_documents(tokenizer: PreTrainedTokenizerFast, documents: list[str]) -> Encoded:
    batches = (documents[i : i + 1000] for i in range(0, len(documents), 1000))
    return [
        np.array(ids + [EOS], dtype=np.int32)
        for batch in batches
        for ids in tokenizer(batch, verbose=False)["input_ids"]
    ]


def fingerprint(arrays: Sequence[np.ndarray]) -> str:
    """A short hash that identifies data or a model."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(array.tobytes())
    return digest.hexdigest()[:16]


class Rows:
    """Batches of packed rows as a pure function of the step, so that resuming needs only the step.

    Every epoch shuffles the documents, concatenates them and cuts rows of `length` tokens."""

    def __init__(self, encoded: Encoded, length: int, batch: int, seed: int):
        self.encoded, self.length, self.batch, self.seed = encoded, length, batch, seed
        self.per_epoch = sum(map(len, encoded)) // length
        if not self.per_epoch:
            raise BadInput(f"too little text: the documents do not fill one row of {length} tokens")
        self.epoch = -1

    def __call__(self, step: int) -> Tensor:  # int64 [batch, length]
        return torch.stack([self.row(i) for i in range(step * self.batch, (step + 1) * self.batch)])

    def row(self, index: int) -> Tensor:  # int64 [length]
        epoch, position = divmod(index, self.per_epoch)
        if epoch != self.epoch:
            order = np.random.default_rng([self.seed, epoch]).permutation(len(self.encoded))
            joined = np.concatenate([self.encoded[i] for i in order])
            self.rows = joined[: self.per_epoch * self.length].reshape(self.per_epoch, self.length)
            self.epoch = epoch
        return torch.from_numpy(self.rows[position].astype(np.int64))
