"""What comes with a model's weights: its chat template, a program in Jinja, and what it makes of messages;
and its generation config (`read_options`), of which the repetition penalty, the bias on single tokens and the
stop strings are applied (`with_models_own`); a user is told of the rest.

Without torch and without transformers.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from specdemo.errors import in_short
from specdemo.events import ChatMessage, Mark, Params
from specdemo.events.params import MOST_STOPS
from specdemo.events.thoughts import MARKS, PAIRS
from specdemo.words.message import about, refusal

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedTokenizerBase

HANDED_ON = ("tools", "documents")  # arguments of apply_chat_template that templates get, under their names


def marks_of(tokenizer: "PreTrainedTokenizerBase", eos: Iterable[int]) -> tuple[Mark, ...]:
    """The marks of the tokenizer's chat templates that are tokens of their own. eos: ids that end a turn, and
    so any thought."""
    ids = {text: tokenizer.convert_tokens_to_ids(text) for text in _mark_texts(tokenizer)}
    marks = [
        Mark(token_id, text, MARKS[text])
        for text, token_id in ids.items()
        if token_id is not None and tokenizer.convert_ids_to_tokens(token_id) == text
    ]
    if all(mark.role == "end" for mark in marks):
        return ()
    ends = [Mark(one, str(tokenizer.convert_ids_to_tokens(one)), "end") for one in sorted(eos)]
    return (*marks, *(end for end in ends if end not in marks))


def unread_thoughts(tokenizer: "PreTrainedTokenizerBase") -> str | None:
    """A mark that opens thoughts in the tokenizer's chat templates, if it is no token of its own."""
    known, texts = {mark.text for mark in marks_of(tokenizer, ())}, _texts(tokenizer)
    return next((one for one in PAIRS if one in texts and one not in known), None)


def _mark_texts(tokenizer: "PreTrainedTokenizerBase") -> list[str]:
    """The marks that stand in the tokenizer's chat templates, and those that open or close the same."""
    texts = _texts(tokenizer)
    partners = {one for pair in PAIRS.items() if any(one in texts for one in pair) for one in pair}
    return [text for text in MARKS if text in texts or text in partners]


def _texts(tokenizer: "PreTrainedTokenizerBase") -> str:
    template = tokenizer.chat_template
    return "\n".join(template.values() if isinstance(template, dict) else [template])


def without_marks(content: str, marks: Iterable[Mark]) -> str:
    """A message's content with a full stop, which no mark has, in the place of each mark."""
    for mark in marks:
        content = content.replace(mark.text, ".")
    return content


def check_arguments(tokenizer: "PreTrainedTokenizerBase", template: str, names: Iterable[str]) -> None:
    """ValueError for the name of an argument that is nowhere in a template of this tokenizer, or that
    `apply_chat_template` would take for itself."""
    taken = {*inspect.signature(tokenizer.apply_chat_template).parameters, "messages"}.difference(HANDED_ON)
    known = {*re.findall(r"\w+", template)} - taken
    if unknown := next((name for name in names if name not in known), None):
        raise ValueError(refusal("chat_template_kwargs", "template_reads", unknown))


def render(
    tokenizer: "PreTrainedTokenizerBase", messages: Iterable[ChatMessage], arguments: Mapping[str, Any]
) -> str:
    """The text that the tokenizer's chat template makes of messages and arguments. ValueError in one sentence
    for an argument that it does not name, and where it refuses."""
    with _refusing():
        template = tokenizer.get_chat_template(tools=arguments.get("tools"))
    check_arguments(tokenizer, template, arguments)
    with _refusing("chat_template_kwargs" if arguments else "chat"):
        return tokenizer.apply_chat_template(
            list(map(asdict, messages)), tokenize=False, add_generation_prompt=True, **arguments
        )


@contextmanager
def _refusing(field: str = "chat") -> Iterator[None]:
    """A template is a program, and may refuse (a system prompt, for example, or an argument's type)."""
    try:
        yield
    except Exception as error:
        raise ValueError(about(field, "template_says", reason=in_short(error))) from None


# Generation configs

# Options that are not applied: whether a value other than None asks for anything, as transformers has it.
NOT_APPLIED: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("guidance_scale", "encoder_repetition_penalty"), lambda factor: factor != 1),
    **dict.fromkeys(("no_repeat_ngram_size", "encoder_no_repeat_ngram_size"), lambda size: size > 0),
    **dict.fromkeys(("min_length", "min_new_tokens"), lambda count: count > 0),
    **dict.fromkeys(("bad_words_ids", "suppress_tokens", "begin_suppress_tokens"), bool),
    **dict.fromkeys(("epsilon_cutoff", "eta_cutoff"), lambda epsilon: 0 < epsilon < 1),
    "typical_p": lambda mass: mass < 1,
    "exponential_decay_length_penalty": lambda start_and_factor: start_and_factor[1] != 1,
    **dict.fromkeys(("forced_bos_token_id", "forced_eos_token_id"), lambda token_id: True),
    **dict.fromkeys(("top_h", "watermarking_config"), lambda given: True),
}
# Options that are applied: the field of Params that has the same meaning.
APPLIED = {"repetition_penalty": "repetition_penalty", "sequence_bias": "logit_bias", "stop_strings": "stop"}


def with_models_own(params: Params, options: dict[str, Any]) -> Params:
    """The Params with the model's own repetition penalty and logit bias where they leave these to the model,
    and with its stop strings unless the model's own ends are ignored. options: what `read_options` gives.
    ValueError if the stop strings are too many together."""
    for field in ("repetition_penalty", "logit_bias"):
        if field in options and getattr(params, field) is None:
            params = replace(params, **{field: options[field]})
    stops = tuple(stop for stop in options.get("stop", ()) if stop not in params.stop)
    if not stops or params.ignore_eos:
        return params
    if len(params.stop) + len(stops) > MOST_STOPS:
        most, own_count = MOST_STOPS - len(stops), len(stops)
        raise ValueError(refusal("stop", "stops_of_pair", len(params.stop), most=most, own=own_count))
    return replace(params, stop=params.stop + stops)


def read_options(
    config: "GenerationConfig", vocab_size: int, check_stops: Callable[[tuple[str, ...]], None]
) -> tuple[dict[str, Any], list[str]]:
    """Fields of Params as the config sets them, and the names of the options that it asks for and that are
    not applied: those of NOT_APPLIED, and values that Params or the model does not allow. check_stops: raises
    ValueError for stop strings that cannot be found."""
    options, refused = {}, []
    for option, field in APPLIED.items():
        given = getattr(config, option, None)
        try:
            if option == "stop_strings":
                given = tuple(dict.fromkeys([given] if isinstance(given, str) else given or ()))
            elif option == "sequence_bias":  # transformers takes a mapping from tuples, or a list of pairs
                pairs = given.items() if isinstance(given, Mapping) else given or ()
                given = {token_id: bias for (token_id,), bias in pairs}  # of single tokens
            value = getattr(Params(**{field: given}), field)
            if option == "sequence_bias" and max(value or {0: 0}) >= vocab_size:
                raise ValueError("the model lacks such a token")
            if option == "stop_strings":
                check_stops(value)
        except (TypeError, ValueError):  # whatever a file holds
            refused.append(option)
        else:
            if value and value != 1:
                options[field] = value
    for option, asks in NOT_APPLIED.items():
        given = getattr(config, option, None)
        try:
            is_off = given is None or not asks(given)
        except Exception:  # not what transformers takes, so it is not off either
            is_off = False
        if not is_off:
            refused.append(option)
    return options, refused
