"""Vectors of texts, pairs and dev measure of a training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rerank.errors import TrainingError
from rerank.progress import Progress
from rerank.rankers.projection.config import ProjectionConfig
from rerank.rankers.projection.ranker import fit_terms, term_matrix
from rerank.rankers.projection.s2net import Comparisons, Integers, Matrix, entries
from rerank.rankers.training.data import Corpus, DevSet, TrainingData, TrainingQuery


@dataclass(frozen=True)
class Pairs:
    """N training pairs. queries: (N, V); documents: (M, V), distinct. Both are CSR or dense."""

    queries: Any
    documents: Any
    comparisons: Comparisons

    def __len__(self) -> int:
        return len(self.comparisons.target)

    @property
    def partners(self) -> Any:
        """(N, V): document of each pair."""
        return self.documents[self.comparisons.target]


class _Pair(NamedTuple):
    """Row numbers. grades: of relevant documents. unwanted: documents judged 0 or less."""

    query: int
    document: int
    weight: float
    grades: dict[int, int]
    unwanted: list[int]


class Vectors:
    """Vectors of a training. pairs: to train on.

    documents, queries: (D, V), (Q, V) of the texts of ``data``, CSR or dense.
    given: both sides of its pairs, CSR.
    """

    def __init__(
        self,
        data: TrainingData,
        config: ProjectionConfig,
        documents: Any,
        queries: Any,
        given: Sequence[Any] = (),
    ) -> None:
        self.documents, self.queries = documents, queries
        cut = given[0].shape[0] - data.dev_pairs if given else 0
        self.given = [side[:cut] for side in given]
        self.dev_pairs = [side[cut:] for side in given]
        self.pairs = self._pairs(data, config)
        self.dev = DevSet.from_candidates(data) if data.dev else None

    def _pairs(self, data: TrainingData, config: ProjectionConfig) -> Pairs:
        """Pair queries with documents of the highest grade (``graded``: any); add given pairs."""
        queries, documents = self.queries, self.documents
        pairs = [pair for one in data.train for pair in _judged_pairs(one, config)]
        if self.given:
            from scipy.sparse import vstack

            best = max((grade for pair in pairs for grade in pair.grades.values()), default=1)
            for i in range(self.given[0].shape[0]):
                query, document = queries.shape[0] + i, documents.shape[0] + i
                pairs.append(_Pair(query, document, 1.0, {document: best}, []))
            queries = vstack([queries, self.given[0]]).tocsr()
            documents = vstack([documents, self.given[1]]).tocsr()
        filled = _filled(queries), _filled(documents)
        usable = [pair for pair in pairs if filled[0][pair.query] and filled[1][pair.document]]
        if not usable:
            _refuse(any(filled[0][pair.query] for pair in pairs), any(filled[1][p.document] for p in pairs))
        # Texts with the same terms are one text: no ranker can distinguish them.
        judged = {d for pair in usable for d in pair.unwanted if filled[1][d]}
        rows = _integers(sorted({pair.document for pair in usable} | judged))
        numbers, first = _distinct(documents[rows])
        column = dict(zip(rows.tolist(), numbers.tolist()))
        asked = _integers(pair.query for pair in usable)
        same_query = _distinct(queries[asked])[0].tolist()
        comparisons = _compared(usable, same_query, column, len(first), config)
        return Pairs(queries[asked], documents[rows[first]], comparisons)

    def measure(self, matrix: Matrix) -> tuple[float, float]:
        """Dev measure with and without a matrix (V, k), or two as (2 V, k).

        nDCG weighted with the first stage; for given pairs, mean reciprocal rank.
        """
        size = self.documents.shape[1]
        query, document = matrix[:size], matrix[-size:]
        if self.dev is None:
            left, right = self.dev_pairs
            terms = reciprocal_rank((left @ right.T).toarray())
            return reciprocal_rank(unit_rows(left @ query) @ unit_rows(right @ document).T), terms
        asked = unit_rows(self.queries[self.dev.queries] @ query)
        weighted, _, first = self.dev.ndcg(asked, unit_rows(self.documents[self.dev.documents] @ document))
        return weighted, first


def _compared(
    pairs: Sequence[_Pair],
    queries: Sequence[int],
    column: Mapping[int, int],
    columns: int,
    config: ProjectionConfig,
) -> Comparisons:
    """What each pair is compared with. queries: number of each pair's text. column: row -> column."""
    relevant: dict[int, dict[int, int]] = {}
    for pair, query in zip(pairs, queries):
        grades = relevant.setdefault(query, {})
        for document, grade in pair.grades.items():
            if document in column:
                grades[column[document]] = max(grade, grades.get(column[document], 0))
    left_out, worse = [], []
    for pair, query in zip(pairs, queries):
        grades, own = relevant[query], pair.grades[pair.document]
        left_out.append(sorted(c for c, g in grades.items() if not config.graded or g >= own))
        below = {column[d] for d in pair.unwanted if d in column} - grades.keys()
        if config.graded and config.judged:
            below |= {c for c, g in grades.items() if g < own}
        worse.append(sorted(below - {column[pair.document]}))
    target = _integers(column[pair.document] for pair in pairs)
    weight = np.array([pair.weight for pair in pairs])
    return Comparisons(
        target, entries(left_out, columns), weight / weight.sum(), entries(worse, columns), config.judged
    )


