"""The structure that a training learns from: pairs are held out, then neighbors are found."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rerank.errors import TrainingError
from rerank.progress import Progress
from rerank.rankers.dense.config import DenseConfig
from rerank.rankers.dense.neighbors import Neighbors, by_citations, by_links, by_pagerank
from rerank.rankers.dense.texts import Texts
from rerank.rankers.graphs.citation_graph import CitationGraph
from rerank.rankers.graphs.cocitation import LEVELS
from rerank.rankers.graphs.links import LinkGraph
from rerank.text import plural


@dataclass(frozen=True)
class Structure:
    """graph: without the held-out pairs. held_out: (H, 2) pairs of documents. neighbors: in this graph."""

    graph: LinkGraph
    held_out: NDArray[np.int32]
    neighbors: Neighbors

    @classmethod
    def find(cls, texts: Texts, config: DenseConfig, progress: Progress | None = None) -> Structure:
        """Hold pairs out, then find neighbors. Raises TrainingError if there is nothing to learn from."""
        if not texts.usable.any():
            raise TrainingError("no document has any text; dense has nothing to learn from")
        if not texts.graph.adjacency.nnz:
            raise TrainingError(_nothing(texts, config))
        graph, held = texts.graph.hold_out(config.held_out, config.seed)
        found = _neighbors(graph, texts.usable, config, progress or Progress())
        if not found.paired.any():
            if config.positives == "cited":
                raise TrainingError(_nowhere(graph, config))
            related = RELATED[config.structure_from]
            raise TrainingError(f"no two documents {related} have text; dense has nothing to learn from")
        return cls(graph, held, found)


def _neighbors(
    graph: LinkGraph, usable: NDArray[np.bool_], config: DenseConfig, progress: Progress
) -> Neighbors:
    if config.positives == "cited":
        assert isinstance(graph, CitationGraph)
        return by_citations(graph, usable, config.strategy, config.hard)
    if config.positives == "linked":
        return by_links(graph, usable)
    with progress.step("neighbors", len(usable), "doc") as advance:
        return by_pagerank(graph, usable, config.related, seed=config.seed, progress=advance)


def _nowhere(graph: LinkGraph, config: DenseConfig) -> str:
    """Message if no two texts are cited together as the strategy has it."""
    assert isinstance(graph, CitationGraph)
    there = [level for level in LEVELS if len(graph.pairs_of(graph.network, level))]
    also = f"--strategy {there[0]} has pairs" if there else "documents need `citations`"
    return (
        f"--strategy {config.strategy} finds no two texts to learn from; {also} (documents"
        " of which only the links are known cite all of them in one document)"
    )


RELATED = {
    "links": "that are linked",
    "categories": "that share a category",
    "cocitation": "that are cited together",
}
"""Which documents a relation relates."""


def _nothing(texts: Texts, config: DenseConfig) -> str:
    """Message if no two documents are related."""
    counts, source = texts.graph.counts, "--structure-from"
    judged = "or train s2net or text on judged queries"
    if config.structure_from == "categories":
        return (
            f"no two documents share a category ({texts.categorised} have any; one that more than half of the"
            f" documents have does not count); give documents `categories`, or `links` and {source} links,"
            f" {judged}"
        )
    if config.structure_from == "cocitation":
        return (
            f"no two documents are linked by the same third one ({plural(counts.links, 'link[|s]')}); use"
            f" {source} links or categories, {judged}"
        )
    others = (
        f"or learn from shared categories with {source} categories"
        f" ({plural(texts.categorised, 'document[ has|s have]')} some)"
        if texts.categorised
        else f"or `categories` and {source} categories"
    )
    return (
        f"the documents have no links to each other ({counts.unknown} to unknown ids, {counts.self_links}"
        " to themselves), and dense learns from links; give documents `links` (citations, hyperlinks, related"
        f" items), {others}, {judged}"
    )
