"""Batches of judged queries and documents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rerank.rankers.training.data import TrainingQuery

Negatives = Literal["random", "first-stage", "mixed"]

LOWER_GRADES = 0.5
"""Weight and frequency of examples below the highest grade of the query."""
LEAST_EXAMPLES = 2000
"""Minimum number of examples of an epoch: few queries are repeated, with other relevant documents."""


def batch_size(judged: Sequence[TrainingQuery]) -> int:
    """Return the power of two near a sixteenth of the examples of an epoch, from 64 to 512."""
    return int(np.clip(2 ** round(np.log2(max(_examples(judged), 1) / 16)), 64, 512))


def _repeats(judged: Sequence[TrainingQuery]) -> int:
    return -(-LEAST_EXAMPLES // len(judged))


def _examples(judged: Sequence[TrainingQuery]) -> int:
    return sum(min(len(query.grades), _repeats(judged)) for query in judged)


@dataclass(frozen=True)
class Batch:
    """One training step: B examples, each a query with one relevant document, and U documents to compare.

    queries:   (B,) positions of the queries in their corpus; a query may occur several times.
    documents: (U,) positions of the documents in their corpus, each once.
    positive:  (B,) the column of each example's relevant document in ``documents``.
    weight:    (B,) 1 for a document of the query's highest grade, otherwise less.
    relevant:  (B, U) bool, whether the document is relevant to the query, in any grade.
    owner:     (P,) the example of each pair of documents.
    worse:     (P,) the column of the document that should score below the example's relevant document.
    """

    queries: NDArray[np.int64]
    documents: NDArray[np.int64]
    positive: NDArray[np.int64]
    weight: NDArray[np.float32]
    relevant: NDArray[np.bool_]
    worse: NDArray[np.int64]
    owner: NDArray[np.int64]


@dataclass(frozen=True)
class Sampler:
    """Draws the batches of an epoch. Few queries are repeated with other relevant documents.

    judged:     the queries to learn from.
    collection: the number of documents.
    batch:      examples per batch.
    negatives:  irrelevant documents per example.
    source:     where the irrelevant documents come from. ``random``: the collection. ``first-stage``: the
        candidates of the query. ``mixed``: half candidates, half relevant documents of other queries.
    graded:     whether a document is also paired with one of a lower grade (3 > 2 > 1; Kuwa et al. 2020,
        section 4.1.1). Only a pairwise loss reads these pairs.
    """

    judged: Sequence[TrainingQuery]
    collection: int
    batch: int
    negatives: int
    source: Negatives
    graded: bool = True

    def examples(self, rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Draw the E examples of an epoch.

        Returns (E,) positions of queries in ``judged``, and for each the position of its relevant document
        in the query's ``documents``, (E,).
        """
        queries: list[int] = []
        documents: list[int] = []
        for position, query in enumerate(self.judged):
            top = query.grades == query.grades.max()
            lower = len(top) - int(top.sum())
            frequency = np.where(top, 1.0 / int(top.sum()), LOWER_GRADES / max(lower, 1))
            # The largest log(u) / frequency: a weighted sample without replacement (Efraimidis, Spirakis
            # 2006).
            keys = np.log(rng.random(len(frequency))) / np.maximum(frequency, 1e-9)
            drawn = np.argsort(-keys)[: _repeats(self.judged)].tolist()
            queries += [position] * len(drawn)
            documents += drawn
        shuffle = rng.permutation(len(queries))
        return np.array(queries)[shuffle], np.array(documents)[shuffle]

    def epoch(self, rng: np.random.Generator) -> Iterator[Batch]:
        """Yield the batches of one epoch. Equal states of ``rng`` give equal batches."""
        queries, documents = self.examples(rng)
        for begin in range(0, len(queries), self.batch):
            examples = slice(begin, begin + self.batch)
            yield self._batch(queries[examples], documents[examples], rng)

    def batches(self) -> int:
        """Return the number of batches per epoch."""
        return -(-_examples(self.judged) // self.batch)

    def _batch(
        self, queries: NDArray[np.int64], documents: NDArray[np.int64], rng: np.random.Generator
    ) -> Batch:
        judged = [self.judged[position] for position in queries]
        grades = np.array([query.grades[document] for query, document in zip(judged, documents)])
        positive = np.array([query.documents[document] for query, document in zip(judged, documents)])
        top_grades = np.array([query.grades.max() for query in judged])
        drawn = self._negatives(judged, positive, rng)  # (B, negatives)
        lower_owner, lower = self._lower_graded(judged, grades, rng)
        owner = np.concatenate((np.repeat(np.arange(len(judged)), self.negatives), lower_owner))
        compared = np.concatenate((positive, drawn.ravel(), lower))
        distinct, columns = np.unique(compared, return_inverse=True)
        positive_column, worse = np.split(columns, [len(judged)])
        relevant = np.stack([np.isin(distinct, query.documents) for query in judged])
        usable = ~relevant[owner, worse]
        usable[drawn.size :] = True  # documents of lower grades are relevant, but worse
        return Batch(
            queries=np.array([query.query for query in judged]),
            documents=distinct,
            positive=positive_column,
            weight=np.where(grades == top_grades, 1.0, LOWER_GRADES).astype(np.float32),
            relevant=relevant,
            worse=worse[usable],
            owner=owner[usable],
        )

    def _lower_graded(
        self, judged: Sequence[TrainingQuery], grades: NDArray[np.int64], rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Draw a relevant document of a lower grade for each example that has one.

        Returns the examples, (L,), and the drawn documents, (L,).
        """
        owner: list[int] = []
        lower: list[int] = []
        if self.graded:
            for example, (query, grade) in enumerate(zip(judged, grades)):
                documents = query.documents[query.grades < grade]
                if len(documents):
                    owner.append(example)
                    lower.append(documents[rng.integers(len(documents))])
        return np.array(owner, dtype=np.int64), np.array(lower, dtype=np.int64)

    def _negatives(
        self, judged: Sequence[TrainingQuery], positive: NDArray[np.int64], rng: np.random.Generator
    ) -> NDArray[np.int64]:
        shape = (len(judged), self.negatives)
        if self.source == "random":
            return rng.integers(self.collection, size=shape)
        drawn = positive[rng.integers(len(positive), size=shape)]
        count = self.negatives if self.source == "first-stage" else (self.negatives + 1) // 2
        for row, query in zip(drawn, judged):
            if len(query.candidates):
                row[:count] = query.candidates[rng.integers(len(query.candidates), size=count)]
        return drawn
