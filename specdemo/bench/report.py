"""A benchmark's result as tables for people."""

NAME = 34  # columns that a contestant's name takes


def table(result: dict) -> str:
    """All but the quantised variants, which are loaded afterwards."""
    parts = [
        _head(result),
        _rows(result),
        _speculation(result),
        _roofline(result),
        _gammas(result) if result["gammas"] else "",
        _contexts(result) if result["contexts"] else "",
        "\n".join(f"note: {note}" for note in result["notes"]),
    ]
    return "\n\n".join(part for part in parts if part)


def _head(result: dict) -> str:
    lines = [
        f"{result['pair']} on {result['device']} ({result['device_name']}), {result['dtype']}, {result['threads']} thread(s), "
        f"gamma {result['gamma']}, temperature {result['temperature']:g}, "
        f"{result['prompts']} prompts x {result['repeats']}, {result['max_new_tokens']} tokens each, {result['date']}"
    ]
    if shapes := result.get("shapes"):
        lines.append(
            f"random weights of these shapes: the drafter is right behind {shapes['accept']:.0%} of the tokens by construction. The output "
            "matrix is not tied to the embedding, and a forward reads as many bytes as if it were. No token comes twice within "
            f"{shapes['cycle']:,}, so lookup finds nothing before that."
        )
    return "\n".join(lines)


def _rows(result: dict) -> str:
    lines = [
        f"{'':<{NAME}}{'ms/token':>10}{'10-90 %':>16}{'tokens/s':>10}{'x plain':>9}{'x assisted':>12}   same text as plain"
    ]
    for row in result["rows"]:
        if row["ms_per_token"] is None:
            lines.append(f"{row['name']:<{NAME}}{'–':>10}   did not run: {row['why_not']}")
            continue
        lines.append(
            f"{row['name']:<{NAME}}{row['ms_per_token']:>10.2f}{_range(row['ms_per_token_10_90']):>16}{row['tokens_per_second']:>10.1f}"
            f"{row['x_plain']:>9.2f}{_number(row['x_assisted']):>12}   {row['equal_to_plain'] or '–'}"
        )
    return "\n".join(lines)


def _speculation(result: dict) -> str:
    share = (
        f", the engine's own share of a round {result['engine_share']:.1%}"
        if result["engine_share"] is not None
        else ""
    )
    lines = [
        f"acceptance rate {_number(result['acceptance_rate'], 3)}, {_number(result['mean_tokens_per_round'])} tokens a round{share}"
    ]
    if host := result["host_ms"]:
        lines.append(
            f"the device waits {host['between']:.3f} ms for the host between rounds, {host['all']:.3f} ms a round in all (while profiled)"
        )
    if result["expected_x_plain"] is not None:
        lines.append(
            f"cost ratio {result['cost_ratio']:.3f}: with that, the theory allows {result['expected_x_plain']:.2f} x specdemo plain "
            "(verifying as fast as one step)"
        )
    if (differing := result["differing_argmaxes"]) is not None:
        lines.append(
            f"differing argmaxes: with drafts {_parted(differing, result)} plain{_first(differing, result)}"
        )
    if (differing := result["differing_unrecorded"]) is not None:
        lines.append(
            f"differing argmaxes: recorded {_parted(differing, result)} unrecorded{_first(differing, result)}"
        )
    return "\n".join(lines)


def _parted(differing: dict, result: dict) -> str:
    return f"{differing['prompts']} of {result['prompts']} texts part from"


def _first(differing: dict, result: dict) -> str:
    places = ", ".join(str(place) for place in differing["first_at"] if place is not None)
    fault = "; in float32 there must be none: this is a fault" if result["dtype"] == "float32" else ""
    return f", first at token {places}{fault}" if places else ""


