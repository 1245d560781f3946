"""`Params`: how to generate, and what each field allows. Standard library only."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from difflib import get_close_matches
from numbers import Integral, Real
from typing import Literal, TypeGuard, cast

from specdemo.drafters import METHODS
from specdemo.events.choices import RULES

Gamma = int | Literal["auto"]


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """A turn of a conversation. role: "system", "user", "assistant", or what else the model's chat template
    knows."""

    role: str
    content: str


# What a run continues: text, token ids, or the turns of a conversation (a ChatMessage, or a dict like one).
Prompt = str | Sequence[int] | Sequence[ChatMessage | Mapping[str, str]]

# Field of Params: (type, smallest, largest). The page's sliders and the command line's help use these, too.
LIMITS: dict[str, tuple[type, float, float]] = {
    "gamma": (int, 1, 16),  # or "auto"
    "confidence": (float, 0.0, 1.0),
    "exit_layer": (int, 0, 64),
    "temperature": (float, 0.0, 2.0),
    "top_k": (int, 0, 1_000_000),
    "top_p": (float, 0.0, 1.0),
    "min_p": (float, 0.0, 1.0),
    "repetition_penalty": (float, 0.0, 10.0),  # or None
    "presence_penalty": (float, -2.0, 2.0),
    "frequency_penalty": (float, -2.0, 2.0),
    "seed": (int, 0, 2**53 - 1),  # every JSON reader keeps whole numbers up to here exact
    "max_new_tokens": (int, 1, 32_768),
    "ngram": (int, 1, 16),
    "alternatives": (int, 0, 50),
    "lenience": (float, 0.0, 1.0),
}
ABOVE_SMALLEST = {"top_p", "lenience", "repetition_penalty"}
CAN_BE_NONE = ("seed", "repetition_penalty")
BELOW_LARGEST = {"min_p", "confidence"}
NO_PROMPT = "prompt must not be empty: the target needs at least one token to continue"
MOST_STOPS, LONGEST_STOP = 64, 1_000  # strings, characters: each one is looked for in every round
MOST_BIASES, LARGEST_BIAS = 300, 100.0  # tokens, either way: their ids go to the device in every round
TOKEN_IDS = 2**31  # a token's id is below this, whatever the vocabulary


@dataclass(frozen=True, slots=True)
class Params:
    """How to generate. A wrong value raises ValueError: one sentence with the field, what is allowed and what
    was given.

    draft_with: what drafts, a name in METHODS (drafters/__init__.py); "none" is plain decoding.
    gamma: the most tokens drafted in a round; "auto" chooses it round by round.
    confidence: a draft ends before the first token at which the drafter's likeliest token has a probability
        (temperature 1, unfiltered) below this; 0 is off. It ends no draft of a drafter without a distribution
        ("lookup", "ngram").
    exit_layer: how many of the target's layers draft ("early-exit"), at least one and not all of them. 0: a
        quarter of them, rounded up; the trace has the number that it was.
    rule: how drafts are judged, a name in RULES (events/choices.py). After a lossless one the text has the
        target's own distribution.
    temperature: 0 is greedy: p and q are one-hot at the argmax.
    top_k: 0 is off. top_p: 1 is off. min_p: 0 is off. Applied in this order after the temperature,
    renormalising.
    repetition_penalty: the logits of tokens already in the text are divided by it, or multiplied where
        they are below 0, before the temperature, in p and q alike; 1 is off. None: the model's own, which
        the trace records if it has one. A server's own is not known.
    presence_penalty, frequency_penalty: subtracted from the logits of generated tokens, in p and q alike: the
        first once, the second as often as the token was generated. As in OpenAI's API, the prompt does not
        count. 0 is off; a generation config has neither.
    logit_bias: token id -> number from -100 to 100, added to that token's logit before all penalties, in p
        and q alike; at most 300 tokens. None: the model's own, if its generation config has a sequence_bias
        of single tokens, which the trace then records; {} is none.
    seed: None draws one, which the trace records.
    stop: the text is cut before the first of these strings, at most 64 of at most 1,000 characters each. The
        stop strings of the model's generation config are added to them, which the trace then records. One
        that is a special token is found by its id, since texts are decoded without these; not by a server.
    ignore_eos: continue after an end-of-sequence token, and leave out the model's own stop strings.
    chat, system: apply the tokenizer's chat template to the prompt, with this system prompt.
    ngram: the longest n-gram that is matched ("lookup") or stored ("ngram").
    alternatives: how many of the likeliest tokens are recorded at each position; 0 is none.
    lenience: of rule "lenient": a draft is accepted when u < p/(lenience q); 1 is the speculative rule.
    """

    draft_with: str = "model"
    gamma: Gamma = 4
    confidence: float = 0.0
    exit_layer: int = 0
    rule: str = "speculative"
    temperature: float = 0.8
    top_k: int = 0
    top_p: float = 0.9
    min_p: float = 0.0
    repetition_penalty: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] | None = dataclass_field(default=None, hash=False)
    seed: int | None = None
    max_new_tokens: int = 200
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    chat: bool = False
    system: str | None = None
    ngram: int = 3
    alternatives: int = 5
    lenience: float = 0.5

    def __new__(cls, *_: object, **given: object) -> "Params":
        """Before __init__, which would raise Python's own TypeError for an unknown field."""
        fields = cls.__dataclass_fields__
        for name in given:
            if name not in fields:
                near = get_close_matches(name, fields, n=1)
                hint = f" (did you mean {near[0]}?)" if near else ""
                raise ValueError(f"{shown(name)} is no field of Params{hint}; it has {', '.join(fields)}")
        return object.__new__(cls)

    def __post_init__(self) -> None:
        _one_of("draft_with", self.draft_with, METHODS)
        _one_of("rule", self.rule, RULES)
        for field in LIMITS:
            value = getattr(self, field)
            if not ((field in CAN_BE_NONE and value is None) or is_auto(field, value)):
                object.__setattr__(self, field, check_number(field, value))
        if self.logit_bias is not None:
            object.__setattr__(self, "logit_bias", _checked_bias(self.logit_bias))
        if isinstance(self.stop, list):
            object.__setattr__(self, "stop", tuple(self.stop))
        if not isinstance(self.stop, tuple) or not all(isinstance(s, str) and s for s in self.stop):
            raise ValueError(f"stop must be a list of strings, none of them empty, not {shown(self.stop)}")
        longest = max(map(len, self.stop), default=0)
        if len(self.stop) > MOST_STOPS or longest > LONGEST_STOP:
            allowed = f"at most {MOST_STOPS} strings of at most {LONGEST_STOP:,} characters each"
            raise ValueError(f"stop must be {allowed}, not {len(self.stop):,} of up to {longest:,}")
        for field in ("ignore_eos", "chat"):
            if not isinstance(getattr(self, field), bool):
                raise ValueError(f"{field} must be true or false, not {shown(getattr(self, field))}")
        if self.system is not None and not isinstance(self.system, str):
            raise ValueError(f"system must be text or None, not {shown(self.system)}")
        for field, texts in (("stop", self.stop), ("system", (self.system or "",))):
            for text in texts:
                check_text(field, text)


