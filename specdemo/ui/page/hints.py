"""The texts next to the page's controls, warnings among them. Without torch and without Gradio."""

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from specdemo.errors import PairError
from specdemo.events import DRAFTER_KINDS, LIMITS, METHODS, Method, Need, allowed, check_text
from specdemo.loading.catalog import CATALOGUE
from specdemo.ui.runs.limits import LOCAL, Limits
from specdemo.ui.view.settings import (
    AS_STARTED,
    CONTROLS,
    SAMPLERS,
    Values,
    fields_of,
    in_labels,
    is_lossy_choice,
    is_wrong_number,
    typed_address,
    visible,
)
from specdemo.vllm.client import server_address
from specdemo.vllm.pair import NO_MIN_P, ServedPair

if TYPE_CHECKING:
    from specdemo.loading.pair import AnyPair, Pair
    from specdemo.ui.runs.models import Needs

SLOW_ON_CPU = 1_000_000_000  # bytes of weights, from which on a reader waits for each token
LACKING: dict[Need, str] = {
    "drafter": "this pair has no drafter model",
    "first layers": "this target cannot be cut after a layer",
    "prediction layers": "this target has no layers for multi-token prediction",
}


def hints(
    values: Values, prompt: str, needs: "Needs", pair: "AnyPair | None", limits: Limits = LOCAL
) -> dict[str, str]:
    """The text next to each control and to the prompt: its usual text, or a warning about a run that is
    impossible or pointless. needs: of the chosen pair. pair: the chosen pair if it is loaded."""
    texts = {name: usual for name, (_, usual) in CONTROLS.items()}
    if limits.hosted:
        texts["max_new_tokens"] = f"at most {limits.max_new_tokens:,} here; {texts['max_new_tokens']}"
    texts |= {"prompt": "", "pair": needs.server or _pair_line(values["pair"], needs)}
    if values["vllm"] and needs.server:
        texts["vllm"] = needs.server
    if is_lossy_choice(values):
        texts["draft_with"] = "the rule is lossy, so the text has another distribution than the target's"
    if method := METHODS.get(values["draft_with"]):
        texts["draft_with"] = f"{_who_drafts(method, values['pair'], pair)}; {texts['draft_with']}"
    for name, warning in _warnings(values, prompt, needs, pair, limits):
        texts[name] = f"⚠ {warning}"
    for name, size in (("quantize", needs.target_bytes), ("quantize_drafter", needs.drafter_bytes)):
        if size:
            texts[name] += f"; {'takes' if needs.loaded else 'would take about'} {size / 1e6:,.1f} MB"
    if pair is not None and not texts["dtype"]:
        texts["dtype"] = pair.dtype_reason
    return texts


def _who_drafts(method: Method, name: str, pair: "AnyPair | None") -> str:
    """What drafts. name: of the chosen pair, whose kind of drafter the catalogue tells until it is loaded."""
    named = CATALOGUE.get(name)
    kind = pair.info.drafter_kind if pair else named and named.drafter_kind
    if method.needs != "drafter" or kind not in DRAFTER_KINDS:
        return method.sentence
    label = DRAFTER_KINDS[kind].label
    return f"{'an' if label[0] in 'AEIOUaeiou' else 'a'} {label} writes the drafts"


def _pair_line(name: str, needs: "Needs") -> str:
    """What it is; what has to be known before it is loaded; and that it will be slow, where it will."""
    sentences = [CATALOGUE[name].about] if name in CATALOGUE else []
    if not needs.loaded:
        amount = f"{needs.total / 1e9:,.1f} GB" if needs.total >= 1e9 else f"{needs.total / 1e6:,.0f} MB"
        sentences.append(f"needs about {amount} of {needs.memory / 1e9:,.0f} GB on {needs.device_name}")
    if not needs.loaded and needs.gated:
        sentences.append("gated: needs HF_TOKEN of an account that has accepted its terms")
    if not needs.loaded and needs.tried.startswith("not "):
        sentences.append("not tried by this project")
    if needs.total >= SLOW_ON_CPU and needs.device == "cpu":
        sentences.append(f"slow on this CPU: {needs.why}")
    return " ".join(f"{sentence[0].upper()}{sentence[1:]}." for sentence in sentences)