def _roofline(result: dict) -> str:
    line = result["roofline"]
    plain, sizes = line["plain"], line["bytes"]
    drafter = f" + {result['gamma']} x {_size(sizes['drafter'])}" if sizes["drafter"] else ""
    return "\n".join(
        [
            f"roofline: memory is copied at {line['bandwidth'] / 1e9:,.1f} GB/s, read and written (weights only; keys and values "
            "are not counted, and weights that fit the processor's own cache can be read faster)",
            f"  a round reads {_size(sizes['target'])}{drafter}: at least {line['shortest_round_ms']:.2f} ms, {_reached(line)}",
            f"  a plain step reads {_size(sizes['target'])}: at least {plain['shortest_round_ms']:.2f} ms, {_reached(plain)}",
        ]
    )


def _reached(line: dict) -> str:
    return (
        f"measured {line['round_ms']:.2f} ms, {line['reached']:.1%} of it reached"
        if line["round_ms"]
        else "not measured"
    )


def _gammas(result: dict) -> str:
    lines = [
        f"{'gamma':>6}{'ms/token':>10}{'tokens/s':>10}{'acceptance':>12}{'tokens/round':>14}{'c':>8}{'x own plain':>13}{'formula':>9}"
    ]
    for row in result["gammas"]:
        lines.append(
            f"{row['gamma']:>6}{row['ms_per_token']:>10.2f}{row['tokens_per_second']:>10.1f}{_number(row['acceptance_rate'], 3):>12}"
            f"{_number(row['mean_tokens_per_round']):>14}{_number(row['cost_ratio'], 3):>8}{row['x_plain']:>13.2f}"
            f"{_number(row['expected_x_plain']):>9}"
        )
    return "\n".join(lines)


def _contexts(result: dict) -> str:
    lines = [
        "by the engine's clock, without the prefill:",
        f"{'':>8}{'':>11}{'plain':>19}{'speculative':>23}",
        f"{'context':>8}{'prefill ms':>11}{'ms/round':>10}{'ms/token':>10}{'ms/round':>12}{'ms/token':>10}"
        f"{'x own plain':>13}{'formula':>9}",
    ]
    for row in result["contexts"]:
        plain, own = row["plain"], row["speculative"]
        lines.append(
            f"{row['context']:>8,}{row['prefill_ms']:>11.1f}{_number(plain['round_ms']):>10}{plain['ms_per_token']:>10.2f}"
            f"{_number(own['round_ms']):>12}{own['ms_per_token']:>10.2f}{row['x_plain']:>13.2f}{_number(row['expected_x_plain']):>9}"
        )
    return "\n".join(lines)


def quantized_table(rows: list[dict]) -> str:
    """One row for each kind of weights."""
    lines = [
        f"{'weights':<10}{'plain ms/token':>16}{'x none':>8}{'speculative ms/token':>22}{'10-90 %':>16}{'x none':>8}"
        f"{'acceptance':>12}{'MB held':>10}"
    ]
    for row in rows:
        x = row["x_none"] or {"plain_ms_per_token": None, "ms_per_token": None}
        lines.append(
            f"{row['quantize']:<10}{row['plain_ms_per_token']:>16.2f}{_number(x['plain_ms_per_token']):>8}{row['ms_per_token']:>22.2f}"
            f"{_range(row['ms_per_token_10_90']):>16}{_number(x['ms_per_token']):>8}{_number(row['acceptance_rate'], 3):>12}"
            f"{row['bytes_held'] / 1e6:>10,.1f}"
        )
        lines += [f"{'':<10}{note}" for note in row["notes"]]
    lines.append(
        "quantised weights are unpacked for every product, which pays only where reading them takes longer"
    )
    return "\n".join(lines)


def _number(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _range(ends: list[float]) -> str:
    return f"{ends[0]:.2f}-{ends[1]:.2f}"


def _size(bytes: int) -> str:
    return f"{bytes / 1e9:,.2f} GB" if bytes >= 1e9 else f"{bytes / 1e6:,.1f} MB"
