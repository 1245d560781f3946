"""A loaded pair of models, what is known of it, and how it reads a prompt."""

import gc
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
import transformers
from torch.nn import Module
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specdemo import events
from specdemo.drafters.table import cached_drafter, drafting_by, kind_of
from specdemo.drafters.vocabulary import OtherTokenizer, special_tokens
from specdemo.engine import compiled
from specdemo.engine.emit import Pieces, token_texts
from specdemo.engine.grammar import Grammars
from specdemo.errors import PairError
from specdemo.events import ByModel, Mark, PairInfo, Params, Prompt
from specdemo.events.params import (
    DraftTree,
    TextOrChat,
    as_text,
    check_messages,
    field_of_grammar,
    is_conversation,
    takes_tree,
    turns_of,
)
from specdemo.events.thoughts import Opened, opened_in
from specdemo.loading import templates
from specdemo.loading.request import dtype_name
from specdemo.runtime import cuda, lm
from specdemo.runtime.device import device_name, has_bfloat16
from specdemo.runtime.runner import Capture, Runner
from specdemo.runtime.weights import held_bytes, rounds_activations
from specdemo.servers.client import Condition, never
from specdemo.servers.software import ServedPair
from specdemo.words.catalogue import numeral
from specdemo.words.message import Given, Message, about, given, message, refusal, shown


@dataclass(frozen=True)
class Bytes:
    target: int
    drafter: int | None


# Loads a drafter for a pair's target: gives a pair of both.
LoadDrafter = Callable[["Pair", str | os.PathLike], "Pair"]


