"""Anchors in the centre, the levels of their documents as rings around them (figure 7 of the paper)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rerank.dense_report.figures import Ring
from rerank.dense_report.svg import Scale, drawing, text, ticks

SIZE, RIM, HOLE = 360, 164, 34
"""Width of the disc, radius of its rim, and of the hole, inside of which no distance is drawn."""
TURN = 2.399963
"""Golden angle: dots of a ring spread evenly, however many."""


def span(*sides: Sequence[Ring] | None) -> tuple[float, float]:
    """Distances at the hole and at the rim, so that nearly all dots lie between.

    >>> span([Ring("1", 3, 5.0, [4.0, 5.0, 6.0])])
    (4.0, 6.0)
    """
    dots = sorted(d for rings in sides for ring in rings or () for d in (*ring.some, ring.mean))
    if not dots:
        return 0.0, 1.0
    low, high = dots[len(dots) // 50], dots[-1 - len(dots) // 50]
    return (low, high) if high > low else (low, low + 1.0)


def disc(rings: Sequence[Ring], low: float, high: float, title: str) -> str:
    """Draw mean distances as numbered rings, some documents as dots; ``low`` is at the hole."""
    centre, radius = SIZE / 2, Scale(low, high, HOLE, RIM)
    parts = []
    for tick in ticks(low, high, 5):
        if radius(tick) > HOLE + 4:
            parts.append(f'<circle cx="{centre}" cy="{centre}" r="{radius(tick):g}" class="ring-grid"/>')
            parts.append(text(centre + 3, centre - radius(tick) - 2, f"{tick:g}", "tiny"))
    for number, ring in enumerate(rings):
        shade = _shade(number, len(rings), ring)
        for i, distance in enumerate(ring.some):
            angle = (i * len(rings) + number) * TURN
            x, y = _at(centre, radius(distance), angle)
            parts.append(f'<circle cx="{x:g}" cy="{y:g}" r="1.8" class="dot {shade}"/>')
    for number, ring in enumerate(rings):
        shade = _shade(number, len(rings), ring)
        parts.append(f'<circle cx="{centre}" cy="{centre}" r="{radius(ring.mean):g}" class="ring {shade}"/>')
    for number, ring in enumerate(rings):
        angle = math.radians(20 + 320 * number / max(1, len(rings) - 1)) - math.pi / 2
        x, y = _at(centre, radius(ring.mean), angle)
        name = ring.group if ring.group != "unrelated" else "∅"
        parts.append(
            f'<circle cx="{x:g}" cy="{y:g}" r="8" class="badge {_shade(number, len(rings), ring)}"/>'
        )
        parts.append(text(x, y + 4, name, "tiny strong", "middle"))
    parts.append(f'<circle cx="{centre}" cy="{centre}" r="5" class="anchor"/>')
    about = "; ".join(f"level {ring.group}: {ring.mean:.3f}" for ring in rings)
    return drawing(SIZE, SIZE, title, parts, about)


def _shade(number: int, rings: int, ring: Ring) -> str:
    """The nearest level is the darkest of five shades; unrelated documents have a colour of their own."""
    if ring.group == "unrelated":
        return "far"
    return f"shade{round(4 * number / max(1, rings - 2))}"


def _at(centre: float, radius: float, angle: float) -> tuple[float, float]:
    return round(centre + radius * math.cos(angle), 1), round(centre + radius * math.sin(angle), 1)
