"""Yih, Toutanova, Platt, Meek (2011): compare S2Net with other projections, by dimension, size and start.

    python benchmarks/papers/run_002.py DATA --collections debian.de
    python benchmarks/papers/run_002.py DATA --collections debian.de --projected 300 --seeds 0
    python benchmarks/papers/run_002.py DATA --list

Each text is a query for its partner among the texts of all test pairs, in both directions: MRR and top-1.
Completed steps are skipped.

``--projected 300`` compares S2Net, OPCA and LSI with the cosine of the vectors that they project, also on the
second task of the paper, which filters advertisements by labels. Here only the documents of grades 2 and 1 of
a query are ranked: grade 2 is positive, grade 1 negative. S2Net starts from OPCA, as in the paper. Measures:
AUC over all pairs together, as in the paper, with a randomization test over the pairs; AUC and nDCG per
query.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import combinations
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from numpy.typing import NDArray
from running import Result, Say, Step, arguments, carry_out, comma_separated

from benchmarks.common.collection import Collection
from rerank.common.order import rank
from rerank.common.progress import SILENT
from rerank.documents.records import Document, Qrels, Query
from rerank.evaluation.measures import evaluate_runs
from rerank.evaluation.pair_measures import auc, paired_test
from rerank.evaluation.significance import compare, randomization_test
from rerank.rankers.projection.config import ProjectionConfig
from rerank.rankers.projection.fit import ProjectionTrainer
from rerank.rankers.projection.ranker import Projection, Terms, term_matrix
from rerank.rankers.training.data import Corpus, TrainingData
from rerank.rankers.training.job import TrainingJob
from rerank.workflows.training_data import Inputs, TrainReport, training_data
from rerank.workspace.workspace import Workspace

SIZES = (500, 1000, 2000, 4000, 8000, 16000)
"""Numbers of train queries. The last step of a collection uses all train queries."""
STARTS = ("opca", "cllsi", "random")
DIMENSIONS = (50, 100, 200, 500, 1000)
METHODS = ("s2net", "opca", "cca", "cllsi", "lsi")
BASELINE = "input vectors"
"""Cosine of the vectors that S2Net projects. The paper calls it TFIDF."""

Scores = dict[str, tuple[list[str], NDArray[np.floating[Any]]]]
"""Query -> document ids and their scores."""


def make_trainer(data: TrainingData, config: ProjectionConfig) -> ProjectionTrainer:
    """Return a trainer without a workspace."""
    return ProjectionTrainer(TrainingJob(None, data, Path(), progress=Say()), config)  # type: ignore[arg-type]


def fit(trainer: ProjectionTrainer, method: str) -> Projection:
    ranker = trainer.fit(method).ranker
    assert isinstance(ranker, Projection)
    return ranker


@dataclass(frozen=True)
class Pairs:
    """A collection, and its test queries with their documents of the highest grade.

    partners: the partner of each of the ``queries``.
    """

    workspace: Workspace
    data: TrainingData
    queries: list[Query]
    partners: list[Document]
    judged: list[Query]
    qrels: Qrels

    @classmethod
    def read(cls, data: Path, work: Path, name: str) -> Pairs:
        """Read a collection. Create the workspace if it is missing."""
        collection = Collection.named(data, name)
        workspace = collection.ingest(work / f"{name}-projections")
        inputs = Inputs(**collection.training_data(), first_stage="tfidf", infer=False)
        training = training_data(workspace, inputs, TrainReport(), SILENT)
        queries = inputs.queries
        test = collection.judgments("test")
        grades = {query: {grade for grade in test[query].values() if grade > 0} for query in test}
        with_partner = [query for query in queries if max(grades.get(query.id, ()), default=0) > 1]
        with_partner.sort(key=lambda query: query.id)
        best = [min(id for id, g in test[q.id].items() if g == max(grades[q.id])) for q in with_partner]
        partners = [document for document in workspace.engine.get(best) if document]
        assert len(partners) == len(with_partner)
        judged = [query for query in queries if len(grades.get(query.id, ())) > 1]
        qrels = Qrels({query.id: test[query.id] for query in judged})
        return cls(workspace, training, with_partner, partners, judged, qrels)

    def ranks(self, ranker: Projection | Terms) -> NDArray[np.float64]:
        """Return reciprocal ranks of documents for queries, and of queries for documents, (2, n)."""
        scores = scores_of(ranker, self.queries, self.partners)
        directions = []
        for view in (scores, scores.T):
            own = np.diag(view)[:, None]
            ties = (view == own).sum(axis=1) - 1
            directions.append(1 / (1 + (view > own).sum(axis=1) + ties / 2))
        return np.array(directions)

    def grades(self, ranker: Projection | Terms) -> Scores:
        """Return the scores of the judged documents of each query with both grades."""
        scores: Scores = {}
        for query in self.judged:
            ids = sorted(self.qrels[query.id])
            documents = [document for document in self.workspace.engine.get(ids) if document is not None]
            scores[query.id] = ids, scores_of(ranker, [query], documents)[0]
        return scores


def scores_of(
    ranker: Projection | Terms, queries: Sequence[Query], documents: Sequence[Document]
) -> NDArray[np.floating[Any]]:
    """Return the score of each document for each query, (Q, n)."""
    if isinstance(ranker, Terms):
        of_queries, of_documents = (term_matrix(ranker, Corpus.read(texts)) for texts in (queries, documents))
        return (of_queries @ of_documents.T).toarray()
    vectors = np.array([ranker.encode_query(query) for query in queries])
    return vectors @ ranker.encode_documents(documents).astype(np.float32).T


pairs_of = cache(Pairs.read)


def measured(ranks: NDArray[np.float64]) -> dict[str, float]:
    return {"MRR": round(float(ranks.mean()), 4), "top-1": round(float((ranks == 1).mean()), 4)}


def fitted(options: Namespace, name: str, size: int | None, seed: int, dim: int, init: str) -> Result:
    """Fit S2Net on ``size`` train queries."""
    pairs = pairs_of(options.data, options.work, name)
    train = pairs.data.train
    if size is not None:
        chosen = np.random.default_rng(0).permutation(len(train))[:size]
        train = [train[i] for i in sorted(chosen.tolist())]
    data = TrainingData(**{**vars(pairs.data), "train": train})
    result = make_trainer(data, ProjectionConfig(seed=seed, dim=dim, init=init)).fit("s2net")
    assert isinstance(result.ranker, Projection)
    by_size = dim < 1000
    setting = f"k = {dim:,}" + ("" if by_size else f", {len(train):,} queries")
    system = f"{len(train):,} queries" if by_size else init
    values = {**measured(pairs.ranks(result.ranker)), "dev NDCG": result.dev}
    return {"collection": name, "setting": setting, "seed": seed, "values": {system: values}, "tests": []}


def dimensions(options: Namespace, name: str) -> Result:
    """Compare all methods and the vectors that they project, at several dimensions."""
    pairs = pairs_of(options.data, options.work, name)
    trainer = make_trainer(pairs.data, ProjectionConfig())
    vectors = trainer.vectors
    ranks = {BASELINE: dict.fromkeys(DIMENSIONS, pairs.ranks(vectors.terms))}
    for method in METHODS:
        # Eigenvectors are ordered: the largest dimension contains the smaller ones.
        for largest in DIMENSIONS if method == "s2net" else DIMENSIONS[-1:]:
            trainer = make_trainer(pairs.data, ProjectionConfig(dim=largest, init="random"))
            trainer.vectors = vectors
            ranker = fit(trainer, method)
            for dim in [largest] if method == "s2net" else DIMENSIONS:
                axes = {"query": ranker.query[:, :dim], "document": ranker.document[:, :dim]}
                ranks.setdefault(method, {})[dim] = pairs.ranks(replace(ranker, **axes, version=""))
    values: dict[str, dict[str, float]] = {}
    for method, by_dim in ranks.items():
        for dim, of_method in by_dim.items():
            both = {f"{measure}, k = {dim:,}": value for measure, value in measured(of_method).items()}
            values.setdefault(method, {}).update(both)
    tests = []
    for first, second in (*combinations(METHODS, 2), *((method, BASELINE) for method in METHODS)):
        for dim in DIMENSIONS:
            p = randomization_test((ranks[first][dim] - ranks[second][dim]).mean(axis=0), seed=0)
            tests.append([first, second, f"MRR, k = {dim:,}", p])
    setting = f"{len(pairs.data.train):,} pairs"
    counts = {"test pairs": len(pairs.queries), "terms": len(vectors.terms.names)}
    return {"collection": name, "setting": setting, "values": values, "tests": tests, "n": counts}


def pooled(scores: Scores, base: Scores, qrels: Qrels) -> dict[str, float]:
    """Return AUC of grade 2 over all pairs together, for both scores, and p of the difference."""
    pairs = [(query, document) for query in base for document in sorted(qrels[query])]
    labels = [qrels[query][document] > 1 for query, document in pairs]
    both = []
    for side in (scores, base):
        known = {(q, d): value for q, (ids, values) in side.items() for d, value in zip(ids, values)}
        both.append([float(known.get(pair, 0.0)) for pair in pairs])
    p = paired_test([(both[0], 0.0)], [(both[1], 0.0)], labels, permutations=1000)["AUC"]
    return {"pairs": len(pairs), "auc": auc(both[0], labels), "input": auc(both[1], labels), "p": p}


def projected(options: Namespace, name: str, dim: int) -> Result:
    """Compare projections, trained on all train queries, with their input vectors: partners and grades."""
    pairs = pairs_of(options.data, options.work, name)
    trainer = make_trainer(pairs.data, ProjectionConfig(dim=dim, init="opca"))
    rankers: dict[str, Projection | Terms] = {BASELINE: trainer.vectors.terms}
    rankers |= {method: fit(trainer, method) for method in ("s2net", "opca", "lsi")}
    ranks = {method: pairs.ranks(ranker) for method, ranker in rankers.items()}
    scores = {method: pairs.grades(ranker) for method, ranker in rankers.items()}
    runs = {method: _ordered(of_method) for method, of_method in scores.items()}
    evaluation = evaluate_runs(runs, pairs.qrels, ["AUC(rel=2)", "nDCG"])
    names = {"AUC(rel=2)": "AUC per query", "nDCG": "nDCG"}
    values = {}
    comparisons = compare(evaluation, BASELINE)
    tests: list[list[Any]] = [[test.stack, BASELINE, names[test.measure], test.p] for test in comparisons]
    for method in rankers:
        together = pooled(scores[method], scores[BASELINE], pairs.qrels)
        values[method] = {names[measure]: evaluation.mean(method, measure) for measure in names}
        values[method] |= {**measured(ranks[method]), "AUC": together["auc"]}
        if method != BASELINE:
            p = randomization_test((ranks[method] - ranks[BASELINE]).mean(axis=0), seed=0)
            tests += [[method, BASELINE, "MRR", p], [method, BASELINE, "AUC", together["p"]]]
    counts = {"queries": len(evaluation.query_ids)}
    setting = f"from OPCA, k = {dim}, all pairs"
    return {"collection": name, "setting": setting, "values": values, "tests": tests, "n": counts}


def _ordered(scores: Scores) -> Mapping[str, list[str]]:
    """Rank the documents of each query by their scores."""
    return {query: [ids[i] for i in rank(ids, values)] for query, (ids, values) in scores.items()}


def steps(options: Namespace) -> Iterator[Step]:
    """Yield the steps. The name of a step contains every setting that changes its result."""
    for name in options.collections:
        yield Step(f"{name}-dimensions", "dimensions", partial(dimensions, options, name))
        for dim in map(int, options.projected):
            run = partial(projected, options, name, dim)
            yield Step(f"{name}-projected-{dim}-opca", "grade 2 against grade 1", run)
        for seed in range(options.seeds):
            for size in _sizes(options, name):
                run = partial(fitted, options, name, size, seed, options.dim, "random")
                yield Step(f"{name}-{options.dim}-size-{size or 'all'}-{seed}", "train queries", run)
            for init in STARTS if options.starts else ():
                run = partial(fitted, options, name, None, seed, 1000, init)
                yield Step(f"{name}-start-{init}-{seed}", "starts", run)


def _sizes(options: Namespace, name: str) -> Sequence[int | None]:
    """Return the numbers of train queries; None is all of them."""
    most = len(Collection.named(options.data, name).judgments("train"))
    return [*(size for size in SIZES if size < most), None]


def main() -> None:
    parser = arguments(__doc__, collections=["debian.de", "debian.it"])
    parser.add_argument("--dim", type=int, default=50, help="dimension of the training sizes. Default: 50")
    parser.add_argument("--starts", action="store_true", help="also compare starts at k = 1,000; takes hours")
    text = "also compare projections with their input vectors, at these dimensions: 50,300"
    parser.add_argument("--projected", type=comma_separated, default=[], help=text)
    options = parser.parse_args()
    carry_out("002", steps(options), options)


if __name__ == "__main__":
    main()
