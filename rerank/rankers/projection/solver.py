"""The training loop of S2Net and ``adapter``: L-BFGS on pairs; a measure on dev chooses the matrix."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from rerank.common.arrays import unit_rows
from rerank.common.progress import Progress
from rerank.documents.text import count_of
from rerank.rankers.base import Ranker
from rerank.rankers.projection.config import ProjectionConfig
from rerank.rankers.projection.s2net import (
    Integers,
    Matrix,
    Objective,
    S2Net,
    TermVectors,
    anchored,
    minimize,
)
from rerank.rankers.projection.training_pairs import Pairs, build_pairs
from rerank.rankers.training.data import DevSet, TrainingData
from rerank.rankers.training.job import TrainingResult

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

CHECK_EVERY = 5
"""Iterations between measurements on dev."""
LEAST_ITERATIONS = 20
"""Iterations before a training without gain ends."""
PATIENCE = 4
"""Measurements without gain that end the training."""
MAX_PRODUCTS = 1e11
"""Pairs x documents x dimensions up to which a pair is compared with all documents, and not only its part."""
PART_SIZE = 4096
"""Pairs in a part."""
MAX_PARTS = 8
"""Parts that are drawn together; of more pairs, each draw uses others."""
ITERATIONS_PER_PART = 15
"""Iterations after which new parts are drawn."""


class Vectors:
    """The vectors of a training, its pairs, and its measure on dev.

    documents:  (D, V) vectors of the documents of ``data``, CSR or dense.
    queries:    (Q, V) vectors of its queries, CSR or dense.
    text_pairs: the vectors of both sides of its text pairs, CSR. The dev pairs are the last ones.
    """

    def __init__(
        self,
        data: TrainingData,
        config: ProjectionConfig,
        documents: TermVectors,
        queries: TermVectors,
        text_pairs: Sequence[csr_matrix] = (),
    ) -> None:
        self.documents = documents
        self.queries = queries
        cut = text_pairs[0].shape[0] - data.dev_pairs if text_pairs else 0
        self.text_pairs = [side[:cut] for side in text_pairs]
        self.dev_pairs = [side[cut:] for side in text_pairs]
        self.pairs = build_pairs(data.train, documents, queries, self.text_pairs, config)
        self.dev = DevSet.from_candidates(data) if data.dev else None

    def measure(self, matrix: Matrix) -> tuple[float, float]:
        """Return the measure on dev with and without a matrix.

        It is the NDCG weighted with the first stage or, for dev pairs, the mean reciprocal rank.

        matrix: (V, k) for both sides, or one for queries above one for documents, (2 V, k).
        """
        size = self.documents.shape[1]
        query_matrix = matrix[:size]
        document_matrix = matrix[-size:]
        if self.dev is None:
            query_texts, document_texts = self.dev_pairs
            cosines = unit_rows(query_texts @ query_matrix) @ unit_rows(document_texts @ document_matrix).T
            return reciprocal_rank(cosines), reciprocal_rank((query_texts @ document_texts.T).toarray())
        dev_queries = unit_rows(self.queries[self.dev.queries] @ query_matrix)
        dev_documents = unit_rows(self.documents[self.dev.documents] @ document_matrix)
        weighted, _, first_stage = self.dev.ndcg(dev_queries, dev_documents)
        return weighted, first_stage


def reciprocal_rank(scores: Matrix) -> float:
    """Return the mean reciprocal rank of the diagonal of (n, n) scores, by row and by column.

    Ties share ranks.
    """
    total = 0.0
    for view in (scores, scores.T):
        diagonal = np.diag(view)[:, None]
        rank = 1 + (view > diagonal).sum(axis=1) + ((view == diagonal).sum(axis=1) - 1) / 2
        total += float((1 / rank).mean())
    return total / 2


@dataclass
class Best:
    """The best matrix on dev so far.

    measure:        the measure on dev with this matrix.
    baseline_value: the measure on dev without a matrix.
    iteration:      the iteration that reached this matrix; 0 is the start.
    iterations:     the number of iterations so far.
    interrupted:    whether the user stopped the training.
    history:        (iteration, loss, measure on dev) for each measurement.
    """

    matrix: Matrix
    measure: float
    baseline_value: float
    iteration: int = 0
    iterations: int = 0
    interrupted: bool = False
    history: list[tuple[int, float | None, float]] = field(default_factory=list)

    def result(
        self,
        ranker: Ranker,
        baseline_name: str = TrainingResult.baseline_name,
        measure: str = TrainingResult.measure,
        remarks: Sequence[str] = (),
    ) -> TrainingResult:
        """Return the result of a training whose ranker has this matrix."""
        return TrainingResult(
            ranker,
            epoch=self.iteration,
            epochs=self.iterations,
            dev=self.measure,
            baseline_value=self.baseline_value,
            interrupted=self.interrupted,
            measure=measure,
            baseline_name=baseline_name,
            unit="iteration",
            remarks=remarks,
            curve=self.history,
        )


def descend(
    title: str, vectors: Vectors, start: Matrix, config: ProjectionConfig, progress: Progress
) -> Best:
    """Minimize S2Net's loss from a matrix, (V, k), and return the best matrix on dev.

    An interruption by the user keeps the best matrix up to that moment.
    """
    iterations = config.epochs
    count = len(vectors.pairs)
    if _is_divided(vectors.pairs, start) and count > MAX_PARTS * PART_SIZE:
        progress.say(
            f"{title}: every {ITERATIONS_PER_PART} iterations, other {MAX_PARTS * PART_SIZE:,} of"
            f" {count_of(count, 'pair')} are used"
        )
    best = Best(start, *vectors.measure(start))
    best.history.append((0, None, best.measure))
    with progress.step(title, iterations, "iteration") as advance:
        try:
            for iteration, (matrix, loss) in enumerate(_steps(vectors.pairs, start, config), 1):
                best.iterations = iteration
                advance(1)
                if iteration % CHECK_EVERY == 0 or iteration == iterations:
                    _measure(best, vectors, iteration, matrix, loss)
                    progress.show(dev=f"{best.measure:.4f}")
                is_stale = iteration - best.iteration >= PATIENCE * CHECK_EVERY
                if iteration == iterations or (is_stale and iteration >= LEAST_ITERATIONS):
                    break
        except KeyboardInterrupt:
            best.interrupted = True
    return best


def _measure(best: Best, vectors: Vectors, iteration: int, matrix: Matrix, loss: float) -> None:
    value, _ = vectors.measure(matrix)
    best.history.append((iteration, loss, value))
    if value > best.measure:
        best.matrix = matrix
        best.iteration = iteration
        best.measure = value


def _steps(pairs: Pairs, start: Matrix, config: ProjectionConfig) -> Iterator[tuple[Matrix, float]]:
    """Yield the matrix and the loss of each iteration, until no step reduces the loss."""
    if not _is_divided(pairs, start):
        yield from minimize(_loss(_objective(pairs, config), start, config), start)
        return
    point = start
    for objective in _divided_objectives(pairs, config):
        for iteration, step in enumerate(minimize(_loss(objective, start, config), point), 1):
            point = step[0]
            yield step
            if iteration == ITERATIONS_PER_PART:
                break
        else:
            return


def _is_divided(pairs: Pairs, start: Matrix) -> bool:
    """Return whether a pair is compared with the documents of its part only."""
    products = len(pairs) * pairs.documents.shape[0] * start.shape[1]
    return products > MAX_PRODUCTS and len(pairs) > PART_SIZE


def _divided_objectives(pairs: Pairs, config: ProjectionConfig) -> Iterator[S2Net]:
    """Yield objectives without end. Each one compares the pairs of a part with the documents of this part.

    The parts are random. Of more than MAX_PARTS parts, each objective has others.
    """
    rng = np.random.default_rng(config.seed)
    sample_size = MAX_PARTS * PART_SIZE
    if len(pairs) <= sample_size:
        objective = _objective(pairs, config)
        while True:
            objective.compare_within(_parts(rng.permutation(len(pairs))))
            yield objective
    while True:
        sample = pairs.take(rng.permutation(len(pairs))[:sample_size])
        objective = _objective(sample, config)
        objective.compare_within(_parts(np.arange(len(sample))))
        yield objective


def _parts(rows: Integers) -> list[Integers]:
    """Divide rows into parts of at most PART_SIZE rows."""
    return np.array_split(rows, -(-len(rows) // PART_SIZE))


def _objective(pairs: Pairs, config: ProjectionConfig) -> S2Net:
    return S2Net(pairs.queries, pairs.documents, pairs.comparisons, gamma=config.gamma)


def _loss(objective: S2Net, start: Matrix, config: ProjectionConfig) -> Objective:
    """Return the loss of a matrix. With ``beta``, its distance from the start is added."""
    return anchored(objective, start, config.beta) if config.beta else objective
