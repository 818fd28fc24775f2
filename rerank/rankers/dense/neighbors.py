"""Related documents; choice of positives and negatives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rerank.errors import TrainingError, UsageError
from rerank.progress import Progress
from rerank.rankers.dense.config import DenseConfig
from rerank.rankers.dense.texts import Texts
from rerank.rankers.dense.triplets import EACH, TripletSampler
from rerank.rankers.graphs.citations import Citations
from rerank.rankers.graphs.cocitation import LEVELS, Ids, Level
from rerank.rankers.graphs.links import LinkGraph
from rerank.rankers.graphs.pagerank import top_pagerank
from rerank.text import plural

TRIES = 50
"""Draws of a document that is not related."""
REDRAWS = 10
"""Draws of another pair if both documents have the same score."""
TIE = 2e-5
"""Relative difference of scores below which they are equal."""
ALL = 10_000
"""Documents of a collection up to which all reachable documents can be related."""


class StructuralPair(NamedTuple):
    """Pair of an anchor. Level 0: none, positions -1."""

    anchor: int
    level: int = 0
    positive: int = -1
    negative: int = -1


@dataclass(frozen=True)
class Neighbors:
    """Related documents, nearest first.

    indptr, ids: ``ids[indptr[i]:indptr[i + 1]]`` are related to document i.
    scores:      nearness.
    usable:      (N,) bool: with text.
    """

    indptr: NDArray[np.int64]
    ids: NDArray[np.int32]
    scores: NDArray[np.float32]
    usable: NDArray[np.bool_]

    @classmethod
    def of(cls, rows: ArrayLike, ids: ArrayLike, scores: ArrayLike, usable: NDArray[np.bool_]) -> Neighbors:
        """Build from documents, ascending, and related documents."""
        counts = np.bincount(np.asarray(rows, dtype=np.int64), minlength=len(usable))
        indptr = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        return cls(indptr, np.asarray(ids, dtype=np.int32), np.asarray(scores, dtype=np.float32), usable)

    def near(self, document: int) -> NDArray[np.int32]:
        """Return documents that are never negatives."""
        return self.ids[self.indptr[document] : self.indptr[document + 1]]

    @property
    def paired(self) -> NDArray[np.bool_]:
        """Documents with a positive, (N,) bool."""
        return self.turns() > 0

    def turns(self) -> NDArray[np.int64]:
        """Return pairs of an epoch per document, (N,)."""
        return np.minimum(np.diff(self.indptr), 1)

    def unrelated(self, document: int, rng: np.random.Generator) -> int:
        """Draw an unrelated document; -1 after TRIES draws."""
        near = self.near(document)
        for drawn in rng.integers(len(self.usable), size=TRIES).tolist():
            if drawn != document and self.usable[drawn] and drawn not in near:
                return int(drawn)
        return -1

    def draw(self, anchor: int, rng: np.random.Generator, turn: int = 0) -> StructuralPair:
        """Draw level, positive and negative (Raman et al. 2021, equations 2 and 3).

        Positives of level l: the n_l nearest documents. Negatives: other positives of level l - 1.
        Equal scores are drawn again, up to REDRAWS times.
        """
        near = self.near(anchor)
        count, least, top = len(near), 1, levels(len(near))
        scores = self.scores[self.indptr[anchor] : self.indptr[anchor + 1]]
        for _ in range(REDRAWS):
            if least > top:
                break
            level = int(rng.integers(least, top + 1))
            size = level_size(count, level)
            positive = int(rng.integers(size))
            if level == 1:
                other = self.unrelated(anchor, rng)
                if other >= 0:
                    return StructuralPair(anchor, 1, int(near[positive]), other)
                least = 2
                continue
            negative = int(rng.integers(size, level_size(count, level - 1)))
            if scores[positive] - scores[negative] > TIE * scores[positive]:
                return StructuralPair(anchor, level, int(near[positive]), int(near[negative]))
        return StructuralPair(anchor)


@dataclass(frozen=True)
class CitedNeighbors(Neighbors):
    """Texts cited together (Ding et al.).

    triplets: sampler.
    texts:    (V,) text per reference.
    refs:     (N,) reference per text; -1: none.
    """

    triplets: TripletSampler = field(kw_only=True)
    texts: Ids = field(kw_only=True)
    refs: Ids = field(kw_only=True)

    def near(self, document: int) -> NDArray[np.int32]:
        """Return texts cited nearby; never negatives."""
        ref = int(self.refs[document])
        if ref < 0 or not self.usable[document]:
            return np.zeros(0, np.int32)
        refs = self.triplets.network.neighbors(ref, self.triplets.widest)
        return self.texts[refs[self.triplets.usable[refs]]]

    def turns(self) -> NDArray[np.int64]:
        """Return triplets per text, (N,)."""
        found = np.zeros(len(self.usable), np.int64)
        found[self.texts[self.triplets.targets()]] = EACH
        return found

    def draw(self, anchor: int, rng: np.random.Generator, turn: int = 0) -> StructuralPair:
        """Draw a triplet, another one each turn."""
        found = self.triplets.draw(int(self.refs[anchor]), rng) if self.refs[anchor] >= 0 else []
        if turn >= len(found):
            return StructuralPair(anchor)
        return StructuralPair(anchor, 1, *(int(self.texts[ref]) for ref in found[turn]))


def levels(related: int) -> int:
    """Return the number of levels, 1 + ceil(log2 n); 0 for none."""
    return (related - 1).bit_length() + 1 if related > 0 else 0


def level_size(related: int, level: int) -> int:
    """Return the number of positives, ceil(n / 2^(l-1))."""
    return (related + (1 << (level - 1)) - 1) >> (level - 1)


def by_pagerank(
    graph: LinkGraph,
    usable: NDArray[np.bool_],
    related: int = 64,
    *,
    seed: int = 0,
    progress: Callable[[int], object] | None = None,
) -> Neighbors:
    """Rank documents by personalized PageRank (Raman et al. 2021, equation 1).

    usable:  (N,) bool: with text.
    related: maximum per document; 0: all.

    Raises UsageError for ``related=0`` with more than ALL documents.
    """
    if not related and len(usable) > ALL:
        raise UsageError(
            f"of {plural(len(usable), 'document[|s]')} not all related ones can be kept; give"
            f" --related, for example 64"
        )
    count = related or max(1, len(usable) - 1)
    ids, scores = top_pagerank(graph.matrix, count, seed=seed, progress=progress)
    rows, columns = np.nonzero((ids >= 0) & usable[:, None] & usable[ids])
    return Neighbors.of(rows, ids[rows, columns], scores[rows, columns], usable)


def by_citations(graph: Citations, usable: NDArray[np.bool_], level: Level) -> CitedNeighbors:
    """Return neighbors from triplets; see :class:`TripletSampler`."""
    network = graph.network
    texts, refs = graph.places(network)
    with_text = texts >= 0
    with_text[with_text] = usable[texts[with_text]]
    place = {key: place for place, key in enumerate(network.keys)}
    direct: dict[int, list[int]] = {}
    for paper, mentions in graph.papers():
        if (citing := place.get(paper)) is not None:
            cited = [place[one.reference] for one in mentions if one.reference != paper]
            direct.setdefault(citing, []).extend(cited)
            for one in cited:
                direct.setdefault(one, []).append(citing)
    triplets = TripletSampler(network, with_text, level, direct)
    nothing = Neighbors.of([], [], [], usable)
    return CitedNeighbors(**vars(nothing), triplets=triplets, texts=texts, refs=refs)


@dataclass(frozen=True)
class Structure:
    """Structure to learn.

    graph:     without held-out pairs.
    held_out:  (H, 2) pairs.
    neighbors: in the graph.
    """

    graph: LinkGraph | Citations
    held_out: NDArray[np.int32]
    neighbors: Neighbors

    @classmethod
    def find(cls, texts: Texts, config: DenseConfig, progress: Progress | None = None) -> Structure:
        """Hold out pairs; compute neighbors. Raises TrainingError without related documents."""
        usable = texts.usable
        if not usable.any():
            raise TrainingError("no document has any text; dense has nothing to learn from")
        graph, held = texts.graph.hold_out(config.held_out, config.seed)
        if isinstance(graph, Citations):
            assert config.strategy is not None
            found: Neighbors = by_citations(graph, usable, config.strategy)
        else:
            with (progress or Progress()).step("neighbors", len(usable), "doc") as advance:
                found = by_pagerank(graph, usable, config.related, seed=config.seed, progress=advance)
        if not found.paired.any():
            raise TrainingError(_no_pair(graph, config))
        return cls(graph, held, found)


def _no_pair(graph: LinkGraph | Citations, config: DenseConfig) -> str:
    if isinstance(graph, Citations):
        levels = [level for level in LEVELS if len(graph.pairs_of(graph.network, level))]
        advice = f"give --strategy {levels[0]}" if levels else "give documents `citations`"
        return f"--strategy {config.strategy} finds no two texts to learn from; {advice}"
    return (
        f"no two linked documents have text ({plural(graph.unknown, 'link[|s]')} to unknown ids); give"
        " documents `links` (citations, hyperlinks, related items), or add --untrained, or --queries and"
        " --qrels"
    )
