"""Training data: texts, judgments, candidates; dev measure of a ranker in training."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.common.arrays import Ragged
from rerank.common.errors import TrainingError
from rerank.common.progress import SILENT, Progress
from rerank.documents.records import Document, Query
from rerank.documents.text import count_of, words
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
        """Tokenize documents or queries in their order. This takes about 4 bytes per word."""
        index: dict[str, int] = {}
        flat = array("i")
        offsets = array("q", [0])
        categories: list[tuple[str, ...]] = []
        interned: dict[tuple[str, ...], tuple[str, ...]] = {}
        for record in records:
            text = record.content if isinstance(record, Document) else record.text
            flat.extend(index.setdefault(word, len(index)) for word in words(text)[:LONGEST_TEXT])
            offsets.append(len(flat))
            categories.append(interned.setdefault(record.categories, record.categories))
        tokens = Ragged(np.array(flat, dtype=np.int32), np.array(offsets, dtype=np.int64))
        return cls(list(index), tokens, categories)

    def take(self, rows: NDArray[np.int64]) -> Corpus:
        """Return the texts with these (m,) positions. Their words stay in their order."""
        tokens = self.tokens.take(rows)
        is_used = np.zeros(len(self.words), np.bool_)
        is_used[tokens.flat] = True
        new_numbers = np.cumsum(is_used, dtype=np.int32) - 1
        return Corpus(
            words=[self.words[number] for number in np.flatnonzero(is_used).tolist()],
            tokens=Ragged(new_numbers[tokens.flat].astype(np.int32), tokens.offsets),
            categories=[self.categories[row] for row in rows.tolist()],
        )

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

    def with_documents(self, new_positions: NDArray[np.int64]) -> TrainingQuery:
        """Return the query for a collection with fewer documents.

        new_positions: (D,) the new position of each document, or -1 for a document that is left out.
        """
        documents = new_positions[self.documents]
        candidates = new_positions[self.candidates]
        unwanted = new_positions[self.unwanted]
        return replace(
            self,
            documents=documents[documents >= 0],
            grades=self.grades[documents >= 0],
            candidates=candidates[candidates >= 0],
            scores=self.scores[candidates >= 0],
            unwanted=unwanted[unwanted >= 0],
        )


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

    def with_documents(self, rows: NDArray[np.int64]) -> TrainingData:
        """Return the data with only some documents. Other judged documents and candidates are left out.

        rows: ascending positions of documents.
        """
        new_positions = np.full(len(self.document_ids), -1)
        new_positions[rows] = np.arange(len(rows))
        return replace(
            self,
            document_ids=[self.document_ids[row] for row in rows.tolist()],
            documents=self.documents.take(rows),
            train=[query.with_documents(new_positions) for query in self.train],
            dev=[query.with_documents(new_positions) for query in self.dev],
        )


DEV_QUERIES = 800
"""Maximum number of dev queries, evenly spaced: enough to compare epochs."""
MAX_DEV_DOCUMENTS = 100_000
"""Documents that a ranker scores to measure dev. Of more, each dev query ranks fewer candidates."""
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
    def from_candidates(cls, data: TrainingData, progress: Progress = SILENT) -> DevSet:
        """Rank the candidates of up to DEV_QUERIES dev queries. ``progress`` receives remarks on samples.

        Raises TrainingError if no dev query has candidates.
        """
        judged = _sample([query for query in data.dev if len(query.candidates)], progress)
        if not judged:
            raise TrainingError("no dev query retrieves anything; give other --dev-qrels")
        dev_set = cls._from_queries(judged)
        if len(dev_set.documents) <= MAX_DEV_DOCUMENTS:
            return dev_set
        depth = MAX_DEV_DOCUMENTS // len(judged)
        progress.say(f"dev queries rank their first {count_of(depth, 'candidate')} only")
        return cls._from_queries(_with_depth(judged, depth))

    @classmethod
    def from_random_pools(cls, data: TrainingData, seed: int, progress: Progress = SILENT) -> DevSet:
        """Rank the relevant documents of up to DEV_QUERIES dev queries among random documents.

        The scores of the first stage are 0. ``progress`` receives a remark on a sample.
        """
        rng = np.random.default_rng(seed)
        judged = []
        for query in _sample(data.dev, progress):
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


def _with_depth(judged: list[TrainingQuery], depth: int) -> list[TrainingQuery]:
    """Return the queries with only their first candidates."""
    shallow = []
    for query in judged:
        shallow.append(replace(query, candidates=query.candidates[:depth], scores=query.scores[:depth]))
    return shallow


def _sample(judged: list[TrainingQuery], progress: Progress) -> list[TrainingQuery]:
    spacing = -(-len(judged) // DEV_QUERIES)
    if spacing <= 1:
        return judged
    sample = judged[::spacing]
    progress.say(f"{len(sample):,} of {count_of(len(judged), 'dev query')} are ranked to measure a ranker")
    return sample


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
