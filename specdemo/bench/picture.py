"""A benchmark's result as a picture. The only module that needs matplotlib, and only when it draws."""

from textwrap import shorten
from typing import TYPE_CHECKING

from specdemo.bench.results import NotRun, Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OURS, OTHERS, EXPECTED = "#1f6f43", "#8a8f98", "#b3412f"


def draw(result: Result) -> "Figure":
    """Bars of tokens/s by contestant, and a panel for each sweep with the formula's line."""
    from matplotlib.figure import Figure

    drawers = ((result.gammas, _gammas), (result.contexts, _contexts), (result.quantized, _quantized))
    sweeps = [draw_panel for rows, draw_panel in drawers if rows]
    grid = [[_contestants]] + [sweeps[i : i + 2] for i in range(0, len(sweeps), 2)]
    heights = [1.6 + 0.42 * len(result.rows)] + [3.6] * (len(grid) - 1)
    size = (10 if len(sweeps) > 1 else 8, sum(heights))
    figure = Figure(figsize=size, layout="constrained", dpi=150, facecolor="white")
    # A subfigure for each row, so that the contestants' long names don't narrow the panels below.
    parts = figure.subfigures(len(grid), height_ratios=heights, squeeze=False)[:, 0]
    for part, panels in zip(parts, grid, strict=True):
        for axes, draw_panel in zip(part.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            axes.spines[["top", "right"]].set_visible(False)
            draw_panel(axes, result)
    name, device = (shorten(text, 65, placeholder=" …") for text in (result.pair, result.device_name))
    about = f"{result.device} ({device}), {result.dtype}, gamma {result.gamma}, {result.date}"
    figure.suptitle(f"{name}\n{about}", fontsize=10)
    return figure


def _contestants(axes: "Axes", result: Result) -> None:
    fastest = 0.0
    for y, row in enumerate(result.rows):
        if isinstance(row, NotRun):
            text = f"  failed: {shorten(row.why_not, 60, placeholder=' …')}"
            axes.text(0, y, text, va="center", fontsize=8, color=EXPECTED)
            continue
        speed = row.tokens_per_second
        high, low = (1000 / ms for ms in row.ms_per_token_10_90)
        fastest = max(fastest, high)
        axes.barh(
            y,
            speed,
            color=OURS if row.name.startswith("specdemo") else OTHERS,
            xerr=[[max(0, speed - low)], [max(0, high - speed)]],
            error_kw={"capsize": 3, "elinewidth": 1},
        )
        label = f"{speed:,.1f}  ({row.x_plain:.2f} x)"
        axes.annotate(
            label, (max(speed, high), y), (6, 0), textcoords="offset points", va="center", fontsize=8
        )
    axes.set_yticks(range(len(result.rows)), [row.name for row in result.rows])
    axes.set_ylim(len(result.rows) - 0.5, -0.5)  # the first row at the top
    axes.set_xlim(0, 1.3 * fastest)  # leaves room for the labels
    axes.set_xlabel("tokens/s: medians, 10th to 90th percentiles (and x transformers plain)", fontsize=9)


def _gammas(axes: "Axes", result: Result) -> None:
    gammas = [row.gamma for row in result.gammas]
    expected = [_or_nan(row.expected_x_plain) for row in result.gammas]
    axes.plot(gammas, [row.x_plain for row in result.gammas], "o-", color=OURS, label="measured")
    axes.plot(gammas, expected, "s--", color=EXPECTED, label="expected")
    axes.axhline(1, color=OTHERS, linewidth=1, linestyle=":")
    axes.set(xlabel="gamma", ylabel="x specdemo plain", xticks=gammas)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)


def _contexts(axes: "Axes", result: Result) -> None:
    lengths = [row.context for row in result.contexts]
    plain = [row.plain.ms_per_token for row in result.contexts]
    speculative = [row.speculative.ms_per_token for row in result.contexts]
    expected = [row.plain.ms_per_token / _or_nan(row.expected_x_plain) for row in result.contexts]
    axes.plot(lengths, plain, "o-", color=OTHERS, label="plain")
    axes.plot(lengths, speculative, "o-", color=OURS, label="speculative")
    axes.plot(lengths, expected, "s--", color=EXPECTED, label="expected")
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axes.minorticks_off()
    axes.set(xlabel="tokens of prompt", ylabel="ms/token, without prefill")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)


def _quantized(axes: "Axes", result: Result) -> None:
    rows = result.quantized
    plain = [row.plain.ms_per_token for row in rows]
    speculative = [row.speculative.ms_per_token for row in rows]
    for offset, heights, colour, label in (
        (-0.2, plain, OTHERS, "plain"),
        (0.2, speculative, OURS, "speculative"),
    ):
        bars = axes.bar([i + offset for i in range(len(rows))], heights, 0.38, color=colour, label=label)
        axes.bar_label(bars, fmt="%.2f", fontsize=8)
    axes.set_xticks(range(len(rows)), [f"{row.quantize}\n{row.bytes_held / 1e6:,.0f} MB" for row in rows])
    axes.set_ylabel("ms/token")
    axes.margins(y=0.25)
    axes.legend(frameon=False, ncols=2, loc="upper left")


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value
