"""A setting as what one types into a server. The flags were read in the sources of these versions."""

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import PurePath
from typing import Any

from specdemo.events import DRAFTER_KINDS, METHODS, Params
from specdemo.words.message import Message, message

Settings = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ServerCommand:
    """server: with the version that was read. command: what a shell takes; None where the server has not the
    method. notes: what the server lacks, or means differently, in sentences."""

    server: str
    command: str | None
    notes: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Flags:
    """How a server is told to draft so. method: by its name there. settings: the others; a function gives the
    value for Params. notes: keys of sentences. can_draw: whether drafts can be drawn from the drafter's
    distribution at the request's temperature, and are not always the likeliest tokens."""

    method: str
    settings: Settings
    notes: tuple[str, ...] = ()
    can_draw: bool = False


@dataclass(frozen=True, slots=True)
class Server:
    """rows: by kind of drafter, or by method where none drafts. write: the command for a target, a method (""
    for none), a drafter and settings. drawn: the setting that asks for drawn drafts, and of_drawn, the key of
    what is to be said of it. after_copies: what drafts where one that copies found nothing has this setting.
    notes, warm_notes: keys of sentences on every command, and on those that draft at a temperature."""

    name: str
    version: str
    rows: Mapping[str, Flags]
    write: Callable[[str, str, str | None, Settings], str]
    drawn: Settings
    of_drawn: str
    after_copies: str | None = None
    notes: tuple[str, ...] = ()
    warm_notes: tuple[str, ...] = ()

    def row(self, ways: Sequence[str]) -> Flags | None:
        """How it is told to draft in the first of these ways that has a draft; None if it cannot."""
        *copying, last = (self.rows.get(way) for way in ways)
        if last is None or not copying:
            return last
        (first,) = copying
        if first is None or self.after_copies not in last.settings:
            return None
        method, settings = f"{first.method},{last.method}", last.settings | first.settings
        return replace(last, method=method, settings=settings, notes=last.notes + first.notes)


def typed_into(target: str, drafter: str | None, kind: str | None, params: Params) -> list[ServerCommand]:
    """target, drafter: hub ids or directories. kind: the drafter's, in DRAFTER_KINDS."""
    ways = [kind or "model" if one == "model" else one for one in params.draft_with.split("+")]
    names = ("temperature", "top_k", "top_p", "min_p") if params.temperature else ("temperature",)
    sampler = ", ".join(f"{name} {getattr(params, name):g}" for name in names)
    typed = []
    for server in SERVERS:
        command = None
        notes = [*map(message, server.notes), message("typed_temperature", sampler=sampler)]
        row = server.row(ways)
        if params.draft_with == "none":
            command = server.write(target, "", None, {})
        elif row is None:
            notes = [message("typed_lacks" if len(ways) == 1 else "typed_no_chain", server=server.name)]
        else:
            settings, of_row = _drafting(server, row, params)
            own = drafter if ways[-1] in DRAFTER_KINDS else None
            command, notes = server.write(target, row.method, own, settings), notes + of_row
        typed.append(ServerCommand(f"{server.name} {server.version}", command, tuple(notes)))
    return typed


def _drafting(server: Server, row: Flags, params: Params) -> tuple[Settings, list[Message]]:
    """The row's settings with what makes drafts come about as chosen, and what is to be said of them."""
    settings = {name: value(params) if callable(value) else value for name, value in row.settings.items()}
    keys = [*(server.warm_notes if params.temperature else ()), *row.notes]
    fields, own = METHODS[params.draft_with].fields, params.draft_temperature
    wanted = params.temperature if own is None else own
    if "draft_temperature" in fields and params.temperature and wanted:
        if wanted != params.temperature:
            keys.append("typed_no_draft_temperature")
        elif not row.can_draw:
            keys.append("typed_never_drawn")
        else:
            settings |= server.drawn
            keys.append(server.of_drawn)
    if "confidence" in fields and params.confidence:
        keys.append("typed_no_confidence")
    return settings, [message(key, server=server.name) for key in keys]


