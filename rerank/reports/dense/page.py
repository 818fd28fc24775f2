"""The figures in their page, ``templates/dense.html``."""

from __future__ import annotations

from collections.abc import Iterable

from markupsafe import Markup

from rerank.reports.dense.charts import boxes, gaps, histograms, lines, recalls
from rerank.reports.dense.discs import disc, span
from rerank.reports.dense.figures import Figures, Separation
from rerank.reports.dense.maps import draw_map, marks
from rerank.reports.dense.measuring import CONSTANT
from rerank.reports.dense.nearest import SHOWN
from rerank.reports.dense.neighbours import NEAREST
from rerank.reports.dense.subgraphs import draw_subgraphs
from rerank.reports.pages import render

NO_MARGIN = ("contrastive", "semantics")
"""Objectives that ask for no structural margin."""
ASKED = {"constant": "at every level", "geometric": "at level 1, halved from level to level"}
RELATED = {
    "categories": "having a category in common",
    "cocitation": "being linked by the same third document",
}
"""What relates documents, where it is not their links."""


def page(figures: Figures) -> str:
    """Write the page."""
    settings = figures.settings
    objective = str(settings["objective"])
    schedule = "constant" if objective in CONSTANT else settings.get("margin", "harmonic")
    sides = [("after training" if figures.before else "trained", figures.after)]
    if figures.before is not None:
        sides.insert(0, ("before training", figures.before))
    low, high = span(*(side.rings for _, side in sides))
    hops_low, hops_high = span(*(side.hop_rings for _, side in sides))
    best = (figures.best, figures.share)
    return render(
        "dense.html",
        f=figures,
        s={"layers": None, "random_weights": False, **settings},
        sides=sides,
        related_by=RELATED.get(settings.get("structure_from", "links")),
        kept=next((one for one in figures.history if (one["step"], one.get("share", 1.0)) == best), None),
        asks=None if objective in NO_MARGIN else ASKED.get(schedule, "divided by the level"),
        low=low,
        high=high,
        hops_low=hops_low,
        hops_high=hops_high,
        marks=marks(figures.mapped, figures.categories, figures.category_counts),
        NEAREST=NEAREST,
        SHOWN=SHOWN,
        highest=_highest,
        wide=Markup('<div class="wide">{}</div>').format,
        boxes=boxes,
        disc=disc,
        draw_map=draw_map,
        draw_subgraphs=draw_subgraphs,
        gaps=gaps,
        histograms=histograms,
        lines=lines,
        recalls=recalls,
    )


def _highest(found: Iterable[Separation]) -> float:
    """Where the histograms end: a little above the largest share."""
    return 1.08 * max(share for one in found for share in (*one.related_histogram, *one.unrelated_histogram))
