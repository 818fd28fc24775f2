"""What a training learns from: links are held out, then neighbours are found."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rerank.errors import TrainingError, setting_hint
from rerank.progress import Progress
from rerank.rankers.dense.config import DenseConfig
from rerank.rankers.dense.neighbours import Cited, Neighbours
from rerank.rankers.dense.texts import Texts
from rerank.rankers.graphs.citation_graph import CitationGraph
from rerank.rankers.graphs.cocitation import LEVELS
from rerank.rankers.graphs.links import LinkGraph, hold_out
from rerank.wording import amount


def prepare_structure(
    texts: Texts, config: DenseConfig, progress: Progress
) -> tuple[LinkGraph, NDArray[np.int32], Neighbours]:
    """Hold links out, then find neighbours: (graph that is left, (H, 2) held-out pairs, neighbours).

    Raises TrainingError where there is nothing to learn from.
    """
    if not texts.usable.any():
        raise TrainingError("no document has any text; dense has nothing to learn from")
    if config.neighbours.from_graph and not texts.graph.adjacency.nnz:
        raise TrainingError(_nothing(texts, config))
    graph, held = hold_out(texts.graph, config.measured.held_out, config.seed)
    progress.start("neighbours", len(texts.titles), "doc")
    try:
        found = config.neighbours.find(graph, texts.usable, seed=config.seed, progress=progress.advance)
    finally:
        progress.finish()
    if not found.paired.any():
        if isinstance(config.neighbours, Cited):
            raise TrainingError(_nowhere(graph, config.neighbours))
        raise TrainingError(
            f"no two documents {RELATED[config.structure_from]} have text; dense has nothing to learn from"
        )
    return graph, held, found


def _nowhere(graph: LinkGraph, how: Cited) -> str:
    """What to do where no two texts are cited together as the strategy has it."""
    assert isinstance(graph, CitationGraph)
    there = [level for level in LEVELS if len(graph.pairs_of(graph.network, level))]
    also = f"{setting_hint('strategy', there[0])} has pairs" if there else "documents need `citations`"
    return (
        f"{setting_hint('strategy', how.rules.strategy)} finds no two texts to learn from; {also} (documents"
        " of which only the links are known cite all of them in one document)"
    )


RELATED = {
    "links": "that are linked",
    "categories": "that share a category",
    "cocitation": "that are cited together",
}
"""Which documents a relation relates."""


def _nothing(texts: Texts, config: DenseConfig) -> str:
    """What to do where no two documents are related."""
    counts, source = texts.graph.counts, setting_hint("structure_from")
    judged = "or train s2net or text on judged queries"
    if config.structure_from == "categories":
        return (
            f"no two documents share a category ({texts.categorised} have any; one that more than half of the"
            f" documents have does not count); give documents `categories`, or `links` and {source} links,"
            f" {judged}"
        )
    if config.structure_from == "cocitation":
        return (
            f"no two documents are linked by the same third one ({amount(counts.links, 'link[|s]')}); use"
            f" {source} links or categories, {judged}"
        )
    others = (
        f"or learn from shared categories with {source} categories"
        f" ({amount(texts.categorised, 'document[ has|s have]')} some)"
        if texts.categorised
        else f"or `categories` and {source} categories"
    )
    return (
        f"the documents have no links to each other ({counts.unknown} to unknown ids, {counts.self_links}"
        " to themselves), and dense learns from links; give documents `links` (citations, hyperlinks, related"
        f" items), {others}, {judged}"
    )
