"""Compare `dense`, fine-tuned on judged queries, with the untrained encoder and with `adapter`.

    python benchmarks/judged.py rerank/demo/collection
    python benchmarks/judged.py DATA/wikispeedia --documents 1000

Prints nDCG@10 on test queries, of each ranker and of weighted stacks with bm25 and adapter. Weights are
chosen on dev. p is a paired randomization test. Times are processor seconds.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from itertools import product
from pathlib import Path

import numpy as np
import torch
from adapter import DEPTH, ndcg, normalized

from rerank.engines.base import SearchRequest
from rerank.evaluation.significance import randomization_test
from rerank.formats import read_corpus, read_qrels, read_queries
from rerank.progress import Progress
from rerank.rankers.cnn.towers import Ragged
from rerank.rankers.dense.adapter import AdapterConfig, mean_vectors
from rerank.rankers.dense.config import DenseConfig
from rerank.rankers.dense.judged import JudgedTask
from rerank.rankers.dense.ranker import DenseRanker, quantized, windows
from rerank.rankers.encoder.batching import BatchEncoder
from rerank.rankers.projection.fit import descend
from rerank.rankers.projection.pairs import Vectors, unit_rows
from rerank.records import Qrels
from rerank.workflows.training_data import Inputs, TrainReport, training_data
from rerank.workspace import Workspace

STEP = np.arange(11) / 10


class Say(Progress):
    def say(self, line: str) -> None:
        print(f"    {line}", flush=True)


class Collection:
    def __init__(self, folder: Path, home: str, options: argparse.Namespace) -> None:
        corpus = next(folder.glob("corpus*.jsonl.gz"))
        documents = list(read_corpus(str(corpus)))
        self.splits = {p.stem: read_qrels(str(p)) for p in sorted((folder / "qrels").glob("*.tsv"))}
        if options.documents:
            rng = np.random.default_rng(0)
            kept = {documents[i].id for i in rng.permutation(len(documents))[: options.documents].tolist()}
            documents = [d for d in documents if d.id in kept]
            self.splits = {
                name: Qrels((q, d, g) for q in rows for d, g in rows[q].items() if d in kept)
                for name, rows in self.splits.items()
            }
        if options.train:
            rows = self.splits["train"]
            few = np.random.default_rng(0).permutation(sorted(q for q in rows if rows.relevant(q)))
            self.splits["train"] = Qrels({q: rows[q] for q in few[: options.train].tolist()})
        self.queries = {q.id: q for q in read_queries(str(next(folder.glob("queries*.jsonl.gz"))))}
        self.documents, self.ids = documents, [d.id for d in documents]
        self.place = {d.id: i for i, d in enumerate(documents)}
        self.workspace = Workspace.create(f"{home}/workspace", lang="en")
        self.workspace.engine.write(documents)
        inputs = Inputs(
            queries=list(self.queries.values()),
            qrels=self.splits["train"],
            dev_qrels=self.splits["dev"],
            infer=False,
        )
        self.data = training_data(self.workspace, inputs, TrainReport(), Progress())
        self.asked = {
            name: [q for q in self.splits[name] if self.splits[name].relevant(q)] for name in ("dev", "test")
        }
        print(
            f"{len(documents)} documents, {len(self.data.train)} train queries with"
            f" {sum(len(one.documents) for one in self.data.train)} pairs, {len(self.asked['dev'])} dev and"
            f" {len(self.asked['test'])} test queries",
            flush=True,
        )
        self.hits = {}
        for name, asked in self.asked.items():
            requests = [SearchRequest(self.queries[q].lexical, "bm25", depth=DEPTH) for q in asked]
            self.hits[name] = list(self.workspace.engine.search(requests))


class Scores:
    """Scores of all documents for dev and test queries, computed from the vectors of passages and queries."""

    def __init__(self, collection: Collection, ranker: DenseRanker) -> None:
        self.collection, self.ranker = collection, ranker

    def of(self, features: np.ndarray, queries: dict[str, np.ndarray]) -> dict[str, list[np.ndarray]]:
        return {
            name: [self.ranker.score(queries[q], features) for q in asked]
            for name, asked in self.collection.asked.items()
        }


def evaluate(collection: Collection, scores: dict[str, dict[str, list[np.ndarray]]]) -> None:
    single, stacked = {}, {}
    qrels = collection.splits
    for name, found in scores.items():
        single[name] = np.array(
            [
                ndcg(collection.ids, s, dict(qrels["test"][q]))
                for q, s in zip(collection.asked["test"], found["test"])
            ]
        )
    names = [*scores]
    combinations = [(), *((n,) for n in names)]
    combinations += [("adapter", n) for n in names if n not in ("adapter", "untrained")]
    for some in combinations:
        best, chosen = -1.0, None
        for weights in product(STEP, repeat=len(some)):
            if sum(weights) > 1:
                continue
            value = stack(collection, scores, some, weights, "dev").mean()
            if value > best:
                best, chosen = value, weights
        stacked[some] = stack(collection, scores, some, chosen, "test")
        print(
            f"  bm25,{','.join(some)} weights {chosen}: test nDCG@10 {stacked[some].mean():.4f}", flush=True
        )

    def compare(label: str, one: np.ndarray, other: np.ndarray) -> None:
        p = randomization_test(one - other)
        print(f"  {label}: {other.mean():.4f} -> {one.mean():.4f}, p = {p:.4f}", flush=True)

    for name in names:
        if name != "untrained":
            compare(f"{name} against untrained", single[name], single["untrained"])
            compare(f"bm25,{name} against bm25,untrained", stacked[name,], stacked["untrained",])
        if name not in ("untrained", "adapter"):
            compare(f"{name} against adapter", single[name], single["adapter"])
            compare(f"bm25,{name} against bm25,adapter", stacked[name,], stacked["adapter",])
            compare(
                f"bm25,adapter,{name} against bm25,adapter", stacked["adapter", name], stacked["adapter",]
            )


def stack(collection, scores, some, weights, split) -> np.ndarray:
    values = []
    for row, (q, hits) in enumerate(zip(collection.asked[split], collection.hits[split])):
        total = (1 - sum(weights)) * normalized(hits.scores)
        places = [collection.place[d] for d in hits.ids]
        for name, weight in zip(some, weights):
            total = total + weight * normalized(scores[name][split][row][places])
        values.append(ndcg(list(hits.ids), total, dict(collection.splits[split][q])))
    return np.array(values)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--documents", type=int, help="Number of documents to draw. Default: all.")
    parser.add_argument("--train", type=int, help="Number of train queries to draw. Default: all.")
    parser.add_argument("--passages", type=int, default=3)
    parser.add_argument("--run", action="append", default=[], help="Options of dense: rate=1e-4,epochs=4.")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as home:
        collection, clock = Collection(options.folder, home, options), time.process_time
        data, scores = collection.data, {}
        config = DenseConfig.of(passages=options.passages)
        encoder = config.load()
        start = {name: one.clone() for name, one in encoder.model.state_dict().items()}
        documents = Ragged.of(encoder.tokens([d.content for d in collection.documents]))
        room = encoder.room
        pieces, owner = [], []
        for row in range(len(documents)):
            text = documents.flat[documents.offsets[row] : documents.offsets[row + 1]]
            for place, begin in enumerate(windows(len(text), room, options.passages)):
                pieces.append(text[begin : begin + room])
                owner.append((row, place))
        asked = [q for some in collection.asked.values() for q in some]
        texts = [
            np.array(t[:room], np.int32) for t in encoder.tokens([collection.queries[q].text for q in asked])
        ]
        shared = BatchEncoder(encoder, config.learning_layers(encoder.model.config.num_hidden_layers))
        begin = clock()
        assert shared.fill([*pieces, *texts])
        print(f"lower layers of {len(pieces)} passages: {clock() - begin:.0f} s", flush=True)
        ranker = DenseRanker(name="dense", source=encoder, passages=options.passages)

        def features(encoding: BatchEncoder) -> tuple[np.ndarray, dict[str, np.ndarray]]:
            found = np.zeros((len(documents), options.passages, ranker.width), np.int8)
            rows, places = np.array(owner).T
            found[rows, places] = quantized(encoding.unit_vectors(pieces))
            counts = np.bincount(rows, minlength=len(documents)).astype(np.int8)
            joined = np.concatenate((found.reshape(len(documents), -1), counts[:, None]), axis=1)
            return joined, dict(zip(asked, encoding.unit_vectors(texts)))

        begin = clock()
        untrained, queries = features(shared)
        print(f"upper layers of all passages and queries: {clock() - begin:.0f} s", flush=True)
        scores["untrained"] = Scores(collection, ranker).of(untrained, queries)

        begin, solver = clock(), AdapterConfig(passages=options.passages).solver()
        ends = np.maximum(untrained[:, -1].astype(int), 1) - 1
        parts = untrained[:, :-1].reshape(len(documents), options.passages, -1)
        both = np.concatenate(
            (parts[:, 0], parts[np.arange(len(ends)), ends] * (ends > 0)[:, None], untrained[:, -1:]), axis=1
        )
        vectors = Vectors(data, solver, mean_vectors(both, 2), ranker.vectors(data.query_texts, queries=True))
        best = descend("adapter", vectors, np.eye(ranker.width, dtype=np.float32), solver, Progress())
        mapped = untrained.copy()
        rows = unit_rows(mapped[:, :-1].reshape(-1, ranker.width).astype(np.float32)) @ best.matrix
        mapped[:, :-1] = quantized(unit_rows(rows)).reshape(len(mapped), -1)
        print(
            f"adapter: dev {best.history[0][2]:.4f} -> {best.measure:.4f}; {clock() - begin:.0f} s",
            flush=True,
        )
        scores["adapter"] = Scores(collection, ranker).of(
            mapped, {q: unit_rows((v @ best.matrix)[None])[0] for q, v in queries.items()}
        )
        evaluate(collection, scores)
        for number, text in enumerate(options.run or [""]):
            changes = {k: json.loads(v) for k, v in (one.split("=") for one in text.split(",") if one)}
            encoder.model.load_state_dict(start)
            run = DenseConfig.of(passages=options.passages, **changes)
            task = JudgedTask(data, documents, encoder, run, Say())
            if task.encoding._halves is not None:
                task.encoding.outputs = shared.outputs
            begin = clock()
            fit = task.fit()
            kept = f"step {fit.best} kept, share {fit.share}"
            print(f"run {text}: {fit.steps} steps in {clock() - begin:.0f} s; {kept}", flush=True)
            found, vectors_of = features(task.encoding)
            evaluate(
                collection, {**scores, f"judged{number}": Scores(collection, ranker).of(found, vectors_of)}
            )


if __name__ == "__main__":
    main()
