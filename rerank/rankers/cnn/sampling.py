"""Batches of judged queries and documents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rerank.rankers.training.data import Judged

Negatives = Literal["random", "first-stage", "mixed"]

LOWER_GRADES = 0.5
"""Weight and frequency of examples below the highest grade of the query."""
LEAST_EXAMPLES = 2000
"""Minimum number of examples of an epoch: few queries are repeated, with other relevant documents."""


def batch_size(judged: Sequence[Judged]) -> int:
    """Power of two near a sixteenth of the examples, from 64 to 512."""
    return int(np.clip(2 ** round(np.log2(max(_examples(judged), 1) / 16)), 64, 512))


def _repeats(judged: Sequence[Judged]) -> int:
    return -(-LEAST_EXAMPLES // len(judged))


def _examples(judged: Sequence[Judged]) -> int:
    return sum(min(len(one.grades), _repeats(judged)) for one in judged)


@dataclass(frozen=True)
class Batch:
    """B queries and U documents to compare.

    queries:   (B,) positions, possibly repeated.
    documents: (U,) distinct positions.
    positive:  (B,) column of the relevant document.
    weight:    (B,) 1 for the highest grade, otherwise less.
    relevant:  (B, U) bool, any grade.
    worse, owner: (P,) pairs: column ``worse`` should score below the relevant document of query ``owner``.
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
    """Draws batches. Few queries are repeated with other relevant documents.

    ``negatives`` are:

    - ``random``: from the collection,
    - ``first-stage``: candidates,
    - ``mixed``: half candidates, half relevant documents of other queries.

    graded: pair with lower grades (3 > 2 > 1; Kuwa et al. 2020, section 4.1.1); pairwise loss only.
    """

    judged: Sequence[Judged]
    collection: int
    batch: int
    negatives: int
    source: Negatives
    graded: bool = True

    def examples(self, rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Draw (E,) positions in ``judged`` and (E,) positions of their relevant documents."""
        query: list[int] = []
        chosen: list[int] = []
        for position, one in enumerate(self.judged):
            top = one.grades == one.grades.max()
            lower = len(top) - int(top.sum())
            share = np.where(top, 1.0 / int(top.sum()), LOWER_GRADES / max(lower, 1))
            # The largest log(u) / share: a weighted sample without replacement (Efraimidis, Spirakis 2006).
            keys = np.log(rng.random(len(share))) / np.maximum(share, 1e-9)
            take = np.argsort(-keys)[: _repeats(self.judged)].tolist()
            query += [position] * len(take)
            chosen += take
        shuffle = rng.permutation(len(query))
        return np.array(query)[shuffle], np.array(chosen)[shuffle]

    def epoch(self, rng: np.random.Generator) -> Iterator[Batch]:
        """Batches of one epoch."""
        query, chosen = self.examples(rng)
        for begin in range(0, len(query), self.batch):
            yield self._batch(query[begin : begin + self.batch], chosen[begin : begin + self.batch], rng)

    def batches(self) -> int:
        """Number of batches per epoch."""
        return -(-_examples(self.judged) // self.batch)

    def _batch(self, query: NDArray[np.int64], chosen: NDArray[np.int64], rng: np.random.Generator) -> Batch:
        judged = [self.judged[i] for i in query]
        pairs = list(zip(judged, chosen))
        positive = np.array([one.documents[j] for one, j in pairs])
        top = np.array([one.grades[j] == one.grades.max() for one, j in pairs])
        drawn = self._negatives(judged, positive, rng)  # (B, negatives)
        below = [one.documents[one.grades < one.grades[j]] for one, j in pairs if self.graded]
        lower = [(i, some[rng.integers(len(some))]) for i, some in enumerate(below) if len(some)]
        owner = np.concatenate(
            (np.repeat(np.arange(len(judged)), self.negatives), _ints(i for i, _ in lower))
        )
        others = np.concatenate((drawn.ravel(), _ints(document for _, document in lower)))
        documents, columns = np.unique(np.concatenate((positive, others)), return_inverse=True)
        positive_column, worse = np.split(columns, [len(judged)])
        relevant = np.stack([np.isin(documents, one.documents) for one in judged])
        usable = ~relevant[owner, worse]
        usable[drawn.size :] = True
        return Batch(
            queries=np.array([one.query for one in judged]),
            documents=documents,
            positive=positive_column,
            weight=np.where(top, 1.0, LOWER_GRADES).astype(np.float32),
            relevant=relevant,
            worse=worse[usable],
            owner=owner[usable],
        )

    def _negatives(
        self, judged: Sequence[Judged], positive: NDArray[np.int64], rng: np.random.Generator
    ) -> NDArray[np.int64]:
        shape = (len(judged), self.negatives)
        if self.source == "random":
            return rng.integers(self.collection, size=shape)
        drawn = positive[rng.integers(len(positive), size=shape)]
        count = self.negatives if self.source == "first-stage" else (self.negatives + 1) // 2
        for i, one in enumerate(judged):
            if len(one.candidates):
                drawn[i, :count] = one.candidates[rng.integers(len(one.candidates), size=count)]
        return drawn


def _ints(numbers: Iterable[int]) -> NDArray[np.int64]:
    return np.fromiter(numbers, np.int64)
