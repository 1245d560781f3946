"""What goes into a run (`Params`) and what comes out of it: `Started`, then one `Round` after another, then
`Finished`. Nothing here imports torch.

Everything that page, terminal, trace file and benchmark need to know about a run is in these frozen values.
They are named like the keys of the trace's JSON. p is the target's distribution and q the drafter's, both
after temperature and filters; raw_p and raw_q are the same two at temperature 1 without filters (Leviathan et
al. 2023, Chen et al. 2023). A field that has a default may be missing in older traces."""

# ruff: noqa: F401 - other modules ask for the rows and for Params here, too
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal, TypeVar

from pydantic import Field

from specdemo.events.choices import (
    DRAFTER_KINDS,
    LISTED,
    METHODS,
    RULES,
    Manner,
    drafter_label,
    manner_of,
    words_of_row,
)
from specdemo.events.params import (
    LIMITS,
    NO_PROMPT,
    PARAMETERS,
    TOKEN_IDS,
    ChatMessage,
    Gamma,
    Params,
    Prompt,
    check_prompt,
    is_lossy,
)

__version__ = "0.1.0"  # of the package, which traces and reports name

# Numbers as a trace file can have them; its reader holds them to these bounds.
TokenId = Annotated[int, Field(ge=0, lt=TOKEN_IDS)]
Probability = Annotated[float, Field(ge=0, le=1.000001)]  # sums of floats can be slightly above 1
MOST = 10**12  # what no time (in ms) and no count of a real run reaches
Count = Annotated[int, Field(ge=0, lt=MOST)]
Amount = Annotated[float, Field(ge=0, lt=MOST)]  # a time in ms, a mean of counts, or a quotient
Interval = tuple[Amount, Amount]
FIRST = Field(fail_fast=True)  # all faults of a list, in place of the first, can take minutes and gigabytes
TokenIds = Annotated[tuple[TokenId, ...], FIRST]
EmittedIds = Annotated[tuple[TokenId | None, ...], FIRST]

# Why a draft has no more tokens: it has gamma of them; the drafter was not sure enough (Params.confidence);
# it has drafted an eos, or a token that the grammar forbids; the text has no room for more; the drafter has
# no more to offer.
EndedBy = Literal["gamma", "confidence", "eos", "grammar", "length", "drafter", "pause"]


@dataclass(frozen=True, slots=True)
class ByModel:
    """A property of each model (its dtype, its quantisation); None where there is none."""

    target: str | None
    drafter: str | None


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """The server that ran a pair, as far as it tells of itself; None for what it does not. model: the name
    that it serves the target under. method: how it drafts ("eagle3"), in its own word. gamma: the most tokens
    that it drafts in a round, 0 if it drafts none."""

    address: str
    software: str
    version: str | None
    model: str
    method: str | None
    gamma: int | None


@dataclass(frozen=True, slots=True)
class PairInfo:
    """Which pair ran where. `target` and `drafter` are hub ids, directories, or class names of models in
    memory. drafter_kind: a name in DRAFTER_KINDS. server: None for the engine here."""

    name: str
    target: str
    drafter: str | None
    device: str
    device_name: str
    dtype: ByModel
    quantize: ByModel
    server: ServerInfo | None = None
    drafter_kind: str | None = None  # None without a drafter, and on a server
    longest_draft: int | None = None  # of a drafter that can draft only so many tokens at once


Fate = Literal["accepted", "rejected", "discarded"]  # of a drafted token
Source = Literal["resampled", "bonus", "sampled"]  # of the target's own token

# One of the likeliest tokens at a position: id, text, p, q, raw_p, raw_q. q and raw_q are None where nothing
# was drafted, and all but text and raw_p where a server has not told them.
Alternative = tuple[
    TokenId | None, str, Probability | None, Probability | None, Probability, Probability | None
]
Top = Annotated[tuple[Alternative, ...], FIRST]


