"""What a translation model of words (IBM's Model 1) adds to a stack.

    python benchmarks/translation.py OUT/debian.it WORKSPACE --stack bm25,s2net,text --retrieve bm25,s2net

``peers/prepare.py`` writes OUT, and WORKSPACE has its documents and trained rankers. The model learns
P(query word | document word) from train queries and their relevant documents. The score of a document is the
log-likelihood of the query, mixed with the words of all train queries (Berger and Lafferty 1999).
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
        self.model = model_one(pairs)
        self.place = {id: i for i, id in enumerate(texts)}
        known = [[self.model.left[w] for w in text if w in self.model.left] for text in texts.values()]
        rows = np.repeat(np.arange(len(known)), [len(of) for of in known])
        shares = np.repeat([1 / max(1, len(of)) for of in known], [len(of) for of in known])
        columns = np.array([column for of in known for column in of], np.int64)
        self.documents = csr_array((shares, (rows, columns)), shape=(len(texts), len(self.model.left)))
        counts = Counter(word for _, query in pairs for word in query)
        self.background = np.array([counts[word] for word in self.model.right]) / counts.total()
        self.by_word = self.model.t.tocsc()

    def score(self, text: str) -> np.ndarray:
        """Return the score of each document."""
        columns = [self.model.right[word] for word in words(text) if word in self.model.right]
        translated = (self.documents @ self.by_word[:, columns]).toarray()
        return np.log(MIXED * translated + (1 - MIXED) * self.background[columns]).sum(axis=1)


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
    train, dev, test = (read_qrels(args.folder / f"qrels/{split}.tsv") for split in ("train", "dev", "test"))
    pairs = [(texts[d], words(queries[q].text)) for q in train for d in train.relevant(q) if d in texts]
    signal, names, retrieve = Translation(texts, pairs), args.stack.split(","), args.retrieve.split(",")
    pipeline = Workspace.open(args.workspace).pipeline(sorted({*names, *retrieve}))
    tables = []
    for qrels in (dev, test):
        asked = [queries[query] for query in qrels]
        protocol = Protocol("retrieved", 1000)
        request = TableRequest(
            queries=asked,
            qrels=qrels,
            signals=names,
            first_stage=names[0],
            protocol=protocol,
            retrieve=retrieve,
        )
        plain, _ = score_table(pipeline, request)

        def rows(plain: ScoreTable = plain) -> Iterator[tuple[str, tuple[str, ...], Any]]:
            for i, (query, ids) in enumerate(zip(plain.query_ids, plain.document_ids)):
                added = signal.score(queries[query].text)[[signal.place[d] for d in ids]]
                yield query, ids, np.column_stack((plain.scores[i, : plain.counts[i]], added))

        tables.append(ScoreTable.build([*names, "model1"], rows()))
    runs = {}
    for signals in (names, [*names, "model1"], [names[0], "model1"]):
        tuned = tune(tables[0], dev, first_stage=names[0], signals=signals, measure=MEASURES[0])
        stack, table = Stack(tuned.combiner, names[0]), tables[1].only(signals)
        ranked = [
            stack.rank(ids, table.scores[i, : len(ids)]).ids for i, ids in enumerate(table.document_ids)
        ]
        runs[",".join(signals)] = dict(zip(table.query_ids, ranked))
        print(f"{stack}, dev {tuned.value:.4f}")
    found = evaluate_runs(runs, test, MEASURES)
    for measure in MEASURES:
        full = found.values[args.stack][measure]
        for name, p in zip(runs, holm(randomization_tests([found.values[n][measure] - full for n in runs]))):
            print(f"{name}: {measure} {found.mean(name, measure):.4f} (p against {args.stack} {p:.5f})")


if __name__ == "__main__":
    main()
