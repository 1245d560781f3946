"""Why plain and speculative greedy text part: by rounding, or by a fault.

Both texts take the target's likeliest token at each place. Plain decoding finds it by a forward of one row,
verification by one of several rows, which adds up the same numbers in another order. So where two tokens are
nearly as likely, 16 bits can turn them round.

What these two forwards differ by explains any fork, also where one of them is wrong. So both are held against
an expected forward, in which nothing of this engine takes part: the model's own in float32, or, where that
cannot be had, its own as it is. How far rounding moves a logit is measured by the model's own forwards, too,
at the last places of the same text: of one row against several, and as it is against float32. A logit may be
off by the largest difference found, so two may be by twice as much. It is a fault where a forward is further
than that from the expected one, where a candidate is further than that below the likeliest token, and where a
text has a token that its own forward did not find the likeliest."""

import inspect
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import takewhile
from typing import Literal

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from specdemo.engine.loop import Decoder
from specdemo.engine.sampling import Sampler, Settings
from specdemo.engine.step import Judging, VerifiedOnHost, Verifier, masked
from specdemo.errors import PairError, is_out_of_memory
from specdemo.events import PairInfo, Params, Prompt, Round, Started
from specdemo.events.params import check_greedy_drafts
from specdemo.events.segments import Thoughts
from specdemo.events.trace import Trace
from specdemo.loading.pair import AnyPair, Pair
from specdemo.runtime import cuda
from specdemo.runtime.compared import apart, is_16_bits, order_tolerance, unit_of
from specdemo.runtime.device import amount, free_memory
from specdemo.runtime.lm import cache_argument, logits_tolerance
from specdemo.runtime.precision import full_float32
from specdemo.runtime.weights import in_float32, is_dense
from specdemo.servers.pair import ServedPair
from specdemo.session import BUSY, IsOver, begin, prepare
from specdemo.words.catalogue import numeral
from specdemo.words.message import Message, message

PLACES = 32  # of the text before the fork, at which rounding is measured
BEFORE = 80  # characters of the text before the fork that are shown
# How far a logit that the verdict has penalised may be from the same one here, relatively.
SAME_NUMBERS = 1e-6
LARGEST_ON_CPU = 12e9  # bytes: a forward of more takes a CPU minutes
ROOM = 1.1  # memory for a float32 copy and its forward, relative to the copy

IN_WORDS = {"one row": "fork_one_row", "several rows": "fork_several_rows"}
IN_WORDS |= {"own": "fork_own", "float32": "fork_float32"}

Verdict = Literal["none", "rounding", "fault"]
ForwardName = Literal["one row", "several rows", "own", "float32"]


@dataclass(frozen=True)
class Candidate:
    id: int
    text: str


@dataclass(frozen=True)
class Said:
    """What a forward says at the place. plain, speculative: its logits of the two candidates; margin: the
    first less the second. likeliest: the token that it would take, and largest, the logit of that. apart: how
    far its logits are from the expected ones at most."""

    forward: ForwardName
    plain: float
    speculative: float
    margin: float
    likeliest: Candidate
    largest: float
    apart: float


@dataclass(frozen=True)
class Rounding:
    """How far rounding moves a logit, measured at so many places: what the model's own forwards of one row
    and of several rows differ by, and what its own and the one in float32 do (None: not compared, and why).
    unit: one unit of rounding of the largest logit. allowed: how far two logits may move together."""

    places: int
    rows: float
    float32: float | None
    not_float32: Message | None
    unit: float
    allowed: float


@dataclass(frozen=True)
class Fork:
    """The first place at which the texts part, counted in tokens of the output from 0. before: the end of the
    text before it. plain, speculative: the candidates; None where that text has ended. rows: of the forward
    that verified. said: by each forward; empty where no logits decide."""

    place: int
    before: str
    plain: Candidate | None
    speculative: Candidate | None
    rows: int
    said: list[Said] = field(default_factory=list)
    rounding: Rounding | None = None


