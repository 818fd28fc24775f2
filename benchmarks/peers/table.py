"""One table of all runs in a folder: measures, Holm-corrected p against rerank auto, and costs.

    python benchmarks/peers/table.py OUT/cf [OUT/cacm ...]

p: paired randomization test of nDCG@10 on the test queries, corrected over the peers of a collection.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import ir_measures
import numpy as np
from collection import DEPTH, Collection

from rerank.evaluation.significance import holm, randomization_test

MEASURES = [ir_measures.nDCG @ 10, ir_measures.nDCG, ir_measures.RR, ir_measures.R @ 100]
OURS = "rerank-auto"
COSTS = {
    "p50_ms": "p50 ms",
    "p99_ms": "p99 ms",
    "memory_mib": "MiB",
    "index_bytes": "index bytes",
    "training_s": "training s",
    "lines": "lines",
}


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


def table(folder: str, latencies: bool) -> str:
    """Return the table of a folder as Markdown, the best nDCG@10 first."""
    collection = Collection.load(folder)
    runs = {}
    for path in sorted((Path(folder) / "runs").glob("*.json")):
        facts = json.loads(path.read_text())
        runs[facts["peer"]] = facts, values(collection, facts.pop("run"))
    queries = list(collection.qrels["test"])
    first = {name: np.array([v[MEASURES[0]][query] for query in queries]) for name, (_, v) in runs.items()}
    others = [name for name in runs if not name.startswith("rerank-")]
    p: dict[str, float] = {}
    if OURS in runs:
        p = dict(zip(others, holm([randomization_test(first[OURS] - first[name]) for name in others])))
    costs = COSTS if latencies else {key: title for key, title in COSTS.items() if key[-3:] != "_ms"}
    lines = [
        f"\n{Path(folder).name}: {len(queries):,} test queries, {len(collection.ids):,} documents\n",
        "| run | nDCG@10 | p | nDCG | RR | R@100 | " + " | ".join(costs.values()) + " |",
        "| --- |" + " --- |" * (5 + len(costs)),
    ]
    for name in sorted(runs, key=lambda name: -first[name].mean()):
        facts, measured = runs[name]
        reached, *rest = (f"{np.mean(list(measured[m].values())):.4f}" for m in MEASURES)
        cells = [name, reached, f"{p[name]:.4f}" if name in p else "", *rest, *(facts[key] for key in costs)]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def main() -> None:
    """Print the table of each folder."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("folders", nargs="+")
    options.add_argument("--latencies", action="store_true", help="show them: the machine was idle")
    args = options.parse_args()
    for folder in args.folders:
        print(table(folder, args.latencies))


if __name__ == "__main__":
    main()
