"""`Params`: how to generate, and what each field allows. Standard library only."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from dataclasses import field as dataclass_field
from numbers import Integral, Real
from typing import Any, Literal, TypeGuard, cast

from specdemo.events.choices import LISTED, METHODS, RULES
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
TextOrChat = str | tuple[ChatMessage, ...]
NO_PROMPT = about("prompt", "no_prompt")
EXAMPLE = '{"role": "user", "content": "..."}'  # of a message
MOST_STOPS, LONGEST_STOP = 64, 1_000  # strings, characters: each one is looked for in every round
MOST_BIASES, LARGEST_BIAS = 300, 100.0  # tokens, either way: their ids go to the device in every round
MOST_ARGUMENTS, DEEPEST_ARGUMENT = 32_768, 16  # characters as JSON; objects and lists within each other
# The fields of Params that a text can have to follow, and how many characters they can have.
GRAMMARS = {"json_schema": 20_000, "regex": 4_000, "grammar": 10_000}
MOST_NODES, DEEPEST_TREE = 32, 8  # tokens of a tree, and how many of them can follow each other
TOKEN_IDS = 2**31  # a token's id is below this, whatever the vocabulary
JSON_OBJECT = dict[str, Any] | str | None  # an argument of the API that can be any object of plain JSON


@dataclass(frozen=True, slots=True)
class Grown:
    """What a tree of Params.tree "auto" has: so many tokens, so many of them after each other and after one
    token, at most."""

    size: int
    depth: int
    most: int


GROWN = Grown(size=16, depth=5, most=4)


@dataclass(frozen=True, slots=True)
class Codec:
    """How the values of a field are given, as Python, as text and as JSON.

    check: takes the field and a value, and returns the value to keep; ValueError for a wrong one. read: what
    is to be checked, of a text; join: of several, where each part of a value has one. form: of the text, in
    the help of the command line. in_json: the type that the API takes, if it is not the field's own. kind: of
    a number. is_hashed: False of dicts."""

    check: Callable[[str, Any], Any]
    read: Callable[[str], Any] = str
    join: Callable[[Sequence[str]], Any] | None = None
    form: str | None = None
    in_json: Any = None
    kind: type[int] | type[float] | None = None
    is_hashed: bool = True


@dataclass(frozen=True, slots=True)
class Parameter:
    """What is said of a field of Params, once for all: the options of the command line, the arguments of the
    API and of tools, the names in an address, and the page's controls are read off it.

    kind: of a number, from `smallest` to `largest`; `excluded` is one of the two that it must not be, and
    `word` may stand in its place. none_is: what None stands for, where it may be None. step: of the page's
    slider; without one a number has a box. of_prompt: whether it is limited as the prompt is. on_vllm:
    whether a vLLM server takes it under the same name."""

    about: str
    codec: Codec
    kind: type[int] | type[float] | None = None
    smallest: float = 0
    largest: float = 0
    excluded: float | None = None
    word: str | None = None
    none_is: str | None = None
    step: float | None = None
    of_prompt: bool = False
    on_vllm: bool = False


def _row(default: Any, codec: Codec, about: str, low: float = 0, high: float = 0, **more: Any) -> Any:
    row = Parameter(about, codec, codec.kind, low, high, **more)
    return dataclass_field(default=default, hash=codec.is_hashed, metadata={"row": row})


def as_text(value: Any) -> str:
    """What is read as this value, or of one with parts as a part; empty for None, and for a chain's tree."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    if isinstance(value, (bool, dict)):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, float):
        return str(value).removesuffix(".0")
    return "" if value is None else str(value)


def read_number(text: str) -> int | float | str:
    """The number that is typed, or the text if it is none."""
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


def _number(field: str, value: object) -> object:
    is_word = isinstance(value, str) and value == LIMITS[field].word
    return value if is_word else check_number(field, value)


def _method(field: str, name: object) -> str:
    if not isinstance(name, str) or name not in METHODS:
        raise ValueError(refusal(field, "choice_or_two", name, names=", ".join(LISTED)))
    return name


def _rule(field: str, name: object) -> object:
    if not isinstance(name, str) or name not in RULES:
        raise ValueError(refusal(field, "choice", name, names=", ".join(RULES)))
    return name


