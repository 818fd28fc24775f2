"""What is near to what: draws of structural positives and negatives, level by level."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rerank.errors import TrainingError, UsageError
from rerank.graph.intimacy import Axis, top_intimacy
from rerank.graph.levels import level_size, levels
from rerank.graph.links import Direction, LinkGraph, hold_out
from rerank.progress import Progress
from rerank.training.dense.config import DenseConfig, Sampling
from rerank.training.dense.texts import Texts

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

ALL = 10_000
"""Documents of a collection for which all that are reachable can be kept."""
TRIES = 50
"""Draws of a document that is not related, before the anchor goes without."""
REDRAWS = 10
"""Draws of another pair where the two are as intimate as each other."""
TIE = 2e-5
"""Relative difference of intimacy below which two documents are as near as each other."""


@dataclass(frozen=True)
class Draw:
    """A structural positive and negative of an anchor: positions of documents, and the level (from 1).

    Level 0, with both -1: the anchor has none.
    """

    anchor: int
    level: int
    positive: int
    negative: int


@dataclass(frozen=True)
class Structure:
    """The related documents of each of N documents, nearest first.

    indptr, ids: those of document i are ``ids[indptr[i]:indptr[i + 1]]``; scores: their intimacy.
    usable:      (N,) bool: documents with text. Only those are related to any.
    most:        so many of them, at most, are positives; the others are only kept out of the negatives. None:
                 all.
    max_level:   levels above this are not drawn; None: all. level: this one is drawn alone; a document with
                 fewer levels has no pair.
    """

    indptr: NDArray[np.int64]
    ids: NDArray[np.int32]
    scores: NDArray[np.float32]
    usable: NDArray[np.bool_]
    most: int | None = None
    max_level: int | None = None
    level: int | None = None

    @classmethod
    def of(
        cls,
        graph: LinkGraph,
        usable: NDArray[np.bool_],
        *,
        sampling: Sampling = "hierarchical",
        most: int = 64,
        grey: int = 0,
        alpha: float = 0.15,
        axis: Axis = "row",
        direction: Direction = "sym",
        tolerance: float = 1e-3,
        max_level: int | None = None,
        level: int | None = None,
        seed: int = 0,
        progress: Callable[[int], object] | None = None,
    ) -> Structure:
        """Rank by intimacy the ``most`` (and ``grey`` more) nearest documents of each; 0: all reachable ones.

        ``row`` takes the linked documents alone, all on one level: what the paper calls naive.
        Raises UsageError where all reachable ones would be too many.
        """
        adjacency = graph.matrix(direction)
        if sampling == "row":
            rows = adjacency.tocoo()
            kept = usable[rows.row] & usable[rows.col]
            return cls._flat(rows.row[kept], rows.col[kept], rows.data[kept], usable, max_level=1)
        if not most and len(usable) > ALL:
            raise UsageError(
                f"of {len(usable)} documents not all related ones can be kept; give --related, for example 64"
            )
        count = most + grey if most else max(1, len(usable) - 1)
        found = top_intimacy(
            adjacency, count, alpha=alpha, axis=axis, tolerance=tolerance, seed=seed, progress=progress
        )
        there = (found.ids >= 0) & usable[:, None] & usable[found.ids]
        rows, columns = np.nonzero(there)
        return cls._flat(
            rows,
            found.ids[rows, columns],
            found.scores[rows, columns],
            usable,
            most=most or None,
            max_level=max_level,
            level=level,
        )

    @classmethod
    def _flat(
        cls,
        rows: NDArray[np.integer],
        ids: NDArray[np.integer],
        scores: NDArray[np.floating],
        usable: NDArray[np.bool_],
        *,
        most: int | None = None,
        max_level: int | None = None,
        level: int | None = None,
    ) -> Structure:
        indptr = np.concatenate(([0], np.cumsum(np.bincount(rows, minlength=len(usable)))))
        return cls(
            indptr.astype(np.int64),
            ids.astype(np.int32),
            scores.astype(np.float32),
            usable,
            most,
            max_level,
            level,
        )

    def near(self, document: int) -> NDArray[np.int32]:
        """All documents that are no negatives of this one, nearest first."""
        return self.ids[self.indptr[document] : self.indptr[document + 1]]

    def related(self, document: int) -> int:
        """n_i: how many of :meth:`near` are positives."""
        count = len(self.near(document))
        return count if self.most is None else min(count, self.most)

    def matrix(self) -> csr_matrix:
        """(N, N) bool-like CSR of :meth:`near`."""
        from scipy.sparse import csr_matrix

        size = len(self.usable)
        return csr_matrix((np.ones(len(self.ids), np.int8), self.ids, self.indptr), shape=(size, size))

    def draw(self, anchor: int, rng: np.random.Generator) -> Draw:
        """Draw level, positive and negative (Raman et al. 2021, equations 2 and 3).

        Where the two are as intimate as each other, others are drawn, at most REDRAWS times.
        """
        count = self.related(anchor)
        top = levels(count)
        if self.max_level is not None:
            top = min(top, self.max_level)
        least = 1
        if self.level is not None:
            least, top = self.level, self.level if self.level <= top else 0
        nothing = Draw(anchor, 0, -1, -1)
        if not top:
            return nothing
        near = self.near(anchor)
        scores = self.scores[self.indptr[anchor] : self.indptr[anchor + 1]]
        for _ in range(REDRAWS):
            level = int(rng.integers(least, top + 1))
            size = level_size(count, level)
            positive = int(rng.integers(size))
            if level == 1:
                other = self._unrelated(anchor, near, rng)
                if other >= 0:
                    return Draw(anchor, 1, int(near[positive]), other)
                least = 2
                if top < 2:
                    return nothing
                continue
            negative = int(rng.integers(size, level_size(count, level - 1)))
            if scores[positive] - scores[negative] > TIE * scores[positive]:
                return Draw(anchor, level, int(near[positive]), int(near[negative]))
        return nothing

    def _unrelated(self, anchor: int, near: NDArray[np.int32], rng: np.random.Generator) -> int:
        for drawn in rng.integers(len(self.usable), size=TRIES).tolist():
            if drawn != anchor and self.usable[drawn] and drawn not in near:
                return int(drawn)
        return -1


def prepare_structure(
    texts: Texts, config: DenseConfig, progress: Progress
) -> tuple[LinkGraph, NDArray[np.int32], Structure]:
    """Hold links out, then rank what is related: (graph that is left, (H, 2) held-out pairs, structure).

    Raises TrainingError where there is nothing to learn from.
    """
    if not texts.usable.any():
        raise TrainingError("no document has any text; dense has nothing to learn from")
    if not texts.graph.adjacency.nnz:
        raise TrainingError(_nothing(texts, config))
    graph, held = hold_out(texts.graph, config.held_out, config.seed)
    progress.start("intimacy", len(texts.titles), "doc")
    try:
        structure = Structure.of(
            graph,
            texts.usable,
            sampling=config.pairs,
            most=config.related,
            grey=config.grey,
            alpha=config.alpha,
            axis=config.axis,
            direction=config.direction,
            tolerance=config.tolerance,
            max_level=config.max_level,
            level=config.level,
            seed=config.seed,
            progress=progress.advance,
        )
    finally:
        progress.finish()
    if not len(structure.ids):
        raise TrainingError(
            f"no two documents {RELATED[config.structure_from]} have text; dense has nothing to learn from"
        )
    return graph, held, structure


RELATED = {
    "links": "that are linked",
    "categories": "that share a category",
    "cocitation": "that are linked by the same third one",
}
"""Which documents a relation relates."""


def _nothing(texts: Texts, config: DenseConfig) -> str:
    """What to do where no two documents are related."""
    counts = texts.graph.counts
    judged = "or train s2net or text on judged queries"
    if config.structure_from == "categories":
        return (
            f"no two documents share a category ({texts.categorised} have any; one that more than half of the"
            f" documents have does not count); give documents `categories`, or `links` and --structure-from"
            f" links, {judged}"
        )
    if config.structure_from == "cocitation":
        return (
            f"no two documents are linked by the same third one ({counts.links} links); use --structure-from"
            f" links or categories, {judged}"
        )
    others = (
        f"or learn from shared categories with --structure-from categories ({texts.categorised} documents"
        " have some)"
        if texts.categorised
        else "or `categories` and --structure-from categories"
    )
    return (
        f"the documents have no links to each other ({counts.unknown} to unknown ids, {counts.self_links}"
        " to themselves), and dense learns from links; give documents `links` (citations, hyperlinks, related"
        f" items), {others}, {judged}"
    )
