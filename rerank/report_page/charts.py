"""Score bars of the evaluation page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from rerank.stack.ranking import Hit

COLORS = 7
"""Colors of signals; all later signals are gray."""


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
