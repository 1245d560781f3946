"""Trains a target, and a drafter that learns from it: their losses, and how well they predict held-out
text."""

import os
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm
from transformers import DynamicCache, PreTrainedModel

from specdemo.runtime.lm import cache_argument
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
from specdemo.training.models import CONTEXT, DEVICE, embedding, load_trained, new_model, save
from specdemo.training.optimise import optimise
from specdemo.training.options import DFlashOptions, DrafterOptions, Eagle3Options, TargetOptions

SCORED = 40  # held-out documents that a checkpoint is scored on
SAMPLED_ROWS, PROMPT_LENGTH, NEW_LENGTH = 64, 8, 248  # of one batch of text that the target writes


def quartered(rows: Tensor, step: int, whole_every: int) -> Tensor:
    """Rows [B, T] on the device: whole on every `whole_every`-th step, else cut into quarters [4 B, T / 4].

    On a CPU attention over whole rows takes half of the time, and most stories fit in a quarter."""
    rows = rows if step % whole_every == 0 else rows.reshape(-1, rows.shape[1] // 4)
    return rows.to(DEVICE)


def logits_of(model: PreTrainedModel, rows: Tensor) -> Tensor:
    """Token ids [B, T] -> float32 logits [B, T, V], computed in bf16 autocast."""
    with torch.autocast(DEVICE.type, torch.bfloat16):
        return model(input_ids=rows, use_cache=False).logits.float()


def cross_entropy(model: PreTrainedModel, rows: Tensor) -> Tensor:
    """Mean nats per token of predicting every next token of `rows` [B, T]."""
    next_ids = F.pad(rows[:, 1:], (0, 1), value=-100)  # [B, T]; the last position has no next token: ignored
    return F.cross_entropy(logits_of(model, rows).flatten(0, 1), next_ids.flatten(), ignore_index=-100)


def distillation(model: PreTrainedModel, target: PreTrainedModel, rows: Tensor) -> Tensor:
    """Mean KL divergence from the target's next-token distribution to the model's, in nats per token of
    `rows` [B, T]."""
    with torch.no_grad():
        log_p = logits_of(target, rows).log_softmax(-1)  # [B, T, V]
    log_q = logits_of(model, rows).log_softmax(-1)  # [B, T, V]
    return F.kl_div(log_q.flatten(0, 1), log_p.flatten(0, 1), log_target=True, reduction="batchmean")


def compiled(loss: Callable[..., Tensor], compile_it: bool) -> Callable[..., Tensor]:
    """The loss, compiled if `compile_it`. Rows come in two shapes only, so each shape gets its own code."""
    return torch.compile(loss, dynamic=False) if compile_it else loss


@torch.no_grad()
def heldout_loss(model: PreTrainedModel, heldout: Encoded) -> float:
    """Mean nats per token over the documents, each evaluated on its own from BOS to EOS."""
    total, count = 0.0, 0
    for ids in heldout:
        row = torch.from_numpy(ids[:CONTEXT].astype(np.int64)).to(DEVICE)[None]  # [1, T]
        total += cross_entropy(model, row).item() * (row.shape[1] - 1)
        count += row.shape[1] - 1
    return total / max(1, count)


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

    Every second distillation step uses text that the target sampled itself (unless --sampled is 0)."""
    target, tokenizer = load_trained(options.out / "target")
    training, heldout = read_documents(options.data, options.files)
    encoded = encode_documents(tokenizer, training)
    model = new_model(options, len(tokenizer))
    rows = own_rows = Rows(encoded, options.length, options.batch, options.seed)
    data = fingerprint([*encoded, embedding(target)])  # for another target the data are different, too
    if options.distil and options.sampled:
        own_rows = target_rows(options, target, encoded, data)
    first_distilled = options.tokens // (options.batch * options.length)
    text_loss, target_loss = (compiled(loss, options.compile) for loss in (cross_entropy, distillation))

    def loss_at(step: int) -> Tensor:
        if step < first_distilled or not options.distil:
            return text_loss(model, quartered(rows(step), step, options.whole_every))
        distilled = step - first_distilled
        batch = own_rows(distilled // 2) if distilled % 2 else rows(step)
        return target_loss(model, target, quartered(batch, step, options.whole_every))

    heldout_ids = encode_documents(tokenizer, heldout)[:SCORED]
    score = partial(heldout_loss, model, heldout_ids)
    history = optimise(options, model, loss_at, options.tokens + options.distil, score, data)
    history["target"] = fingerprint([embedding(target)])
    save(model, tokenizer, options.out / options.name, history)


def target_rows(
    options: DrafterOptions | Eagle3Options | DFlashOptions,
    target: PreTrainedModel,
    encoded: Encoded,
    data: str,
) -> Rows:
    """About --sampled tokens of text that the target wrote. They are kept in --work for resuming."""
    file = options.work / f"target-text-{data}-{options.sampled}-{options.seed}.npy"
    if not file.is_file():
        texts = sample_texts(target, encoded, options.sampled, options.seed)
        file.parent.mkdir(parents=True, exist_ok=True)
        new = file.with_suffix(".new.npy")
        np.save(new, texts)
        os.replace(new, file)
    return Rows([row[row != PAD] for row in np.load(file)], options.length, options.batch, options.seed)


@torch.no_grad()
def sample_texts(target: PreTrainedModel, encoded: Encoded, tokens: int, seed: int) -> np.ndarray:
    """Continues training documents from their first tokens: int32 [N, PROMPT_LENGTH + NEW_LENGTH].

    Temperatures range from 0.1 to 1 within a batch, because the pair is used greedily as well as sampled."""
    prompts = [ids[:PROMPT_LENGTH] for ids in encoded if len(ids) > PROMPT_LENGTH]
    if not prompts:
        raise BadInput("the training documents are too short for the target to continue them")
    generator = np.random.default_rng(seed)
    torch.manual_seed(seed)
    temperatures = torch.linspace(0.1, 1.0, SAMPLED_ROWS, device=DEVICE)[:, None]  # [B, 1]
    batches = max(1, tokens // (SAMPLED_ROWS * (PROMPT_LENGTH + NEW_LENGTH)))
    texts, name = [], cache_argument(target)
    for _ in tqdm(range(batches), desc="text from the target", unit="batch"):
        chosen = np.stack([prompts[i] for i in generator.integers(len(prompts), size=SAMPLED_ROWS)])
        rows = last = torch.from_numpy(chosen.astype(np.int64)).to(DEVICE)  # [B, T]
        cache = DynamicCache(config=target.config)
        done = torch.zeros(SAMPLED_ROWS, 1, dtype=torch.bool, device=DEVICE)
        with torch.autocast(DEVICE.type, torch.bfloat16):
            for _ in range(NEW_LENGTH):
                output = target(input_ids=last, use_cache=True, logits_to_keep=1, **{name: cache})
                probabilities = (output.logits[:, -1].float() / temperatures).softmax(-1)  # [B, V]
                last = torch.multinomial(probabilities, 1).masked_fill(done, PAD)  # [B, 1]
                done |= last == EOS
                rows = torch.cat([rows, last], 1)
        texts.append(rows.cpu().numpy().astype(np.int32))
    return np.concatenate(texts)
