"""The table of drafters: of each kind a tiny one for a tiny target, how it is written to a folder, and what
it must say, computed anew and without a cache."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from tempfile import mkdtemp

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, logging

from specdemo.engine.sampling import uniforms
from tests.block_heads import DFLASH2, block_logits, save_authors_block_head, save_block_head, tiny_block_head
from tests.checkpoints import DEEPSEEK, MTP_KINDS, change_config, gemma4, gemma4_assistant, model_with_mtp
from tests.checkpoints import saved_in as save_model
from tests.eagle_heads import eagle_logits, save_eagle_head, tiny_eagle_head
from tests.heads import fitted, logits_without_cache, parallel_logits, save_authors_head, save_head, tiny_head
from tests.tiny import greedy, noisy, tiny, tokenizer

PROMPT = [3, 1, 4, 1, 5]
MASK = 7
DSPARK = dict(samples_from_anchor=True, markov_rank=6, has_confidence=True)


@dataclass(frozen=True)
class Row:
    """make(target): its drafter; None where the target drafts. says(drafter, target, text, draft): the
    probabilities [K, V] from which these K tokens are drafted after the text. save(drafter, folder, target
    folder): writes it, in each of its formats. target(**changes): a target, of another architecture for each.
    last: the longest text after which a drafter with a context of 40 tokens drafts."""

    make: Callable | None = None
    says: Callable | None = None
    save: tuple[Callable, ...] = ()
    target: Callable = tiny
    method: str = "model"
    last: int = 40


def softmaxed(logits_of: Callable) -> Callable:
    return lambda *given: logits_of(*given).double().softmax(-1)


# Models that draft


def near(target, context: int | None = None):
    """A near drafter; where its context is given, one that is far."""
    return noisy(target, 0.3) if context is None else tiny(max_position_embeddings=context)


def parallel(model, mask: int = MASK):
    """The model as one that drafts in parallel, which it was not trained for."""
    model.config.pard_token = mask
    return model


@torch.no_grad()
def model_says(drafter, target, text, draft):
    logits = drafter(torch.tensor([text + draft[:-1]]), use_cache=False).logits[0, len(text) - 1 :]
    return logits.double().softmax(-1)


def pard_says(drafter, target, text, draft):
    """A mask stands in the place of each draft but the last."""
    return model_says(drafter, target, text, [MASK] * len(draft))


# What stands between the last layer and the head.
NORMS = {
    "gpt2": "transformer.ln_f",
    "gpt_neox": "gpt_neox.final_layer_norm",
    "opt": "model.decoder.final_layer_norm",
}


@torch.no_grad()
def exit_says(_, target, text, draft, layer=1):
    """The target's norm and head of what one of its first layers gives."""
    ids = torch.tensor([text + draft[:-1]])
    output = copy.deepcopy(target)(ids, output_hidden_states=True, use_cache=False)
    norm = target.get_submodule(NORMS.get(target.config.model_type, "model.norm"))
    logits = target.get_output_embeddings()(norm(output.hidden_states[layer][0, len(text) - 1 :]))
    if cap := getattr(target.config, "final_logit_softcapping", None):
        logits = torch.tanh(logits / cap) * cap
    return logits.double().softmax(-1)


@torch.no_grad()
def assistant_says(assistant, target, text, draft):
    """The target's forward over the text before the last token, and then the assistant, token by token."""
    output = target.model(torch.tensor([text[:-1]]), return_shared_kv_states=True, use_cache=False)
    hidden, token, said = output.last_hidden_state[:, -1:], text[-1], []
    for drafted in draft:
        embedding = target.get_input_embeddings()(torch.tensor([[token]]))
        output_of_assistant = assistant(
            inputs_embeds=torch.cat([embedding, hidden], -1),
            position_ids=torch.tensor([[len(text) - 1]]),
            shared_kv_states=output.shared_kv_states,
        )
        said.append(output_of_assistant.logits[0, 0].double().softmax(-1))
        hidden, token = output_of_assistant.last_hidden_state, drafted
    return torch.stack(said)


# Layers for multi-token prediction in the target's checkpoint


