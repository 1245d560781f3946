"""Heads in files, in two formats: that of the speculators library (config.json with a
`speculators_model_type`), and those in which their authors publish them, told by classes, keys and tensors.
Neither library is needed."""

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import PreTrainedModel

from specdemo.drafters.base import Drafting, Materials, PairModels, agrees_with_target, by_rows, check_sizes
from specdemo.drafters.configs import (
    EMBEDDINGS,
    SPECULATOR,
    HeadConfig,
    HeadJson,
    alias_of,
    authors_kind,
    read_config,
)
from specdemo.drafters.heads import CachedHead, DraftHead, HeadKind
from specdemo.engine.draft import Drafter
from specdemo.errors import LoadError, PairError, in_short
from specdemo.events import DRAFTER_KINDS
from specdemo.events.speedup import DraftingCost
from specdemo.runtime.lm import CachedLM, context_of, logits_width
from specdemo.runtime.weights import held_bytes, stored_tensors, weight_bytes, weight_files
from specdemo.words.message import Message, message

# Copies of the target's, some of them for training alone.
COPIES = {"verifier_lm_head.weight", "verifier_norm.weight", EMBEDDINGS, "lm_head.weight"}
NOTHING = torch.zeros(0)


def kind_described(config: Mapping[str, object]) -> str:
    """The name in DRAFTER_KINDS of the head that a config.json describes. ValueError for a kind that cannot
    be run."""
    if SPECULATOR not in config:
        return authors_kind(config) or "eagle"  # told by their tensors alone
    name, types = config[SPECULATOR], [kind.name for kind in DRAFTER_KINDS.values() if kind.in_speculators]
    if name not in types:
        allowed = f"one of {', '.join(types)}, which can be run here"
        raise ValueError(f"{SPECULATOR} must be {allowed}, not {ascii(name)[:60]}")
    return str(name)


def read_json(folder: Path) -> HeadJson:
    """Reads config.json. ValueError if it describes no kind of heads that can be run."""
    raw = read_config(folder)
    if not isinstance(raw, dict):
        raise ValueError(f"it must hold an object, not {type(raw).__name__}")
    kind, tensors = kind_described(raw), {EMBEDDINGS}
    with suppress(Exception):  # not here yet; what is wrong with them is said when the weights are read
        tensors = set(stored_tensors(folder))
    return HeadJson(raw, kind, SPECULATOR not in raw, tensors)


def _check_ids(d2t: Tensor, can_draft: Tensor | None, width: int, named: str) -> None:
    """LoadError if this is no map from a head's tokens to those of a target with so many, or maps to others
    than can_draft says."""
    ids = torch.arange(len(d2t)) + d2t.long()
    if ids.min() < 0 or ids.max() >= width or len(ids.unique()) != len(ids):
        raise LoadError(f"{named}: its tensor d2t does not give a different id below {width:,} to each token")
    if can_draft is not None and not can_draft.bool().equal(
        torch.zeros(width, dtype=torch.bool).index_fill(0, ids, True)
    ):
        raise LoadError(f"{named}: its tensors d2t and t2d name different tokens")


