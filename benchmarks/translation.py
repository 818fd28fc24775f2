"""Measure the gain of adding a translation model of words (IBM's Model 1) to a stack.

    python benchmarks/translation.py OUT/debian.it WORKSPACE --stack bm25,s2net,text --retrieve bm25,s2net

``peers/prepare.py`` writes OUT, and WORKSPACE has its documents and trained rankers. The model learns
P(query word | document word) from train queries and their relevant documents. The score of a document is
the log-likelihood of the query, mixed with the words of all train queries (Berger and Lafferty 1999).
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

import numpy as np
from scipy.sparse import csr_array

sys.path.insert(0, str(Path(__file__).parent / "papers"))
from translations import model_one

from rerank.combiners.score_table import ScoreTable
from rerank.combiners.tune import tune
from rerank.evaluation.measures import evaluate_runs
from rerank.evaluation.protocols import Protocol
from rerank.evaluation.significance import holm, randomization_tests
from rerank.formats import read_corpus, read_qrels, read_queries
from rerank.search.build_table import TableRequest, score_table
from rerank.stack.stack import Stack
from rerank.text import words
from rerank.workspace import Workspace

MEASURES = ("nDCG@10", "nDCG")
MIXED = 0.9
"""Weight of the translation in the mixture."""


class Translation:
    """Log-likelihood of a query for each document."""

    def __init__(self, texts: dict[str, list[str]], pairs: list[tuple[list[str], list[str]]]) -> None:
        self.model, self.place = model_one(pairs), {id: i for i, id in enumerate(texts)}
        left, right = self.model.left, self.model.right
        known = [[left[word] for word in text if word in left] for text in texts.values()]
        lengths = [len(columns) for columns in known]
        rows, shares = (np.repeat(of, lengths) for of in (np.arange(len(known)), 1 / np.maximum(lengths, 1)))
        columns = np.concatenate([np.array(of, np.int64) for of in known])
        self.documents = csr_array((shares, (rows, columns)), shape=(len(known), len(left)))
        counts = Counter(word for _, query in pairs for word in query)
        self.background = np.array([counts[word] for word in right]) / counts.total()
        self.by_word = self.model.t.tocsc()

    def score(self, text: str) -> np.ndarray:
        """Return the score of each document."""
        columns = [self.model.right[word] for word in words(text) if word in self.model.right]
        translated = (self.documents @ self.by_word[:, columns]).toarray()
        return np.log(MIXED * translated + (1 - MIXED) * self.background[columns]).sum(axis=1)

    def added(self, table: ScoreTable, texts: dict[str, str]) -> ScoreTable:
        """Return the table with the signal ``model1``."""
        rows = []
        for row in table.rows:
            scores = self.score(texts[row.query])[[self.place[d] for d in row.ids]]
            rows.append((row.query, row.ids, np.column_stack((row.scores, scores))))
        return ScoreTable.build([*table.signals, "model1"], rows)


def main() -> None:
    """Tune stacks with and without the signal on dev, and print their measures on test."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("folder", type=Path)
    options.add_argument("workspace")
    options.add_argument("--stack", default="bm25,s2net,text")
    options.add_argument("--retrieve", default="bm25,s2net")
    args = options.parse_args()
    texts = {one.id: words(one.content) for one in read_corpus(args.folder / "corpus.jsonl")}
    queries = {query.id: query for query in read_queries(args.folder / "queries.jsonl")}
    asked = {query.id: query.text for query in queries.values()}
    train, dev, test = (read_qrels(args.folder / f"qrels/{split}.tsv") for split in ("train", "dev", "test"))
    signal = Translation(
        texts, [(texts[d], words(asked[q])) for q in train for d in train.relevant(q) if d in texts]
    )
    names, retrieve = args.stack.split(","), args.retrieve.split(",")
    pipeline = Workspace.open(args.workspace).pipeline(sorted({*names, *retrieve}))
    given = {
        "signals": names,
        "first_stage": names[0],
        "protocol": Protocol(1000),
        "retrieve": retrieve,
    }
    tables = []
    for qrels in (dev, test):
        request = TableRequest(queries=[queries[query] for query in qrels], qrels=qrels, **given)
        tables.append(signal.added(score_table(pipeline, request)[0], asked))
    runs = {}
    for signals in (names, [*names, "model1"], [names[0], "model1"]):
        tuned = tune(tables[0], dev, first_stage=names[0], signals=signals, measure=MEASURES[0])
        stack, table = Stack(tuned.combiner, names[0]), tables[1].only(signals)
        ranked = [stack.rank(row.ids, row.scores).ids for row in table.rows]
        runs[",".join(signals)] = dict(zip((row.query for row in table.rows), ranked))
        print(f"{stack}, dev {tuned.value:.4f}")
    found = evaluate_runs(runs, test, MEASURES)
    for measure in MEASURES:
        full = found.values[args.stack][measure]
        for name, p in zip(runs, holm(randomization_tests([found.values[n][measure] - full for n in runs]))):
            print(f"{name}: {measure} {found.mean(name, measure):.4f} (p against {args.stack} {p:.5f})")


if __name__ == "__main__":
    main()
