"""Anchors in the centre, the levels of their documents as rings around them (figure 7 of the paper)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from rerank.reports.dense.figures import Ring
from rerank.reports.dense.hops import HOPS, MOST
from rerank.reports.dense.svg import Scale, drawing, text, ticks

SIZE, RIM, HOLE = 360, 164, 34
"""Width of the disc, radius of its rim, and of the hole, inside of which no distance is drawn."""
_SIGNS = {"unrelated": "∅", HOPS[-1]: "∅", HOPS[-2]: f"{MOST + 1}+"}
"""What stands in a ring's badge, where its group is too long for one."""
TURN = 2.399963
"""Golden angle: dots of a ring spread evenly, however many."""


def span(*sides: Sequence[Ring] | None) -> tuple[float, float]:
    """Distances at the hole and at the rim, so that the rings can be told apart.

    >>> span([Ring("1", 3, 5.0, []), Ring("unrelated", 3, 6.0, [])])
    (4.2, 6.4)
    """
    means = [ring.mean for rings in sides for ring in rings or ()]
    if not means:
        return 0.0, 1.0
    low, high = min(means), max(means)
    room = high - low or 0.1 * high or 1.0
    return max(0.0, low - 0.8 * room), high + 0.4 * room


def disc(rings: Sequence[Ring], low: float, high: float, title: str, what: str = "level") -> Markup:
    """Draw mean distances as numbered rings, documents from ``low`` (the hole) to ``high`` as dots."""
    centre, radius = SIZE / 2, Scale(low, high, HOLE, RIM)
    parts = []
    for tick in ticks(low, high, 5):
        if radius(tick) > HOLE + 4:
            parts.append(f'<circle cx="{centre}" cy="{centre}" r="{radius(tick):g}" class="ring-grid"/>')
            parts.append(text(centre + 3, centre - radius(tick) - 2, f"{tick:g}", "tiny"))
    for number, ring in enumerate(rings):
        shade = _shade(number, len(rings), ring)
        for i, distance in enumerate(ring.some):
            if not low <= distance <= high:
                continue
            angle = (i * len(rings) + number) * TURN
            x, y = _at(centre, radius(distance), angle)
            parts.append(f'<circle cx="{x:g}" cy="{y:g}" r="1.8" class="dot {shade}"/>')
    for number, ring in enumerate(rings):
        shade = _shade(number, len(rings), ring)
        parts.append(f'<circle cx="{centre}" cy="{centre}" r="{radius(ring.mean):g}" class="ring {shade}"/>')
    for number, ring in enumerate(rings):
        angle = math.radians(20 + 320 * number / max(1, len(rings) - 1)) - math.pi / 2
        x, y = _at(centre, radius(ring.mean), angle)
        name = _SIGNS.get(ring.group, ring.group)
        parts.append(
            f'<circle cx="{x:g}" cy="{y:g}" r="8" class="badge {_shade(number, len(rings), ring)}"/>'
        )
        parts.append(text(x, y + 4, name, "tiny strong", "middle"))
    parts.append(f'<circle cx="{centre}" cy="{centre}" r="5" class="anchor"/>')
    about = "; ".join(f"{what} {ring.group}: {ring.mean:.3f}" for ring in rings)
    return drawing(SIZE, SIZE, title, parts, about)


def _shade(number: int, rings: int, ring: Ring) -> str:
    """The nearest level is the darkest of five shades; unrelated documents have a colour of their own."""
    if _SIGNS.get(ring.group) == "∅":
        return "far"
    return f"shade{round(4 * number / max(1, rings - 2))}"


def _at(centre: float, radius: float, angle: float) -> tuple[float, float]:
    return round(centre + radius * math.cos(angle), 1), round(centre + radius * math.sin(angle), 1)