def _checked_bias(given: object) -> dict[int, float]:
    """In the order of the ids. A key may be an id in digits, since JSON has no other keys."""
    if not isinstance(given, Mapping) or len(given) > MOST_BIASES:
        what = f"{len(given):,} of them" if isinstance(given, Mapping) else shown(given)
        raise ValueError(f"logit_bias must be a mapping of at most {MOST_BIASES} token ids, not {what}")
    bias = {}
    for key, value in given.items():
        is_digits = isinstance(key, str) and key.isascii() and key.isdecimal() and len(key) <= 10
        token_id = int(key) if is_digits else key
        if not _is_between(0, token_id, TOKEN_IDS - 1, Integral) or token_id in bias:
            raise ValueError(f"logit_bias must be a mapping of different token ids, not of {shown(key)}")
        if not _is_between(-LARGEST_BIAS, value, LARGEST_BIAS, Real):
            numbers = f"numbers from {-LARGEST_BIAS:g} to {LARGEST_BIAS:g}"
            raise ValueError(f"logit_bias must be a mapping to {numbers}, not to {shown(value)}")
        bias[int(token_id)] = float(value)
    return dict(sorted(bias.items()))


def is_lossy(params: Params) -> bool:
    """Whether a run's text can have another distribution than the target's. Greedily no rule changes it, and
    without drafts there is nothing to accept."""
    rule = RULES[params.rule]
    is_exact = rule.lossless
    if rule.lossless_at is not None:
        field, value = rule.lossless_at
        is_exact = getattr(params, field) == value
    return not is_exact and params.temperature > 0 and params.draft_with != "none"


