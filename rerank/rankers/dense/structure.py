"""Held-out pairs and neighbors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rerank.errors import TrainingError
from rerank.progress import Progress
from rerank.rankers.dense.config import DenseConfig
from rerank.rankers.dense.neighbors import Neighbors, by_citations, by_pagerank
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

    graph: LinkGraph | CitationGraph
    held_out: NDArray[np.int32]
    neighbors: Neighbors

    @classmethod
    def find(cls, texts: Texts, config: DenseConfig, progress: Progress | None = None) -> Structure:
        """Hold out pairs; compute neighbors. Raises TrainingError without related documents."""
        usable = texts.usable
        if not usable.any():
            raise TrainingError("no document has any text; dense has nothing to learn from")
        graph, held = texts.graph.hold_out(config.held_out, config.seed)
        if isinstance(graph, CitationGraph):
            assert config.strategy is not None
            found: Neighbors = by_citations(graph, usable, config.strategy)
        else:
            with (progress or Progress()).step("neighbors", len(usable), "doc") as advance:
                found = by_pagerank(graph, usable, config.related, seed=config.seed, progress=advance)
        if not found.paired.any():
            raise TrainingError(_no_pair(graph, config))
        return cls(graph, held, found)


def _no_pair(graph: LinkGraph | CitationGraph, config: DenseConfig) -> str:
    if isinstance(graph, CitationGraph):
        levels = [level for level in LEVELS if len(graph.pairs_of(graph.network, level))]
        advice = f"give --strategy {levels[0]}" if levels else "give documents `citations`"
        return f"--strategy {config.strategy} finds no two texts to learn from; {advice}"
    return (
        f"no two linked documents have text ({plural(graph.unknown, 'link[|s]')} to unknown ids); give"
        " documents `links` (citations, hyperlinks, related items), or add --untrained, or --queries and"
        " --qrels"
    )
