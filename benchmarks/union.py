"""Measure the cost of a ranker as an additional retriever, and its recall of the nearest documents.

    python benchmarks/union.py WORKSPACE QUERIES --stack tfidf,s2net --retrieve tfidf,s2net
    python benchmarks/union.py --rows 63436,500000,2000000

The first command runs every query with only the first stage and with all retrievers, in turn and several
times. It prints the medians of both times and of their ratio. It prints the same for the best time of each
query, which other load affects least. Finally, it prints the share of the exact nearest documents (by
NumPy, over all) that the engine finds. `rerank evaluate` prints the effect on the ranking.

The second command times the exact search of the local engine over random vectors of 200 fp16 numbers, on
one core. It sends single queries, and 64 queries together.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import replace

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"  # before NumPy is imported: one core

import numpy as np

from rerank.arrays import passage_cosines
from rerank.engines.base import SearchRequest, VectorQuery
from rerank.engines.local.nearest import nearest
from rerank.formats import read_queries
from rerank.stack.parse import retriever_depths
from rerank.stack.signals import lexical
from rerank.workspace import Workspace

WIDTH, DEPTH = 200, 1000


def milliseconds(action: Callable[[], object]) -> tuple[float, float]:
    """Wall-clock and CPU milliseconds of ``action``; CPU time is over all threads."""
    clock, cpu = time.perf_counter(), time.process_time()
    action()
    return 1000 * (time.perf_counter() - clock), 1000 * (time.process_time() - cpu)


def cost(options: argparse.Namespace) -> None:
    """Print the time of a query and the recall of the nearest documents."""
    workspace = Workspace.open(options.workspace)
    retrieve = tuple(options.retrieve.split(","))
    plain = replace(workspace.stack(options.stack), retrieve=(), depth=options.depth)
    union = replace(plain, retrieve=retrieve)
    pipeline = workspace.pipeline(plain.signals, retrieve=retrieve)
    queries = list(read_queries(options.queries))
    queries = queries[:: max(1, len(queries) // options.count)][: options.count]
    spent = np.zeros((options.repeat, len(queries), 2, 2))
    candidates = np.zeros((len(queries), 2))
    for query in queries[:20]:
        for stack in (plain, union):
            pipeline.answer(query, stack)
    for once in spent:
        for i, query in enumerate(queries):
            for j, stack in enumerate((plain, union)):
                once[i, j] = milliseconds(lambda query=query, stack=stack: pipeline.answer(query, stack))
    for i, query in enumerate(queries):
        for j, stack in enumerate((plain, union)):
            candidates[i, j] = len(pipeline.answer(query, stack).ranking)
    print(f"{len(pipeline.engine):,} documents, depth {options.depth}, {plain}")
    for j, name in enumerate((plain.first_stage, ",".join(retrieve))):
        clock, cpu = np.median(spent[:, :, j], axis=(0, 1))
        print(f"{name}: p50 {clock:.2f} ms ({cpu:.2f} of CPU), {candidates[:, j].mean():.0f} candidates")
    ratios = np.median(spent[:, :, 1] / spent[:, :, 0], axis=(0, 1))
    print(f"median of a query's ratios {ratios[0]:.2f}, of CPU {ratios[1]:.2f}")
    best = np.median(spent.min(axis=0), axis=0)
    print(
        f"undisturbed (best of {options.repeat} of each query): p50 {best[0, 0]:.2f} and {best[1, 0]:.2f} ms,"
        f" ratio {best[1, 0] / best[0, 0]:.2f}, of CPU {best[1, 1] / best[0, 1]:.2f}"
    )

    engine, first = pipeline.engine, plain.first_stage
    for name, own in retriever_depths(retrieve).items():
        if lexical([name]):
            continue
        depth = own or options.depth
        ranker = pipeline.rankers[name]
        everything = engine.ids()
        parts = [
            engine.find(
                SearchRequest(
                    "", ids=everything[i : i + 5000], first_stage=first, features={name: ranker.version}
                )
            )
            for i in range(0, len(everything), 5000)
        ]
        matrix = np.concatenate([part.features[name] for part in parts])
        ids = [id for part in parts for id in part.ids]
        shares = []
        for query in queries[:100]:
            vector = ranker.encode_query(query)
            if ranker.passages:
                products = passage_cosines(vector, matrix, ranker.passages).max(axis=1)
            else:
                products = matrix.astype(np.float32) @ vector
            best = np.argsort(-products, kind="stable")[:depth]
            wanted = {ids[i] for i in best.tolist() if products[i] > 0}
            near = VectorQuery(name, ranker.version, vector, depth, ranker.passages)
            found = engine.find(
                SearchRequest(query.text, first_stage=first, depth=options.depth, retrievers=[near])
            )
            if wanted:  # empty if no term of the query is in the vocabulary
                shares.append(len(wanted & set(found.ids)) / len(wanted))
        print(f"{name}: {np.mean(shares):.4f} of the {depth} nearest found")


def synthetic(rows: int) -> None:
    """Print the time of only the exact search, over random vectors."""
    rng = np.random.default_rng(0)
    matrix = np.empty((rows, WIDTH), np.float16)
    for begin in range(0, rows, 100_000):
        block = rng.normal(size=(min(100_000, rows - begin), WIDTH)).astype(np.float32)
        matrix[begin : begin + 100_000] = block / np.linalg.norm(block, axis=1, keepdims=True)
    queries = rng.normal(size=(64, WIDTH)).astype(np.float32)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    none = np.empty(0, np.int64)

    def search(some: np.ndarray) -> list[np.ndarray]:
        return list(nearest(matrix, some, DEPTH, 0, none, lambda found: [f"{r:09}" for r in found.tolist()]))

    one = np.median([milliseconds(lambda i=i: search(queries[i : i + 1]))[0] for i in range(20)])
    many = milliseconds(lambda: search(queries))[0] / len(queries)
    print(
        f"{rows:,} rows: {one:.2f} ms a query, {many:.2f} ms when 64 are asked together",
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workspace", nargs="?")
    parser.add_argument("queries", nargs="?")
    parser.add_argument("--stack", default="tfidf*0.4+s2net*0.6")
    parser.add_argument("--retrieve", default="tfidf,s2net")
    parser.add_argument("--depth", type=int, default=DEPTH)
    parser.add_argument("--count", type=int, default=300, help="Number of queries. Default: 300.")
    parser.add_argument("--repeat", type=int, default=7, help="Runs per query. Default: 7.")
    parser.add_argument("--rows", help="Sizes of synthetic collections, for the second command.")
    options = parser.parse_args()
    if options.rows:
        for rows in options.rows.split(","):
            synthetic(int(rows))
    else:
        cost(options)


if __name__ == "__main__":
    main()