@dataclass(frozen=True)
class ForkReport:
    """What came of a comparison. compared: how many tokens the texts have in common. fork: None where they
    are equal."""

    schema: str = field(default="specdemo.fork/1", kw_only=True)
    verdict: Verdict
    sentence: Message
    compared: int
    fork: Fork | None
    prompt: str
    prompt_ids: list[int]
    params: Params
    pair: PairInfo
    versions: dict[str, str]


def find_fork(
    pair: AnyPair, prompt: Prompt, params: Params, is_over: IsOver = lambda: False
) -> ForkReport | None:
    """Writes the greedy text with and without drafts, and finds out why they part, if they do. None if
    is_over was true before that was known. Raises ValueError for Params that are not greedy or draft nothing,
    and else as `stream` does."""
    if isinstance(pair, ServedPair):
        raise PairError(message("fork_served"))
    check_greedy_drafts(params)
    started = prepare(pair, prompt, params)
    alone = prepare(pair, prompt, replace(started.params, draft_with="none"))
    plain, _ = _text(pair, alone, lambda ids: False, is_over)
    drafting, logits = _text(pair, started, lambda ids: ids != plain.output_ids[: len(ids)], is_over)
    if is_over():
        return None
    place = in_common(drafting.output_ids, plain.output_ids)
    told = {
        "compared": place,
        "prompt": started.prompt,
        "prompt_ids": list(started.prompt_ids),
        "params": started.params,
        "pair": drafting.pair,
        "versions": dict(started.versions),
    }
    if drafting.output_ids == plain.output_ids:
        return ForkReport("none", message("fork_none", compared=place), fork=None, **told)

    candidates = [_candidate(pair, one.output_ids[place : place + 1]) for one in (plain, drafting)]
    before = _before(pair, started, plain.output_ids[:place])
    fork = Fork(place, before, *candidates, rows=len(logits))
    if None in candidates:
        return ForkReport("fault", message("fork_ends"), fork=fork, **told)
    by_several = logits[place - (len(drafting.output_ids) - len(drafting.rounds[-1].emitted))]
    again, logits = _text(pair, alone, lambda ids: len(ids) > place, is_over)
    if is_over():
        return None
    if again.output_ids != plain.output_ids[: place + 1]:
        return ForkReport("fault", message("fork_not_repeated"), fork=fork, **told)
    found = _explained(pair, started, plain.output_ids[:place], fork, (logits[0], by_several), is_over)
    return None if found is None else ForkReport(*verdict_on(found), fork=found, **told)


def in_common(ids: list[int], others: list[int]) -> int:
    """How many tokens both texts have in common at their beginning."""
    return sum(1 for _ in takewhile(lambda both: both[0] == both[1], zip(ids, others, strict=False)))


@dataclass(frozen=True)
class Recording(Verifier):
    """A verifier that keeps the latest round's logits."""

    latest: list[Tensor] = field(default_factory=list)  # one, [B+1, V] float32, on the CPU

    def verdict(self, judging: Judging) -> VerifiedOnHost:
        verdict = super().verdict(judging)
        self.latest[:] = [judging.output.logits.to("cpu", torch.float32, copy=True)]
        return verdict


def _text(
    pair: Pair, started: Started, is_enough: Callable[[list[int]], bool], is_over: IsOver
) -> tuple[Trace, Tensor]:
    """The trace of a run, which is closed once its text is enough or is_over is true, and the logits [B+1, V]
    of its last round; [0, 0] where it had none."""
    latest = [torch.empty(0, 0)]

    def recorded(decoder: Decoder) -> Decoder:
        return replace(decoder, verifier=Recording(**vars(decoder.verifier), latest=latest))

    with begin(pair, started, measure=False, is_over=is_over, alter=recorded) as run:
        for event in run:
            if isinstance(event, Round) and (is_over() or is_enough(run.trace.output_ids)):
                break
    return run.trace, latest[0]


def _candidate(pair: Pair, ids: list[int]) -> Candidate | None:
    return Candidate(ids[0], pair.token_text(ids[0])) if ids else None