def _warnings(
    values: Values, prompt: str, needs: "Needs", pair: "AnyPair | None", limits: Limits
) -> Iterator[tuple[str, str]]:
    """(control, warning). The last one for a control is shown, so the more serious ones come later."""
    here = pair if pair and pair.runs_here else None
    vocabulary = pair.vocab_size if pair else None
    context = pair.context if pair else None
    context_end = f"prompt and text together end at the target's context of {context or 0:,.0f} tokens"
    filters = SAMPLERS[values["sampler"]]
    if "temperature" in filters and values["temperature"] == 0:
        yield "temperature", "0 is greedy: p and q are one-hot, and the filters change nothing"
    if "top_k" in filters and values["top_k"] in (0, 1):
        yield (
            "top_k",
            "0 is off: nothing is filtered" if values["top_k"] == 0 else "1 keeps one token, which is greedy",
        )
    if "top_k" in filters and vocabulary and _whole(values["top_k"]) and values["top_k"] >= vocabulary:
        yield "top_k", f"the vocabulary has {vocabulary:,} tokens: nothing is filtered"
    if "top_p" in filters and values["top_p"] == 1:
        yield "top_p", "1 is off: nothing is filtered"
    if "min_p" in filters and values["min_p"] == 0:
        yield "min_p", "0 is off: nothing is filtered"
    are_whole = _whole(values["gamma"]) and _whole(values["max_new_tokens"])
    if visible(values)["gamma"] and are_whole and values["gamma"] >= values["max_new_tokens"] > 0:
        yield (
            "gamma",
            f"a draft is never longer than the rest of the text: at most {values['max_new_tokens'] - 1} here",
        )
    if context and _whole(values["max_new_tokens"]) and values["max_new_tokens"] >= context:
        yield "max_new_tokens", context_end
    length = _length(prompt, here) if here and not values["chat"] else None
    if length and length >= context:
        yield (
            "prompt",
            f"Prompt must have at most {context - 1:,.0f} tokens for this target, but has {length:,}",
        )
    elif length and _whole(values["max_new_tokens"]) and length + values["max_new_tokens"] > context:
        yield "max_new_tokens", context_end
    if is_lossy_choice(values):
        yield (
            "rule",
            "lossy: the text has another distribution than the target's; how far off is shown after a run",
        )
    if values["alternatives"] == 0:
        yield "alternatives", "the inspector will show only the token itself, and the rules are not compared"
    on_cpu = needs.device.startswith("cpu")
    for name in ("quantize", "quantize_drafter"):
        if on_cpu and values[name] not in (AS_STARTED, "none"):
            yield name, "on a CPU quantised weights save memory, not time"
    if on_cpu and values["dtype"] in ("bfloat16", "float16"):
        yield (
            "dtype",
            f"on a CPU {values['dtype']} is slower than float32, and its rounding can change greedy output",
        )
    confidence_ends = "confidence" in fields_of(METHODS.get(values["draft_with"])) and values["confidence"]
    if confidence_ends and needs.device.startswith("cuda"):
        yield "confidence", "on a GPU this saves no time: the rest is drafted all the same, and dropped"
    if pair and not here:
        yield from _servers(values, pair)
    layers = values["exit_layer"]
    need = method.needs if (method := METHODS.get(values["draft_with"])) else None
    if here and need and not here.has(need):
        yield "draft_with", f"{LACKING[need]}: choose another method"
    elif here and need == "first layers" and _whole(layers) and layers > here.largest_exit:
        yield "exit_layer", f"must be at most {here.largest_exit}: one layer fewer than this target has"
    if pair and values["chat"] and not pair.has_chat_template:
        yield "chat", "this pair's tokenizer has no chat template, so the run would fail"
    if needs.gated and not needs.loaded and not os.environ.get("HF_TOKEN"):
        yield "pair", f"{_pair_line(values['pair'], needs)} HF_TOKEN is not set here."
    if not needs.fits:
        yield "pair", f"{_pair_line(values['pair'], needs)} That is more than it has."
    shown = visible(values)
    for name in LIMITS:
        if shown.get(name, True) and is_wrong_number(name, values[name], limits.largest(name)):
            yield name, f"must be {allowed(name, limits.largest(name))}"
    if address := typed_address(values):
        try:
            server_address(address)
        except PairError as error:
            yield "vllm", in_labels(str(error))
    for name, text in (("prompt", prompt), ("stop", values["stop"]), ("system", values["system"])):
        try:
            check_text(name, text)
        except ValueError as error:
            yield name, in_labels(str(error))
    for name, text in (("prompt", prompt), ("system", values["system"] if values["chat"] else "")):
        if len(text) > limits.prompt_characters:
            whose = "Prompt " if name == "prompt" else ""  # its hint does not stand at its label
            yield name, f"{whose}must have at most {limits.prompt_characters:,} characters"
    if not prompt:
        yield "prompt", "Prompt must not be empty"  # why is said when a run is asked for


def _servers(values: Values, pair: ServedPair) -> Iterator[tuple[str, str]]:
    """The warnings that only a server needs."""
    if pair.drafts and "min_p" in SAMPLERS[values["sampler"]] and values["min_p"]:
        yield "min_p", NO_MIN_P
    if _whole(values["alternatives"]) and values["alternatives"] > 20:
        yield "alternatives", "vLLM refuses more than 20, unless it was started with --max-logprobs"


def _length(prompt: str, pair: "Pair") -> int | None:
    """The prompt's length in tokens; None if it cannot be found out, or not quickly."""
    try:
        check_text("prompt", prompt)
    except ValueError:
        return None
    if not prompt or not pair.tokenizer or len(prompt) > 256 * pair.context:
        return None
    return len(pair.tokenizer(prompt).input_ids)


def _whole(value: object) -> bool:
    return isinstance(value, (int, float)) and float(value).is_integer()
