"""The charts of an evaluation's page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from rerank.combiners.surface import WeightSurface
from rerank.evaluation.overlap import Bucket
from rerank.report_page.depths import AtDepth
from rerank.report_page.svg import Scale, drawing, line, text, ticks
from rerank.report_page.tables import EvaluationReport
from rerank.text import plural

WIDTH, HEIGHT = 360, 240
LEVELS = 10
"""Shades of a weight surface."""


def gains_chart(gains: NDArray[np.float64], title: str) -> Markup:
    """A bar for each query, the largest gain first."""
    width, height, left = 760, 220, 44
    reach = max(float(np.abs(gains).max(initial=0.0)), 1e-9)
    y = Scale(-reach, reach, height - 12, 12)
    x = Scale(0, max(len(gains), 1), left, width - 8)
    parts = [
        part
        for value in ticks(-reach, reach, 5)
        for part in (
            line(left, y(value), width - 8, y(value), "grid"),
            text(left - 6, y(value) + 4, f"{value:+.2g}", "soft", "end"),
        )
    ]
    each = max((width - 8 - left) / max(len(gains), 1), 0.3)
    for place, gain in enumerate(gains.tolist()):
        if gain:
            top = min(y(gain), y(0))
            kind = "gain" if gain > 0 else "loss"
            parts.append(
                f'<rect x="{x(place):g}" y="{top:g}" width="{each:.2f}" height="{abs(y(gain) - y(0)):.2f}"'
                f' class="{kind}"/>'
            )
    parts.append(line(left, y(0), width - 8, y(0), "axis"))
    about = f"{plural(int((gains > 0).sum()), 'quer[y gains|ies gain]')}, {int((gains < 0).sum())} lose"
    return drawing(width, height, title, parts, about)


def differences_chart(
    report: EvaluationReport, intervals: Mapping[tuple[str, str, str], tuple[float, float]], measure: str
) -> Markup:
    """Each stack's difference to the baseline with its interval, one below the other."""
    found = [c for c in report.comparisons if c.measure == measure]
    width, left, row = 760, 260, 26
    height = row * max(len(found), 1) + 30
    ends: list[Any] = [end for c in found for end in intervals[c.protocol, c.stack, c.measure]]
    low, high = min([0.0, *ends]), max([0.0, *ends])
    pad = 0.05 * (high - low) or 0.01
    x = Scale(low - pad, high + pad, left, width - 12)
    parts = [
        part
        for value in ticks(low, high, 6)
        for part in (
            line(x(value), 6, x(value), height - 22, "grid"),
            text(x(value), height - 6, f"{value:+.3g}", "soft", "middle"),
        )
    ]
    parts.append(line(x(0), 6, x(0), height - 22, "axis"))
    for place, c in enumerate(found):
        y = row * place + row / 2 + 4
        begin, end = intervals[c.protocol, c.stack, c.measure]
        several = len(report.per_query) > 1
        parts.append(text(left - 10, y + 4, f"{c.stack}, {c.protocol}" if several else c.stack, "", "end"))
        parts.append(line(x(begin), y, x(end), y, "whisker after"))
        parts.append(f'<circle cx="{x(c.delta):g}" cy="{y:g}" r="4" class="point after"/>')
    return drawing(width, height, f"Difference to {report.baseline} in {measure}", parts)


