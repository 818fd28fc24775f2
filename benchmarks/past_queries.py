"""Measure whether the train queries of a document improve its rank for new queries.

    python benchmarks/past_queries.py WORKSPACE DATA/wikispeedia --stack bm25,text,s2net

There are two signals. `field` is BM25 over the words of the train queries of a document (it is relevant for
them). `votes` takes the documents of the 10 train queries with the highest BM25, weighted by BM25. Train
queries with the same text as the query are ignored. The weight in the stack is chosen on dev.

Prints nDCG@10 on test with a randomization test, also for queries whose relevant documents have no train
query. Without train judgments, the script splits all queries into five parts. Three train, one chooses the
weight, and one tests; the roles rotate.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
from adapter import ndcg, normalized, splits
from scipy.sparse import csr_matrix

from rerank.evaluation.significance import randomization_test
from rerank.formats import read_qrels, read_queries
from rerank.records import Qrels, Query
from rerank.text import words
from rerank.workspace import Workspace

K1, B, NEAREST, DEPTH = 1.2, 0.75, 10, 1000
WEIGHTS = np.arange(21) / 20


class Bm25:
    """BM25 over texts; each text is a list of words."""

    def __init__(self, texts: list[list[str]]) -> None:
        self.index: dict[str, int] = {}
        rows, columns = [], []
        for row, text in enumerate(texts):
            columns += [self.index.setdefault(word, len(self.index)) for word in text]
            rows += [row] * len(text)
        counts = csr_matrix((np.ones(len(rows)), (rows, columns)), shape=(len(texts), len(self.index)))
        counts.sum_duplicates()
        lengths = np.array([len(text) for text in texts])
        frequency = np.bincount(counts.indices, minlength=len(self.index))
        idf = np.log(1 + (len(texts) - frequency + 0.5) / (frequency + 0.5))
        norm = K1 * (1 - B + B * lengths / max(lengths.mean(), 1e-9))
        of = np.repeat(np.arange(len(texts)), np.diff(counts.indptr))
        counts.data = idf[counts.indices] * counts.data / (counts.data + norm[of])
        self.weights = counts.tocsc()

    def score(self, text: list[str]) -> np.ndarray:
        known = [self.index[word] for word in text if word in self.index]
        return np.asarray(self.weights[:, known].sum(axis=1)).ravel()


class Past:
    """Signals that score documents by their train queries."""

    def __init__(self, ids: list[str], train: Qrels, texts: dict[str, list[str]]) -> None:
        self.ids, self.place = ids, {d: i for i, d in enumerate(ids)}
        self.asked = [q for q in train if q in texts and train.relevant(q)]
        self.texts = [texts[q] for q in self.asked]
        self.of = {d: list[int]() for d in ids}
        rows, columns, grades = [], [], []
        for number, q in enumerate(self.asked):
            for d, grade in train.relevant(q).items():
                if d in self.place:
                    self.of[d].append(number)
                    rows.append(number), columns.append(self.place[d]), grades.append(grade)
        self.votes = csr_matrix((grades, (rows, columns)), shape=(len(self.asked), len(ids)))
        self.field = Bm25([[w for n in self.of[d] for w in self.texts[n]] for d in ids])
        self.queries = Bm25(self.texts)
        self.same: dict[tuple[str, ...], list[int]] = {}
        for number, text in enumerate(self.texts):
            self.same.setdefault(tuple(text), []).append(number)

    def scores(self, text: list[str]) -> dict[str, np.ndarray]:
        near = self.queries.score(text)
        near[self.same.get(tuple(text), [])] = 0
        kept = np.argsort(-near, kind="stable")[:NEAREST]
        field = self.field.score(text)
        for number in self.same.get(tuple(text), []):  # a query never votes for itself
            field[self.votes[number].indices] = 0
        return {"field": field, "votes": np.asarray(self.votes[kept].T @ near[kept]).ravel()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workspace")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--prefix", default="", help="Prefix of the files, for example de. for debian.")
    parser.add_argument("--stack", default="bm25")
    parser.add_argument("--queries", type=int, default=1000, help="Most queries per split. Default: 1000.")
    options = parser.parse_args()
    workspace = Workspace.open(options.workspace)
    name = options.prefix.rstrip(".")
    queries = next(options.folder.glob(f"queries.{name}.jsonl.gz" if name else "queries.jsonl.gz"))
    asked = {q.id: q for q in read_queries(str(queries))}
    ids = sorted(document.id for document in workspace.engine.documents())
    texts = {q.id: words(q.text) for q in asked.values()}
    if options.prefix:
        files = options.folder / "qrels"
        turns = [{s: read_qrels(str(files / f"{options.prefix}{s}.tsv")) for s in ("train", "dev", "test")}]
    else:
        turns = splits(options.folder)
    found: dict[str, list[tuple[float, float, bool]]] = {"field": [], "votes": []}
    for qrels in turns:
        past = Past(ids, qrels["train"], texts)
        share = np.mean([bool(numbers) for numbers in past.of.values()])
        print(f"{len(ids)} documents, {share:.0%} with one of {len(past.asked)} train queries", flush=True)
        dev, _ = measure(workspace, past, asked, qrels["dev"], options)
        test, new = measure(workspace, past, asked, qrels["test"], options)
        for signal, rows in found.items():
            best = int(dev[signal].mean(axis=0).argmax())
            print(f"{signal}: weight {WEIGHTS[best]:.2f}", flush=True)
            rows += zip(test[signal][:, 0].tolist(), test[signal][:, best].tolist(), new)
    for signal, rows in found.items():
        before, after, new = (np.array(column) for column in zip(*rows))
        for label, which in (("all", np.ones(len(new), bool)), ("without train queries", new)):
            if which.any():
                print(
                    f"{options.folder.name} {options.stack} + {signal}, {label}:"
                    f" {before[which].mean():.4f} -> {after[which].mean():.4f} on {which.sum()} queries,"
                    f" p = {randomization_test((after - before)[which]):.4f}",
                    flush=True,
                )


def measure(
    workspace: Workspace, past: Past, asked: dict[str, Query], qrels: Qrels, options: argparse.Namespace
) -> tuple[dict[str, np.ndarray], list[bool]]:
    """nDCG@10 of each query at each weight, (n, 21), and True if its documents have no train query."""
    rows: dict[str, list[list[float]]] = {"field": [], "votes": []}
    new = []
    some = sorted(q for q in qrels if q in asked and qrels.relevant(q))
    for q in np.random.default_rng(0).permutation(some)[: options.queries].tolist():
        query = replace(asked[q], categories=())  # inferred, as in searches of users
        ranking, grades = workspace.search(query, DEPTH, stack=options.stack).answer.ranking, dict(qrels[q])
        if not len(ranking):
            continue
        places = [past.place[d] for d in ranking.ids]
        first = normalized(ranking.scores)
        for signal, scores in past.scores(words(query.text)).items():
            own = normalized(scores[places])
            rows[signal].append([ndcg(ranking.ids, (1 - w) * first + w * own, grades) for w in WEIGHTS])
        new.append(not any(past.of.get(d) for d in qrels.relevant(q)))
    return {signal: np.array(some) for signal, some in rows.items()}, new


if __name__ == "__main__":
    main()
