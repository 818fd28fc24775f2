"""The report as numbers: everything that the page shows, and what ``--json`` prints."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rerank.reports.dense.nearest import Asked
from rerank.reports.dense.neighbours import Share
from rerank.reports.dense.numbers import Order
from rerank.reports.dense.sensitivity import Sensitivity


@dataclass(frozen=True)
class Separation:
    """Cosine distances of related and of unrelated pairs (figure 5 of the paper).

    pairs: of each; nearer: probability that a related pair is nearer than an unrelated one; same_anchor: than
    the unrelated one of the same anchor. related, unrelated: quantiles; *_histogram: shares of the bins.
    """

    pairs: int
    nearer: float | None
    same_anchor: float | None
    related: list[float] | None
    unrelated: list[float] | None
    related_histogram: list[float]
    unrelated_histogram: list[float]


@dataclass(frozen=True)
class Group:
    """Cosine distances of the pairs of one level, or of as many hops: quantiles."""

    group: str
    pairs: int
    quantiles: list[float] | None


@dataclass(frozen=True)
class Ring:
    """The documents of one level, or of as many hops, around their anchors (figure 7 of the paper).

    mean: Euclidean distance; some: those of some documents.
    """

    group: str
    pairs: int
    mean: float
    some: list[float]


@dataclass(frozen=True)
class Margin:
    """Structural pairs of one level: how much farther the negative is, and what the loss asks for.

    nearer, farther: mean Euclidean distances of positive and negative; in_order: share of the draws with the
    positive nearer; kept: by the margin at least.
    """

    level: int
    draws: int
    asked: float
    nearer: float
    farther: float
    in_order: float
    kept: float


@dataclass(frozen=True)
class Side:
    """One encoder: the trained one, or that before training."""

    linked: Separation
    held_out: Separation
    levels: list[Group]
    level_order: Order | None
    hops: list[Group]
    hop_order: Order | None
    rings: list[Ring]
    hop_rings: list[Ring]
    margins: list[Margin]
    length: float
    """Mean length of a vector, before it is divided by it."""
    map: list[list[float]]
    common_category: Share | None
    common_link: Share | None
    common_held_out: Share | None
    subgraphs: list[list[float]]
    """Where the documents of the subgraphs lie."""
    same_subgraph: Share | None


@dataclass(frozen=True)
class Mapped:
    """A document of the map: mark as in ``neighbours.Legend``, or its subgraph."""

    id: str
    title: str
    mark: int


@dataclass(frozen=True)
class Figures:
    """All of the report.

    before: None where the start is not at hand; ``remarks`` say why. same: the documents and links are those
    of the training; otherwise nobody can tell which links were held out, and none is counted as such.
    subgraphs: documents of a few subgraphs, subgraph_links: which of them are linked, subgraph_layout: places
        that keep the number of links between. asked: what some documents find.
    edges: of the bins of the histograms. best, share: the step that was kept, and how much of the way to it.
    """

    version: str
    settings: dict[str, Any]
    history: list[dict[str, Any]]
    best: int
    share: float
    against: str | None
    same: bool
    remarks: list[str]
    documents: int
    without_text: int
    links: int
    linked_pairs: int
    held_out_pairs: int
    anchors: int
    encoded: int
    seed: int
    edges: list[float]
    categories: list[str]
    category_counts: list[int]
    categories_left_out: list[str]
    mapped: list[Mapped]
    subgraphs: list[Mapped]
    subgraph_links: list[list[int]]
    subgraph_layout: list[list[float]]
    asked: list[Asked]
    after: Side
    before: Side | None = None
    sensitivity: Sensitivity | None = None
    out: str = ""

    def rows(self) -> list[dict[str, Any]]:
        """A row before and one after training: what is told at a glance."""
        sides = [("before", self.before)] if self.before is not None else []
        return [
            {
                "": name,
                "linked nearer": side.linked.nearer,
                "held-out nearer": side.held_out.nearer,
                "levels": side.level_order.correlation if side.level_order else None,
                "hops": side.hop_order.correlation if side.hop_order else None,
            }
            for name, side in [*sides, ("after", self.after)]
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the figures as JSON values."""
        return asdict(self)