@dataclass(eq=False)
class Pair:
    """A target and, if any, a drafter. `runner` runs them; one run at a time (`lock`)."""

    target: PreTrainedModel
    drafter: Module | None
    tokenizer: PreTrainedTokenizerBase | None
    info: PairInfo
    dtype_reason: Message  # why the models have their dtypes
    runner: Runner
    load_drafter: LoadDrafter  # what `attach` takes
    carried: PreTrainedModel | str  # as in PairModels
    lock: threading.Lock = field(default_factory=threading.Lock)
    other_tokenizer: OtherTokenizer | None = None  # the drafter's, if it is not the target's
    states: tuple = ()  # `present_states` when it was looked at last; empty: not yet
    runs_here = True  # its models are in this process

    def with_capture(self, capture: Capture) -> "Pair":
        """A pair of the same models, run by another runner. The two pairs share the lock, because they share
        the models."""
        return replace(self, runner=Runner(self.target, self.drafter, cached_drafter, capture))

    def beside(self, drafter: Module | None, name: str | None, other: OtherTokenizer | None) -> "Pair":
        """A pair of the same target with this drafter, which `look_at` has not seen. They share the lock,
        because they share the target. other: the drafter's tokenizer, if it is not the target's."""
        info = replace(
            self.info,
            name=self.info.target if name is None else f"{self.info.target} + {name}",
            drafter=name,
            dtype=replace(self.info.dtype, drafter=None),
            quantize=replace(self.info.quantize, drafter=None),
            drafter_kind=None,
            longest_draft=None,
        )
        runner = Runner(self.target, drafter, cached_drafter, self.runner.capture)
        return replace(self, drafter=drafter, info=info, runner=runner, other_tokenizer=other, states=())

    def with_drafter(self, drafter: str | os.PathLike) -> "Pair":
        """A pair of the same target with another drafter, so that both can run in turns. Raises as `attach`
        does."""
        with self._alone():
            other = self.load_drafter(self, drafter)
            other.runner.warm_up(Params().gamma)
        return other

    def attach(self, drafter: str | os.PathLike) -> None:
        """Puts another drafter on, a model or a speculator by its hub id (ID or ID@REVISION) or directory, in
        place of the one that is there. The target stays as it is; the drafter gets its device and dtype.

        Raises PairError while a run goes on, and otherwise as `load_pair` does. After an error the pair has
        what it had."""
        with self._alone():
            self._take(self.load_drafter(self, drafter))
            self.runner.warm_up(Params().gamma)

    def detach(self) -> None:
        """Gives the drafter's memory back, if there is one: the target can run without it. Raises PairError
        while a run goes on."""
        with self._alone():
            self._take(self.beside(None, None, None))

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if not self.lock.acquire(blocking=False):
            raise PairError(message("busy_to_change"))
        try:
            yield
        finally:
            self.lock.release()

    def _take(self, new: "Pair") -> None:
        devices = [model.device for model in (self.target, self.drafter) if model is not None]
        is_known = self.states == self.present_states
        if not is_known:  # its caches hold for the target as it was
            self.runner.forget()
        self.runner.change_drafter(new.drafter)  # may fail, so it comes first
        self.drafter, self.info, self.other_tokenizer = new.drafter, new.info, new.other_tokenizer
        # What was tried beside a target that has changed is tried again when a run begins.
        self.states = self.present_states if is_known else ()
        for device in devices:
            with cuda.alone_on(device):
                gc.collect()
                cuda.free_cache(device)

    @property
    def present_states(self) -> tuple:
        """What can change between two runs, to be compared: the models' states, and how many tokens their
        tokenizers have."""
        models = tuple(lm.state_of(model) for model in (self.target, self.drafter) if model is not None)
        tokenizers = (self.tokenizer, self.other_tokenizer and self.other_tokenizer.tokenizer)
        return models, tuple(len(tokenizer) for tokenizer in tokenizers if tokenizer is not None)

    def note(self, states: tuple, other: OtherTokenizer | None, carried: PreTrainedModel | str) -> None:
        """Takes what has been found out of the models in these states, in place of all that was kept of
        them."""
        self.other_tokenizer, self.carried = other, carried
        for kept in ("token_text", "grammars"):
            vars(self).pop(kept, None)
        if states[:1] != self.states[:1]:
            self.runner.forget()
        device = self.target.get_input_embeddings().weight.device
        drafter = self.drafter
        kind = None if drafter is None else kind_of(drafter)
        self.info = replace(
            self.info,
            device=str(device),
            device_name=device_name(device),
            dtype=ByModel(dtype_name(self.target.dtype), drafter and dtype_name(drafter.dtype)),
            drafter_kind=kind and kind.name_of(drafter),
            longest_draft=kind and kind.longest_draft(drafter),
        )
        self.states = states

    @property
    def vocab_size(self) -> int:
        return lm.logits_width(self.target)

    @property
    def known_ids(self) -> int:
        """A prompt can hold the ids below this: the target has an embedding of each, and predicts it."""
        return min(self.vocab_size, lm.embedded_ids(self.target))

    @property
    def context(self) -> float:
        """The most tokens that a text can have; infinite where the config names no limit."""
        return lm.context_of(self.target)

    @property
    def drafter_context(self) -> float:
        """The most tokens that the drafter's text can have; infinite where its config names no limit, 0
        without a drafter."""
        return 0 if self.drafter is None else lm.context_of(self.drafter)

    def lacks(self, method: str) -> str | None:
        """Why the pair cannot draft by this method, a name in METHODS; None if it can."""
        return drafting_by(method).lacks(self)

    def check(self, params: Params) -> Params:
        """The Params as this pair takes them. ValueError names a field that it cannot take."""
        params = drafting_by(params.draft_with).check(self, params)
        params = templates.with_models_own(params, self._read_options()[0])
        width = self.vocab_size
        if unknown := next((one for one in params.logit_bias or () if one >= width), None):
            raise ValueError(f"logit_bias must be of token ids below {width:,} for this pair, not {unknown}")
        self._check_stops(params.stop)
        if field_of_grammar(params):
            self.grammars.compiled(params)
        if params.tree and params.draft_with != "none":
            self._check_tree(params.draft_with, params.tree)
        return params

    def _check_tree(self, method: str, tree: DraftTree) -> None:
        """ValueError if the pair cannot draft such trees."""
        if "tree" not in events.METHODS[method].fields:
            raise ValueError(about("tree", "tree_method", name=method))
        if not takes_tree(method, tree):
            raise ValueError(about("tree", "tree_auto", name=method))
        self._check_reads_trees("target", self.target)
        if not events.METHODS[method].is_by_drafter:
            return
        kind = kind_of(self.drafter)
        name, longest = kind.name_of(self.drafter), kind.longest_draft(self.drafter)
        if not events.DRAFTER_KINDS[name].drafts_trees:
            raise ValueError(about("tree", "tree_kind", name=name))
        if longest is not None and isinstance(tree, tuple) and len(tree) > longest:
            raise ValueError(refusal("tree", "tree_depth", as_text(tree), deepest=longest))
        if self.other_tokenizer is not None:
            raise ValueError(about("tree", "tree_tokenizer"))
        self._check_reads_trees("drafter", self.drafter)

    def _check_reads_trees(self, role: str, model: Module | None) -> None:
        if isinstance(model, PreTrainedModel) and lm.keeps_state(model):
            raise ValueError(about("tree", "tree_states", who=message(f"the_{role}")))

    @cached_property
    def grammars(self) -> Grammars:
        """Compiles what texts can have to follow, for the target's tokens."""
        return Grammars(self.tokenizer, self.vocab_size, self.eos)

    def stop_ids(self, stops: tuple[str, ...]) -> frozenset[int]:
        """The ids of those stop strings that are special tokens. A text is decoded without them, so that they
        are found by their ids."""
        special = special_tokens(self.tokenizer) if stops and self.tokenizer is not None else {}
        return frozenset(token_id for token_id, text in special.items() if text in stops)

    def _check_stops(self, stops: tuple[str, ...]) -> None:
        """ValueError for stop strings that this pair cannot find."""
        if not stops:
            return
        if self.tokenizer is None:
            raise ValueError(about("stop", "no_text"))
        special = set(special_tokens(self.tokenizer).values())
        for stop in stops:
            if stop not in special and (held := [text for text in special if text in stop]):
                token = shown(max(held, key=len))
                raise ValueError(refusal("stop", "special_stop", stop, sign=token))

    @property
    def has_chat_template(self) -> bool:
        return bool(getattr(self.tokenizer, "chat_template", None))

    @property
    def marks(self) -> tuple[Mark, ...]:
        """The tokens by which its chat template parts what the target writes."""
        return templates.marks_of(self.tokenizer, self.eos) if self.has_chat_template else ()

    def prompt_ids(self, prompt: TextOrChat, params: Params, is_over: Condition = never) -> list[int] | None:
        """The prompt as the target reads it. ValueError in one sentence when it cannot be used. is_over: see
        ServedPair; here nothing is awaited."""
        if self.tokenizer is None:
            raise ValueError(about("prompt", "ids_only"))
        turns = turns_of(prompt, params)
        self._check_length(sum(len(one.content) for one in turns))
        if isinstance(prompt, str) and not params.chat:
            return self.tokenizer(prompt).input_ids
        if not self.has_chat_template:
            wrong = ("chat", "no_template") if isinstance(prompt, str) else ("prompt", "no_template_messages")
            raise ValueError(about(*wrong))
        text = templates.render(self.tokenizer, turns, params.chat_template_kwargs or {})
        self._check_length(len(text))
        return self.tokenizer(text, add_special_tokens=False).input_ids  # the template has written them

    def opened(self, prompt: TextOrChat | None, params: Params, prompt_ids: Sequence[int]) -> Opened:
        """What a prompt of these ids has opened and not closed. Marks that the chat template writes count;
        those in messages do not. A prompt without a template is meant for the target as it is, so all its
        marks count. prompt: None where ids were given."""
        marks = self.marks
        if prompt is not None and params.chat and marks:
            turns = turns_of(prompt, params)
            plain = tuple(replace(one, content=templates.without_marks(one.content, marks)) for one in turns)
            if plain != turns:
                prompt_ids = self.prompt_ids(plain, params) or ()
        return opened_in(prompt_ids, marks, self.token_text)

    def _check_length(self, characters: int) -> None:
        """ValueError for a prompt that is surely too long, since tokenizing megabytes takes minutes."""
        if characters > 256 * self.context:
            context = numeral(self.context, ",.0f")
            raise ValueError(about("prompt", "far_beyond", context=context, characters=characters))

    @property
    def eos(self) -> frozenset[int]:
        """The ids that end a text: the target's generation config's and the tokenizer's."""
        ids = self.target.generation_config.eos_token_id
        ids = [*(ids if isinstance(ids, list) else [ids]), getattr(self.tokenizer, "eos_token_id", None)]
        return frozenset(token_id for token_id in ids if token_id is not None)

    @cached_property
    def token_text(self) -> Callable[[int], str]:
        """A token's text after some other token, cached. Empty without a tokenizer."""
        return token_texts(self.tokenizer)

    @property
    def texts_of(self) -> Callable[[Iterable[int]], list[str]] | None:
        """Gives the texts of a prompt's tokens, which join to it; None without a tokenizer."""
        return None if self.tokenizer is None else Pieces(self.tokenizer).of

    def _read_options(self) -> tuple[dict[str, Any], list[str]]:
        """What `read_options` finds in the target's generation config. It is read now, because a model in
        memory belongs to its owner."""
        return templates.read_options(self.target.generation_config, self.vocab_size, self._check_stops)

    @property
    def limits(self) -> tuple[Message, ...]:
        """What a user should know: what is not applied, what is limited."""
        return tuple(self._limits())

    def _limits(self) -> Iterator[Message]:
        target, drafter = self.target, self.drafter
        if not_applied := self._read_options()[1]:
            yield message("not_applied", names=", ".join(not_applied))
        if why := longrope_note(target):
            yield why
        yield from notes_of("target", target)
        if drafter is not None:
            yield from notes_of("drafter", drafter)
        if self.has_chat_template and (mark := templates.unread_thoughts(self.tokenizer)):
            yield message("unread_thoughts", mark=mark)
        if drafter is not None:
            yield from kind_of(drafter).notes(drafter, target)
            if self.drafter_context < self.context:
                yield message("drafters_context", context=numeral(self.drafter_context, ",.0f"))
        if (other := self.other_tokenizer) is not None:
            yield message("other_tokenizer", shared=len(other.shared), all=self.vocab_size)

    @property
    def notes(self) -> list[Message | str]:
        """What a user should know now: the limits, and why the pair is slower than it might be."""
        why = compiled.fault() if self.target.device.type == "cpu" else None
        of_verdict = [message("by_operation", who=message("the_verdict"), why=why)] if why else []
        return [*self.limits, *self.runner.notes, *of_verdict]

    @property
    def warming_up(self) -> Message | None:
        """What the pair's runner is capturing right now."""
        return self.runner.warming_up

    @property
    def versions(self) -> dict[str, str]:
        """The versions of the packages that run the pair."""
        return {"torch": torch.__version__, "transformers": transformers.__version__}

    @property
    def bytes_held(self) -> Bytes:
        """The bytes of weights in memory, quantised ones as they are stored."""
        carried = () if isinstance(self.carried, str) else (self.carried,)
        drafter = None if self.drafter is None else held_bytes(self.drafter)
        return Bytes(held_bytes(self.target, *carried), drafter)

    @property
    def drafter_bytes(self) -> int | None:
        return self.bytes_held.drafter