def _tree(field: str, tree: object) -> DraftTree:
    """tree: numbers, their text with commas, or "auto"."""
    if isinstance(tree, str) and tree.strip() == "auto":
        return "auto"
    numbers = tree
    if isinstance(tree, str):
        parts = [part.strip() for part in tree.split(",")] if tree.strip() else []
        is_short = all(part.isascii() and part.isdecimal() and len(part) < 3 for part in parts)
        numbers = tuple(map(int, parts)) if is_short else None
    is_tree = isinstance(numbers, (list, tuple)) and len(numbers) <= DEEPEST_TREE
    if not is_tree or not all(_is_between(1, one, math.inf, Integral) for one in cast(Sequence, numbers)):
        raise ValueError(refusal(field, "tree", tree, deepest=DEEPEST_TREE))
    checked = tuple(int(one) for one in cast(Sequence, numbers))
    if nodes_of(checked) > MOST_NODES:
        raise ValueError(refusal(field, "tree_nodes", tree, most=MOST_NODES))
    return checked


def _bias(field: str, bias: object) -> dict[int, float]:
    """The bias in the order of the ids. A key may be an id in digits, since JSON has no other keys."""
    if not isinstance(bias, Mapping) or len(bias) > MOST_BIASES:
        what = f"{len(bias):,} of them" if isinstance(bias, Mapping) else shown(bias)
        raise ValueError(f"{field} must be a mapping of at most {MOST_BIASES} token ids, not {what}")
    checked = {}
    for key, value in bias.items():
        is_digits = isinstance(key, str) and key.isascii() and key.isdecimal() and len(key) <= 10
        token_id = int(key) if is_digits else key
        if not _is_between(0, token_id, TOKEN_IDS - 1, Integral) or token_id in checked:
            raise ValueError(f"{field} must be a mapping of different token ids, not of {shown(key)}")
        if not _is_between(-LARGEST_BIAS, value, LARGEST_BIAS, Real):
            numbers = f"numbers from {-LARGEST_BIAS:g} to {LARGEST_BIAS:g}"
            raise ValueError(f"{field} must be a mapping to {numbers}, not to {shown(value)}")
        checked[int(token_id)] = float(value)
    return dict(sorted(checked.items()))


def _read_biases(texts: Sequence[str]) -> dict[str, int | float | str]:
    biases = {}
    for text in texts:
        token_id, separator, number = text.partition("=")
        if not separator:
            wanted = "ID=N, a token id and what to add to its logit"
            raise ValueError(f"logit_bias must be given as {wanted}, not {shown(text)}")
        if token_id in biases:
            raise ValueError("logit_bias must be given once for each token id")
        biases[token_id] = read_number(number)
    return biases


def _stop(field: str, stop: object) -> tuple[str, ...]:
    stop = tuple(stop) if isinstance(stop, list) else stop
    if not isinstance(stop, tuple) or not all(isinstance(one, str) and one for one in stop):
        raise ValueError(refusal(field, "strings", stop))
    longest = max(map(len, stop), default=0)
    if len(stop) > MOST_STOPS or longest > LONGEST_STOP:
        most = {"strings": MOST_STOPS, "characters": LONGEST_STOP}
        raise ValueError(about(field, "stops", **most, count=len(stop), longest=longest))
    for one in stop:
        check_text(field, one)
    return stop


