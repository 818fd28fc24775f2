"""Held-out pairs and neighbors."""

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
    """Structure to learn.

    graph:     without held-out pairs.
    held_out:  (H, 2) pairs.
    neighbors: in the graph.
    """

    graph: LinkGraph
    held_out: NDArray[np.int32]
    neighbors: Neighbors

    @classmethod
    def find(cls, texts: Texts, config: DenseConfig, progress: Progress | None = None) -> Structure:
        """Hold out pairs; compute neighbors. Raises TrainingError without related documents."""
        if not texts.usable.any():
            raise TrainingError("no document has any text; dense has nothing to learn from")
        if not texts.graph.adjacency.nnz:
            raise TrainingError(_no_relation(texts, config))
        graph, held = texts.graph.hold_out(config.held_out, config.seed)
        found = _neighbors(graph, texts.usable, config, progress or Progress())
        if not found.paired.any():
            raise TrainingError(_no_pair(graph, config))
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


def _no_pair(graph: LinkGraph, config: DenseConfig) -> str:
    if not isinstance(graph, CitationGraph) or config.positives != "cited":
        return (
            f"no two documents related by {config.structure_from} have text; dense has nothing to learn from"
        )
    levels = [level for level in LEVELS if len(graph.pairs_of(graph.network, level))]
    advice = f"give --strategy {levels[0]}" if levels else "give documents `citations`"
    return f"--strategy {config.strategy} finds no two texts to learn from; {advice}"


def _no_relation(texts: Texts, config: DenseConfig) -> str:
    counts, some = texts.graph.counts, plural(texts.categorized, "document[ has|s have]")
    reason = {
        "links": f"the documents have no links to each other ({counts.unknown} to unknown ids,"
        f" {counts.self_links} to themselves)",
        "categories": "no two documents share a category that at most half of the documents have",
        "cocitation": f"no two documents are linked by the same third one ({counts.links} links)",
    }[config.structure_from]
    return (
        f"{reason}; give documents `links` (citations, hyperlinks, related items), or `categories` and"
        f" --structure-from categories ({some} some), or add --untrained, or --queries and --qrels"
    )
