"""Compare the ranker `adapter` with its encoder without the map.

    python benchmarks/adapter.py DATA/cf --cache cf.npy
    python benchmarks/adapter.py rerank/demo/collection --cache demo.npy

Both are measured as a single ranker and in combination with bm25. Prints nDCG@10 on test queries and the p
value of a randomization test.

A collection without train judgments is split by query into five parts. Three parts train, one part selects
the iteration and the weight of bm25, and one part tests. The parts rotate.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from rerank.engines.base import SearchRequest
from rerank.evaluation.significance import randomization_test
from rerank.formats import read_corpus, read_qrels, read_queries
from rerank.progress import Progress
from rerank.rankers.dense.adapter import AdapterConfig, mean_vectors
from rerank.rankers.dense.ranker import DenseRanker, quantized
from rerank.rankers.projection.fit import descend
from rerank.rankers.projection.pairs import Vectors, unit_rows
from rerank.records import Qrels
from rerank.workflows.ingest import ingest
from rerank.workflows.training_data import Inputs, TrainReport, training_data

PARTS, DEPTH, WEIGHTS = 5, 1000, np.arange(21) / 20


def splits(folder: Path) -> list[dict[str, Qrels]]:
    files = sorted((folder / "qrels").glob("*.tsv"))
    if any(file.name == "train.tsv" for file in files):
        return [{file.stem: read_qrels(str(file)) for file in files}]
    rows = [
        (q, d, grade)
        for file in files
        for q, grades in read_qrels(str(file)).items()
        for d, grade in grades.items()
    ]
    ids = sorted({q for q, _, _ in rows})
    part = dict(zip(np.random.default_rng(0).permutation(ids).tolist(), range(len(ids))))
    return [
        {
            name: Qrels(row for row in rows if (part[row[0]] + turn) % PARTS in parts)
            for name, parts in (("train", {0, 1, 2}), ("dev", {3}), ("test", {4}))
        }
        for turn in range(PARTS)
    ]


def ndcg(ids: list[str], scores: np.ndarray, grades: dict[str, int]) -> float:
    order = np.argsort(-scores, kind="stable")[:10].tolist()
    discounts = 1 / np.log2(np.arange(2, 12))
    gains = [max(grades.get(ids[i], 0), 0) for i in order]
    ideal = sorted((max(grade, 0) for grade in grades.values()), reverse=True)[:10]
    return float(gains @ discounts[: len(gains)] / (ideal @ discounts[: len(ideal)]))


def normalized(scores: np.ndarray) -> np.ndarray:
    return (scores - scores.mean()) / (scores.std() or 1.0)


class Collection:
    """Documents, queries, first stage and stored vectors."""

    def __init__(self, folder: Path, home: str, passages: int, cache: Path) -> None:
        corpus = next(folder.glob("corpus*.jsonl.gz"))
        self.queries = {q.id: q for q in read_queries(str(next(folder.glob("queries*.jsonl.gz"))))}
        documents = list(read_corpus(str(corpus)))
        self.ids, self.place = [d.id for d in documents], {d.id: i for i, d in enumerate(documents)}
        self.workspace = ingest(f"{home}/workspace", [str(corpus)], lang="en").workspace
        self.config = AdapterConfig(passages=passages)
        self.ranker = DenseRanker(name="dense", source=self.config.load(), passages=passages)
        if not cache.exists():
            begin = time.process_time()
            np.save(cache, self.ranker.encode_documents(documents))
            print(f"{len(documents)} documents encoded in {time.process_time() - begin:.0f} s of CPU")
        self.features = np.load(cache)
        ends = np.maximum(self.features[:, -1].astype(int), 1) - 1
        both = np.zeros((len(documents), 2 * self.ranker.width + 1), np.int8)
        vectors = self.features[:, :-1].reshape(len(documents), passages, -1)
        both[:, : self.ranker.width] = vectors[:, 0]
        both[:, self.ranker.width : -1] = vectors[np.arange(len(ends)), ends] * (ends > 0)[:, None]
        self.means = mean_vectors(both, 2)

    def mapped(self, matrix: np.ndarray) -> np.ndarray:
        """Return the stored vectors after the map."""
        features, width = self.features.copy(), self.ranker.width
        rows = unit_rows(features[:, :-1].reshape(-1, width).astype(np.float32)) @ matrix
        features[:, :-1] = quantized(unit_rows(rows)).reshape(len(features), -1)
        return features

    def results(self, qrels: Qrels, matrix: np.ndarray) -> tuple[list[float], np.ndarray]:
        """Return nDCG@10 of each query: by the encoder, and with bm25 at each weight, (n, 21)."""
        features, asked = self.mapped(matrix), [q for q in qrels if qrels.relevant(q)]
        vectors = unit_rows(self.ranker.vectors([self.queries[q].text for q in asked], queries=True) @ matrix)
        requests = [SearchRequest(self.queries[q].lexical, "bm25", depth=DEPTH) for q in asked]
        single, stacked = [], []
        for q, vector, hits in zip(asked, vectors, self.workspace.engine.search(requests)):
            scores = self.ranker.score(vector, features)
            single.append(ndcg(self.ids, scores, dict(qrels[q])))
            first, own = normalized(hits.scores), normalized(scores[[self.place[d] for d in hits.ids]])
            stacked.append([ndcg(list(hits.ids), (1 - w) * first + w * own, dict(qrels[q])) for w in WEIGHTS])
        return single, np.array(stacked)

    def learn(self, split: dict[str, Qrels]) -> np.ndarray:
        inputs = Inputs(
            queries=list(self.queries.values()), qrels=split["train"], dev_qrels=split["dev"], infer=False
        )
        data = training_data(self.workspace, inputs, TrainReport(), Progress())
        documents = self.means[[self.place[d] for d in data.document_ids]]
        begin, worked = time.perf_counter(), time.process_time()
        solver = self.config.solver()
        vectors = Vectors(data, solver, documents, self.ranker.vectors(data.query_texts, queries=True))
        start = np.eye(self.ranker.width, dtype=np.float32)
        best = descend("adapter", vectors, start, solver, Progress())
        print(
            f"{len(vectors.pairs)} pairs, {len(data.train)} train and {len(data.dev)} dev queries: iteration"
            f" {best.iteration} of {best.iterations}, dev {best.history[0][2]:.4f} -> {best.measure:.4f};"
            f" {time.process_time() - worked:.0f} s of CPU, {time.perf_counter() - begin:.0f} s",
            flush=True,
        )
        return best.matrix


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--passages", type=int, default=8)
    parser.add_argument("--cache", type=Path, required=True, help="File of the document vectors (.npy).")
    options = parser.parse_args()
    found: dict[str, list[list[float]]] = {"dense": [[], []], "bm25,dense": [[], []]}
    with tempfile.TemporaryDirectory() as home:
        collection = Collection(options.folder, home, options.passages, options.cache)
        for split in splits(options.folder):
            for side, matrix in enumerate((np.eye(collection.ranker.width), collection.learn(split))):
                _, dev = collection.results(split["dev"], matrix.astype(np.float32))
                single, stacked = collection.results(split["test"], matrix.astype(np.float32))
                found["dense"][side] += single
                found["bm25,dense"][side] += stacked[:, dev.mean(axis=0).argmax()].tolist()
    for name, (before, after) in found.items():
        gains = np.array(after) - before
        print(
            f"{options.folder.name} {name}: {np.mean(before):.4f} -> {np.mean(after):.4f} on {len(gains)}"
            f" queries, p = {randomization_test(gains):.4f}"
        )


if __name__ == "__main__":
    main()
