"""Links: an address that holds a prompt, a pair and how to generate, under the names of the API's arguments.

Without Gradio. An address is text from outside: what is wrong in it raises ValueError with
one sentence, as Params does.
"""

import json
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, fields
from typing import Any, Literal, NamedTuple
from urllib.parse import parse_qs, urlencode

from specdemo.events import LISTED, PARAMETERS, ChatMessage, Params
from specdemo.events.params import as_text, check_messages, check_text, is_conversation
from specdemo.ui.page.frame import TABS
from specdemo.ui.runs.board import RECORDED_RUN
from specdemo.ui.runs.guess import HALL
from specdemo.ui.runs.limits import LOCAL, Limits
from specdemo.ui.view.kept import RECORDINGS
from specdemo.ui.view.settings import AS_STARTED, WEIGHT_CHOICES, Values, values_of
from specdemo.words.catalogue import say
from specdemo.words.message import about, refusal

# A logit bias has no control, so an address cannot set it.
FIELDS = {field.name: field.default for field in fields(Params) if field.name != "logit_bias"}
GENERATING = ("prompt", "pair", "messages", *FIELDS, *WEIGHT_CHOICES)
# Other names: how their texts are written, with the message that says so, and what they can be.
WRITTEN = {
    **dict.fromkeys(("run", "guess"), ("[01]", "switch")),
    "token": (r"\d{1,9}\.\d{1,9}", "pinned"),
    "tour": (r"\d{1,9}", "step"),
    "worlds": ("[0-8]", "worlds_stop"),
    "hall": (HALL.pattern, "hall"),
}
CHOICES = {"tab": TABS, "trace": (RECORDED_RUN, *RECORDINGS)}
OURS = (*GENERATING, *WRITTEN, *CHOICES)
# Other names in an address: those of the frame around the page, Gradio's and its host's, all that begin with
# __, the visitor's language, and what earlier links told of a recording.
OTHERS = ("frame", "view", "deep_link", "embed", "logs", "lang", "lecture", "digest")
LONGEST_QUERY = 7_800  # characters of a query, so that the whole address stays below 8,000
SHOWN_UNKNOWN = 5  # unknown names in a note


class Link(NamedTuple):
    """What an address asks for. values: what the prompt and the other controls are to hold, without those of
    which the address says nothing. starts: a run, a game in which the visitor drafts, or nothing. messages:
    those of a conversation before the prompt. trace: the name of the recorded run that the address shows;
    empty where it shows none, or starts something. hall: the code of the hall that its game is played in;
    nothing is known of it here."""

    values: Values
    starts: Literal["run", "guess", ""]
    note: str
    messages: tuple[ChatMessage, ...]
    trace: str
    hall: str


def read_link(query: str, pairs: Collection[str], limits: Limits = LOCAL) -> Link:
    """The link that an address holds. query: what follows the question mark. pairs: the names of the pairs
    that can be chosen."""
    texts = parse_qs(query.removeprefix("?"), keep_blank_values=True)
    given = {name: several[-1] for name, several in texts.items()}
    for name, (pattern, key) in WRITTEN.items():
        if name in given and not re.fullmatch(pattern, given[name]):
            raise ValueError(refusal(name, key, given[name]))
    for name, choices in CHOICES.items():
        if name in given:
            _one_of(name, given[name], choices)
    check_text("prompt", given.get("prompt", ""))
    how: dict[str, Any] = {}
    for name in texts.keys() & FIELDS.keys():
        codec = PARAMETERS[name].codec
        how[name] = codec.join(texts[name]) if codec.join else codec.read(given[name])
    params = Params(**how)
    if params.draft_with not in LISTED:  # the control has no other
        raise ValueError(refusal("draft_with", "choice", params.draft_with, names=", ".join(LISTED)))
    if limits.hosted and (asked := next((name for name in WEIGHT_CHOICES if name in given), None)):
        raise ValueError(about(asked, "fixed"))
    messages = _messages(given.get("messages"))
    limits.check(given.get("prompt"), params)
    limits.check(messages, params)
    weights = dict.fromkeys(WEIGHT_CHOICES, AS_STARTED)
    weights |= {name: _one_of(name, given[name], WEIGHT_CHOICES[name]) for name in weights if name in given}
    pair = {"pair": _one_of("pair", given["pair"], pairs)} if "pair" in given else {}
    asks = any(name in given for name in GENERATING)
    prompt = {"prompt": given["prompt"]} if "prompt" in given else {}
    values = values_of(params) | weights | pair | prompt if asks else {}
    starts = next((what for what in ("guess", "run") if given.get(what) == "1"), "")
    trace = "" if starts or asks else given.get("trace", "")
    return Link(values, starts, _note(given), messages, trace, given.get("hall", ""))


def write(
    prompt: str,
    pair: str,
    weights: dict[str, str | None],
    params: Params,
    messages: Sequence[ChatMessage] = (),
    starts: Literal["run", "guess"] = "run",
) -> str:
    """The query of a run, or of a game in which the visitor drafts. messages: those of its conversation
    before the prompt. What is too long for an address is left out, prompt and messages first, and the link
    then starts nothing; the link of a run with a logit bias starts nothing either."""
    said = [("messages", json.dumps([asdict(one) for one in messages]))] if messages else []
    items: list[tuple[str, Any]] = [("prompt", prompt), *said, ("pair", pair)]
    for name, default in FIELDS.items():
        row, value = PARAMETERS[name], getattr(params, name)
        if value != default:
            items += [(name, as_text(part)) for part in (value if row.codec.join else [value])]
    items += [(name, weights[name]) for name in WEIGHT_CHOICES if weights.get(name)]
    query = urlencode([*items, *([] if params.logit_bias else [(starts, 1)])])
    if len(query) > LONGEST_QUERY:
        query = urlencode(items[1 + len(said) :])
    return query if len(query) <= LONGEST_QUERY else ""


def _messages(text: str | None) -> tuple[ChatMessage, ...]:
    if not text:
        return ()
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, list) or not is_conversation(given):
        raise ValueError(refusal("messages", "messages", text))
    return check_messages(given)


def _one_of(name: str, value: str, choices: Iterable[str]) -> str:
    if value not in choices:
        raise ValueError(refusal(name, "choice", value, names=", ".join(choices)))
    return value


def _note(given: dict[str, str]) -> str:
    unknown = [name for name in given if name not in (*OURS, *OTHERS) and not name.startswith("__")]
    if not unknown:
        return ""
    shown = ", ".join(ascii(name)[1:-1][:40] or say("run.empty_name") for name in unknown[:SHOWN_UNKNOWN])
    return say("run.link_unknown_more" if len(unknown) > SHOWN_UNKNOWN else "run.link_unknown", names=shown)
