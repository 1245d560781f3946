"""A setting as what one types into a server. The flags were read in the sources of the versions of READ."""

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import PurePath
from typing import Literal

from specdemo.events import METHODS, Params
from specdemo.events.params import tree_text
from specdemo.words.message import Message, message

READ = {"vLLM": "0.32.0 (2026-10-20)", "llama.cpp": "b11434 (2026-10-06)"}


@dataclass(frozen=True, slots=True)
class Choice:
    """What is to be typed. target, drafter: hub ids or directories. drafter_kind: a name in DRAFTER_KINDS."""

    target: str
    drafter: str | None
    drafter_kind: str | None
    params: Params


@dataclass(frozen=True, slots=True)
class Typed:
    """command: what a shell takes; None where the server has not the method. notes: what the server lacks, or
    means differently, in sentences."""

    server: str
    version: str
    command: str | None
    notes: tuple[Message, ...]


Value = bool | int | float | str
Given = Value | Callable[[Choice], Value] | None
Settings = Mapping[str, "Value | Callable[[Choice], Value]"]
Draws = Literal["asked", "never"]


@dataclass(frozen=True, slots=True)
class Row:
    """How a server is told to draft so, by its own names. draws: whether drafts are drawn from the drafter's
    distribution at the request's temperature, and not the likeliest tokens: where the server is asked to, or
    never. confidence: the setting for Params.confidence, where there is one. notes: keys of sentences;
    of_confidence: of what that setting means there."""

    settings: Settings
    draws: Draws = "never"
    confidence: str | None = None
    of_confidence: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Server:
    """write: the command for the settings. rows: by kind of drafter, where a drafter drafts, or by method.
    drawn: the setting that asks for drawn drafts, and of_drawn, the key of what is to be said of it. chained:
    of two rows, that of both, the first of which drafts where it can; or None. notes, if_sampled: keys of
    sentences on every command, and on speculation where the temperature is not 0."""

    write: Callable[[Choice, Mapping[str, Value]], str]
    rows: Mapping[str, Row]
    drawn: Settings
    of_drawn: str
    chained: Callable[[Choice, Row, Row], Row | None] | None = None
    notes: tuple[str, ...] = ()
    if_sampled: tuple[str, ...] = ()


def typed_into(choice: Choice) -> list[Typed]:
    return [_typed(name, server, choice) for name, server in SERVERS.items()]


def _typed(name: str, server: Server, choice: Choice) -> Typed:
    notes = [message(key) for key in server.notes]
    params = choice.params
    names = ("temperature", "top_k", "top_p", "min_p") if params.temperature else ("temperature",)
    sampler = ", ".join(f"{key} {getattr(params, key):g}" for key in names)
    notes.append(message("typed_temperature", sampler=sampler))
    if params.draft_with == "none":
        return Typed(name, READ[name], server.write(choice, {}), tuple(notes))
    if params.tree:
        return Typed(name, READ[name], None, (message("typed_no_tree", tree=tree_text(params.tree)),))
    row = _row(server, choice)
    if row is None:
        lacks = "typed_no_chain" if "+" in params.draft_with else "typed_lacks"
        return Typed(name, READ[name], None, (message(lacks, server=name),))
    settings = dict(row.settings)
    notes += map(message, (*(server.if_sampled if params.temperature else ()), *row.notes))
    notes += _drawing(name, server, row, choice, settings) + _confidence(name, row, choice, settings)
    values = {key: value(choice) if callable(value) else value for key, value in settings.items()}
    return Typed(name, READ[name], server.write(choice, values), tuple(notes))


def _row(server: Server, choice: Choice) -> Row | None:
    methods = choice.params.draft_with.split("+")
    ways = [choice.drafter_kind or "model" if one == "model" else one for one in methods]
    rows = [server.rows.get(way) for way in ways]
    if len(rows) == 1 or None in rows:
        return rows[0] if len(rows) == 1 else None
    return server.chained(choice, *rows) if server.chained else None


def _drawing(name: str, server: Server, row: Row, choice: Choice, settings: dict) -> list[Message]:
    """Adds what makes drafts come about as chosen, and says where the server cannot."""
    params = choice.params
    if "draft_temperature" not in METHODS[params.draft_with].fields or params.temperature == 0:
        return []
    wanted = params.temperature if params.draft_temperature is None else params.draft_temperature
    if wanted not in (0, params.temperature):
        return [message("typed_no_draft_temperature", server=name)]
    if wanted == 0:
        return []
    if row.draws == "never":
        return [message("typed_never_drawn", server=name)]
    settings.update(server.drawn)
    return [message(server.of_drawn)]


def _confidence(name: str, row: Row, choice: Choice, settings: dict) -> list[Message]:
    params = choice.params
    if "confidence" not in METHODS[params.draft_with].fields or not params.confidence:
        return []
    if row.confidence is None:
        return [message("typed_no_confidence", server=name)]
    settings[row.confidence] = params.confidence
    return [message(row.of_confidence)] if row.of_confidence else []


