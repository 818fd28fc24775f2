"""Measure the gain of LambdaMART trees over a linear stack, and their time per query.

Needs `pip install lightgbm`.

    python benchmarks/trees.py WORKSPACE QUERIES DEV TEST --stack bm25,tfidf,text,meta

The trees start from the scores of the linear stack and correct them. On dev, both are cross-validated in
the same folds.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import lightgbm
import numpy as np
from numpy.typing import NDArray

from rerank import Qrels, Workspace, read_qrels, read_queries
from rerank.combiners.folds import cross_validate
from rerank.combiners.linear import Linear
from rerank.combiners.measure import judge, ranks_of
from rerank.combiners.normalize import normalize
from rerank.combiners.score_table import ScoreRow, ScoreTable
from rerank.combiners.tune import tune
from rerank.evaluation.protocols import Protocol
from rerank.evaluation.ranks import RankMeasure
from rerank.evaluation.significance import randomization_test
from rerank.stack.stack import Stack
from rerank.workflows.experiment import Experiment, JudgedQueries

METHODS = ("none", "min-max", "z-score", "rank")
LEAVES, ROUNDS, FOLDS = 7, 100, 5
SETTINGS = {
    "objective": "lambdarank",
    "learning_rate": 0.05,
    "num_leaves": LEAVES,
    "min_data_in_leaf": 50,
    "lambda_l2": 1.0,
    "num_threads": 1,
    "deterministic": True,
    "seed": 0,
    "verbosity": -1,
    "label_gain": list(range(31)),
}
MEASURES = ("nDCG@10", "nDCG")


def features(raw: NDArray[Any]) -> NDArray[Any]:
    """Normalized scores by each method: raw (n, S) -> (n, 4 S)."""
    return np.concatenate([normalize(raw, method) for method in METHODS], axis=1)


def fit(rows: Sequence[ScoreRow], qrels: Qrels, linear: Linear) -> tuple[Any, float]:
    """Return a booster and the factor that brings its output to the scale of the linear stack."""
    blocks, labels, starts = [], [], []
    for row in rows:
        grades = qrels.relevant(row.query)
        label = [min(grades.get(id, 0), 30) for id in row.ids]
        if any(label):
            blocks.append(features(row.scores))
            labels.append(label)
            starts.append(linear.combine(row.scores)[0])
    scale = float(np.mean([start.std() for start in starts]))
    data = lightgbm.Dataset(
        np.concatenate(blocks),
        np.concatenate(labels),
        group=[len(block) for block in blocks],
        init_score=np.concatenate(starts) / scale,
    )
    return lightgbm.train(SETTINGS, data, ROUNDS), scale


def scores(rows: Sequence[ScoreRow], linear: Linear, trees: Any = None) -> dict[str, Any]:
    """Map each query to its final scores. ``trees``: booster and scale, or None."""
    found = {}
    for row in rows:
        raw = row.scores
        found[row.query] = linear.combine(raw)[0] if len(raw) else np.zeros(0)
        if trees is not None and len(raw):
            found[row.query] += trees[0].predict(features(raw), num_threads=1) * trees[1]
    return found


def values(table: ScoreTable, qrels: Qrels, final: dict[str, Any], measure: str) -> dict[str, float]:
    """Map each query to its value of the measure."""
    by = RankMeasure.parse(measure)
    result = {}
    for query in judge(table, qrels, by)[0]:
        result[query.query] = 0.0
        if len(query.positions):
            ranks = ranks_of(final[query.query][None, :], query.positions)
            result[query.query] = float(query.values(ranks, by)[0])
    return result


def compared(name: str, linear: dict[str, float], trees: dict[str, float]) -> None:
    """Print both means and p."""
    gains = [trees[query] - linear[query] for query in linear]
    before, after = (math.fsum(one.values()) / len(one) for one in (linear, trees))
    print(
        f"{name}: {before:.4f} linear, {after:.4f} with trees, p {randomization_test(gains):.4f}", flush=True
    )


class Tree:
    """A tree of LightGBM in NumPy.

    Node i >= 0 is inner; node ~i is leaf i. Bit i of an outcome: x <= threshold of node i.
    """

    def __init__(self, root: dict[str, Any]) -> None:
        self.features = np.zeros(LEAVES - 1, np.int64)
        self.thresholds = np.full(LEAVES - 1, np.inf)
        self.children: dict[int, tuple[int, int]] = {}
        self.covers: dict[int, float] = {}
        self.leaves: dict[int, float] = {}
        self.root = self._read(root)

    def _read(self, node: dict[str, Any]) -> int:
        if "split_index" not in node:
            place = ~int(node.get("leaf_index", 0))
            self.leaves[place], self.covers[place] = node["leaf_value"], node.get("leaf_count", 1)
            return place
        place = int(node["split_index"])
        self.features[place], self.thresholds[place] = node["split_feature"], node["threshold"]
        self.covers[place] = node["internal_count"]
        self.children[place] = self._read(node["left_child"]), self._read(node["right_child"])
        return place

    def contributions(self, n_signals: int) -> NDArray[Any]:
        """Exact SHAP values per outcome of all nodes and signal: (2^nodes, S)."""
        used = sorted({int(self.features[node]) for node in self.children})
        subsets, outcomes = np.arange(1 << len(used))[:, None], np.arange(1 << (LEAVES - 1))[None, :]

        def expected(node: int) -> Any:
            """Mean value if only the features of the subset are known: (subsets, outcomes)."""
            if node < 0:
                return self.leaves[node]
            left, right = (expected(child) for child in self.children[node])
            share = self.covers[self.children[node][0]] / self.covers[node]
            known = (subsets >> used.index(int(self.features[node]))) & 1 == 1
            taken = np.where((outcomes >> node) & 1 == 1, left, right)
            return np.where(known, taken, share * left + (1 - share) * right)

        table, count = np.zeros((outcomes.size, n_signals)), len(used)
        means = expected(self.root)
        for place, feature in enumerate(used):
            without = np.flatnonzero((subsets[:, 0] >> place) & 1 == 0)
            sizes = [bin(one).count("1") for one in without.tolist()]
            weights = np.array([math.factorial(k) * math.factorial(count - k - 1) for k in sizes])
            gains = means[without | 1 << place] - means[without]
            table[:, feature % n_signals] += weights @ gains / math.factorial(count)
        return table


def cost(table: ScoreTable, trees: Any) -> None:
    """Compare the evaluation in NumPy with LightGBM, and print its time."""
    begin, n_signals = time.process_time(), len(table.signals)
    every = [Tree(one["tree_structure"]) for one in trees.dump_model()["tree_info"]]
    tables = [tree.contributions(n_signals) for tree in every]
    loaded = time.process_time() - begin
    raw = table.rows[0].scores
    begin = time.process_time()
    rows, bits = features(raw), 1 << np.arange(LEAVES - 1)
    parts = np.zeros((len(rows), n_signals))
    for tree, each in zip(every, tables):
        parts += each[(rows[:, tree.features] <= tree.thresholds) @ bits]
    spent = time.process_time() - begin
    shap = trees.predict(rows, pred_contrib=True)
    by_signal = shap[:, :-1].reshape(len(rows), len(METHODS), n_signals).sum(axis=1)
    print(
        f"NumPy: {loaded * 1000:.0f} ms to load, {spent * 1000:.1f} ms for {len(raw)} candidates with their"
        f" explanation; {np.abs(parts - by_signal).max():.1g} from the SHAP values of LightGBM"
    )


def main() -> None:
    """Tune on dev, measure on test."""
    options = argparse.ArgumentParser(description=__doc__)
    for name in ("workspace", "queries", "dev", "test"):
        options.add_argument(name)
    options.add_argument("--stack", required=True)
    options.add_argument("--measure", default="nDCG")
    given = options.parse_args()
    signals, workspace = given.stack.split(","), Workspace.open(given.workspace)
    queries = [replace(query, categories=()) for query in read_queries(given.queries)]
    tables = []
    for path in (given.dev, given.test):
        judged = JudgedQueries(queries=queries, qrels=read_qrels(path))
        stack = Stack(Linear(tuple(signals), (1.0,) * len(signals)), signals[0])
        experiment = Experiment.of_stacks(workspace, [stack], judged)
        table, _ = experiment.table(protocol=Protocol(1000), signals=signals, first_stage=signals[0])
        tables.append((table, experiment.qrels))
    dev, qrels = tables[0]
    how = {"first_stage": signals[0], "measure": given.measure}
    linear = tune(dev, qrels, **how)
    tuned = cross_validate(dev, qrels, linear, folds=FOLDS, **how)
    ids, rows = list(tuned.per_query), {row.query: row for row in dev.rows}
    dealt = np.random.default_rng(0).permutation(len(ids)).tolist()  # the same folds as cross_validate
    final = {}
    for number, fold in enumerate(tuned.folds):
        inside = {ids[index] for place, index in enumerate(dealt) if place % FOLDS == number}
        weights = Stack.parse(fold.stack, normalization=fold.normalization).combiner
        trees = fit([rows[q] for q in ids if q in rows and q not in inside], qrels, weights)
        final |= scores([rows[q] for q in ids if q in rows and q in inside], weights, trees)
    name = f"dev {given.measure}, {len(ids)} queries, cross-validated"
    compared(name, dict(tuned.per_query), values(dev, qrels, final, given.measure))
    trees = fit([rows[q] for q in ids if q in rows], qrels, linear.combiner)
    table, qrels = tables[1]
    for measure in MEASURES:
        both = [scores(table.rows, linear.combiner, one) for one in (None, trees)]
        compared(f"test {measure}", *(values(table, qrels, one, measure) for one in both))
    cost(table, trees[0])


if __name__ == "__main__":
    main()
