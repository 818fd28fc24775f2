"""Collections, starts and held-out links of the experiments on links."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from rerank.formats import read_corpus
from rerank.rankers.dense.fit import LinkEvaluation
from rerank.rankers.dense.texts import Texts
from rerank.rankers.encoder.transformer import TextEncoder
from rerank.rankers.graphs.links import LinkGraph
from rerank.records import Document

SPLIT = 2021
"""Seed of the first test split."""


def documents(folder: Path) -> list[Document]:
    """Return all documents of a collection."""
    return list(read_corpus(str(next(folder.glob("corpus*.jsonl.gz")))))


def encoder(start: str, tokens: int, seed: int) -> tuple[TextEncoder, dict[str, object]]:
    """Load a start, ``MODEL:LAYERS`` with optional parts; return it with its options.

    ``:topN`` trains the last N layers. ``:random`` has random weights, which know no citations. ``:widthN``
    has random weights in vectors of N numbers, so that a CPU can train all layers.
    """
    model, layers, *rest = start.split(":")
    top = next((int(part.removeprefix("top")) for part in rest if part.startswith("top")), None)
    width = next((int(part.removeprefix("width")) for part in rest if part.startswith("width")), None)
    loaded = TextEncoder.load(model, layers=int(layers), longest=tokens)
    if width is not None:
        shape = loaded.model.config
        shape.hidden_size = width
        shape.intermediate_size = 4 * width
        shape.num_attention_heads = max(1, width // 32)
    if "random" in rest or width is not None:
        torch.manual_seed(seed)
        loaded.model = type(loaded.model)(loaded.model.config).eval()
    return loaded, {"model": model, "train_layers": top or 0, "layers": int(layers)}


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
