"""Graph of texts cited together."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rerank.rankers.graphs.citations import Citations
from rerank.rankers.graphs.cocitation import LEVELS, CoCitations, Ids, Level, Mention

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix


def held_out(key: str, share: float, seed: int = 0) -> bool:
    """Return whether MD5 of seed and id, as a fraction, is below the share.

    Larger shares include smaller ones.

    >>> [held_out(f"10.7554/elife.0000{n}", 0.4) for n in range(3, 8)]
    [False, True, True, False, True]
    """
    digest = hashlib.md5(f"{seed} {key}".encode("utf-8", "surrogatepass"), usedforsecurity=False)
    return int.from_bytes(digest.digest()[:8], "big") < share * 2**64


@dataclass(frozen=True)
class CitationGraph:
    """Texts cited together: documents, then titled references.

    away: documents with ignored citations.
    """

    ids: list[str]
    citations: Citations
    away: frozenset[str] = frozenset()

    @classmethod
    def of(cls, citations: Citations) -> CitationGraph:
        """Return the graph of documents and titled references."""
        outside = [key for key in citations.titles if key not in citations.documents]
        return cls([*citations.documents, *outside], citations)

    def papers(self) -> Iterator[tuple[str, list[Mention]]]:
        """Yield counted documents and their mentions."""
        return ((paper, cited) for paper, cited in self.citations.papers() if paper not in self.away)

    @cached_property
    def network(self) -> CoCitations:
        """Co-citation network of :meth:`papers`."""
        return CoCitations.of(self.papers())

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
        rest = replace(self, away=self.away | gone)
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

    def near(self, documents: NDArray[np.integer]) -> csr_matrix:
        """Mark texts that are cited by the same document, (n, N)."""
        from scipy.sparse import csr_matrix

        texts, refs = self.places(self.network)
        found = [self.network.neighbors(ref, "document") if ref >= 0 else refs[:0] for ref in refs[documents]]
        columns = texts[np.concatenate([refs[:0], *found])]
        rows = np.repeat(np.arange(len(found)), [len(one) for one in found])[columns >= 0]
        columns = columns[columns >= 0]
        return csr_matrix((np.ones(len(rows)), (rows, columns)), shape=(len(found), len(self.ids)))

    def digest(self) -> str:
        """Return a hash of texts, documents and places."""
        digest = hashlib.sha256("\n".join(self.ids).encode("utf-8", "surrogatepass"))
        for paper, mentions in self.papers():
            digest.update(repr((paper, [tuple(one) for one in mentions])).encode("utf-8", "surrogatepass"))
        return digest.hexdigest()[:16]
