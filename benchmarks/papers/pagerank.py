"""Measure personalized PageRank, the top k of every document: accuracy, and speed on large graphs.

    python benchmarks/papers/pagerank.py DATA/wikispeedia            compare with the dense inverse
    python benchmarks/papers/pagerank.py --power-law 100000,10       nodes, links per node; several tolerances
    python benchmarks/papers/pagerank.py --power-law 1000000,10 --sample 4096

Times are wall-clock and CPU times of one thread. ``--sample`` computes only this number of documents and
extrapolates the time.
"""

from __future__ import annotations

import argparse
import resource
import time
from itertools import islice
from pathlib import Path

import numpy as np

from rerank.formats import read_corpus
from rerank.rankers.graphs.links import LinkGraph
from rerank.rankers.graphs.pagerank import _pushed, top_pagerank

ALPHA = 0.15


class Timer:
    def __enter__(self) -> Timer:
        self.begin, self.cpu_begin = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall, self.cpu = time.perf_counter() - self.begin, time.process_time() - self.cpu_begin


def recall(found: np.ndarray, true: np.ndarray) -> float:
    return float(np.mean([len(np.intersect1d(a, b)) / max(1, (b >= 0).sum()) for a, b in zip(found, true)]))


def against_the_inverse(folder: Path, k: int, repeats: int) -> None:
    graph = LinkGraph.from_documents(read_corpus(str(next(folder.glob("corpus*.jsonl.gz")))))
    adjacency = graph.matrix
    print(f"{folder.name}: {len(graph.ids)} documents, {len(graph.pairs())} linked pairs")
    print("| | wall s | CPU s | largest error |\n| --- | --- | --- | --- |")
    for _ in range(repeats):
        with Timer() as timer:
            dense = adjacency.toarray().astype(np.float64)
            dense /= np.maximum(dense.sum(axis=0), 1)
            dense = ALPHA * np.linalg.inv(np.eye(len(dense)) - (1 - ALPHA) * dense)
            np.fill_diagonal(dense, 0)
        print(f"| dense inverse | {timer.wall:.2f} | {timer.cpu:.2f} | |")
        true = -np.sort(-dense, axis=1)[:, :k]
        with Timer() as timer:
            exact, scores = top_pagerank(adjacency, k, exact=len(dense))
        print(f"| top_pagerank | {timer.wall:.2f} | {timer.cpu:.2f} | {np.abs(scores - true).max():.1e} |")
    for tolerance in (1e-3, 1e-4):
        with Timer() as timer:
            pushed, _ = top_pagerank(adjacency, 64, exact=0, tolerance=tolerance)
        print(
            f"| pushed at {tolerance:g}, recall of the top 64 {recall(pushed, exact[:, :64]):.3f} |"
            f" {timer.wall:.2f} | {timer.cpu:.2f} | |",
            flush=True,
        )


def power_law(size: int, links: int, sample: int, tolerances: list[float]) -> None:
    """Measure a random graph with ``links`` links per node. P(target) is proportional to rank^-1/2."""
    rng = np.random.default_rng(0)
    weights = np.cumsum(np.arange(1, size + 1) ** -0.5)
    sources = np.repeat(np.arange(size, dtype=np.int32), links)
    drawn = np.searchsorted(weights, rng.random(size * links) * weights[-1])
    targets = rng.permutation(size).astype(np.int32)[np.minimum(drawn, size - 1)]
    adjacency = LinkGraph.from_edges([""] * size, sources, targets).matrix
    print(f"{size:,} documents, {adjacency.nnz // 2:,} links; {peak():.0f} MB")
    print("| tolerance | documents/s | all, minutes of CPU (wall) | recall of the top 64 | MB |")
    print("| --- | --- | --- | --- | --- |")

    def top(tolerance: float, count: int) -> np.ndarray:
        rows = islice(_pushed(adjacency, tolerance), count)
        return np.array([columns[np.argsort(-values)[1:65]] for columns, values in rows])

    true = top(1e-5, 16)
    for tolerance in tolerances:
        with Timer() as timer:
            found = top(tolerance, sample)
        minutes = size / sample / 60
        print(
            f"| {tolerance:g} | {sample / timer.cpu:.0f} | {timer.cpu * minutes:.1f}"
            f" ({timer.wall * minutes:.1f}) | {recall(found[:16], true):.3f} | {peak():.0f} |",
            flush=True,
        )


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--top", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--power-law", metavar="NODES,LINKS")
    parser.add_argument("--sample", type=int)
    parser.add_argument("--tolerances", default="0.01,0.003,0.001")
    args = parser.parse_args()
    if args.data:
        against_the_inverse(args.data, args.top, args.repeats)
    if args.power_law:
        size, links = map(int, args.power_law.split(","))
        power_law(size, links, args.sample or size, [float(t) for t in args.tolerances.split(",")])


if __name__ == "__main__":
    main()
