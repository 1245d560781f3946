"""One resumable training loop, and what target and drafter learn in it."""

import math
import os
import pickle
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from tqdm import tqdm

from specdemo.runtime.device import cpu_name
from specdemo.training.data import (
    EOS,
    PAD,
    BadInput,
    Rows,
    encode_documents,
    fingerprint,
    read_documents,
    shared_tokenizer,
)
from specdemo.training.models import DEVICE, embedding, load, new_model, save

FREE = (
    "run",
    "name",
    "data",
    "out",
    "work",
    "threads",
    "every",
    "tokens",
)  # what a checkpoint does not hold a run to


def train_target(args):
    """Train the tokenizer (unless it is there) and the target with cross-entropy; save both in OUT/target."""
    folder = Path(args.out) / "target"
    training, heldout = read_documents(args.data, args.files)
    tokenizer = shared_tokenizer(folder, training, args.vocab)
    encoded, heldout = encode_documents(tokenizer, training), encode_documents(tokenizer, heldout)
    model = new_model(args, len(tokenizer))
    rows = Rows(encoded, args.length, args.batch, args.seed)
    guessing = compiled(args, cross_entropy)

    def loss_at(step):
        return guessing(model, cut(rows(step), step, args.whole_every).to(DEVICE))

    history = fit(args, model, loss_at, args.tokens, heldout, fingerprint(encoded))
    save(model, tokenizer, folder, history)


