"""Compare the best setting with an average of good settings if few queries are judged.

    python benchmarks/quality/few_queries.py WORKSPACE QUERIES DEV TEST --stack bm25,s2net

Draws samples of the dev queries, chooses weights on each, and prints the mean value of the test queries.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

from rerank import Qrels, Workspace
from rerank.combiners import tune as tuning
from rerank.combiners.measure import judge, values_by_query
from rerank.combiners.score_table import ScoreTable
from rerank.evaluation.protocols import Protocol
from rerank.evaluation.ranks import RankMeasure
from rerank.formats import read_qrels, read_queries
from rerank.search.build_table import TableRequest, score_table

SIZES = (25, 50, 100, 199)
SAMPLES = 100
MEASURE = "nDCG@10"

Judged = tuple[ScoreTable, Qrels]


def compare(dev: Judged, test: Judged, first_stage: str) -> None:
    """Print one line per number of dev queries."""
    table, qrels = dev
    few, measure = tuning.FEW, RankMeasure.parse(MEASURE)
    judged, _ = judge(test[0], test[1], measure)
    queries = [query.query for query in judge(table, qrels, measure)[0]]
    random, known = np.random.default_rng(0), dict[tuple[str, str], float]()
    for size in (size for size in SIZES if size <= len(queries)):
        reached: dict[int, list[float]] = {0: [], few: []}
        for _ in range(SAMPLES):
            some = random.choice(queries, size, replace=False).tolist()
            for tuning.FEW, found in reached.items():
                sample = Qrels({query: qrels[query] for query in some})
                options = {"first_stage": first_stage, "measure": MEASURE}
                chosen = tuning.tune(table, sample, **options).combiner
                key = str(chosen), chosen.normalization
                if key not in known:
                    values = values_by_query(judged, chosen, measure)
                    known[key] = float(np.mean([*values.values()]))
                found.append(known[key])
        best, average = (np.mean(found) for found in reached.values())
        print(
            f"{size} dev queries: best setting {best:.4f}, average of good settings {average:.4f}", flush=True
        )


def main() -> None:
    """Score the dev and test queries and compare the settings."""
    options = argparse.ArgumentParser(description=__doc__)
    for name in ("workspace", "queries", "dev", "test"):
        options.add_argument(name)
    options.add_argument("--stack", required=True)
    options.add_argument("--retrieve", default="")
    given = options.parse_args()
    signals: Sequence[str] = given.stack.split(",")
    retrieve = given.retrieve.split(",") if given.retrieve else ()
    pipeline = Workspace.open(given.workspace).pipeline(signals, retrieve=retrieve)

    def judged(path: str) -> Judged:
        qrels = read_qrels(path)
        request = TableRequest(
            queries=[query for query in read_queries(given.queries) if query.id in qrels],
            qrels=qrels,
            signals=signals,
            first_stage=signals[0],
            protocol=Protocol(1000),
            retrieve=retrieve,
        )
        return score_table(pipeline, request)[0], qrels

    compare(judged(given.dev), judged(given.test), signals[0])


if __name__ == "__main__":
    main()
