"""What a benchmark measured, as plain values. `asdict` of a Result is the JSON that is printed last."""

from dataclasses import dataclass, field

from specdemo.events import Gamma


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Of whole generations, by the wall clock."""

    ms_per_token: float  # median
    ms_per_token_10_90: tuple[float, float]  # 10th and 90th percentile
    tokens_per_second: float


@dataclass(frozen=True, kw_only=True)
class Drafting:
    """What drafting achieved, and the speed-up over plain decoding that the formula expects from it."""

    acceptance_rate: float | None
    mean_tokens_per_round: float | None
    cost_ratio: float | None
    expected_x_plain: float | None


@dataclass(frozen=True, kw_only=True)
class Row(Speed):
    """One contestant; x: how many times as fast as another one."""

    name: str
    x_plain: float  # transformers plain
    x_assisted: float | None  # transformers assisted
    equal_to_plain: str | None  # how many texts equal those of transformers plain: "5 of 6"; greedy only


@dataclass(frozen=True)
class NotRun:
    """A contestant that cannot run on this machine."""

    name: str
    why_not: str
    ms_per_token: None = None


@dataclass(frozen=True)
class Differences:
    """How many of two contestants' greedy texts differ, and by text at which token (None: nowhere)."""

    prompts: int
    first_at: list[int | None]


@dataclass(frozen=True)
class Bound:
    """The shortest possible time of a round at the memory's bandwidth, and the measured median."""

    shortest_round_ms: float
    round_ms: float | None
    reached: float | None  # shortest / measured


@dataclass(frozen=True)
class Roofline:
    bandwidth: float  # bytes read and written per second
    target_bytes: int  # of weights that one forward reads
    drafter_bytes: int
    round: Bound
    plain: Bound  # of plain decoding, whose rounds read only the target


@dataclass(frozen=True)
class DeviceIdle:
    """Milliseconds per round in which the device has nothing to do, medians."""

    between: float  # between rounds
    all: float  # between and within rounds


@dataclass(frozen=True, kw_only=True)
class GammaRow(Speed, Drafting):
    gamma: int
    x_plain: float  # how many times as fast as specdemo plain


@dataclass(frozen=True)
class EngineTimes:
    """Medians by the engine's clock, without prefill."""

    round_ms: float | None
    ms_per_token: float


@dataclass(frozen=True, kw_only=True)
class ContextRow(Drafting):
    context: int  # tokens of prompt
    prefill_ms: float
    plain: EngineTimes
    speculative: EngineTimes
    x_plain: float  # how many times as fast as specdemo plain


@dataclass(frozen=True)
class QuantizedRow:
    quantize: str  # the kind of weights; "none": unquantised
    plain: Speed
    speculative: Speed
    acceptance_rate: float | None
    bytes_held: int
    notes: list[str]


@dataclass(frozen=True)
class ShapesInfo:
    """Which random weights were measured."""

    name: str
    accept: float
    cycle: int  # tokens until the text repeats


@dataclass(frozen=True, kw_only=True)
class Result(Drafting):
    pair: str
    device: str
    device_name: str
    dtype: str | None
    date: str
    threads: int
    gamma: int
    temperature: float
    top_p: float
    max_new_tokens: int
    prompts: int
    repeats: int
    attention: list[str] | None  # torch's backends that all contestants could use; None on a CPU
    rows: list[Row | NotRun]
    differing_argmaxes: Differences | None  # of the engine with drafts and plain; greedy only
    roofline: Roofline
    host_ms: DeviceIdle | None  # CUDA only
    notes: list[str]
    gammas: list[GammaRow] = field(default_factory=list)
    contexts: list[ContextRow] = field(default_factory=list)
    quantized: list[QuantizedRow] = field(default_factory=list)
    shapes: ShapesInfo | None = None


@dataclass(frozen=True, kw_only=True)
class MethodRow:
    """One drafter over all prompts. Times are by the engine's clock, without prefill; of a server by the
    arrival of its tokens, from the first one on, and without the parts of a round, which it does not tell.
    tokens/s and speed-up are of medians, what is given per round is a mean."""

    name: str
    draft_with: str
    gamma: Gamma | None  # None for "none"
    drafted_per_round: float | None  # None where a server does not tell it
    accepted_per_round: float
    tokens_per_round: float
    acceptance_rate: float | None
    draft_ms_per_round: float | None
    verify_ms_per_round: float | None
    tokens_per_second: float
    speedup: float | None  # how many times as fast as the target alone; None if that was not measured
    speedup_interval: tuple[float, float] | None  # of 90%; None for too few samples, and for "none"
    drafter_bytes: int | None  # of the drafter model's weights; None if there is none in use
    texts_equal: str | None  # how many texts equal those of the target alone: "5 of 6"; greedy only
    samples: int


@dataclass(frozen=True, kw_only=True)
class MethodsResult:
    """The drafters of one target, fastest first, and how they were measured."""

    target: str
    device: str
    device_name: str
    dtype: str | None
    date: str
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    rule: str
    lenience: float  # of rule "lenient"
    confidence: float
    exit_layer: int  # of early exit; 0: as Params has it
    seed: int | None  # None: another one for each run
    max_new_tokens: int
    prompts: list[str]
    repeats: int
    rows: list[MethodRow]
    winner: str  # a sentence on who wins and why
    notes: list[str]  # what a user should know of the pairs
