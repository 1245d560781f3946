"""What a model's generation config makes of its distribution, and where it ends a text. Its repetition
penalty, its bias on single tokens and its stop strings are applied; a user is told of the rest."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from transformers import GenerationConfig

from specdemo.events import Params
from specdemo.events.params import MOST_STOPS
from specdemo.words.message import refusal

# Options that are not applied: whether a value other than None asks for anything, as transformers has it.
NOT_APPLIED: dict[str, Callable[[Any], bool]] = {
    "guidance_scale": lambda scale: scale != 1,
    "encoder_repetition_penalty": lambda penalty: penalty != 1,
    "no_repeat_ngram_size": lambda size: size > 0,
    "encoder_no_repeat_ngram_size": lambda size: size > 0,
    "bad_words_ids": bool,
    "min_length": lambda length: length > 0,
    "min_new_tokens": lambda count: count > 0,
    "forced_bos_token_id": lambda token_id: True,
    "forced_eos_token_id": lambda token_id: True,
    "exponential_decay_length_penalty": lambda start_and_factor: start_and_factor[1] != 1,
    "suppress_tokens": bool,
    "begin_suppress_tokens": bool,
    "top_h": lambda share: True,
    "typical_p": lambda mass: mass < 1,
    "epsilon_cutoff": lambda epsilon: 0 < epsilon < 1,
    "eta_cutoff": lambda epsilon: 0 < epsilon < 1,
    "watermarking_config": lambda config: True,
}
# Options that are applied: the field of Params that has the same meaning.
APPLIED = {"repetition_penalty": "repetition_penalty", "sequence_bias": "logit_bias", "stop_strings": "stop"}


def with_models_own(params: Params, own: dict[str, Any]) -> Params:
    """The Params with the model's own repetition penalty and logit bias where they leave these to the model,
    and with its stop strings unless the model's own ends are ignored. own: see `read_options`. ValueError if
    the stop strings are too many together."""
    for field in ("repetition_penalty", "logit_bias"):
        if field in own and getattr(params, field) is None:
            params = replace(params, **{field: own[field]})
    stops = tuple(stop for stop in own.get("stop", ()) if stop not in params.stop)
    if not stops or params.ignore_eos:
        return params
    if len(params.stop) + len(stops) > MOST_STOPS:
        most, own_count = MOST_STOPS - len(stops), len(stops)
        raise ValueError(refusal("stop", "stops_of_pair", len(params.stop), most=most, own=own_count))
    return replace(params, stop=params.stop + stops)


def read_options(
    config: GenerationConfig, vocab_size: int, check_stops: Callable[[tuple[str, ...]], None]
) -> tuple[dict[str, Any], list[str]]:
    """Fields of Params as the config sets them, and the names of the options that it asks for and that are
    not applied: those of NOT_APPLIED, and values that Params or the model does not allow. check_stops: raises
    ValueError for stop strings that cannot be found."""
    own, refused = {}, []
    for option, field in APPLIED.items():
        given = getattr(config, option, None)
        try:
            value = getattr(Params(**{field: _read(option, given)}), field)
            if option == "sequence_bias" and max(value or {0: 0}) >= vocab_size:
                raise ValueError("the model lacks such a token")
            if option == "stop_strings":
                check_stops(value)
        except (TypeError, ValueError):  # whatever a file holds
            refused.append(option)
        else:
            if value and value != 1:
                own[field] = value
    refused += [option for option, asks in NOT_APPLIED.items() if _asks(asks, getattr(config, option, None))]
    return own, refused


def _read(option: str, given: Any) -> Any:
    """The option's value as Params has it. TypeError or ValueError for what cannot be."""
    if option == "stop_strings":
        return tuple(dict.fromkeys([given] if isinstance(given, str) else given or ()))
    if option == "sequence_bias":
        # transformers takes a mapping from tuples, or a list of pairs.
        pairs = given.items() if isinstance(given, Mapping) else given or ()
        return {token_id: bias for (token_id,), bias in pairs}  # of single tokens
    return given


def _asks(asks: Callable[[Any], bool], given: Any) -> bool:
    try:
        return given is not None and asks(given)
    except (TypeError, ValueError, LookupError):  # not what transformers takes, so it is not off either
        return True
