"""Measure what an experiment adds to a search: two rankings and their draft.

    python benchmarks/speed/interleaving.py WORKSPACE QUERIES --a "first stage" --b bm25,text,meta

WORKSPACE has the stacks, for example ``.rerank-demo``. Times are medians of milliseconds of processor time.
The candidates are retrieved and scored once, outside of the measured part.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path

from rerank import Workspace
from rerank.config_file import ExperimentSettings
from rerank.formats import read_queries
from rerank.scoring.scorer import StageTimer
from rerank.service.experiment import Experiment

QUERIES, REPEATS = 50, 20


def main() -> None:
    """Print the added time for 100 and for 1,000 candidates."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("workspace")
    options.add_argument("queries", type=Path)
    options.add_argument("--a", default="first stage")
    options.add_argument("--b", required=True)
    args = options.parse_args()
    workspace = Workspace.open(args.workspace)
    experiment = Experiment.load(ExperimentSettings("speed", args.a, args.b, 1.0), workspace.stack)
    queries = list(islice(read_queries(args.queries), QUERIES))
    pipeline = workspace.pipeline(experiment.joint.signals)
    for depth in (100, 1000):
        joint = replace(experiment.joint, depth=depth)
        times: list[float] = []
        for query in queries:
            answer = pipeline.answer(query, joint)
            coins = experiment.coins("client", query.text)
            assert coins is not None
            begin = time.process_time()
            for _ in range(REPEATS):
                experiment.rank_answer(coins, answer, StageTimer(), workspace.engine.get)
            times.append(1000 * (time.process_time() - begin) / REPEATS)
        median = statistics.median(times)
        print(f"at most {depth:,} candidates: {median:.2f} ms added, at most {max(times):.2f} ms", flush=True)


if __name__ == "__main__":
    main()
