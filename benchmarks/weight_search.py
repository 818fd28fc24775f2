"""Compare the search for weights with the complete grid: value and time.

    python benchmarks/weight_search.py WORKSPACE QUERIES QRELS --stack bm25,tfidf,text,meta
    python benchmarks/weight_search.py --random 5,6

Prints the dev measure of the best setting of each, and the seconds. ``--random`` measures the time of the
search for 2,000 queries with 1,000 candidates and two cases, with random scores of 5 and of 6 signals.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from rerank import Workspace
from rerank.combiners import tune as tuning
from rerank.combiners.score_table import ScoreTable
from rerank.evaluation.protocols import Protocol
from rerank.formats import read_qrels, read_queries
from rerank.records import Qrels
from rerank.search.build_table import TableRequest, score_table


def random_table(signals: int, seed: int) -> tuple[ScoreTable, Qrels]:
    """Return scores of 2,000 queries, and one to five relevant documents of each."""
    draw, rows, judgments = np.random.default_rng(seed), [], []
    ids = [f"d{i:03}" for i in range(1000)]
    for query in map(str, range(2000)):
        relevant = draw.choice(len(ids), draw.integers(1, 6), replace=False)
        scores = draw.normal(size=(len(ids), signals))
        gains = draw.gamma(2, 0.9, size=signals)
        scores[relevant] += gains * draw.uniform(0.3, 1.5, size=(len(relevant), signals))
        rows.append((query, ids, scores))
        judgments += [(query, ids[i], 1) for i in relevant]
    return ScoreTable.build([f"signal{i}" for i in range(signals)], rows), Qrels(judgments)


def time_random(signals: int, measure: str) -> None:
    """Print the time of tuning two cases."""
    cases = [random_table(signals, seed) for seed in range(2)]
    begin = time.perf_counter()
    for table, qrels in cases:
        tuning.tune(table, qrels, first_stage="signal0", measure=measure, cut=1000)
    print(f"{signals} signals, 2 cases of 2,000 queries: {time.perf_counter() - begin:.1f} s")


def main() -> None:
    """Compare both searches for each case of the table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("workspace", nargs="?")
    options.add_argument("queries", nargs="?")
    options.add_argument("qrels", nargs="?")
    options.add_argument("--stack")
    options.add_argument("--measure", default="nDCG@10")
    options.add_argument(
        "--most", type=int, default=300, help="largest number of queries. Default: %(default)s"
    )
    options.add_argument("--random", help="numbers of signals, separated by commas")
    given = options.parse_args()
    for count in map(int, given.random.split(",") if given.random else ()):
        time_random(count, given.measure)
    if given.random:
        return
    signals, judged = given.stack.split(","), read_qrels(given.qrels)
    queries = [query for query in read_queries(given.queries) if query.id in judged][: given.most]
    qrels = Qrels((query.id, id, grade) for query in queries for id, grade in judged[query.id].items())
    request = TableRequest(
        queries=queries,
        qrels=qrels,
        signals=signals,
        first_stage=signals[0],
        protocol=Protocol(1000),
        every_case=True,
    )
    table, _ = score_table(Workspace.open(given.workspace).pipeline(signals), request)
    for case in dict.fromkeys(row.case for row in table.rows):
        rows = table.of(case)
        asked = {"signals": signals, "first_stage": signals[0], "measure": given.measure, "cut": 1000}
        candidates = np.mean([len(row.ids) for row in rows.rows])
        print(f"{case}: {len(rows.rows)} queries, {candidates:.0f} candidates, {len(signals)} signals")
        for name, work in (("search", 0), ("complete", 10**15)):
            tuning.FULL, tuning.WORK = 0, work
            begin = time.perf_counter()
            found = tuning.tune(rows, qrels, **asked)
            seconds = time.perf_counter() - begin
            print(
                f"  {name}: {found.value:.4f}, {found.combiner}, {found.settings:,} settings, {seconds:.1f} s"
            )


if __name__ == "__main__":
    main()
