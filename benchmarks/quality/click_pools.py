"""Why a stack that is tuned on few judged queries loses a part of its gain, by resampled queries and pools.

    python benchmarks/quality/click_pools.py DATA/debian --lang it --documents 1200 --words 60 \\
        --sessions 12000 --epochs 3 --users pbm,cascade,trust
    python benchmarks/quality/click_pools.py DATA/wikispeedia --documents 800 --sessions 8000 --epochs 3

Trains rankers on simulated clicks (simulated_clicks.py), scores the tuning and the test queries once,
and then tunes on many random choices of queries. Each line is a way to choose queries and hits, with the
share of the gain of true judgments on the test queries: mean, and tenth percentile of the choices.

- ``all``: all queries of the tuning part, all judgments.
- ``30``: 30 random queries, all judgments. ``30, all ranks``: tuned by nDCG without a cut-off.
- ``mix``: a pool of 50 queries, with the best ten hits of bm25 and of equal weights; 60 % of them tune.
- ``separate``: the same with the hits of bm25 and of the rankers.
- ``separate, differing first``: the queries that differ most are among the 60 %.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from simulated_clicks import MEASURE, Experiment, read_collection, simulate

from rerank import Qrels, Workspace
from rerank.documents.text import query_key
from rerank.evaluation.protocols import Protocol
from rerank.evaluation.ranks import RankMeasure
from rerank.formats import read_qrels, read_queries
from rerank.judging.clicks import judge_clicks
from rerank.judging.pool import difference
from rerank.stack.linear import Linear
from rerank.stack.normalize import normalize
from rerank.stack.stack import Stack
from rerank.tuning.measure import judge, values_by_query
from rerank.tuning.score_table import ScoreRow, ScoreTable
from rerank.tuning.tune import TuningResult, tune
from rerank.workflows.experiment import Experiment as Scoring
from rerank.workflows.experiment import JudgedQueries

SIGNALS = ("bm25", "text", "meta")
MIX = ((1.0, 0.0, 0.0), (1.0, 1.0, 1.0))
SEPARATE = ((1.0, 0.0, 0.0), (0.0, 1.0, 1.0))
DEPTH, TOP, POOLED, TUNED, DRAWS, UNIVERSE = 1000, 10, 50, 30, 40, 120


class Tables:
    """Scores of the tuning and the test queries by trained rankers."""

    def __init__(self, experiment: Experiment, dev: list[str]) -> None:
        start = Stack(Linear(SIGNALS, (1.0,) * len(SIGNALS)), "bm25", DEPTH)
        self.qrels = experiment.collection.qrels
        tables = []
        for queries in (experiment.collection.logged, experiment.collection.test):
            judged = JudgedQueries.of(queries, experiment.collection.part(queries))
            scoring = Scoring.of_stacks(experiment.workspace, [start], judged)
            table, _ = scoring.table(protocol=Protocol(DEPTH), signals=SIGNALS, first_stage="bm25")
            tables.append(table)
        self.rows = {row.query: row for row in tables[0].rows}
        self.dev = [query for query in dev if query in self.rows]
        self.measure = RankMeasure.parse(MEASURE, DEPTH)
        self.test, _ = judge(tables[1], experiment.test, self.measure)

    def tune(self, qrels: Qrels, measure: str = MEASURE) -> TuningResult:
        rows = [ScoreRow(query, self.rows[query].ids, self.rows[query].scores) for query in qrels]
        table = ScoreTable(SIGNALS, tuple(rows))
        return tune(table, qrels, first_stage="bm25", measure=measure, cut=DEPTH)

    def test_value(self, combiner: Linear) -> float:
        return float(np.mean([*values_by_query(self.test, combiner, self.measure).values()]))

    def hits(self, query: str, weights: tuple[float, ...]) -> list[str]:
        row = self.rows[query]
        scores = normalize(row.scores, "min-max", [], SIGNALS) @ np.array(weights)
        return [row.ids[place] for place in np.argsort(-scores, kind="stable")[:TOP]]

    def judged(self, queries: list[str]) -> Qrels:
        return Qrels({query: self.qrels[query] for query in queries})

    def pooled(self, counts: dict[str, float], lists: tuple, differing_first: bool, seed: int) -> Qrels:
        """Return the judged tuning queries of a pool. counts: searches of each query."""
        draw = random.Random(seed)
        universe = draw.sample(self.dev, min(UNIVERSE, len(self.dev)))
        rankings = {query: [self.hits(query, weights) for weights in lists] for query in universe}
        frequent = sorted(universe, key=lambda query: -counts.get(query, 0))[: POOLED // 2]
        rest = [query for query in universe if query not in frequent]
        rest.sort(key=lambda query: -difference(rankings[query]))
        differing = rest[: POOLED - len(frequent)]
        chosen = draw.sample([*frequent, *differing], len(frequent) + len(differing))
        if differing_first:
            chosen.sort(key=lambda query: query not in differing)
        grades = {}
        for query in chosen:
            pool = set().union(*rankings[query])
            grades[query] = {document: self.qrels[query].get(document, 0) for document in pool}
        qrels = Qrels(grades)
        usable = [query for query in chosen if qrels.relevant(query)]
        return Qrels({query: grades[query] for query in usable[: round(len(usable) * TUNED / POOLED)]})

    def tune_on_pool(
        self, counts: dict[str, float], lists: tuple, differing_first: bool, seed: int
    ) -> TuningResult:
        return self.tune(self.pooled(counts, lists, differing_first, seed))


def show(name: str, tables: Tables, bm25: float, gain: float, draw: Callable[[int], TuningResult]) -> None:
    shares = [(tables.test_value(draw(seed).combiner) - bm25) / gain for seed in range(DRAWS)]
    print(f"  {name:28} {np.mean(shares):5.0%} {np.quantile(shares, 0.1):5.0%}", flush=True)


def measure_users(tables: Tables, counts: dict[str, float], bm25: float, gain: float) -> None:
    def random_queries(seed: int) -> Qrels:
        return tables.judged(random.Random(seed).sample(tables.dev, TUNED))

    share = (tables.test_value(tables.tune(tables.judged(tables.dev)).combiner) - bm25) / gain
    print(f"  {'all':28} {share:5.0%}", flush=True)
    show("30", tables, bm25, gain, lambda seed: tables.tune(random_queries(seed)))
    show("30, all ranks", tables, bm25, gain, lambda seed: tables.tune(random_queries(seed), "nDCG"))
    for name, lists, first in (
        ("mix", MIX, False),
        ("mix, differing first", MIX, True),
        ("separate", SEPARATE, False),
        ("separate, differing first", SEPARATE, True),
    ):
        show(name, tables, bm25, gain, partial(tables.tune_on_pool, counts, lists, first))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, metavar="DATA/COLLECTION")
    parser.add_argument("--lang", default="en")
    parser.add_argument("--users", default="pbm,cascade,trust")
    parser.add_argument("--documents", type=int, default=2400)
    parser.add_argument("--words", type=int, default=120)
    parser.add_argument("--sessions", type=int, default=20_000)
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        collection = read_collection(options.data, options.lang, options.documents, options.words)
        workspace = Workspace.create(folder / "workspace", lang=options.lang)
        workspace.engine.write(collection.documents)
        experiment = Experiment(collection, workspace, options.epochs)
        place = len(collection.logged) // 5
        dev, logged = collection.part(collection.logged[:place]), collection.part(collection.logged[place:])
        experiment.train(collection.logged, logged, dev)
        tables = Tables(experiment, sorted(dev))
        bm25 = float(experiment.bm25.mean())
        gain = tables.test_value(tables.tune(dev).combiner) - bm25
        print(f"{options.data.name}: bm25 {bm25:.4f}, gain of true judgments {gain:+.4f}", flush=True)
        for users in options.users.split(","):
            print(users, flush=True)
            log = folder / f"{users}.tsv"
            simulate(workspace, collection, users, options.sessions, log)
            judge_clicks([log], folder / users, None, workspace)
            queries = experiment.named(read_queries(folder / users / "queries.jsonl"))
            clicks_dev = read_qrels(folder / users / "dev.tsv")
            experiment.train(queries, read_qrels(folder / users / "train.tsv"), clicks_dev)
            ids = {query.id: experiment.by_key[query_key(query.text)].id for query in queries}
            counts = {ids[query.id]: float(query.params.get("count", 0)) for query in queries}
            measure_users(Tables(experiment, [ids[query] for query in clicks_dev]), counts, bm25, gain)
    return 0


if __name__ == "__main__":
    sys.exit(main())
