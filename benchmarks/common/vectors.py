"""Grow the vectors of a trained ranker to those of a larger collection."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rerank import Document, Workspace
from rerank.engines.file_features import FeatureFiles
from rerank.rankers.base import Ranker

NOISE = 0.5  # length of the noise of copies and queries, compared with a vector

Vectors = NDArray[np.float16]


def feature_files(folder: Path) -> FeatureFiles:
    """Return the features of the embedded engine in the folder of a workspace."""
    (features,) = folder.glob("engine/data-*/features")
    return FeatureFiles(features)


def feature_size(ranker: Ranker) -> int:
    """Return the bytes of the feature of a short document."""
    return ranker.encode_documents([Document("d", text="cell")]).nbytes


def stored_vectors(workspace: Workspace, ranker: str) -> Vectors:
    """Return the (n, E) features of a ranker in an embedded engine."""
    version = workspace.ranker(ranker).version
    matrix = feature_files(workspace.folder).matrix(ranker, version, len(workspace.engine))
    return np.asarray(matrix, np.float16)


def add_noise(vectors: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
    """Return the (n, E) vectors with noise, at length 1."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    noise = rng.normal(size=vectors.shape) * NOISE / np.sqrt(vectors.shape[1])
    noisy_vectors = vectors / np.maximum(lengths, 1e-9) + noise
    return (noisy_vectors / np.linalg.norm(noisy_vectors, axis=1, keepdims=True)).astype(np.float32)


def grow_vectors(vectors: Vectors, count: int, rng: np.random.Generator) -> Vectors:
    """Return ``count`` vectors: the stored ones, then copies with noise."""
    grown = np.empty((count, vectors.shape[1]), np.float16)
    grown[: len(vectors)] = vectors[:count]
    for begin in range(len(vectors), count, len(vectors)):
        originals = vectors[: count - begin]
        grown[begin : begin + len(originals)] = add_noise(originals.astype(np.float32), rng)
    return grown
