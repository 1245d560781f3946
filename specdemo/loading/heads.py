"""Heads that draft for a target, as parts of a request: which drafters are heads, and loading one."""

import os
from typing import Any

import torch
from transformers import PreTrainedModel

from specdemo.errors import PairError
from specdemo.loading.errors import load_errors
from specdemo.loading.fetch import folder_of, has_config, is_speculator
from specdemo.loading.request import Part, drafter_part, in_project
from specdemo.loading.speculator import check_fit, read_head, read_speculator
from specdemo.runtime import cuda
from specdemo.runtime.cached_head import DrafterModel
from specdemo.runtime.eagle3 import Eagle3Head
from specdemo.runtime.joined import join_weights
from specdemo.runtime.skinny_linear import use_skinny_linear


def is_head(part: Part, offline: bool = True) -> bool:
    """Whether the model is a head, from its config. PairError for a target that is one. offline: without a
    request to the hub."""
    found = is_speculator(folder_of(part, offline))
    if found and part.role == "target":
        raise PairError(
            f"target: {part.id} is a speculator, which drafts for a target: give it as the drafter"
        )
    return found


def target_for(target: object, drafter: object, trust_remote_code: object) -> Any:
    """The target as it is given. If it is not, and the drafter is a speculator, the verifier that its
    config.json names; PairError if its program code would be trusted. Raises as `load_pair` does."""
    if target is not None or not isinstance(drafter, (str, os.PathLike)):
        return target
    part = drafter_part(drafter, "cpu", torch.float32)
    with load_errors(part.role, part.place, shown=part.id):
        folder = folder_of(part, offline=has_config(part))
        if not is_speculator(folder):
            return None
        verifier = read_speculator(folder, part.id).verifier
    if not verifier:
        return None
    if trust_remote_code:
        raise PairError(
            "trust_remote_code: give the target, too, since the drafter's config.json alone would choose "
            "whose program code is run"
        )
    return verifier if os.path.isdir(verifier) else in_project(verifier)


def skeleton_of_head(part: Part, offline: bool) -> Eagle3Head:
    """A head on the meta device, from its config."""
    with torch.device("meta"):
        return Eagle3Head(read_speculator(folder_of(part, offline), part.id).config)


def check_head_fits(drafter: DrafterModel, target: PreTrainedModel, parts: tuple[Part, ...]) -> None:
    """PairError unless a drafter that is a head fits the target."""
    if not isinstance(drafter, Eagle3Head):
        return
    check_fit(drafter.config, target, parts[1].id, parts[0].id)
    if not drafter.config.own_embeddings and parts[0].device != parts[1].device:
        raise PairError(
            f"device must be the same for both, because drafter {parts[1].id} has no embeddings of its own "
            "and uses the target's"
        )


def load_head(part: Part, dtype: torch.dtype) -> Eagle3Head:
    """The head, which is on this machine. Raises LoadError."""
    folder = folder_of(part, offline=True)
    head = read_head(folder, read_speculator(folder, part.id), dtype, part.id)
    with load_errors(part.role, part.place, "weights", part.id), cuda.alone_on(part.device):
        head.to(part.device)
        join_weights(head)
        cuda.free_cache(part.device)
    if part.device == "cpu" and dtype == torch.float32:
        use_skinny_linear(head)
    return head
