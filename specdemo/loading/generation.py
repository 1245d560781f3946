"""What a model's generation config makes of its distribution. Of its logits processors, a repetition penalty
and a bias on single tokens are applied; a user is told of the others."""

from collections.abc import Mapping
from dataclasses import replace

from transformers import GenerationConfig

from specdemo.events import Params

# Options that are not applied: the value that switches each off.
PROCESSORS = {
    "encoder_repetition_penalty": 1.0, "no_repeat_ngram_size": 0,
    "bad_words_ids": None, "min_length": 0, "min_new_tokens": None, "suppress_tokens": None,
    "begin_suppress_tokens": None, "sequence_bias": None, "forced_bos_token_id": None,
    "forced_eos_token_id": None, "exponential_decay_length_penalty": None, "guidance_scale": None,
    "typical_p": 1.0, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0,
}  # fmt: skip


def with_models_own(params: Params, config: GenerationConfig) -> Params:
    """With the model's own repetition penalty and logit bias where the Params leave them to it."""
    own = getattr(config, "repetition_penalty", None)
    if params.repetition_penalty is None and own not in (None, 1):
        params = replace(params, repetition_penalty=own)
    if params.logit_bias is None and (bias := _single_token_bias(config)):
        params = replace(params, logit_bias=bias)
    return params


def ignored_processors(config: GenerationConfig) -> list[str]:
    """A sentence on those that are asked for and not applied, if any."""
    asked = {name for name, off in PROCESSORS.items() if getattr(config, name, None) not in (None, off)}
    if _single_token_bias(config):
        asked.discard("sequence_bias")
    if not asked:
        return []
    names = ", ".join(name for name in PROCESSORS if name in asked)
    return [f"not applied, though the target's generation config asks for it: {names}"]


def _single_token_bias(config: GenerationConfig) -> dict[int, float] | None:
    """sequence_bias as a logit bias; None where it is none: it has sequences of several tokens, or numbers
    that Params does not allow. transformers takes it as a mapping from tuples, or as a list of pairs."""
    given = getattr(config, "sequence_bias", None)
    try:
        pairs = list(given.items() if isinstance(given, Mapping) else given or ())
        if any(len(sequence) != 1 for sequence, _ in pairs):
            return None
        return Params(logit_bias={sequence[0]: bias for sequence, bias in pairs}).logit_bias or None
    except (TypeError, ValueError):  # whatever a file holds
        return None