def _gguf(model: str) -> str:
    """The file that a model is converted to, where llama.cpp is started."""
    name = PurePath(model).name
    return name if name.endswith(".gguf") else f"{name}.gguf"


GAMMA, NGRAM = attrgetter("gamma"), attrgetter("ngram")
LENGTH, PARALLEL = {"num_speculative_tokens": GAMMA}, {"parallel_drafting": True}
OF_NGRAM = {"prompt_lookup_max": NGRAM, "prompt_lookup_min": 1}
VLLM = {  # what config/speculative.py takes
    "model": Flags("draft_model", LENGTH, can_draw=True),
    "pard": Flags("draft_model", LENGTH | PARALLEL, can_draw=True),
    "peagle": Flags("eagle3", LENGTH | PARALLEL, can_draw=True),
    "assistant": Flags("mtp", LENGTH, can_draw=True),
    "dflash2": Flags("dflash", LENGTH, can_draw=True),
    **{name: Flags(name, LENGTH, can_draw=True) for name in ("eagle", "eagle3", "dflash", "dspark", "mtp")},
    "lookup": Flags("ngram", LENGTH | OF_NGRAM),
    "suffix": Flags("suffix", LENGTH, ("typed_vllm_suffix",)),
}

OF_HEAD, MOST = ("typed_gguf_head",), {"--spec-draft-n-max": GAMMA}
SIMPLE = {  # it drafts nothing where fewer tokens follow than an n-gram has
    "--spec-ngram-simple-size-n": lambda params: min(params.ngram, params.gamma),
    "--spec-ngram-simple-size-m": GAMMA,
}
MOD = {"--spec-ngram-mod-n-match": NGRAM, "--spec-ngram-mod-n-min": 1, "--spec-ngram-mod-n-max": GAMMA}
LLAMA = {  # by common/arg.cpp and common/speculative.cpp
    "model": Flags("draft-simple", MOST, (), True),
    "eagle3": Flags("draft-eagle3", MOST, OF_HEAD),
    "assistant": Flags("draft-mtp", MOST, OF_HEAD, True),
    "dflash": Flags("draft-dflash", MOST, OF_HEAD),
    "dflash2": Flags("draft-dflash", MOST, OF_HEAD),
    "dspark": Flags("draft-dspark", MOST, OF_HEAD),
    "mtp": Flags("draft-mtp", MOST, (), True),
    "lookup": Flags("ngram-simple", SIMPLE, ("typed_llama_lookup",)),
    "ngram": Flags("ngram-cache", {}, ("typed_llama_cache",)),
    "ngram-one-level": Flags("ngram-mod", MOD, ("typed_llama_mod",)),
}


def _vllm(target: str, method: str, drafter: str | None, settings: Settings) -> str:
    config = {"method": method} | ({"model": drafter} if drafter else {}) | settings
    drafting = ["--speculative-config", json.dumps(config)] if method else []
    return shlex.join(["vllm", "serve", target, *drafting])


def _llama(target: str, method: str, drafter: str | None, settings: Settings) -> str:
    given = {"-m": _gguf(target)} | ({"-md": _gguf(drafter)} if drafter else {})
    given |= {"--spec-type": method} if method else {}
    flags = (part for name, value in (given | settings).items() for part in (name, str(value)))
    return shlex.join(["llama-server", *flags])


SERVERS = (
    Server(
        "vLLM",
        "0.32.0 (2026-10-20)",
        VLLM,
        _vllm,
        drawn={"draft_sample_method": "probabilistic"},
        of_drawn="typed_vllm_greedy",
        warm_notes=("typed_vllm_cpu",),
    ),
    Server(
        "llama.cpp",
        "b11434 (2026-10-06)",
        LLAMA,
        _llama,
        drawn={"--spec-draft-sampling": "probabilistic"},
        of_drawn="typed_llama_greedy",
        after_copies="--spec-draft-n-max",  # of two that copy it asks always the same one first
        notes=("typed_gguf",),
    ),
)
