"""Measure the embedded engine with growing collections: ingest, size, first query and next queries, union.

    python benchmarks/speed/growth.py CORPUS QUERIES --documents 10000 63436 250000 2000000
    python benchmarks/speed/growth.py CORPUS QUERIES --documents 63436 2000000 --vectors WORKSPACE s2net
    python benchmarks/speed/growth.py CORPUS QUERIES --keep   # also add the figures to growth.jsonl

A collection larger than CORPUS has copies of its documents with 30 % of the words replaced by words of
other documents. Each line is measured in a new process, without the start of Python. The first query
includes opening the workspace. Next queries are milliseconds of processor time, their median. 2 million
short documents take about 5 minutes and 4 GB in the folder for temporary files.

``--vectors`` also measures the union of BM25 and the nearest 100 documents of a ranker with one vector per
document, which was trained on CORPUS in WORKSPACE. Copies of documents get copies of its vectors with
noise. The plain query has the same stack, whose candidates are from BM25 only. ``growth_page.py`` draws
the figure of the docs from ``growth.jsonl``.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np
from growth_results import FILE, Recorder

from benchmarks.common.grown import grow
from benchmarks.common.processes import memory, size_of
from benchmarks.common.timing import seconds_of
from benchmarks.common.vectors import feature_files, grow_vectors, stored_vectors
from rerank import Document, Query, Workspace, ingest
from rerank.engines.approximate import ApproximateIndex, needs_index
from rerank.engines.nearest import Rows, nearest
from rerank.engines.search_request import SearchRequest, VectorQuery
from rerank.formats import read_corpus, read_queries
from rerank.scoring.pipeline import Pipeline
from rerank.stack.stack import Stack

QUERIES = 100
DEPTHS = (100, 1000)
NEAREST = 100  # documents that the ranker adds to the union
BATCH = 65_536  # vectors that are written together
MADE_TOGETHER = 1_000  # documents
ENCODED = 5_000  # documents whose encoding is measured


class GrownDocuments:
    """The documents of a grown collection, in batches, and the processor time that making them has taken."""

    def __init__(self, corpus: Path, count: int) -> None:
        self.documents = grow(corpus, count)
        self.seconds = 0.0

    def __iter__(self) -> Iterator[Document]:
        while True:
            begin = time.process_time()
            batch = list(islice(self.documents, MADE_TOGETHER))
            self.seconds += time.process_time() - begin
            if not batch:
                return
            yield from batch


def measure_ingest(folder: Path, corpus: Path, count: int, recorder: Recorder) -> None:
    """Ingest the documents and measure the rate, without the time to make them."""
    documents = GrownDocuments(corpus, count)
    seconds = seconds_of(partial(ingest, folder, documents, lang="en"), time.process_time) - documents.seconds
    recorder.add("ingest", {"bm25 and tfidf": count / seconds})
    recorder.add("disk", {"documents and text index": size_of(folder / "engine") / count})
    recorder.add("memory", {"ingest": memory("self", "VmHWM")})


def measure_queries(folder: Path, queries: Path, first_stage: str, recorder: Recorder) -> None:
    """Measure the time of the first query, the median of the next ones for each depth, and the memory."""
    texts = query_texts(queries)
    begin = time.process_time()
    begin_wall = time.perf_counter()
    workspace = Workspace.open(folder)
    stack = workspace.stack(first_stage)
    pipeline = workspace.pipeline([first_stage])
    pipeline.answer(texts[0], stack)
    wall_seconds = time.perf_counter() - begin_wall
    seconds = time.process_time() - begin
    recorder.add("first query", {first_stage: 1000 * seconds})
    recorder.add("first query, wall", {first_stage: 1000 * wall_seconds})
    for depth in DEPTHS:
        deep_stack = replace(stack, depth=depth)
        next_seconds = [processor_seconds(pipeline, text, deep_stack) for text in texts[1:]]
        recorder.add("next query", {f"{first_stage}, depth {depth}": 1000 * median(next_seconds)})
    recorder.add("memory", {f"{first_stage} queries": memory("self", "VmHWM")})


def processor_seconds(pipeline: Pipeline, text: str, stack: Stack) -> float:
    return seconds_of(partial(pipeline.answer, text, stack), time.process_time)


def query_texts(queries: Path) -> list[str]:
    return [query.text for query in islice(read_queries(queries), QUERIES)]


# -- union -----------------------------------------------------------------------------------------------


def add_vectors(folder: Path, corpus: Path, trained: Path, ranker: str, recorder: Recorder) -> None:
    """Install the ranker of another workspace, and write a vector for each document of this one.

    Measure the rate at which the ranker encodes documents, and the index for approximate search.
    """
    shutil.copytree(trained / "rankers", folder / "rankers", dirs_exist_ok=True)
    workspace = Workspace.open(folder)
    encoder = workspace.ranker(ranker)
    documents = list(islice(read_corpus(corpus), ENCODED))
    seconds = seconds_of(partial(encoder.encode_documents, documents), time.process_time)
    recorder.add("encoding", {ranker: len(documents) / seconds})
    stored = stored_vectors(Workspace.open(trained), ranker)
    vectors = grow_vectors(stored, len(workspace.engine), np.random.default_rng(0))
    files = feature_files(folder)
    for begin in range(0, len(vectors), BATCH):
        batch = vectors[begin : begin + BATCH]
        files.write(ranker, encoder.version, np.arange(begin, begin + len(batch)), batch)
    index_folder = files.folder(ranker, encoder.version)
    if needs_index(index_folder, len(vectors)):
        begin = time.process_time()
        ApproximateIndex.build(vectors, 0).write(index_folder)
        recorder.add("index build", {ranker: time.process_time() - begin})
    recorder.add("disk", {f"vectors of {ranker}": size_of(index_folder) / len(vectors)})


def measure_union(folder: Path, corpus: Path, queries: Path, ranker: str, recorder: Recorder) -> None:
    """Measure the times of plain queries and of the union, their ratio, and the recall of the nearest."""
    texts = query_texts(queries)
    workspace = Workspace.open(folder)
    plain = workspace.stack(f"bm25*0.5 + {ranker}*0.5")
    pipeline = workspace.pipeline(plain.signals)
    for depth in DEPTHS:
        plain = replace(plain, depth=depth)
        union = replace(plain, retrieve=("bm25", f"{ranker}:{NEAREST}"))
        pipeline.answer(texts[0], union)
        pairs = [[processor_seconds(pipeline, text, stack) for stack in (plain, union)] for text in texts[1:]]
        plain_median, union_median = map(median, zip(*pairs))
        times = {f"stack, depth {depth}": 1000 * plain_median, f"union, depth {depth}": 1000 * union_median}
        recorder.add("next query", times)
        recorder.add("ratio", {f"union, depth {depth}": union_median / plain_median})
    sizes = {  # before the exact search, which reads all vectors
        "union queries": memory("self", "VmHWM"),
        "union queries, without mapped files": memory("self", "RssAnon"),
    }
    recall = measure_recall(workspace, corpus, texts[1:], ranker)
    recorder.add("recall", {f"{ranker}:{NEAREST}": recall})
    recorder.add("memory", sizes)


def measure_recall(workspace: Workspace, corpus: Path, texts: list[str], name: str) -> float:
    """Return the mean share of the nearest documents of a query that the engine returns."""
    ids = [document.id for document in read_corpus(corpus)]

    def ids_of(rows: Rows) -> list[str]:
        return [f"{ids[row % len(ids)]}-{row // len(ids)}" for row in rows.tolist()]

    ranker = workspace.ranker(name)
    pipeline = workspace.pipeline([name])
    matrix = feature_files(workspace.folder).matrix(name, ranker.version, len(workspace.engine))
    recalls: list[float] = []
    for text in texts:
        (retriever,) = pipeline.retrievers(Query("query", text), [f"{name}:{NEAREST}"])
        assert isinstance(retriever, VectorQuery)
        none_excluded = np.empty(0, np.int64)
        (rows,) = nearest(matrix, retriever.vector[None], NEAREST, ranker.passages, none_excluded, ids_of)
        candidates = workspace.engine.find(SearchRequest(text, "bm25", NEAREST, retrievers=[retriever]))
        if len(rows):
            recalls.append(len(set(ids_of(rows)).intersection(candidates.ids)) / len(rows))
    return float(np.mean(recalls))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("corpus", type=Path)
    options.add_argument("queries", type=Path)
    options.add_argument("--documents", type=int, nargs="+", default=[100_000, 500_000])
    options.add_argument("--vectors", nargs=2, metavar=("WORKSPACE", "RANKER"), help="measure the union")
    options.add_argument("--keep", action="store_true", help="add the figures to growth.jsonl")
    args = options.parse_args()
    for count in args.documents:
        recorder = Recorder("folder", count, FILE if args.keep else None)
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / f"documents-{count}"
            tasks: list[partial[None]] = [partial(measure_ingest, folder, args.corpus, count)]
            tasks += [partial(measure_queries, folder, args.queries, stage) for stage in ("bm25", "tfidf")]
            if args.vectors:
                trained, ranker = args.vectors
                tasks.append(partial(add_vectors, folder, args.corpus, Path(trained), ranker))
                tasks.append(partial(measure_union, folder, args.corpus, args.queries, ranker))
            for task in tasks:  # each in a new process
                with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as processes:
                    processes.submit(task, recorder).result()


if __name__ == "__main__":
    main()
