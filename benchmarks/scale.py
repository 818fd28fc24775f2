"""When first-stage scores of another scale do harm, and what share of searches the service counts as such.

    python benchmarks/scale.py DATA/wikispeedia WORKSPACE [--stack bm25,text,meta]

WORKSPACE holds the collection, with the rankers of the stack trained. Weights are tuned on dev over 100
candidates, of raw scores and of z-scores; nDCG@10 of test queries without categories. First the first stage's
scores times a number, then queries of a few of their words, drawn at random. p: paired randomization test
against the first stage's own order.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"  # before NumPy is imported: one core

import numpy as np

from rerank import Qrels, Query, Stack, Workspace, tune
from rerank.evaluation.measures import evaluate_runs
from rerank.evaluation.significance import compare
from rerank.formats import read_qrels, read_queries
from rerank.order import rank
from rerank.stack.scale import Scale, strange

BOOSTS = (1, 0.5, 0.3, 0.2, 0.1, 0.05, 2, 5, 20)
WORDS = (0, 5, 3, 2)
MEASURE, DEPTH = "nDCG@10", 100


def rows(workspace: Workspace, stacks: dict[str, Stack], queries: Sequence[Query], qrels: Qrels) -> None:
    """Print a row for each boost of the whole queries, and for each number of words."""
    scale = Scale.recorded(stacks["none"].tuned)
    assert scale is not None
    pipeline = workspace.pipeline(stacks["none"].signals)
    for words in WORDS:
        found = []
        for query in queries:
            split = query.text.split()
            some = random.Random(query.id).sample(split, min(words or len(split), len(split)))
            asked = replace(query, text=" ".join(some) if words else query.text)
            ranking = pipeline.answer(asked, stacks["none"]).ranking
            ids = [""] * len(ranking.ids)
            for place, row in enumerate(ranking.order.tolist()):
                ids[row] = ranking.ids[place]
            found.append((query.id, ids, ranking.raw))
        for boost in BOOSTS if not words else (1,):
            runs: dict[str, dict[str, list[str]]] = {name: {} for name in ("own", *stacks)}
            others = 0
            for id, ids, raw in found:
                scores = np.array(raw, np.float64)
                first = stacks["none"].signals.index(stacks["none"].first_stage)
                scores[:, first] *= boost
                others += bool(len(ids)) and not scale.fits(float(scores[:, first].max()))
                by = {"own": scores[:, first]} | {name: one.score(scores)[0] for name, one in stacks.items()}
                for name, values in by.items():
                    runs[name][id] = [ids[row] for row in rank(ids, values)[:10]]
            evaluation = evaluate_runs(runs, qrels, [MEASURE])
            p = {one.stack: one.p for one in compare(evaluation, "own", seed=0)}
            cells = [f"{evaluation.mean('own', MEASURE):.4f}"]
            cells += [f"{evaluation.mean(name, MEASURE):.4f} (p {p[name]:.2g})" for name in stacks]
            said = "warned" if strange(len(found) - others, others) else ""
            what = f"{words} words" if words else f"times {boost:g}"
            print(f"| {what} | {' | '.join(cells)} | {others / len(found):.2f} | {said} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("workspace", type=Path)
    parser.add_argument("--stack", default="bm25,text,meta")
    given = parser.parse_args()
    workspace = Workspace.open(given.workspace)
    queries = [replace(query, categories=()) for query in read_queries(given.data / "queries.jsonl.gz")]
    dev, test = (read_qrels(given.data / "qrels" / f"{name}.tsv") for name in ("dev", "test"))
    stacks = {}
    with tempfile.TemporaryDirectory() as folder:
        for method in ("none", "z-score"):
            tuned = tune(
                workspace,
                given.stack,
                queries=queries,
                qrels=dev,
                measure=MEASURE,
                depth=DEPTH,
                normalisations=(method,),
                kinds=False,
                out=Path(folder) / f"{method}.json",
            ).tuned.stack
            inferred = tuned.cases.get("inferred", tuned)
            stacks[method] = replace(inferred, cases={}, depth=DEPTH, tuned=tuned.tuned)
            print(f"{method}: {stacks[method]}", flush=True)
    print(
        "| searches | own order | raw | z-scores | other scale | raw |\n| --- | --- | --- | --- | --- | --- |"
    )
    rows(workspace, stacks, [query for query in queries if query.id in test], test)


if __name__ == "__main__":
    main()
