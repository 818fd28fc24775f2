"""Draw ``docs/img/growth.svg``: the measurements of growing collections, one small chart per question.

All axes are logarithmic. Lines of the embedded engine are solid with circles, lines of the node are dashed
with squares. The colors follow the color scheme of the reader's system.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

import numpy as np
from growth_results import Measurement

COLUMNS = 2
PANEL_WIDTH = 430
PANEL_HEIGHT = 280
LEFT = 58  # from the edge of a panel to its vertical axis
TOP = 90  # to the top of the plot: title and legend are above
RIGHT = 18
BOTTOM = 34
LEGEND_LINE = 16
HEAD = 16  # above the first panel
MOST_TICKS = 8  # an axis with more of them has only the powers of ten
LIMITS = (8_000, 2_500_000)  # numbers of documents at the edges of a plot
SIZES = (10_000, 63_436, 250_000, 2_000_000)
"""Numbers of documents with a label."""
STYLE = """
.title{font-weight:600}.back{fill:#ffffff}.ink{fill:#1b2530}.soft{fill:#5b6470}.grid{stroke:#dfe5ea}
.goal{stroke:#b3261e;stroke-width:1.2;stroke-dasharray:2 3}.goal-text{fill:#b3261e}
.line{fill:none;stroke:currentColor;stroke-width:2}.node .line{stroke-dasharray:6 4}
.mark{stroke:currentColor;stroke-width:7;stroke-linecap:round}
.node .mark{stroke-width:6;stroke-linecap:square}
.c0{color:#0b5fa5}.c1{color:#c2570c}.c2{color:#147a3d}.c3{color:#7a3cc0}.c4{color:#5b6470}
@media (prefers-color-scheme: dark){
.back{fill:#14191f}.ink{fill:#e8edf2}.soft{fill:#a7b1bc}.grid{stroke:#2d3640}
.goal{stroke:#ff8a80}.goal-text{fill:#ff8a80}
.c0{color:#6cb6ff}.c1{color:#ffa062}.c2{color:#63d08c}.c3{color:#c6a0ff}.c4{color:#a7b1bc}}
"""


class Line(NamedTuple):
    """A line of a panel: the measurements of a place with this measure and series, and its name."""

    place: str
    measure: str
    series: str
    label: str


PANELS = {
    "Documents per processor second": (
        Line("folder", "ingest", "bm25 and tfidf", "folder, ingest"),
        Line("folder", "encoding", "lsi", "encoding with lsi"),
        Line("node", "ingest", "node", "node, ingest"),
        Line("node", "ingest", "client", "client of the node"),
    ),
    "Bytes on disk per document": (
        Line("folder", "disk", "documents and text index", "folder, texts"),
        Line("folder", "disk", "vectors of lsi", "folder, vectors of lsi"),
        Line("node", "disk", "index with features", "node, texts and vectors"),
    ),
    "Memory of a process, MiB": (
        Line("folder", "memory", "bm25 queries", "queries, bm25"),
        Line("folder", "memory", "union queries", "queries, bm25 and lsi"),
        Line("folder", "memory", "ingest", "ingest"),
        Line("node", "memory", "node", "node, heap of 1 GB"),
        Line("node", "memory", "service", "service of the node"),
    ),
    "First query, ms of processor time": (
        Line("folder", "first query", "bm25", "folder, bm25"),
        Line("folder", "first query", "tfidf", "folder, tfidf"),
        Line("node", "first query", "plain", "node, plain"),
        Line("node", "first query", "hooked, depth 100", "node, hooked"),
    ),
    "Next query at depth 100, ms of processor time": (
        Line("folder", "next query", "bm25, depth 100", "folder, bm25"),
        Line("folder", "next query", "tfidf, depth 100", "folder, tfidf"),
        Line("node", "next query", "plain", "node, plain, 10 hits"),
        Line("node", "next query", "hooked, depth 100", "node, hooked"),
    ),
    "Next query at depth 1,000, ms of processor time": (
        Line("folder", "next query", "bm25, depth 1000", "folder, bm25"),
        Line("folder", "next query", "tfidf, depth 1000", "folder, tfidf"),
        Line("node", "next query", "plain", "node, plain, 10 hits"),
        Line("node", "next query", "hooked, depth 1000", "node, hooked"),
    ),
    "Union with lsi:100, ms of processor time": (
        Line("folder", "next query", "stack, depth 100", "bm25 only, depth 100"),
        Line("folder", "next query", "union, depth 100", "union, depth 100"),
        Line("folder", "next query", "stack, depth 1000", "bm25 only, depth 1,000"),
        Line("folder", "next query", "union, depth 1000", "union, depth 1,000"),
    ),
    "Times a plain search": (
        Line("folder", "ratio", "union, depth 100", "union, depth 100"),
        Line("folder", "ratio", "union, depth 1000", "union, depth 1,000"),
        Line("node", "ratio", "hooked, depth 100", "node, hooked, depth 100"),
        Line("node", "ratio", "hooked, depth 1000", "node, hooked, depth 1,000"),
    ),
}
"""The question of a chart, with the unit of its values -> its lines."""

GOALS = {
    "Documents per processor second": 10_000,
    "Memory of a process, MiB": 954,
    "First query, ms of processor time": 500,
    "Next query at depth 1,000, ms of processor time": 25,
}
"""The question of a chart -> a value that is drawn as a horizontal line."""


def draw(measurements: Sequence[Measurement]) -> str:
    """Return the figure as SVG."""
    width = COLUMNS * PANEL_WIDTH
    height = HEAD + math.ceil(len(PANELS) / COLUMNS) * PANEL_HEIGHT
    elements = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="system-ui,'
        ' -apple-system, \'Segoe UI\', sans-serif" role="img" aria-labelledby="title description">',
        '<title id="title">Growth from 10,000 to 2 million documents</title>',
        '<desc id="description">Eight charts with logarithmic axes: rates, bytes, memory and query times by'
        " the number of documents, in a folder and on one OpenSearch node. The tables of the docs have the"
        " figures.</desc>",
        f"<style>{STYLE}</style>",
        f'<rect class="back" width="{width}" height="{height}" rx="10"/>',
    ]
    for number, title in enumerate(PANELS):
        row, column = divmod(number, COLUMNS)
        elements += draw_panel(title, measurements, column * PANEL_WIDTH, HEAD + row * PANEL_HEIGHT)
    return "\n".join([*elements, "</svg>"]) + "\n"


def draw_panel(title: str, measurements: Sequence[Measurement], x: float, y: float) -> list[str]:
    """Return the elements of a chart whose upper left corner is at (x, y)."""
    figures = {line: figures_of(line, measurements) for line in PANELS[title]}
    goals = [GOALS[title]] if title in GOALS else []
    ticks = nice_values([*goals, *(value for line in figures.values() for _, value in line)])
    left, right, bottom, top = x + LEFT, x + PANEL_WIDTH - RIGHT, y + PANEL_HEIGHT - BOTTOM, y + TOP

    def across(documents: float) -> float:
        return on_logarithmic_axis(documents, LIMITS, (left, right))

    def up(value: float) -> float:
        return on_logarithmic_axis(value, (ticks[0], ticks[-1]), (bottom, top))

    elements = [text(x + 14, y + 20, title, "ink title", size=14)]
    for tick in ticks if len(ticks) <= MOST_TICKS else [tick for tick in ticks if f"{tick:e}"[0] == "1"]:
        elements.append(f'<path class="grid" d="M{left} {up(tick):.1f}H{right}"/>')
        elements.append(text(left - 6, up(tick) + 4, number_label(tick), "soft", "end"))
    for size in SIZES:
        elements.append(f'<path class="grid" d="M{across(size):.1f} {bottom}V{top}"/>')
        elements.append(text(across(size), bottom + 16, number_label(size), "soft", "middle"))
    for goal in goals:
        elements.append(f'<path class="goal" d="M{left} {up(goal):.1f}H{right}"/>')
        elements.append(text(right, up(goal) - 4, f"goal {number_label(goal)}", "goal-text", "end"))
    for number, (line, points) in enumerate(figures.items()):
        css = f"{line.place} c{number}"
        legend_row, legend_column = divmod(number, COLUMNS)
        legend_x = x + 14 + legend_column * (PANEL_WIDTH - 28) / COLUMNS
        legend_y = y + 38 + legend_row * LEGEND_LINE
        elements.append(draw_line([(across(documents), up(value)) for documents, value in points], css))
        elements.append(draw_line([(legend_x, legend_y - 4), (legend_x + 22, legend_y - 4)], css))
        elements.append(text(legend_x + 28, legend_y, line.label, "ink"))
    return elements


def figures_of(line: Line, measurements: Sequence[Measurement]) -> list[tuple[int, float]]:
    """Return the number of documents and the value of each measurement of a line."""
    return sorted(
        (measurement.documents, measurement.value)
        for measurement in measurements
        if measurement.key[:3] == line[:3]
    )


def nice_values(values: Sequence[float]) -> list[float]:
    """Return at least two of 1, 2 and 5 times powers of ten that enclose the values."""
    low, high = min(values), max(values)
    exponents = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    steps = [step * 10.0**exponent for exponent in exponents for step in (1, 2, 5)]
    first = max(index for index, step in enumerate(steps) if step <= low)
    last = min(index for index, step in enumerate(steps) if step >= high)
    return steps[first : max(last, first + 1) + 1]


def on_logarithmic_axis(value: float, limits: tuple[float, float], edges: tuple[float, float]) -> float:
    """Return the coordinate of a value on an axis with these limits at these edges."""
    return float(np.interp(math.log(value), np.log(limits), edges))


def number_label(value: float) -> str:
    """Return a short number: 63k, 2M."""
    if value >= 1_000_000:
        return f"{value / 1_000_000:.0f}M"
    return f"{value / 1000:.0f}k" if value >= 10_000 else f"{value:,.6g}"


def text(x: float, y: float, words: str, css: str, anchor: str = "start", size: int = 11) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}"'
    return f'<text class="{css}" {place}>{escape(words)}</text>'


def draw_line(points: Sequence[tuple[float, float]], css: str) -> str:
    """Return a line with a mark at each point: a segment without length, of which only the ends are seen."""
    line = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    marks = "".join(f"M{x:.1f} {y:.1f}h0" for x, y in points)
    return f'<g class="{css}"><path class="line" d="M{line}"/><path class="mark" d="{marks}"/></g>'