def rule_in_words(params: Params) -> str | None:
    """The rule where it is not the speculative one and there are drafts to judge: "lossy rule typical"."""
    if params.rule == "speculative" or params.draft_with == "none":
        return None
    values = "".join(f" {getattr(params, field):g}" for field in RULES[params.rule].fields)
    return f"{'lossy ' if is_lossy(params) else ''}rule {params.rule}{values}"


def check_number(field: str, value: object, largest: float | None = None) -> int | float:
    """`value` in the field's own type; ValueError says what `LIMITS` allows for the field. largest: in place
    of that in `LIMITS`."""
    kind, low, high = LIMITS[field]
    high = high if largest is None else largest
    if _is_between(low, value, high, Integral if kind is int else Real):
        number = cast(float, value)
        excluded = (field in ABOVE_SMALLEST and number == low) or (field in BELOW_LARGEST and number == high)
        if not excluded:
            return int(number) if kind is int else float(number)
    raise ValueError(f"{field} must be {allowed(field, high)}, not {shown(value)}")


def _is_between(low: float, value: object, high: float, kind: type) -> bool:
    """Whether it is a number of that kind, from low to high; false for NaN and for true and false."""
    is_number = isinstance(value, kind) and not isinstance(value, bool)
    return is_number and low <= cast(float, value) <= high


def is_auto(field: str, value: object) -> bool:
    """Whether it is the one word that `gamma` may be."""
    return field == "gamma" and isinstance(value, str) and value == "auto"


def allowed(field: str, largest: float | None = None) -> str:
    """What a numeric field may be, in words: "a whole number from 1 to 16"."""
    kind, low, high = LIMITS[field]
    high = high if largest is None else largest
    if kind is int:
        return f"a whole number from {low:,} to {high:,}" + (" or auto" if field == "gamma" else "")
    start = "above" if field in ABOVE_SMALLEST else "from"
    end = "to below" if field in BELOW_LARGEST else "to"
    return f"a number {start} {low:g} {end} {high:g}"


def check_text(field: str, text: str) -> None:
    """ValueError when `text` holds half a surrogate pair, which no tokenizer and no UTF-8 file accepts."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        bad = text[error.start]
        raise ValueError(
            f"{field} must be Unicode text, but holds the lone surrogate U+{ord(bad):04X}"
        ) from None


def check_prompt(prompt: str) -> None:
    """ValueError for a text that no pair can continue."""
    if not prompt:
        raise ValueError(NO_PROMPT)  # some tokenizers make a token of an empty text
    check_text("prompt", prompt)


def is_conversation(prompt: object) -> TypeGuard[Sequence[object]]:
    """Whether a prompt is meant as messages, rather than as text or token ids."""
    return isinstance(prompt, (list, tuple)) and any(
        isinstance(one, (ChatMessage, Mapping)) for one in prompt
    )


def check_messages(prompt: Sequence[object]) -> tuple[ChatMessage, ...]:
    """The messages of a prompt; ValueError for what is none."""
    messages = []
    for one in prompt:
        if isinstance(one, Mapping) and one.keys() == {"role", "content"}:
            one = ChatMessage(one["role"], one["content"])
        if not isinstance(one, ChatMessage) or not all(
            isinstance(text, str) for text in (one.role, one.content)
        ):
            raise ValueError(
                'prompt must hold messages like {"role": "user", "content": "..."} and nothing else, not '
                f"{shown(one)}"
            )
        for text in (one.role, one.content):
            check_text("prompt", text)
        messages.append(one)
    return tuple(messages)


def _one_of(field: str, value: object, choices: Collection[str]) -> None:
    if value not in tuple(choices):  # not the mapping itself, which would hash the value
        raise ValueError(f"{field} must be one of {', '.join(choices)}, not {shown(value)}")


def shown(value: object) -> str:
    """What was given, in a sentence that refuses it."""
    try:
        text = ascii(value)  # on one line, whatever the value holds
    except ValueError:  # Python refuses to print integers of more than 4,300 digits
        return "a number of thousands of digits"
    return text if len(text) <= 60 else text[:57] + "..."