def surface_chart(found: WeightSurface, measure: str) -> Markup:
    """What every setting reached: of three signals a triangle, of two a line."""
    points = found.points()
    (shares, best), low = max(points, key=lambda one: one[1]), min(value for _, value in points)
    where = ", ".join(f"{name} {share:.2f}" for name, share in zip(found.signals, shares))
    about = f"the best is {best:.4f} with {where}; the worst {low:.4f}"
    title = f"{measure} over the weights of {', '.join(found.signals)}"
    if len(found.signals) == 2:
        return _line(found, title, about)
    # Corners: the first signal on top, the second at the left, the third at the right.
    top, left, right, bottom = (180.0, 26.0), (30.0, 286.0), (330.0, 286.0), 286.0
    corners = np.array([top, left, right])
    size = 300 / (len(found.rows) - 1) / 2
    flat = [(0, -1.155), (1, -0.577), (1, 0.577), (0, 1.155), (-1, 0.577), (-1, -0.577)]
    hexagon = "l".join(f"{size * (b[0] - a[0]):.1f} {size * (b[1] - a[1]):.1f}" for a, b in pairwise(flat))
    parts = []
    for shares, value in points:
        x, y = np.array(shares) @ corners
        words = ", ".join(f"{name} {share:.2f}" for name, share in zip(found.signals, shares))
        parts.append(
            f'<path class="l{_level(value, low, best)}" d="M{x:.1f} {y - 1.155 * size:.1f}l{hexagon}z">'
            f"<title>{value:.4f}: {escape(words)}</title></path>"
        )
    shares, _ = max(points, key=lambda one: one[1])
    x, y = np.array(shares) @ corners
    parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size + 2:.1f}" class="best"/>')
    reached = dict(points)
    for place, (name, anchor) in enumerate(zip(found.signals, ("middle", "start", "end"))):
        alone = reached[tuple(float(i == place) for i in range(3))]
        x, y = corners[place]
        x += {"middle": 0, "start": -24, "end": 24}[anchor]
        parts.append(text(x, 12 if not place else bottom + 26, f"{name} {alone:.4f}", "", anchor))
    return drawing(WIDTH, 318, title, parts, about)


def shades(found: WeightSurface) -> list[tuple[int, str]]:
    """What the shades of a triangle stand for: from the darkest on, (level, range of values)."""
    values = [value for _, value in found.points()]
    low, high = min(values), max(values)
    # Squares widen towards the worst: near the best, small differences matter.
    edges = [high - (high - low) * (1 - level / LEVELS) ** 2 for level in range(LEVELS + 1)]
    return [(level, f"{edges[level]:.4f}") for level in reversed(range(0, LEVELS, 3))]


def _level(value: float, low: float, high: float) -> int:
    if high <= low:
        return LEVELS - 1
    return min(LEVELS - 1, int(LEVELS * (1 - math.sqrt((high - value) / (high - low)))))


def _line(found: WeightSurface, title: str, about: str) -> Markup:
    points = [(shares[0], value) for shares, value in found.points()]
    first, second = found.signals
    curve = [("curve ten", points)]
    return _chart(curve, title, about, f"share of {first}; the rest is {second}", ends=(0.0, 1.0))


def depth_chart(rows: Sequence[AtDepth], title: str) -> Markup:
    """nDCG over the number of candidates, which doubles from tick to tick or so."""
    curves = [
        ("curve ceiling", [(row.candidates, row.ceiling) for row in rows]),
        ("curve first", [(row.candidates, row.first_stage) for row in rows]),
        ("curve five", [(row.candidates, row.plain) for row in rows if row.plain is not None]),
        ("curve ten", [(row.candidates, row.weighted) for row in rows]),
    ]
    last = rows[-1]
    plain = f", plain {last.plain:.4f}" if last.plain is not None else ""
    about = f"with {last.candidates}: weighted {last.weighted:.4f}{plain}, first stage {last.first_stage:.4f}"
    return _chart([c for c in curves if c[1]], title, about, "candidates", logarithmic=True)


def curve_chart(history: Mapping[str, Any], title: str) -> Markup:
    """How a ranker was trained: the measure over the steps, what it is without, and the step that is kept."""
    points = [(point[0], point[2]) for point in history["curve"] if point[2] is not None]
    curves = [("curve ten", points)]
    steps = [step for step, _ in points]
    if history["baseline"] is not None and steps:
        curves.append(("curve first", [(steps[0], history["baseline"]), (steps[-1], history["baseline"])]))
    about = f"{history['unit']} {history['epoch']} of {history['epochs']} is kept"
    return _chart(curves, title, about, history["unit"], marked=history["epoch"])