def layers_of_kind(kind: str) -> int:
    """Two where the kind allows it."""
    return 2 if MTP_KINDS[kind][1] is DEEPSEEK else 1


@cache
def with_mtp(kind: str, vocab_size: int = 12, **changes) -> Path:
    """A folder with a target that has such layers, which must not be written to."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    folder = Path(mkdtemp(prefix="mtp-"))
    model_with_mtp(folder, kind, layers_of_kind(kind), seed=2, vocab_size=vocab_size, **changes)
    return folder


def loaded(folder: Path):
    return AutoModelForCausalLM.from_pretrained(folder).eval()


class Formula:
    """What the layers compute, from the tensors in the checkpoint, without a cache and without transformers'
    class. The decoder block of each is the last layer of the model that it was taken from."""

    def __init__(self, target, kind: str):
        names, config = MTP_KINDS[kind][1], target.config.get_text_config()
        folder = Path(target.name_or_path)
        tensors = load_file(folder / "model.safetensors")
        self.target, self.eps, self.layers = target, config.rms_norm_eps, []
        for index in range(layers_of_kind(kind)):
            donor = loaded(folder / f"donor-{index}").model
            beside = f"model.layers.{config.num_hidden_layers + index}." if names is DEEPSEEK else "mtp."
            parts = {part: tensors[f"{beside}{name}.weight"] for part, name in names.items()}
            self.layers.append((parts, donor.layers[-1], donor.rotary_emb))
        # Qwen's norms multiply by one more than their weight.
        self.shift = 1.0 if kind.startswith("qwen") else 0.0

    def norm(self, x, weight):
        return x * (x.pow(2).mean(-1, keepdim=True) + self.eps).rsqrt() * (weight + self.shift)

    def layer(self, index, tokens, hidden, positions):
        """tokens [N], hidden [N, H], positions [N] -> [N, H]"""
        parts, block, rope = self.layers[index]
        e = self.norm(self.target.get_input_embeddings()(tokens), parts["enorm"])
        x = torch.cat([e, self.norm(hidden, parts["hnorm"])], -1) @ parts["eh_proj"].T
        n = len(tokens)
        mask = torch.full((n, n), torch.finfo(x.dtype).min).triu(1)[None, None]
        angles = rope(x[None], positions[None])
        y = block(x[None], position_embeddings=angles, position_ids=positions[None], attention_mask=mask)
        y = y[0] if isinstance(y, tuple) else y
        return self.norm(y[0], parts["post_norm"])

    @torch.no_grad()
    def says(self, text, draft):
        """Each token by the first layer alone, which goes on from what it has made of the last row."""
        target, n = self.target, len(text)
        hidden = target.model(torch.tensor([text[:-1]])).last_hidden_state[0]  # [n - 1, H]
        ids, said = torch.tensor([*text, *draft]), []
        for end in range(n, n + len(draft)):
            made = self.layer(0, ids[1:end], hidden, torch.arange(1, end))[-1:]
            hidden = torch.cat([hidden, made])
            said.append(target.lm_head(made[0]).double().softmax(-1))
        return torch.stack(said)


@cache
def formula_of(target, kind: str) -> Formula:
    return Formula(target, kind)


def mtp_target(**changes):
    return loaded(with_mtp("glm4_moe", **changes))


# How a drafter is written


def as_model(drafter, folder: Path, target: Path) -> Path:
    return save_model(folder, drafter)


def with_other_words(drafter, folder: Path, target: Path) -> Path:
    return save_model(folder, drafter, tokenizer(sentences=["a wholly different text"] * 5))


def as_pard(name: str, drafter, folder: Path, target: Path) -> Path:
    """By one of two names of the mask token."""
    save_model(folder, drafter)
    change_config(folder, pard_token=None)
    change_config(folder, **{name: MASK})
    return folder


def without_tokenizer(drafter, folder: Path, target: Path) -> Path:
    drafter.save_pretrained(folder)
    return folder


def for_speculators(save: Callable) -> Callable:
    return lambda drafter, folder, target: save(drafter, folder, str(target))


def by_authors(save: Callable) -> Callable:
    return lambda drafter, folder, target: save(drafter, folder)


def by_eagle_s_authors(drafter, folder: Path, target: Path) -> Path:
    return save_eagle_head(drafter, folder, loaded(target))


def eagle3_says(head, target, text, draft):
    return logits_without_cache(head, target, text, draft)[:-1].double().softmax(-1)


def right_now_and_then(target, **options):
    """An EAGLE-3 head whose output layer is fitted to the target's greedy text."""
    return fitted(tiny_head(target, **options), target, PROMPT + greedy(target, PROMPT, 40))


