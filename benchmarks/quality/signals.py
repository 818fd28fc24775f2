"""Measure each signal of `rerank auto`: only it, and the stack without it.

    python benchmarks/quality/signals.py OUT/cf [OUT/cacm ...]  # after peers/ours.py; writes the tables
    python benchmarks/quality/signals.py --check                     # exit code 1 if RESULTS.md is outdated

nDCG@10 on test. *Only it*: the signal orders the candidates of the first stage and, if it retrieves, 200
that it finds. *Without it*: the weights of the other signals are tuned on dev. p: paired randomization tests
against the stack of auto, Holm's correction. *Training*: processor time, with the measurement on dev.
*Query*: encode a query and score 1,000 documents, on one core.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from dataclasses import replace
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"  # before NumPy is imported: one core
sys.path[:0] = [str(Path(__file__).parent / "peers"), str(Path(__file__).resolve().parents[2])]

import numpy as np
from table import RESULTS

from benchmarks.common.pages import filled, markdown_table, page_options, update
from benchmarks.common.timing import seconds_of
from rerank import evaluate, tune
from rerank.formats import read_queries
from rerank.reports.evaluation import EvaluationReport
from rerank.stack.stack import Stack
from rerank.workspace.workspace import Workspace

PAGE = Path(__file__).parent / "RESULTS.md"
FOUND = 200
MEASURE = "nDCG@10"
HEADS = ("weight", "only it", "stack without it", "p", "training s", "query ms", "bytes per document")


def costs(folder: Path, name: str) -> dict[str, Any]:
    """Return seconds of training, milliseconds per query, and bytes per document."""
    workspace = Workspace.open(folder / "workspace")
    ranker, run = workspace.ranker(name), json.loads((folder / "runs/rerank-auto.json").read_text())
    features = ranker.encode_documents(list(islice(workspace.engine.documents(), 50)))
    thousand = np.resize(features, (1000, *features.shape[1:]))
    times = [
        seconds_of(lambda query=query: ranker.score(ranker.encode_query(query), thousand))
        for query in islice(read_queries(str(folder / "queries.jsonl")), 100)
    ]
    return {
        "training_s": run["settings"].get("seconds", {}).get(name),
        "query_ms": round(1000 * median(times), 2),
        "bytes": features.nbytes // len(features),
    }


def value(report: EvaluationReport, stack: Stack) -> tuple[float, float | None]:
    """Return the measure of a stack, and p against the baseline."""
    label = next(label for label, measured_stack in report.stacks.items() if measured_stack == stack)
    (row,) = [row for row in report.results if row.stack == label]
    p_by_stack = {test.stack: test.p_holm for test in report.comparisons if test.measure == MEASURE}
    return row.measures[MEASURE], p_by_stack.get(label)


def measured(folder: Path) -> dict[str, Any]:
    workspace = Workspace.open(folder / "workspace")
    whole = workspace.stack(workspace.default_stack)
    signals, first = whole.tuned_for, whole.first_stage
    rankers = [name for name in workspace.trained() if name in signals]
    retrievers = [name for name in rankers if workspace.ranker(name).retrieves]
    queries = folder / "queries.jsonl"
    dev, test = ({"queries": queries, "qrels": folder / f"qrels/{split}.tsv"} for split in ("dev", "test"))
    alone: dict[str, Stack] = {}
    without: dict[str, Stack] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name in rankers:
            retrieve = (first, f"{name}:{FOUND}") if name in retrievers else ()
            alone[name] = replace(Stack.parse(name, first_stage=first), retrieve=retrieve)
            others = [f"{other}:{FOUND}" for other in retrievers if other != name] if whole.retrieve else []
            remaining = ",".join(other for other in signals if other != name)
            settings = {"retrieve": [first, *others] if others else (), "out": f"{scratch}/{name}.json"}
            without[name] = tune(workspace, remaining, **dev, **settings).stack
    stacks = [workspace.stack(first), *alone.values(), *without.values()]
    report = evaluate(workspace, stacks, baseline=whole, measures=[MEASURE], **test)
    rows = []
    for name in rankers:
        (value_alone, _), (rest, p) = value(report, alone[name]), value(report, without[name])
        weight = whole.combiner.weights_by_signal().get(name, 0.0)
        figures = {"signal": name, "weight": weight, "alone": value_alone, "without": rest, "p": p}
        rows.append({**figures, **costs(folder, name)})
    first_value, p = value(report, workspace.stack(first))
    return {"first_stage": first, "first": first_value, "p": p, "auto": value(report, whole)[0], "rows": rows}


def tables() -> str:
    parts = []
    for path in sorted((RESULTS / "signals").glob("*.json")):
        figures, name = json.loads(path.read_text()), path.stem
        title = f"{name}: `{figures['first_stage']}` {figures['first']:.4f}, `auto` {figures['auto']:.4f}"
        rows: list[list[str]] = []
        for row in figures["rows"]:
            cells = [row["signal"], f"{row['weight']:.2f}", f"{row['alone']:.4f}", f"{row['without']:.4f}"]
            cells.append("" if row["p"] is None else f"{row['p']:.4f}")
            cells.append("" if row["training_s"] is None else f"{row['training_s']:.0f}")
            cells += [f"{row['query_ms']:.1f}", f"{row['bytes']:,}"]
            rows.append(cells)
        parts.append(markdown_table([title, *HEADS], rows))
    return "\n\n".join(parts)


def main() -> int:
    options = page_options(__doc__)
    options.add_argument("folders", nargs="*", type=Path, help="folders of peers/prepare.py")
    args = options.parse_args()
    for folder in args.folders:
        path = RESULTS / f"signals/{folder.name}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(measured(folder), indent=1) + "\n")
    return update(
        {PAGE: filled(PAGE, {"signals": tables()})}, "benchmarks/quality/signals.py", check=args.check
    )


if __name__ == "__main__":
    sys.exit(main())
