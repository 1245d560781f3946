"""The page's controls: what they are called and say, what they hold as Params and back, and what a choice means for the run.

Knows neither torch nor gradio.
"""

import os
import re

from specdemo.events import DRAFT_WITH, LIMITS, RULES, Params, allowed, check_number, check_text
from specdemo.loading.catalog import CATALOGUE

# Sampler: the fields of Params that matter to it. All others are switched off.
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

# Drafting method: (its words on the page, the fields of Params that matter to it).
DRAFTERS = dict(
    zip(
        DRAFT_WITH,
        (
            ("the drafter model", ("gamma",)),
            ("a lookup in the text so far", ("gamma", "ngram")),
            ("an n-gram store, all lengths", ("gamma", "ngram")),
            ("an n-gram store, one length", ("gamma", "ngram")),
            ("nobody: plain decoding", ()),
        ),
        strict=True,
    )
)
RULE_WORDS = dict(zip(RULES, ("speculative: accept when u < min(1, p/q)",), strict=True))

# As request.py has them, which needs torch.
AS_STARTED = "as the server was started"
DTYPES = (AS_STARTED, "auto", "float32", "bfloat16", "float16")
QUANTIZE = (AS_STARTED, "none", "int8", "int4", "int2", "float8")

# Control: (its label, what it says when there is nothing to warn of).
CONTROLS = {
    "pair": ("Pair", ""),
    "draft_with": ("Who drafts", "whoever it is, the text is distributed as the target's"),
    "gamma": ("Draft length γ", "tokens drafted in a round, at most"),
    "ngram": ("N-gram length", "longest run of tokens matched or stored"),
    "rule": ("Rule", "exact: the output is the target's own distribution"),
    "sampler": ("Sampler", "shapes p and q alike"),
    "temperature": ("Temperature", "below 1 sharpens, above 1 flattens"),
    "top_k": ("Top-k", "keep the k likeliest tokens"),
    "top_p": ("Top-p", "keep the likeliest tokens of this mass"),
    "min_p": ("Min-p", "keep what has this share of the likeliest token's p"),
    "max_new_tokens": ("Max new tokens", "the model may end the text before"),
    "seed": ("Seed", "the same seed gives the same text"),
    "stop": ("Stop strings", r"one a line, with \n for a line end; the text ends before the first"),
    "ignore_eos": ("Go on behind the end of the text", ""),
    "chat": ("Chat template", "the prompt as a user's message, for models tuned to answer"),
    "system": ("System prompt", "empty is none"),
    "dtype": ("Number format of the weights", ""),
    "quantize": ("Quantise the target", "weights only, made on loading"),
    "quantize_drafter": ("Quantise the drafter", "weights only, made on loading"),
    "alternatives": ("Alternatives recorded", "the likeliest tokens at each place, for the inspector"),
}
NAMES = tuple(CONTROLS)
DEFAULTS = Params()


def params_of(values: dict) -> Params:
    """The Params that the controls ask for; ValueError as Params says it."""
    shape = SAMPLERS.get(values["sampler"], SAMPLERS["all filters"])
    return Params(
        **{field: values[field] if field in shape else off for field, off in OFF.items()},
        **{
            field: values[field]
            for field in (
                "draft_with",
                "gamma",
                "ngram",
                "rule",
                "max_new_tokens",
                "ignore_eos",
                "chat",
                "alternatives",
            )
        },
        seed=whole_number(values["seed"]),
        stop=tuple(_unescaped(line) for line in values["stop"].split("\n") if line),
        system=values["system"] if values["chat"] and values["system"] else None,
    )


def values_of(params: Params) -> dict:
    """What the controls hold for a run with these Params. A filter that is off keeps a value to begin with."""
    on = tuple(field for field, off in OFF.items() if getattr(params, field) != off)
    sampler = (
        "greedy"
        if params.temperature == 0
        else next((name for name, shape in SAMPLERS.items() if shape == on), "all filters")
    )
    first = {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.05}
    shape = SAMPLERS[sampler]
    values = {field: getattr(params, field) if field in shape else first[field] for field in OFF}
    values |= {name: getattr(params, name) for name in NAMES if hasattr(params, name) and name not in OFF}
    seed = "" if params.seed is None else str(params.seed)
    return values | {
        "sampler": sampler,
        "seed": seed,
        "stop": "\n".join(map(_escaped, params.stop)),
        "system": params.system or "",
    }


