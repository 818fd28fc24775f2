"""Compare the best setting with an average of good settings if few queries are judged.

    python benchmarks/few_queries.py WORKSPACE QUERIES DEV TEST --stack bm25,s2net --retrieve bm25,s2net:200

Draws samples of the dev queries, chooses weights on each, and prints the mean value of the test queries.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rerank import Qrels, Workspace
from rerank.combiners.score_table import ScoreTable
from rerank.combiners.tune import TuneOptions, TuningProblem
from rerank.evaluation.protocols import Protocol
from rerank.formats import read_qrels, read_queries
from rerank.search.build_table import TableRequest, score_table

SIZES = (25, 50, 100, 199)
SAMPLES = 100
MANY = 10**9
"""A query count above the limit for averaging: the search returns the best setting."""

Judged = tuple[ScoreTable, Qrels]


def compare(dev: Judged, test: Judged, options: TuneOptions) -> None:
    """Print one line per number of dev queries."""
    learned = TuningProblem.of(*dev, options)
    measured = replace(TuningProblem.of(*test, options), grids=learned.grids)
    values = learned.sums(range(len(learned.judged)), None)
    queries, random, known = (
        range(len(measured.judged)),
        np.random.default_rng(0),
        dict[tuple[int, int], float](),
    )
    for size in (size for size in SIZES if size <= len(learned.judged)):
        reached: dict[int, list[float]] = {size: [], MANY: []}
        for _ in range(SAMPLES):
            some = random.choice(len(learned.judged), size, replace=False)
            means = [one[some].mean(axis=0) for one in values]
            for count, found in reached.items():
                chosen = learned.choose(means, count)
                if chosen not in known:
                    known[chosen] = float(measured.values(chosen, queries).mean())
                found.append(known[chosen])
        best, average = np.mean(reached[MANY]), np.mean(reached[size])
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
            protocol=Protocol("retrieved", 1000),
            retrieve=retrieve,
        )
        return score_table(pipeline, request)[0], qrels

    measure = TuneOptions(first_stage=signals[0], measure="nDCG@10")
    compare(judged(given.dev), judged(given.test), measure)


if __name__ == "__main__":
    main()
