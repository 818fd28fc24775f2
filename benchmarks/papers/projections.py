"""Compare projection methods by the rank of partner documents: dimensions, training pairs, time.

    python benchmarks/papers/projections.py DATA/debian --lang de --dims 50,200,1000
    python benchmarks/papers/projections.py DATA/debian --lang de --methods s2net --pairs 500,1000,2000,4791
    python benchmarks/papers/projections.py DATA/debian --lang it --workspace W       the rankers trained in W
    python benchmarks/papers/projections.py --speed 20000,50000,200                   pairs, terms, dimension

The partner of a query is its document of the highest grade. It is ranked among the partners of all test
queries. Prints the mean reciprocal rank and the share of partners at rank 1, for finding documents by query
and for both directions. p is a paired randomization test. The baseline ``input vectors`` is the cosine of
the vectors before the projection. ``tfidf`` is the signal of the engine. ``--speed`` times iterations of
S2Net on random texts. It compares them with the matrix products that each iteration needs.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from pairs import judgments

from rerank.engines.base import SearchRequest
from rerank.evaluation.significance import holm, randomization_test
from rerank.formats import read_queries
from rerank.progress import Progress
from rerank.rankers.projection import solver
from rerank.rankers.projection.config import ProjectionConfig
from rerank.rankers.projection.fit import ProjectionTrainer
from rerank.rankers.projection.ranker import Projection, Terms, term_matrix
from rerank.rankers.projection.s2net import Comparisons, S2Net, entries, minimize
from rerank.rankers.projection.solver import Vectors, unit_rows
from rerank.rankers.projection.spectral import opca
from rerank.rankers.training.data import Corpus, TrainingData, TrainingQuery
from rerank.rankers.training.job import TrainingJob
from rerank.records import Document, Qrels, Query
from rerank.workflows.ingest import ingest
from rerank.workflows.training_data import Inputs, TrainReport, training_data
from rerank.workspace import Workspace

SPEED_TERMS = 35, 290
"""Terms per query and per document for ``--speed``: the numbers of German debian."""
METHODS = ("lsi", "cllsi", "cca", "opca", "s2net")


class Say(Progress):
    def say(self, line: str) -> None:
        print(f"  {line}", flush=True)


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

    def lexical(self, workspace: Workspace) -> np.ndarray:
        """Reciprocal ranks by the signal ``tfidf`` of the engine."""
        ids = [d.id for d in self.documents]
        found = [
            workspace.engine.find(SearchRequest(q.text, ids=ids, first_stage="tfidf")) for q in self.queries
        ]
        place = {id: i for i, id in enumerate(ids)}
        scores = np.zeros((len(ids), len(ids)), dtype=np.float32)
        for i, candidates in enumerate(found):
            scores[i, [place[id] for id in candidates.ids]] = candidates.scores
        return self.reciprocal(scores)

    @staticmethod
    def reciprocal(scores: np.ndarray) -> np.ndarray:
        out = []
        for view in (scores, scores.T):
            own = np.diag(view)[:, None]
            out.append(1 / (1 + (view > own).sum(axis=1) + ((view == own).sum(axis=1) - 1) / 2))
        return np.array(out)


def row(label: str, ranks: np.ndarray, seconds: float, note: str = "") -> None:
    print(
        f"{label:22} {ranks[0].mean():.4f} {(ranks[0] == 1).mean():.4f}   {ranks.mean():.4f}"
        f" {(ranks == 1).mean():.4f} {seconds:7.0f} s  {note}",
        flush=True,
    )


def some(judged: list[TrainingQuery], count: int) -> list[TrainingQuery]:
    chosen = np.random.default_rng(0).permutation(len(judged))[:count]
    return [judged[i] for i in sorted(chosen.tolist())]


def quality(options: argparse.Namespace) -> None:
    suffix = f".{options.lang}" if options.lang else ""
    queries = read_queries(str(options.folder / f"queries{suffix}.jsonl.gz"))
    split = judgments(options.folder, options.lang, None)
    with tempfile.TemporaryDirectory() as home:
        if options.workspace:
            workspace = Workspace.open(options.workspace)
        else:
            corpus = str(options.folder / f"corpus{suffix}.jsonl.gz")
            workspace = ingest(f"{home}/workspace", [corpus]).workspace
        mates = Mates(workspace, queries, split["test"])
        print(f"{len(mates.queries)} test pairs\n{'':22} MRR    top-1    both: MRR top-1      CPU")
        baseline = mates.lexical(workspace)
        row("tfidf", baseline, 0)
        if options.workspace:
            found = {"tfidf": baseline}
            for name in workspace.trained():
                ranker = workspace.ranker(name)
                if isinstance(ranker, Projection):
                    found[name] = mates.rank(ranker)
                    row(f"{name} {ranker.query.shape[1]}", found[name], 0)
                    if options.storage:
                        storage(ranker, mates)
            significance(found)
            return
        data = read(workspace, queries, split)
        fits(options, data, mates, baseline)


def read(workspace: Workspace, queries: list[Query], split: dict[str, Qrels]) -> TrainingData:
    """Return the training data of the projections, with candidates by tf-idf."""
    inputs = Inputs(
        queries=queries, qrels=split["train"], dev_qrels=split["dev"], first_stage="tfidf", infer=False
    )
    return training_data(workspace, inputs, TrainReport(), Progress())


def fits(options: argparse.Namespace, data: TrainingData, mates: Mates, baseline: np.ndarray) -> None:
    rows = [
        {"method": "tfidf", "dim": dim, "both": baseline.mean(), "both_top1": (baseline == 1).mean()}
        | {"ranks": baseline.tolist()}
        for dim in options.dims
    ]
    for pairs in options.pairs or [len(data.train)]:
        part = TrainingData(**{**data.__dict__, "train": some(data.train, pairs)})
        vectors = None
        for changes in options.config:
            found: dict[int, dict[str, np.ndarray]] = {dim: {"tfidf": baseline} for dim in options.dims}
            own = bool(changes.keys() & {"letters", "terms", "graded"})  # other terms, or other pairs
            for method in options.methods:
                # Eigenvectors are ordered: the largest dimension contains the smaller ones.
                for largest in options.dims if method == "s2net" else [max(options.dims)]:
                    config = ProjectionConfig(**{"dim": largest, "init": "random", **changes})
                    trainer = make_trainer(part, config)
                    if not own:
                        trainer.vectors = vectors = vectors or trainer.vectors
                    if "input vectors" not in found[largest]:
                        ranks = mates.unprojected(trainer.vectors.terms)
                        row("input vectors", ranks, 0, "the vectors that are projected")
                        for dim in options.dims:
                            found[dim]["input vectors"] = ranks
                    tested = curve(trainer, mates) if options.curve else []
                    begin, busy = time.perf_counter(), time.process_time()
                    fitted = trainer.fit(method)
                    spent = time.perf_counter() - begin, time.process_time() - busy
                    assert isinstance(fitted.ranker, Projection)
                    for dim in [largest] if method == "s2net" else options.dims:
                        ranks = found[dim][method] = mates.rank(narrow(fitted.ranker, dim))
                        note = f"iteration {fitted.epoch} of {fitted.epochs}" if fitted.epochs else ""
                        note += f" {json.dumps(changes)} dev {fitted.dev:.4f}"
                        row(f"{method} {dim} ({len(part.train)})", ranks, spent[1], note)
                        one = {"method": method, "dim": dim, "pairs": len(part.train), "config": changes}
                        one |= {"seconds": spent[0], "cpu": spent[1], "dev": fitted.dev}
                        one |= {"mrr": ranks[0].mean(), "top1": (ranks[0] == 1).mean()}
                        one |= {"both": ranks.mean(), "both_top1": (ranks == 1).mean()}
                        one |= {"history": fitted.ranker.trained.get("history"), "ranks": ranks.tolist()}
                        rows.append(one)
                        for (iteration, loss, dev), test in zip(one["history"] or [], tested):
                            print(f"    {iteration:4} loss {loss or 0:.6f} dev {dev:.4f} test MRR {test:.4f}")
                        if options.json:
                            options.json.write_text(json.dumps(rows, indent=1))
            if len(options.methods) > 1:
                for dim, ranks_of in found.items():
                    print(f"dimension {dim}, {len(part.train)} queries to train on")
                    significance(ranks_of)


def table(files: list[Path]) -> None:
    """Print the figures of several runs, and compare each method with the next better one."""
    rows = [row for file in files for row in json.loads(file.read_text())]
    dims = sorted({row["dim"] for row in rows})
    methods = list(dict.fromkeys(row["method"] for row in rows))
    print(f"MRR / top-1 of both directions\n| | {' | '.join(f'{dim:,}' for dim in dims)} |")
    for method in methods:
        cells = {row["dim"]: row for row in rows if row["method"] == method}
        shown = [f"{cells[d]['both']:.4f} / {cells[d]['both_top1']:.4f}" if d in cells else "" for d in dims]
        print(f"| {method} | {' | '.join(shown)} |")
    for dim in dims:
        print(f"dimension {dim}")
        significance({row["method"]: np.array(row["ranks"]) for row in rows if row["dim"] == dim})


def significance(found: dict[str, np.ndarray]) -> None:
    """Compare each method with the next worse one, by mean reciprocal rank over both directions."""
    order = sorted(found, key=lambda name: float(found[name].mean()))
    steps = list(pairwise(order))
    p = [randomization_test((found[b] - found[a]).mean(axis=0), seed=0) for a, b in steps]
    for (a, b), value in zip(steps, holm(p)):
        print(
            f"  {b} {found[b].mean():.4f} above {a} {found[a].mean():.4f}: p {value:.5f} (Holm)", flush=True
        )


def narrow(ranker: Projection, dim: int) -> Projection:
    """Return the ranker with only its first ``dim`` columns."""
    return replace(ranker, query=ranker.query[:, :dim], document=ranker.document[:, :dim], version="")


def curve(trainer: ProjectionTrainer, mates: Mates) -> list[float]:
    """Disable early stopping and record the mean reciprocal rank on test with each dev measurement."""
    vectors, found = trainer.vectors, []
    queries, documents = (
        term_matrix(vectors.terms, Corpus.read(texts)) for texts in (mates.queries, mates.documents)
    )
    solver.PATIENCE = 10**6

    def measured(matrix: np.ndarray) -> tuple[float, float]:
        size = queries.shape[1]
        sides = unit_rows(queries @ matrix[:size]), unit_rows(documents @ matrix[-size:])
        found.append(float(mates.reciprocal(sides[0] @ sides[1].T)[0].mean()))
        return Vectors.measure(vectors, matrix)

    vectors.measure = measured  # type: ignore[method-assign]
    return found


def storage(ranker: Projection, mates: Mates) -> None:
    """Print the loss of storing document vectors in fewer bytes."""
    q = np.array([ranker.encode_query(query) for query in mates.queries])
    exact = np.array([ranker.project(document.content, ranker.document) for document in mates.documents])
    tops = np.maximum(np.abs(exact).max(axis=1, keepdims=True), 1e-30)
    whole = np.rint(exact / tops * 127)
    kinds = {
        "fp32": (exact, 4),
        "fp16": (exact.astype(np.float16).astype(np.float32), 2),
        "int8": (whole / np.maximum(np.linalg.norm(whole, axis=1, keepdims=True), 1), 1),
    }
    for name, (stored, size) in kinds.items():
        scores = q @ stored.T.astype(np.float32)
        off = np.abs(scores - q @ exact.T).max()
        row(
            f"  {name} {size * q.shape[1]} bytes",
            mates.reciprocal(scores),
            0,
            f"cosines off by {off:.1e} at most",
        )


def speed(count: int, terms: int, dim: int, iterations: int, with_opca: bool) -> None:
    """Time iterations of S2Net and the matrix products of one evaluation of its loss and gradient."""
    from scipy.sparse import csr_matrix

    rng = np.random.default_rng(0)

    def texts(words: int):  # type: ignore[no-untyped-def]
        columns = np.sort((terms * rng.random((count, words)) ** 3).astype(np.int32), axis=1)
        data = np.full(count * words, words**-0.5, dtype=np.float32)
        return csr_matrix((data, columns.ravel(), np.arange(0, count * words + 1, words)), (count, terms))

    X, Y = texts(SPEED_TERMS[0]), texts(SPEED_TERMS[1])
    A = rng.normal(size=(terms, dim)).astype(np.float32)
    P = (X @ A).copy()
    X_t, Y_t = X.T.tocsr(), Y.T.tocsr()
    parts = [np.arange(count)]
    if count * count * dim > solver.MAX_PRODUCTS:
        parts = np.array_split(rng.permutation(count), -(-count // solver.PART_SIZE))

    def products() -> tuple[float, float]:
        begin = time.perf_counter()
        for texts, rows in ((X, A), (Y, A), (X_t, P), (Y_t, P)):
            texts @ rows
        middle = time.perf_counter()
        for part in parts:
            for first in range(0, len(part), 2048):
                S = P[first : first + 2048] @ P[: len(part)].T
                S @ P[: len(part)]
                S.T @ P[first : first + 2048]
        return middle - begin, time.perf_counter() - middle

    own = [[i] for i in range(count)]
    left_out, worse = entries(own, count), entries([[]] * count, count)
    others = Comparisons(np.arange(count), left_out, np.full(count, 1 / count), worse)
    objective = S2Net(X, Y, others)
    objective.compare_within(parts)
    evaluated: list[float] = []

    def counted(matrix: np.ndarray) -> tuple[float, np.ndarray]:
        loss, gradient = objective(matrix)
        evaluated.append(loss)
        return loss, gradient

    steps, ratios = minimize(counted, A), []
    next(steps)
    for _ in range(iterations):
        sparse, dense = products()
        begin = time.perf_counter()
        before = len(evaluated)
        next(steps)
        spent = time.perf_counter() - begin
        after = products()
        sparse, dense = (sparse + after[0]) / 2, (dense + after[1]) / 2
        tried = len(evaluated) - before
        ratios.append(spent / (sparse + dense))
        print(
            f"  iteration {spent:.1f} s ({tried} evaluations), products {dense:.1f} s dense + {sparse:.1f} s"
            f" sparse: {ratios[-1]:.2f} times",
            flush=True,
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    times = f"an iteration takes {np.median(ratios):.2f} times its products; " if ratios else ""
    print(f"N = {count}, V = {terms}, k = {dim}, {len(parts)} parts: {times}{peak:.2f} GiB at most")
    if not with_opca:
        return
    begin = time.perf_counter()
    opca(X, Y, dim)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"OPCA: {time.perf_counter() - begin:.0f} s, {peak:.2f} GiB at most")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )

    def integers(text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    def configs(text: str) -> list[dict[str, object]]:
        read = json.loads(text)
        return read if isinstance(read, list) else [read]

    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--lang", help="Language: suffix of corpus and query files, prefix of judgments.")
    parser.add_argument("--workspace", help="Workspace with trained projections to evaluate.")
    parser.add_argument("--methods", type=lambda text: text.split(","), default=list(METHODS))
    parser.add_argument("--dims", type=integers, default=[200])
    parser.add_argument("--pairs", type=integers, help="Numbers of train queries. Default: all.")
    parser.add_argument(
        "--config", type=configs, default=[{}], metavar="JSON", help="Options of ProjectionConfig, or a list."
    )
    parser.add_argument("--curve", action="store_true", help="Train to the end; show dev and test.")
    parser.add_argument("--storage", action="store_true", help="Test smaller features; needs --workspace.")
    parser.add_argument("--speed", type=integers, metavar="N,V,K")
    parser.add_argument("--iterations", type=int, default=4, help="Iterations of --speed. Default: 4.")
    parser.add_argument("--opca", action="store_true", help="Time also OPCA; needs --speed.")
    parser.add_argument("--table", type=Path, nargs="+", metavar="JSON", help="Files of --json to show.")
    parser.add_argument("--json", type=Path, help="File for all figures.")
    options = parser.parse_args()
    if options.table:
        table(options.table)
    elif options.speed:
        count, terms, dim = options.speed
        speed(count, terms, dim, options.iterations, options.opca)
    else:
        quality(options)


if __name__ == "__main__":
    main()
