"""A benchmark's result as text tables."""

from specdemo.bench.methods import rounded
from specdemo.bench.results import QuantizedRow, Result

NAME_WIDTH = 37  # columns of a contestant's name


def result_table(result: Result) -> str:
    """Everything but the quantised weights, which are measured later."""
    parts = [
        _head(result),
        _rows(result),
        _ratios(result),
        _speculation(result),
        "\n".join(f"note: {note}" for note in result.notes),
    ]
    return "\n\n".join(part for part in parts if part)


def _head(result: Result) -> str:
    head = (
        f"{result.pair} on {result.device} ({result.device_name}), {result.dtype}, "
        f"{result.threads} thread(s) (torch's own choice: {result.own_threads}), "
        f"gamma {result.gamma}, temperature {result.temperature:g}, "
        f"{result.prompts} prompts{_length(result.prompt_tokens)} x {result.repeats}, "
        f"{result.max_new_tokens} tokens each, {result.date}"
    )
    if result.attention is not None:
        head += f"\nattention on CUDA, for all contestants alike: {', '.join(result.attention)}; " + (
            "without --cudnn-attention cudnn is switched off"
            if "cudnn" in result.attention
            else "cudnn is switched off (--cudnn-attention switches it on)"
        )
    return head


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
            f"{rounded(row.x_assisted):>12}   {same}"
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
    rate, tokens = rounded(result.acceptance_rate, 3), rounded(result.mean_tokens_per_round)
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


def quantized_table(rows: list[QuantizedRow]) -> str:
    """The table of quantised weights. x none: how many times as fast as unquantised weights, if these were
    measured."""
    lines = [
        f"{'weights':<10}{'plain ms/token':>16}{'x none':>8}{'speculative ms/token':>22}{'10-90 %':>16}"
        f"{'x none':>8}{'acceptance':>12}{'MB held':>10}"
    ]
    none = next((row for row in rows if row.quantize == "none"), None)
    for row in rows:
        plain, drafted = row.plain, row.speculative
        x_plain = none.plain.ms_per_token / plain.ms_per_token if none else None
        x_drafted = none.speculative.ms_per_token / drafted.ms_per_token if none else None
        lines.append(
            f"{row.quantize:<10}{plain.ms_per_token:>16.2f}{rounded(x_plain):>8}"
            f"{drafted.ms_per_token:>22.2f}{_range(drafted.ms_per_token_10_90):>16}{rounded(x_drafted):>8}"
            f"{rounded(row.acceptance_rate, 3):>12}{row.bytes_held / 1e6:>10,.1f}"
        )
        lines += [f"{'':<10}{note}" for note in row.notes]
    lines.append("quantised weights are unpacked for every product: faster only if reading them takes longer")
    return "\n".join(lines)


def _range(ends: tuple[float, float]) -> str:
    return f"{ends[0]:.2f}-{ends[1]:.2f}"
