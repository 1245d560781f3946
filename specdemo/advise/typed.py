"""A setting as what one types into a server. The flags were read in the versions of READ: those of
TensorRT-LLM in its reference and in sources of 1.3, the others in the sources."""

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import PurePath
from typing import Literal

from specdemo.events import METHODS
from specdemo.events.params import DraftTree, tree_text
from specdemo.events.phrase_book import READ as IN_THE_BOOK
from specdemo.words.message import Message, message

READ = IN_THE_BOOK | {"TensorRT-LLM": "1.4.0rc4", "transformers": "5.24.0"}


@dataclass(frozen=True, slots=True)
class Choice:
    """What is to be typed. target, drafter: hub ids or directories. drafter_kind: a name in DRAFTER_KINDS.
    draft_with: a name in METHODS. gamma to tree: as in Params. speculates: False for the target alone."""

    target: str
    drafter: str | None
    drafter_kind: str | None
    draft_with: str
    gamma: int
    confidence: float
    temperature: float
    draft_temperature: float | None
    ngram: int
    speculates: bool
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    tree: DraftTree = ()

    @property
    def sampling(self) -> dict[str, float]:
        """What decides how tokens are drawn, by the names that all servers have."""
        filters = {"top_k": self.top_k, "top_p": self.top_p, "min_p": self.min_p} if self.temperature else {}
        return {"temperature": self.temperature, **filters}


@dataclass(frozen=True, slots=True)
class Typed:
    """command: what a shell takes, or Python of transformers; None where the server has not the method.
    notes: what the server lacks, or means differently, in sentences."""

    server: str
    version: str
    command: str | None
    notes: tuple[Message, ...]


Value = bool | int | float | str | dict[str, int]
Given = Value | Callable[[Choice], Value] | None
Settings = Mapping[str, "Value | Callable[[Choice], Value]"]
Draws = Literal["asked", "always", "never"]


@dataclass(frozen=True, slots=True)
class Row:
    """How a server is told to draft so, by its own names. draws: whether drafts are drawn from the drafter's
    distribution at the request's temperature, and not the likeliest tokens: where the server is asked to,
    always, or never. confidence: the setting for Params.confidence, where there is one. notes: keys of
    sentences; of_confidence: of what that setting means there."""

    settings: Settings
    draws: Draws = "never"
    confidence: str | None = None
    of_confidence: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Server:
    """write: the command for the settings. rows: by kind of drafter, where a drafter drafts, or by method.
    drawn: the setting that asks for drawn drafts, and of_drawn, the key of what is to be said of it. chained:
    of two rows, that of both, the first of which drafts where it can; or None. has_own_temperature: whether
    it takes one of its own for requests that bring none. notes, if_sampled: keys of sentences on every
    command, and on speculation where the temperature is not 0."""

    write: Callable[[Choice, Mapping[str, Value]], str]
    rows: Mapping[str, Row]
    drawn: Settings = field(default_factory=dict)
    of_drawn: str = ""
    chained: Callable[[Choice, Row, Row], Row | None] | None = None
    has_own_temperature: bool = True
    notes: tuple[str, ...] = ()
    if_sampled: tuple[str, ...] = ()


def typed_into(choice: Choice) -> list[Typed]:
    return [_typed(name, server, choice) for name, server in SERVERS.items()]


def _typed(name: str, server: Server, choice: Choice) -> Typed:
    notes = [message(key) for key in server.notes]
    if server.has_own_temperature:
        sampler = ", ".join(f"{key} {value:g}" for key, value in choice.sampling.items())
        notes.append(message("typed_temperature", sampler=sampler))
    if not choice.speculates or choice.draft_with == "none":
        return Typed(name, READ[name], server.write(choice, {}), tuple(notes))
    if choice.tree:
        return Typed(name, READ[name], None, (message("typed_no_tree", tree=tree_text(choice.tree)),))
    row = _row(server, choice)
    if row is None or not row.settings:
        lacks = "typed_no_chain" if "+" in choice.draft_with else "typed_lacks"
        own = map(message, row.notes if row else ())
        return Typed(name, READ[name], None, (message(lacks, server=name), *own))
    settings = dict(row.settings)
    notes += map(message, (*(server.if_sampled if choice.temperature else ()), *row.notes))
    notes += _drawing(name, server, row, choice, settings) + _confidence(name, row, choice, settings)
    values = {key: value(choice) if callable(value) else value for key, value in settings.items()}
    return Typed(name, READ[name], server.write(choice, values), tuple(notes))


