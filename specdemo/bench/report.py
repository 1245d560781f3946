"""A benchmark's result as text tables."""

from specdemo.bench.methods import COLUMNS, cells, number, size
from specdemo.bench.results import Bound, Differences, MethodsResult, NotRun, QuantizedRow, Result

NAME = 34  # columns of a contestant's name


def table(result: Result) -> str:
    """Everything but the quantised weights, which are measured later."""
    parts = [
        _head(result),
        _rows(result),
        _speculation(result),
        _roofline(result),
        _gammas(result) if result.gammas else "",
        _contexts(result) if result.contexts else "",
        "\n".join(f"note: {note}" for note in result.notes),
    ]
    return "\n\n".join(part for part in parts if part)


def _head(result: Result) -> str:
    head = (
        f"{result.pair} on {result.device} ({result.device_name}), {result.dtype}, "
        f"{result.threads} thread(s), gamma {result.gamma}, temperature {result.temperature:g}, "
        f"{result.prompts} prompts x {result.repeats}, {result.max_new_tokens} tokens each, {result.date}"
    )
    if result.attention is not None:
        head += f"\nattention on CUDA, for all contestants alike: {', '.join(result.attention)}; " + (
            "without --cudnn-attention cudnn is switched off"
            if "cudnn" in result.attention
            else "cudnn is switched off (--cudnn-attention switches it on)"
        )
    if shapes := result.shapes:
        head += (
            "\nrandom weights of these shapes: by construction the drafter is right after "
            f"{shapes.accept:.0%} of the tokens. The output matrix is not tied to the embedding; a forward "
            "reads as many bytes as if it were. No token comes twice within "
            f"{shapes.cycle:,}, so lookup finds nothing before that."
        )
    return head


def _rows(result: Result) -> str:
    lines = [
        f"{'':<{NAME}}{'ms/token':>10}{'10-90 %':>16}{'tokens/s':>10}{'x plain':>9}"
        f"{'x assisted':>12}   same text as plain"
    ]
    for row in result.rows:
        if isinstance(row, NotRun):
            lines.append(f"{row.name:<{NAME}}{'–':>10}   failed: {row.why_not}")
            continue
        lines.append(
            f"{row.name:<{NAME}}{row.ms_per_token:>10.2f}{_range(row.ms_per_token_10_90):>16}"
            f"{row.tokens_per_second:>10.1f}{row.x_plain:>9.2f}{number(row.x_assisted):>12}"
            f"   {row.equal_to_plain or '–'}"
        )
    return "\n".join(lines)


def _speculation(result: Result) -> str:
    lines = [
        f"acceptance rate {number(result.acceptance_rate, 3)}, "
        f"{number(result.mean_tokens_per_round)} tokens per round"
    ]
    if idle := result.host_ms:
        lines.append(
            f"the device waits {idle.between:.3f} ms for the host between rounds, "
            f"{idle.all:.3f} ms per round in total (while profiled)"
        )
    if result.expected_x_plain is not None:
        lines.append(
            f"cost ratio {result.cost_ratio:.3f}: for that the theory expects {result.expected_x_plain:.2f} "
            "x specdemo plain (if verifying takes no longer than one step)"
        )
    if (differing := result.differing_argmaxes) is not None:
        lines.append(_differing(result, differing))
    return "\n".join(lines)


def _differing(result: Result, differing: Differences) -> str:
    line = f"differing argmaxes: with drafts {differing.prompts} of {result.prompts} texts differ from plain"
    if differing.prompts:
        line += f", first at token {', '.join(str(at) for at in differing.first_at if at is not None)}"
        if result.dtype == "float32":
            line += "; in float32 there must be none: this is a bug"
    return line


