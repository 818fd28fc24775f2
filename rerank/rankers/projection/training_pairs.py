"""The pairs of a training, and the documents that each pair is compared with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, compress, pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rerank.common.errors import TrainingError
from rerank.rankers.projection.config import ProjectionConfig
from rerank.rankers.projection.s2net import Comparisons, Integers, TermVectors, entries
from rerank.rankers.training.data import TrainingQuery

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix


@dataclass(frozen=True)
class Pairs:
    """N pairs of a query and a document that belong together.

    queries:     (N, V) the query of each pair, CSR or dense.
    documents:   (M, V) distinct documents, CSR or dense.
    comparisons: the document of each pair, and the documents that it is compared with.
    """

    queries: TermVectors
    documents: TermVectors
    comparisons: Comparisons

    def __len__(self) -> int:
        return len(self.comparisons.target)

    @property
    def partners(self) -> TermVectors:
        """The document of each pair, (N, V)."""
        return self.documents[self.comparisons.target]

    def take(self, rows: Integers) -> Pairs:
        """Return some pairs, with the documents that they refer to. The sum of their weights is again 1."""
        columns, comparisons = self.comparisons.within(rows)
        weight = comparisons.weight / comparisons.weight.sum()
        return Pairs(self.queries[rows], self.documents[columns], replace(comparisons, weight=weight))


class _JudgedPair(NamedTuple):
    """A query and one of its relevant documents, as rows of the matrices of texts.

    grades:   the grade of each relevant document of the query, by its row.
    unwanted: the rows of documents that are judged 0 or less.
    """

    query: int
    document: int
    weight: float
    grades: dict[int, int]
    unwanted: list[int]


def _pairs_with_terms(
    pairs: Sequence[_JudgedPair], has_query_terms: NDArray[np.bool_], has_document_terms: NDArray[np.bool_]
) -> list[_JudgedPair]:
    """Return the pairs whose query and document have terms.

    has_query_terms, has_document_terms: (Q,) and (D,) bool.

    Raises TrainingError if there are none.
    """
    query_has_terms = has_query_terms[_integers(pair.query for pair in pairs)]
    partner_has_terms = has_document_terms[_integers(pair.document for pair in pairs)]
    usable = list(compress(pairs, query_has_terms & partner_has_terms))
    if not usable:
        _refuse(bool(query_has_terms.any()), bool(partner_has_terms.any()))
    return usable


def build_pairs(
    judged: Iterable[TrainingQuery],
    documents: TermVectors,
    queries: TermVectors,
    text_pairs: Sequence[csr_matrix],
    config: ProjectionConfig,
) -> Pairs:
    """Pair queries with their documents of the highest grade, with ``graded`` of any grade; add text pairs.

    documents:  (D, V) vectors of documents.
    queries:    (Q, V) vectors of queries.
    text_pairs: the vectors of both sides of text pairs, or nothing.

    Raises TrainingError if no pair has terms on both sides.
    """
    pairs: list[_JudgedPair] = []
    for query in judged:
        pairs.extend(_judged_pairs(query, config))
    if text_pairs:
        from scipy.sparse import vstack

        pairs += _from_text_pairs(pairs, queries.shape[0], documents.shape[0], text_pairs[0].shape[0])
        queries = vstack([queries, text_pairs[0]]).tocsr()
        documents = vstack([documents, text_pairs[1]]).tocsr()
    has_document_terms = _has_terms(documents)
    usable = _pairs_with_terms(pairs, _has_terms(queries), has_document_terms)
    used_rows = {pair.document for pair in usable}
    unwanted = chain.from_iterable(pair.unwanted for pair in usable)
    used_rows.update(row for row in unwanted if has_document_terms[row])
    document_rows = _integers(sorted(used_rows))
    query_rows = _integers(pair.query for pair in usable)
    # Texts with the same terms are one text: no ranker can distinguish them.
    columns, first_rows = _distinct(documents[document_rows])
    query_texts, _ = _distinct(queries[query_rows])
    column_of = dict(zip(document_rows.tolist(), columns.tolist()))
    comparisons = _compare(usable, query_texts.tolist(), column_of, config)
    return Pairs(queries[query_rows], documents[document_rows[first_rows]], comparisons)


def _judged_pairs(query: TrainingQuery, config: ProjectionConfig) -> Iterator[_JudgedPair]:
    """Yield the pairs of a judged query, with a total weight of 1."""
    lowest = 1 if config.graded else query.grades.max()
    documents = query.documents[query.grades >= lowest].tolist()
    grades = dict(zip(query.documents.tolist(), query.grades.tolist()))
    for document in documents:
        yield _JudgedPair(query.query, document, 1.0 / len(documents), grades, query.unwanted.tolist())


def _from_text_pairs(
    judged: Sequence[_JudgedPair], queries: int, documents: int, count: int
) -> list[_JudgedPair]:
    """Return the pairs of texts whose rows follow ``queries`` and ``documents``, with the best grade."""
    best = max((max(pair.grades.values()) for pair in judged), default=1)
    pairs = []
    for number in range(count):
        row = documents + number
        pairs.append(_JudgedPair(queries + number, row, 1.0, {row: best}, []))
    return pairs


def _lower_graded(pair: _JudgedPair, grades: Mapping[int, int]) -> set[int]:
    """Return the columns with a lower grade than the document of a pair. grades: column -> grade."""
    grade = pair.grades[pair.document]
    return {column for column in grades if grades[column] < grade}


def _compare(
    pairs: Sequence[_JudgedPair],
    query_texts: Sequence[int],
    column_of: Mapping[int, int],
    config: ProjectionConfig,
) -> Comparisons:
    """Return the documents that each pair is compared with.

    query_texts: the number of each pair's query; equal texts have one number.
    column_of:   the column of each document, by its row; equal texts have one column.
    """
    grades_of_query = _grades_by_column(pairs, query_texts, column_of)
    left_out: list[list[int]] = []
    worse: list[list[int]] = []
    for pair, query in zip(pairs, query_texts):
        grades = grades_of_query[query]
        lower = _lower_graded(pair, grades) if config.graded else set()
        left_out.append(sorted(grades.keys() - lower))
        unwanted = {column_of[row] for row in pair.unwanted if row in column_of} - grades.keys()
        judged_worse = (unwanted | lower) - {column_of[pair.document]}
        worse.append(sorted(judged_worse) if config.judged else [])
    columns = max(column_of.values()) + 1
    weight = np.array([pair.weight for pair in pairs])
    return Comparisons(
        target=_integers(column_of[pair.document] for pair in pairs),
        left_out=entries(left_out, columns),
        weight=weight / weight.sum(),
        worse=entries(worse, columns),
    )


def _grades_by_column(
    pairs: Sequence[_JudgedPair], query_texts: Sequence[int], column_of: Mapping[int, int]
) -> dict[int, dict[int, int]]:
    """Return the highest grade of each relevant document by its column, for each text of a query."""
    grades_of_query: dict[int, dict[int, int]] = {}
    for pair, query in zip(pairs, query_texts):
        grades = grades_of_query.setdefault(query, {})
        for row, grade in pair.grades.items():
            if row in column_of:
                column = column_of[row]
                grades[column] = max(grade, grades.get(column, 0))
    return grades_of_query


def _refuse(queries: bool, documents: bool) -> None:
    """Raise TrainingError for pairs without usable terms. The arguments state which sides have terms."""
    for has_terms, side in ((queries, "queries"), (documents, "documents")):
        if not has_terms:
            raise TrainingError(
                f"the vocabulary has no term of the {side} to train on: each of their words is in one"
                " text only, or in all; give more pairs"
            )
    raise TrainingError("no training pair has words of the vocabulary on both sides; give more pairs")


def _integers(numbers: Iterable[int]) -> Integers:
    return np.array(list(numbers), dtype=np.int64)


def _has_terms(rows: TermVectors) -> NDArray[np.bool_]:
    """Return which of n rows have numbers other than 0, (n,) bool."""
    return np.asarray(abs(rows).sum(axis=1)).ravel() > 0


def _distinct(rows: TermVectors) -> tuple[Integers, Integers]:
    """Number n rows so that equal rows have one number.

    Returns the number of each row, (n,), and the first row of each number, (m,).
    """
    from scipy.sparse import csr_matrix

    sparse = csr_matrix(rows)
    sparse.sort_indices()
    number_of: dict[tuple[bytes, bytes], int] = {}
    numbers: list[int] = []
    for begin, end in pairwise(sparse.indptr.tolist()):
        key = (sparse.indices[begin:end].tobytes(), sparse.data[begin:end].tobytes())
        numbers.append(number_of.setdefault(key, len(number_of)))
    return _integers(numbers), np.unique(numbers, return_index=True)[1]
