"""A setting as what one types into a server. The flags were read in the sources of these versions."""

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import PurePath

from specdemo.events import METHODS, Params
from specdemo.events.params import tree_text
from specdemo.words.message import Message, message

Settings = Mapping[str, bool | int | float | str]


@dataclass(frozen=True, slots=True)
class Typed:
    """server: with the version that was read. command: what a shell takes; None where the server has not the
    method. notes: what the server lacks, or means differently, in sentences."""

    server: str
    command: str | None
    notes: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """How a server is told to draft so, by its own names. notes: keys of sentences. can_draw: whether drafts
    can be drawn from the drafter's distribution at the request's temperature, and are not always the
    likeliest tokens. of_confidence: the key of what the server's threshold means here."""

    settings: Settings
    notes: tuple[str, ...] = ()
    can_draw: bool = False
    of_confidence: str | None = None


@dataclass(frozen=True, slots=True)
class Server:
    """rows: for a drafter (of a method without one the target) and Params, by kind of drafter or, where none
    drafts, by method. write: the command for a target and settings. drawn: the setting that asks for drawn
    drafts, and of_drawn, the key of what is to be said of it. confidence: the setting for Params.confidence,
    where there is one. notes: keys of sentences on every command."""

    name: str
    version: str
    rows: Callable[[str, Params], dict[str, Row]]
    write: Callable[[str, Settings], str]
    drawn: Settings
    of_drawn: str
    confidence: str | None = None
    notes: tuple[str, ...] = ()


def typed_into(target: str, drafter: str | None, kind: str | None, params: Params) -> list[Typed]:
    """target, drafter: hub ids or directories. kind: the drafter's, in DRAFTER_KINDS."""
    ways = [kind or "model" if one == "model" else one for one in params.draft_with.split("+")]
    names = ("temperature", "top_k", "top_p", "min_p") if params.temperature else ("temperature",)
    sampler = ", ".join(f"{name} {getattr(params, name):g}" for name in names)
    typed = []
    for server in SERVERS:
        command = None
        notes = [*map(message, server.notes), message("typed_temperature", sampler=sampler)]
        row = server.rows(drafter or target, params).get("+".join(ways))
        if params.draft_with == "none":
            command = server.write(target, {})
        elif params.tree:
            notes = [message("typed_no_tree", tree=tree_text(params.tree))]
        elif row is None:
            notes = [message("typed_lacks" if len(ways) == 1 else "typed_no_chain", server=server.name)]
        else:
            settings, of_row = _drafting(server, row, params)
            command, notes = server.write(target, settings), notes + of_row
        typed.append(Typed(f"{server.name} {server.version}", command, tuple(notes)))
    return typed


def _drafting(server: Server, row: Row, params: Params) -> tuple[Settings, list[Message]]:
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


def _by_vllm(drafter: str, params: Params) -> dict[str, Row]:
    """What config/speculative.py takes as --speculative-config."""
    tokens = {"num_speculative_tokens": params.gamma}
    on_cpu = ("typed_vllm_cpu",) if params.temperature else ()

    def by_drafter(method: str, **more: bool) -> Row:
        settings = {"method": method, "model": drafter, **tokens, **more}
        return Row(settings, on_cpu, can_draw=True)

    copied = {"prompt_lookup_max": params.ngram, "prompt_lookup_min": 1}
    return {
        "model": by_drafter("draft_model"),
        "pard": by_drafter("draft_model", parallel_drafting=True),
        "eagle": by_drafter("eagle"),
        "eagle3": by_drafter("eagle3"),
        "peagle": by_drafter("eagle3", parallel_drafting=True),
        "assistant": by_drafter("mtp"),
        "dflash": by_drafter("dflash"),
        "dflash2": by_drafter("dflash"),
        "dspark": by_drafter("dspark"),
        "mtp": Row({"method": "mtp", **tokens}, on_cpu, can_draw=True),
        "lookup": Row({"method": "ngram", **tokens, **copied}, on_cpu),
        "suffix": Row({"method": "suffix", **tokens}, (*on_cpu, "typed_vllm_suffix")),
    }


def _vllm(target: str, settings: Settings) -> str:
    config = ["--speculative-config", json.dumps(settings)] if settings else []
    return shlex.join(["vllm", "serve", target, *config])


def _by_llama(drafter: str, params: Params) -> dict[str, Row]:
    """By common/arg.cpp and common/speculative.cpp."""
    file, most = {"-md": _gguf(drafter)}, {"--spec-draft-n-max": params.gamma}

    def head(kind: str, can_draw: bool = False, of_confidence: str | None = "typed_p_min") -> Row:
        return Row({**file, "--spec-type": kind, **most}, ("typed_gguf_head",), can_draw, of_confidence)

    drafting = {
        "model": replace(head("draft-simple", can_draw=True), notes=()),
        "eagle3": head("draft-eagle3"),
        "assistant": head("draft-mtp", can_draw=True),
        "dflash": head("draft-dflash"),
        # p_min is compared with the share among the place's candidates, which is q here, too.
        "dflash2": head("draft-dflash", of_confidence=None),
        "dspark": head("draft-dspark", of_confidence="typed_p_min_dspark"),
        "mtp": Row({"--spec-type": "draft-mtp", **most}, (), True, "typed_p_min"),
    }
    simple = {
        "--spec-type": "ngram-simple",
        # It drafts nothing where fewer tokens follow than an n-gram has.
        "--spec-ngram-simple-size-n": min(params.ngram, params.gamma),
        "--spec-ngram-simple-size-m": params.gamma,
    }
    one_level = {
        "--spec-type": "ngram-mod",
        "--spec-ngram-mod-n-match": params.ngram,
        "--spec-ngram-mod-n-min": 1,
        "--spec-ngram-mod-n-max": params.gamma,
    }
    copying = {
        "lookup": Row(simple, ("typed_llama_lookup",)),
        "ngram": Row({"--spec-type": "ngram-cache"}, ("typed_llama_cache",)),
        "ngram-one-level": Row(one_level, ("typed_llama_mod",)),
    }
    # It asks what copies before what drafts, and of two that copy always the same one first.
    pairs = product(copying.items(), drafting.items())
    joined = {f"{one}+{other}": _joined(first, second) for (one, first), (other, second) in pairs}
    return drafting | copying | joined


def _joined(first: Row, second: Row) -> Row:
    kinds = f"{first.settings['--spec-type']},{second.settings['--spec-type']}"
    settings = {**second.settings, **first.settings, "--spec-type": kinds}
    return replace(second, settings=settings, notes=(*second.notes, *first.notes))


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
