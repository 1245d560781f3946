"""A setting as what one types into a server. The flags were read in the sources of these versions."""

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePath

from specdemo.events import DRAFTER_KINDS, METHODS, Params
from specdemo.events.params import as_text
from specdemo.words.message import Message, message

Settings = Mapping[str, bool | int | float | str]


@dataclass(frozen=True, slots=True)
class ServerCommand:
    """server: with the version that was read. command: what a shell takes; None where the server has not the
    method. notes: what the server lacks, or means differently, in sentences."""

    server: str
    command: str | None
    notes: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Flags:
    """How a server is told to draft so, by its own names. notes: keys of sentences. can_draw: whether drafts
    can be drawn from the drafter's distribution at the request's temperature, and are not always the
    likeliest tokens. of_confidence: the key of what the server's threshold means here."""

    settings: Settings
    notes: tuple[str, ...] = ()
    can_draw: bool = False
    of_confidence: str | None = None


@dataclass(frozen=True, slots=True)
class Server:
    """row: for a kind of drafter (a method, where none drafts), the drafter (the target, where there is none)
    and Params; None where the server has not the method. write: the command for a target and settings. drawn:
    the setting that asks for drawn drafts, and of_drawn, the key of what is to be said of it. confidence: the
    setting for Params.confidence, where there is one. notes: keys of sentences on every command."""

    name: str
    version: str
    row: Callable[[str, str, Params], Flags | None]
    write: Callable[[str, Settings], str]
    drawn: Settings
    of_drawn: str
    confidence: str | None = None
    notes: tuple[str, ...] = ()


def typed_into(target: str, drafter: str | None, kind: str | None, params: Params) -> list[ServerCommand]:
    """target, drafter: hub ids or directories. kind: the drafter's, in DRAFTER_KINDS."""
    ways = [kind or "model" if one == "model" else one for one in params.draft_with.split("+")]
    names = ("temperature", "top_k", "top_p", "min_p") if params.temperature else ("temperature",)
    sampler = ", ".join(f"{name} {getattr(params, name):g}" for name in names)
    typed = []
    for server in SERVERS:
        command = None
        notes = [*map(message, server.notes), message("typed_temperature", sampler=sampler)]
        row = server.row("+".join(ways), drafter or target, params)
        if params.draft_with == "none":
            command = server.write(target, {})
        elif params.tree:
            notes = [message("typed_no_tree", tree=as_text(params.tree))]
        elif row is None:
            notes = [message("typed_lacks" if len(ways) == 1 else "typed_no_chain", server=server.name)]
        else:
            settings, of_row = _drafting(server, row, params)
            command, notes = server.write(target, settings), notes + of_row
        typed.append(ServerCommand(f"{server.name} {server.version}", command, tuple(notes)))
    return typed


def _drafting(server: Server, row: Flags, params: Params) -> tuple[Settings, list[Message]]:
    """The row's settings with what makes drafts come about as chosen, and what is to be said of them."""
    settings, notes = dict(row.settings), list(map(message, row.notes))
    fields, own = METHODS[params.draft_with].fields, params.draft_temperature
    wanted = params.temperature if own is None else own
    if "draft_temperature" in fields and params.temperature and wanted:
        if wanted != params.temperature:
            notes.append(message("typed_no_draft_temperature", server=server.name))
        elif not row.can_draw:
            notes.append(message("typed_never_drawn", server=server.name))
        else:
            settings |= server.drawn
            notes.append(message(server.of_drawn))
    if "confidence" in fields and params.confidence:
        if server.confidence is None:
            notes.append(message("typed_no_confidence", server=server.name))
        else:
            settings[server.confidence] = params.confidence
            notes += map(message, filter(None, [row.of_confidence]))
    return settings, notes


# The method of --speculative-config, by kind of drafter, or the method where none drafts.
VLLM_METHODS = {"model": "draft_model", "pard": "draft_model", "eagle": "eagle", "eagle3": "eagle3"}
VLLM_METHODS |= {"peagle": "eagle3", "assistant": "mtp", "dspark": "dspark", "dflash": "dflash"}
VLLM_METHODS |= {"dflash2": "dflash", "mtp": "mtp", "lookup": "ngram", "suffix": "suffix"}


