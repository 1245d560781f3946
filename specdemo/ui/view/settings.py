"""The page's controls: their values as Params and back, and their names and words.

Without torch and without Gradio.
"""

import re
from typing import Any

from specdemo.events import (
    LIMITS,
    METHODS,
    PARAMETERS,
    RULES,
    PairInfo,
    Params,
    is_lossy,
    words_of_row,
)
from specdemo.events.choices import Method, Rule
from specdemo.events.params import GRAMMARS, as_text, check_number, field_of_grammar, values_of_rule
from specdemo.loading import catalog
from specdemo.servers.software import SERVER_PREFIX, SERVERS_OWN
from specdemo.words.catalogue import number, say
from specdemo.words.message import Message, message_of

Values = dict[str, Any]  # what each control holds, by its name

# Each sampler, with the filters that it applies. All others are switched off.
SAMPLERS = {
    "greedy": (),
    "multinomial": ("temperature",),
    "top-k": ("temperature", "top_k"),
    "top-p": ("temperature", "top_p"),
    "top-k with top-p": ("temperature", "top_k", "top_p"),
    "min-p": ("temperature", "min_p"),
    "all filters": ("temperature", "top_k", "top_p", "min_p"),
}
OFF = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
PENALTIES_OFF = {"repetition": 1.0, "presence": 0.0, "frequency": 0.0}

AS_STARTED = "as the server was started"

OF_RULES = tuple(field for rule in RULES.values() for field in rule.fields)
# The controls in the order of the page: those that are always there, and those of parts that can be opened,
# by their names. The catalogues have the words: settings.controls.NAME, and settings.PART.
SECTIONS = {
    "": (
        *("pair", "draft_with", "gamma", "gamma_auto", "tree", "exit_layer", "ngram"),
        *("sampler", "temperature", "top_k", "top_p", "min_p", "draft_temperature", "max_new_tokens", "seed"),
    ),
    "penalties": tuple(f"{name}_penalty" for name in PENALTIES_OFF),
    "chat": ("chat", "system", "chat_template_kwargs"),
    "structure": tuple(GRAMMARS),
    "ending": ("stop", "ignore_eos", "confidence", "rule", *OF_RULES, "alternatives"),
    "weights": ("dtype", "quantize", "quantize_drafter"),
}
OF_CHAT = SECTIONS["chat"][1:]  # controls that have an effect with the chat template only
CONTROL_NAMES = tuple(name for names in SECTIONS.values() for name in names)
WITHOUT_USUAL = ("pair", "ignore_eos", "dtype")  # controls that have a text only where there is more to say
# What can be chosen for a pair's weights, except on a public server.
WEIGHT_CHOICES = {"dtype": (AS_STARTED, "auto", *catalog.DTYPES)}
WEIGHT_CHOICES |= dict.fromkeys(("quantize", "quantize_drafter"), (AS_STARTED, "none", *catalog.QUANTIZE))
UNCHOSEN = dict.fromkeys(WEIGHT_CHOICES, AS_STARTED)  # where they have no controls
DEFAULTS = Params()


def label_of(name: str) -> str:
    return say(f"settings.controls.{name}.label")


def usual_text(name: str) -> str:
    """The control's text when there is nothing to warn about."""
    return "" if name in WITHOUT_USUAL else say(f"settings.controls.{name}.usual")


def choice_in_words(name: str) -> str:
    """A choice for the weights as it stands in its drop-down."""
    keys = {AS_STARTED: "as_started", "auto": "auto", "none": "none"}
    return say(f"settings.{keys[name]}") if name in keys else name


def names_of(hosted: bool) -> tuple[str, ...]:
    return tuple(name for name in CONTROL_NAMES if not (hosted and name in WEIGHT_CHOICES))


def is_served(values: Values) -> bool:
    """Whether a server is chosen, which drafts as it was started."""
    return str(values.get("pair")).startswith(SERVER_PREFIX)


