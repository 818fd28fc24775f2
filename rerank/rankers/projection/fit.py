"""Fits the projection rankers on term vectors of pairs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from rerank.config import values_of
from rerank.errors import TrainingError
from rerank.progress import Progress
from rerank.rankers.base import Ranker
from rerank.rankers.projection.config import ProjectionConfig
from rerank.rankers.projection.pairs import Pairs, TermVectors, Vectors
from rerank.rankers.projection.ranker import Projection
from rerank.rankers.projection.s2net import Matrix, S2Net, anchored, minimize
from rerank.rankers.projection.spectral import cca, lsi, opca
from rerank.rankers.training.job import TrainingJob, TrainingResult
from rerank.text import plural

CHECK, LEAST, PATIENCE = 5, 20, 4
"""Iterations between dev measures; least iterations; measures without gain that end the training."""
MOST_PRODUCTS = 1e11
"""Pairs x documents x dimensions up to which a pair is compared with all documents instead of its part."""
PART, RESHUFFLE = 4096, 15
"""Pairs in a part, and iterations after which new parts are drawn."""


@dataclass
class Best:
    """The best matrix on dev so far.

    iteration, iterations: its iteration, and their number. measure, first: dev with and without it.
    history: (iteration, loss, dev measure).
    """

    matrix: Matrix
    measure: float
    first: float
    iteration: int = 0
    iterations: int = 0
    interrupted: bool = False
    history: list[tuple[int, float | None, float]] = field(default_factory=list)

    def result(
        self, ranker: Ranker, baseline_name: str = TrainingResult.baseline_name, **more: Any
    ) -> TrainingResult:
        """Result of a ranker with this matrix."""
        counts = self.iteration, self.iterations, self.measure, self.first, self.interrupted
        return TrainingResult(
            ranker, *counts, baseline_name=baseline_name, unit="iteration", curve=self.history, **more
        )


class ProjectionTrainer:
    """Fits projection rankers on shared term vectors. If interrupted, ``s2net`` keeps its best matrix."""

    def __init__(self, job: TrainingJob, config: ProjectionConfig) -> None:
        assert job.data is not None
        self.data, self.config, self.progress = job.data, config, job.progress

    @cached_property
    def vectors(self) -> TermVectors:
        """Term vectors of all texts."""
        return TermVectors(self.data, self.config, self.progress)

    def fit(self, variant: str, name: str = "") -> TrainingResult:
        """Fit one ranker. Raises TrainingError for insufficient data."""
        name = name or variant
        if variant == "s2net":
            return self._s2net(name)
        matrix = self._spectral(f"fit {name}", variant, self.vectors.pairs, self.config.dim)
        if matrix.shape[1] < self.config.dim:
            self.progress.say(
                f"{name}: the data have only {plural(matrix.shape[1], 'dimension[|s]')} of the"
                f" {self.config.dim} requested"
            )
        return self._result(variant, name, Best(matrix, *self.vectors.measure(matrix)), {})

    def _spectral(self, title: str, variant: str, pairs: Pairs, dim: int) -> Matrix:
        """Solve an eigenvalue problem: (V, k) or, for ``cca``, (2 V, k); k <= ``dim``."""
        sides, seed = (pairs.queries, pairs.partners), self.config.seed
        with self.progress.step(title):
            if variant in ("lsi", "cllsi"):
                texts = self.vectors.collection() if variant == "lsi" else sides[0] + sides[1]
                return lsi(texts, dim, seed=seed)
            return {"opca": opca, "cca": cca}[variant](*sides, dim, seed=seed)

    def _s2net(self, name: str) -> TrainingResult:
        pairs, config = self.vectors.pairs, self.config
        dim, size = config.dim, len(self.vectors.terms.names)
        if dim > size:
            self.progress.say(f"{name}: {dim} dimensions are more than the terms; {size} are used")
            dim = size
        if pairs.documents.shape[0] < 2:
            raise TrainingError("all training pairs have the same document; add pairs with other documents")
        start = self._start(f"{name} starts from {config.init}", config.init, pairs, dim)
        best = descend(name, self.vectors, start, config, self.progress)
        trained = {"iteration": best.iteration, "history": best.history}
        return self._result("s2net", name, best, trained)

    def _start(self, title: str, init: str, pairs: Pairs, dim: int) -> Matrix:
        rng = np.random.default_rng(self.config.seed)
        size = pairs.queries.shape[1]
        matrix: Matrix
        if init == "random":
            matrix = rng.normal(size=(size, dim))
        else:
            matrix = self._spectral(title, init, pairs, dim)
            if matrix.shape[1] < dim:  # a column of zeros would never have a gradient
                scale = 0.01 * np.linalg.norm(matrix, axis=0).mean() / size**0.5
                extra = rng.normal(size=(size, dim - matrix.shape[1])) * scale
                matrix = np.concatenate((matrix, extra), axis=1)
        return np.asarray(matrix * (dim**0.5 / np.linalg.norm(matrix)), dtype=np.float32)

    def _result(self, variant: str, name: str, best: Best, trained: dict[str, Any]) -> TrainingResult:
        """Make a ranker, scaled for fp16."""
        scale = float(np.sqrt(np.square(best.matrix, dtype=np.float64).mean()))
        stored = (best.matrix / max(scale, 1e-30)).astype(np.float16)
        terms = self.vectors.terms
        size = len(terms.names)
        matrices = [stored[begin : begin + size] for begin in range(0, len(stored), size)]
        record = {**trained, "config": values_of(self.config), "first_stage": self.data.first_stage}
        ranker = Projection(
            name=name,
            variant=variant,
            terms=terms,
            query=matrices[0],
            document=matrices[-1],
            trained=record,
        )
        if self.data.dev:
            return best.result(ranker)
        return best.result(ranker, "by terms", measure="mean reciprocal rank of dev pairs")


def descend(
    title: str, vectors: Vectors, start: Matrix, config: ProjectionConfig, progress: Progress
) -> Best:
    """Minimize S2Net's loss; keep the best matrix on dev."""
    iterations = config.epochs
    best = Best(start, *vectors.measure(start))
    best.history.append((0, None, best.measure))
    with progress.step(title, iterations, "iteration") as advance:
        try:
            for done, (point, loss) in enumerate(_steps(vectors.pairs, start, config), 1):
                best.iterations = done
                advance(1)
                if done % CHECK == 0 or done == iterations:
                    value, _ = vectors.measure(point)
                    best.history.append((done, loss, value))
                    if value > best.measure:
                        best.matrix, best.iteration, best.measure = point, done, value
                    progress.show(dev=f"{best.measure:.4f}")
                stale = done - best.iteration >= PATIENCE * CHECK and done >= LEAST
                if done == iterations or stale:
                    break
        except KeyboardInterrupt:
            best.interrupted = True
    return best


def _steps(pairs: Pairs, start: Matrix, config: ProjectionConfig) -> Iterator[tuple[Matrix, float]]:
    count = len(pairs)
    objective = S2Net(pairs.queries, pairs.documents, pairs.comparisons, gamma=config.gamma)
    loss = anchored(objective, start, config.beta) if config.beta else objective
    size = PART if count * pairs.documents.shape[0] * start.shape[1] > MOST_PRODUCTS else count
    rng = np.random.default_rng(config.seed)
    point = start
    while True:
        if size < count:
            objective.compare_within(np.array_split(rng.permutation(count), -(-count // size)))
        for steps, step in enumerate(minimize(loss, point), 1):
            point = step[0]
            yield step
            if steps == RESHUFFLE and size < count:
                break
        else:
            return  # no step reduces the loss
