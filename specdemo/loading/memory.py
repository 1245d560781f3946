"""Pairs of models that are in memory already."""

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specdemo.errors import PairError
from specdemo.loading.assemble import check_forwards, pair_of
from specdemo.loading.pair import LoadDrafter, Pair
from specdemo.loading.request import ROLES
from specdemo.loading.vocabulary import other_tokenizer
from specdemo.runtime.runner import Capture


def pair_in_memory(
    target: PreTrainedModel,
    drafter: PreTrainedModel | None,
    tokenizer: PreTrainedTokenizerBase | dict[str, PreTrainedTokenizerBase] | None,
    cudnn_attention: bool,
    load_drafter: LoadDrafter,
) -> Pair:
    """See `load_pair`. load_drafter: for the pair's `attach` and `detach`."""
    models = [target, drafter] if drafter else [target]
    names = [model.name_or_path or type(model).__name__ for model in models]
    # A captured forward would bypass the owner's hooks and patched methods.
    capture: Capture = "off" if target.device.type == "cpu" else "auto"
    quantized = [None] * len(models)
    name = " + ".join(names)
    ours, theirs = _tokenizers(tokenizer)
    other = (
        other_tokenizer(ours, theirs, *names) if drafter and ours and theirs and theirs is not ours else None
    )
    how = (names, quantized, ours, "as given", load_drafter, capture, cudnn_attention, other)
    pair = pair_of(name, target, drafter, *how)
    check_forwards(models, names)
    return pair


def _tokenizers(
    given: PreTrainedTokenizerBase | dict[str, PreTrainedTokenizerBase] | None,
) -> tuple[PreTrainedTokenizerBase | None, PreTrainedTokenizerBase | None]:
    """The target's and the drafter's, of those given with models in memory."""
    by_role = given if isinstance(given, dict) else dict.fromkeys(ROLES, given)
    if given is not None and set(by_role) != set(ROLES):
        raise PairError(
            f"tokenizer must be one tokenizer or have the keys target and drafter, not {ascii(given)[:60]}"
        )
    for tokenizer in by_role.values():
        if given is not None and not isinstance(tokenizer, PreTrainedTokenizerBase):
            raise PairError(f"tokenizer must be a transformers tokenizer, not {type(tokenizer).__name__}")
    return by_role["target"], by_role["drafter"]
