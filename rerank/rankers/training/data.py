"""Training data: texts, judgments, candidates; dev measure of a ranker in training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.errors import TrainingError
from rerank.evaluation.ranks import NDCG
from rerank.rankers.cnn.towers import Ragged
from rerank.records import Document, Query
from rerank.text import words

LONGEST_TEXT = 400
"""Maximum number of words of a document. On the test collections more words gained nothing."""


@dataclass(frozen=True)
class Corpus:
    """Tokenized texts with categories.

    words:      distinct words.
    tokens:     first LONGEST_TEXT words per text, as positions in ``words``.
    categories: of each text.
    """

    words: list[str]
    tokens: Ragged
    categories: list[tuple[str, ...]]

    @classmethod
    def read(cls, records: Iterable[Document | Query]) -> Corpus:
        """Tokenize documents or queries, about 4 bytes per word."""
        index: dict[str, int] = {}
        texts: list[NDArray[np.int32]] = []
        categories: list[tuple[str, ...]] = []
        interned: dict[tuple[str, ...], tuple[str, ...]] = {}
        for record in records:
            text = record.content if isinstance(record, Document) else record.text
            tokens = [index.setdefault(word, len(index)) for word in words(text)[:LONGEST_TEXT]]
            texts.append(np.array(tokens, dtype=np.int32))
            categories.append(interned.setdefault(record.categories, record.categories))
        return cls(list(index), Ragged.of(texts), categories)

    def sentences(self) -> Iterator[list[str]]:
        """Texts as lists of words."""
        names = np.array(self.words, dtype=object)
        for begin, end in pairwise(self.tokens.offsets.tolist()):
            yield names[self.tokens.flat[begin:end]].tolist()


@dataclass(frozen=True)
class Judged:
    """A judged query, as positions in the corpora.

    query:      its position.
    documents, grades: relevant documents (grade > 0).
    candidates, scores: of the first stage, best first.
    unwanted:   documents judged 0 or less.
    """

    query: int
    documents: NDArray[np.int64]
    grades: NDArray[np.int64]
    candidates: NDArray[np.int64]
    scores: NDArray[np.float64]
    unwanted: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))


@dataclass(frozen=True)
class TrainingData:
    """Data of CNN and projection rankers; ``train`` and ``dev``: judged ``queries``.

    query_texts: texts of ``queries``.
    pairs: two corpora of equal length. dev_pairs: number of the last pairs, held out for dev.
    """

    document_ids: Sequence[str]
    documents: Corpus
    queries: Corpus
    train: list[Judged]
    dev: list[Judged]
    first_stage: str
    same_language: bool
    category_edges: Sequence[tuple[str, str]] | None = None
    query_text: Corpus | None = None
    query_texts: Sequence[str] = ()
    pairs: tuple[Corpus, Corpus] | None = None
    dev_pairs: int = 0


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

    @property
    def queries(self) -> NDArray[np.int64]:
        """Positions of the queries, (Q,)."""
        return np.array([one.query for one in self.judged])

    def ndcg(self, queries: NDArray[Any], documents: NDArray[Any]) -> tuple[float, float, float]:
        """Return :func:`weighted_ndcg` of the inner products of (Q, E) and (U, E) vectors."""
        scores = [(documents[c] @ q).astype(np.float64) for q, c in zip(queries, self.columns)]
        return weighted_ndcg(self.judged, scores)

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
