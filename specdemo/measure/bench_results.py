"""What a benchmark measured, as plain values. `asdict` of a Result is the JSON that is printed last."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Drafting:
    """What drafting achieved, and the speed-up over plain decoding that the formula expects from it."""

    acceptance_rate: float | None
    mean_tokens_per_round: float | None
    cost_ratio: float | None
    expected_x_plain: float | None


@dataclass(frozen=True, kw_only=True)
class Row:
    """One contestant: the speed of whole generations, by the wall clock if nothing else is said. x: how many
    times as fast as another one."""

    ms_per_token: float  # median
    ms_per_token_10_90: tuple[float, float]  # 10th and 90th percentile
    tokens_per_second: float
    tokens_per_processor_second: float  # of all threads
    name: str
    x_plain: float  # transformers plain
    x_assisted: float | None  # transformers assisted
    equal_to_plain: str | None  # how many texts equal those of transformers plain: "5 of 6"; greedy only
    differs_at: int | None  # the first token that differs in any of them


@dataclass(frozen=True)
class Ratio:
    """How many times as fast one contestant is as another, by medians."""

    name: str
    other: str
    wall: float
    processor: float


@dataclass(frozen=True)
class Differences:
    """How many of two contestants' greedy texts differ, and by text at which token (None: nowhere)."""

    prompts: int
    first_at: list[int | None]


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
    rows: list[Row]
    ratios: list[Ratio]
    differing_argmaxes: Differences | None  # of the engine with drafts and plain; greedy only
    notes: list[str]
    prompt_tokens: int | None  # in each prompt; None: as many as it has
