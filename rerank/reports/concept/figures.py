"""The report as numbers: everything that the page shows, and what ``--json`` prints."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rerank.reports.dense.figures import Mapped, Separation
from rerank.reports.dense.neighbours import Share


@dataclass(frozen=True)
class ConceptSide:
    """One encoder: the trained one, or that before training.

    distances: cosine distances of the pairs. head: AUC of the head on them; None where there is none.
    component: how often the nearest documents of the map are of the same component.
    """

    distances: Separation
    head: float | None
    component: Share | None
    map: list[list[float]]


@dataclass(frozen=True)
class ConceptFigures:
    """All of the report.

    components: those of two documents and more; sizes: size -> how many have it; alone: documents that are
    related to none. counts: what was found in the pairs, see ``PairCounts``.
    shown: the largest components on the map, each by the title of the document nearest to its centroid.
    """

    name: str
    version: str
    settings: dict[str, Any]
    history: list[dict[str, Any]]
    best: int
    share: float
    against: str | None
    remarks: list[str]
    documents: int
    related: int
    unrelated: int
    components: int
    sizes: dict[int, int]
    alone: int
    counts: dict[str, int]
    seed: int
    edges: list[float]
    shown: list[str]
    shown_counts: list[int]
    mapped: list[Mapped]
    after: ConceptSide
    before: ConceptSide | None = None
    out: str = ""

    def rows(self) -> list[dict[str, Any]]:
        """A row before and one after training: what is told at a glance."""
        sides = [("before", self.before)] if self.before is not None else []
        return [
            {
                "": name,
                "AUC, cosine": side.distances.nearer,
                "AUC, head": side.head,
                "nearest of the component": side.component.nearest if side.component else None,
            }
            for name, side in [*sides, ("after", self.after)]
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the figures as JSON values."""
        return asdict(self)
