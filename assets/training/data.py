"""Text files -> documents -> token ids -> packed rows."""

import random
from hashlib import sha256
from pathlib import Path

import torch
from tokenizers import ByteLevelBPETokenizer
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer, LlamaForCausalLM, LogitsProcessorList, PreTrainedTokenizerFast

SEPARATOR = "<|endoftext|>"
BOS, EOS, PAD = 0, 1, 2
SPECIAL_TOKENS = ["<|bos|>", "<|eos|>", "<|pad|>"]  # their places are their ids
CONTEXT = 1024  # tokens
SAMPLED_ROWS, PROMPT_LENGTH, NEW_LENGTH = 64, 8, 248  # of one batch of text that the target writes


def read_documents(folder: Path, pattern: str) -> tuple[list[str], list[str]]:
    """The documents of a folder's UTF-8 files, to train on and held out. Without a file heldout*.txt about
    1 % are held out, chosen by their text alone."""
    heldout = [text for file in sorted(folder.glob("heldout*.txt")) for text in divided(file)]
    files = [file for file in sorted(folder.glob(pattern)) if not file.name.startswith("heldout")]
    documents = [text for file in files for text in divided(file)]
    if not heldout:
        heldout = [text for text in documents if sha256(text.encode()).digest()[0] < 3] or documents[:1]
    excluded = set(heldout)  # a held-out document is not trained on, even if a training file repeats it
    training = [text for text in documents if text not in excluded]
    if not training:
        raise SystemExit(f"the folder {folder} has no text to train on in files that match {pattern}")
    return training, heldout


def divided(file: Path) -> list[str]:
    """A file's documents: divided by separators if it has any, otherwise by empty lines."""
    text = file.read_text(encoding="utf-8")
    parts = text.split(SEPARATOR if SEPARATOR in text else "\n\n")
    return [part.strip() for part in parts if part.strip()]


def shared_tokenizer(folder: Path, documents: list[str], vocab: int) -> PreTrainedTokenizerFast:
    """The tokenizer that is saved in the folder, or else a new byte-level BPE."""
    if (folder / "tokenizer.json").is_file():
        return AutoTokenizer.from_pretrained(folder)
    bpe, (bos, eos, pad) = ByteLevelBPETokenizer(), SPECIAL_TOKENS
    bpe.train_from_iterator(documents, vocab, 0, show_progress=False, special_tokens=SPECIAL_TOKENS)
    bpe.post_processor = TemplateProcessing(f"{bos} $A", f"{bos} $A $B", [(bos, BOS)])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe._tokenizer,
        bos_token=bos,
        eos_token=eos,
        pad_token=pad,
        clean_up_tokenization_spaces=False,
        split_special_tokens=True,
        model_max_length=CONTEXT,
    )


def encoded(tokenizer: PreTrainedTokenizerFast, documents: list[str]) -> list[torch.Tensor]:
    """The token ids [T] of each document, from BOS to EOS."""
    return [torch.tensor([*ids, EOS]) for ids in tokenizer(documents, verbose=False)["input_ids"]]


def packed(documents: list[torch.Tensor], length: int, count: int, seed: int) -> list[torch.Tensor]:
    """So many rows [length], cut from the documents one after the other, which each epoch shuffles."""
    if sum(map(len, documents)) < length:
        raise SystemExit(f"too little text: it does not fill one row of {length} tokens")
    generator, rows = torch.Generator().manual_seed(seed), []
    while len(rows) < count:
        order = torch.randperm(len(documents), generator=generator).tolist()
        joined = torch.cat([documents[index] for index in order])
        rows += joined.split(length)[: len(joined) // length]
    return rows[:count]


@torch.no_grad()
def written_by(target: LlamaForCausalLM, documents: list[torch.Tensor], tokens: int) -> list[torch.Tensor]:
    """About so many tokens [T] that the target writes after the documents' first ones. Temperatures range
    from 0.1 to 1, because the pair is used greedily as well as sampled."""
    prompts = [ids[:PROMPT_LENGTH] for ids in documents if len(ids) > PROMPT_LENGTH]
    temperatures = torch.linspace(0.1, 1.0, SAMPLED_ROWS, device=target.device)[:, None]
    by_row = LogitsProcessorList([lambda _, logits: logits / temperatures])
    texts = []
    for _ in range(max(1, tokens // (SAMPLED_ROWS * (PROMPT_LENGTH + NEW_LENGTH)))):
        chosen = torch.stack(random.choices(prompts, k=SAMPLED_ROWS)).to(target.device)
        how = {"do_sample": True, "top_k": 0, "max_new_tokens": NEW_LENGTH, "pad_token_id": PAD}
        with torch.autocast(target.device.type, torch.bfloat16):
            written = target.generate(
                chosen, attention_mask=torch.ones_like(chosen), logits_processor=by_row, **how
            )
        texts += [row[row != PAD] for row in written.cpu()]
    return texts
