"""SVG charts of the evaluation page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from markupsafe import Markup

from rerank.evaluation.significance import Comparison
from rerank.stack.ranking import Hit

COLORS = 7
"""Colors of signals; all later signals are gray."""


def interval_chart(
    comparisons: Sequence[Comparison],
    intervals: Mapping[tuple[str, str, str], tuple[float, float]],
    title: str,
) -> Markup:
    """Draw differences and their intervals, between the lowest and the highest end, and 0."""
    several = len({c.protocol for c in comparisons}) > 1
    row, height = 38, 38 * len(comparisons) + 26
    ends = [end for c in comparisons for end in intervals[c.protocol, c.stack, c.measure]]
    low, high = min([0.0, *ends]), max([0.0, *ends])

    def x(value: float) -> str:
        return f"{4 + 92 * (value - low) / ((high - low) or 1):.2f}%"

    parts = []
    for value in sorted({low, 0.0, high}):
        parts.append(_line(x(value), 4, x(value), height - 22, "grid" if value else "axis"))
        parts.append(_text(x(value), height - 6, f"{value:+.3g}" if value else "0", "soft", "middle"))
    for place, c in enumerate(comparisons):
        y = row * place + 28
        begin, end = intervals[c.protocol, c.stack, c.measure]
        label = f"{c.stack}, {c.protocol}" if several else c.stack
        parts.append(_text("0", y - 10, f"{label}: {c.delta:+.4f}"))
        parts.append(_line(x(begin), y, x(end), y, "whisker"))
        parts.append(f'<circle cx="{x(c.delta)}" cy="{y}" r="4" class="point"/>')
    return Markup(
        f'<svg class="rows" width="100%" height="{height}" role="img" aria-label="{escape(title)}">'
        f"{''.join(parts)}</svg>"
    )


def score_bars(hits: Sequence[Hit], colors: Mapping[str, int]) -> list[Markup]:
    """Return a bar per hit, a color per signal. Negative parts extend left."""
    parts = [[signal.weighted for signal in hit.signals.values()] for hit in hits]
    low = min((sum(min(value, 0) for value in row) for row in parts), default=0.0)
    high = max((sum(max(value, 0) for value in row) for row in parts), default=0.0)
    scale = 100 / ((high - low) or 1)
    bars = []
    for hit, row in zip(hits, parts):
        left = right = -low * scale
        rects = []
        for name, value in zip(hit.signals, row):
            width = abs(value) * scale
            begin = right if value >= 0 else left - width
            left, right = min(left, begin), max(right, begin + width)
            if width >= 0.01:
                color = colors.get(name, COLORS)
                kind = f"c{color}" if color < COLORS else "other"
                rects.append(f'<rect x="{begin:.2f}" width="{width:.2f}" class="{kind}"/>')
        bars.append(
            Markup(
                '<svg class="bar" viewBox="0 0 100 1" preserveAspectRatio="none" aria-hidden="true">'
                f"{''.join(rects)}</svg>"
            )
        )
    return bars


def _text(x: str, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'


def _line(x1: str, y1: float, x2: str, y2: float, kind: str) -> str:
    return f'<line x1="{x1}" y1="{y1:g}" x2="{x2}" y2="{y2:g}" class="{kind}"/>'