class HeadDrafting(Drafting[DraftHead]):
    """A head of any kind as a pair's drafter. kinds: by their names in DRAFTER_KINDS."""

    is_for_a_target = "a head"

    def __init__(self, kinds: Mapping[str, HeadKind]):
        self.kinds = kinds

    def config(self, folder: Path) -> HeadConfig:
        """What config.json says. ValueError if it describes no head that can be run."""
        given = read_json(folder)
        return self.kinds[given.kind].read(given)

    def verifier(self, folder: Path) -> str | None:
        """The target that the head in this folder was trained for, a hub id or a directory, where its
        config.json names one. Raises as `skeleton` does."""
        self.config(folder)
        match read_json(folder).raw.get("speculators_config"):
            case {"verifier": {"name_or_path": str(verifier)}}:
                return verifier
        return None

    def skeleton(self, folder: Path) -> DraftHead:
        """The head in this folder without its weights, on torch's default device; detached from any target.
        ValueError if its config.json describes none that can be run."""
        return self.kinds[read_json(folder).kind].head(self.config(folder))

    def read(self, head: DraftHead, folder: Path, dtype: torch.dtype, named: str) -> DraftHead:
        """Gives the head, a skeleton, its weights in this dtype, on the CPU. named: the head in a sentence.
        LoadError if its tensors are not those that its config.json asks for."""
        wanted, tensors = head.state_dict(), {}
        for file in weight_files(folder):
            with safe_open(file, "pt") as content:
                for name in content.keys():  # noqa: SIM118, which is no dict
                    own = name.replace("midlayer.", "layers.0.", 1)  # EAGLE-3's authors have another name
                    if own in wanted or own not in COPIES:
                        tensors[own] = content.get_tensor(name)
        can_draft = tensors.pop("t2d", None)  # of the target's tokens
        if head.d2t is None and tensors.pop("d2t", NOTHING).any():
            why = "must be 0 everywhere, since draft_vocab_size is vocab_size"
            raise LoadError(f"{named}: its tensor d2t {why}")
        for name, value in tensors.items():
            needs_scale = value.is_floating_point() and value.itemsize == 1  # float8
            if needs_scale or value.is_floating_point() == (name == "d2t"):
                raise LoadError(f"{named}: its tensor {name} cannot be of {value.dtype}")
            tensors[name] = value.to(dtype if name != "d2t" else torch.long)
        try:
            head.load_state_dict(tensors, assign=True)
        except RuntimeError as error:
            _, first, *_ = str(error).split("\n\t")
            what = "has other tensors than its config.json asks for"
            raise LoadError(f"{named} {what}: {in_short(first)[:150]}") from None
        if head.d2t is not None:
            _check_ids(head.d2t, can_draft, head.config.vocab_size, named)
        head.requires_grad_(False).begin_run()
        return head.eval()

    def name_of(self, model: DraftHead) -> str:
        return model.kind

    def cached(self, model: DraftHead, target: PreTrainedModel) -> CachedHead:
        kind = self.kinds[model.kind]
        is_here = model.device.type == target.get_input_embeddings().weight.device.type == "cpu"
        return kind.cached(model, target, compiled=kind.compiles and is_here)

    def cost(self, pair: PairModels, params: object) -> DraftingCost:
        """A forward reads all its weights but those that each token reads by itself, and the target's output
        layer where it has none of its own."""
        head, target, output = pair.drafter, pair.target, pair.target.get_output_embeddings()
        assert isinstance(head, DraftHead) and output is not None
        by_token, apart = head.read_by_token()
        read = weight_bytes(head) - apart + (held_bytes(output) if head.lm_head is None else 0)
        each, share = by_token / weight_bytes(target), read / weight_bytes(target)
        return DraftingCost(token=each, draft=share) if head.drafts_at_once else DraftingCost(token=share)

    def longest_draft(self, model: DraftHead) -> int | None:
        return model.places

    def build(self, given: Materials) -> Drafter:
        return self.kinds[given.drafter.model.kind].drafter(given)

    def check_fit(self, model: DraftHead, target: PreTrainedModel, drafter_id: str, target_id: str) -> None:
        config, of_target = model.config, target.config.get_text_config()
        depth, ids = of_target.num_hidden_layers, config.layer_ids_for(of_target.num_hidden_layers)
        where = f"drafter {drafter_id} does not fit target {target_id}"
        sizes = [
            ("hidden states of size {:,}", config.feature_size, of_target.hidden_size),
            ("a vocabulary of {:,} tokens", config.vocab_size, logits_width(target)),
        ]
        check_sizes(where, sizes)
        if len(set(ids)) != len(ids) or min(ids) < 0 or max(ids) > depth:
            raise PairError(
                f"{where}: it reads the inputs of layers {', '.join(map(str, ids))}, which must be different "
                f"and from 0 to {depth}, the target's number of layers"
            )

    def notes(self, model: DraftHead, target: PreTrainedModel) -> list[Message]:
        config = model.config
        if getattr(config, "layer_ids", ()) is not None:
            return []
        ids = config.layer_ids_for(target.config.get_text_config().num_hidden_layers)
        name = alias_of(type(config), "layer_ids")
        return [message("guessed", name=name, value=", ".join(map(str, ids)))]

    def needs_targets_device(self, model: DraftHead) -> str | None:
        is_apart = model.embed_tokens is not None
        return None if is_apart else "has no embeddings of its own and uses the target's"

    def agrees(self, model: DraftHead, target: PreTrainedModel) -> bool:
        """Whether the head predicts the same with a cache that is written by position, also where rejected
        drafts were, as in one forward over a whole text, from the target's features of it."""

        def compare(_: CachedLM, whole: CachedHead, cached: CachedHead, ids: Tensor) -> list:
            return [by_rows(whole, cached, ids, len(ids) - 1)]

        make = partial(self.kinds[model.kind].cached, model, target)
        return agrees_with_target(target, make, compare, context_of(model), model.dtype)
