"""Rankers with random weights, and inputs of their training."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, hstack

from rerank import Workspace
from rerank.rankers.base import Ranker
from rerank.rankers.cnn.ranker import PARTS, CnnRanker
from rerank.rankers.cnn.towers import Head, Network, Tower, Vocabulary
from rerank.rankers.projection.ranker import Projection, Terms
from rerank.rankers.projection.s2net import Comparisons, entries

WORDS = ["apple", "pear", "fig", "tree", "trees", "list", "lists", "sorted", "search", "graph", "katze"]
CATEGORIES = ["computing", "computing::search", "trees", "graphs"]


class Plain(Ranker):
    """A ranker without files. Its scores are inner products."""

    version, bounds = "v1", (0.0, 1.0)

    def score(self, query: np.ndarray, features: np.ndarray) -> np.ndarray:
        return features.astype(np.float64) @ query

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True)

    @classmethod
    def load(cls, folder: Path) -> Any:
        return cls()


def put(workspace: Workspace, ranker: Ranker) -> None:
    """Install a ranker whose family is not registered."""
    workspace.install(ranker)
    workspace._rankers[ranker.name, None] = workspace._rankers[ranker.name, ranker.version] = ranker


def cnn(name: str = "text", version: str = "v1", seed: int = 0, head: str = "cosine") -> CnnRanker:
    """Return a ranker text, meta or joint with random weights."""
    rng = np.random.default_rng(seed)

    def numbers(*shape: int) -> Any:
        return rng.normal(size=shape).astype(np.float32)

    def tower(part: str) -> Tower:
        vocabulary = Vocabulary(part, WORDS if part == "text" else CATEGORIES, 400)
        vectors = numbers(1 + len(vocabulary.names), 5).astype(np.float16).astype(np.float32)
        vectors[0] = 0
        return Tower(vocabulary, vectors, None, numbers(2, 5, 6), numbers(6), False)

    query, document = ([tower(part) for part in PARTS[name]] for _ in range(2))
    shapes = {"query": (6 * len(query), 7), "query_bias": (7,), "document": (6 * len(query), 7)}
    if head == "cosine":
        shapes["document_bias"] = (7,)
    else:
        shapes |= {"hidden.0": (7, 7), "hidden.0_bias": (7,), "output": (7, 1), "output_bias": (1,)}
    arrays = {key: numbers(*shape) for key, shape in shapes.items()}
    network = Network(query, document, Head(arrays))
    return CnnRanker(name=name, version=version, networks=[network])


def projection(name: str = "lsi", seed: int = 0) -> Projection:
    """Return a projection with random weights."""
    rng = np.random.default_rng(seed)
    terms = Terms(WORDS, np.ones(len(WORDS), np.float32), 0, 400)
    query, document = (rng.normal(size=(len(WORDS), 3)).astype(np.float16) for _ in range(2))
    return Projection(name=name, terms=terms, query=query, document=document if name == "cca" else query)


ENCODER_WORDS = [f"w{i}" for i in range(40)]
ENCODER_SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 300,
    "initializer_range": 0.5,
}


def bert(folder: Path, labels: int = 1, words: Iterable[str] = ENCODER_WORDS) -> Path:
    """Save a BERT that scores pairs of texts of these words."""
    import transformers

    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", *words]
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(names) + "\n", "utf-8")
    transformers.BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    config = transformers.BertConfig(**ENCODER_SIZES, vocab_size=len(names) + 1, num_labels=labels)
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    return folder


def texts(rows, columns, seed, density=0.4, dtype=np.float64):
    rng = np.random.default_rng(seed)
    values = rng.random((rows, columns)) * (rng.random((rows, columns)) < density)
    values[np.arange(rows), rng.integers(columns, size=rows)] = 1.0  # no empty row
    return csr_matrix(values.astype(dtype))


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def separate_columns(queries, documents):
    """Return both sides on separate columns."""
    empty = [csr_matrix(side.shape, dtype=side.dtype) for side in (queries, documents)]
    return hstack((queries, empty[0])).tocsr(), hstack((empty[1], documents)).tocsr()


def comparisons(target, left_out=None, weight=None, worse=None, columns=None):
    """Return comparisons. By default the partner of each row is compared with all other columns."""
    rows, columns = len(target), columns or len(target)
    left_out = [sorted({*some, own}) for some, own in zip(left_out or [[]] * rows, target)]
    weight = np.ones(rows) if weight is None else weight
    excluded, below = entries(left_out, columns), entries(worse or [[]] * rows, columns)
    return Comparisons(np.array(target), excluded, weight / weight.sum(), below)


def identity(count):
    return comparisons(range(count))
