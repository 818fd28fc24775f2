"""Drawing: axes, texts and marks as inline SVG. Colors are classes; the style sheet says what they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from markupsafe import Markup


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers from ``low`` to ``high``, at most about ``most``.

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
    """Numbers from ``low`` to ``high`` -> coordinates from ``start`` to ``end``; beyond: the border."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Give the coordinate."""
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return round(self.start + min(1.0, max(0.0, share)) * (self.end - self.start), 2)


def drawing(width: int, height: int, title: str, parts: Sequence[str], about: str = "") -> Markup:
    """Wrap an SVG with what it shows, for those who cannot see it; an empty ``title``: a mere ornament."""
    label = escape(f"{title}: {about}" if about else title)
    role = f'role="img" aria-label="{label}"' if title else 'aria-hidden="true"'
    return Markup(
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" {role}>{"".join(parts)}</svg>'
    )


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    """Place words; ``anchor``: start, middle or end."""
    return f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    """Draw a line."""
    return f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" class="{kind}"/>'
