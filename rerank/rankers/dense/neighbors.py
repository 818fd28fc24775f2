"""Related documents; choice of positives and negatives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rerank.common.errors import TrainingError
from rerank.common.progress import SILENT, Progress, ignore_count
from rerank.documents.text import count_of
from rerank.rankers.dense.config import DenseConfig
from rerank.rankers.dense.texts import Texts
from rerank.rankers.dense.triplets import TRIPLETS_PER_TARGET, TripletSampler
from rerank.rankers.graphs.citations import Citations
from rerank.rankers.graphs.cocitation import LEVELS, Ids, Level
from rerank.rankers.graphs.links import MAX_SHARED, LinkGraph
from rerank.rankers.graphs.pagerank import top_pagerank

NEGATIVE_DRAWS = 50
"""Draws of a document that is not related."""
PAIR_DRAWS = 10
"""Draws of another pair if both documents have the same score."""
SCORE_TIE = 2e-5
"""Relative difference of scores below which they are equal."""


class StructuralPair(NamedTuple):
    """The positive and the negative document of an anchor. Without a pair, the level is 0 and both are -1."""

    anchor: int
    level: int = 0
    positive: int = -1
    negative: int = -1


@dataclass(frozen=True)
class Neighbors:
    """The related documents of each of N documents, nearest first.

    indptr: (N + 1,) ``ids[indptr[i]:indptr[i + 1]]`` are related to document i.
    ids:    the related documents of all documents, one after the other.
    scores: how near each related document is.
    usable: (N,) bool, which documents have a text.
    """

    indptr: NDArray[np.int64]
    ids: NDArray[np.int32]
    scores: NDArray[np.float32]
    usable: NDArray[np.bool_]

    @classmethod
    def from_pairs(
        cls, rows: ArrayLike, ids: ArrayLike, scores: ArrayLike, usable: NDArray[np.bool_]
    ) -> Neighbors:
        """Build it from P pairs of a document and a related one.

        rows:   (P,) the documents, ascending.
        ids:    (P,) the related documents, nearest first for each document.
        scores: (P,) how near they are.
        """
        counts = np.bincount(np.asarray(rows, dtype=np.int64), minlength=len(usable))
        indptr = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        return cls(indptr, np.asarray(ids, dtype=np.int32), np.asarray(scores, dtype=np.float32), usable)

    def near(self, document: int) -> NDArray[np.int32]:
        """Return the documents that are related to a document, and so never its negatives, nearest first."""
        return self.ids[self.indptr[document] : self.indptr[document + 1]]

    @property
    def paired(self) -> NDArray[np.bool_]:
        """Which of the N documents have a positive, so that they can be anchors: (N,) bool."""
        return self.turns() > 0

    def turns(self) -> NDArray[np.int64]:
        """Return how many pairs an epoch has with each document as the anchor, (N,)."""
        return np.minimum(np.diff(self.indptr), 1)

    def unrelated(self, document: int, rng: np.random.Generator) -> int:
        """Draw a document that is not related; -1 if NEGATIVE_DRAWS draws found none."""
        near = self.near(document)
        for drawn in rng.integers(len(self.usable), size=NEGATIVE_DRAWS).tolist():
            if drawn != document and self.usable[drawn] and drawn not in near:
                return int(drawn)
        return -1

    def draw(self, anchor: int, rng: np.random.Generator, turn: int = 0) -> StructuralPair:
        """Draw a level, a positive and a negative (Raman et al. 2021, equations 2 and 3).

        The positives of level l are the n_l nearest documents, and its negatives are the other positives of
        level l - 1. Documents with equal scores are drawn again, up to PAIR_DRAWS times.

        turn: counts the pairs of an anchor in an epoch, from 0.
        """
        near = self.near(anchor)
        count = len(near)
        lowest = 1
        highest = levels(count)
        scores = self.scores[self.indptr[anchor] : self.indptr[anchor + 1]]
        for _ in range(PAIR_DRAWS):
            if lowest > highest:
                break
            level = int(rng.integers(lowest, highest + 1))
            size = level_size(count, level)
            positive = int(rng.integers(size))
            if level == 1:
                unrelated = self.unrelated(anchor, rng)
                if unrelated >= 0:
                    return StructuralPair(anchor, 1, int(near[positive]), unrelated)
                lowest = 2
                continue
            negative = int(rng.integers(size, level_size(count, level - 1)))
            if scores[positive] - scores[negative] > SCORE_TIE * scores[positive]:
                return StructuralPair(anchor, level, int(near[positive]), int(near[negative]))
        return StructuralPair(anchor)


class LinkedNeighbors(Neighbors):
    """Linked documents, without levels of nearness. The ``scores`` are the weights of the links."""

    def draw(self, anchor: int, rng: np.random.Generator, turn: int = 0) -> StructuralPair:
        """Draw a linked document by the weights of the links, and an unrelated one."""
        near = self.near(anchor)
        if not len(near):
            return StructuralPair(anchor)
        totals = np.cumsum(self.scores[self.indptr[anchor] : self.indptr[anchor + 1]], dtype=np.float64)
        position = int(np.searchsorted(totals, rng.random() * totals[-1], side="right"))
        unrelated = self.unrelated(anchor, rng)
        if unrelated < 0:
            return StructuralPair(anchor)
        return StructuralPair(anchor, 1, int(near[min(position, len(near) - 1)]), unrelated)


@dataclass(frozen=True)
class CitedNeighbors(Neighbors):
    """Texts that are cited together (Ding et al.).

    triplets: draws the positives and negatives.
    texts:    (V,) the text of each reference; -1 for none.
    refs:     (N,) the reference of each text; -1 for none.
    """

    triplets: TripletSampler = field(kw_only=True)
    texts: Ids = field(kw_only=True)
    refs: Ids = field(kw_only=True)

    def near(self, document: int) -> NDArray[np.int32]:
        """Return the texts that are cited near a text, and so never its negatives."""
        ref = int(self.refs[document])
        if ref < 0 or not self.usable[document]:
            return np.zeros(0, np.int32)
        refs = self.triplets.network.neighbors(ref, self.triplets.widest)
        return self.texts[refs[self.triplets.usable[refs]]]

    def turns(self) -> NDArray[np.int64]:
        """Return how many triplets of each text an epoch has, (N,)."""
        counts = np.zeros(len(self.usable), np.int64)
        counts[self.texts[self.triplets.targets()]] = TRIPLETS_PER_TARGET
        return counts

    def draw(self, anchor: int, rng: np.random.Generator, turn: int = 0) -> StructuralPair:
        """Draw a triplet, another one each turn."""
        ref = int(self.refs[anchor])
        triplets = self.triplets.draw(ref, rng) if ref >= 0 else []
        if turn >= len(triplets):
            return StructuralPair(anchor)
        positive, negative = triplets[turn]
        return StructuralPair(anchor, 1, int(self.texts[positive]), int(self.texts[negative]))


def levels(related: int) -> int:
    """Return the number of levels of n related documents, 1 + ceil(log2 n); 0 without any."""
    return (related - 1).bit_length() + 1 if related > 0 else 0


def level_size(related: int, level: int) -> int:
    """Return the number of positives of level l with n related documents, ceil(n / 2^(l-1))."""
    return (related + (1 << (level - 1)) - 1) >> (level - 1)


def by_pagerank(
    graph: LinkGraph,
    usable: NDArray[np.bool_],
    related: int = 64,
    *,
    seed: int = 0,
    progress: Callable[[int], object] = ignore_count,
) -> Neighbors:
    """Return the related documents by personalized PageRank (Raman et al. 2021, equation 1).

    usable:  (N,) bool, which documents have a text.
    related: the maximum number for each document; 0 sets no limit.

    Raises UsageError for too many documents.
    """
    count = related or max(1, len(usable) - 1)
    ids, scores = top_pagerank(graph.matrix, count, seed=seed, progress=progress)
    rows, columns = np.nonzero((ids >= 0) & usable[:, None] & usable[ids])
    return Neighbors.from_pairs(rows, ids[rows, columns], scores[rows, columns], usable)


def by_links(graph: LinkGraph, usable: NDArray[np.bool_]) -> Neighbors:
    """Return the linked documents. usable: (N,) bool, which documents have a text."""
    links = graph.matrix.tocoo()
    with_text = usable[links.row] & usable[links.col]
    return LinkedNeighbors.from_pairs(
        links.row[with_text], links.col[with_text], links.data[with_text], usable
    )


def by_citations(graph: Citations, usable: NDArray[np.bool_], level: Level) -> CitedNeighbors:
    """Return the texts that are cited together at a level; see :class:`TripletSampler`."""
    network = graph.network
    texts, refs = graph.match_texts(network)
    with_text = texts >= 0
    with_text[with_text] = usable[texts[with_text]]
    triplets = TripletSampler(network, with_text, level, _direct_citations(graph))
    nothing = Neighbors.from_pairs([], [], [], usable)
    return CitedNeighbors(
        indptr=nothing.indptr,
        ids=nothing.ids,
        scores=nothing.scores,
        usable=usable,
        triplets=triplets,
        texts=texts,
        refs=refs,
    )


def _direct_citations(graph: Citations) -> dict[int, list[int]]:
    """Return the references that each reference cites or that cite it."""
    ref_of = {key: ref for ref, key in enumerate(graph.network.keys)}
    direct: dict[int, list[int]] = {}
    for paper, mentions in graph.papers():
        citing = ref_of.get(paper)
        if citing is None:
            continue
        for mention in mentions:
            if mention.reference != paper:
                cited = ref_of[mention.reference]
                direct.setdefault(citing, []).append(cited)
                direct.setdefault(cited, []).append(citing)
    return direct


@dataclass(frozen=True)
class Structure:
    """The relations that a training learns, and the pairs that measure it.

    graph:     the relations without the held-out pairs.
    held_out:  (H, 2) the held-out pairs.
    neighbors: the related documents in the graph.
    """

    graph: LinkGraph | Citations
    held_out: NDArray[np.int32]
    neighbors: Neighbors

    @classmethod
    def find(cls, texts: Texts, config: DenseConfig, progress: Progress = SILENT) -> Structure:
        """Hold out a share of the pairs, and find the related documents.

        Raises TrainingError if no two documents with text are related.
        """
        usable = texts.usable
        if not usable.any():
            raise TrainingError("no document has any text; dense has nothing to learn from")
        graph, held_out = texts.graph.hold_out(config.held_out, config.seed)
        if isinstance(graph, Citations):
            assert config.strategy is not None
            neighbors: Neighbors = by_citations(graph, usable, config.strategy)
        elif config.objective == "quintuplet":
            with progress.step("neighbors", len(usable), "doc") as advance:
                neighbors = by_pagerank(graph, usable, config.related, seed=config.seed, progress=advance)
        else:
            neighbors = by_links(graph, usable)
        if not neighbors.paired.any():
            raise TrainingError(_no_pair(graph, config))
        return cls(graph, held_out, neighbors)


def _no_pair(graph: LinkGraph | Citations, config: DenseConfig) -> str:
    """Return the error for documents without a relation to learn."""
    if isinstance(graph, Citations):
        levels = [level for level in LEVELS if len(graph.pairs_of(graph.network, level))]
        advice = f"give --strategy {levels[0]}" if levels else "give documents `citations`"
        return f"--strategy {config.strategy} finds no two texts to learn from; {advice}"
    if config.relation == "categories":
        return (
            f"no two documents with text share a category that at most {MAX_SHARED} documents have; give"
            " documents `categories`, or learn from --relation links"
        )
    return (
        f"no two linked documents have text ({count_of(graph.unknown, 'link')} to unknown ids); give"
        " documents `links` (citations, hyperlinks, related items), or add --untrained, or --queries and"
        " --qrels"
    )