def _escaped(stop: str) -> str:
    return stop.replace("\\", r"\\").replace("\n", r"\n")


def _unescaped(line: str) -> str:
    return re.sub(r"\\([n\\])", lambda found: "\n" if found[1] == "n" else "\\", line)


def whole_number(text: str) -> int | str | None:
    """What a text box says: None when it is empty, and what is no whole number as it is, for Params to refuse."""
    text = text.strip()
    return None if not text else int(text) if text.removeprefix("-").isdecimal() and len(text) < 20 else text


def visible(values: dict) -> dict[str, bool]:
    """Which controls matter to the choice that the others make; those that never hide are left out."""
    shape, drafting = SAMPLERS[values["sampler"]], DRAFTERS[values["draft_with"]][1]
    hidden = {field: field in shape for field in OFF} | {
        field: field in drafting for field in ("gamma", "ngram")
    }
    return hidden | {"system": bool(values["chat"])}


def says(values: dict, prompt: str, needs, pair) -> dict[str, str]:
    """What stands beside each control, "prompt" among them: its plain words, or a warning when the choice makes the run impossible
    or pointless. needs: what the chosen pair takes (models.Needs). pair: the pair itself where it is loaded, else None."""
    beside = {name: words for name, (_, words) in CONTROLS.items()} | {
        "prompt": "",
        "pair": _pair_line(values["pair"], needs),
    }
    for name, warning in _warnings(values, prompt, needs, pair):
        beside[name] = f"⚠ {warning}"
    for name, bytes in (("quantize", needs.target_bytes), ("quantize_drafter", needs.drafter_bytes)):
        if bytes:
            beside[name] += f"; {'holds' if needs.loaded else 'would hold about'} {bytes / 1e6:,.1f} MB"
    if pair is not None and not beside["dtype"]:
        beside["dtype"] = pair.dtype_reason
    return beside


def _pair_line(name: str, needs) -> str:
    about = f"{CATALOGUE[name].about}; " if name in CATALOGUE else ""
    amount = f"{needs.total / 1e9:,.1f} GB" if needs.total >= 1e9 else f"{needs.total / 1e6:,.0f} MB"
    line = f"{about}{'holds' if needs.loaded else 'needs about'} {amount} of {needs.memory / 1e9:,.0f} GB on {needs.device}"
    if needs.gated and not needs.loaded:
        line += "; gated: needs HF_TOKEN of an account that has accepted its terms"
    return line if needs.loaded else f"{line}; tried: {needs.tried}"


