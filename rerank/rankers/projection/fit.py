"""Fits the projection rankers on term vectors of pairs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from rerank.common.config import values_of
from rerank.common.errors import TrainingError
from rerank.common.progress import Progress
from rerank.documents.text import count_of
from rerank.rankers.projection.config import ProjectionConfig
from rerank.rankers.projection.ranker import Projection, fit_terms, term_matrix
from rerank.rankers.projection.s2net import Matrix
from rerank.rankers.projection.solver import Best, Vectors, descend
from rerank.rankers.projection.spectral import cca, lsi, opca
from rerank.rankers.projection.training_pairs import Pairs
from rerank.rankers.training.data import Corpus, DevSet, TrainingData
from rerank.rankers.training.job import TrainingJob, TrainingResult

MAX_DOCUMENTS = 100_000
"""Number of documents, in addition to the judged ones, in which terms and their frequencies are counted."""
MAX_LSI_TEXTS = 150_000
"""Texts that LSI reads; of more, evenly spaced ones are read."""


def sample_documents(data: TrainingData, progress: Progress) -> TrainingData:
    """Return the data with a sample of the documents, and all documents that the training compares.

    These are the judged documents, and the ones that dev queries rank. The train queries lose their other
    candidates, which projections do not read.
    """
    count = len(data.document_ids)
    if count <= MAX_DOCUMENTS:
        return data
    is_used = np.zeros(count, np.bool_)
    is_used[:: -(-count // MAX_DOCUMENTS)] = True
    for query in data.dev:
        is_used[query.candidates] = True
    for query in (*data.train, *data.dev):
        is_used[query.documents] = True
        is_used[query.unwanted] = True
    rows = np.flatnonzero(is_used)
    progress.say(f"term vectors of {len(rows):,} of {count_of(count, 'document')} are used")
    return data.with_documents(rows)


class TermVectors(Vectors):
    """The vectors of all texts of a training by their terms.

    terms: the V terms.
    """

    def __init__(self, data: TrainingData, config: ProjectionConfig, progress: Progress) -> None:
        if data.dev:  # a sample, with a remark
            data = replace(data, dev=DevSet.from_candidates(data, progress).judged)
        data = sample_documents(data, progress)
        text_pairs = list(data.pairs or ())
        vocabulary_texts = [data.documents, *text_pairs]
        if data.query_text:
            vocabulary_texts.insert(1, data.query_text)
        encoded_texts = [data.documents, data.queries, *text_pairs]
        total = sum(len(corpus.tokens) for corpus in [*vocabulary_texts, *encoded_texts])

        def counted(corpora: Iterable[Corpus]) -> Iterator[Corpus]:
            for corpus in corpora:
                yield corpus
                progress.advance(len(corpus.tokens))

        with progress.step("term vectors", total, "text"):
            self.terms = fit_terms(counted(vocabulary_texts), config.letters, config.terms)
            if not self.terms.names:
                raise TrainingError(
                    "the texts have no words that could be compared; give texts with words in them"
                )
            matrices = [term_matrix(self.terms, corpus) for corpus in counted(encoded_texts)]
        documents, queries, *pair_sides = matrices
        super().__init__(data, config, documents, queries, pair_sides)

    def collection(self, progress: Progress) -> Any:
        """Return the texts for LSI: documents of the collection and of text pairs, without any query.

        Of more than MAX_LSI_TEXTS, evenly spaced ones are returned, and a remark says so.
        """
        from scipy.sparse import vstack

        texts = vstack([self.documents, *self.text_pairs[1:]]).tocsr()
        count = texts.shape[0]
        spacing = -(-count // MAX_LSI_TEXTS)
        if spacing <= 1:
            return texts
        sample = texts[::spacing]
        progress.say(f"lsi reads {sample.shape[0]:,} of {count_of(count, 'text')}")
        return sample


class ProjectionTrainer:
    """Fits projection rankers, which share their term vectors.

    An interruption by the user keeps the best matrix of ``s2net`` up to that moment.
    """

    def __init__(self, job: TrainingJob, config: ProjectionConfig) -> None:
        assert job.data is not None
        self.data = job.data
        self.config = config
        self.progress = job.progress

    @cached_property
    def vectors(self) -> TermVectors:
        """The term vectors of all texts, which the rankers share."""
        return TermVectors(self.data, self.config, self.progress)

    def fit(self, variant: str, name: str = "") -> TrainingResult:
        """Fit one ranker. Raises TrainingError if the pairs have no terms, or all have one document."""
        name = name or variant
        if variant == "s2net":
            return self._s2net(name)
        matrix = self._spectral(f"fit {name}", variant, self.vectors.pairs, self.config.dim)
        if matrix.shape[1] < self.config.dim:
            self.progress.say(
                f"{name}: the data have only {count_of(matrix.shape[1], 'dimension')} of the"
                f" {self.config.dim} requested"
            )
        return self._result(variant, name, Best(matrix, *self.vectors.measure(matrix)), {})

    def _spectral(self, title: str, variant: str, pairs: Pairs, dim: int) -> Matrix:
        """Solve an eigenvalue problem: (V, k) or, for ``cca``, (2 V, k), with k <= ``dim``."""
        queries = pairs.queries
        partners = pairs.partners
        seed = self.config.seed
        with self.progress.step(title):
            if variant == "lsi":
                return lsi(self.vectors.collection(self.progress), dim, seed=seed)
            if variant == "cllsi":
                return lsi(queries + partners, dim, seed=seed)
            solve = {"opca": opca, "cca": cca}[variant]
            return solve(queries, partners, dim, seed=seed)

    def _s2net(self, name: str) -> TrainingResult:
        pairs = self.vectors.pairs
        config = self.config
        dim = config.dim
        size = len(self.vectors.terms.names)
        if dim > size:
            self.progress.say(f"{name}: {dim} dimensions are more than the terms; {size} are used")
            dim = size
        if pairs.documents.shape[0] < 2:
            raise TrainingError("all training pairs have the same document; add pairs with other documents")
        start = self._start_matrix(f"{name} starts from {config.init}", config.init, pairs, dim)
        best = descend(name, self.vectors, start, config, self.progress)
        trained = {"iteration": best.iteration, "history": best.history}
        return self._result("s2net", name, best, trained)

    def _start_matrix(self, title: str, init: str, pairs: Pairs, dim: int) -> Matrix:
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
        """Return the result with a ranker. Its matrix is scaled for fp16, which does not change scores."""
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
