"""Claims, tables and figures of a paper."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from verdicts import NOT_RUN


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, and our verdict on it."""

    says: str
    where: str
    verdict: str = NOT_RUN
    figures: str = ""
    command: str = ""


@dataclass(frozen=True)
class Table:
    """A table. Cells contain the displayed text."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


@dataclass(frozen=True)
class Paper:
    """One paper.

    figures: file -> caption and SVG.
    results: results of all steps.
    page:    tables of the generated page. If empty, the page shows the first table.
    """

    title: str
    source: str
    claims: Sequence[Claim]
    tables: Sequence[Table]
    figures: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    results: Sequence[Mapping[str, Any]] = ()
    page: Sequence[Table] = ()


def mean(values: Sequence[float]) -> float:
    """Return the mean over seeds."""
    return statistics.fmean(values)


def shown(values: Sequence[float], digits: int = 4) -> str:
    """Return the mean as text, with the standard deviation if the seeds differ."""
    if not values:
        return ""
    text = f"{mean(values):.{digits}f}"
    spread = f"{statistics.stdev(values):.{digits}f}" if len(values) > 1 else "0"
    return f"{text} ± {spread}" if float(spread) else text


def p_text(p: float) -> str:
    """Return a p-value as text."""
    return f"{p:.4f}" if p >= 0.0001 else "<0.0001"


_COLORS = ("#444444", "#0b6e99", "#c25700", "#2f7d32", "#8e3a80")


def chart(lines: Mapping[str, Mapping[int, float]], title: str, width: int = 640, height: int = 360) -> str:
    """Return an SVG line chart. x: number of documents, on a logarithmic axis."""
    import math

    points = [(x, y) for line in lines.values() for x, y in line.items()]
    xs, ys = sorted({x for x, _ in points}), [y for _, y in points]
    low, high = min(ys), max(ys)
    low, high = low - 0.06 * (high - low), high + 0.06 * (high - low)
    left, right, top, bottom = 56, 190, 34, 40

    def at(x: float, y: float) -> tuple[float, float]:
        across = (math.log(x) - math.log(xs[0])) / (math.log(xs[-1]) - math.log(xs[0]))
        return (
            left + across * (width - left - right),
            top + (high - y) / (high - low) * (height - top - bottom),
        )

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif"'
        f' font-size="12"><title>{title}</title><rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="{left}" y="18" font-size="13">{title}</text>',
    ]
    for x in xs:
        place = at(x, low)
        parts.append(f'<text x="{place[0]:.1f}" y="{height - 22}" text-anchor="middle">{x:,}</text>')
        parts.append(
            f'<line x1="{place[0]:.1f}" y1="{top}" x2="{place[0]:.1f}" y2="{place[1]:.1f}" stroke="#eeeeee"/>'
        )
    parts.append(
        f'<text x="{(left + width - right) / 2:.0f}" y="{height - 6}" text-anchor="middle">candidates</text>'
    )
    for step in range(5):
        y = low + (high - low) * step / 4
        place = at(xs[0], y)
        parts.append(f'<text x="{left - 6}" y="{place[1] + 4:.1f}" text-anchor="end">{y:.2f}</text>')
    for number, (name, line) in enumerate(lines.items()):
        color = _COLORS[number % len(_COLORS)]
        dash = ' stroke-dasharray="6 4"' if "rerank only" in name else ""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*point) for point in sorted(line.items())))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"{dash}/>')
        y = top + 16 * number + 6
        parts.append(
            f'<line x1="{width - right + 12}" y1="{y - 4}" x2="{width - right + 34}" y2="{y - 4}"'
            f' stroke="{color}" stroke-width="2"{dash}/>'
        )
        parts.append(f'<text x="{width - right + 40}" y="{y}">{name}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