def _before(pair: Pair, started: Started, output_ids: list[int]) -> str:
    if pair.tokenizer is None:
        return ""
    text = pair.tokenizer.decode([*started.prompt_ids, *output_ids], skip_special_tokens=True)
    return text[-BEFORE:]


def _explained(
    pair: Pair,
    started: Started,
    output_ids: list[int],
    fork: Fork,
    by_runs: tuple[Tensor, Tensor],
    is_over: IsOver,
) -> Fork | None:
    """The fork with what each forward says, and with the rounding; None if is_over was true before. by_runs:
    the logits [V] of the runs' forwards of one row and of several."""
    ids = [*started.prompt_ids, *output_ids]
    places = min(PLACES, len(ids))
    if not pair.lock.acquire(blocking=False):
        raise PairError(BUSY)
    try:
        device = pair.target.device
        with pair.runner.active(), cuda.alone_on(device), torch.no_grad():
            own = _own_logits(pair.target, ids, places)
            own_by_one = _own_by_one_row(pair.target, ids, places, is_over)
            if own_by_one is None or is_over():
                return None
            exact, not_float32 = _logits_in_float32(pair.target, ids, places)
    finally:
        pair.lock.release()

    sampler = Sampler(started.params, len(started.prompt_ids))
    scores = partial(_scores, sampler, ids)
    begun = len(started.prompt_ids), Thoughts.at_first(started)
    grammar, fits = pair.grammars.compiled(started.params, *begun), None
    if grammar is not None:
        grammar.go_to(ids)
        fits = grammar.after(())  # [V]
    own, own_by_one = scores(own), scores(own_by_one)
    exact = None if exact is None else scores(exact)
    rounding = _rounding(own, own_by_one, exact, not_float32, pair.target.dtype)
    expected = own[-1] if exact is None else exact[-1]
    by_one, by_several = (scores(one[None])[0] for one in by_runs)
    said = {"one row": by_one, "several rows": by_several, "own": own[-1]}
    if exact is not None:
        said["float32"] = exact[-1]

    def line(name: ForwardName, logits: Tensor) -> Said:
        plain, speculative = float(logits[fork.plain.id]), float(logits[fork.speculative.id])
        likeliest, difference = int(masked(logits, fits).argmax()), float(apart(logits, expected).max())
        choice = _candidate(pair, [likeliest]), float(logits[likeliest])
        return Said(name, plain, speculative, plain - speculative, *choice, difference)

    lines = [line(name, logits) for name, logits in said.items()]
    return replace(fork, said=lines, rounding=rounding)


def _scores(sampler: Sampler, ids: list[int], logits: Tensor) -> Tensor:
    """The logits [P, V] after the last P places of a text with bias and penalties: what decides."""
    ends = range(len(ids) - len(logits) + 1, len(ids) + 1)
    seen = [sampler.seen(ids[:end], logits.shape[1], logits.device) for end in ends]
    counted = torch.stack(seen) if sampler.penalises else None  # [P, V]
    return sampler.adjusted(logits, Settings.on_host(sampler), counted)


def verdict_on(fork: Fork) -> tuple[Verdict, Message]:
    """Whether rounding explains a fork at which logits decide, and why, in a sentence."""
    assert fork.rounding is not None
    allowed, (by_one, by_several, *others) = fork.rounding.allowed, fork.said
    expected = others[-1]
    where, explained = message(IN_WORDS[expected.forward]), numeral(allowed, ".2g")
    taken = {"fork_plain": (by_one, by_one.plain), "fork_speculative": (by_several, by_several.speculative)}
    for text, (line, logit) in taken.items():
        if line.largest - logit > SAME_NUMBERS * abs(line.largest):
            below = numeral(line.largest - logit, ".2g")
            return "fault", message("fork_not_likeliest", who=message(text), below=below)
    for line in (by_one, by_several):
        if line.apart > allowed:
            values = {"who": message(IN_WORDS[line.forward]), "apart": numeral(line.apart, ".2g")}
            return "fault", message("fork_apart", **values, where=where, allowed=explained)
    below = expected.largest - min(expected.plain, expected.speculative)
    values = {"where": where, "below": numeral(below, ".2g"), "allowed": explained}
    if below > allowed:
        return "fault", message("fork_too_clear", **values)
    return "rounding", message("fork_rounding", **values)


