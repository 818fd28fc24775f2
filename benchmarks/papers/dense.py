"""Collections, starts and held-out links of the experiments on links."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rerank.formats import read_corpus
from rerank.rankers.dense.fit import LinkEvaluation
from rerank.rankers.dense.texts import Texts
from rerank.rankers.graphs.links import LinkGraph
from rerank.records import Document

SPLIT = 2021
"""Seed of the first test split."""


def documents(folder: Path) -> list[Document]:
    """Return all documents of a collection."""
    return list(read_corpus(str(next(folder.glob("corpus*.jsonl.gz")))))


def recall_of(test: LinkEvaluation, vectors: np.ndarray, cutoffs: tuple[int, ...] = (5, 10)) -> np.ndarray:
    """Recall of the held-out links: (anchors, cut-offs). vectors: unit length, of the pool."""
    return recall_at(test, test.ranked(vectors), cutoffs)


def recall_at(test: LinkEvaluation, ranked: np.ndarray, cutoffs: tuple[int, ...]) -> np.ndarray:
    """Recall of the held-out links: (anchors, cut-offs). ranked: (anchors, pool) bool, by rank."""
    hits = ranked.cumsum(axis=1)
    many = np.maximum(test.relevant.sum(axis=1), 1)
    return hits[:, [min(c, hits.shape[1]) - 1 for c in cutoffs]] / many[:, None]


def apart(texts: Texts, share: float, split: int) -> tuple[LinkGraph, LinkEvaluation]:
    """Hold out the test links. Asserts that the training graph contains none of them."""
    graph, held = texts.graph.hold_out(share, split)
    size = len(texts.tokens)
    test = LinkEvaluation.draw(graph, held, texts.usable, size=size, seed=split, anchors=size)
    overlap = len({*map(tuple, held.tolist())} & {*map(tuple, graph.pairs().tolist())})
    print(
        f"{size} documents, {len(held)} linked pairs held out for the test ({overlap}"
        f" of them in the training graph), looked for by {len(test.anchors)} documents",
        flush=True,
    )
    assert not overlap
    return graph, test