# What a run can be made with. Each answers for itself: which Params it takes (`check`), how it reads a prompt
# (`prompt_ids`), whether it runs here, and what is known of its vocabulary, context, weights and captures.
AnyPair = Pair | ServedPair


def encode(pair: AnyPair, prompt: Prompt, params: Params, is_over: Condition = never) -> list[int]:
    """The prompt's token ids; ValueError in one sentence when it cannot be used. Empty for a text whose
    tokens a server tells only with its answer. is_over: once true, a server's answer is not awaited."""
    if isinstance(prompt, str):
        events.check_prompt(prompt)
        ids = pair.prompt_ids(prompt, params, is_over)
    elif is_conversation(prompt):
        ids = pair.prompt_ids(check_messages(prompt), params, is_over)
    elif isinstance(prompt, (list, tuple)):
        if params.chat:
            raise ValueError("chat needs a prompt that is text, not token ids")
        ids = list(prompt)
    else:
        raise ValueError(f"prompt must be text, token ids or messages, not {type(prompt).__name__}")
    if ids is None:
        return []
    if not ids:
        raise ValueError(events.NO_PROMPT)
    known = pair.known_ids or events.TOKEN_IDS
    if unknown := [one for one in ids if not _is_token_id(one, known)][:1]:
        what = shown(unknown[0])
        if pair.tokenizer is not None and _is_token_id(unknown[0], events.TOKEN_IDS):
            text = pair.tokenizer.decode(unknown)
            what += f" ({shown(text)})" if text else ""
        allowed = about("prompt", "unknown_token", high=numeral(known - 1, "d"))
        raise ValueError(given(allowed, Given(what)))
    if len(ids) >= pair.context:
        counts = {"most": numeral(pair.context - 1, ",.0f"), "length": len(ids)}
        if why := longrope_note(pair.target) if pair.runs_here else None:
            raise ValueError(about("prompt", "context_why", **counts, why=why))
        raise ValueError(about("prompt", "context", **counts))
    return ids


def longrope_note(target: PreTrainedModel) -> Message | None:
    """Why the context ends before the config says, where it does."""
    end, named = lm.longrope_end(target), lm.positions_of(target)
    if end >= named:
        return None
    return message("targets_context", context=numeral(end, ",.0f"), all=numeral(named, ",.0f"))


def _is_token_id(value: object, known: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < known


def notes_of(role: str, model: Module) -> Iterator[Message]:
    """What a user should know of one model: how it was loaded, and how it computes."""
    who = message(f"the_{role}")
    for key, how in getattr(model, "loaded_as", ()):
        yield message(key, who=who, **how)
    if emulates_bfloat16(model):
        yield message("emulated", who=who, device=str(model.device))
    if rounds_activations(model):
        yield message("rounded_activations", who=who)


def emulates_bfloat16(model: Module) -> bool:
    """Whether the model's GPU emulates its bfloat16. That is allowed, because it was asked for or is the
    model's own."""
    return model.dtype == torch.bfloat16 and model.device.type == "cuda" and not has_bfloat16(model.device)