def _roofline(result: Result) -> str:
    line = result.roofline
    target = size(line.target_bytes)
    drafts = f" + {result.gamma} x {size(line.drafter_bytes)}" if line.drafter_bytes else ""
    return "\n".join(
        [
            f"roofline: memory is copied at {line.bandwidth / 1e9:,.1f} GB/s, read and written "
            "(weights only, not keys and values; weights that fit the processor's cache can be read faster)",
            f"  a round reads {target}{drafts}: at least {_bound(line.round)}",
            f"  a plain step reads {target}: at least {_bound(line.plain)}",
        ]
    )


def _bound(bound: Bound) -> str:
    measured = "not measured"
    if bound.round_ms:
        measured = f"measured {bound.round_ms:.2f} ms, {bound.reached:.1%} of it reached"
    return f"{bound.shortest_round_ms:.2f} ms, {measured}"


def _gammas(result: Result) -> str:
    lines = [
        f"{'gamma':>6}{'ms/token':>10}{'tokens/s':>10}{'acceptance':>12}{'tokens/round':>14}{'c':>8}"
        f"{'x specdemo plain':>18}{'expected':>10}"
    ]
    for row in result.gammas:
        lines.append(
            f"{row.gamma:>6}{row.ms_per_token:>10.2f}{row.tokens_per_second:>10.1f}"
            f"{number(row.acceptance_rate, 3):>12}{number(row.mean_tokens_per_round):>14}"
            f"{number(row.cost_ratio, 3):>8}{row.x_plain:>18.2f}"
            f"{number(row.expected_x_plain):>10}"
        )
    return "\n".join(lines)


def _contexts(result: Result) -> str:
    lines = [
        "by the engine's clock, without prefill:",
        f"{'':>8}{'':>11}{'plain':>19}{'speculative':>23}",
        f"{'context':>8}{'prefill ms':>11}{'ms/round':>10}{'ms/token':>10}{'ms/round':>12}{'ms/token':>10}"
        f"{'x specdemo plain':>18}{'expected':>10}",
    ]
    for row in result.contexts:
        lines.append(
            f"{row.context:>8,}{row.prefill_ms:>11.1f}{number(row.plain.round_ms):>10}"
            f"{row.plain.ms_per_token:>10.2f}{number(row.speculative.round_ms):>12}"
            f"{row.speculative.ms_per_token:>10.2f}{row.x_plain:>18.2f}"
            f"{number(row.expected_x_plain):>10}"
        )
    return "\n".join(lines)


def quantized_table(rows: list[QuantizedRow]) -> str:
    """x none: how many times as fast as unquantised weights, if these were measured."""
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
            f"{row.quantize:<10}{plain.ms_per_token:>16.2f}{number(x_plain):>8}"
            f"{drafted.ms_per_token:>22.2f}{_range(drafted.ms_per_token_10_90):>16}{number(x_drafted):>8}"
            f"{number(row.acceptance_rate, 3):>12}{row.bytes_held / 1e6:>10,.1f}"
        )
        lines += [f"{'':<10}{note}" for note in row.notes]
    lines.append("quantised weights are unpacked for every product: faster only if reading them takes longer")
    return "\n".join(lines)


def methods_table(result: MethodsResult) -> str:
    """A line for each drafter, fastest first, then the notes and who wins."""
    head = (
        f"{result.target} on {result.device} ({result.device_name}), {result.dtype}, "
        f"temperature {result.temperature:g}, {len(result.prompts)} prompts x {result.repeats}, "
        f"at most {result.max_new_tokens} tokens each, {result.date}; by the engine's clock, without prefill"
    )
    lines = [tuple(COLUMNS), *(tuple(cells(row).values()) for row in result.rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    table = "\n".join(
        "  ".join([name.ljust(widths[0]), *map(str.rjust, texts, widths[1:])]) for name, *texts in lines
    )
    notes = "\n".join(f"note: {note}" for note in result.notes)
    return "\n\n".join(part for part in (head, table, notes, result.winner) if part)


def _range(ends: tuple[float, float]) -> str:
    return f"{ends[0]:.2f}-{ends[1]:.2f}"