@dataclass(frozen=True, slots=True)
class Judged:
    """A drafted token and its fate: "accepted", "rejected" or "discarded".

    Rule `speculative`: accept_prob = min(1, p/q); accepted exactly when u < accept_prob. A token after the
    rejection was never judged: it is discarded, and its u and accept_prob are None. A token that was accepted
    after the end of the text is discarded, too, and keeps both.

    Rule `block`: accept_prob is h of Sun et al. 2024, and all up to the last with u < accept_prob are
    accepted. So all are judged, and all keep both.

    The lossy rules: as `speculative`, but with another accept_prob. distance: the total variation distance
    between p and the distribution of the token that the rule emits here; None of one that was never judged.

    allowed: how many tokens the run's grammar allowed at this place; None without a grammar, and before it
    begins. forbidden: whether it forbade this one, so that p is 0.

    A server tells raw_p of what it accepted, and nothing of what it refused, whose id is None, too.
    """

    id: TokenId | None
    text: str
    p: Probability | None
    q: Probability | None
    raw_p: Probability | None
    raw_q: Probability | None
    u: Probability | None
    accept_prob: Probability | None
    fate: Fate
    top: Top
    distance: Probability | None = None
    allowed: Count | None = None
    forbidden: bool = False


@dataclass(frozen=True, slots=True)
class JudgedInTree(Judged):
    """A drafted token of a tree. parent: the index in the draft of the token that it follows; None where it
    follows the text.

    The children of a token are judged one after another, until one is accepted: p is what the refused ones
    before have left of the target's distribution, and q what this one was drawn from without them. So
    several tokens of a draft can be rejected. One that the path did not come to is discarded; its p is the
    target's at its place. One that was refused after the end of the text is discarded, too, and keeps its u
    and accept_prob. top: the likeliest tokens of the same two distributions. residual_mass: of a refused one,
    what it leaves of p, max(p - q, 0)."""

    parent: Count | None = field(kw_only=True)
    residual_mass: Probability | None = field(default=None, kw_only=True)


def is_tree(draft: Sequence[Judged]) -> bool:
    return any(isinstance(token, JudgedInTree) for token in draft)


@dataclass(frozen=True, slots=True)
class Next:
    """The token that the target itself adds at the end of a round.

    source: "resampled" after a rejection, from norm(max(p - q, 0)), whose mass before normalising is
    `residual_mass`; "bonus" when all drafts were accepted and "sampled" when nothing was drafted, both from
    p. u is the uniform number it was drawn with. q and raw_q are None unless it was resampled. allowed: as of
    Judged.

    A server tells raw_p only, or not even that; llama.cpp tells no id of a token that ends inside a
    character. Where it does not tell how much was drafted, either, the source is "sampled",
    whatever it was, and the round's `drafts_told` is False.
    """

    id: TokenId | None
    text: str
    source: Source
    p: Probability | None
    q: Probability | None
    raw_p: Probability | None
    raw_q: Probability | None
    u: Probability | None
    residual_mass: Probability | None
    top: Top
    allowed: Count | None = None


@dataclass(frozen=True, slots=True)
class Round:
    """One target forward over the draft, its verdicts, and the target's own token.

    `next` is None only when the text ended inside the accepted drafts. draft_ms and verify_ms are the
    engine's own time, without what a consumer does between events.
    gamma: the most tokens that this round could draft; ended_by: why it drafted no more, None in plain
    decoding.
    fed_again: how many tokens of the text the target and the drafter were fed once more, because rejected
    drafts have changed the one state of a recurrent layer. None where neither model has such layers.
    target_forwards: more than one where the target had to be fed again by a forward of its own, or one token
    at a time.

    Of a server's round the times are None, and arrival_ms is the time since what came before it: the round
    before, or the request. drafts_told: whether it is known how many tokens were drafted; else `draft` has
    only those that were accepted.
    """

    index: Count
    draft: Annotated[tuple[JudgedInTree | Judged, ...], FIRST]
    next: Next | None
    emitted: EmittedIds
    draft_ms: Amount | None
    verify_ms: Amount | None
    gamma: Count | None = None
    ended_by: EndedBy | None = None
    arrival_ms: Amount | None = None
    drafts_told: bool = True
    fed_again: Count | None = None
    target_forwards: Annotated[int, Field(ge=1, lt=MOST)] = 1

    @property
    def ids(self) -> list[int]:
        """What it emitted, of a round that no server has made: all have an id."""
        return [token_id for token_id in self.emitted if token_id is not None]

    @property
    def ms(self) -> float:
        """The time of the whole round."""
        if self.arrival_ms is not None:
            return self.arrival_ms
        return (self.draft_ms or 0.0) + (self.verify_ms or 0.0)


