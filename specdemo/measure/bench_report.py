"""A benchmark's result as text tables."""

from specdemo.measure.bench_results import Result
from specdemo.measure.table import shown

NAME_WIDTH = 37  # columns of a contestant's name


def result_table(result: Result) -> str:
    parts = [
        _head(result),
        _rows(result),
        _ratios(result),
        _speculation(result),
        "\n".join(f"note: {note}" for note in result.notes),
    ]
    return "\n\n".join(part for part in parts if part)


def _head(result: Result) -> str:
    return (
        f"{result.pair} on {result.device} ({result.device_name}), {result.dtype}, "
        f"{result.threads} thread(s), "
        f"gamma {result.gamma}, temperature {result.temperature:g}, "
        f"{result.prompts} prompts{_length(result.prompt_tokens)} x {result.repeats}, "
        f"{result.max_new_tokens} tokens each, {result.date}"
    )


def _length(tokens: int | None) -> str:
    return "" if tokens is None else f" of {tokens:,} tokens"


def _rows(result: Result) -> str:
    lines = [
        f"{'':<{NAME_WIDTH}}{'ms/token':>10}{'10-90 %':>16}{'tokens/s':>10}{'tokens/CPU-s':>14}"
        f"{'x plain':>9}{'x assisted':>12}   same text as plain"
    ]
    for row in result.rows:
        same = row.equal_to_plain or f"– (temperature {result.temperature:g})"
        lines.append(
            f"{row.name:<{NAME_WIDTH}}{row.ms_per_token:>10.2f}{_range(row.ms_per_token_10_90):>16}"
            f"{row.tokens_per_second:>10.1f}{row.tokens_per_processor_second:>14.1f}{row.x_plain:>9.2f}"
            f"{shown(row.x_assisted):>12}   {same}"
            + ("" if row.differs_at is None else f", differing from token {row.differs_at} on")
        )
    return "\n".join(lines)


def _ratios(result: Result) -> str:
    """The ratios, and who is fastest."""
    by_wall = max(result.rows, key=lambda row: row.tokens_per_second).name
    by_processor = max(result.rows, key=lambda row: row.tokens_per_processor_second).name
    lines = [f"fastest by wall time: {by_wall}; by processor time: {by_processor}"]
    lines += [f"{'times as fast, by medians':<{2 * NAME_WIDTH}}{'wall time':>10}{'processor time':>16}"]
    for one in result.ratios:
        names = f"{one.name} / {one.other}"
        lines.append(f"{names:<{2 * NAME_WIDTH}}{one.wall:>10.2f}{one.processor:>16.2f}")
    return "\n".join(lines)


def _speculation(result: Result) -> str:
    rate, tokens = shown(result.acceptance_rate, ".3f"), shown(result.mean_tokens_per_round)
    lines = [f"acceptance rate {rate}, {tokens} tokens per round"]
    if result.expected_x_plain is not None:
        lines.append(
            f"cost ratio {result.cost_ratio:.3f}: for that the theory expects {result.expected_x_plain:.2f} "
            "x specdemo plain (if verifying takes no longer than one step)"
        )
    if (differing := result.differing_argmaxes) is not None:
        count = f"{differing.prompts} of {result.prompts}"
        line = f"differing argmaxes: with drafts {count} texts differ from plain"
        if differing.prompts:
            line += f", first at token {', '.join(str(at) for at in differing.first_at if at is not None)}"
            line += "; in float32 there must be none: this is a bug" if result.dtype == "float32" else ""
        lines.append(line)
    return "\n".join(lines)


def _range(ends: tuple[float, float]) -> str:
    return f"{ends[0]:.2f}-{ends[1]:.2f}"