def _truth(field: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(refusal(field, "truth", value))
    return value


def _text(field: str, text: object) -> str:
    if not isinstance(text, str):
        raise ValueError(refusal(field, "text_or_none", text))
    check_text(field, text)
    return text


def _arguments(field: str, value: object) -> dict[str, Any] | None:
    """The arguments of a chat template, which share nothing with what was given; None for an empty mapping.
    value: a mapping, or its JSON text."""
    try:
        arguments = _plain_json(json.loads(value) if isinstance(value, str) else value, DEEPEST_ARGUMENT)
        if not isinstance(arguments, dict) or not all(map(str.isidentifier, arguments)):
            raise ValueError
        text = json.dumps(arguments, ensure_ascii=False)  # or an integer has too many digits
    except (ValueError, RecursionError):
        example, deepest = '{"enable_thinking": false}', DEEPEST_ARGUMENT
        wrong = refusal(field, "template_arguments", value, example=example, deepest=deepest)
        raise ValueError(wrong) from None
    if len(text) > MOST_ARGUMENTS:
        raise ValueError(refusal(field, "characters", numeral(len(text)), most=MOST_ARGUMENTS))
    check_text(field, text)
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


def _grammar(field: str, text: object) -> str:
    if not isinstance(text, str) or not 1 <= len(text) <= GRAMMARS[field]:
        raise ValueError(refusal(field, "grammar_text", text, most=GRAMMARS[field]))
    check_text(field, text)
    return text


def _schema(field: str, schema: object) -> str:
    """schema: a mapping, or its JSON text."""
    if isinstance(schema, Mapping):
        with suppress(TypeError, ValueError, RecursionError):
            schema = json.dumps(dict(schema), ensure_ascii=False, allow_nan=False)
    text = _grammar(field, schema)
    with suppress(ValueError, RecursionError):
        if isinstance(json.loads(text), dict):
            return text
    raise ValueError(refusal(field, "schema_text", text))


WHOLE, REAL = (Codec(_number, read_number, form="N", kind=kind) for kind in (int, float))
TRUTH = Codec(_truth, lambda text: {"true": True, "false": False}.get(text, text))
METHOD, RULE, TEXT, GRAMMAR = map(Codec, (_method, _rule, _text, _grammar))
TREE = Codec(_tree, form="N,N", in_json=list[int] | str)
BIASES = Codec(_bias, join=_read_biases, form="ID=N", in_json=dict[str, float] | None, is_hashed=False)
STRINGS = Codec(_stop, join=tuple, form="TEXT", in_json=list[str])
SCHEMA = Codec(_schema, in_json=JSON_OBJECT)
ARGUMENTS = Codec(_arguments, in_json=JSON_OBJECT, is_hashed=False)


@dataclass(frozen=True, slots=True)
class Params:
    """How to generate. A wrong value raises ValueError: one sentence with the field, what is allowed and what
    was given. What the rows below do not say of a field:

    draft_with: a name in METHODS (events/choices.py), or two joined by "+", if the first copies from the
        text: the first that has a draft gives it.
    tree: how many children each drafted token has, and the text before them all: (3, 2, 1) drafts 3 tokens,
        2 after each of these, and 1 after each of those. Text such as "3,2,1" will do. "auto": a tree as
        GROWN is, which grows where the drafter's probabilities are largest. With a tree, gamma is not used.
        Only by rule "speculative", and not with a confidence or a grammar.
    confidence: of a probability at temperature 1, unfiltered. It ends no draft of a drafter without a
        distribution ("lookup", "ngram").
    exit_layer: of 0 the trace has the number that it was.
    rule: a name in RULES (events/choices.py). After a lossless one the text has the target's distribution.
    top_k, top_p, min_p: applied in this order after the temperature, renormalising.
    repetition_penalty: divides the logits of tokens already in the text, or multiplies those below 0, before
        the temperature, in p and q alike; 1 is off. The trace records the model's own; a server's is unknown.
    presence_penalty, frequency_penalty: in p and q alike; the prompt does not count, as in OpenAI's API.
    logit_bias: before all penalties, in p and q alike; at most 300 tokens; {} is none. The model's own, which
        the trace records, is a sequence_bias of single tokens in its generation config.
    stop: at most 64 strings of at most 1,000 characters. Those of the model's generation config are added,
        and recorded in the trace. One that is a special token is found by its id, but not by a server.
    ignore_eos: leaves out the model's own stop strings, too.
    chat_template_kwargs: plain JSON values by name, or their JSON text, of at most 32,768 characters. One
        that the template does not read is refused.
    json_schema, regex, grammar: what the text must follow to its end, from its first token or, where the
        prompt or the model opens a thought, from the end of that: a JSON schema (a mapping, or JSON text), a
        regular expression of Rust's regex crate, or a grammar in Lark's form; one of them, and not with
        ignore_eos. What it forbids has probability 0 in p and q alike. A text that is cut by max_new_tokens
        or a stop string may be incomplete.
    lenience: a draft is accepted when u < p/(lenience q).
    draft_temperature: where a model drafts; the filters are p's. With 0, q is one-hot. With any, the text has
        the target's distribution.
    """

    draft_with: str = _row("model", METHOD, "what drafts: one of {methods}; none is plain decoding")
    gamma: Gamma = _row(
        *(4, WHOLE, "the most tokens drafted in a round; auto chooses it round by round", 1, 16),
        word="auto",
        step=1,
    )
    tree: DraftTree = _row(
        *((), TREE),
        "the children of each drafted token, by depth: 3,2,1; auto: more where the drafter is surer; empty "
        "drafts a chain",
    )
    confidence: float = _row(
        *(0.0, REAL),
        "a draft ends where the drafter's likeliest token is less probable than this; 0 is off",
        *(0, 1),
        excluded=1.0,
        step=0.05,
    )
    exit_layer: int = _row(
        *(0, WHOLE, "how many of the target's layers draft with early-exit; 0 is a quarter of them", 0, 64),
        step=1,
    )
    rule: str = _row("speculative", RULE, "how drafts are judged: one of {rules}; {lossy}")
    temperature: float = _row(0.8, REAL, "0 is greedy", 0, 2, step=0.05, on_vllm=True)
    top_k: int = _row(0, WHOLE, "0 is off", 0, 1_000_000, on_vllm=True)
    top_p: float = _row(0.9, REAL, "1 is off", 0, 1, excluded=0.0, step=0.01, on_vllm=True)
    min_p: float = _row(0.0, REAL, "0 is off", 0, 1, excluded=1.0, step=0.01, on_vllm=True)
    repetition_penalty: float | None = _row(
        *(None, REAL, "above 1, tokens already in the text become less likely", 0, 10),
        excluded=0.0,
        none_is="the model's own",
    )
    presence_penalty: float = _row(
        0.0, REAL, "subtracted from the logits of generated tokens; 0 is off", -2, 2, step=0.1, on_vllm=True
    )
    frequency_penalty: float = _row(
        0.0, REAL, "subtracted as often as the token was generated; 0 is off", -2, 2, step=0.1, on_vllm=True
    )
    logit_bias: dict[int, float] | None = _row(
        *(None, BIASES, "by token id, a number from -100 to 100 that is added to the token's logit"),
        none_is="the model's own",
    )
    seed: int | None = _row(  # every JSON reader keeps whole numbers up to here exact
        *(None, WHOLE, "the same seed and settings give the same text", 0, 2**53 - 1),
        none_is="a new one",
        on_vllm=True,
    )
    max_new_tokens: int = _row(200, WHOLE, "the longest text, in tokens", 1, 32_768)
    stop: tuple[str, ...] = _row((), STRINGS, "the text ends before the first of these strings")
    ignore_eos: bool = _row(False, TRUTH, "continue after an end-of-sequence token", on_vllm=True)
    chat: bool = _row(False, TRUTH, "apply the tokenizer's chat template to the prompt")
    system: str | None = _row(None, TEXT, "a system prompt, with chat only", none_is="none", of_prompt=True)
    chat_template_kwargs: dict[str, Any] | None = _row(
        *(None, ARGUMENTS, "what else the chat template is given, as a JSON object; with chat only"),
        none_is="none",
        of_prompt=True,
    )
    json_schema: str | None = _row(None, SCHEMA, "a JSON schema that the text must follow", none_is="none")
    regex: str | None = _row(None, GRAMMAR, "a regular expression that the text must match", none_is="none")
    grammar: str | None = _row(
        None, GRAMMAR, "a grammar in Lark's form that the text must follow", none_is="none"
    )
    ngram: int = _row(3, WHOLE, "the longest n-gram that lookup matches or ngram stores", 1, 16, step=1)
    alternatives: int = _row(5, WHOLE, "how many likely tokens are recorded at each place", 0, 50, step=1)
    lenience: float = _row(
        0.5, REAL, "of rule lenient: less accepts more; 1 is exact", 0, 1, excluded=0.0, step=0.05
    )
    draft_temperature: float | None = _row(
        *(None, REAL, "the drafter's own temperature; 0 drafts its likeliest tokens", 0, 2),
        none_is="the target's",
    )

    def __post_init__(self) -> None:
        for field, row in PARAMETERS.items():
            value = getattr(self, field)
            if value is not None or row.none_is is None:
                object.__setattr__(self, field, row.codec.check(field, value))
        grammars = [field for field in GRAMMARS if getattr(self, field) is not None]
        if grammars[1:]:
            raise ValueError(about(grammars[1], "one_grammar"))
        if grammars and self.ignore_eos:
            raise ValueError(about("ignore_eos", "grammar_ends_text"))
        if self.tree and self.rule != "speculative":
            raise ValueError(about("tree", "tree_by_rule", name=self.rule))
        if self.tree and (self.confidence or grammars):
            beside = "confidence" if self.confidence else grammars[0]
            raise ValueError(about("tree", "tree_beside", name=beside))


PARAMETERS: dict[str, Parameter] = {field.name: field.metadata["row"] for field in fields(Params)}
LIMITS = {name: row for name, row in PARAMETERS.items() if row.kind is not None}  # of the numbers


def described(field: str) -> str:
    """What the field does and what numbers it allows, in a few words, with the names that it may have now."""
    *first, last = (rule.name for rule in RULES.values() if not rule.lossless)
    lossy = f"{', '.join(first)} and {last} are lossy"
    words = PARAMETERS[field].about.format(methods=", ".join(LISTED), rules=", ".join(RULES), lossy=lossy)
    return f"{words}; {str(allowed(field)).removeprefix(f'{field} must be ')}" if field in LIMITS else words


def nodes_of(tree: DraftTree) -> int:
    """How many tokens a tree has (Params.tree)."""
    if tree == "auto":
        return GROWN.size
    return sum(math.prod(tree[: depth + 1]) for depth in range(len(tree)))


def takes_tree(method: str, tree: DraftTree) -> bool:
    """Whether a method drafts such a tree. What copies from the text has no probabilities to grow one by."""
    row = METHODS[method]
    return "tree" in row.fields and not (tree == "auto" and row.manner == "copy")


def field_of_grammar(params: Params) -> str | None:
    """The field that has what the text must follow; None where it is free."""
    return next((name for name in GRAMMARS if getattr(params, name) is not None), None)


def of_drafter(params: Params) -> Params:
    """The params as the drafter's sampler reads them."""
    temperature = params.draft_temperature
    return params if temperature is None else replace(params, temperature=temperature)


def is_lossy(params: Params) -> bool:
    """Whether a run's text can have another distribution than the target's. Greedily no rule changes it, nor
    does a lenience of 1, and without drafts there is nothing to accept."""
    is_exact = RULES[params.rule].lossless or (params.rule == "lenient" and params.lenience == 1)
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
    kind = Integral if row.kind is int else Real
    if _is_between(row.smallest, value, high, kind) and value != row.excluded:
        return int(cast(int, value)) if row.kind is int else float(cast(float, value))
    raise ValueError(given(allowed(field, high), value))


def _is_between(low: float, value: object, high: float, kind: type) -> bool:
    """Whether it is a number of that kind, from low to high; false for NaN and for true and false."""
    is_number = isinstance(value, kind) and not isinstance(value, bool)
    return is_number and low <= cast(float, value) <= high


def allowed(field: str, largest: float | None = None) -> Message:
    """What a numeric field may be: "must be a whole number from 1 to 16"."""
    row = LIMITS[field]
    high = row.largest if largest is None else largest
    key, form = "whole_or_auto" if row.word else "whole", ","
    if row.kind is float:
        excluded = row.excluded
        key, form = "above" if excluded == row.smallest else "below" if excluded == high else "number", "g"
    return about(field, key, low=numeral(row.smallest, form), high=numeral(high, form))


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
    is_list = isinstance(prompt, (list, tuple))
    return is_list and any(isinstance(one, (ChatMessage, Mapping)) for one in prompt)


def check_messages(prompt: Sequence[object]) -> tuple[ChatMessage, ...]:
    """The messages of a prompt; ValueError for what is none."""
    messages = []
    for each in prompt:
        is_mapping = isinstance(each, Mapping) and each.keys() == {"role", "content"}
        one = ChatMessage(each["role"], each["content"]) if is_mapping else each
        if not (isinstance(one, ChatMessage) and isinstance(one.role, str) and isinstance(one.content, str)):
            raise ValueError(refusal("prompt", "message", each, example=EXAMPLE))
        for text in (one.role, one.content):
            check_text("prompt", text)
        messages.append(one)
    return tuple(messages)


def turns_of(prompt: TextOrChat, params: Params) -> tuple[ChatMessage, ...]:
    """What a chat template is given: the messages, or the text as the user's one."""
    if isinstance(prompt, str):
        system = [] if params.system is None else [ChatMessage("system", params.system)]
        return (*system, ChatMessage("user", prompt))
    return prompt