def near_in_parallel(target, **options):
    return parallel(near(target, **options))


def mtp_says(_, target, *after):
    return formula_of(target, "glm4_moe").says(*after)


def of(name: str) -> Callable:
    return partial(tiny, name)


AS_PARD = partial(as_pard, "pard_token"), partial(as_pard, "ptd_token_id")
AS_HEAD = for_speculators(save_head), by_authors(save_authors_head)
AS_BLOCKS = for_speculators(save_block_head), by_authors(save_authors_block_head)
BLOCKS = softmaxed(block_logits)
ROWS = {
    "model": Row(near, model_says, (as_model,)),
    "another tokenizer": Row(near, save=(with_other_words,)),
    "pard": Row(near_in_parallel, pard_says, AS_PARD, of("qwen2")),
    "eagle": Row(tiny_eagle_head, softmaxed(eagle_logits), (by_eagle_s_authors,), of("mistral")),
    "eagle3": Row(tiny_head, eagle3_says, AS_HEAD, of("gpt2")),
    "peagle": Row(
        partial(tiny_head, mask_token_id=MASK), softmaxed(parallel_logits), AS_HEAD[:1], of("qwen3")
    ),
    "dflash": Row(partial(tiny_block_head, layer_ids=(1,)), BLOCKS, AS_BLOCKS, last=39),
    "dflash2": Row(partial(tiny_block_head, layer_ids=(1,), **DFLASH2), BLOCKS, AS_BLOCKS, last=39),
    "dspark": Row(partial(tiny_block_head, **DSPARK), BLOCKS, AS_BLOCKS[:1], of("gemma3"), last=39),
    "assistant": Row(gemma4_assistant, assistant_says, (without_tokenizer,), gemma4),
    "mtp": Row(says=mtp_says, target=mtp_target, method="mtp"),
    "early-exit": Row(says=exit_says, target=of("gemma3"), method="early-exit"),
    **{name: Row(method=name) for name in ("lookup", "ngram", "ngram-one-level", "suffix")},
    "lookup+model": Row(near, method="lookup+model"),
}
NEVER_CAPTURED = ("assistant", "mtp")
OF_TREES = ("model", "eagle", "eagle3", "peagle", "dflash", "dflash2", "dspark")


def drawn_as_said(says: Callable, prompt: list[int], trace, error: float = 3e-4) -> list[int]:
    """Asserts that each token of the drafts was drawn by its uniform number from what `says` tells after the
    text, and that these are the probabilities in the trace. (A presence penalty counts the drafts before.)
    Returns how many tokens of each draft were accepted."""
    text, accepted, params = list(prompt), [], trace.params
    for index, one in enumerate(trace.rounds):
        draft = [token.id for token in one.draft]
        said = says(text, draft) if draft else ()
        numbers = uniforms(params.seed, index, len(draft)).draft
        for i, (raw, token, u) in enumerate(zip(said, one.draft, numbers, strict=True)):
            written = text[len(prompt) :] + draft[:i]
            weights = raw.index_fill(0, torch.tensor(written, dtype=torch.long), 0.0)
            weights = weights + (raw - weights) * math.exp(-params.presence_penalty)
            q = weights ** (1 / (params.draft_temperature or params.temperature))
            q = q / q.sum()
            found = token.raw_q, token.q, *(row[5] for row in token.top)
            wanted = raw[token.id], q[token.id], *(raw[row[0]] for row in token.top)
            assert found == pytest.approx([*map(float, wanted)], abs=error)
            before = q[: token.id].sum()
            assert before - 4 * error < u < before + q[token.id] + 4 * error
        if draft:
            accepted.append(sum(token.fate == "accepted" for token in one.draft))
        text += one.emitted
    return accepted
