"""The texts next to the page's controls, warnings among them. Without torch and without Gradio."""

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from specdemo.events import DRAFTER_KINDS, LIMITS, METHODS, Params, words_of_row
from specdemo.events.choices import Method
from specdemo.events.params import GRAMMARS, allowed, check_text
from specdemo.loading.catalog import CATALOGUE
from specdemo.loading.templates import check_arguments
from specdemo.ui.runs.limits import LOCAL, Limits
from specdemo.ui.view import settings
from specdemo.ui.view.settings import Values, in_words
from specdemo.words.catalogue import number, say
from specdemo.words.message import Message, about, message_of

if TYPE_CHECKING:
    from specdemo.loading.pair import AnyPair, Pair
    from specdemo.ui.runs.models import Needs

SLOW_ON_CPU = 1_000_000_000  # bytes of weights, from which on a reader waits for each token


def hints(
    values: Values, prompt: str, needs: "Needs", pair: "AnyPair | None", limits: Limits = LOCAL
) -> dict[str, str]:
    """The text next to each control and to the prompt: its usual text, or a warning about a run that is
    impossible or pointless. needs: of the chosen pair. pair: the chosen pair if it is loaded."""
    texts = {name: settings.usual_text(name) for name in settings.CONTROL_NAMES}
    if limits.hosted:
        most, usual = number(limits.max_new_tokens), texts["max_new_tokens"]
        texts["max_new_tokens"] = say("settings.most_here", most=most, usual=usual)
    texts |= {"prompt": "", "pair": needs.server or _pair_line(values["pair"], needs)}
    if settings.chooses_lossy(values):
        texts["draft_with"] = say("settings.rule_is_lossy")
    if method := METHODS.get(values["draft_with"]):
        texts["draft_with"] = f"{_who_drafts(method, values['pair'], pair)}; {texts['draft_with']}"
    if names := pair.template_arguments() if pair and pair.runs_here else ():
        usual, listed = texts["chat_template_kwargs"], ", ".join(names)
        texts["chat_template_kwargs"] = say("settings.template_reads", usual=usual, names=listed)
    for name, warning in _warnings(values, prompt, needs, pair, limits):
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
    if not needs.loaded:
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


