"""One resumable training loop, and what the target and the drafter learn in it."""

import math
import os
import pickle
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor
from torch.optim import Optimizer
from tqdm import tqdm
from transformers import PreTrainedModel

from specdemo.runtime.device import cpu_name
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
from specdemo.training.models import CONTEXT, DEVICE, History, embedding, load, new_model, save
from specdemo.training.options import DrafterOptions, TargetOptions

# Options that may differ when training resumes from a checkpoint.
MAY_CHANGE = ("name", "data", "out", "work", "threads", "every", "tokens")

Progress = tuple[int, float, list[int]]  # steps done, seconds taken, every value that --tokens had


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

    heldout_ids = encode_documents(tokenizer, heldout)
    history = optimise(options, model, loss_at, options.tokens, heldout_ids, fingerprint(encoded))
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

    heldout_ids = encode_documents(tokenizer, heldout)
    history = optimise(options, model, loss_at, options.tokens + options.distil, heldout_ids, data)
    history["target"] = fingerprint([embedding(target)])
    save(model, tokenizer, options.out / options.name, history)


def quartered(rows: Tensor, step: int, whole_every: int) -> Tensor:
    """Rows [B, T] on the device: whole on every `whole_every`-th step, else cut into quarters [4 B, T / 4].

    On a CPU attention over whole rows takes half of the time, and most stories fit in a quarter.
    """
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
    """Rows come in two shapes only, so each shape gets its own code."""
    return torch.compile(loss, dynamic=False) if compile_it else loss


def optimise(
    options: TargetOptions | DrafterOptions,
    model: PreTrainedModel,
    loss_at: Callable[[int], Tensor],
    tokens: int,
    heldout: Encoded,
    data: str,
) -> History:
    """Runs optimiser steps until `tokens` tokens were seen, from the checkpoint in --work if there is one.

    `loss_at(step)` is the loss to minimise; `data` is the fingerprint of the training data. When training
    resumes, --tokens may have changed: the schedule continues as if the new value had always been given.
    """
    per_step = options.batch * options.length
    steps = max(1, tokens // per_step)
    checkpoint = options.work / f"{options.name}.pt"
    settings = {key: value for key, value in asdict(options).items() if key not in MAY_CHANGE}
    settings |= {"command": options.command, "data": data}
    optimisers = make_optimisers(options, model)
    step, seconds, budgets = resume(checkpoint, settings, model, optimisers)
    if step > steps:
        raise BadInput(
            f"--tokens must be more, as {checkpoint} has seen {step * per_step:,} already: "
            "delete it to start again"
        )
    if options.tokens not in budgets[-1:]:
        budgets.append(options.tokens)
    model.train()
    saved = time.monotonic()
    tokens_seen = {"total": steps * per_step, "initial": step * per_step}
    with tqdm(**tokens_seen, unit="tok", unit_scale=True, mininterval=2, desc=options.name) as bar:
        while step < steps:
            set_learning_rates(optimisers, step, steps)
            loss = loss_at(step)
            if not math.isfinite(loss.item()):
                raise BadInput(
                    f"the loss is {loss.item()} at step {step}: "
                    "choose smaller learning rates, --lr and --embedding-lr"
                )
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for optimiser in optimisers:
                optimiser.step()
                optimiser.zero_grad()
            step += 1
            bar.set_postfix(loss=f"{loss.item():.3f}", refresh=False)
            bar.update(per_step)
            if step == steps or time.monotonic() - saved >= options.every:
                seconds += time.monotonic() - saved
                write_checkpoint(checkpoint, settings, (step, seconds, budgets), model, optimisers)
                seen = f"{time.strftime('%H:%M:%S')} {step * per_step:,} tokens of {steps * per_step:,}"
                held_out = f"held-out loss {heldout_loss(model, heldout[:40]):.3f}"
                bar.write(f"{seen}: {held_out}, checkpoint written")
                saved = time.monotonic()
    cpu = f"{cpu_name()}, {torch.get_num_threads()} threads"
    return {
        "settings": settings,
        "budgets": budgets,
        "seconds": round(seconds),
        "device": torch.cuda.get_device_name() if DEVICE.type == "cuda" else cpu,
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }


def make_optimisers(options: TargetOptions | DrafterOptions, model: PreTrainedModel) -> list[Optimizer]:
    """Muon for the matrices inside the layers, AdamW for the (tied) embedding and the norms."""
    matrices = [parameter for parameter in model.model.layers.parameters() if parameter.ndim == 2]
    inside = {id(matrix) for matrix in matrices}
    others = [parameter for parameter in model.parameters() if id(parameter) not in inside]
    return [
        torch.optim.Muon(matrices, lr=options.lr, momentum=0.95, weight_decay=0.05),
        torch.optim.AdamW(others, lr=options.embedding_lr, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def set_learning_rates(optimisers: list[Optimizer], step: int, steps: int) -> None:
    """Linear warm-up over the first 2 % of the steps, then linear decay to zero."""
    warm_up = max(1, steps // 50)
    factor = min((step + 1) / warm_up, (steps - step) / (steps - warm_up + 1))
    for optimiser in optimisers:
        for group in optimiser.param_groups:
            group.setdefault("peak", group["lr"])
            group["lr"] = group["peak"] * factor


def resume(
    checkpoint: Path, settings: dict[str, Any], model: PreTrainedModel, optimisers: list[Optimizer]
) -> Progress:
    """Restores the model, the optimisers and the random state from `checkpoint`, if it exists."""
    if not checkpoint.is_file():
        return 0, 0.0, []
    try:
        state = torch.load(checkpoint, map_location=DEVICE, weights_only=True)
    except (EOFError, RuntimeError, pickle.UnpicklingError):
        raise BadInput(f"{checkpoint} is damaged: delete it or choose another --work") from None
    saved = state["settings"]
    if differing := sorted(key for key in settings | saved if settings.get(key) != saved.get(key)):
        raise BadInput(
            f"{checkpoint} was written with other settings ({', '.join(differing)}): "
            "delete it or choose another --work"
        )
    model.load_state_dict(state["model"])
    for optimiser, optimiser_state in zip(optimisers, state["optimisers"], strict=True):
        optimiser.load_state_dict(optimiser_state)
    torch.set_rng_state(state["rng"].cpu())
    return state["progress"]


def write_checkpoint(
    checkpoint: Path,
    settings: dict[str, Any],
    progress: Progress,
    model: PreTrainedModel,
    optimisers: list[Optimizer],
) -> None:
    """Writes a new file and renames it over the old one: a killed process never leaves half a checkpoint."""
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    new = checkpoint.with_suffix(".new")
    state = {
        "settings": settings,
        "progress": progress,
        "model": model.state_dict(),
        "optimisers": [optimiser.state_dict() for optimiser in optimisers],
        "rng": torch.get_rng_state(),
    }
    with open(new, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, checkpoint)


@torch.no_grad()
def heldout_loss(model: PreTrainedModel, heldout: Encoded) -> float:
    """Mean nats per token over the documents, each evaluated on its own from BOS to EOS."""
    total, count = 0.0, 0
    for ids in heldout:
        row = torch.from_numpy(ids[:CONTEXT].astype(np.int64)).to(DEVICE)[None]  # [1, T]
        total += cross_entropy(model, row).item() * (row.shape[1] - 1)
        count += row.shape[1] - 1
    return total / max(1, count)


def target_texts(options: DrafterOptions, target: PreTrainedModel, encoded: Encoded, data: str) -> Encoded:
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