def params_from_controls(values: Values) -> Params:
    """The Params for what the controls hold; raises ValueError as Params does. What a hidden control holds
    has no effect, so it cannot be wrong."""
    filters = SAMPLERS.get(values["sampler"], SAMPLERS["all filters"])
    hidden = [name for name, shown in visible(values).items() if not shown]
    values = values | {name: FIRST[name] for name in hidden if is_wrong_number(name, values[name])}
    if is_served(values):
        values = values | {name: FIRST[name] for name in (*SERVERS_OWN, *GRAMMARS, "gamma_auto")}
    held = {name: _read(name, values[name]) for name in CONTROL_NAMES if name in PARAMETERS}
    held |= {field: off for field, off in OFF.items() if field not in filters}
    if not visible(values)["tree"]:
        held["tree"] = ()
    if not values["chat"]:
        held |= dict.fromkeys(OF_CHAT)
    return Params(**held | ({"gamma": "auto"} if values["gamma_auto"] is True else {}))


def _read(name: str, held: Any) -> Any:
    """What the control of a field holds, for Params. A text box that can be empty then stands for None."""
    row = PARAMETERS[name]
    if not isinstance(held, str):
        return held
    if row.codec.join:
        return row.codec.join([_unescaped(line) for line in held.split("\n") if line])
    return None if row.none_is and not held.strip() else row.codec.read(held)


def _written(name: str, value: Any) -> Any:
    """What the control of a field holds for a value: itself, or in a text box its text."""
    row = PARAMETERS[name]
    if row.codec.join:
        return "\n".join(map(_escaped, value))
    return value if isinstance(value, bool) or (row.kind and not row.none_is) else as_text(value)


def is_wrong_number(name: str, value: object) -> bool:
    """Whether the control is a number's and holds what Params would refuse."""
    if name not in LIMITS or ((value := _read(name, value)) is None and LIMITS[name].none_is):
        return False
    try:
        check_number(name, value)
    except ValueError:
        return True
    return False


def values_of(params: Params) -> Values:
    """What the controls hold for these Params. A filter that is off gets a value for when it is switched
    on."""
    on = tuple(field for field, off in OFF.items() if params.temperature and getattr(params, field) != off)
    sampler = next((name for name, filters in SAMPLERS.items() if filters == on), "all filters")
    when_on = {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.05}
    values = {name: _written(name, getattr(params, name)) for name in CONTROL_NAMES if name in PARAMETERS}
    values |= {field: value for field, value in when_on.items() if field not in SAMPLERS[sampler]}
    if params.gamma == "auto":
        values["gamma"] = DEFAULTS.gamma
    return values | {"gamma_auto": params.gamma == "auto", "sampler": sampler}


def length_in_words(params: Params) -> list[str]:
    """The draft length in words; none of a tree, which `judging_in_words` tells, and in plain decoding."""
    return [f"γ {params.gamma}"] if params.draft_with != "none" and not params.tree else []


def judging_in_words(params: Params) -> list[str]:
    """The rule, the confidence and the drafts' temperature in words, where they are not the usual ones and
    have an effect."""
    words = []
    if params.rule != "speculative" and params.draft_with != "none":
        values = "".join(f" {number(value, 'g')}" for value in values_of_rule(params).values())
        rule = words_of_row("rules", params.rule, "name") + values
        words.append(say(f"said.{'lossy_rule' if is_lossy(params) else 'rule'}", rule=rule))
    for name in ("confidence", "tree", "draft_temperature"):
        value = getattr(params, name)
        if value != getattr(DEFAULTS, name) and name in METHODS[params.draft_with].fields:
            shown = as_text(value) if name == "tree" else number(value, "g")
            words.append(say(f"said.{name}", value=shown))
    return words


def sampler_in_words(params: Params) -> str:
    """The sampler in words: "greedy", or the filters that are on with their values; and penalties, biases and
    what the text must follow, if any."""
    on = [field for field, off in OFF.items() if field == "temperature" or getattr(params, field) != off]
    words = [say(f"said.filters.{field}", value=number(getattr(params, field), "g")) for field in on]
    if params.temperature == 0:
        words = [say("said.greedy")]
    words += adjusting_in_words(params)
    if name := field_of_grammar(params):
        words.append(say(f"said.grammars.{name}"))
    return ", ".join(words)


