"""SVG charts of the evaluation page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from markupsafe import Markup

from rerank.evaluation.overlap import Bucket
from rerank.evaluation.significance import Comparison
from rerank.stack.ranking import Hit

WIDTH, HEIGHT = 360, 240
COLORS = 7
"""Colors of signals; all later signals are gray."""


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Return about ``most`` round numbers or fewer from ``low`` to ``high``.

    >>> ticks(0.0, 1.0), ticks(4.1, 6.2, 5)
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [4.5, 5.0, 5.5, 6.0])
    """
    span = high - low
    if span <= 0 or not math.isfinite(span):
        return [low]
    raw = span / most
    unit = 10 ** math.floor(math.log10(raw))
    step = next(unit * m for m in (1, 2, 5, 10) if unit * m >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(i * step, 10) for i in range(first, last + 1)]


@dataclass(frozen=True)
class Scale:
    """Linear map from ``low``..``high`` to ``start``..``end``, with clipping."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the coordinate of a value."""
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return round(self.start + min(1.0, max(0.0, share)) * (self.end - self.start), 2)


def interval_chart(
    comparisons: Sequence[Comparison],
    intervals: Mapping[tuple[str, str, str], tuple[float, float]],
    title: str,
) -> Markup:
    """Draw differences and their intervals."""
    several = len({c.protocol for c in comparisons}) > 1
    row, height = 38, 38 * len(comparisons) + 26
    ends = [end for c in comparisons for end in intervals[c.protocol, c.stack, c.measure]]
    low, high = min([0.0, *ends]), max([0.0, *ends])
    x = Scale(low, high, 4, 96)
    parts = [
        part
        for value in ticks(low, high, 4)
        for part in (
            _line(f"{x(value)}%", 4, f"{x(value)}%", height - 22, "axis" if value == 0 else "grid"),
            _text(f"{x(value)}%", height - 6, f"{value:+.3g}" if value else "0", "soft", "middle"),
        )
    ]
    for place, c in enumerate(comparisons):
        y = row * place + 28
        begin, end = intervals[c.protocol, c.stack, c.measure]
        label = f"{c.stack}, {c.protocol}" if several else c.stack
        parts.append(_text(0, y - 10, f"{label}: {c.delta:+.4f}"))
        parts.append(_line(f"{x(begin)}%", y, f"{x(end)}%", y, "whisker"))
        parts.append(f'<circle cx="{x(c.delta)}%" cy="{y}" r="4" class="point"/>')
    label = escape(title)
    return Markup(
        f'<svg class="rows" width="100%" height="{height}" role="img" aria-label="{label}">'
        f"{''.join(parts)}</svg>"
    )


def score_bars(hits: Sequence[Hit], colors: Mapping[str, int]) -> list[Markup]:
    """Return a bar per hit, a color per signal. Negative parts extend left."""
    parts = [[signal.weighted for signal in hit.signals.values()] for hit in hits]
    low = min((sum(min(value, 0) for value in row) for row in parts), default=0.0)
    high = max((sum(max(value, 0) for value in row) for row in parts), default=0.0)
    x = Scale(low, high if high > low else low + 1, 0, 100)
    bars = []
    for hit, row in zip(hits, parts):
        left = right = 0.0
        rects = []
        for name, value in zip(hit.signals, row):
            begin, end = (right, right + value) if value >= 0 else (left + value, left)
            right, left = (end, left) if value >= 0 else (right, begin)
            if x(end) > x(begin):
                color = colors.get(name, COLORS)
                kind = f"c{color}" if color < COLORS else "other"
                rects.append(f'<rect x="{x(begin)}" width="{x(end) - x(begin):.2f}" class="{kind}"/>')
        bars.append(
            Markup(
                '<svg class="bar" viewBox="0 0 100 1" preserveAspectRatio="none" aria-hidden="true">'
                f"{''.join(rects)}</svg>"
            )
        )
    return bars


