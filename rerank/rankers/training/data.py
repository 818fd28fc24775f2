"""Training data: texts, judgments, candidates; dev measure of a ranker in training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.common.arrays import Ragged
from rerank.common.errors import TrainingError
from rerank.documents.records import Document, Query
from rerank.documents.text import words
from rerank.evaluation.ranks import NDCG

LONGEST_TEXT = 400
"""Maximum number of words of a document. On the test collections more words gained nothing."""


@dataclass(frozen=True)
class Corpus:
    """The tokenized texts of a training, with their categories.

    words:      the distinct words.
    tokens:     the first LONGEST_TEXT words of each text, as positions in ``words``.
    categories: the categories of each text.
    """

    words: list[str]
    tokens: Ragged
    categories: list[tuple[str, ...]]

    @classmethod
    def read(cls, records: Iterable[Document | Query]) -> Corpus:
        """Tokenize documents or queries in their order. This keeps about 4 bytes per word."""
        index: dict[str, int] = {}
        texts: list[NDArray[np.int32]] = []
        categories: list[tuple[str, ...]] = []
        interned: dict[tuple[str, ...], tuple[str, ...]] = {}
        for record in records:
            text = record.content if isinstance(record, Document) else record.text
            tokens = [index.setdefault(word, len(index)) for word in words(text)[:LONGEST_TEXT]]
            texts.append(np.array(tokens, dtype=np.int32))
            categories.append(interned.setdefault(record.categories, record.categories))
        return cls(list(index), Ragged.from_lists(texts), categories)

    def sentences(self) -> Iterator[list[str]]:
        """Yield each text as a list of words."""
        names = np.array(self.words, dtype=object)
        for begin, end in pairwise(self.tokens.offsets.tolist()):
            yield names[self.tokens.flat[begin:end]].tolist()


@dataclass(frozen=True)
class TrainingQuery:
    """A judged query. It and its documents are positions in the corpora.

    query:      the position of the query.
    documents:  (R,) the relevant documents, whose grade is above 0.
    grades:     (R,) their grades.
    candidates: (n,) the candidates of the first stage, best first.
    scores:     (n,) their scores by the first stage.
    unwanted:   the documents that are judged 0 or less.
    """

    query: int
    documents: NDArray[np.int64]
    grades: NDArray[np.int64]
    candidates: NDArray[np.int64]
    scores: NDArray[np.float64]
    unwanted: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))


@dataclass(frozen=True)
class TrainingData:
    """The texts and judgments that rankers learn from.

    document_ids:   the id of each document of ``documents``.
    train, dev:     judged queries to learn from, and to choose the best state of a training with.
    first_stage:    the signal that retrieved the candidates.
    same_language:  whether queries and documents are in one language, and share their word vectors.
    category_edges: pairs of related categories; None: they follow from the names of the categories.
    query_text:     texts for the word vectors of queries; None: ``queries``.
    query_texts:    the texts of ``queries``, not tokenized.
    pairs:          two corpora of equal length, whose texts belong together.
    dev_pairs:      how many of the last pairs are held out to choose the best state with.
    """

    document_ids: Sequence[str]
    documents: Corpus
    queries: Corpus
    train: list[TrainingQuery]
    dev: list[TrainingQuery]
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
    """The dev queries, and the documents that a ranker must score for them.

    judged:    the Q queries, whose candidates are ranked.
    documents: (U,) positions of all candidates in their corpus, each once.
    columns:   for each query, the positions of its candidates in ``documents``.
    """

    judged: list[TrainingQuery]
    documents: NDArray[np.int64]
    columns: list[NDArray[np.int64]]

    @classmethod
    def from_candidates(cls, data: TrainingData) -> DevSet:
        """Rank the candidates of up to DEV_QUERIES dev queries.

        Raises TrainingError if no dev query has candidates.
        """
        judged = _sample([query for query in data.dev if len(query.candidates)])
        if not judged:
            raise TrainingError("no dev query retrieves anything; give other --dev-qrels")
        return cls._from_queries(judged)

    @classmethod
    def from_random_pools(cls, data: TrainingData, seed: int) -> DevSet:
        """Rank the relevant documents of up to DEV_QUERIES dev queries among random documents.

        The scores of the first stage are 0.
        """
        rng = np.random.default_rng(seed)
        judged = []
        for query in _sample(data.dev):
            drawn = rng.integers(len(data.document_ids), size=DEV_RANDOM * len(query.documents))
            pool = np.union1d(query.documents, drawn)
            judged.append(replace(query, candidates=pool, scores=np.zeros(len(pool))))
        return cls._from_queries(judged)

    @property
    def queries(self) -> NDArray[np.int64]:
        """The positions of the queries in their corpus, (Q,)."""
        return np.array([query.query for query in self.judged])

    def ndcg(self, queries: NDArray[Any], documents: NDArray[Any]) -> tuple[float, float, float]:
        """Return :func:`weighted_ndcg` if scores are the inner products of vectors.

        queries:   (Q, E) vectors of the queries.
        documents: (U, E) vectors of ``documents``.
        """
        scores = []
        for query, columns in zip(queries, self.columns):
            scores.append((documents[columns] @ query).astype(np.float64))
        return weighted_ndcg(self.judged, scores)

    @classmethod
    def _from_queries(cls, judged: list[TrainingQuery]) -> DevSet:
        candidates = [query.candidates for query in judged]
        documents, columns = np.unique(np.concatenate(candidates), return_inverse=True)
        cuts = np.cumsum(list(map(len, candidates)))[:-1]
        return cls(judged, documents, np.split(columns, cuts))


def _sample(judged: list[TrainingQuery]) -> list[TrainingQuery]:
    return judged[:: max(1, -(-len(judged) // DEV_QUERIES))]


WEIGHTS = np.arange(21) / 20
"""Weights of the ranker's score that are tried; the first stage has the rest."""


def weighted_ndcg(
    judged: Sequence[TrainingQuery], scores: Sequence[NDArray[np.float64]]
) -> tuple[float, float, float]:
    """Return the mean NDCG, without cut-off, of a ranker's scores in combination with the first stage.

    Returns three values: with the best of the 21 weights, with the ranker only, and with the first stage
    only.
    Scores are z-normalized per query, and relevant documents lose ties.

    scores: for each query, the (n,) scores of its candidates.
    """
    total = np.zeros(len(WEIGHTS))
    for query, ranker_scores in zip(judged, scores):
        combined = _z_scores(query.scores)[:, None] * (1 - WEIGHTS)
        combined = combined + _z_scores(ranker_scores)[:, None] * WEIGHTS  # (n, 21)
        _, retrieved, rows = np.intersect1d(query.documents, query.candidates, return_indices=True)
        ranks = (combined >= combined[rows, None]).sum(axis=1) - 1  # (R, 21)
        ideal = NDCG.ideal(query.grades)
        depth = len(query.candidates)
        total += NDCG.values(ranks, query.grades[retrieved], ideal=ideal, depth=depth)
    mean = total / len(judged)
    return float(mean.max()), float(mean[-1]), float(mean[0])


def _z_scores(values: NDArray[np.float64]) -> NDArray[np.float64]:
    spread = values.std()
    return (values - values.mean()) / spread if spread > 0 else np.zeros_like(values)