def kept_tokens(a_round: Round) -> Iterator[Judged | Next]:
    """The tokens that the round added, in order."""
    yield from (token for token in a_round.draft if token.fate == "accepted")
    if a_round.next:
        yield a_round.next


@dataclass(frozen=True, slots=True)
class Stats:
    """The numbers of a run so far, as trace.py adds them up. A quotient 0/0 is None.

    target_step_ms: the mean time of a plain round (nothing drafted), timed on this run's own text right after
    it; target_step_spread: their 10th and 90th percentile. speedup: target_step_ms * tokens / (draft_ms +
    verify_ms), how many times as fast as the target alone; speedup_interval: its 90% interval
    (events/speedup.py), which holds 1 for plain decoding. These four and cost_ratio are None while the run
    goes on, after one that was cancelled or failed, and after one of fewer than 24 tokens.
    drafter_step_ms: draft_ms / drafted; None of trees, whose tokens come several to a forward.
    distance: of a lossy rule, the mean over the text's tokens of the total variation distance between the
    target's distribution and the one that the token was drawn from. None of a lossless rule.

    Of a server's run the times of drafting and verifying are None; tokens_per_second is by arrival, from the
    first token on. drafted, rejected and what follows from them are None where the server does not tell how
    much it drafts.
    """

    tokens: Count = 0
    rounds: Count = 0
    drafted: Count | None = 0
    accepted: Count = 0
    rejected: Count | None = 0
    acceptance_rate: Amount | None = None
    mean_tokens_per_round: Amount | None = None
    target_forwards: Count = 0
    prefill_ms: Amount | None = 0.0
    draft_ms: Amount | None = 0.0
    verify_ms: Amount | None = 0.0
    ttft_ms: Amount | None = None
    tokens_per_second: Amount | None = None
    target_step_ms: Annotated[float, Field(gt=0, lt=MOST)] | None = None
    drafter_step_ms: Amount | None = None
    cost_ratio: Amount | None = None
    target_step_spread: Interval | None = None
    speedup: Amount | None = None
    speedup_interval: Interval | None = None
    distance: Amount | None = None
    arrival_ms: Amount | None = None

    @property
    def run_ms(self) -> float:
        """The time of all rounds together; of a server's run from the arrival of the first token on."""
        if self.arrival_ms is not None:
            return self.arrival_ms
        return (self.draft_ms or 0.0) + (self.verify_ms or 0.0)

    @property
    def timed_tokens(self) -> int:
        """The number of tokens that were made in run_ms: all but the first one of a server."""
        return self.tokens if self.arrival_ms is None else self.tokens - 1


N = TypeVar("N", int, float)


def total(a: N | None, b: N | None) -> N | None:
    """a + b, or None where either is unknown."""
    return None if a is None or b is None else a + b


def ratio(a: float | None, b: float | None) -> float | None:
    """a / b, or None where either is unknown or b is 0."""
    return a / b if a is not None and b else None


# What a mark does. "thinking" begins a thought, and "end" ends one. "header" begins words that name what
# follows, up to "body". "tool call" is shown, and tells nothing of thoughts.
MarkRole = Literal["thinking", "tool call", "header", "body", "end"]


@dataclass(frozen=True, slots=True)
class Mark:
    """A token by which a chat template parts what a model writes (events/thoughts.py)."""

    id: TokenId
    text: str
    role: MarkRole


@dataclass(frozen=True, slots=True)
class Started:
    """First event: everything that determines the run. `params` holds the seed that is really used. prompt:
    empty where token ids or messages were given. messages: those, if the prompt was a conversation. marks:
    those of the pair's chat template, if it has any."""

    pair: PairInfo
    versions: dict[str, str]
    params: Params
    prompt: str
    prompt_ids: TokenIds
    messages: tuple[ChatMessage, ...] | None = None
    marks: tuple[Mark, ...] = ()


Finish = Literal["eos", "stop", "length", "cancelled", "error"]  # why a run ended


@dataclass(frozen=True, slots=True)
class Finished:
    """Last event. `error` is what failed, and None unless finish is "error"."""

    finish: Finish
    error: str | None
    output_ids: EmittedIds
    text: str
    stats: Stats
