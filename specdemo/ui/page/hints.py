"""The texts next to the page's controls, warnings among them. Without torch and without Gradio."""

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from specdemo.events import DRAFTER_KINDS, METHODS, check_prompt, words_of_row
from specdemo.events.choices import Method
from specdemo.events.params import GRAMMARS
from specdemo.loading.catalog import CATALOGUE
from specdemo.ui.runs.limits import LOCAL, Limits
from specdemo.ui.view import settings
from specdemo.ui.view.settings import Values, in_words
from specdemo.words.catalogue import number, say
from specdemo.words.message import about, message_of

if TYPE_CHECKING:
    from specdemo.loading.pair import AnyPair
    from specdemo.ui.runs.models import Needs

SLOW_ON_CPU = 1_000_000_000  # bytes of weights, from which on a reader waits for each token


def hints(
    values: Values, prompt: str, needs: "Needs", pair: "AnyPair | None", limits: Limits = LOCAL
) -> dict[str, str]:
    """The text next to each control and to the prompt: its usual text, or a warning about a run that is
    impossible or slower. needs: of the chosen pair. pair: the chosen pair if it is loaded."""
    texts = {name: settings.usual_text(name) for name in settings.CONTROL_NAMES}
    if limits.hosted:
        most, usual = number(limits.max_new_tokens), texts["max_new_tokens"]
        texts["max_new_tokens"] = say("settings.most_here", most=most, usual=usual)
    texts |= {"prompt": "", "pair": needs.server or _pair_line(values["pair"], needs)}
    if settings.chooses_lossy(values):
        texts["draft_with"] = say("settings.rule_is_lossy")
    if method := METHODS.get(values["draft_with"]):
        texts["draft_with"] = f"{_who_drafts(method, values['pair'], pair)}; {texts['draft_with']}"
    for name, warning in (dict(_warnings(values, needs)) | _refused(values, prompt, pair, limits)).items():
        texts[name] = f"⚠ {warning}"
    for name, size in (("quantize", needs.target_bytes), ("quantize_drafter", needs.drafter_bytes)):
        if size:
            key = "settings.takes" if needs.loaded else "settings.would_take"
            texts[name] = say(key, usual=texts[name], size=number(size / 1e6, ",.1f"))
    if pair is not None and not texts["dtype"]:
        texts["dtype"] = in_words(pair.dtype_reason)
    return texts


def _who_drafts(method: Method, name: str, pair: "AnyPair | None") -> str:
    """What drafts, in words. name: the name of the chosen pair, whose kind of drafter the catalogue tells
    until it is loaded."""
    named = CATALOGUE.get(name)
    kind = pair.info.drafter_kind if pair else named and named.drafter_kind
    if not method.is_by_drafter or kind not in DRAFTER_KINDS:
        return words_of_row("methods", method.name, "sentence")
    label = words_of_row("kinds", kind, "label")
    return say(f"settings.head_drafts_{'an' if label[0] in 'AEIOUaeiou' else 'a'}", kind=label)


def _pair_line(name: str, needs: "Needs") -> str:
    """What the pair is, what has to be known before it is loaded, and that it will be slow, where it will."""
    about = CATALOGUE[name].about.said() if name in CATALOGUE else ""
    sentences = [f"{about[0].upper()}{about[1:]}."] if about else []
    if needs.total and not needs.loaded:
        total = needs.total / 1e6
        amount = f"{number(total / 1e3, ',.1f')} GB" if total >= 1e3 else f"{number(total, ',.0f')} MB"
        where = {"memory": number(needs.memory / 1e9, ",.0f"), "device": needs.device_name}
        sentences.append(say("settings.needs_memory", amount=amount, **where))
    if not needs.loaded and needs.gated:
        sentences.append(say("settings.gated"))
    if not needs.loaded and needs.tried.startswith("not "):
        sentences.append(say("settings.untried"))
    if needs.total >= SLOW_ON_CPU and needs.device == "cpu":
        sentences.append(say("settings.slow", why=in_words(needs.why)))
    return " ".join(sentences)


def _warnings(values: Values, needs: "Needs") -> Iterator[tuple[str, str]]:
    """Pairs (control, warning) about what is possible and yet may not be meant."""
    if settings.chooses_lossy(values):
        yield "rule", say("settings.lossy")
    if needs.device.startswith("cpu"):
        for name in ("quantize", "quantize_drafter"):
            if values[name] not in (settings.AS_STARTED, "none"):
                yield name, say("settings.quantised_cpu")
        if values["dtype"] in ("bfloat16", "float16"):
            yield "dtype", say("settings.slow_dtype", dtype=values["dtype"])
    elif settings.visible(values)["confidence"] and values["confidence"]:
        yield "confidence", say("settings.confidence_gpu")
    if not needs.fits:
        yield "pair", say("settings.no_room", pair=_pair_line(values["pair"], needs))
    elif needs.gated and not needs.loaded and not os.environ.get("HF_TOKEN"):
        yield "pair", say("settings.no_token", pair=_pair_line(values["pair"], needs))


def _refused(values: Values, prompt: str, pair: "AnyPair | None", limits: Limits) -> dict[str, str]:
    """Why a run of this would be refused, by the control beside which it is said: the prompt where no control
    that is shown is meant. Empty where nothing is known against it."""
    try:
        params = settings.params_from_controls(values)
        check_prompt(prompt)
        limits.check(prompt, params)
        if pair:
            if params.chat and not pair.has_chat_template:
                raise ValueError(about("chat", "no_template"))
            # On a public server no grammar is compiled before it is a visitor's turn.
            pair.check(replace(params, **dict.fromkeys(GRAMMARS)) if limits.hosted else params)
    except ValueError as error:
        field = getattr(message_of(error), "field", None)
        is_shown = field in settings.names_of(limits.hosted) and settings.visible(values).get(field, True)
        return {field if is_shown else "prompt": in_words(error)}
    return {}
