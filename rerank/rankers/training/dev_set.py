"""Dev measure of a ranker in training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rerank.errors import TrainingError
from rerank.evaluation.ranks import NDCG
from rerank.rankers.training.data import Judged, TrainingData

DEV_QUERIES = 800
"""Maximum number of dev queries, evenly spaced: enough to compare epochs."""
DEV_RANDOM = 12
"""Irrelevant documents for each relevant one in a pool; Kuwa et al. 2020, section 5.1: 10 to 15."""


@dataclass(frozen=True)
class DevSet:
    """Dev queries and candidates.

    documents: (U,) distinct positions. columns: places of each query's candidates in them.
    """

    judged: list[Judged]
    documents: NDArray[np.int64]
    columns: list[NDArray[np.int64]]

    @classmethod
    def of(cls, data: TrainingData) -> DevSet:
        """Take up to DEV_QUERIES. Raises TrainingError without candidates."""
        judged = _sample([one for one in data.dev if len(one.candidates)])
        if not judged:
            raise TrainingError("no dev query retrieves anything; give other --dev-qrels")
        return cls._of(judged)

    @classmethod
    def pools(cls, data: TrainingData, seed: int) -> DevSet:
        """Take up to DEV_QUERIES with relevant and random documents; scores are 0."""
        random = np.random.default_rng(seed)
        judged = []
        for one in _sample(data.dev):
            drawn = random.integers(len(data.document_ids), size=DEV_RANDOM * len(one.documents))
            pool = np.union1d(one.documents, drawn)
            judged.append(replace(one, candidates=pool, scores=np.zeros(len(pool))))
        return cls._of(judged)

    @classmethod
    def _of(cls, judged: list[Judged]) -> DevSet:
        documents, columns = np.unique(
            np.concatenate([one.candidates for one in judged]), return_inverse=True
        )
        cuts = np.cumsum([len(one.candidates) for one in judged])[:-1]
        return cls(judged, documents, np.split(columns, cuts))


def _sample(judged: list[Judged]) -> list[Judged]:
    return judged[:: max(1, -(-len(judged) // DEV_QUERIES))]


WEIGHTS = np.arange(21) / 20


def weighted_ndcg(
    judged: Sequence[Judged], scores: Sequence[NDArray[np.float64]]
) -> tuple[float, float, float]:
    """NDCG without cut-off: best of 21 weights, model, first stage.

    Scores are z-normalized per query; relevant documents lose ties.
    """
    total = np.zeros(len(WEIGHTS))
    for one, model in zip(judged, scores):
        first = _z(one.scores)[:, None] * (1 - WEIGHTS) + _z(model)[:, None] * WEIGHTS  # (n, 21)
        _, found, at = np.intersect1d(one.documents, one.candidates, return_indices=True)
        ranks = (first >= first[at, None]).sum(axis=1) - 1  # (R, 21)
        ideal, depth = NDCG.ideal(one.grades), len(one.candidates)
        total += NDCG.values(ranks, one.grades[found], ideal=ideal, depth=depth)
    mean = total / len(judged)
    return float(mean.max()), float(mean[-1]), float(mean[0])


def _z(values: NDArray[np.float64]) -> NDArray[np.float64]:
    spread = values.std()
    return (values - values.mean()) / spread if spread > 0 else np.zeros_like(values)