def _warnings(
    values: Values, prompt: str, needs: "Needs", pair: "AnyPair | None", limits: Limits
) -> Iterator[tuple[str, str]]:
    """Pairs (control, warning). The last warning for a control is shown, so the more serious ones come
    later."""
    here = pair if pair and pair.runs_here else None
    vocabulary, context = (pair.vocab_size, pair.context) if pair else (None, None)
    context_end = say("settings.context_end", context=number(context or 0, ",.0f"))
    filters, longest = settings.SAMPLERS[values["sampler"]], _whole(values["max_new_tokens"])
    if "temperature" in filters and values["temperature"] == 0:
        yield "temperature", say("settings.temperature_0")
    if "top_k" in filters and values["top_k"] in (0, 1):
        yield "top_k", say("settings.off" if values["top_k"] == 0 else "settings.keeps_one")
    if "top_k" in filters and vocabulary and _whole(values["top_k"]) >= vocabulary:
        yield "top_k", say("settings.whole_vocabulary", size=number(vocabulary))
    if "top_p" in filters and values["top_p"] == 1:
        yield "top_p", say("settings.off_at_1")
    if "min_p" in filters and values["min_p"] == 0:
        yield "min_p", say("settings.off")
    if settings.visible(values)["gamma"] and _whole(values["gamma"]) >= longest > 0:
        yield "gamma", say("settings.gamma_is_long", most=longest - 1)
    if context and longest >= context:
        yield "max_new_tokens", context_end
    length = _length(prompt, here) if here and not values["chat"] else None
    if length and length >= context:
        counts = {"most": number(context - 1, ",.0f"), "length": number(length)}
        yield "prompt", say("settings.prompt_is_long", **counts)
    elif length and length + longest > context:
        yield "max_new_tokens", context_end
    if settings.chooses_lossy(values):
        yield "rule", say("settings.lossy")
    if values["alternatives"] == 0:
        yield "alternatives", say("settings.no_alternatives")
    on_cpu = needs.device.startswith("cpu")
    for name in ("quantize", "quantize_drafter"):
        if on_cpu and values[name] not in (settings.AS_STARTED, "none"):
            yield name, say("settings.quantised_cpu")
    if on_cpu and values["dtype"] in ("bfloat16", "float16"):
        yield "dtype", say("settings.slow_dtype", dtype=values["dtype"])
    method = METHODS.get(values["draft_with"])
    confidence_ends = "confidence" in settings.fields_of(method) and values["confidence"]
    if confidence_ends and needs.device.startswith("cuda"):
        yield "confidence", say("settings.confidence_gpu")
    if pair and not here:
        with suppress(ValueError):  # what is wrong by itself is said by its own control
            for fault in pair.faults(settings.params_from_controls(values)):
                yield fault.field or "", fault.said()
        if pair.kind == "vLLM" and _whole(values["alternatives"]) > 20:
            yield "alternatives", say("settings.vllm_alternatives")
    if here and method and here.lacks(method.name):
        yield "draft_with", say(f"settings.lacks.{method.name.rpartition('+')[2]}")
    elif here and method:
        most = here.largest(method.name, "exit_layer")
        if most is not None and _whole(values["exit_layer"]) > most:
            yield "exit_layer", say("settings.exit_most", most=most)
    if pair and values["chat"] and not pair.has_chat_template:
        yield "chat", say("settings.no_template")
    if values["chat"]:
        yield from _arguments(values["chat_template_kwargs"].strip(), here, limits)
    yield from _grammars(values, None if limits.hosted else here)
    if needs.gated and not needs.loaded and not os.environ.get("HF_TOKEN"):
        yield "pair", say("settings.no_token", pair=_pair_line(values["pair"], needs))
    if not needs.fits:
        yield "pair", say("settings.no_room", pair=_pair_line(values["pair"], needs))
    shown = settings.visible(values)
    for name in LIMITS:
        if shown.get(name, True) and settings.is_wrong_number(name, values[name], limits.largest(name)):
            yield name, allowed(name, limits.largest(name)).said()
    for name, text in (("prompt", prompt), ("stop", values["stop"]), ("system", values["system"])):
        try:
            check_text(name, text)
        except ValueError as error:
            yield name, in_words(error)
    for name, text in (("prompt", prompt), ("system", values["system"] if values["chat"] else "")):
        if len(text) > limits.prompt_characters:
            # The prompt's hint does not stand at its label.
            key = "settings.prompt_characters" if name == "prompt" else "settings.many_characters"
            yield name, say(key, most=number(limits.prompt_characters))
    if not prompt:
        yield "prompt", say("settings.no_prompt")  # why is said when a run is asked for


def _arguments(typed: str, pair: "Pair | None", limits: Limits) -> Iterator[tuple[str, str]]:
    if pair and pair.template_arguments() == ():
        yield "chat_template_kwargs", say("settings.template_reads_none")
    if not typed:
        return
    try:
        params = Params(chat_template_kwargs=typed)
        limits.check(None, params)
        given = params.chat_template_kwargs or {}
        known = pair.template_arguments(given.get("tools")) if pair else None
        if known is not None:
            check_arguments(given, known)
    except ValueError as error:
        told = message_of(error)
        yield "chat_template_kwargs", told.said() if isinstance(told, Message) else told


def _grammars(values: Values, pair: "Pair | None") -> Iterator[tuple[str, str]]:
    """Why a text cannot follow what is typed; as far as Params can tell without a pair, which is before it is
    loaded, and on a public server: nothing is compiled there before it is a visitor's turn."""
    for name in GRAMMARS if settings.visible(values)["regex"] else ():
        if not values[name].strip():
            continue
        try:
            params = Params(**{name: values[name]})
            if pair:
                pair.grammars.compiled(params)
        except ValueError as error:
            yield name, message_of(error).said()
        if values["ignore_eos"]:
            yield "ignore_eos", about("ignore_eos", "grammar_ends_text").said()
    for name in [name for name in GRAMMARS if values[name].strip()][1:]:
        yield name, about(name, "one_grammar").said()


def _length(prompt: str, pair: "Pair") -> int | None:
    """The prompt's length in tokens; None if it cannot be found out, or not quickly."""
    try:
        check_text("prompt", prompt)
    except ValueError:
        return None
    if not prompt or not pair.tokenizer or len(prompt) > 256 * pair.context:
        return None
    return len(pair.tokenizer(prompt).input_ids)


def _whole(value: object) -> float:
    """The whole number that a control holds; 0 where it holds none."""
    return value if isinstance(value, (int, float)) and float(value).is_integer() else 0