def train_drafter(args):
    """Train the drafter on the data with cross-entropy, then distil the target into it; save it in OUT/NAME.

    Every second distillation step uses text that the target sampled itself (if --sampled is not 0).
    """
    teacher, tokenizer = load(Path(args.out) / "target")
    training, heldout = read_documents(args.data, args.files)
    encoded, heldout = encode_documents(tokenizer, training), encode_documents(tokenizer, heldout)
    model = new_model(args, len(tokenizer))
    rows = Rows(encoded, args.length, args.batch, args.seed)
    data = fingerprint([*encoded, embedding(teacher)])  # another target is other data
    sampling = args.distil and args.sampled
    own = (
        Rows(target_text(args, teacher, encoded, data), args.length, args.batch, args.seed)
        if sampling
        else rows
    )
    first_distilled = args.tokens // (args.batch * args.length)
    guessing, imitating = compiled(args, cross_entropy), compiled(args, distillation)

    def loss_at(step):
        if step < first_distilled or not args.distil:
            return guessing(model, cut(rows(step), step, args.whole_every).to(DEVICE))
        own_turn = (step - first_distilled) % 2
        batch = own((step - first_distilled) // 2) if own_turn else rows(step)
        return imitating(model, teacher, cut(batch, step, args.whole_every).to(DEVICE))

    history = fit(args, model, loss_at, args.tokens + args.distil, heldout, data)
    save(
        model, tokenizer, Path(args.out) / args.name, history | {"target": fingerprint([embedding(teacher)])}
    )


def cut(rows, step, whole_every):
    """Rows [B, T] whole on every `whole_every`-th step, else in quarters [4 B, T / 4].

    Attention over whole rows takes half of the time on a CPU, and most stories fit in a quarter.
    """
    return rows if step % whole_every == 0 else rows.reshape(-1, rows.shape[1] // 4)


def forward(model, rows):
    """Logits in bf16 autocast: token ids [B, T] -> [B, T, V]."""
    with torch.autocast(DEVICE.type, torch.bfloat16):
        return model(input_ids=rows, use_cache=False).logits


def cross_entropy(model, rows):
    """Mean nats per token of predicting every next token of `rows` [B, T]."""
    logits = forward(model, rows).float()  # [B, T, V]
    following = F.pad(
        rows[:, 1:], (0, 1), value=-100
    )  # [B, T]; the last position has nothing to predict and is ignored
    return F.cross_entropy(logits.flatten(0, 1), following.flatten(), ignore_index=-100)


def distillation(model, teacher, rows):
    """Mean KL divergence from the teacher's next-token distribution to the model's, in nats per token of `rows` [B, T]."""
    with torch.no_grad():
        wanted = forward(teacher, rows).float().log_softmax(-1)  # [B, T, V]
    ours = forward(model, rows).float().log_softmax(-1)  # [B, T, V]
    return F.kl_div(ours.flatten(0, 1), wanted.flatten(0, 1), log_target=True, reduction="batchmean")


def compiled(args, loss):
    """The loss function as --compile asks for it; rows come in two shapes only, and each gets its own code."""
    return torch.compile(loss, dynamic=False) if args.compile else loss


def fit(args, model, loss_at, tokens, heldout, data):
    """Run optimiser steps until `tokens` tokens were seen, resuming from the checkpoint in --work if there is one.

    `loss_at(step)` gives the loss to minimise; `heldout` are encoded documents; `data` identifies the training data.
    Only the budget may change on resuming: the schedule then goes on as if it had been so from the start.
    Returns how the model was made: settings, every budget that it was given, seconds, device and versions.
    """
    per_step = args.batch * args.length
    steps = max(1, tokens // per_step)
    checkpoint = Path(args.work) / f"{args.name}.pt"
    settings = {key: value for key, value in vars(args).items() if key not in FREE}
    settings["data"] = data
    optimisers = make_optimisers(args, model)
    step, seconds, budgets = resume(checkpoint, settings, model, optimisers)
    if step > steps:
        raise BadInput(
            f"--tokens must be more, as {checkpoint} has seen {step * per_step:,} already: delete it to begin again"
        )
    if args.tokens not in budgets[-1:]:
        budgets.append(args.tokens)
    model.train()
    saved = time.monotonic()
    with tqdm(
        total=steps * per_step,
        initial=step * per_step,
        unit="tok",
        unit_scale=True,
        mininterval=2,
        desc=args.name,
    ) as bar:
        while step < steps:
            set_rates(optimisers, step, steps)
            loss = loss_at(step)
            if not math.isfinite(loss.item()):
                raise BadInput(
                    f"the loss is {loss.item()} at step {step}: choose smaller learning rates, --lr and --embedding-lr"
                )
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for optimiser in optimisers:
                optimiser.step()
                optimiser.zero_grad()
            step += 1
            bar.set_postfix(loss=f"{loss.item():.3f}", refresh=False)
            bar.update(per_step)
            if step == steps or time.monotonic() - saved >= args.every:
                seconds += time.monotonic() - saved
                write_checkpoint(checkpoint, settings, (step, seconds, budgets), model, optimisers)
                seen = f"{step * per_step:,} tokens of {steps * per_step:,}"
                bar.write(
                    f"{time.strftime('%H:%M:%S')} {seen}: held-out loss {heldout_loss(model, heldout[:40]):.3f}, checkpoint written"
                )
                saved = time.monotonic()
    where = (
        torch.cuda.get_device_name()
        if DEVICE.type == "cuda"
        else f"{cpu_name()}, {torch.get_num_threads()} threads"
    )
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    return {
        "settings": settings,
        "budgets": budgets,
        "seconds": round(seconds),
        "device": where,
        "versions": versions,
    }


def make_optimisers(args, model):
    """Muon for the matrices inside the layers, AdamW for the (tied) embedding and the norms."""
    matrices = [p for p in model.model.layers.parameters() if p.ndim == 2]
    inside = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in inside]
    return [
        torch.optim.Muon(matrices, lr=args.lr, momentum=0.95, weight_decay=0.05),
        torch.optim.AdamW(others, lr=args.embedding_lr, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def set_rates(optimisers, step, steps):
    """Linear warm-up over the first 2 % of the steps, then linear decay to zero."""
    warm_up = max(1, steps // 50)
    factor = min((step + 1) / warm_up, (steps - step) / (steps - warm_up + 1))
    for optimiser in optimisers:
        for group in optimiser.param_groups:
            group.setdefault("peak", group["lr"])
            group["lr"] = group["peak"] * factor


def resume(checkpoint, settings, model, optimisers):
    """Restore everything from `checkpoint` if it exists; returns steps done, seconds taken, and every value --tokens had."""
    if not checkpoint.is_file():
        return 0, 0.0, []
    try:
        state = torch.load(checkpoint, map_location=DEVICE, weights_only=True)
    except (EOFError, RuntimeError, pickle.UnpicklingError):
        raise BadInput(f"{checkpoint} is damaged: delete it or choose another --work") from None
    if state["settings"] != settings:
        changed = sorted(
            k
            for k in settings.keys() | state["settings"].keys()
            if settings.get(k) != state["settings"].get(k)
        )
        raise BadInput(
            f"{checkpoint} belongs to a run with other settings ({', '.join(changed)}): delete it or choose another --work"
        )
    model.load_state_dict(state["model"])
    for optimiser, saved in zip(optimisers, state["optimisers"], strict=True):
        optimiser.load_state_dict(saved)
    torch.set_rng_state(state["rng"].cpu())
    return state["progress"]


def write_checkpoint(checkpoint, settings, progress, model, optimisers):
    """Write beside the old checkpoint and rename, so that a kill at any moment leaves a whole one."""
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    fresh = checkpoint.with_suffix(".new")
    with open(fresh, "wb") as file:
        torch.save(
            {
                "settings": settings,
                "progress": progress,
                "model": model.state_dict(),
                "optimisers": [optimiser.state_dict() for optimiser in optimisers],
                "rng": torch.get_rng_state(),
            },
            file,
        )
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, checkpoint)


@torch.no_grad()
def heldout_loss(model, heldout):
    """Mean nats per token over the encoded documents `heldout`, each read on its own from BOS to EOS."""
    total, count = 0.0, 0
    for ids in heldout:
        row = torch.from_numpy(ids[:1024].astype(np.int64)).to(DEVICE)[None]  # [1, T]
        total += cross_entropy(model, row).item() * (row.shape[1] - 1)
        count += row.shape[1] - 1
    return total / max(1, count)


@torch.no_grad()
def target_text(args, teacher, encoded, data, width=64, prompt=8, new=248):
    """About --sampled tokens of text that the target continues from openings of training documents.

    Temperatures are spread from 0.1 to 1 over a batch, because the pair is used greedily as well as sampled.
    Kept in --work for resuming. Returns a list of encoded documents.
    """
    kept = Path(args.work) / f"target-text-{data}-{args.sampled}-{args.seed}.npy"
    if kept.is_file():
        return [row[row != PAD] for row in np.load(kept)]
    openings = [ids[:prompt] for ids in encoded if len(ids) > prompt]
    if not openings:
        raise BadInput("the training documents are too short for the target to continue them")
    chosen = np.random.default_rng(args.seed)
    torch.manual_seed(args.seed)
    temperature = torch.linspace(0.1, 1.0, width, device=DEVICE)[:, None]  # [B, 1]
    texts = []
    for _ in tqdm(
        range(max(1, args.sampled // (width * (prompt + new)))), desc="text from the target", unit="batch"
    ):
        rows = torch.from_numpy(
            np.stack([openings[i] for i in chosen.integers(len(openings), size=width)]).astype(np.int64)
        ).to(DEVICE)
        cache, last, done = None, rows, torch.zeros(width, 1, dtype=torch.bool, device=DEVICE)
        with torch.autocast(DEVICE.type, torch.bfloat16):
            for _ in range(new):
                output = teacher(input_ids=last, past_key_values=cache, use_cache=True, logits_to_keep=1)
                cache = output.past_key_values
                chances = (output.logits[:, -1].float() / temperature).softmax(-1)  # [B, V]
                last = torch.multinomial(chances, 1).masked_fill(done, PAD)  # [B, 1]
                done |= last == EOS
                rows = torch.cat([rows, last], 1)
        texts.append(rows.cpu().numpy().astype(np.int32))
    kept.parent.mkdir(parents=True, exist_ok=True)
    np.save(kept.with_suffix(".new.npy"), np.concatenate(texts))
    os.replace(kept.with_suffix(".new.npy"), kept)
    return target_text(args, teacher, encoded, data)
