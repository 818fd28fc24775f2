"""Compare ways to choose weights if few queries are judged.

    python benchmarks/quality/few_queries.py DATA/cf WORKSPACE [--stack SIGNALS] [--retrieve RETRIEVERS]

A new workspace gets the documents and an encoder without training (``dense``). Random halves of all judged
queries choose the weights by each method. The other halves measure them, in both directions. All methods get
the same halves. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rerank import Qrels, Workspace, ingest, train
from rerank.evaluation.protocols import Protocol
from rerank.evaluation.ranks import RankMeasure
from rerank.formats import read_qrels, read_queries
from rerank.scoring.build_table import TableRequest, score_table
from rerank.stack.linear import Linear
from rerank.stack.normalize import TRIED
from rerank.tuning.grid import SAME, Grid
from rerank.tuning.measure import judge, query_values
from rerank.tuning.score_table import ScoreTable
from rerank.tuning.tune import NOISE, candidate_grid

HALVES = 60
SAMPLES = 100
MEASURE = "nDCG@10"
Array = NDArray[np.float64]
Choose = Callable[[Grid, Array, int], int]


def best_setting(grid: Grid, values: Array, seed: int) -> int:
    """Return the best setting. values: (queries, settings)."""
    return grid.choose(values.mean(axis=0), 0)


def mean_of_good_settings(grid: Grid, values: Array, seed: int) -> int:
    """Return the setting closest to the mean of all settings close to the best one."""
    return grid.robust_setting(values.mean(axis=0), NOISE / math.sqrt(len(values)))


def mean_of_bootstrap_winners(grid: Grid, values: Array, seed: int) -> int:
    """Return the setting closest to the mean of the winners of samples with replacement."""
    n = len(values)
    counts = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=SAMPLES)
    means = counts @ values / n
    winners = [grid.choose(row, 0) for row in means]
    return grid.closest(grid.effects()[winners].mean(axis=0))


METHODS: dict[str, Choose] = {
    "best": best_setting,
    "good settings": mean_of_good_settings,
    "bootstrap winners": mean_of_bootstrap_winners,
}


def compare(grids: list[Grid], values: list[Array], first_stage: Array) -> dict[str, float]:
    """Return method -> mean value of the halves that did not choose the weights."""
    n = len(first_stage)
    measured: dict[str, list[float]] = {name: [] for name in METHODS}
    for half in range(HALVES):
        order = np.random.default_rng(half).permutation(n)
        for chosen, other in ((order[: n // 2], order[n // 2 :]), (order[n // 2 :], order[: n // 2])):
            highest = [part[chosen].mean(axis=0).max() for part in values]
            # The first of equal normalizations, as `rerank tune`.
            best = next(i for i, value in enumerate(highest) if value >= max(highest) - SAME)
            lowest = max(first_stage[chosen].mean(), *_single_signals(grids[0], values[0][chosen]))
            for name, method in METHODS.items():
                setting = method(grids[best], values[best][chosen], half)
                if values[best][chosen, setting].mean() < lowest:  # as `rerank tune`
                    setting = best_setting(grids[best], values[best][chosen], half)
                measured[name].append(float(values[best][other, setting].mean()))
    return {name: round(float(np.mean(found)), 4) for name, found in measured.items()}


def _single_signals(grid: Grid, values: Array) -> list[float]:
    single = (grid.weights > 0).sum(axis=1) == 1
    return [float(value) for value in values[:, single].mean(axis=0)]


def score(
    workspace: Workspace, data: Path, signals: list[str], retrieve: list[str]
) -> tuple[ScoreTable, Qrels]:
    """Score the candidates of all judged queries."""
    rows = [row for file in sorted((data / "qrels").glob("*.tsv")) for row in _rows(read_qrels(file))]
    qrels = Qrels(rows)
    request = TableRequest(
        queries=[query for query in read_queries(data / "queries.jsonl.gz") if query.id in qrels],
        qrels=qrels,
        signals=signals,
        first_stage=signals[0],
        protocol=Protocol(1000),
        retrieve=retrieve,
    )
    return score_table(workspace.pipeline(signals, retrieve=retrieve), request)[0], qrels


def _rows(qrels: Qrels) -> list[tuple[str, str, int]]:
    return [(query, document, grade) for query in qrels for document, grade in qrels[query].items()]


def main() -> None:
    """Score the queries, and compare the methods."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("data", type=Path)
    options.add_argument("workspace")
    options.add_argument("--stack", default="bm25,tfidf,dense")
    options.add_argument("--retrieve", default="bm25,dense:200")
    given = options.parse_args()
    signals = given.stack.split(",")
    if Workspace.exists(given.workspace):
        workspace = Workspace.open(given.workspace)
    else:
        workspace = ingest(given.workspace, [given.data / "corpus.jsonl.gz"], lang="en").workspace
        train(workspace, "dense", config={"untrained": True})
    table, qrels = score(workspace, given.data, signals, given.retrieve.split(","))
    measure = RankMeasure.parse(MEASURE, 1000)
    judged, _ = judge(table, qrels, measure)
    grids = [candidate_grid(table, judged, method, measure) for method in TRIED]
    values = [np.array([query_values(query, grid, measure) for query in judged]) for grid in grids]
    alone = Grid("none", np.array([Linear(tuple(signals), (1.0,) + (0.0,) * (len(signals) - 1)).weights]))
    first_stage = np.array([query_values(query, alone, measure)[0] for query in judged])
    limit = max(float(part.mean(axis=0).max()) for part in values)
    row = {"collection": given.data.name, "queries": len(judged), "signals": signals}
    row |= {signals[0]: round(float(first_stage.mean()), 4), **compare(grids, values, first_stage)}
    print(json.dumps({**row, "limit": round(limit, 4)}), flush=True)


if __name__ == "__main__":
    main()
