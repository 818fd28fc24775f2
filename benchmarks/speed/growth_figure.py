"""Draw ``docs/img/growth.svg``: the measurements of growing collections, one small chart per question.

All axes are logarithmic. Lines of the embedded engine are solid with circles, lines of the node are dashed
with squares. The colors follow the color scheme of the reader's system.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from growth_results import Measurement

COLUMNS = 2
PANEL_WIDTH = 430
PANEL_HEIGHT = 280
LEFT = 58  # from the edge of a panel to its vertical axis
TOP = 90  # to the top of the plot: title and legend are above
RIGHT = 18
BOTTOM = 34
LEGEND_COLUMNS = 2
LEGEND_LINE = 16
HEAD = 16  # above the first panel
SIZES = (10_000, 63_436, 250_000, 2_000_000)
"""Numbers of documents with a label."""
COLORS = ("blue", "orange", "green", "purple", "gray", "pink")
STYLE = """
.back{fill:#ffffff}.ink{fill:#1b2530}.soft{fill:#5b6470}.grid{stroke:#dfe5ea;stroke-width:1}
.goal{stroke:#b3261e;stroke-width:1.2;stroke-dasharray:2 3}.goal-text{fill:#b3261e}
.line{fill:none;stroke-width:2}.dash{stroke-dasharray:6 4}
.s-blue{stroke:#0b5fa5}.f-blue{fill:#0b5fa5}.s-orange{stroke:#c2570c}.f-orange{fill:#c2570c}
.s-green{stroke:#147a3d}.f-green{fill:#147a3d}.s-purple{stroke:#7a3cc0}.f-purple{fill:#7a3cc0}
.s-gray{stroke:#5b6470}.f-gray{fill:#5b6470}.s-pink{stroke:#b0246a}.f-pink{fill:#b0246a}
@media (prefers-color-scheme: dark){
.back{fill:#14191f}.ink{fill:#e8edf2}.soft{fill:#a7b1bc}.grid{stroke:#2d3640}
.goal{stroke:#ff8a80}.goal-text{fill:#ff8a80}
.s-blue{stroke:#6cb6ff}.f-blue{fill:#6cb6ff}.s-orange{stroke:#ffa062}.f-orange{fill:#ffa062}
.s-green{stroke:#63d08c}.f-green{fill:#63d08c}.s-purple{stroke:#c6a0ff}.f-purple{fill:#c6a0ff}
.s-gray{stroke:#a7b1bc}.f-gray{fill:#a7b1bc}.s-pink{stroke:#ff8fc2}.f-pink{fill:#ff8fc2}}
"""


@dataclass(frozen=True)
class Line:
    """A line of a panel: the measurements of a place with this measure and series, and its name."""

    place: str
    measure: str
    series: str
    label: str


@dataclass(frozen=True)
class Panel:
    """A chart.

    title: the question, with the unit of all lines.
    goal:  a value that is drawn as a horizontal line, or None.
    """

    title: str
    lines: Sequence[Line]
    goal: float | None = None


PANELS = (
    Panel(
        "Documents per processor second",
        (
            Line("folder", "ingest", "bm25 and tfidf", "folder, ingest"),
            Line("folder", "encoding", "lsi", "encoding with lsi"),
            Line("node", "ingest", "node", "node, ingest"),
            Line("node", "ingest", "client", "client of the node"),
        ),
        10_000,
    ),
    Panel(
        "Bytes on disk per document",
        (
            Line("folder", "disk", "documents and text index", "folder, texts"),
            Line("folder", "disk", "vectors of lsi", "folder, vectors of lsi"),
            Line("node", "disk", "index with features", "node, texts and vectors"),
        ),
    ),
    Panel(
        "Memory of a process, MiB",
        (
            Line("folder", "memory", "bm25 queries", "queries, bm25"),
            Line("folder", "memory", "union queries", "queries, bm25 and lsi"),
            Line("folder", "memory", "ingest", "ingest"),
            Line("node", "memory", "node", "node, heap of 1 GB"),
            Line("node", "memory", "service", "service of the node"),
        ),
        954,
    ),
    Panel(
        "First query, ms of processor time",
        (
            Line("folder", "first query", "bm25", "folder, bm25"),
            Line("folder", "first query", "tfidf", "folder, tfidf"),
            Line("node", "first query", "plain", "node, plain"),
            Line("node", "first query", "hooked, depth 100", "node, hooked"),
        ),
        500,
    ),
    Panel(
        "Next query at depth 100, ms of processor time",
        (
            Line("folder", "next query", "bm25, depth 100", "folder, bm25"),
            Line("folder", "next query", "tfidf, depth 100", "folder, tfidf"),
            Line("node", "next query", "plain", "node, plain, 10 hits"),
            Line("node", "next query", "hooked, depth 100", "node, hooked"),
        ),
    ),
    Panel(
        "Next query at depth 1,000, ms of processor time",
        (
            Line("folder", "next query", "bm25, depth 1000", "folder, bm25"),
            Line("folder", "next query", "tfidf, depth 1000", "folder, tfidf"),
            Line("node", "next query", "plain", "node, plain, 10 hits"),
            Line("node", "next query", "hooked, depth 1000", "node, hooked"),
        ),
        25,
    ),
    Panel(
        "Union with lsi:100, ms of processor time",
        (
            Line("folder", "next query", "stack, depth 100", "bm25 only, depth 100"),
            Line("folder", "next query", "union, depth 100", "union, depth 100"),
            Line("folder", "next query", "stack, depth 1000", "bm25 only, depth 1,000"),
            Line("folder", "next query", "union, depth 1000", "union, depth 1,000"),
        ),
    ),
    Panel(
        "Times a plain search",
        (
            Line("folder", "ratio", "union, depth 100", "union, depth 100"),
            Line("folder", "ratio", "union, depth 1000", "union, depth 1,000"),
            Line("node", "ratio", "hooked, depth 100", "node, hooked, depth 100"),
            Line("node", "ratio", "hooked, depth 1000", "node, hooked, depth 1,000"),
        ),
    ),
)


@dataclass(frozen=True)
class Scale:
    """Maps values to coordinates, on a logarithmic axis."""

    low: float
    high: float
    begin: float
    end: float

    def at(self, value: float) -> float:
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.begin + share * (self.end - self.begin)


def nice_values(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 times powers of ten that enclose the values."""
    exponents = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    values = [step * 10.0**exponent for exponent in exponents for step in (1, 2, 5)]
    first = max(index for index, value in enumerate(values) if value <= low)
    last = min(index for index, value in enumerate(values) if value >= high)
    return values[first : last + 1]


def number_label(value: float) -> str:
    """Return a short number: 63k, 2M."""
    if value >= 1_000_000:
        return f"{value / 1_000_000:.0f}M"
    return f"{value / 1000:.0f}k" if value >= 10_000 else f"{value:,.6g}"


def text(x: float, y: float, words: str, css: str, anchor: str = "start", size: int = 12) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}"'
    return f'<text class="{css}" {place}>{escape(words)}</text>'


def draw_panel(panel: Panel, measurements: Sequence[Measurement], x: float, y: float) -> list[str]:
    """Return the elements of a panel whose upper left corner is at (x, y)."""
    points = [points_of(line, measurements) for line in panel.lines]
    values = [value for line in points for _, value in line]
    values += [panel.goal] if panel.goal else []
    ticks = nice_values(min(values), max(values))
    ticks = ticks if len(ticks) > 1 else [ticks[0], 10 * ticks[0]]
    across = Scale(8_000, 2_500_000, x + LEFT, x + PANEL_WIDTH - RIGHT)
    up = Scale(ticks[0], ticks[-1], y + PANEL_HEIGHT - BOTTOM, y + TOP)
    elements = [text(x + 14, y + 20, panel.title, "ink title", size=14), *draw_axes(across, up, ticks)]
    if panel.goal:
        level = up.at(panel.goal)
        elements.append(
            f'<path class="goal" d="M{across.begin:.1f} {level:.1f}H{across.end:.1f}"/>'
            + text(across.end, level - 4, f"goal {number_label(panel.goal)}", "goal-text", "end", 11)
        )
    for number, (line, line_points) in enumerate(zip(panel.lines, points)):
        legend_x = x + 14 + (number % LEGEND_COLUMNS) * (PANEL_WIDTH - 28) / LEGEND_COLUMNS
        legend_y = y + 38 + (number // LEGEND_COLUMNS) * LEGEND_LINE
        elements += draw_line(line, COLORS[number], line_points, across, up)
        elements += draw_legend(line, COLORS[number], legend_x, legend_y)
    return elements


def points_of(line: Line, measurements: Sequence[Measurement]) -> list[tuple[int, float]]:
    wanted_key = (line.place, line.measure, line.series)
    return sorted(
        (measurement.documents, measurement.value)
        for measurement in measurements
        if measurement.key[:3] == wanted_key
    )


def draw_axes(across: Scale, up: Scale, ticks: Sequence[float]) -> list[str]:
    elements: list[str] = []
    shown_ticks = ticks if len(ticks) <= 8 else [tick for tick in ticks if f"{tick:e}"[0] == "1"]
    for tick in shown_ticks:
        level = up.at(tick)
        elements.append(f'<path class="grid" d="M{across.begin:.1f} {level:.1f}H{across.end:.1f}"/>')
        elements.append(text(across.begin - 6, level + 4, number_label(tick), "soft", "end", 11))
    for size in SIZES:
        middle = across.at(size)
        elements.append(f'<path class="grid" d="M{middle:.1f} {up.begin:.1f}V{up.end:.1f}"/>')
        elements.append(text(middle, up.begin + 16, number_label(size), "soft", "middle", 11))
    return elements


def draw_line(
    line: Line, color: str, points: Sequence[tuple[int, float]], across: Scale, up: Scale
) -> list[str]:
    places = [(across.at(documents), up.at(value)) for documents, value in points]
    if not places:
        return []
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    dash = " dash" if line.place == "node" else ""
    elements = [f'<path class="line s-{color}{dash}" d="M{path}"/>']
    for (x, y), (documents, value) in zip(places, points):
        title = f"<title>{escape(line.label)}, {documents:,} documents: {value:,g}</title>"
        elements.append(draw_mark(line, color, x, y, title))
    return elements


def draw_mark(line: Line, color: str, x: float, y: float, title: str = "") -> str:
    """Return a circle for the folder, a square for the node."""
    if line.place == "node":
        corner = f'x="{x - 3:.1f}" y="{y - 3:.1f}" width="6" height="6"'
        return f'<rect class="f-{color}" {corner}>{title}</rect>'
    return f'<circle class="f-{color}" cx="{x:.1f}" cy="{y:.1f}" r="3.5">{title}</circle>'


def draw_legend(line: Line, color: str, x: float, y: float) -> list[str]:
    dash = " dash" if line.place == "node" else ""
    return [
        f'<path class="line s-{color}{dash}" d="M{x:.1f} {y - 4:.1f}h22"/>',
        draw_mark(line, color, x + 11, y - 4),
        text(x + 28, y, line.label, "ink", size=11),
    ]


def draw(measurements: Sequence[Measurement]) -> str:
    rows = math.ceil(len(PANELS) / COLUMNS)
    width = COLUMNS * PANEL_WIDTH
    height = HEAD + rows * PANEL_HEIGHT
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="system-ui,'
        ' -apple-system, \'Segoe UI\', sans-serif" role="img" aria-labelledby="title description">',
        '<title id="title">Growth from 10,000 to 2 million documents</title>',
        '<desc id="description">Eight charts with logarithmic axes: rates, bytes, memory and query times by'
        " the number of documents, in a folder and on one OpenSearch node. The tables of the docs have the"
        " figures.</desc>",
        f"<style>{STYLE}.title{{font-weight:600}}</style>",
        f'<rect class="back" width="{width}" height="{height}" rx="10"/>',
    ]
    for number, panel in enumerate(PANELS):
        row, column = divmod(number, COLUMNS)
        lines += draw_panel(panel, measurements, column * PANEL_WIDTH, HEAD + row * PANEL_HEIGHT)
    return "\n".join([*lines, "</svg>"]) + "\n"
