"""The charts of the report that have axes: histograms, boxes, gaps and lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from markupsafe import Markup

from rerank.reports.dense.figures import Group, Margin, Separation
from rerank.reports.dense.sensitivity import Run
from rerank.reports.dense.svg import Scale, bottom_axis, drawing, line, mark, text, ticks
from rerank.reports.pages import number
from rerank.wording import amount

WIDTH = 720


def histograms(found: Separation, edges: Sequence[float], top: float, title: str) -> Markup:
    """Related pairs filled, unrelated ones as a dashed line; ``top``: the largest share that fits."""
    x, y = Scale(edges[0], edges[-1], 14, 346), Scale(0, top, 170, 20)
    related, unrelated = (
        _steps(found.related_histogram, edges, x, y),
        _steps(found.unrelated_histogram, edges, x, y),
    )
    parts = bottom_axis(x, 170, 20, "cosine distance")
    parts.append(f'<path class="related" d="M{x(edges[0])} {y(0)}{related}V{y(0)}z"/>')
    parts.append(f'<path class="unrelated" d="M{x(edges[0])} {y(0)}{unrelated}V{y(0)}"/>')
    if found.related and found.unrelated:
        parts.append(line(x(found.related[2]), 20, x(found.related[2]), 170, "related-line"))
        parts.append(line(x(found.unrelated[2]), 20, x(found.unrelated[2]), 170, "unrelated-line"))
    about = (
        f"{amount(found.pairs, 'related pair[|s]')}, median"
        f" {number(found.related[2]) if found.related else '–'};"
        f" as many unrelated ones, median {number(found.unrelated[2]) if found.unrelated else '–'}"
    )
    return drawing(360, 212, title, parts, about)


def _steps(shares: Sequence[float], edges: Sequence[float], x: Scale, y: Scale) -> str:
    return "".join(f"V{y(share)}H{x(edge)}" for share, edge in zip(shares, edges[1:]))


def boxes(before: Sequence[Group] | None, after: Sequence[Group], title: str, first: str) -> Markup:
    """Distances by group: whiskers 5 to 95 %, box 25 to 75 %, median; hollow before, filled after."""
    sides = [("before", before)] if before is not None else []
    sides.append(("after", after))
    ends = [q for _, groups in sides for g in groups or () if g.quantiles for q in g.quantiles]
    low, high = min(ends, default=0.0), max(ends, default=1.0)
    pad = (high - low) * 0.03 or 0.1
    x = Scale(max(0.0, low - pad), high + pad, 150, WIDTH - 80)
    step = 20 * len(sides) + 8
    bottom = 24 + step * len(after)
    parts = bottom_axis(x, bottom, 20, "cosine distance")
    parts += [text(140, 14, first, "soft", "end"), text(WIDTH - 6, 14, "pairs", "soft", "end")]
    for row, group in enumerate(after):
        middle = 24 + step * row + step / 2
        parts.append(text(140, middle + 4, group.group, "", "end"))
        parts.append(text(WIDTH - 6, middle + 4, str(group.pairs), "soft", "end"))
        for at, (kind, groups) in enumerate(sides):
            found = (groups or [])[row].quantiles
            if found:
                parts.append(_box(found, x, middle + 20 * (at - (len(sides) - 1) / 2), kind))
    return drawing(WIDTH, bottom + 42, title, parts)


def _box(found: Sequence[float], x: Scale, y: float, kind: str) -> str:
    a, b, c, d, e = map(x, found)
    return (
        line(a, y, e, y, f"whisker {kind}")
        + f'<rect x="{b:g}" y="{y - 6:g}" width="{max(1.0, d - b):g}" height="12" class="box {kind}"/>'
        + line(c, y - 8, c, y + 8, f"median {kind}")
    )


def gaps(before: Sequence[Margin] | None, after: Sequence[Margin], asked: str, title: str) -> Markup:
    """By level: how much farther the negative is (hollow before, filled after), and what is asked (bar)."""
    sides = [("before", before or []), ("after", after)]
    values = [m.farther - m.nearer for _, rows in sides for m in rows] + [m.asked for m in after]
    low, high = min([0.0, *values]), max([0.1, *values])
    x = Scale(low - 0.03 * (high - low), high * 1.04, 150, WIDTH - 80)
    bottom = 24 + 26 * len(after)
    parts = bottom_axis(x, bottom, 20, "negative's distance less positive's (Euclidean)")
    parts += [text(140, 14, "level", "soft", "end"), text(WIDTH - 6, 14, "draws", "soft", "end")]
    parts.append(line(x(0), 20, x(0), bottom, "axis"))
    known = {m.level: m for m in before or []}
    for row, margin in enumerate(after):
        y = 24 + 26 * row + 13
        parts.append(text(140, y + 4, str(margin.level), "", "end"))
        parts.append(text(WIDTH - 6, y + 4, str(margin.draws), "soft", "end"))
        now = x(margin.farther - margin.nearer)
        if margin.level in known:
            then = x(known[margin.level].farther - known[margin.level].nearer)
            parts.append(line(then, y, now, y, "moved"))
            parts.append(mark("circle", then, y, "point before", 5))
        parts.append(mark("circle", now, y, "point after", 5))
        parts.append(line(x(margin.asked), y - 10, x(margin.asked), y + 10, f"asked {asked}"))
    return drawing(WIDTH, bottom + 42, title, parts)


def recalls(runs: Iterable[Run]) -> tuple[float, float]:
    """The range of all recalls, with some room: of all charts, so that they can be compared."""
    found = [r for run in runs for r in (run.recall5, run.recall10, run.untrained5, run.untrained10)]
    low, high = min(found), max(found)
    pad = (high - low) * 0.1 or 0.01
    return max(0.0, low - pad), high + pad


def lines(name: str, runs: Sequence[Run], own: float, within: tuple[float, float], title: str) -> Markup:
    """Recall over one setting: R@10 solid with discs, R@5 dashed with squares, untrained dotted."""
    values = [getattr(run, name) for run in runs]
    x, y = Scale(min(values), max(values), 54, 330), Scale(*within, 190, 16)
    parts = [line(54, y(t), 330, y(t), "grid") for t in ticks(y.low, y.high, 5)]
    parts += [text(48, y(t) + 4, f"{t:g}", "soft", "end") for t in ticks(y.low, y.high, 5)]
    parts += [text(x(v), 208, f"{v:g}", "soft", "middle") for v in dict.fromkeys(values)]
    parts += [line(54, 190, 330, 190, "axis"), text(192, 240, name.replace("_", " "), "soft", "middle")]
    parts.append(text(x(own), 223, "▲ ranker's", "soft", "middle"))
    for measure, kind, shape in (("recall10", "ten", "circle"), ("recall5", "five", "square")):
        plain = getattr(runs[0], measure.replace("recall", "untrained"))
        parts.append(line(54, y(plain), 330, y(plain), "plain"))
        points = [(x(v), y(getattr(run, measure))) for v, run in zip(values, runs)]
        path = "L".join(f"{a:g} {b:g}" for a, b in points)
        parts.append(f'<path class="curve {kind}" d="M{path}"/>')
        for (a, b), run in zip(points, runs):
            parts.append(mark(shape, a, b, f"knot {kind}", 4, number(getattr(run, measure), 4)))
        parts.append(text(336, y(plain) + 4, "R@" + measure[6:], "soft"))
    return drawing(372, 250, title, parts)
