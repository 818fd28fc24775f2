"""The figures in their page, ``templates/concept.html``."""

from __future__ import annotations

from rerank.reports.concept.figures import ConceptFigures
from rerank.reports.dense.charts import histograms
from rerank.reports.dense.maps import draw_map, marks
from rerank.reports.dense.neighbours import NEAREST
from rerank.reports.pages import render

COUNTED = {
    "repeated": "are there once more with the same label",
    "reflexive": "pair a document with itself",
    "disagreeing": "are labelled both ways, and left out",
    "contradictions": "are labelled as unrelated within a component",
}
"""What is found in pairs, for people."""


def page(figures: ConceptFigures) -> str:
    """Write the page."""
    sides = [("after training" if figures.before else "trained", figures.after)]
    if figures.before is not None:
        sides.insert(0, ("before training", figures.before))
    found = [side.distances for _, side in sides]
    shares = (share for one in found for share in (*one.related_histogram, *one.unrelated_histogram))
    return render(
        "concept.html",
        f=figures,
        s={"layers": None, "random_weights": False, **figures.settings},
        sides=sides,
        counted=[(figures.counts[name], what) for name, what in COUNTED.items() if name in figures.counts],
        top=1.08 * max(shares),
        marks=marks(
            figures.mapped, figures.shown, figures.shown_counts, "other components", "related to none"
        ),
        NEAREST=NEAREST,
        draw_map=draw_map,
        histograms=histograms,
    )
