"""`Params`: how to generate, and what each field allows. Standard library only."""

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from dataclasses import field as dataclass_field
from difflib import get_close_matches
from numbers import Integral, Real
from typing import Any, Literal, TypeGuard, cast

from specdemo.events.choices import GONE_RULES, METHODS, RULES, lossy_in_words
from specdemo.words.catalogue import numeral
from specdemo.words.message import Message, about, given, refusal, shown

Gamma = int | Literal["auto"]
DraftTree = tuple[int, ...] | Literal["auto"]


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """A turn of a conversation. role: "system", "user", "assistant", or what else the model's chat template
    knows."""

    role: str
    content: str


# What a run continues: text, token ids, or the turns of a conversation (a ChatMessage, or a dict like one).
Prompt = str | Sequence[int] | Sequence[ChatMessage | Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Parameter:
    """What is said of a field of Params, once for all: its checks, the options of the command line, the
    arguments of the API and of tools, and the page's controls are read off it.

    about: what it does, in a few words. choices: the names that it may have, which `about` names. kind: int
    or float where it is a number, from `smallest` to `largest`; `excluded` is one of the two that it must not
    be. none_is: what None stands for, where it may be None. step: of the page's slider; without one a number
    has a box. is_compared: whether `bench` has an option for it. on_vllm: whether a vLLM server
    takes it under the same name."""

    about: str
    kind: type[int] | type[float] | None = None
    smallest: float = 0
    largest: float = 0
    excluded: float | None = None
    choices: Mapping[str, object] | None = None
    none_is: str | None = None
    step: float | None = None
    is_compared: bool = True
    on_vllm: bool = False


def _described(default: Any, about: str, **more: Any) -> Any:
    return dataclass_field(default=default, metadata={"row": Parameter(about, **more)})


def _whole(default: int | str | None, smallest: int, largest: int, about: str, **more: Any) -> Any:
    return _described(default, about, kind=int, smallest=smallest, largest=largest, **more)


def _real(default: float | None, smallest: float, largest: float, about: str, **more: Any) -> Any:
    return _described(default, about, kind=float, smallest=smallest, largest=largest, **more)


NO_PROMPT = about("prompt", "no_prompt")
EXAMPLE = '{"role": "user", "content": "..."}'  # of a message
MOST_STOPS, LONGEST_STOP = 64, 1_000  # strings, characters: each one is looked for in every round
MOST_BIASES, LARGEST_BIAS = 300, 100.0  # tokens, either way: their ids go to the device in every round
MOST_ARGUMENTS, DEEPEST_ARGUMENT = 32_768, 16  # characters as JSON; objects and lists within each other
# The fields of Params that a text can have to follow, and how many characters they can have.
GRAMMARS = {"json_schema": 20_000, "regex": 4_000, "grammar": 10_000}
MOST_NODES, DEEPEST_TREE = 32, 8  # tokens of a tree, and how many of them can follow each other


@dataclass(frozen=True, slots=True)
class Grown:
    """What a tree of Params.tree "auto" has: so many tokens, so many of them after each other and after one
    token, at most."""

    size: int
    depth: int
    most: int


GROWN = Grown(size=16, depth=5, most=4)
TOKEN_IDS = 2**31  # a token's id is below this, whatever the vocabulary


@dataclass(frozen=True, slots=True)
class Params:
    """How to generate. A wrong value raises ValueError: one sentence with the field, what is allowed and what
    was given.

    draft_with: what drafts, a name in METHODS (events/choices.py); "none" is plain decoding. Two
        names can be joined by "+", if the first copies from the text: the first that has a draft gives it.
    gamma: the most tokens drafted in a round; "auto" chooses it round by round.
    tree: how many children each drafted token has, and the text before them all, by depth: (3, 2, 1) drafts 3
        tokens, 2 after each of these, and 1 after each of those; at most 8 numbers and 32 tokens. Text such
        as "3,2,1" will do. "auto": a tree of 16 tokens and at most 5 depths, which grows where the drafter's
        probabilities are largest. (): a chain. With a tree, gamma is not used. Only by rule "speculative",
        and not with a confidence or a grammar.
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
    chat_template_kwargs: what else the template is given, by name: a mapping of plain JSON values, or its
        JSON text; {} is None. One that the template does not read is refused. tools and documents are lists
        of objects. At most 32,768 characters as JSON.
    json_schema, regex, grammar: what the text must follow to its end, from its first token or, where the
        prompt or the model opens a thought, from the end of that: a JSON schema (a mapping, or JSON text,
        which is kept), a regular expression of Rust's regex crate, or a grammar in Lark's form; at most one
        of them, and not with ignore_eos. What it forbids has probability 0 in p and q alike. A text that is
        cut by max_new_tokens or a stop string may be incomplete.
    ngram: the longest n-gram that is matched ("lookup") or stored ("ngram").
    alternatives: how many of the likeliest tokens are recorded at each position; 0 is none.
    lenience: of rule "lenient": a draft is accepted when u < p/(lenience q); 1 is the speculative rule.
    draft_temperature: the drafter's own, where a model drafts; the filters are p's. 0: its likeliest tokens,
        so that q is one-hot, as vLLM drafts. None: the target's. With any, the text has the target's
        distribution.
    """

    draft_with: str = _described(
        *("model", "what drafts: one of {choices}; none is plain decoding"),
        choices=METHODS,
        is_compared=False,
    )
    gamma: Gamma = _whole(
        4, 1, 16, "the most tokens drafted in a round; auto chooses it round by round", step=1
    )
    tree: DraftTree = _described(
        (),
        "the children of each drafted token, by depth: 3,2,1; auto: more where the drafter is surer; empty "
        "drafts a chain",
        is_compared=False,
    )
    confidence: float = _real(
        *(0.0, 0.0, 1.0),
        "a draft ends where the drafter's likeliest token is less probable than this; 0 is off",
        excluded=1.0,
        step=0.05,
    )
    exit_layer: int = _whole(
        *(0, 0, 64), "how many of the target's layers draft with early-exit; 0 is a quarter of them", step=1
    )
    rule: str = _described("speculative", "how drafts are judged: one of {choices}; {lossy}", choices=RULES)
    temperature: float = _real(0.8, 0.0, 2.0, "0 is greedy", step=0.05, on_vllm=True)
    top_k: int = _whole(0, 0, 1_000_000, "0 is off", on_vllm=True)
    top_p: float = _real(0.9, 0.0, 1.0, "1 is off", excluded=0.0, step=0.01, on_vllm=True)
    min_p: float = _real(0.0, 0.0, 1.0, "0 is off", excluded=1.0, step=0.01, on_vllm=True)
    repetition_penalty: float | None = _real(
        *(None, 0.0, 10.0),
        "above 1, tokens already in the text become less likely",
        excluded=0.0,
        none_is="the model's own",
        is_compared=False,
    )
    presence_penalty: float = _real(
        *(0.0, -2.0, 2.0),
        "subtracted from the logits of tokens that were generated; 0 is off",
        step=0.1,
        is_compared=False,
        on_vllm=True,
    )
    frequency_penalty: float = _real(
        *(0.0, -2.0, 2.0),
        "subtracted as many times as the token was generated; 0 is off",
        step=0.1,
        is_compared=False,
        on_vllm=True,
    )
    logit_bias: dict[int, float] | None = dataclass_field(
        default=None,
        hash=False,
        metadata={
            "row": Parameter(
                "by token id, a number from -100 to 100 that is added to the token's logit",
                none_is="the model's own",
                is_compared=False,
            )
        },
    )
    seed: int | None = _whole(  # every JSON reader keeps whole numbers up to here exact
        *(None, 0, 2**53 - 1),
        "the same seed and settings give the same text",
        none_is="a new one",
        on_vllm=True,
    )
    max_new_tokens: int = _whole(200, 1, 32_768, "the longest text, in tokens")
    stop: tuple[str, ...] = _described(
        (), "the text ends before the first of these strings", is_compared=False
    )
    ignore_eos: bool = _described(
        False, "continue after an end-of-sequence token", is_compared=False, on_vllm=True
    )
    chat: bool = _described(False, "apply the tokenizer's chat template to the prompt", is_compared=False)
    system: str | None = _described(
        None, "a system prompt, with chat only", none_is="none", is_compared=False
    )
    chat_template_kwargs: dict[str, Any] | None = dataclass_field(
        default=None,
        hash=False,
        metadata={
            "row": Parameter(
                "what else the chat template is given, as a JSON object; with chat only",
                none_is="none",
                is_compared=False,
            )
        },
    )
    json_schema: str | None = _described(
        None, "a JSON schema that the text must follow", none_is="none", is_compared=False
    )
    regex: str | None = _described(
        None, "a regular expression that the text must match", none_is="none", is_compared=False
    )
    grammar: str | None = _described(
        None, "a grammar in Lark's form that the text must follow", none_is="none", is_compared=False
    )
    ngram: int = _whole(3, 1, 16, "the longest n-gram that lookup matches or ngram stores", step=1)
    alternatives: int = _whole(
        5, 0, 50, "how many likely tokens are recorded at each place", step=1, is_compared=False
    )
    lenience: float = _real(
        0.5, 0.0, 1.0, "of rule lenient: less accepts more; 1 is exact", excluded=0.0, step=0.05
    )
    draft_temperature: float | None = _real(
        *(None, 0.0, 2.0),
        "the drafter's own temperature; 0 drafts its likeliest tokens",
        none_is="the target's",
        is_compared=False,
    )

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
        if self.draft_with not in METHODS:
            names = ", ".join(METHODS)
            raise ValueError(refusal("draft_with", "choice_or_two", self.draft_with, names=names))
        if self.rule in GONE_RULES:
            raise ValueError(about("rule", "rule_gone", name=self.rule, names=", ".join(RULES)))
        _one_of("rule", self.rule, RULES)
        for field, row in LIMITS.items():
            value = getattr(self, field)
            if not ((row.none_is is not None and value is None) or is_auto(field, value)):
                object.__setattr__(self, field, check_number(field, value))
        if self.logit_bias is not None:
            object.__setattr__(self, "logit_bias", _checked_bias(self.logit_bias))
        if isinstance(self.stop, list):
            object.__setattr__(self, "stop", tuple(self.stop))
        if not isinstance(self.stop, tuple) or not all(isinstance(s, str) and s for s in self.stop):
            raise ValueError(refusal("stop", "strings", self.stop))
        longest = max(map(len, self.stop), default=0)
        if len(self.stop) > MOST_STOPS or longest > LONGEST_STOP:
            most = {"strings": MOST_STOPS, "characters": LONGEST_STOP}
            raise ValueError(about("stop", "stops", **most, count=len(self.stop), longest=longest))
        for field in ("ignore_eos", "chat"):
            if not isinstance(getattr(self, field), bool):
                raise ValueError(refusal(field, "truth", getattr(self, field)))
        if self.system is not None and not isinstance(self.system, str):
            raise ValueError(refusal("system", "text_or_none", self.system))
        object.__setattr__(self, "chat_template_kwargs", _checked_arguments(self.chat_template_kwargs))
        arguments = template_arguments_json(self)
        if len(arguments) > MOST_ARGUMENTS:
            size = numeral(len(arguments))
            raise ValueError(refusal("chat_template_kwargs", "characters", size, most=MOST_ARGUMENTS))
        texts_of = {"stop": self.stop, "system": (self.system or "",), "chat_template_kwargs": (arguments,)}
        for field, texts in texts_of.items():
            for text in texts:
                check_text(field, text)
        self._check_grammar()
        object.__setattr__(self, "tree", _checked_tree(self.tree))
        if self.tree and self.rule != "speculative":
            raise ValueError(about("tree", "tree_by_rule", name=self.rule))
        beside = "confidence" if self.confidence else field_of_grammar(self)
        if self.tree and beside:
            raise ValueError(about("tree", "tree_beside", name=beside))

    def _check_grammar(self) -> None:
        if isinstance(self.json_schema, Mapping):
            object.__setattr__(self, "json_schema", _as_json(self.json_schema))
        names = [name for name in GRAMMARS if getattr(self, name) is not None]
        for name in names:
            text = getattr(self, name)
            if not isinstance(text, str) or not 1 <= len(text) <= GRAMMARS[name]:
                raise ValueError(refusal(name, "grammar_text", text, most=GRAMMARS[name]))
            check_text(name, text)
        if self.json_schema is not None and not _is_json_object(self.json_schema):
            raise ValueError(refusal("json_schema", "schema_text", self.json_schema))
        if names[1:]:
            raise ValueError(about(names[1], "one_grammar"))
        if names and self.ignore_eos:
            raise ValueError(about("ignore_eos", "grammar_ends_text"))


def nodes_of(tree: DraftTree) -> int:
    """How many tokens a tree has (Params.tree)."""
    if tree == "auto":
        return GROWN.size
    return sum(math.prod(tree[: depth + 1]) for depth in range(len(tree)))


def depth_of(tree: DraftTree) -> int:
    """How many tokens of a tree can follow each other, at most."""
    return GROWN.depth if tree == "auto" else len(tree)


def most_children(tree: DraftTree, depth: int) -> int:
    """How many children a token of this depth can have; depth 0: the text."""
    if tree == "auto":
        return GROWN.most if depth < GROWN.depth else 0
    return tree[depth] if depth < len(tree) else 0


def takes_tree(method: str, tree: DraftTree) -> bool:
    """Whether a method drafts such a tree. What copies from the text has no probabilities to grow one by."""
    row = METHODS[method]
    return "tree" in row.fields and not (tree == "auto" and row.manner == "copy")


def tree_text(tree: DraftTree) -> str:
    """A tree as it is typed; empty for a chain."""
    return tree if isinstance(tree, str) else ",".join(map(str, tree))


def _checked_tree(given: object) -> DraftTree:
    """The checked tree. given: numbers, their text with commas, or "auto"."""
    if isinstance(given, str) and given.strip() == "auto":
        return "auto"
    numbers = given
    if isinstance(given, str):
        parts = [part.strip() for part in given.split(",")] if given.strip() else []
        is_short = all(part.isascii() and part.isdecimal() and len(part) < 3 for part in parts)
        numbers = tuple(map(int, parts)) if is_short else None
    is_tree = isinstance(numbers, (list, tuple)) and len(numbers) <= DEEPEST_TREE
    if not is_tree or not all(_is_between(1, one, math.inf, Integral) for one in cast(Sequence, numbers)):
        raise ValueError(refusal("tree", "tree", given, deepest=DEEPEST_TREE))
    tree = tuple(int(one) for one in cast(Sequence, numbers))
    if nodes_of(tree) > MOST_NODES:
        raise ValueError(refusal("tree", "tree_nodes", given, most=MOST_NODES))
    return tree


def _as_json(schema: Mapping) -> str | Mapping:
    """The JSON text of a schema; the schema itself where it is none, to be refused."""
    try:
        return json.dumps(dict(schema), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return schema


def _is_json_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


PARAMETERS: dict[str, Parameter] = {field.name: field.metadata["row"] for field in fields(Params)}
LIMITS = {name: row for name, row in PARAMETERS.items() if row.kind is not None}  # of the numbers


def described(field: str) -> str:
    """What the field does, in a few words, with the names that it may have now."""
    row = PARAMETERS[field]
    return row.about.format(choices=", ".join(row.choices or ()), lossy=lossy_in_words())


def _checked_bias(given: object) -> dict[int, float]:
    """The checked bias, in the order of the ids. A key may be an id in digits, since JSON has no other
    keys."""
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


def _checked_arguments(given: object) -> dict[str, Any] | None:
    """The checked arguments of a chat template, which share nothing with what was given; None for none."""
    if given is None:
        return None
    try:
        arguments = _plain_json(json.loads(given) if isinstance(given, str) else given, DEEPEST_ARGUMENT)
        if not isinstance(arguments, dict) or not all(map(str.isidentifier, arguments)):
            raise ValueError
        json.dumps(arguments)  # or an integer has too many digits
    except (ValueError, RecursionError):
        example, deepest = '{"enable_thinking": false}', DEEPEST_ARGUMENT
        wrong = refusal("chat_template_kwargs", "template_arguments", given, example=example, deepest=deepest)
        raise ValueError(wrong) from None
    for name in ("tools", "documents"):
        listed = arguments.get(name) or []
        if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
            raise ValueError(refusal("chat_template_kwargs", "template_list", arguments[name], name=name))
    return arguments or None


def _plain_json(value: object, deepest: int) -> Any:
    """A copy of a value that JSON can hold as it is; ValueError for another, and for one that is nested
    deeper."""
    if value is None or type(value) in (bool, int, str) or (type(value) is float and math.isfinite(value)):
        return value
    if isinstance(value, Mapping) and deepest and all(type(key) is str for key in value):
        return {key: _plain_json(one, deepest - 1) for key, one in value.items()}
    if isinstance(value, (list, tuple)) and deepest:
        return [_plain_json(one, deepest - 1) for one in value]
    raise ValueError


def template_arguments_json(params: Params) -> str:
    """The arguments of the chat template as JSON text; empty for none."""
    arguments = params.chat_template_kwargs
    return "" if arguments is None else json.dumps(arguments, ensure_ascii=False)


def field_of_grammar(params: Params) -> str | None:
    """The field that has what the text must follow; None where it is free."""
    return next((name for name in GRAMMARS if getattr(params, name) is not None), None)


def of_drafter(params: Params) -> Params:
    """The params as the drafter's sampler reads them."""
    own = params.draft_temperature
    return params if own is None else replace(params, temperature=own)


def is_lossy(params: Params) -> bool:
    """Whether a run's text can have another distribution than the target's. Greedily no rule changes it, and
    without drafts there is nothing to accept."""
    rule = RULES[params.rule]
    is_exact = rule.lossless
    if rule.lossless_at is not None:
        field, value = rule.lossless_at
        is_exact = getattr(params, field) == value
    return not is_exact and params.temperature > 0 and params.draft_with != "none"


def values_of_rule(params: Params) -> dict[str, float]:
    """The fields that the run's rule uses, with their values."""
    return {field: getattr(params, field) for field in RULES[params.rule].fields}


def rule_in_words(params: Params) -> str | None:
    """The rule where it is not the speculative one and there are drafts to judge: "lossy rule typical"."""
    if params.rule == "speculative" or params.draft_with == "none":
        return None
    values = "".join(f" {value:g}" for value in values_of_rule(params).values())
    return f"{'lossy ' if is_lossy(params) else ''}rule {params.rule}{values}"


def check_number(field: str, value: object, largest: float | None = None) -> int | float:
    """`value` in the field's own type; ValueError says what the field allows. largest: the largest in place
    of the field's own."""
    row = LIMITS[field]
    high = row.largest if largest is None else largest
    if _is_between(row.smallest, value, high, Integral if row.kind is int else Real):
        number = cast(float, value)
        if row.excluded is None or number != row.excluded:
            return int(number) if row.kind is int else float(number)
    raise ValueError(given(allowed(field, high), value))


def _is_between(low: float, value: object, high: float, kind: type) -> bool:
    """Whether it is a number of that kind, from low to high; false for NaN and for true and false."""
    is_number = isinstance(value, kind) and not isinstance(value, bool)
    return is_number and low <= cast(float, value) <= high


def is_auto(field: str, value: object) -> bool:
    """Whether the value is the one word that `gamma` may be."""
    return field == "gamma" and isinstance(value, str) and value == "auto"


def allowed(field: str, largest: float | None = None) -> Message:
    """What a numeric field may be: "must be a whole number from 1 to 16"."""
    row = LIMITS[field]
    high = row.largest if largest is None else largest
    key, form = "whole_or_auto" if field == "gamma" else "whole", ","
    if row.kind is float:
        excluded = row.excluded
        key, form = "above" if excluded == row.smallest else "below" if excluded == high else "number", "g"
    return about(field, key, low=numeral(row.smallest, form), high=numeral(high, form))


def allowed_in_words(field: str) -> str:
    """What a numeric field may be, in English: "a whole number from 1 to 16"."""
    return str(allowed(field)).removeprefix(f"{field} must be ")


def check_text(field: str, text: str) -> None:
    """Raises ValueError when `text` holds half a surrogate pair, which no tokenizer and no UTF-8 file
    accepts."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        bad = text[error.start]
        raise ValueError(about(field, "surrogate", sign=f"U+{ord(bad):04X}")) from None


def check_prompt(prompt: str) -> None:
    """Raises ValueError for a text that no pair can continue."""
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
            raise ValueError(refusal("prompt", "message", one, example=EXAMPLE))
        for text in (one.role, one.content):
            check_text("prompt", text)
        messages.append(one)
    return tuple(messages)


def _one_of(field: str, value: object, choices: Collection[str]) -> None:
    if value not in tuple(choices):  # not the mapping itself, which would hash the value
        raise ValueError(refusal(field, "choice", value, names=", ".join(choices)))
