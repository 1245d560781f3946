"""Trains a target, and a drafter that learns from it."""

import os
from functools import partial

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedModel

from specdemo.training.data import (
    EOS,
    PAD,
    BadInput,
    Encoded,
    Rows,
    encode_documents,
    fingerprint,
    read_documents,
    shared_tokenizer,
)
from specdemo.training.losses import SCORED, compiled, cross_entropy, distillation, heldout_loss, quartered
from specdemo.training.models import DEVICE, embedding, load, new_model, save
from specdemo.training.optimise import optimise
from specdemo.training.options import DrafterOptions, Eagle3Options, TargetOptions


def train_target(options: TargetOptions) -> None:
    """Trains the tokenizer (unless there is one) and the target; saves them in OUT/target."""
    folder = options.out / "target"
    training, heldout = read_documents(options.data, options.files)
    tokenizer = shared_tokenizer(folder, training, options.vocab)
    encoded = encode_documents(tokenizer, training)
    model = new_model(options, len(tokenizer))
    rows = Rows(encoded, options.length, options.batch, options.seed)
    text_loss = compiled(cross_entropy, options.compile)

    def loss_at(step: int) -> Tensor:
        return text_loss(model, quartered(rows(step), step, options.whole_every))

    heldout_ids = encode_documents(tokenizer, heldout)[:SCORED]
    score = partial(heldout_loss, model, heldout_ids)
    history = optimise(options, model, loss_at, options.tokens, score, fingerprint(encoded))
    save(model, tokenizer, folder, history)


def train_drafter(options: DrafterOptions) -> None:
    """Trains the drafter with cross-entropy, then distils the target into it; saves it in OUT/NAME.

    Every second distillation step uses text that the target sampled itself (unless --sampled is 0).
    """
    target, tokenizer = load(options.out / "target")
    training, heldout = read_documents(options.data, options.files)
    encoded = encode_documents(tokenizer, training)
    model = new_model(options, len(tokenizer))
    rows = target_rows = Rows(encoded, options.length, options.batch, options.seed)
    data = fingerprint([*encoded, embedding(target)])  # for another target the data are different, too
    if options.distil and options.sampled:
        texts = target_texts(options, target, encoded, data)
        target_rows = Rows(texts, options.length, options.batch, options.seed)
    first_distilled = options.tokens // (options.batch * options.length)
    text_loss, target_loss = (compiled(loss, options.compile) for loss in (cross_entropy, distillation))

    def loss_at(step: int) -> Tensor:
        if step < first_distilled or not options.distil:
            return text_loss(model, quartered(rows(step), step, options.whole_every))
        distilled = step - first_distilled
        batch = target_rows(distilled // 2) if distilled % 2 else rows(step)
        return target_loss(model, target, quartered(batch, step, options.whole_every))

    heldout_ids = encode_documents(tokenizer, heldout)[:SCORED]
    score = partial(heldout_loss, model, heldout_ids)
    history = optimise(options, model, loss_at, options.tokens + options.distil, score, data)
    history["target"] = fingerprint([embedding(target)])
    save(model, tokenizer, options.out / options.name, history)


def target_texts(
    options: DrafterOptions | Eagle3Options, target: PreTrainedModel, encoded: Encoded, data: str
) -> Encoded:
    """About --sampled tokens of text that the target wrote. They are kept in --work for resuming."""
    file = options.work / f"target-text-{data}-{options.sampled}-{options.seed}.npy"
    if not file.is_file():
        texts = sample_texts(target, encoded, options.sampled, options.seed)
        file.parent.mkdir(parents=True, exist_ok=True)
        new = file.with_suffix(".new.npy")
        np.save(new, texts)
        os.replace(new, file)
    return [row[row != PAD] for row in np.load(file)]


@torch.no_grad()
def sample_texts(
    target: PreTrainedModel,
    encoded: Encoded,
    tokens: int,
    seed: int,
    width: int = 64,
    prompt_length: int = 8,
    new_tokens: int = 248,
) -> np.ndarray:
    """Continues training documents from their first tokens: int32 [N, prompt_length + new_tokens].

    Temperatures range from 0.1 to 1 within a batch, because the pair is used greedily as well as sampled.
    """
    prompts = [ids[:prompt_length] for ids in encoded if len(ids) > prompt_length]
    if not prompts:
        raise BadInput("the training documents are too short for the target to continue them")
    generator = np.random.default_rng(seed)
    torch.manual_seed(seed)
    temperatures = torch.linspace(0.1, 1.0, width, device=DEVICE)[:, None]  # [B, 1]
    batches = max(1, tokens // (width * (prompt_length + new_tokens)))
    texts = []
    for _ in tqdm(range(batches), desc="text from the target", unit="batch"):
        chosen = np.stack([prompts[i] for i in generator.integers(len(prompts), size=width)])
        rows = last = torch.from_numpy(chosen.astype(np.int64)).to(DEVICE)  # [B, T]
        cache, done = None, torch.zeros(width, 1, dtype=torch.bool, device=DEVICE)
        with torch.autocast(DEVICE.type, torch.bfloat16):
            for _ in range(new_tokens):
                output = target(input_ids=last, past_key_values=cache, use_cache=True, logits_to_keep=1)
                cache = output.past_key_values
                probabilities = (output.logits[:, -1].float() / temperatures).softmax(-1)  # [B, V]
                last = torch.multinomial(probabilities, 1).masked_fill(done, PAD)  # [B, 1]
                done |= last == EOS
                rows = torch.cat([rows, last], 1)
        texts.append(rows.cpu().numpy().astype(np.int32))
    return np.concatenate(texts)
