"""One table of all runs in a folder: measures, Holm-corrected p against rerank's best run, and costs.

    python benchmarks/peers/table.py OUT/cf [OUT/cacm ...]

p: paired randomization test of nDCG@10 on the test queries, corrected over the peers of a collection.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import ir_measures
import numpy as np
from collection import DEPTH, Collection

from rerank.evaluation.significance import holm, randomization_test

MEASURES = [ir_measures.nDCG @ 10, ir_measures.nDCG, ir_measures.RR, ir_measures.R @ 100]
OURS = "rerank-"


def values(collection: Collection, run: dict[str, dict[str, float]]) -> dict[Any, dict[str, float]]:
    """Measure -> query -> value. Every run is cut alike."""
    qrels = collection.qrels["test"]
    cut = {
        query: dict(sorted(run.get(query, {}).items(), key=lambda one: (-one[1], one[0]))[:DEPTH])
        for query in qrels
    }
    found: dict[Any, dict[str, float]] = {measure: dict.fromkeys(qrels, 0.0) for measure in MEASURES}
    for one in ir_measures.iter_calc(MEASURES, qrels, cut):
        found[one.measure][one.query_id] = one.value
    return found


def main() -> None:
    """Print the table of each folder as Markdown."""
    for folder in sys.argv[1:]:
        collection = Collection.load(folder)
        runs = {}
        for path in sorted((Path(folder) / "runs").glob("*.json")):
            facts = json.loads(path.read_text())
            runs[facts["peer"]] = facts, values(collection, facts.pop("run"))
        main_measure = MEASURES[0]
        mean = {name: float(np.mean(list(v[main_measure].values()))) for name, (_, v) in runs.items()}
        ours = max(
            (name for name in runs if name.startswith(OURS)), key=lambda name: mean[name], default=None
        )
        others = [name for name in runs if not name.startswith(OURS)]
        p: dict[str, float] = {}
        if ours:
            queries = list(collection.qrels["test"])

            def of(name: str) -> np.ndarray:
                return np.array([runs[name][1][main_measure][query] for query in queries])  # noqa: B023

            tested = [randomization_test(of(ours) - of(name)) for name in others]
            p = dict(zip(others, holm(tested)))
        count = len(collection.qrels["test"])
        print(f"\n{Path(folder).name}: {count:,} test queries, {len(collection.ids):,} documents\n")
        costs = {
            "p50 ms": "p50_ms",
            "p99 ms": "p99_ms",
            "MiB": "memory_mib",
            "index bytes": "index_bytes",
            "training s": "training_s",
            "lines": "lines",
        }
        print("| run | nDCG@10 | p | nDCG | RR | R@100 | " + " | ".join(costs) + " |")
        print("| --- |" + " --- |" * (5 + len(costs)))
        for name in sorted(runs, key=lambda name: -mean[name]):
            facts, measured = runs[name]
            first, *rest = (f"{np.mean(list(measured[m].values())):.4f}" for m in MEASURES)
            cells = [name, first, f"{p[name]:.4f}" if name in p else "", *rest]
            print("| " + " | ".join(map(str, cells + [facts[key] for key in costs.values()])) + " |")


if __name__ == "__main__":
    main()