def _row(server: Server, choice: Choice) -> Row | None:
    ways = [choice.drafter_kind or "model" if one == "model" else one for one in choice.draft_with.split("+")]
    rows = [server.rows.get(way) for way in ways]
    if len(rows) == 1 or None in rows:
        return rows[0] if len(rows) == 1 else None
    return server.chained(choice, *rows) if server.chained else None


def _drawing(name: str, server: Server, row: Row, choice: Choice, settings: dict) -> list[Message]:
    """Adds what makes drafts come about as chosen, and says where the server cannot."""
    if "draft_temperature" not in METHODS[choice.draft_with].fields or choice.temperature == 0:
        return []
    wanted = choice.temperature if choice.draft_temperature is None else choice.draft_temperature
    if wanted not in (0, choice.temperature):
        return [message("typed_no_draft_temperature", server=name)]
    if wanted == 0:
        return [message("typed_always_drawn", server=name)] if row.draws == "always" else []
    if row.draws != "asked":
        return [message("typed_never_drawn", server=name)] if row.draws == "never" else []
    settings.update(server.drawn)
    return [message(server.of_drawn)]


def _confidence(name: str, row: Row, choice: Choice, settings: dict) -> list[Message]:
    if "confidence" not in METHODS[choice.draft_with].fields or not choice.confidence:
        return []
    if row.confidence is None:
        return [message("typed_no_confidence", server=name)]
    settings[row.confidence] = choice.confidence
    return [message(row.of_confidence)] if row.of_confidence else []


def drafter_of(choice: Choice) -> str:
    return choice.drafter or choice.target


def window_of(choice: Choice) -> int:
    """What the target checks at once: the draft and the token before it."""
    return choice.gamma + 1


gamma_of, ngram_of = attrgetter("gamma"), attrgetter("ngram")

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

# SGLang: arg_groups/fields/spec.py and arg_groups/speculative_hook.py.


def _sglang(choice: Choice, values: Mapping[str, Value]) -> str:
    flags = _flags({f"--speculative-{key}": value for key, value in values.items()})
    return shlex.join(["python", "-m", "sglang.launch_server", "--model-path", choice.target, *flags])


def _flags(values: Mapping[str, Value]) -> list[str]:
    flags = ([name] if value is True else [name, str(value)] for name, value in values.items())
    return [part for flag in flags for part in flag]


STEPS = {"num-steps": gamma_of, "eagle-topk": 1, "num-draft-tokens": window_of}
PATH = {"draft-model-path": drafter_of}
BY_NGRAMS = Row(
    {"algorithm": "NGRAM", "num-draft-tokens": window_of, "ngram-max-bfs-breadth": 1},
    notes=("typed_sglang_ngram",),
)
BY_BLOCKS = Row({"algorithm": "DFLASH", **PATH, "num-draft-tokens": window_of}, "always")
SGLANG = {
    "model": Row({"algorithm": "STANDALONE", **PATH, **STEPS}),
    "eagle": Row({"algorithm": "EAGLE", **PATH, **STEPS}, "asked"),
    "eagle3": Row({"algorithm": "EAGLE3", **PATH, **STEPS}, "asked"),
    "assistant": Row({"algorithm": "NEXTN", **PATH, **STEPS}),
    "dflash": BY_BLOCKS,
    "dflash2": BY_BLOCKS,
    "dspark": Row({"algorithm": "DSPARK", **PATH, "dspark-block-size": gamma_of}, "always"),
    "mtp": Row({"algorithm": "NEXTN", **STEPS}, "asked"),
    "lookup": BY_NGRAMS,
    "ngram": BY_NGRAMS,
}

# llama.cpp: common/arg.cpp and common/speculative.cpp.


def _llama(choice: Choice, values: Mapping[str, Value]) -> str:
    return shlex.join(["llama-server", "-m", _gguf(choice.target), *_flags(values)])


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
            "--spec-ngram-simple-size-n": lambda choice: min(choice.ngram, choice.gamma),
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
    if METHODS[choice.draft_with.split("+")[1]].manner == "copy":
        return None
    kinds = f"{first.settings['--spec-type']},{second.settings['--spec-type']}"
    settings = {**second.settings, **first.settings, "--spec-type": kinds}
    return replace(second, settings=settings, notes=tuple(dict.fromkeys((*second.notes, *first.notes))))


# TensorRT-LLM: tensorrt_llm/llmapi/llm_args.py, the classes named ...DecodingConfig.


def _tensorrt(choice: Choice, values: Mapping[str, Value]) -> str:
    serve = ["trtllm-serve", choice.target]
    if not values:
        return shlex.join(serve)
    lines = [f"  {key}: {json.dumps(value)}" for key, value in values.items()]
    file = ["cat > speculative.yaml <<'EOF'", "speculative_config:", *lines, "EOF"]
    return "\n".join([*file, shlex.join([*serve, "--config", "speculative.yaml"])])


