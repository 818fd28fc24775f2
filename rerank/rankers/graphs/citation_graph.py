"""Texts that are cited together as a graph: the documents of a collection, and what they cite outside it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rerank.rankers.graphs.citations import Citations
from rerank.rankers.graphs.cocitation import LEVELS, CoCitations, Ids, Level, Mention
from rerank.rankers.graphs.links import LinkCounts, LinkGraph
from rerank.records import Document

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

WEIGHTS = (8.0, 4.0, 2.0, 1.0)
"""Of a sentence, a paragraph, a section and a document that cites two: so links without places count 1."""
PAIRS = 10_000_000
"""Pairs of texts that a level may give: those of the smallest groups are taken."""


@dataclass(frozen=True)
class Streamed:
    """Documents that stream by once: what ``Citations.of`` reads where there is no engine."""

    stream: Iterable[Document]

    def documents(self) -> Iterator[Document]:
        """The stream."""
        return iter(self.stream)

    def get(self, ids: Sequence[str]) -> list[Document | None]:
        """None of them: they are gone."""
        return [None for _ in ids]


def held_out(key: str, share: float, seed: int = 0) -> bool:
    """Whether a citing document is held out: the MD5 of seed and id, as a fraction, is below the share.

    It depends on nothing else, so new documents do not change it for the others. A document that is held out
    for one share is also held out for every larger one.

    >>> [held_out(f"10.7554/elife.0000{n}", 0.4) for n in range(3, 8)]
    [False, True, True, False, True]
    """
    digest = hashlib.md5(f"{seed} {key}".encode("utf-8", "surrogatepass"), usedforsecurity=False)
    return int.from_bytes(digest.digest()[:8], "big") < share * 2**64


@dataclass(frozen=True)
class CitationGraph(LinkGraph):
    """Texts that are cited together, those of the collection first, then references outside it.

    adjacency: (N, N) how near two texts are cited, all their common groups added up; see :meth:`of`.
    citations: what cites what. away: documents whose citations are not counted.
    weights:   of a common sentence, paragraph, section and document.
    most:      pairs that a level may give. untold: (P, 2) pairs of texts of which nothing is to be learned.
    """

    citations: Citations = field(kw_only=True)
    away: frozenset[str] = frozenset()
    weights: tuple[float, ...] = WEIGHTS
    most: int = PAIRS
    untold: NDArray[np.int32] = field(default_factory=lambda: np.zeros((0, 2), np.int32))

    @classmethod
    def of(  # type: ignore[override]
        cls,
        ids: Sequence[str],
        citations: Citations,
        *,
        weights: tuple[float, ...] = WEIGHTS,
        most: int = PAIRS,
    ) -> CitationGraph:
        """The graph of documents, and of what they cite outside the collection that has a title.

        weights: a pair has the weight of a sentence for each that cites both, that of a paragraph for each
        further paragraph, and so on; so they may not grow. Links without places count as a document.
        """
        outside = [key for key in citations.titles if key not in citations.documents]
        graph = cls([*ids, *outside], _empty(0), citations=citations, weights=weights, most=most)
        return graph.only(frozenset())

    def only(self, away: frozenset[str]) -> CitationGraph:
        """The graph of the same texts, without the citations of some documents."""
        graph = replace(self, away=away)
        adjacency, left_out = graph._weighted()
        counts = graph._counted()
        return replace(graph, adjacency=adjacency, left_out=left_out, counts=counts)._silent()

    def papers(self) -> Iterator[tuple[str, list[Mention]]]:
        """Citing documents that are counted, and their mentions."""
        return ((paper, found) for paper, found in self.citations.papers() if paper not in self.away)

    @cached_property
    def network(self) -> CoCitations:
        """Who is cited together, and where."""
        return CoCitations.of(self.papers())

    @cached_property
    def direct(self) -> CoCitations:
        """The same of direct citations: a document and one that it cites are all that a sentence cites."""
        pairs = dict.fromkeys((paper, one.reference) for paper, found in self.papers() for one in found)
        return CoCitations.of(
            (f"{number}", [Mention(paper, 0, 0, 0), Mention(ref, 0, 0, 0)])
            for number, (paper, ref) in enumerate(pairs)
            if paper != ref
        )

    def places(self, network: CoCitations) -> tuple[Ids, Ids]:
        """(V,) text of each reference of a network, (N,) reference of each text; -1: none."""
        number = {id: place for place, id in enumerate(self.ids)}
        texts = np.array([number.get(key, -1) for key in network.keys], np.int32)
        refs = np.full(len(self.ids), -1, np.int32)
        there = np.flatnonzero(texts >= 0)
        refs[texts[there]] = there
        return texts, refs

    def hold_out(self, share: float, seed: int = 0) -> tuple[CitationGraph, NDArray[np.int32]]:
        """Take a share of the citing documents away, whole, before anything is counted; see :func:`held_out`.

        Returns the graph of the others, and the (H, 2) pairs of texts that those taken away cite together at
        the finest level that they have, and that no other document cites together at all.
        """
        citing = [paper for paper, _ in self.papers()]
        gone = frozenset(paper for paper in citing if held_out(paper, share, seed))
        if not gone:
            return self, np.zeros((0, 2), np.int32)
        rest = self.only(self.away | gone)
        held = CoCitations.of((paper, found) for paper, found in self.papers() if paper in gone)
        pairs = self.pairs_of(held)
        return rest, pairs[~rest.together(pairs)]

    def pairs_of(self, network: CoCitations, level: Level | None = None) -> NDArray[np.int32]:
        """(P, 2) pairs of texts that a network has at a level; None: the finest at which it has any."""
        keys = np.zeros(0, np.int64)
        for one in LEVELS if level is None else (level,):
            keys = network.levels[one].pair_keys()
            if len(keys):
                break
        texts, _ = self.places(network)
        pairs = texts[np.stack(np.divmod(keys, max(len(network), 1)), axis=1)]
        found = np.unique(np.sort(pairs[(pairs >= 0).all(axis=1)], axis=1), axis=0)
        return found.astype(np.int32)

    def together(self, pairs: NDArray[np.integer], level: Level = "document") -> NDArray[np.bool_]:
        """(P,) whether both texts of (P, 2) pairs are cited in a group of this level."""
        _, refs = self.places(self.network)
        groups = self.network.levels[level]
        ends = refs[pairs].reshape(-1, 2).tolist()
        return np.array([min(a, b) >= 0 and groups.shared(a, b) > 0 for a, b in ends], np.bool_)

    def without(self, pairs: NDArray[np.integer]) -> CitationGraph:
        """The same with (E, 2) more pairs of texts of which nothing is to be learned."""
        return replace(self, untold=np.concatenate((self.untold, pairs)).astype(np.int32))._silent()

    def digest(self) -> str:
        """Hash of texts, citing documents and places."""
        found = hashlib.sha256("\n".join(self.ids).encode("utf-8", "surrogatepass"))
        for paper, mentions in self.papers():
            found.update(repr((paper, [tuple(one) for one in mentions])).encode("utf-8", "surrogatepass"))
        return found.hexdigest()[:16]

    def _silent(self) -> CitationGraph:
        """Without the untold pairs in the adjacency."""
        if not len(self.untold):
            return self
        return replace(self, adjacency=LinkGraph(self.ids, self.adjacency).without(self.untold).adjacency)

    def _counted(self) -> LinkCounts:
        """Citations by the documents: of texts, of itself, given twice without a place, of nothing known."""
        known, links, loops, repeated, unknown = {*self.ids}, 0, 0, 0, 0
        for paper, found in self.papers():
            cited = {one.reference for one in found}
            links += len((cited & known) - {paper})
            loops += paper in cited
            unknown += len(cited - known)
            if len({one.section for one in found}) == len(found):
                repeated += len(found) - len(cited)
        return LinkCounts(links, loops, repeated, unknown)

    def _weighted(self) -> tuple[csr_matrix, int]:
        from scipy.sparse import csr_matrix

        texts, _ = self.places(self.network)
        total, left_out = _empty(len(self.ids)), 0
        for weight, after, level in zip(self.weights, (*self.weights[1:], 0.0), LEVELS):
            groups = self.network.levels[level]
            count = len(groups.indptr) - 1
            if weight == after or not count:
                continue
            columns = np.repeat(np.arange(count), np.diff(groups.indptr))
            rows = texts[groups.refs]
            kept = rows >= 0
            ones = np.ones(int(kept.sum()))
            members = csr_matrix((ones, (rows[kept], columns[kept])), shape=(len(self.ids), count))
            sizes = np.bincount(columns[kept], minlength=count)
            fits = affordable(sizes, self.most)
            left_out += int((~fits & (sizes > 1)).sum())
            total = total + shared(members, np.where(fits, weight - after, 0.0))
        total = total.astype(np.float32).tocsr()
        total.sort_indices()
        return total, left_out


def affordable(sizes: NDArray[np.integer], pairs: int) -> NDArray[np.bool_]:
    """Which groups are taken: from the smallest on, all of a size or none, while ``pairs`` are enough."""
    counts = np.bincount(sizes) if len(sizes) else np.zeros(1, dtype=np.int64)
    size = np.arange(len(counts))
    total = np.cumsum(counts * (size * (size - 1) // 2))
    fits: NDArray[np.bool_] = (total <= pairs)[sizes]
    return fits


def shared(members: csr_matrix, weights: NDArray[np.float64]) -> csr_matrix:
    """(N, G) members of groups, (G,) weights -> (N, N) sums of the weights of the groups that two share."""
    from scipy.sparse import diags, triu

    taken = members[:, weights > 0]
    upper = triu(taken @ diags(weights[weights > 0]) @ taken.T, k=1, format="csr")
    both = (upper + upper.T).astype(np.float32).tocsr()  # symmetric to the last digit
    both.sort_indices()
    return both


def _empty(size: int) -> csr_matrix:
    from scipy.sparse import csr_matrix

    return csr_matrix((size, size), dtype=np.float32)
