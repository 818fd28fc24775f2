"""Neighbours by co-citation: who is cited in the same sentence, paragraph or section (CCHT, Ding et al.)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from rerank.errors import UsageError, setting_hint
from rerank.rankers.dense.neighbours.base import Neighbourhood, Neighbours
from rerank.rankers.dense.triplets import Strategy, TripletSampler
from rerank.rankers.graphs.citation_graph import CitationGraph
from rerank.rankers.graphs.cocitation import Ids
from rerank.rankers.graphs.links import LinkGraph
from rerank.settings import group

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix


@dataclass(frozen=True)
class CitedTogether(Neighbours):
    """Who is cited with whom: read from the network when it is asked for, never listed for all.

    triplets: draws from the network. texts: (V,) text of each reference of the network, refs: (N,) reference
    of each text; -1: none.
    """

    triplets: TripletSampler = field(kw_only=True)
    texts: Ids = field(kw_only=True)
    refs: Ids = field(kw_only=True)

    def near(self, document: int) -> NDArray[np.int32]:
        """All texts that are no negatives of this one, those that are cited nearest first."""
        return self._around(document)[0]

    def scores_of(self, document: int) -> NDArray[np.float32]:
        """1 for a common sentence, 1/2 for a paragraph, 1/3 for a section, 1/4 for a document."""
        return (1 / self._around(document)[1]).astype(np.float32)

    def related(self, document: int) -> int:
        """How many of :meth:`near` there are."""
        return len(self.near(document))

    @property
    def paired(self) -> NDArray[np.bool_]:
        """(N,) whether a text has a positive."""
        return self.draws() > 0

    def draws(self) -> NDArray[np.int64]:
        """(N,) triplets of each text in an epoch."""
        found = np.zeros(len(self.usable), np.int64)
        there = np.flatnonzero(self.refs >= 0)
        found[there] = self.triplets.counts()[self.refs[there]]
        return found

    def matrix(self) -> csr_matrix:
        """As :meth:`Neighbours.matrix`, from all texts' lists."""
        from scipy.sparse import csr_matrix

        rows = [self.near(document) for document in range(len(self.usable))]
        indptr = np.concatenate(([0], np.cumsum([len(row) for row in rows])))
        ids = np.concatenate(rows) if rows else np.zeros(0, np.int32)
        size = len(self.usable)
        return csr_matrix((np.ones(len(ids), np.int8), ids, indptr), shape=(size, size))

    def _around(self, document: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        ref, network = int(self.refs[document]), self.triplets.network
        if ref < 0 or not self.usable[document]:
            return np.zeros(0, np.int32), np.zeros(0, np.int64)
        widest = self.triplets.strategy.widest
        ids = network.neighbours(ref, widest)
        levels = self.triplets.finest(ref, ids, widest).astype(np.int64)
        texts = self.texts[ids]
        kept = texts >= 0
        kept[kept] = self.usable[texts[kept]]
        order = np.argsort(levels[kept], kind="stable")
        near: NDArray[np.int32] = texts[kept][order]
        return near, levels[kept][order]


@dataclass(frozen=True)
class Cited(Neighbourhood):
    """Texts that are cited together; the rules by which triplets are drawn from them."""

    implies: ClassVar[dict[str, Any]] = {"structure_from": "cocitation", "separator": True}

    rules: Strategy = group(Strategy)

    def find(
        self,
        graph: LinkGraph,
        usable: NDArray[np.bool_],
        *,
        seed: int = 0,
        progress: Callable[[int], object] | None = None,
    ) -> CitedTogether:
        """Prepare the draws. Raises UsageError for a graph that is not of citations."""
        if not isinstance(graph, CitationGraph):
            raise UsageError(
                f"{setting_hint('neighbours', 'cited')} reads citations; give"
                f" {setting_hint('structure_from', 'cocitation')}"
            )
        straight = self.rules.strategy == "direct"
        network = graph.direct if straight else graph.network
        texts, refs = graph.places(network)
        there = texts >= 0
        there[there] = usable[texts[there]]
        direct: dict[int, list[int]] = {}
        if self.rules.exclude_direct and not straight:
            _pairs(direct, ((paper, one.reference) for paper, found in graph.papers() for one in found),
                   {key: place for place, key in enumerate(network.keys)})  # fmt: skip
        untold: dict[int, list[int]] = {}
        _pairs(
            untold, graph.untold.tolist(), {text: ref for ref, text in enumerate(texts.tolist()) if text >= 0}
        )
        triplets = TripletSampler(network, self.rules, there, direct, untold, seed)
        if straight:
            citing = {paper for paper, _ in graph.papers()}
            triplets.only = np.array([key in citing for key in network.keys], np.bool_)
        if progress is not None:
            progress(len(usable))
        nothing = np.zeros(0, np.int32)
        return CitedTogether(
            np.zeros(len(usable) + 1, np.int64), nothing, nothing.astype(np.float32), usable,
            triplets=triplets, texts=texts, refs=refs,
        )  # fmt: skip


def _pairs(found: dict[int, list[int]], pairs: Any, number: dict[Any, int]) -> None:
    """Add both directions of pairs whose two ends have a number."""
    for a, b in pairs:
        if a in number and b in number and a != b:
            found.setdefault(number[a], []).append(number[b])
            found.setdefault(number[b], []).append(number[a])