def _by_tensorrt(kind: str, draws: Draws = "asked", notes: tuple[str, ...] = (), **more: Given) -> Row:
    settings = {"decoding_type": kind, "max_draft_len": gamma_of, **more}
    return Row(settings, draws, notes=notes)


PUBLIC = {"is_use_oldest": False, "is_public_pool": False}
TENSORRT = {
    "model": _by_tensorrt("Draft_Target", notes=("typed_draft_target",), speculative_model=drafter_of),
    "pard": _by_tensorrt("PARD", speculative_model=drafter_of),
    "eagle3": _by_tensorrt("Eagle3", speculative_model=drafter_of),
    "dflash": _by_tensorrt("DFlash", speculative_model=drafter_of),
    "dspark": _by_tensorrt("DSpark", "never", speculative_model=drafter_of),
    "mtp": _by_tensorrt("MTP"),
    "lookup": _by_tensorrt("NGram", "never", max_matching_ngram_size=ngram_of, **PUBLIC),
    "suffix": _by_tensorrt("SA", "never", ("typed_tensorrt_suffix",)),
}


def _chained_by_tensorrt(choice: Choice, first: Row, second: Row) -> Row | None:
    """Its suffix automaton can stand before three of its drafters."""
    if first is not TENSORRT["suffix"] or second.settings["decoding_type"] not in ("MTP", "Eagle3", "PARD"):
        return None
    settings = {**second.settings, "sa_config": {"threshold": 4}}
    return replace(second, settings=settings, notes=(*second.notes, *first.notes))


# transformers: generation/utils.py and generation/candidate_generator.py.


def _transformers(choice: Choice, values: Mapping[str, Value]) -> str:
    """Settings with a dot are attributes; the others are arguments of generate."""
    sampling = {"do_sample": True, **choice.sampling} if choice.temperature else {"do_sample": False}
    given = {key: repr(value) for key, value in values.items() if "." not in key}
    assigned = [f"{key} = {value!r}" for key, value in values.items() if "." in key]
    loaded = {
        "tokenizer": ("AutoTokenizer", choice.target),
        "target": ("AutoModelForCausalLM", choice.target),
    }
    if assigned:
        loaded["drafter"] = ("AutoModelForCausalLM", drafter_of(choice))
        given = {"assistant_model": "drafter", **given}
    given |= {key: repr(value) for key, value in sampling.items()}
    arguments = ", ".join(f"{key}={value}" for key, value in given.items())
    return "\n".join(
        [
            "from transformers import AutoModelForCausalLM, AutoTokenizer",
            *(f"{name} = {kind}.from_pretrained({model!r})" for name, (kind, model) in loaded.items()),
            *assigned,
            'inputs = tokenizer("Once upon a time", return_tensors="pt")',
            f"output = target.generate(**inputs, {arguments})",
        ]
    )


CONFIG = "drafter.generation_config"
CONSTANT = {f"{CONFIG}.num_assistant_tokens": gamma_of, f"{CONFIG}.num_assistant_tokens_schedule": "constant"}
THRESHOLD = f"{CONFIG}.assistant_confidence_threshold"
TRANSFORMERS = {
    "model": Row(
        {**CONSTANT, THRESHOLD: 0.0},
        "always",
        confidence=THRESHOLD,
        of_confidence="typed_transformers_confidence",
    ),
    "assistant": Row(CONSTANT),
    "mtp": Row({"use_mtp": True}, "always", notes=("typed_transformers_mtp",)),
    "lookup": Row({"prompt_lookup_num_tokens": gamma_of, "max_matching_ngram_size": ngram_of}),
    "early-exit": Row({}, notes=("typed_transformers_exit",)),
}

SERVERS = {
    "vLLM": Server(
        _vllm,
        VLLM,
        {"draft_sample_method": "probabilistic"},
        "typed_vllm_greedy",
        if_sampled=("typed_vllm_cpu",),
    ),
    "SGLang": Server(_sglang, SGLANG, {"use-rejection-sampling": True}, "typed_sglang_greedy"),
    "llama.cpp": Server(
        _llama,
        LLAMA,
        {"--spec-draft-sampling": "probabilistic"},
        "typed_llama_greedy",
        _chained_by_llama,
        notes=("typed_gguf",),
    ),
    "TensorRT-LLM": Server(
        _tensorrt, TENSORRT, {"use_rejection_sampling": True}, "typed_tensorrt_exact", _chained_by_tensorrt
    ),
    "transformers": Server(_transformers, TRANSFORMERS, has_own_temperature=False),
}
