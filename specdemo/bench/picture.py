"""A benchmark's result as a picture. The only module that needs matplotlib, and only when it draws."""

from textwrap import shorten

OURS, OTHERS, FORMULA = "#1f6f43", "#8a8f98", "#b3412f"


def draw(result: dict):
    """A matplotlib Figure: bars of tokens/s by contestant, and a panel for each sweep with the formula's line beside it."""
    from matplotlib.figure import Figure

    sweeps = [
        panel
        for key, panel in (("gammas", _gammas), ("contexts", _contexts), ("quantized", _quantized))
        if result.get(key)
    ]
    rows = [[_contestants]] + [sweeps[i : i + 2] for i in range(0, len(sweeps), 2)]
    heights = [1.6 + 0.42 * len(result["rows"])] + [3.6] * (len(rows) - 1)
    figure = Figure(
        figsize=(10 if len(sweeps) > 1 else 8, sum(heights)), layout="constrained", dpi=150, facecolor="white"
    )
    # A figure of its own for each row: the contestants' long names are not to narrow what stands below.
    for part, panels in zip(
        figure.subfigures(len(rows), height_ratios=heights, squeeze=False)[:, 0], rows, strict=True
    ):
        for axes, panel in zip(part.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            axes.spines[["top", "right"]].set_visible(False)
            panel(axes, result)
    name = shorten(result["pair"], 70, placeholder=" …")
    device = shorten(result["device_name"], 60, placeholder=" …")
    figure.suptitle(
        f"{name}\n{result['device']} ({device}), {result['dtype']}, gamma {result['gamma']}, {result['date']}",
        fontsize=10,
    )
    return figure


def _contestants(axes, result: dict) -> None:
    rows = result["rows"]
    for place, row in enumerate(rows):
        if row["ms_per_token"] is None:
            axes.text(
                0,
                place,
                f"  did not run: {shorten(row['why_not'], 60, placeholder=' …')}",
                va="center",
                fontsize=8,
                color=FORMULA,
            )
            continue
        speed, slow, fast = (
            row["tokens_per_second"],
            *(1000 / ms for ms in reversed(row["ms_per_token_10_90"])),
        )
        colour = OURS if row["name"].startswith("specdemo") else OTHERS
        axes.barh(
            place,
            speed,
            color=colour,
            xerr=[[max(0, speed - slow)], [max(0, fast - speed)]],
            error_kw={"capsize": 3, "elinewidth": 1},
        )
        axes.annotate(
            f"{speed:,.1f}  ({row['x_plain']:.2f} x)",
            (max(speed, fast), place),
            (6, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    axes.set_yticks(range(len(rows)), [row["name"] for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)  # the first row on top
    fastest = max(1000 / row["ms_per_token_10_90"][0] for row in rows if row["ms_per_token"] is not None)
    axes.set_xlim(0, 1.3 * fastest)  # room for the numbers behind the bars
    axes.set_xlabel(
        "tokens/s: medians and 10th to 90th percentiles; in brackets x transformers plain", fontsize=9
    )


def _gammas(axes, result: dict) -> None:
    rows = result["gammas"]
    gammas = [row["gamma"] for row in rows]
    axes.plot(gammas, [row["x_plain"] for row in rows], "o-", color=OURS, label="measured")
    axes.plot(
        gammas, [_or_gap(row["expected_x_plain"]) for row in rows], "s--", color=FORMULA, label="formula"
    )
    axes.axhline(1, color=OTHERS, linewidth=1, linestyle=":")
    axes.set(xlabel="gamma", ylabel="x specdemo plain", xticks=gammas)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)


def _contexts(axes, result: dict) -> None:
    rows = result["contexts"]
    lengths, plain = [row["context"] for row in rows], [row["plain"]["ms_per_token"] for row in rows]
    axes.plot(lengths, plain, "o-", color=OTHERS, label="plain")
    axes.plot(
        lengths, [row["speculative"]["ms_per_token"] for row in rows], "o-", color=OURS, label="speculative"
    )
    expected = [_or_gap(row["expected_x_plain"]) for row in rows]
    axes.plot(
        lengths,
        [ms / x for ms, x in zip(plain, expected, strict=True)],
        "s--",
        color=FORMULA,
        label="formula",
    )
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axes.minorticks_off()
    axes.set(xlabel="tokens of prompt", ylabel="ms/token, without prefill")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)


def _quantized(axes, result: dict) -> None:
    rows = result["quantized"]
    for offset, key, colour, label in (
        (-0.2, "plain_ms_per_token", OTHERS, "plain"),
        (0.2, "ms_per_token", OURS, "speculative"),
    ):
        bars = axes.bar(
            [i + offset for i in range(len(rows))],
            [row[key] for row in rows],
            0.38,
            color=colour,
            label=label,
        )
        axes.bar_label(bars, fmt="%.2f", fontsize=8)
    axes.set_xticks(
        range(len(rows)), [f"{row['quantize']}\n{row['bytes_held'] / 1e6:,.0f} MB" for row in rows]
    )
    axes.set_ylabel("ms/token")
    axes.margins(y=0.25)
    axes.legend(frameon=False, ncols=2, loc="upper left")


def _or_gap(value: float | None) -> float:
    return float("nan") if value is None else value