def adjusting_in_words(params: Params) -> list[str]:
    """What changes logits before the temperature, in words: the penalties that are on, and how many biases
    there are."""
    given = {name: getattr(params, f"{name}_penalty") for name in PENALTIES_OFF}
    words = [
        say(f"said.penalties.{name}", value=number(value, "g"))
        for name, value in given.items()
        if value not in (None, PENALTIES_OFF[name])
    ]
    count = len(params.logit_bias or {})
    return [*words, *([say("said.biases", count=count)] if count else [])]


def _escaped(stop: str) -> str:
    return stop.replace("\\", r"\\").replace("\n", r"\n")


def _unescaped(line: str) -> str:
    return re.sub(r"\\([n\\])", lambda found: "\n" if found[1] == "n" else "\\", line)


# What the controls hold at first: no filters, so that the coin of the rule often has to decide.
FIRST = values_of(DEFAULTS) | {"sampler": "multinomial", "pair": ""}


def visible(values: Values) -> dict[str, bool]:
    """Whether each control has an effect with the others as they are. Controls that are always shown are left
    out."""
    filters = SAMPLERS.get(values["sampler"], SAMPLERS["all filters"])
    drafting, served = fields_of(METHODS.get(values["draft_with"])), is_served(values)
    drafts = "gamma" in drafting
    judging = fields_of(RULES.get(values["rule"])) if drafts else ()
    is_tree = "tree" in drafting and bool(values["tree"].strip())
    shown = {field: field in filters for field in OFF}
    shown |= {field: field in drafting for method in METHODS.values() for field in method.fields}
    shown |= {field: field in judging for field in OF_RULES}
    shown["gamma_auto"] = drafts and not is_tree
    shown["gamma"] = shown["gamma_auto"] and not values["gamma_auto"]
    shown |= {"rule": drafts, "seed": bool(filters)}
    shown |= dict.fromkeys(OF_CHAT, bool(values["chat"]))
    shown |= dict.fromkeys(("draft_with", *WEIGHT_CHOICES, *GRAMMARS), not served)
    return shown | (dict.fromkeys((*SERVERS_OWN, "gamma_auto"), False) if served else {})


def fields_of(choice: Method | Rule | None) -> tuple[str, ...]:
    """The fields of Params that the choice uses; empty for None, because a control can hold what is no
    choice."""
    return choice.fields if choice else ()


def chooses_lossy(values: Values) -> bool:
    """Whether the chosen rule has an effect and gives the text another distribution."""
    rule = RULES.get(values["rule"])
    return rule is not None and not rule.lossless and visible(values)["rule"]


def in_words(told: Exception | Message | str) -> str:
    """What a visitor reads: words in his language, with the label of a field's control in place of its name.
    An error becomes its message; somebody else's words are as they are."""
    if isinstance(told, Exception):
        told = message_of(told)
    if not isinstance(told, Message):
        return told
    what = told.said()
    if "given" in told.values and told.values["given"] is None:
        what = Message("box_empty", told.values).said()
    if told.field is None:
        return what
    label = say("page.prompt") if told.field == "prompt" else told.field
    label = label_of(told.field) if told.field in CONTROL_NAMES else label
    return say("settings.of_control", label=label, what=what)


def choice_of(values: Values) -> dict[str, str | None]:
    """The fields of models.Choice. None means as the server was started."""
    held = {name: values[name] for name in ("pair", *WEIGHT_CHOICES)}
    return {name: None if value == AS_STARTED else value for name, value in held.items()}


def weights_of(recorded: PairInfo, usual: PairInfo | None) -> Values:
    """What the controls for the weights hold for a recorded run's pair. usual: the same pair as this server
    has loaded it, if it has."""
    if usual and (recorded.dtype, recorded.quantize) == (usual.dtype, usual.quantize):
        return dict.fromkeys(WEIGHT_CHOICES, AS_STARTED)
    # A file can hold any text, but a control only what it offers. Which dtype is automatic is known for a
    # loaded pair only.
    quantize = recorded.quantize
    held = {
        "dtype": recorded.dtype.target if usual else None,
        "quantize": quantize.target or "none",
        "quantize_drafter": quantize.drafter or "none",
    }
    return {name: one if one in WEIGHT_CHOICES[name] else AS_STARTED for name, one in held.items()}
