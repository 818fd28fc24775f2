"""Compare exact and approximate search for the nearest documents.

    python benchmarks/speed/nearest.py WORKSPACE s2net --documents 63436 1000000 2000000

The features are those of a trained ranker with one vector per document. Larger collections are copies of them
with noise. A query is a stored vector with noise. Times are milliseconds of processor time on one core.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np
from numpy.typing import NDArray

from benchmarks.common.processes import size_of
from benchmarks.common.vectors import Vectors, add_noise, grow_vectors, stored_vectors
from rerank import Workspace
from rerank.engines.approximate import ApproximateIndex, find_index, open_index
from rerank.engines.nearest import nearest

QUERIES = 50
DEPTHS = (100, 1000)

Rows = NDArray[np.int64]
Search = Callable[[NDArray[np.float32], int], Rows]


def ids_of(rows: Rows) -> list[str]:
    return [f"{row:010}" for row in rows.tolist()]


def report(name: str, search: Search, queries: NDArray[np.float32], exact: dict[int, list[Rows]]) -> None:
    """Print the time of a search and its recall of the exact results, for each depth."""
    for depth in DEPTHS:
        begin = time.process_time()
        results = [search(query, depth) for query in queries]
        milliseconds = 1000 * (time.process_time() - begin) / len(queries)
        recalls = [np.isin(expected, rows).mean() for expected, rows in zip(exact[depth], results)]
        print(f"  {name}, depth {depth}: {milliseconds:.2f} ms, recall {np.mean(recalls):.4f}", flush=True)


def measure(vectors: Vectors, queries: NDArray[np.float32]) -> None:
    none_excluded = np.empty(0, np.int64)

    def search_exactly(query: NDArray[np.float32], depth: int) -> Rows:
        (rows,) = nearest(vectors, query[None], depth, 0, none_excluded, ids_of)
        return rows

    exact = {depth: [search_exactly(query, depth) for query in queries] for depth in DEPTHS}
    report("exact", search_exactly, queries, exact)
    with tempfile.TemporaryDirectory() as folder:
        begin = time.process_time()
        built = ApproximateIndex.build(vectors, 0)
        seconds = time.process_time() - begin
        built.write(Path(folder))
        bytes_each = size_of(Path(folder)) / len(vectors)
        print(f"  FAISS: built in {seconds:.1f} s, {bytes_each:.0f} bytes per document")
        index = open_index(find_index(Path(folder)), 0)

        def search_index(query: NDArray[np.float32], depth: int) -> Rows:
            return index.search(vectors, query, depth, none_excluded, ids_of)

        report("FAISS", search_index, queries, exact)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("workspace")
    options.add_argument("ranker", help="a ranker with one vector per document, for example s2net")
    options.add_argument("--documents", type=int, nargs="+", default=[100_000, 1_000_000])
    args = options.parse_args()
    rng = np.random.default_rng(0)
    vectors = stored_vectors(Workspace.open(args.workspace), args.ranker)
    queries = add_noise(vectors[rng.choice(len(vectors), QUERIES, replace=False)].astype(np.float32), rng)
    for count in args.documents:
        print(f"{count:,} documents, {vectors.shape[1]} numbers each")
        measure(grow_vectors(vectors, count, rng), queries)


if __name__ == "__main__":
    main()