class TermVectors(Vectors):
    """Vectors of terms. terms: V terms."""

    def __init__(self, data: TrainingData, config: ProjectionConfig, progress: Progress) -> None:
        given = data.pairs or ()
        read = [data.documents, *([data.query_text] if data.query_text else []), *given]
        made = [data.documents, data.queries, *given]
        total = sum(len(corpus.tokens) for corpus in [*read, *made])

        def counted(corpora: Iterable[Corpus]) -> Iterator[Corpus]:
            for corpus in corpora:
                yield corpus
                progress.advance(len(corpus.tokens))

        with progress.step("term vectors", total, "text"):
            self.terms = fit_terms(counted(read), config.letters, config.terms)
            if not self.terms.names:
                raise TrainingError(
                    "the texts have no words that could be compared; give texts with words in them"
                )
            documents, queries, *pairs = (term_matrix(self.terms, corpus) for corpus in counted(made))
        super().__init__(data, config, documents, queries, pairs)

    def collection(self) -> Any:
        """Texts for LSI: the collection and documents of given pairs.

        With queries, its reciprocal rank on debian fell from 0.66 to 0.47.
        """
        from scipy.sparse import vstack

        return vstack([self.documents, *self.given[1:]]).tocsr()


def _judged_pairs(one: TrainingQuery, config: ProjectionConfig) -> Iterator[_Pair]:
    """Pairs of a judged query, total weight 1."""
    chosen = one.documents[(one.grades > 0) if config.graded else (one.grades == one.grades.max())]
    grades = dict(zip(one.documents.tolist(), one.grades.tolist()))
    unwanted = one.unwanted.tolist() if config.judged else []
    for document in chosen.tolist():
        yield _Pair(one.query, document, 1.0 / len(chosen), grades, unwanted)


def _refuse(queries: bool, documents: bool) -> None:
    for some, side in ((queries, "queries"), (documents, "documents")):
        if not some:
            raise TrainingError(
                f"the vocabulary has no term of the {side} to train on: each of their words is in one"
                " text only, or in all; give more pairs"
            )
    raise TrainingError("no training pair has words of the vocabulary on both sides; give more pairs")


def reciprocal_rank(scores: Matrix) -> float:
    """Mean reciprocal rank of the diagonal of (n, n) ``scores``, both ways; ties share ranks."""
    total = 0.0
    for view in (scores, scores.T):
        own = np.diag(view)[:, None]
        rank = 1 + (view > own).sum(axis=1) + ((view == own).sum(axis=1) - 1) / 2
        total += float((1 / rank).mean())
    return total / 2


def unit_rows(rows: Matrix) -> Matrix:
    """Scale rows to length 1; zero rows stay 0."""
    length = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    unit: Matrix = rows / np.maximum(length, 1e-12)[:, None]
    return unit


def _integers(numbers: Any) -> Integers:
    return np.array(list(numbers), dtype=np.int64)


def _filled(rows: Any) -> NDArray[np.bool_]:
    """Rows with numbers other than 0, (n,) bool."""
    return np.asarray(abs(rows).sum(axis=1)).ravel() > 0


def _distinct(rows: Any) -> tuple[Integers, Integers]:
    """Number distinct rows: (n,) numbers, (m,) first rows."""
    from scipy.sparse import csr_matrix

    rows = csr_matrix(rows)
    rows.sort_indices()
    cuts = zip(rows.indptr[:-1], rows.indptr[1:])
    keys = ((rows.indices[a:b].tobytes(), rows.data[a:b].tobytes()) for a, b in cuts)
    known: dict[tuple[bytes, bytes], int] = {}
    numbers = _integers(known.setdefault(key, len(known)) for key in keys)
    return numbers, np.unique(numbers, return_index=True)[1]
