"""Test pairs and trainings of projections."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from running import Say

from rerank.progress import Progress
from rerank.rankers.projection.config import ProjectionConfig
from rerank.rankers.projection.fit import ProjectionTrainer
from rerank.rankers.projection.ranker import Projection, Terms, term_matrix
from rerank.rankers.training.data import Corpus, TrainingData, TrainingQuery
from rerank.rankers.training.job import TrainingJob
from rerank.records import Document, Qrels, Query
from rerank.workflows.training_data import Inputs, TrainReport, training_data
from rerank.workspace import Workspace


def make_trainer(data: TrainingData, config: ProjectionConfig) -> ProjectionTrainer:
    return ProjectionTrainer(TrainingJob(None, data, Path(), progress=Say()), config)  # type: ignore[arg-type]


class Mates:
    """Test queries and the partner document of each."""

    def __init__(self, workspace: Workspace, queries: list[Query], qrels: Qrels) -> None:
        by_id = {query.id: query for query in queries}
        best = {q: min(d for d, g in found.items() if g == max(found.values())) for q, found in qrels.items()}
        ids = sorted(q for q in best if max(qrels[q].values()) > 1 and q in by_id)
        self.queries = [by_id[q] for q in ids]
        self.documents: list[Document] = [d for d in workspace.engine.get([best[q] for q in ids]) if d]
        assert len(self.documents) == len(self.queries)

    def rank(self, ranker: Projection) -> np.ndarray:
        """Reciprocal ranks of documents for queries, and of queries for documents: (2, n)."""
        q = np.array([ranker.encode_query(query) for query in self.queries])
        return self.reciprocal(q @ ranker.encode_documents(self.documents).astype(np.float32).T)

    def unprojected(self, terms: Terms) -> np.ndarray:
        """Reciprocal ranks by the cosine of the term vectors, the input of the projections."""
        q, d = (term_matrix(terms, Corpus.read(texts)) for texts in (self.queries, self.documents))
        return self.reciprocal((q @ d.T).toarray())

    @staticmethod
    def reciprocal(scores: np.ndarray) -> np.ndarray:
        out = []
        for view in (scores, scores.T):
            own = np.diag(view)[:, None]
            out.append(1 / (1 + (view > own).sum(axis=1) + ((view == own).sum(axis=1) - 1) / 2))
        return np.array(out)


def some(judged: list[TrainingQuery], count: int) -> list[TrainingQuery]:
    chosen = np.random.default_rng(0).permutation(len(judged))[:count]
    return [judged[i] for i in sorted(chosen.tolist())]


def read(workspace: Workspace, queries: list[Query], split: dict[str, Qrels]) -> TrainingData:
    """Return the training data of the projections, with candidates by tf-idf."""
    inputs = Inputs(
        queries=queries, qrels=split["train"], dev_qrels=split["dev"], first_stage="tfidf", infer=False
    )
    return training_data(workspace, inputs, TrainReport(), Progress())


def narrow(ranker: Projection, dim: int) -> Projection:
    """Return the ranker with only its first ``dim`` columns."""
    return replace(ranker, query=ranker.query[:, :dim], document=ranker.document[:, :dim], version="")