def _rounding(
    own: Tensor, by_one_row: Tensor, exact: Tensor | None, not_float32: Message | None, dtype: torch.dtype
) -> Rounding:
    """The rounding of a model of this dtype, by its own logits [P, V] at P places."""
    rows = float(apart(own, by_one_row).max())
    float32 = None if exact is None else float(apart(own, exact).max())
    # In more than 16 bits sums are rounded so often that one unit says nothing.
    unit = order_tolerance(own, [dtype])
    if is_16_bits(dtype):
        unit = unit_of(dtype) * float(own.nan_to_num(0.0, 0.0, 0.0).abs().max())
    moved = max(rows, float32 or 0.0, unit)
    if not is_16_bits(dtype):  # of some recurrent models the own forwards differ by far more than rounding
        moved = min(moved, logits_tolerance(own, dtype))
    return Rounding(len(own), rows, float32, not_float32, unit, 2 * moved)


def _own_logits(model: PreTrainedModel, ids: list[int], places: int) -> Tensor:
    """The model's own logits after the last places of a text, by one forward without a cache: [places, V]
    float32, on the CPU."""
    known = inspect.signature(model.forward).parameters
    only = {"logits_to_keep": places} if "logits_to_keep" in known else {}
    logits = model(input_ids=_on(model, ids), use_cache=False, **only).logits[0, -places:]
    return logits.to("cpu", torch.float32)


def _own_by_one_row(
    model: PreTrainedModel, ids: list[int], places: int, is_over: IsOver = lambda: False
) -> Tensor | None:
    """The same by forwards of one row over transformers' own cache; None if is_over was true before."""
    known, before = inspect.signature(model.forward).parameters, len(ids) - places
    cache = {cache_argument(model): DynamicCache(config=model.config), "use_cache": True}
    only = {"logits_to_keep": 1} if "logits_to_keep" in known else {}
    rows = []
    for start, end in [(0, before), *((at, at + 1) for at in range(before, len(ids)))]:
        if start == end:  # nothing is before
            continue
        if is_over():
            return None
        positions = torch.arange(start, end, device=model.device)[None]
        given = {"position_ids": positions} if "position_ids" in known else {}
        logits = model(input_ids=_on(model, ids[start:end]), **given, **cache, **only).logits[0, -1:]
        rows.append(logits.to("cpu", torch.float32))
    return torch.cat(rows[-places:])


def _on(model: PreTrainedModel, ids: list[int]) -> Tensor:
    return torch.tensor([ids], device=model.get_input_embeddings().weight.device)


def _logits_in_float32(
    model: PreTrainedModel, ids: list[int], places: int
) -> tuple[Tensor | None, Message | None]:
    """What `_own_logits` of the same model in float32 are, on its device or, without memory there, on the
    CPU; or None, and why."""
    if not is_16_bits(model.dtype):
        return None, message("fork_is_float32")
    tensors = [*model.parameters(), *model.buffers()]
    if getattr(model.config, "quantization_config", None) is not None or not all(map(is_dense, tensors)):
        return None, message("fork_quantised")
    needed = int(ROOM * 4 * sum(one.numel() for one in tensors))  # bytes
    devices = dict.fromkeys((str(model.device), "cpu"))
    device = next((one for one in devices if free_memory(one) >= needed), None)
    why = message("fork_no_memory", needed=amount(needed))
    if device == "cpu" and needed > LARGEST_ON_CPU:
        return None, message("fork_too_large", needed=amount(needed))
    if device is None:
        return None, why
    try:
        with full_float32() if cuda.is_cuda(torch.device(device)) else nullcontext():
            return _own_logits(in_float32(model, device), ids, places), None
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return None, why
