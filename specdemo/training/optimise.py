"""The training loop, which can be resumed: its optimisers, its schedule and its checkpoints."""

import math
import os
import pickle
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer
from tqdm import tqdm

from specdemo.runtime.device import cpu_name
from specdemo.training.data import BadInput
from specdemo.training.models import DEVICE, History
from specdemo.training.options import (
    DFlashOptions,
    DrafterOptions,
    Eagle3Options,
    TargetOptions,
    TrainingOptions,
)

# Options that may differ when training resumes from a checkpoint.
MAY_CHANGE = ("name", "data", "out", "work", "threads", "every", "tokens")

Progress = tuple[int, float, list[int]]  # steps done, seconds taken, every value that --tokens had


def optimise(
    options: TargetOptions | DrafterOptions | Eagle3Options | DFlashOptions,
    model: Module,
    loss_at: Callable[[int], Tensor],
    tokens: int,
    heldout_loss: Callable[[], float],
    data: str,
) -> History:
    """Runs optimiser steps until `tokens` tokens were seen, from the checkpoint in --work if there is one.

    `loss_at(step)` is the loss to minimise; `heldout_loss()` is told at each checkpoint; `data` is the
    fingerprint of the training data. When training resumes, --tokens may have changed: the schedule continues
    as if the new value had always been given."""
    per_step = options.batch * options.length
    steps = max(1, tokens // per_step)
    checkpoint = options.work / f"{options.name}.pt"
    settings = {key: value for key, value in asdict(options).items() if key not in MAY_CHANGE}
    settings |= {"command": options.command, "data": data}
    optimisers = make_optimisers(options, model)
    step, seconds, budgets = resume(checkpoint, settings, model, optimisers)
    if step > steps:
        seen = f"{checkpoint} has seen {step * per_step:,} already"
        raise BadInput(f"--tokens must be more, as {seen}: delete it to start again")
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
                advice = "choose smaller learning rates, --lr and --embedding-lr"
                raise BadInput(f"the loss is {loss.item()} at step {step}: {advice}")
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
                bar.write(f"{seen}: held-out loss {heldout_loss():.3f}, checkpoint written")
                saved = time.monotonic()
    cpu = f"{cpu_name()}, {torch.get_num_threads()} threads"
    device = torch.cuda.get_device_name() if DEVICE.type == "cuda" else cpu
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    told = {"settings": settings, "budgets": budgets, "seconds": round(seconds)}
    return History(**told, device=device, versions=versions)


def make_optimisers(options: TrainingOptions, model: Module) -> list[Optimizer]:
    """Muon for the matrices between the embedding and the output layer, AdamW for these two (tied in a Llama
    model) and the norms."""
    matrices = [
        parameter
        for name, parameter in model.named_parameters()
        if parameter.ndim == 2 and not {"embed_tokens", "lm_head"} & {*name.split(".")}
    ]
    inside = {id(matrix) for matrix in matrices}
    others = [parameter for parameter in model.parameters() if id(parameter) not in inside]
    return [
        torch.optim.Muon(matrices, lr=options.lr, momentum=0.95, weight_decay=0.05),
        torch.optim.AdamW(others, lr=options.embedding_lr, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def set_learning_rates(optimisers: list[Optimizer], step: int, steps: int) -> None:
    """Sets the learning rates: linear warm-up over the first 2 % of the steps, then linear decay to zero."""
    warm_up = max(1, steps // 50)
    factor = min((step + 1) / warm_up, (steps - step) / (steps - warm_up + 1))
    for optimiser in optimisers:
        for group in optimiser.param_groups:
            group.setdefault("peak", group["lr"])
            group["lr"] = group["peak"] * factor


def resume(file: Path, settings: dict[str, Any], model: Module, optimisers: list[Optimizer]) -> Progress:
    """Restores the model, the optimisers and the random state from the checkpoint, if it exists."""
    if not file.is_file():
        return 0, 0.0, []
    advice = "delete it or choose another --work"
    try:
        state = torch.load(file, map_location=DEVICE, weights_only=True)
    except (EOFError, RuntimeError, pickle.UnpicklingError):
        raise BadInput(f"{file} is damaged: {advice}") from None
    saved = state["settings"]
    if differing := sorted(key for key in settings | saved if settings.get(key) != saved.get(key)):
        raise BadInput(f"{file} was written with other settings ({', '.join(differing)}): {advice}")
    model.load_state_dict(state["model"])
    for optimiser, optimiser_state in zip(optimisers, state["optimisers"], strict=True):
        optimiser.load_state_dict(optimiser_state)
    torch.set_rng_state(state["rng"].cpu())
    return state["progress"]


def write_checkpoint(
    file: Path, settings: dict[str, Any], progress: Progress, model: Module, optimisers: list[Optimizer]
) -> None:
    """Writes a new file and renames it over the old one: a killed process never leaves half a checkpoint."""
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_suffix(".new")
    state = {
        "settings": settings,
        "progress": progress,
        "model": model.state_dict(),
        "optimisers": [optimiser.state_dict() for optimiser in optimisers],
        "rng": torch.get_rng_state(),
    }
    with open(new, "wb") as written:
        torch.save(state, written)
        written.flush()
        os.fsync(written.fileno())
    os.replace(new, file)