def loss_chart(history: Mapping[str, Any], title: str) -> Markup:
    """The loss over the steps."""
    points = [(point[0], point[1]) for point in history["curve"] if point[1] is not None]
    return _chart([("curve five", points)], title, "", history["unit"], marked=history["epoch"])


def overlap_chart(buckets: Sequence[Bucket], title: str, top: float) -> Markup:
    """Shares of the pairs of one grade, a bar for each bucket; ``top``: the largest share that fits."""
    height, left = 170, 44
    x, y = Scale(0, len(buckets), left, WIDTH - 6), Scale(0, top, height - 34, 10)
    parts = [
        part
        for value in ticks(0, top, 4)
        for part in (
            line(left, y(value), WIDTH - 6, y(value), "grid"),
            text(left - 6, y(value) + 4, f"{100 * value:g} %", "soft", "end"),
        )
    ]
    for place, one in enumerate(buckets):
        height_of = y(0) - y(one.share)
        parts.append(
            f'<rect x="{x(place) + 2:g}" y="{y(one.share):g}" width="{x(1) - x(0) - 4:.2f}"'
            f' height="{height_of:.2f}" class="gain"><title>{one.bucket}: {one.pairs}</title></rect>'
        )
        name = "0" if not place else one.bucket.split("-")[1].rstrip("%")
        parts.append(text((x(place) + x(place + 1)) / 2, height - 18, name, "tiny", "middle"))
    parts.append(line(left, y(0), WIDTH - 6, y(0), "axis"))
    parts.append(text((left + WIDTH) / 2, height - 3, "shared, up to %", "tiny", "middle"))
    none = buckets[0]
    return drawing(WIDTH, height, title, parts, f"{100 * none.share:.0f} % share none")


def _chart(
    curves: Sequence[tuple[str, Sequence[tuple[float, float]]]],
    title: str,
    about: str,
    label: str,
    *,
    logarithmic: bool = False,
    ends: tuple[float, float] | None = None,
    marked: float | None = None,
) -> Markup:
    """Curves over one axis, with a mark at one of its values."""
    left, bottom = 52, HEIGHT - 40
    values = [value for _, points in curves for _, value in points] or [0.0]
    places = [place for _, points in curves for place, _ in points] or [0.0]
    pad = (max(values) - min(values)) * 0.06 or 0.01
    y = Scale(min(values) - pad, max(values) + pad, bottom, 10)

    def along(place: float) -> float:
        return math.log10(max(place, 1)) if logarithmic else place

    low, high = ends or (min(places), max(places))
    x = Scale(along(low), along(high), left + 6, WIDTH - 20)
    if logarithmic:
        marks = [10.0**power for power in range(12) if low <= 10**power <= high]
    else:
        marks = [one for one in ticks(low, high) if ends or float(one).is_integer()]
    parts = [
        part
        for value in ticks(y.low, y.high, 5)
        for part in (
            line(left, y(value), WIDTH - 8, y(value), "grid"),
            text(left - 6, y(value) + 4, f"{value:g}", "soft", "end"),
        )
    ]
    parts += [text(x(along(one)), bottom + 16, f"{one:,g}", "soft", "middle") for one in marks]
    parts.append(line(left, bottom, WIDTH - 8, bottom, "axis"))
    parts.append(text((left + WIDTH) / 2, bottom + 34, label, "soft", "middle"))
    if marked is not None and low <= marked <= high:
        parts.append(line(x(along(marked)), 10, x(along(marked)), bottom, "plain"))
    for kind, points in curves:
        path = "L".join(f"{x(along(place)):g} {y(value):g}" for place, value in points)
        if len(points) > 1:
            parts.append(f'<path class="{kind}" d="M{path}"/>')
        if len(points) <= 30 and "first" not in kind:
            knot = kind.replace("curve", "knot")
            parts += [
                f'<circle cx="{x(along(place)):g}" cy="{y(value):g}" r="3" class="{knot}">'
                f"<title>{place:g}: {value:.4f}</title></circle>"
                for place, value in points
            ]
    return drawing(WIDTH, HEIGHT, title, parts, about)
