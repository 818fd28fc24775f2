"""Graph of texts cited together."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rerank.rankers.graphs.citations import Citations
from rerank.rankers.graphs.cocitation import LEVELS, CoCitations, Ids, Level, Mention
from rerank.rankers.graphs.links import LinkCounts, LinkGraph, join_members

WEIGHTS = (8.0, 4.0, 2.0, 1.0)
"""Weight of a common sentence, paragraph, section and document. Links without places are a document."""


def held_out(key: str, share: float, seed: int = 0) -> bool:
    """Return whether MD5 of seed and id, as a fraction, is below the share.

    Larger shares include smaller ones.

    >>> [held_out(f"10.7554/elife.0000{n}", 0.4) for n in range(3, 8)]
    [False, True, True, False, True]
    """
    digest = hashlib.md5(f"{seed} {key}".encode("utf-8", "surrogatepass"), usedforsecurity=False)
    return int.from_bytes(digest.digest()[:8], "big") < share * 2**64


@dataclass(frozen=True)
class CitationGraph(LinkGraph):
    """Texts cited together: documents, then titled references.

    adjacency: (N, N) sums of WEIGHTS, by finest common unit.
    away: documents with ignored citations.
    excluded: (P, 2) pairs, neither positive nor negative.
    """

    citations: Citations = field(kw_only=True)
    away: frozenset[str] = frozenset()
    excluded: NDArray[np.int32] = field(default_factory=lambda: np.zeros((0, 2), np.int32))

    @classmethod
    def of(cls, citations: Citations) -> CitationGraph:  # type: ignore[override]
        """Return the graph of documents and titled references."""
        from scipy.sparse import csr_matrix

        outside = [key for key in citations.titles if key not in citations.documents]
        return cls([*citations.documents, *outside], csr_matrix((0, 0)), citations=citations)._counted()

    def _counted(self) -> CitationGraph:
        """Return a copy with adjacency and counts."""
        from scipy.sparse import csr_matrix

        size, left_out = len(self.ids), 0
        total = csr_matrix((size, size), dtype=np.float32)
        texts, _ = self.places(self.network)
        for weight, after, level in zip(WEIGHTS, (*WEIGHTS[1:], 0.0), LEVELS):
            groups = self.network.levels[level]
            count = len(groups.indptr) - 1
            columns, rows = np.repeat(np.arange(count), np.diff(groups.indptr)), texts[groups.refs]
            kept = rows >= 0
            ends = (rows[kept], columns[kept])
            members = csr_matrix((np.ones(int(kept.sum())), ends), shape=(size, count))
            joined, large = join_members(members, np.full(count, weight - after))
            total, left_out = total + joined, left_out + large
        total = total.astype(np.float32).tocsr()
        total.sort_indices()
        graph = replace(self, adjacency=total, left_out=left_out, counts=self._counts())
        return graph.without(self.excluded) if len(self.excluded) else graph

    def _counts(self) -> LinkCounts:
        known, links, loops, repeated, unknown = {*self.ids}, 0, 0, 0, 0
        for paper, mentions in self.papers():
            cited = {one.reference for one in mentions}
            links += len((cited & known) - {paper})
            loops += paper in cited
            unknown += len(cited - known)
            if len({one.section for one in mentions}) == len(mentions):  # links without places
                repeated += len(mentions) - len(cited)
        return LinkCounts(links, loops, repeated, unknown)

    def papers(self) -> Iterator[tuple[str, list[Mention]]]:
        """Yield counted documents and their mentions."""
        return ((paper, cited) for paper, cited in self.citations.papers() if paper not in self.away)

    @cached_property
    def network(self) -> CoCitations:
        """Co-citation network of :meth:`papers`."""
        return CoCitations.of(self.papers())

    @cached_property
    def direct(self) -> CoCitations:
        """Direct citations: document and reference share a sentence."""
        pairs = {(paper, one.reference) for paper, cited in self.papers() for one in cited}
        return CoCitations.of(
            (f"{number}", [Mention(paper, 0, 0, 0), Mention(ref, 0, 0, 0)])
            for number, (paper, ref) in enumerate(sorted(pairs))
            if paper != ref
        )

    def places(self, network: CoCitations) -> tuple[Ids, Ids]:
        """Return texts of references, (V,), and references of texts, (N,) or -1."""
        number = {id: place for place, id in enumerate(self.ids)}
        texts = np.array([number.get(key, -1) for key in network.keys], np.int32)
        refs = np.full(len(self.ids), -1, np.int32)
        there = np.flatnonzero(texts >= 0)
        refs[texts[there]] = there
        return texts, refs

    def hold_out(self, share: float, seed: int = 0) -> tuple[CitationGraph, NDArray[np.int32]]:
        """Return the graph without :func:`held_out` documents, and pairs, (H, 2).

        Pairs: cited together by only these documents, at their finest level.
        """
        gone = frozenset(paper for paper, _ in self.papers() if held_out(paper, share, seed))
        if not gone:
            return self, np.zeros((0, 2), np.int32)
        rest = replace(self, away=self.away | gone)._counted()
        held = CoCitations.of((paper, cited) for paper, cited in self.papers() if paper in gone)
        levels = (self.pairs_of(held, level) for level in LEVELS)
        pairs = next((pairs for pairs in levels if len(pairs)), np.zeros((0, 2), np.int32))
        _, refs = rest.places(rest.network)
        groups = rest.network.levels["document"]
        together = [min(a, b) >= 0 and groups.shared(a, b) > 0 for a, b in refs[pairs].tolist()]
        return rest, pairs[~np.array(together, np.bool_)]

    def pairs_of(self, network: CoCitations, level: Level) -> NDArray[np.int32]:
        """Return pairs, (P, 2), that share groups."""
        keys, _ = network.levels[level].pair_counts()
        texts, _ = self.places(network)
        pairs = texts[np.stack(np.divmod(keys, max(len(network), 1)), axis=1)]
        return np.unique(np.sort(pairs[(pairs >= 0).all(axis=1)], axis=1), axis=0).astype(np.int32)

    def without(self, pairs: NDArray[np.integer]) -> CitationGraph:
        """Return the graph with excluded pairs, (E, 2)."""
        rest = LinkGraph(self.ids, self.adjacency).without(pairs).adjacency
        excluded = np.unique(np.concatenate((self.excluded, pairs)), axis=0).astype(np.int32)
        return replace(self, adjacency=rest, excluded=excluded)

    def digest(self) -> str:
        """Return a hash of texts, documents and places."""
        digest = hashlib.sha256("\n".join(self.ids).encode("utf-8", "surrogatepass"))
        for paper, mentions in self.papers():
            digest.update(repr((paper, [tuple(one) for one in mentions])).encode("utf-8", "surrogatepass"))
        return digest.hexdigest()[:16]
