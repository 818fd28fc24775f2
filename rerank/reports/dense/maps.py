"""The map of a sample: one mark a document, by category, with its title (figure 6 of the paper)."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from rerank.reports.dense.figures import Mapped
from rerank.reports.dense.neighbours import NONE
from rerank.reports.dense.svg import SHAPES, drawing, mark

SIZE, EDGE, TITLE = 360, 10, 80


def draw_map(points: Sequence[Sequence[float]], mapped: Sequence[Mapped], title: str) -> str:
    """Documents with a mark of their own lie over the others."""
    order = sorted(range(len(points)), key=lambda i: (mapped[i].mark >= 0, mapped[i].mark == NONE, i))
    parts = []
    for i in order:
        x, y = (round(EDGE + (SIZE - 2 * EDGE) * c, 1) for c in points[i][:2])
        one = mapped[i]
        words = " ".join((one.title or one.id).split())
        name = words if len(words) <= TITLE else words[: TITLE - 1] + "…"
        if one.mark >= 0:
            parts.append(mark(SHAPES[one.mark], x, y, f"spot c{one.mark}", 3, name))
        else:
            parts.append(mark("circle", x, y, "none" if one.mark == NONE else "other", 1.9, name))
    return drawing(SIZE, SIZE, title, parts, f"{len(points)} documents")


def key(names: Sequence[str], counts: Sequence[int], rest: int, without: int) -> str:
    """List the marks, their categories and how many documents have them."""
    rows = [
        (mark(SHAPES[i], 8, 8, f"spot c{i}", 4.4), name, count)
        for i, (name, count) in enumerate(zip(names, counts))
    ]
    if rest:
        rows.append((mark("circle", 8, 8, "other", 3), "other categories", rest))
    if without:
        rows.append((mark("circle", 8, 8, "none", 3), "no category", without))
    items = (
        f'<li><svg width="16" height="16" viewBox="0 0 16 16" aria-hidden="true">{sign}</svg>'
        f" {escape(name)} <span>{count}</span></li>"
        for sign, name, count in rows
    )
    return f'<ul class="key">{"".join(items)}</ul>'
