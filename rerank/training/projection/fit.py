"""Fits the projection rankers: judged or given pairs -> term vectors -> a matrix -> ``Projection``."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.errors import TrainingError, UsageError
from rerank.progress import Progress
from rerank.rankers.projection.ranker import Projection, Side
from rerank.rankers.projection.terms import Terms
from rerank.settings import values_of
from rerank.training.data import TrainingData, tell_shorter
from rerank.training.dev import DevSet, weighted_ndcg
from rerank.training.projection.checkpoint import Best, Checkpoint, Way, key_of
from rerank.training.projection.config import INITS, ProjectionConfig
from rerank.training.projection.forecast import first_timed
from rerank.training.projection.lbfgs import minimise
from rerank.training.projection.s2net import Comparisons, S2Net
from rerank.training.projection.spectral import cca, cllsi, lsi, opca
from rerank.training.projection.term_matrix import fit_terms, term_matrix
from rerank.training.registry import Fitted, Job
from rerank.wording import amount

Matrix = NDArray[np.floating[Any]]

CHECK, LEAST, PATIENCE = 5, 20, 4
"""Dev is measured every CHECK iterations; after LEAST, PATIENCE measures without a better one end it."""
TRIAL_PAIRS, TRIAL_ITERATIONS = 4000, 20
"""``auto`` tries each start on so many pairs, for so long, and goes on with the best."""
MOST_PRODUCTS = 1e11
"""Pairs x documents x dimensions up to which every document is compared; above, those of the same part."""
KEEP = 30.0
"""Seconds after which what is reached is kept on disk, at the next measurement."""
PART, RESHUFFLE = 4096, 15
"""Pairs in a part, and iterations after which the parts are drawn anew."""


@dataclass(frozen=True)
class Pairs:
    """N training pairs as term vectors.

    queries: (N, V) CSR, a row a pair; documents: (M, V) CSR, distinct; target, left_out, weight, label and
    worse: see ``Comparisons``.
    """

    queries: Any
    documents: Any
    target: NDArray[np.int64]
    left_out: list[NDArray[np.int64]]
    weight: NDArray[np.float64]
    label: NDArray[np.float64]
    worse: list[NDArray[np.int64]]

    @property
    def partners(self) -> Any:
        """(N, V): row i is the document of pair i."""
        return self.documents[self.target]

    def some(self, count: int, seed: int) -> Pairs:
        """Return ``count`` pairs drawn at random, and their documents only."""
        if len(self.target) <= count:
            return self
        rows = np.sort(np.random.default_rng(seed).choice(len(self.target), count, replace=False))
        columns = np.unique(np.concatenate([self.target[rows], *(self.worse[row] for row in rows.tolist())]))
        target = np.searchsorted(columns, self.target[rows])
        place = {column: i for i, column in enumerate(columns.tolist())}
        left_out, worse = (
            [
                np.array([place[c] for c in of[row].tolist() if c in place], dtype=np.int64)
                for row in rows.tolist()
            ]
            for of in (self.left_out, self.worse)
        )
        return Pairs(
            self.queries[rows],
            self.documents[columns],
            target,
            left_out,
            self.weight[rows],
            self.label[rows],
            worse,
        )


def trainer(job: Job, config: ProjectionConfig) -> ProjectionTrainer:
    """Make what fits the rankers of a job."""
    assert job.data is not None
    return ProjectionTrainer(job.data, config, job.progress, job.folder, restart=job.restart)


class ProjectionTrainer:
    """Fits ``lsi``, ``cllsi``, ``opca``, ``cca`` and ``s2net`` on the same term vectors.

    folder: where an interrupted ``s2net`` leaves what it has reached; restart: drop what is there.
    """

    def __init__(
        self,
        data: TrainingData,
        config: ProjectionConfig,
        progress: Progress | None = None,
        folder: Path | None = None,
        *,
        restart: bool = False,
    ) -> None:
        self.data = data
        self.config = config
        self.progress = progress or Progress()
        self.folder, self.restart = folder, restart
        self._vectors: _Vectors | None = None

    @property
    def vectors(self) -> _Vectors:
        """Term vectors of everything, made when first used."""
        if self._vectors is None:
            self._vectors = _Vectors(self.data, self.config, self.progress)
        return self._vectors

    def fit(self, role: str, name: str = "") -> Fitted:
        """Fit one ranker; raises TrainingError where the data cannot teach it anything."""
        vectors, config, name = self.vectors, self.config, name or role
        if role == "s2net":
            return self._s2net(name)
        self.progress.start(f"fit {name}")
        try:
            matrix = self._spectral(role, vectors.pairs, two=config.two_matrices or role == "cca")
        finally:
            self.progress.finish()
        if matrix.shape[1] < config.dim:
            self.progress.say(
                f"{name}: the data have {amount(matrix.shape[1], 'dimension[|s]')} of the"
                f" {config.dim} asked for; it keeps those"
            )
        measure, first = vectors.measure(matrix, tanh=False)
        ranker = self._ranker(role, name, matrix, {}, tanh=False)
        return Fitted(ranker, 0, 0, measure, first, False, *self._measured)

    @property
    def _measured(self) -> tuple[str, str, str]:
        """What dev tells, what it is compared with, and what passes meanwhile."""
        if self.data.dev:
            return Fitted.measure, Fitted.without, "iteration"
        return "mean reciprocal rank of dev pairs", "by terms", "iteration"

    def _spectral(self, name: str, pairs: Pairs, *, two: bool) -> Matrix:
        config, dim = self.config, self.config.dim
        told: dict[str, Any] = {"seed": config.seed, "expect": self.progress.expect}
        if name == "cca":
            return cca(*apart(pairs.queries, pairs.partners), dim, ridge=config.cca_ridge, **told)
        if name == "lsi":
            matrix = lsi(self.vectors.collection(), dim, **told)
        elif name == "cllsi":
            matrix = cllsi(pairs.queries, pairs.partners, dim, **told)
        elif name == "opca":
            matrix = opca(pairs.queries, pairs.partners, dim, ridge=config.opca_ridge, **told)
        else:
            raise UsageError(f"{name!r} is no projection")
        return np.concatenate((matrix, matrix)) if two else matrix

    def _start(self, init: str, pairs: Pairs) -> Matrix:
        """S2Net's start: (V, k), or (2 V, k) of two matrices that begin alike."""
        config = self.config
        rng = np.random.default_rng(config.seed)
        size, dim = pairs.queries.shape[1], config.dim
        if config.start is not None:
            matrix = self._given_start(config.start, rng)
        elif init == "random":
            matrix = rng.normal(size=(size, dim))
        else:
            matrix = self._spectral(init, pairs, two=False)
            if matrix.shape[1] < dim:  # a column of zeros would have no gradient, ever
                scale = 0.01 * np.linalg.norm(matrix, axis=0).mean() / size**0.5
                extra = rng.normal(size=(size, dim - matrix.shape[1])) * scale
                matrix = np.concatenate((matrix, extra), axis=1)
        if config.two_matrices and len(matrix) == size:
            matrix = np.concatenate((matrix, matrix))
        if config.start is not None and config.start.query.tanh and config.tanh:
            return np.asarray(matrix, dtype=np.float32)  # its scale is learned
        if config.tanh:
            spread = float((self._sides(pairs)[1] @ matrix).std())
            return np.asarray(matrix / max(spread, 1e-12), dtype=np.float32)
        return np.asarray(matrix * (dim**0.5 / np.linalg.norm(matrix)), dtype=np.float32)

    def _given_start(self, given: Projection, rng: np.random.Generator) -> Matrix:
        """The rows of a fitted projection, matched by their terms; small random rows for terms it lacks."""
        config, names = self.config, self.vectors.terms.names
        sides = [given.query] if given.document is given.query else [given.query, given.document]
        if len(sides) == 2 and not config.two_matrices:
            raise UsageError(
                f"the {given.name} to start from has a matrix for each side, and one is to be fitted; ask for"
                " two matrices, or start from another one"
            )
        halves = []
        for side in sides:
            found = side.matrix.shape[1]
            if found != config.dim:
                raise UsageError(
                    f"the {given.name} to start from has dimension {found}, not {config.dim}; ask for"
                    f" {found}, or start from another one"
                )
            if not np.isfinite(side.matrix).all():
                raise UsageError(
                    f"the matrix of the {given.name} to start from has numbers that are not finite;"
                    " train it again, or start from another one"
                )
            place = dict(zip(side.terms.names, range(len(side.terms.names))))
            at = np.array([place.get(name, -1) for name in names])
            if not (at >= 0).any():
                raise UsageError(
                    f"{given.name}, to start from, knows none of {amount(len(names), 'term[|s]')}; start from"
                    " another one"
                )
            known = side.matrix[at[at >= 0]].astype(np.float32)
            half = rng.normal(size=(len(names), found)).astype(np.float32) * (0.1 * known.std())
            half[at >= 0] = known
            halves.append(half)
        return np.concatenate(halves)

    def _sides(self, pairs: Pairs) -> tuple[Any, Any]:
        sides = pairs.queries, pairs.documents
        return apart(*sides) if self.config.two_matrices else sides

    def _s2net(self, name: str) -> Fitted:
        pairs = self.vectors.pairs
        size = pairs.queries.shape[1]
        if self.config.dim > size:
            self.progress.say(
                f"{name}: {self.config.dim} dimensions are more than there are terms; it keeps {size}"
            )
            self.config = replace(self.config, dim=size)
        config = self.config
        if len(pairs.documents.indptr) <= 2:
            raise TrainingError("all training pairs have the same document: there is nothing to tell it from")
        settings = values_of(config)
        key = key_of(self.data, settings, config.start.version if config.start is not None else None)
        checkpoint = Checkpoint(self.folder and self.folder / name, key, settings, config.epochs)
        if self.restart:
            checkpoint.discard()
        way = checkpoint.load()
        init = way.init or ("given" if config.start is not None else config.init)
        if init == "auto":
            init = self._choose(name, pairs, way, checkpoint)
        way.init = init
        self.progress.start(f"{name} starts from {init}")
        try:
            start = self._start(init, pairs)
        finally:
            self.progress.finish()
        best = self._descend(name, pairs, start, config.epochs, way, checkpoint)
        trained = {"init": init, "iteration": best.iteration, "history": best.history}
        ranker = self._ranker("s2net", name, best.matrix, trained, tanh=config.tanh)
        return Fitted(
            ranker,
            best.iteration,
            best.iterations,
            best.measure,
            best.first,
            best.interrupted,
            *self._measured,
            curve=best.history,
            settle=dict if best.interrupted else checkpoint.discard,
        )

    def _choose(self, name: str, pairs: Pairs, way: Way, checkpoint: Checkpoint) -> str:
        """Try every start on a part of the pairs; the best on dev wins."""
        some = pairs.some(TRIAL_PAIRS, self.config.seed)
        found = way.tried
        for init in INITS[1:]:
            if init in found:
                continue
            self.progress.start(f"{name} tries {init}")
            try:
                start = self._start(init, some)
            finally:
                self.progress.finish()
            trial = self._descend(f"{name} from {init}", some, start, TRIAL_ITERATIONS)
            if trial.interrupted:
                raise KeyboardInterrupt(
                    f"interrupted while {name} tried its starts; {len(found)} of {len(INITS) - 1} are done,"
                    " and the same again goes on"
                )
            found[init] = trial.measure
            checkpoint.save(way)
        best = max(found, key=lambda init: found[init])
        tried = ", ".join(f"{init} {value:.4f}" for init, value in found.items())
        self.progress.say(f"{name} starts from {best} (dev after a trial: {tried})")
        return best

    def _descend(
        self,
        title: str,
        pairs: Pairs,
        start: Matrix,
        iterations: int,
        way: Way | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> Best:
        """Minimise from ``start``, or from where the way has come; keep what was best on dev.

        What L-BFGS remembers is not kept: it learns it anew in a few iterations.
        """
        config = self.config
        objective = S2Net(
            *self._sides(pairs),
            Comparisons.of(
                pairs.target, pairs.left_out, pairs.weight, pairs.label, pairs.worse, config.judged
            ),
            loss=config.loss,
            gamma=config.gamma,
            tanh=config.tanh,
            both=config.both_sides,
        )
        count = len(pairs.target)
        size = config.negatives
        if size is None and count * len(pairs.documents.indptr) * config.dim > MOST_PRODUCTS:
            size = PART
        in_parts = size is not None and size < count
        rng = np.random.default_rng(config.seed)
        loss: Callable[[Matrix], tuple[float, Matrix]] = objective
        if config.beta:
            loss = anchored(objective, start, config.beta)
        best = Best(start, 0, 0, *self.vectors.measure(start, tanh=config.tanh))
        best.history.append((0, None, best.measure))
        point, done = start, 0
        if way is not None and way.point is not None:
            point, done = way.point, way.state["done"]
            best = Best.of(way)
            rng.bit_generator.state = way.state["generator"]
            self.progress.say(f"{title} goes on at iteration {done} of {iterations}")
        kept = time.monotonic()
        self.progress.start(title, iterations, "iteration")
        loss = first_timed(loss, lambda each: self.progress.expect(each * (iterations - done + 1)))
        if iterations == self.config.epochs:
            tell_shorter(self.progress, iterations)
        self.progress.advance(done)
        try:
            while done < iterations:
                if config.hard and config.judged:
                    objective.weigh_nearest(point, config.hard)
                if size is not None and in_parts:
                    shuffled = rng.permutation(count)
                    objective.compare_within(np.array_split(shuffled, -(-count // size)))
                before = done
                for step in minimise(loss, point, memory=config.memory):
                    point, done = step.point, done + 1
                    self.progress.advance()
                    if done % CHECK == 0 or done == iterations:
                        measure, _ = self.vectors.measure(point, tanh=config.tanh)
                        best.history.append((done, step.loss, measure))
                        self.progress.show(dev=f"{max(measure, best.measure):.4f}")
                        if measure > best.measure:
                            best.matrix, best.iteration, best.measure = point, done, measure
                        if way is not None and checkpoint is not None and time.monotonic() - kept > KEEP:
                            kept = time.monotonic()
                            checkpoint.save(best.way(way, point, done, rng))
                    best.iterations = done
                    stale = done - best.iteration >= PATIENCE * CHECK and done >= LEAST
                    if done == iterations or stale:
                        return best
                    if (in_parts or config.hard) and done - before == RESHUFFLE:
                        break
                else:
                    break  # no step makes the loss smaller
        except KeyboardInterrupt:
            best.interrupted = True
            if way is not None and checkpoint is not None:
                checkpoint.save(best.way(way, point, done, rng))
        finally:
            self.progress.finish()
        return best

    def _ranker(
        self, role: str, name: str, matrix: Matrix, trained: dict[str, Any], *, tanh: bool
    ) -> Projection:
        if not tanh:  # cosines do not depend on the scale, fp16 does
            matrix = matrix / max(float(np.sqrt(np.square(matrix, dtype=np.float64).mean())), 1e-30)
        stored = matrix.astype(np.float16)
        terms = self.vectors.terms
        size = len(terms.names)
        query = document = Side(terms, stored[:size], tanh)
        if len(stored) > size:
            document = Side(terms, stored[size:], tanh)
        config = {**vars(self.config), "start": self.config.start and self.config.start.version}
        record = {**trained, "config": config, "first_stage": self.data.first_stage}
        return Projection(name, query, document, record, role=role)


def apart(queries: Any, documents: Any) -> tuple[Any, Any]:
    """Put the two sides on columns of their own: (N, V), (M, V) -> (N, 2 V), (M, 2 V)."""
    from scipy.sparse import csr_matrix

    queries, documents = queries.tocsr(), documents.tocsr()
    size = queries.shape[1]
    left = csr_matrix((queries.data, queries.indices, queries.indptr), shape=(queries.shape[0], 2 * size))
    right = csr_matrix(
        (documents.data, documents.indices + size, documents.indptr), shape=(documents.shape[0], 2 * size)
    )
    return left, right


def anchored(
    objective: Callable[[Matrix], tuple[float, Matrix]], anchor: Matrix, beta: float
) -> Callable[[Matrix], tuple[float, Matrix]]:
    """Add beta / 2 |A - anchor|^2 to a loss (Yih et al. 2011, section 3.2)."""

    def loss(matrix: Matrix) -> tuple[float, Matrix]:
        value, gradient = objective(matrix)
        away = matrix - anchor
        return value + beta / 2 * float(np.vdot(away, away)), gradient + matrix.dtype.type(beta) * away

    return loss


class _Vectors:
    """Term vectors of a training: the vocabulary, the pairs, and what dev is measured on."""

    def __init__(self, data: TrainingData, config: ProjectionConfig, progress: Progress) -> None:
        self.data = data
        pairs = data.pairs or ()
        read = [data.documents, *([data.query_text] if data.query_text else []), *pairs]
        made = [data.documents, data.queries, *pairs]
        total = sum(len(corpus.tokens) for corpus in [*read, *made])
        with progress.step("term vectors", total, "text") as advance:
            self.terms: Terms = fit_terms(read, config.letters, config.terms, config.tf, advance)
            if not self.terms.names:
                raise TrainingError(
                    "the texts have no words that could be compared; give texts with words in them"
                )
            matrices = [term_matrix(self.terms, corpus, advance) for corpus in made]
        self.documents, self.queries = matrices[:2]
        self.given = (matrices[2], matrices[3]) if data.pairs else None
        self.pairs = self._pairs(config)
        self.dev = DevSet.of(data) if data.dev else None
        if self.dev is not None:
            self.asked = self.queries[[one.query for one in self.dev.judged]]
            self.answers = self.documents[self.dev.documents]

    def collection(self) -> Any:
        """The collection, and the given pairs' documents: what LSI is fitted on.

        Queries are left out: on debian, where they are in another language, they took LSI's mean reciprocal
        rank from 0.66 to 0.47.
        """
        from scipy.sparse import vstack

        given = [self.given[1][: self._given()]] if self.given else []
        return vstack([self.documents, *given]).tocsr()

    def _given(self) -> int:
        assert self.given is not None
        return int(self.given[0].shape[0]) - self.data.dev_pairs

    def _pairs(self, config: ProjectionConfig) -> Pairs:
        """Pairs of a query and its documents of the highest grade (``graded``: all), and the given ones."""
        from scipy.sparse import vstack

        left: list[int] = []
        right: list[int] = []
        weights: list[float] = []
        grades: list[float] = []  # of each pair, and of all that is known of its query
        related: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        unwanted: list[NDArray[np.int64]] = []
        offset = self.documents.shape[0]
        best = 1
        for one in self.data.train:
            top = int(one.grades.max())
            best = max(best, top)
            taken = one.grades > 0 if config.graded else one.grades == top
            count = int(taken.sum())
            left += [one.query] * count
            right += one.documents[taken].tolist()
            weights += [1.0 / count] * count
            grades += one.grades[taken].tolist()
            related += [(one.documents, one.grades)] * count
            unwanted += [one.unwanted if config.judged else one.unwanted[:0]] * count
        queries, documents = [self.queries], [self.documents]
        if self.given is not None:
            count = self._given()
            left += range(self.queries.shape[0], self.queries.shape[0] + count)
            right += range(offset, offset + count)
            weights += [1.0] * count
            grades += [best] * count
            related += [(np.array([offset + i]), np.array([best])) for i in range(count)]
            unwanted += [np.zeros(0, np.int64)] * count
            queries.append(self.given[0][:count])
            documents.append(self.given[1][:count])
        all_queries, all_documents = vstack(queries).tocsr(), vstack(documents).tocsr()
        lengths = np.diff(all_queries.indptr), np.diff(all_documents.indptr)
        usable = [i for i, (q, d) in enumerate(zip(left, right)) if lengths[0][q] and lengths[1][d]]
        if not usable:
            self._refuse(lengths[0][left].any(), lengths[1][right].any())
        # Texts with the same terms are one text: nobody can tell them apart, and none is wrong for the other.
        judged = {d for i in usable for d in unwanted[i].tolist() if lengths[1][d]}
        kind = _kinds(all_documents, sorted({right[i] for i in usable} | judged))
        of_query = _kinds(all_queries, [left[i] for i in usable])
        rows = sorted(set(kind.values()))
        column = {row: i for i, row in enumerate(rows)}
        target = np.array([column[kind[right[i]]] for i in usable], dtype=np.int64)
        good: dict[int, dict[int, int]] = {}
        for i in usable:
            known = good.setdefault(of_query[left[i]], {})
            for d, grade in zip(*(side.tolist() for side in related[i])):
                if d in kind:
                    known[column[kind[d]]] = max(grade, known.get(column[kind[d]], 0))
        # The squared loss knows no order: what is relevant is no document of label 0, whatever its grade.
        ordered = config.graded and config.loss == "logistic"
        left_out = [
            np.array(sorted(c for c, g in known.items() if not ordered or g >= grades[i]), dtype=np.int64)
            for i, known in ((i, good[of_query[left[i]]]) for i in usable)
        ]
        worse = []
        for row, i in enumerate(usable):
            known = good[of_query[left[i]]]
            below = {column[kind[d]] for d in unwanted[i].tolist() if d in kind} - known.keys()
            if ordered and config.judged:
                below |= {c for c, g in known.items() if g < grades[i]}
            worse.append(np.array(sorted(below - {int(target[row])}), dtype=np.int64))
        return Pairs(
            all_queries[[left[i] for i in usable]],
            all_documents[rows],
            target,
            left_out,
            np.array([weights[i] for i in usable]),
            np.array([grades[i] / max(good[of_query[left[i]]].values()) for i in usable]),
            worse,
        )

    @staticmethod
    def _refuse(queries: bool, documents: bool) -> None:
        for there, side in ((queries, "queries"), (documents, "documents")):
            if not there:
                raise TrainingError(
                    f"the vocabulary has no term of the {side} to train on: each of their words is in one"
                    " text only; give more pairs"
                )
        raise TrainingError("no training pair has words of the vocabulary on both sides; give more pairs")

    def measure(self, matrix: Matrix, *, tanh: bool) -> tuple[float, float]:
        """Measure a matrix on dev: (with it, without it).

        NDCG weighted with the first stage, or, where there are pairs only, the mean reciprocal rank of their
        documents among the dev pairs' and of their queries likewise; without it: that of the term vectors.
        """
        size = len(self.terms.names)
        query, document = matrix[:size], matrix[-size:]
        if self.dev is not None:
            asked = _unit(self.asked @ query, tanh)
            answers = _unit(self.answers @ document, tanh)
            scores = [(answers[c] @ q).astype(np.float64) for q, c in zip(asked, self.dev.columns)]
            weighted, _, first = weighted_ndcg(self.dev.judged, scores)
            return weighted, first
        assert self.given is not None
        left, right = (side[self._given() :] for side in self.given)
        first = reciprocal_rank((left @ right.T).toarray())
        return reciprocal_rank(_unit(left @ query, tanh) @ _unit(right @ document, tanh).T), first


def reciprocal_rank(scores: Matrix) -> float:
    """Mean reciprocal rank of the diagonal of (n, n) ``scores``, over rows and columns; ties share ranks.

    >>> reciprocal_rank(np.array([[1.0, 2.0], [0.0, 3.0]]))
    0.875
    """
    total = 0.0
    for view in (scores, scores.T):
        own = np.diag(view)[:, None]
        rank = 1 + (view > own).sum(axis=1) + ((view == own).sum(axis=1) - 1) / 2
        total += float((1 / rank).mean())
    return total / 2


def _unit(projected: Matrix, tanh: bool) -> Matrix:
    if tanh:
        projected = np.tanh(projected)
    length = np.sqrt(np.einsum("ij,ij->i", projected, projected))
    unit: Matrix = projected / np.maximum(length, 1e-12)[:, None]
    return unit


def _kinds(rows: Any, which: list[int]) -> dict[int, int]:
    """Row number -> the first of ``which`` with just the same terms."""
    first: dict[bytes, int] = {}
    kinds = {}
    for row in which:
        begin, end = rows.indptr[row], rows.indptr[row + 1]
        key = rows.indices[begin:end].tobytes() + rows.data[begin:end].tobytes()
        kinds[row] = first.setdefault(key, row)
    return kinds