def _warnings(values: dict, prompt: str, needs, pair):
    """(control, warning). Of two for one control, the later one counts: the graver ones come last."""
    vocabulary = pair.vocab_size if pair else None
    context = pair.context if pair else None
    shape = SAMPLERS[values["sampler"]]
    if values["sampler"] == "greedy" and values["seed"].strip():
        yield "seed", "greedy draws nothing, so the seed changes nothing"
    if "temperature" in shape and values["temperature"] == 0:
        yield "temperature", "0 is greedy: p and q are one-hot, and the filters change nothing"
    if "top_k" in shape and values["top_k"] in (0, 1):
        yield (
            "top_k",
            "0 is off: nothing is filtered" if values["top_k"] == 0 else "1 keeps one token, which is greedy",
        )
    if "top_k" in shape and vocabulary and _whole(values["top_k"]) and values["top_k"] >= vocabulary:
        yield "top_k", f"the vocabulary has {vocabulary:,} tokens: nothing is filtered"
    if "top_p" in shape and values["top_p"] == 1:
        yield "top_p", "1 is off: nothing is filtered"
    if "min_p" in shape and values["min_p"] == 0:
        yield "min_p", "0 is off: nothing is filtered"
    whole = _whole(values["gamma"]) and _whole(values["max_new_tokens"])
    if values["draft_with"] != "none" and whole and values["gamma"] >= values["max_new_tokens"] > 0:
        yield "gamma", f"no draft is longer than what is left: at most {values['max_new_tokens'] - 1} here"
    if context and _whole(values["max_new_tokens"]) and values["max_new_tokens"] >= context:
        yield (
            "max_new_tokens",
            f"prompt and text together end at the target's context of {context:,.0f} tokens",
        )
    length = _length(prompt, pair) if pair and not values["chat"] else None
    if length and length >= context:
        yield (
            "prompt",
            f"has {length:,} tokens, but the target's context of {context:,.0f} must have room for one more",
        )
    elif length and _whole(values["max_new_tokens"]) and length + values["max_new_tokens"] > context:
        yield (
            "max_new_tokens",
            f"prompt and text together end at the target's context of {context:,.0f} tokens",
        )
    if values["alternatives"] == 0:
        yield "alternatives", "the inspector will have nothing but the token itself"
    on_cpu = needs.device.startswith("cpu")
    for name in ("quantize", "quantize_drafter"):
        if on_cpu and values[name] not in (AS_STARTED, "none"):
            yield name, "on a CPU quantised weights save memory, not time"
    if on_cpu and values["dtype"] in ("bfloat16", "float16"):
        yield (
            "dtype",
            f"on a CPU {values['dtype']} is slower than float32, and its rounding can change greedy output",
        )
    if pair and pair.drafter is None and values["draft_with"] == "model":
        yield "draft_with", "this pair has no drafter model: let another method draft"
    if pair and values["chat"] and not getattr(pair.tokenizer, "chat_template", None):
        yield "chat", "this pair's tokenizer has no chat template, so the run would be refused"
    if needs.gated and not needs.loaded and not os.environ.get("HF_TOKEN"):
        yield "pair", f"{_pair_line(values['pair'], needs)}; HF_TOKEN is not set here"
    if not needs.fits:
        yield "pair", f"{_pair_line(values['pair'], needs)}: more than this machine can hold"
    shown = visible(values)
    for name in LIMITS:
        value = whole_number(values[name]) if name == "seed" else values[name]
        if shown.get(name, True) and not (name == "seed" and value is None):
            try:
                check_number(name, value)
            except ValueError:
                yield name, f"must be {allowed(name)}"
    for name, text in (("prompt", prompt), ("stop", values["stop"]), ("system", values["system"])):
        try:
            check_text(name, text)
        except ValueError as error:
            yield name, str(error)
    if not prompt:
        yield "prompt", "must not be empty: the target needs at least one token to go on from"


def _length(prompt: str, pair) -> int | None:
    """In tokens; None where that cannot be said, or not quickly."""
    try:
        check_text("prompt", prompt)
    except ValueError:
        return None
    if not prompt or not pair.tokenizer or len(prompt) > 256 * pair.context:
        return None
    return len(pair.tokenizer(prompt).input_ids)


def _whole(value) -> bool:
    return isinstance(value, (int, float)) and float(value).is_integer()


def request(values: dict) -> dict:
    """The fields of models.Choice: which pair, and how it is to be held. None is as the server was started."""
    return {
        name: None if values[name] == AS_STARTED else values[name]
        for name in ("pair", "dtype", "quantize", "quantize_drafter")
    }


def held(info, usual) -> dict:
    """The controls that say how a recorded run's pair (a PairInfo) was held; usual: as this server holds the pair, if it does now."""
    if usual and (info.dtype, info.quantize) == (usual.dtype, usual.quantize):
        return dict.fromkeys(("dtype", "quantize", "quantize_drafter"), AS_STARTED)
    quantize = {
        "quantize": info.quantize.target or "none",
        "quantize_drafter": info.quantize.drafter or "none",
    }
    # Only what the controls offer: a file may say anything. A dtype is not compared with what a pair would have that is not loaded.
    dtype = info.dtype.target if usual and info.dtype.target in DTYPES else AS_STARTED
    return {"dtype": dtype} | {
        name: kind if kind in QUANTIZE else AS_STARTED for name, kind in quantize.items()
    }
