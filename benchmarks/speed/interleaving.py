"""Measure what an experiment adds to a search: two rankings and their draft.

    python benchmarks/speed/interleaving.py WORKSPACE QUERIES --a "first stage" --b bm25,text,meta

WORKSPACE has the stacks, for example ``.rerank-demo``. Times are medians of milliseconds of processor time.
The candidates are retrieved and scored once, outside of the measured part. The first figure has two rankings,
the draft, and the first 10 hits. The second one is the part that a search by B does not have.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median

from rerank import Document, Query, Workspace
from rerank.formats import read_queries
from rerank.scoring.candidate_pool import CandidatePool, rank_pool
from rerank.scoring.scorer import ReadDocuments
from rerank.scoring.timer import StageTimer
from rerank.service.experiment import Experiment
from rerank.stack.ranking import Ranking
from rerank.stack.stack import Stack
from rerank.workspace.config_file import ExperimentSettings

QUERIES, REPEATS, PAGE = 50, 20, 10


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("workspace")
    options.add_argument("queries", type=Path)
    options.add_argument("--a", default="first stage")
    options.add_argument("--b", required=True)
    args = options.parse_args()
    workspace = Workspace.open(args.workspace)
    experiment = Experiment.load(ExperimentSettings("speed", args.a, args.b, 1.0), workspace.stack)
    queries = list(islice(read_queries(args.queries), QUERIES))
    for depth in (100, 1000):
        both: list[float] = []
        added: list[float] = []
        for query in queries:
            coins = experiment.coins("client", query.text)
            assert coins is not None
            joint = pool_of(workspace, replace(experiment.joint, depth=depth), query)
            single = pool_of(workspace, replace(experiment.arms[1], depth=depth), query)
            both.append(milliseconds(partial(experiment.rank, coins, joint, StageTimer(), read_nothing)))
            rank_b = partial(rank_pool, experiment.arms[1], single, StageTimer(), read_nothing)
            added.append(both[-1] - milliseconds(rank_b))
        times = f"both rankings {median(both):.2f} ms, added {median(added):.2f} ms"
        print(f"at most {depth:,} candidates: {times}, at most {max(added):.2f} ms", flush=True)


def pool_of(workspace: Workspace, stack: Stack, query: Query) -> CandidatePool:
    pools: list[CandidatePool] = []

    def keep(stack: Stack, pool: CandidatePool, timer: StageTimer, read_documents: ReadDocuments) -> Ranking:
        pools.append(pool)
        return rank_pool(stack, pool, timer, read_documents)

    replace(workspace.pipeline(stack.signals), rank=keep).answer(query, stack)
    return pools[0]


def milliseconds(rank: Callable[[], Ranking]) -> float:
    """Return the processor time of a ranking and its first page: the least of some repeats, without noise."""
    times: list[float] = []
    for _ in range(REPEATS):
        begin = time.process_time()
        rank().top(PAGE)
        times.append(time.process_time() - begin)
    return 1000 * min(times)


def read_nothing(ids: Sequence[str]) -> list[Document | None]:
    """Return no documents: the stacks have no second phase."""
    return [None] * len(ids)


if __name__ == "__main__":
    main()