def _by_vllm(way: str, drafter: str, params: Params) -> Flags | None:
    """What config/speculative.py takes."""
    if way not in VLLM_METHODS:
        return None
    own = {"model": drafter} if way in DRAFTER_KINDS else {}
    settings = {"method": VLLM_METHODS[way], **own, "num_speculative_tokens": params.gamma}
    if way == "lookup":
        settings |= {"prompt_lookup_max": params.ngram, "prompt_lookup_min": 1}
    if way in ("pard", "peagle"):
        settings |= {"parallel_drafting": True}
    notes = ["typed_vllm_cpu"] if params.temperature else []
    notes += ["typed_vllm_suffix"] if way == "suffix" else []
    return Flags(settings, (*notes,), can_draw=way not in ("lookup", "suffix"))


def _vllm(target: str, settings: Settings) -> str:
    config = ["--speculative-config", json.dumps(settings)] if settings else []
    return shlex.join(["vllm", "serve", target, *config])


OF_HEAD = ("typed_gguf_head",)
LLAMA_DRAFTING = {  # by kind of drafter, and "mtp", without the drafter's file and the draft's length
    "model": Flags({"--spec-type": "draft-simple"}, (), True, "typed_p_min"),
    "eagle3": Flags({"--spec-type": "draft-eagle3"}, OF_HEAD, False, "typed_p_min"),
    "assistant": Flags({"--spec-type": "draft-mtp"}, OF_HEAD, True, "typed_p_min"),
    "dflash": Flags({"--spec-type": "draft-dflash"}, OF_HEAD, False, "typed_p_min"),
    # p_min is compared with the share among the place's candidates, which is q here, too.
    "dflash2": Flags({"--spec-type": "draft-dflash"}, OF_HEAD),
    "dspark": Flags({"--spec-type": "draft-dspark"}, OF_HEAD, False, "typed_p_min_dspark"),
    "mtp": Flags({"--spec-type": "draft-mtp"}, (), True, "typed_p_min"),
}


def _by_llama(way: str, drafter: str, params: Params) -> Flags | None:
    """By common/arg.cpp and common/speculative.cpp."""
    match way:
        case "lookup":
            # It drafts nothing where fewer tokens follow than an n-gram has.
            matched = {"--spec-ngram-simple-size-n": min(params.ngram, params.gamma)}
            settings = {"--spec-type": "ngram-simple", **matched, "--spec-ngram-simple-size-m": params.gamma}
            return Flags(settings, ("typed_llama_lookup",))
        case "ngram":
            return Flags({"--spec-type": "ngram-cache"}, ("typed_llama_cache",))
        case "ngram-one-level":
            lengths = {"--spec-ngram-mod-n-min": 1, "--spec-ngram-mod-n-max": params.gamma}
            settings = {"--spec-type": "ngram-mod", "--spec-ngram-mod-n-match": params.ngram, **lengths}
            return Flags(settings, ("typed_llama_mod",))
    copying, _, drafting = way.rpartition("+")
    if drafting not in LLAMA_DRAFTING:  # of two that copy it asks always the same one first
        return None
    row = LLAMA_DRAFTING[drafting]
    file = {} if drafting == "mtp" else {"-md": _gguf(drafter)}
    settings = {**file, **row.settings, "--spec-draft-n-max": params.gamma}
    if copying:  # it asks what copies before what drafts
        first = _by_llama(copying, drafter, params)
        if first is None:
            return None
        kinds = f"{first.settings['--spec-type']},{row.settings['--spec-type']}"
        settings |= {**first.settings, "--spec-type": kinds}
        row = replace(row, notes=(*row.notes, *first.notes))
    return replace(row, settings=settings)


def _llama(target: str, settings: Settings) -> str:
    flags = (part for name, value in settings.items() for part in (name, str(value)))
    return shlex.join(["llama-server", "-m", _gguf(target), *flags])


def _gguf(model: str) -> str:
    """The file that a model is converted to, where llama.cpp is started."""
    name = PurePath(model).name
    return name if name.endswith(".gguf") else f"{name}.gguf"


SERVERS = (
    Server(
        "vLLM",
        "0.32.0 (2026-10-20)",
        _by_vllm,
        _vllm,
        drawn={"draft_sample_method": "probabilistic"},
        of_drawn="typed_vllm_greedy",
    ),
    Server(
        "llama.cpp",
        "b11434 (2026-10-06)",
        _by_llama,
        _llama,
        drawn={"--spec-draft-sampling": "probabilistic"},
        of_drawn="typed_llama_greedy",
        confidence="--spec-draft-p-min",
        notes=("typed_gguf",),
    ),
)