def drafter_of(choice: Choice) -> str:
    return choice.drafter or choice.target


gamma_of, ngram_of = attrgetter("params.gamma"), attrgetter("params.ngram")

# vLLM: config/speculative.py, --speculative-config.


def _vllm(choice: Choice, values: Mapping[str, Value]) -> str:
    config = ["--speculative-config", json.dumps(values)] if values else []
    return shlex.join(["vllm", "serve", choice.target, *config])


def _by_vllm(method: str, draws: Draws = "asked", notes: tuple[str, ...] = (), **more: Given) -> Row:
    """more: with None what is left out."""
    settings = {"method": method, "model": drafter_of, "num_speculative_tokens": gamma_of, **more}
    return Row(_given(settings), draws, notes=notes)


def _given(settings: Mapping[str, Given]) -> Settings:
    return {key: value for key, value in settings.items() if value is not None}


VLLM = {
    "model": _by_vllm("draft_model"),
    "pard": _by_vllm("draft_model", parallel_drafting=True),
    "eagle": _by_vllm("eagle"),
    "eagle3": _by_vllm("eagle3"),
    "peagle": _by_vllm("eagle3", parallel_drafting=True),
    "assistant": _by_vllm("mtp"),
    "dflash": _by_vllm("dflash"),
    "dflash2": _by_vllm("dflash"),
    "dspark": _by_vllm("dspark"),
    "mtp": _by_vllm("mtp", model=None),
    "lookup": _by_vllm("ngram", "never", model=None, prompt_lookup_max=ngram_of, prompt_lookup_min=1),
    "suffix": _by_vllm("suffix", "never", ("typed_vllm_suffix",), model=None),
}

# llama.cpp: common/arg.cpp and common/speculative.cpp.


def _llama(choice: Choice, values: Mapping[str, Value]) -> str:
    flags = (part for name, value in values.items() for part in (name, str(value)))
    return shlex.join(["llama-server", "-m", _gguf(choice.target), *flags])


def _gguf(model: str) -> str:
    """The file that a model is converted to, where llama.cpp is started."""
    name = PurePath(model).name
    return name if name.endswith(".gguf") else f"{name}.gguf"


def _file(choice: Choice) -> str:
    return _gguf(drafter_of(choice))


def _by_llama(
    kind: str,
    draws: Draws = "never",
    of_confidence: str | None = "typed_p_min",
    notes: tuple[str, ...] = ("typed_gguf_head",),
    file: Given = _file,
) -> Row:
    settings = _given({"-md": file, "--spec-type": kind, "--spec-draft-n-max": gamma_of})
    return Row(settings, draws, "--spec-draft-p-min", of_confidence, notes)


LLAMA = {
    "model": _by_llama("draft-simple", "asked", notes=()),
    "eagle3": _by_llama("draft-eagle3"),
    "assistant": _by_llama("draft-mtp", "asked"),
    "dflash": _by_llama("draft-dflash"),
    # p_min is compared with the share among the place's candidates, which is q here, too.
    "dflash2": _by_llama("draft-dflash", of_confidence=None),
    "dspark": _by_llama("draft-dspark", of_confidence="typed_p_min_dspark"),
    "mtp": _by_llama("draft-mtp", "asked", notes=(), file=None),
    "lookup": Row(
        {
            "--spec-type": "ngram-simple",
            # It drafts nothing where fewer tokens follow than an n-gram has.
            "--spec-ngram-simple-size-n": lambda choice: min(choice.params.ngram, choice.params.gamma),
            "--spec-ngram-simple-size-m": gamma_of,
        },
        notes=("typed_llama_lookup",),
    ),
    "ngram": Row({"--spec-type": "ngram-cache"}, notes=("typed_llama_cache",)),
    "ngram-one-level": Row(
        {
            "--spec-type": "ngram-mod",
            "--spec-ngram-mod-n-match": ngram_of,
            "--spec-ngram-mod-n-min": 1,
            "--spec-ngram-mod-n-max": gamma_of,
        },
        notes=("typed_llama_mod",),
    ),
}


def _chained_by_llama(choice: Choice, first: Row, second: Row) -> Row | None:
    """It asks what copies before what drafts, and of two that copy always the same one first."""
    if METHODS[choice.params.draft_with.split("+")[1]].manner == "copy":
        return None
    kinds = f"{first.settings['--spec-type']},{second.settings['--spec-type']}"
    settings = {**second.settings, **first.settings, "--spec-type": kinds}
    return replace(second, settings=settings, notes=tuple(dict.fromkeys((*second.notes, *first.notes))))


SERVERS = {
    "vLLM": Server(
        _vllm,
        VLLM,
        {"draft_sample_method": "probabilistic"},
        "typed_vllm_greedy",
        if_sampled=("typed_vllm_cpu",),
    ),
    "llama.cpp": Server(
        _llama,
        LLAMA,
        {"--spec-draft-sampling": "probabilistic"},
        "typed_llama_greedy",
        _chained_by_llama,
        notes=("typed_gguf",),
    ),
}
