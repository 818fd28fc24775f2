"""The map of a sample: one mark a document, by category, with its title (figure 6 of the paper)."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from rerank.reports.dense.figures import Mapped
from rerank.reports.dense.neighbours import NONE, OTHER
from rerank.reports.dense.svg import SHAPES, drawing, mark
from rerank.wording import amount

SIZE, EDGE, TITLE = 360, 10, 80


def draw_map(points: Sequence[Sequence[float]], mapped: Sequence[Mapped], title: str) -> Markup:
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
    return drawing(SIZE, SIZE, title, parts, amount(len(points), "document[|s]"))


def marks(
    mapped: Sequence[Mapped],
    names: Sequence[str],
    counts: Sequence[int],
    other: str = "other categories",
    none: str = "no category",
) -> list[tuple[Markup, str, int]]:
    """The marks, what they stand for and how many documents have them."""
    every = [one.mark for one in mapped]
    found = [
        (mark(SHAPES[i], 8, 8, f"spot c{i}", 4.4), name, count)
        for i, (name, count) in enumerate(zip(names, counts))
    ]
    found.append((mark("circle", 8, 8, "other", 3), other, every.count(OTHER)))
    found.append((mark("circle", 8, 8, "none", 3), none, every.count(NONE)))
    return [(drawing(16, 16, "", [sign]), name, count) for sign, name, count in found if count]