def training_charts(name: str, history: Mapping[str, Any]) -> tuple[Markup, Markup]:
    """Draw dev measure and loss; a line marks the kept step."""
    points = [(point[0], point[2]) for point in history["curve"] if point[2] is not None]
    losses = [(point[0], point[1]) for point in history["curve"] if point[1] is not None]
    curves = [("curve ten", points)]
    if history["baseline"] is not None and points:
        curves.append(("curve first", [(step, history["baseline"]) for step, _ in (points[0], points[-1])]))
    unit, kept = history["unit"], history["epoch"]
    about = f"{unit} {kept} of {history['epochs']} is kept"
    return (
        _chart(curves, f"Training of {name}", about, unit, marked=kept),
        _chart([("curve five", losses)], f"Loss of {name}", "", unit, marked=kept),
    )


def overlap_chart(buckets: Sequence[Bucket], title: str, top: float) -> Markup:
    """Draw shares of pairs. top: maximum of the axis."""
    height, left = 170, 44
    x, y = Scale(0, len(buckets), left, WIDTH - 6), Scale(0, top, height - 34, 10)
    parts = _rows(y, left, [(value, f"{100 * value:g} %") for value in ticks(0, top, 4)])
    for place, one in enumerate(buckets):
        parts.append(
            f'<rect x="{x(place) + 2:g}" y="{y(one.share):g}" width="{x(1) - x(0) - 4:.2f}"'
            f' height="{y(0) - y(one.share):.2f}" class="c0"><title>{one.bucket}: {one.pairs}</title></rect>'
        )
        name = "0" if not place else one.bucket.split("-")[1].rstrip("%")
        parts.append(_text((x(place) + x(place + 1)) / 2, height - 18, name, "tiny", "middle"))
    parts.append(_line(left, y(0), WIDTH - 6, y(0), "axis"))
    return _drawing(WIDTH, height, title, parts, f"{100 * buckets[0].share:.0f} % share none")


def _chart(
    curves: Sequence[tuple[str, Sequence[tuple[float, float]]]],
    title: str,
    about: str,
    label: str,
    *,
    marked: float | None = None,
) -> Markup:
    left, bottom = 52, HEIGHT - 40
    values = [value for _, points in curves for _, value in points] or [0.0]
    places = [place for _, points in curves for place, _ in points] or [0.0]
    pad = (max(values) - min(values)) * 0.06 or 0.01
    y = Scale(min(values) - pad, max(values) + pad, bottom, 10)
    low, high = min(places), max(places)
    x = Scale(low, high, left + 6, WIDTH - 20)
    marks = [one for one in ticks(low, high) if float(one).is_integer()]
    parts = _rows(y, left, [(value, f"{value:g}") for value in ticks(y.low, y.high, 5)])
    parts += [_text(x(one), bottom + 16, f"{one:,g}", "soft", "middle") for one in marks]
    parts.append(_line(left, bottom, WIDTH - 8, bottom, "axis"))
    parts.append(_text((left + WIDTH) / 2, bottom + 34, label, "soft", "middle"))
    if marked is not None and low <= marked <= high:
        parts.append(_line(x(marked), 10, x(marked), bottom, "plain"))
    for kind, points in curves:
        path = "L".join(f"{x(place):g} {y(value):g}" for place, value in points)
        if len(points) > 1:
            parts.append(f'<path class="{kind}" d="M{path}"/>')
        if len(points) <= 30 and "first" not in kind:
            knot = kind.replace("curve", "knot")
            parts += [
                f'<circle cx="{x(place):g}" cy="{y(value):g}" r="3" class="{knot}">'
                f"<title>{place:g}: {value:.4f}</title></circle>"
                for place, value in points
            ]
    return _drawing(WIDTH, HEIGHT, title, parts, about)


def _rows(y: Scale, left: float, labels: Sequence[tuple[float, str]]) -> list[str]:
    return [
        part
        for value, words in labels
        for part in (
            _line(left, y(value), WIDTH - 8, y(value), "grid"),
            _text(left - 6, y(value) + 4, words, "soft", "end"),
        )
    ]


def _drawing(width: int, height: int, title: str, parts: Sequence[str], about: str = "") -> Markup:
    label = escape(f"{title}: {about}" if about else title)
    return Markup(
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img"'
        f' aria-label="{label}">{"".join(parts)}</svg>'
    )


def _text(x: float | str, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'


def _line(x1: float | str, y1: float, x2: float | str, y2: float, kind: str) -> str:
    return f'<line x1="{x1}" y1="{y1:g}" x2="{x2}" y2="{y2:g}" class="{kind}"/>'
