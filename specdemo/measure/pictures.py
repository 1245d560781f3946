"""The report's pictures: SVG in the text's colour on no ground, for any page and for paper. Lengths are in
px."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import log2

from specdemo.words.catalogue import number

WIDTH, ROW, LINE, PLOT = 440, 40, 17, 170
LEFT = 42  # of a curve's axis
STYLE = "font:13px system-ui,sans-serif;max-width:100%;height:auto"
DASHES = ("", "7 3", "2 3", "10 3 2 3")  # of curves, in turn


@dataclass(frozen=True)
class Interval:
    """A row of `intervals`. told: its value, in words."""

    label: str
    told: str
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Curve:
    """A curve of `curves`: points (x, y), by x."""

    label: str
    points: Sequence[tuple[float, float]]


def svg(title: str, height: float, parts: Sequence[str]) -> str:
    head = f'viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" height="{height:.0f}" style="{STYLE}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {head} fill="currentColor" role="img" '
        f'aria-label="{escape(title)}">{"".join(parts)}</svg>'
    )


def text(x: float, y: float, words: str, anchor: str = "start", size: int = 13) -> str:
    style = f'text-anchor="{anchor}" font-size="{size}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, width: float, more: str = "") -> str:
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="currentColor" stroke-width="{width}" {more}/>'


def intervals(title: str, rows: Sequence[Interval]) -> str:
    """Values of factors with their intervals on one logarithmic axis, and a mark at 1."""
    ends = [1.0, *(end for row in rows for end in (row.low, row.high))]
    low, high = log2(min(ends)), log2(max(ends))

    def x(factor: float) -> float:
        return 6 + (WIDTH - 12) * (log2(factor) - low) / (high - low or 1.0)

    parts = []
    for index, row in enumerate(rows):
        y = ROW * index + LINE
        parts.append(text(0, y, row.label))
        parts.append(text(WIDTH, y, row.told, anchor="end"))
        parts.append(line(x(1), y + 4, x(1), y + 17, 1.5))
        parts.append(line(x(row.low), y + 10, x(row.high), y + 10, 3, 'opacity="0.5"'))
        parts.append(f'<circle cx="{x(row.value):.1f}" cy="{y + 10}" r="4.5"/>')
    floor = ROW * len(rows)
    anchor = "start" if x(1) < 20 else "end" if x(1) > WIDTH - 20 else "middle"
    parts.append(text(x(1), floor + LINE - 2, "1 ×", anchor=anchor, size=12))
    return svg(title, floor + LINE + 4, parts)


def curves(title: str, found: Sequence[Curve], x_label: str, form: str = ".1f") -> str:
    """Curves over one x axis, from 0 up, each named in a list below with its dashes."""
    points = [point for curve in found for point in curve.points]
    left, right, top = min(x for x, _ in points), max(x for x, _ in points), max(y for _, y in points)
    floor = PLOT + 12

    def place(x: float, y: float) -> tuple[float, float]:
        return LEFT + (WIDTH - LEFT - 14) * (x - left) / (right - left or 1.0), floor - PLOT * y / (
            top or 1.0
        )

    parts = [line(LEFT, floor, WIDTH, floor, 1)]
    for share in (0.0, 0.5, 1.0):
        _, y = place(left, top * share)
        parts.append(line(LEFT, y, WIDTH, y, 1, 'opacity="0.25"'))
        parts.append(text(LEFT - 4, y + 4, number(top * share, form), anchor="end", size=12))
    for at in sorted({x for x, _ in points}):
        parts.append(text(place(at, 0)[0], floor + LINE, f"{at:g}", anchor="middle", size=12))
    parts.append(text(WIDTH, floor + 2 * LINE, x_label, anchor="end", size=12))
    for index, curve in enumerate(found):
        dashes = DASHES[index % len(DASHES)]
        ends = " ".join("{:.1f},{:.1f}".format(*place(*point)) for point in curve.points)
        dash = f'stroke-dasharray="{dashes}"'
        parts.append(f'<polyline points="{ends}" fill="none" stroke="currentColor" stroke-width="2" {dash}/>')
        y = floor + (3 + index) * LINE
        parts.append(line(0, y - 4, 30, y - 4, 2, dash))
        parts.append(text(38, y, curve.label, size=12))
    return svg(title, floor + (3 + len(found)) * LINE, parts)
