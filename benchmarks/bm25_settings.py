"""Measure the gain of tuned k1, b and a title boost of BM25, by itself and in a stack.

    python benchmarks/bm25_settings.py OUT/cf WORKSPACE --stack bm25,tfidf,dense --retrieve bm25,dense

``peers/prepare.py`` writes OUT, and WORKSPACE has its documents and trained rankers. k1, b and the number of
additional title repetitions are chosen by BM25's measure on dev. Then the stack is tuned with the tuned BM25
in place of ``bm25``, and with BM25 over titles as an additional signal.
"""

from __future__ import annotations

import argparse
from itertools import product
from pathlib import Path

import numpy as np
from scipy.sparse import csr_array

from rerank.combiners.score_table import ScoreTable
from rerank.combiners.tune import tune
from rerank.evaluation.measures import evaluate_runs
from rerank.evaluation.protocols import Protocol
from rerank.evaluation.significance import holm, randomization_tests
from rerank.formats import read_corpus, read_qrels, read_queries
from rerank.records import Query
from rerank.search.build_table import TableRequest, score_table
from rerank.stack.stack import Stack
from rerank.text import Terms
from rerank.workspace import Workspace

MEASURE = "nDCG@10"
GRID = list(product((0.6, 0.9, 1.2, 1.6, 2.0), (0.0, 0.25, 0.5, 0.75, 0.9), (0, 1, 2)))
"""Values of k1, b and title repetitions."""


class Fields:
    """The term counts of titles and texts, (n, terms) each. A title also counts once as part of the text."""

    def __init__(self, folder: Path, analyze: Terms) -> None:
        self.analyze, self.terms = analyze, dict[str, int]()
        documents = list(read_corpus(folder / "corpus.jsonl"))
        self.place = {document.id: i for i, document in enumerate(documents)}
        counted = [
            self._count([analyze(text) for text in texts])
            for texts in ([one.title for one in documents], [one.content for one in documents])
        ]
        for counts in counted:
            counts.resize((len(documents), len(self.terms)))
        self.titles, self.contents = counted

    def _count(self, texts: list[list[str]]) -> csr_array:
        columns = [[self.terms.setdefault(term, len(self.terms)) for term in text] for text in texts]
        rows = np.repeat(np.arange(len(texts)), [len(text) for text in columns])
        flat = np.array([column for text in columns for column in text], np.int64)
        counts = csr_array((np.ones(len(flat)), (rows, flat)), shape=(len(texts), max(len(self.terms), 1)))
        counts.sum_duplicates()
        return counts

    def bm25(self, counts: csr_array, k1: float = 1.2, b: float = 0.75) -> csr_array:
        """Return the score of each term in each document, (n, terms)."""
        lengths = counts.sum(axis=1)
        found = (counts > 0).sum(axis=0)
        idf = np.log(1 + (counts.shape[0] - found + 0.5) / (found + 0.5))
        scores = counts.tocsr(copy=True)
        rows = np.repeat(np.arange(counts.shape[0]), np.diff(scores.indptr))
        norm = k1 * (1 - b + b * lengths[rows] / max(lengths.mean(), 1e-9))
        scores.data = scores.data / (scores.data + norm) * idf[scores.indices]
        return scores

    def scores(self, weights: csr_array, text: str) -> np.ndarray:
        """Return the scores of all documents for a query: (n,)."""
        query = np.zeros(weights.shape[1])
        for term in self.analyze(text):
            if term in self.terms:
                query[self.terms[term]] += 1
        return weights @ query


def added(
    table: ScoreTable, fields: Fields, weights: dict[str, csr_array], texts: dict[str, str]
) -> ScoreTable:
    """Return the table with one more signal for each of the weights."""
    rows = []
    for row in table.rows:
        places = [fields.place[id] for id in row.ids]
        more = [fields.scores(one, texts[row.query])[places] for one in weights.values()]
        rows.append((row.query, row.ids, np.column_stack((row.scores, *more))))
    return ScoreTable.build([*table.signals, *weights], rows)


def main() -> None:
    """Print the chosen settings, and the measures on test."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("folder", type=Path)
    options.add_argument("workspace")
    options.add_argument("--stack", required=True)
    options.add_argument("--retrieve", required=True)
    args = options.parse_args()
    workspace = Workspace.open(args.workspace)
    lang = workspace.engine.lang
    fields = Fields(args.folder, Terms(lang))
    queries = {query.id: query for query in read_queries(args.folder / "queries.jsonl")}
    texts = {id: Query("", query.text, lang=query.lang).search_text(lang) for id, query in queries.items()}
    judged = [read_qrels(args.folder / f"qrels/{split}.tsv") for split in ("dev", "test")]
    names, retrieve = args.stack.split(","), args.retrieve.split(",")
    pipeline = workspace.pipeline(sorted({*names, *retrieve}))
    tables = []
    for qrels in judged:
        request = TableRequest(
            queries=[queries[query] for query in qrels],
            qrels=qrels,
            signals=names,
            first_stage=names[0],
            protocol=Protocol(1000),
            retrieve=retrieve,
        )
        tables.append(score_table(pipeline, request)[0])
    dev = judged[0]
    reached = {}
    for k1, b, titles in GRID:
        weights = fields.bm25(fields.contents + titles * fields.titles, k1, b)
        alone = added(tables[0], fields, {"tuned": weights}, texts)
        value = tune(alone, dev, first_stage="tuned", signals=["tuned"], measure=MEASURE).value
        reached[k1, b, titles] = value
    k1, b, titles = best = max(reached, key=lambda one: reached[one])
    print(f"k1 {k1}, b {b}, titles + {titles}: dev {reached[best]:.4f}; defaults {reached[1.2, 0.75, 0]:.4f}")
    weights = {
        "tuned": fields.bm25(fields.contents + titles * fields.titles, k1, b),
        "title": fields.bm25(fields.titles),
    }
    tables = [added(table, fields, weights, texts) for table in tables]
    others = [name for name in names if name != "bm25"]
    stacks = (["bm25"], ["tuned"], ["bm25", "title"], names, ["tuned", *others], [*names, "title"])
    runs = {}
    for signals in stacks:
        found = tune(tables[0], dev, first_stage=signals[0], signals=signals, measure=MEASURE)
        stack, table = Stack(found.combiner, signals[0]), tables[1].only(signals)
        ranked = [stack.rank(row.ids, row.scores).ids for row in table.rows]
        runs[",".join(signals)] = dict(zip((row.query for row in table.rows), ranked))
        print(f"{stack}, dev {found.value:.4f}")
    measured = evaluate_runs(runs, judged[1], [MEASURE])
    labels = [",".join(signals) for signals in stacks]
    for base, changed in ((labels[0], labels[1:3]), (labels[3], labels[4:])):
        each = {name: measured.values[name][MEASURE] for name in (base, *changed)}
        tests = holm(randomization_tests([each[name] - each[base] for name in changed]))
        print(f"{base}: {measured.mean(base, MEASURE):.4f}")
        for name, p in zip(changed, tests):
            print(f"{name}: {measured.mean(name, MEASURE):.4f} (p against {base} {p:.4f})")


if __name__ == "__main__":
    main()
