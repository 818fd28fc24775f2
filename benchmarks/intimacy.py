"""Intimacy: top k of every document, beside the dense inverse, and on large graphs.

    python benchmarks/intimacy.py DATA/wikispeedia            against the dense inverse, in one run
    python benchmarks/intimacy.py --power-law 100000,10       nodes, links of each: at several tolerances
    python benchmarks/intimacy.py --power-law 1000000,10 --sample 4096

Times are of one thread, wall clock and CPU. The whole graph goes through ``top_intimacy``; ``--sample``
pushes from that many documents only, drawn at random, and multiplies. Recall of the exact top 64 is
measured on 16 of them, against a tolerance of 1e-5, at the end.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix

from rerank.formats import read_corpus
from rerank.rankers.graphs import pagerank
from rerank.rankers.graphs.links import LinkGraph
from rerank.rankers.graphs.pagerank import dense_intimacy, top_intimacy


class Timer:
    def __enter__(self) -> Timer:
        self.begin, self.cpu_begin = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall, self.cpu = time.perf_counter() - self.begin, time.process_time() - self.cpu_begin


class Shown:
    """Says on standard error how far a pass is, a hundred times."""

    def __init__(self, total: int) -> None:
        self.total, self.done, self.begin = total, 0, time.process_time()

    def __call__(self, count: int) -> None:
        before, self.done = self.done, self.done + count
        if before * 100 // self.total < self.done * 100 // self.total:
            spent = time.process_time() - self.begin
            print(f"{self.done:,} documents, {spent:.0f} s of CPU", file=sys.stderr)


def beside_the_inverse(folder: Path, k: int, repeats: int) -> None:
    with Timer() as read:
        graph = LinkGraph.of(read_corpus(str(next(folder.glob("corpus*.jsonl.gz")))))
    adjacency = graph.matrix()
    print(f"{folder.name}: {len(graph.ids)} documents, {graph.counts}; read in {read.wall:.1f} s")
    print("| | wall s | CPU s | largest error |\n| --- | --- | --- | --- |")
    ratios = []
    for _ in range(repeats):
        with Timer() as inverse:
            dense = dense_intimacy(adjacency)
        with Timer() as selecting:
            np.fill_diagonal(dense, 0)
            best = np.argpartition(dense, -k, axis=1)[:, -k:]
            true = -np.sort(-np.take_along_axis(dense, best, axis=1), axis=1)
        with Timer() as mine:
            found = top_intimacy(adjacency, k)
        error = np.abs(found.scores - true[:, : found.scores.shape[1]]).max()
        ratios.append((inverse.cpu / mine.cpu, (inverse.cpu + selecting.cpu) / mine.cpu))
        print(f"| dense inverse | {inverse.wall:.2f} | {inverse.cpu:.2f} | |")
        print(f"| and its top {k} | {selecting.wall:.2f} | {selecting.cpu:.2f} | |")
        print(f"| top_intimacy | {mine.wall:.2f} | {mine.cpu:.2f} | {error:.1e} |")
    for tolerance in (1e-3, 1e-4):
        with Timer() as pushing:
            pushed = top_intimacy(adjacency, 64, exact=0, tolerance=tolerance)
        whole = top_intimacy(adjacency, 64)
        hits = [len(np.intersect1d(a, b)) / max(1, (b >= 0).sum()) for a, b in zip(pushed.ids, whole.ids)]
        print(
            f"| pushed at {tolerance:g}, recall of the top 64 {np.mean(hits):.3f} | {pushing.wall:.2f} |"
            f" {pushing.cpu:.2f} | {pushed.error:.1e} |"
        )
    alone, both = np.median(ratios, axis=0)
    print(f"CPU time of the inverse / top_intimacy: {alone:.1f}; with the selection: {both:.1f} (medians)")


def power_law(size: int, links: int, sample: int | None, tolerances: list[float]) -> None:
    """Sources have ``links`` links each; targets are drawn with probability ~ rank^-1/2."""
    rng = np.random.default_rng(0)
    with Timer() as made:
        weights = np.cumsum(np.arange(1, size + 1) ** -0.5)
        sources = np.repeat(np.arange(size, dtype=np.int32), links)
        drawn = np.searchsorted(weights, rng.random(size * links) * weights[-1])
        targets = rng.permutation(size).astype(np.int32)[np.minimum(drawn, size - 1)]
        del weights, drawn
        graph = LinkGraph.from_edges([""] * size, sources, targets)
        adjacency: csr_matrix = graph.matrix()
    degree = np.diff(adjacency.indptr)
    print(
        f"{size:,} documents, {graph.counts.links:,} links, degrees {degree.min()} to {degree.max()}; made in"
        f" {made.wall:.1f} s, {peak():.0f} MB"
    )
    step = pagerank._normalized(adjacency).astype(np.float32)
    some = np.sort(rng.permutation(size)[:sample]) if sample else np.arange(size)
    exact_seeds = rng.permutation(some)[:16]
    hashed = np.arange(size, dtype=np.int32)

    def rows(seeds: np.ndarray, tolerance: float):
        for begin in range(0, len(seeds), pagerank.SEEDS):
            part = seeds[begin : begin + pagerank.SEEDS]
            yield pagerank._push(step, part, 0.15, tolerance, 50_000_000)

    print("| tolerance | documents/s | all, minutes of CPU (wall) | largest error | capped | MB |")
    print("| --- | --- | --- | --- | --- | --- |")
    for tolerance in tolerances:
        error, capped = 0.0, 0
        with Timer() as pushing:
            if sample:
                for found in rows(some, tolerance):
                    found.top(64, hashed)
                    error, capped = max(error, found.error), capped + found.capped
            else:
                whole = top_intimacy(adjacency, 64, tolerance=tolerance, progress=Shown(size))
                error, capped = whole.error, whole.capped
        rate = len(some) / pushing.cpu
        wall = pushing.wall * size / len(some) / 60
        print(
            f"| {tolerance:g} | {rate:.0f} | {size / rate / 60:.1f} ({wall:.1f}) | {error:.1e} | {capped} |"
            f" {peak():.0f} |",
            flush=True,
        )
    true = next(rows(exact_seeds, 1e-5)).top(64, hashed)[0]
    for tolerance in tolerances:
        near = next(rows(exact_seeds, tolerance)).top(64, hashed)[0]
        recall = np.mean([len(np.intersect1d(a, b)) / 64 for a, b in zip(near, true)])
        print(f"{tolerance:g}: recall of the top 64 {recall:.3f}", flush=True)


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
        beside_the_inverse(args.data, args.top, args.repeats)
    if args.power_law:
        size, links = map(int, args.power_law.split(","))
        power_law(size, links, args.sample, [float(t) for t in args.tolerances.split(",")])


if __name__ == "__main__":
    main()
