"""Text files -> documents -> shared tokenizer -> packed rows of token ids."""

import hashlib
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

SEPARATOR = "<|endoftext|>"
BOS, EOS, PAD = 0, 1, 2
SPECIAL_TOKENS = ["<|bos|>", "<|eos|>", "<|pad|>"]  # their positions are their ids


class BadInput(Exception):
    """Something the user gave us cannot be used; the message is one sentence for them."""


def read_documents(folder, pattern="*.txt"):
    """Read a folder of UTF-8 text files and split it into documents.

    Files named ``heldout*`` are only ever used for evaluation. Without such a file about 1 % of the documents is held out: which
    ones, their own texts decide, so that it is the same ones for every choice of files.
    Returns (training documents, held-out documents), two lists of strings.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise BadInput(f"--data must be a folder of text files, which {folder} is not")
    try:
        chosen = {file for file in folder.glob(pattern) if file.is_file()}
    except (ValueError, NotImplementedError):
        raise BadInput(
            f"--files must be a pattern of names in the data folder, such as *.txt, not {pattern!a}"
        ) from None
    apart = {file for file in chosen.union(folder.glob("heldout*.txt")) if file.name.startswith("heldout")}
    files = sorted(chosen - apart)
    if not files:
        raise BadInput(f"the data folder {folder} has no training text that matches {pattern}")
    training = [document for file in files for document in split_documents(file)]
    heldout = [document for file in sorted(apart) for document in split_documents(file)]
    if not heldout and training:
        heldout = [document for document in training if lot(document) < 0.01] or [min(training, key=lot)]
    known = set(heldout)  # a document that is also held out must not be trained on, whatever file it is in
    training = [document for document in training if document not in known]
    if not training:
        raise BadInput(f"the data folder {folder} has too little text: no document is left to train on")
    return training, heldout


def lot(document):
    """A number from 0 to 1 that depends on nothing but the text."""
    return int.from_bytes(hashlib.sha256(document.encode()).digest()[:8], "big") / 2**64


def split_documents(file):
    """Documents of one file: between separator lines where there are any, else between empty lines."""
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise BadInput(f"the file {file} is not UTF-8 text") from None
    parts = text.split(SEPARATOR) if SEPARATOR in text else text.split("\n\n")
    return [part.strip() for part in parts if part.strip()]


def shared_tokenizer(folder, documents, vocab):
    """Load the tokenizer saved in `folder`, or train a byte-level BPE on `documents` and save it there."""
    if (Path(folder) / "tokenizer.json").is_file():
        tokenizer = AutoTokenizer.from_pretrained(folder)
        if len(tokenizer) != vocab:
            raise BadInput(
                f"--vocab must be {len(tokenizer)}, as {folder} has a tokenizer already: for another one choose another --out"
            )
        print(f"the tokenizer in {folder} is used again")
        return tokenizer
    if vocab < len(SPECIAL_TOKENS) + 256:
        raise BadInput(f"--vocab must be at least {len(SPECIAL_TOKENS) + 256} (every byte needs a token)")
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.train_from_iterator(
        documents,
        trainers.BpeTrainer(
            vocab_size=vocab,
            special_tokens=SPECIAL_TOKENS,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    bos = SPECIAL_TOKENS[BOS]
    bpe.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A $B", special_tokens=[(bos, BOS)]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=bos,
        eos_token=SPECIAL_TOKENS[EOS],
        pad_token=SPECIAL_TOKENS[PAD],
        clean_up_tokenization_spaces=False,
        split_special_tokens=True,
        model_max_length=1024,
    )
    if len(tokenizer) != vocab:
        raise BadInput(f"--vocab must be at most {len(tokenizer)}: these texts do not give more tokens")
    tokenizer.save_pretrained(folder)
    return tokenizer


def encode_documents(tokenizer, documents):
    """Token ids of every document, each as an array that starts with BOS and ends with EOS."""
    batches = (documents[i : i + 1000] for i in range(0, len(documents), 1000))
    return [
        np.array(ids + [EOS], dtype=np.int32)
        for batch in batches
        for ids in tokenizer(batch, verbose=False)["input_ids"]
    ]


def fingerprint(encoded):
    """Short hash of arrays (the encoded documents), by which a checkpoint recognises its data."""
    digest = hashlib.sha256()
    for ids in encoded:
        digest.update(ids.tobytes())
    return digest.hexdigest()[:16]


class Rows:
    """Batches of packed rows as a pure function of the step, so that resuming needs nothing but the step.

    Every epoch shuffles the documents anew, joins them end to end and cuts rows of `length` tokens.
    """

    def __init__(self, encoded, length, batch, seed):
        self.encoded, self.length, self.batch, self.seed = encoded, length, batch, seed
        self.per_epoch = sum(map(len, encoded)) // length
        if not self.per_epoch:
            raise BadInput(f"too little text: the documents do not fill one row of {length} tokens")
        self.epoch = -1

    def __call__(self, step):
        """Rows of training step `step`: int64 tensor [batch, length]."""
        return torch.stack([self.row(i) for i in range(step * self.batch, (step + 1) * self.batch)])

    def row(self, index):
        epoch, position = divmod(index, self.per_epoch)
        if epoch != self.epoch:
            order = np.random.default_rng([self.seed, epoch]).permutation(len(self.encoded))
            joined = np.concatenate([self.encoded[i] for i in order])
            self.rows = joined[: self.per_epoch * self.length].reshape(self.per_epoch, self.length)
            self.epoch = epoch
        return torch.from_numpy(self.rows[position].astype(np.int64))
