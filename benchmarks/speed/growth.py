"""Measure the embedded engine with growing collections: ingest, size, first query and next queries.

    python benchmarks/speed/growth.py CORPUS QUERIES --documents 63436 500000 2000000

A collection larger than CORPUS has copies of its documents with 30 % of the words replaced by words of other
documents. Each line is measured in a new process, without the start of Python. The first query includes
opening the workspace. 2 million short documents take about 5 minutes and 4 GB in the folder for temporary
files.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.common.timing import seconds_of
from rerank import Document, Workspace, ingest
from rerank.formats import read_corpus, read_queries

REPLACED_SHARE = 0.3  # of the words of a copy
VOCABULARY_DOCUMENTS = 20_000
QUERIES = 100


def grow(corpus: Path, count: int) -> Iterator[Document]:
    """Yield ``count`` documents: the ones of the corpus, then copies with replaced words."""
    rng = random.Random(0)
    documents = list(read_corpus(corpus))
    vocabulary = [word for document in documents[:VOCABULARY_DOCUMENTS] for word in document.text.split()]
    for number in range(count):
        copy, position = divmod(number, len(documents))
        document = documents[position]
        words = document.text.split()
        if copy:
            words = [rng.choice(vocabulary) if rng.random() < REPLACED_SHARE else word for word in words]
        yield Document(f"{document.id}-{copy}", title=document.title, text=" ".join(words))


def measure_ingest(folder: Path, corpus: Path, count: int) -> None:
    """Ingest the documents and print the rate, without the time to make them."""
    begin = time.process_time()
    for _ in grow(corpus, count):
        pass
    grow_seconds = time.process_time() - begin
    begin = time.process_time()
    ingest(folder, grow(corpus, count), lang="en")
    seconds = time.process_time() - begin - grow_seconds
    size = sum(path.stat().st_size for path in (folder / "engine").rglob("*") if path.is_file())
    rate = f"{count / seconds:,.0f} documents per processor second"
    print(f"{count:,} documents: {rate}, {size / count:.0f} bytes each, {peak_memory()} MiB", flush=True)


def measure_queries(folder: Path, queries: Path, first_stage: str) -> None:
    """Print the time of the first query, the median of the next ones, and the memory."""
    texts = [query.text for query in islice(read_queries(queries), QUERIES)]
    begin = time.perf_counter()
    workspace = Workspace.open(folder)
    stack = workspace.stack(first_stage)
    pipeline = workspace.pipeline([first_stage])
    pipeline.answer(texts[0], stack)
    first = time.perf_counter() - begin
    next_seconds = [seconds_of(partial(pipeline.answer, text, stack)) for text in texts[1:]]
    figures = {
        "first_ms": round(1000 * first, 1),
        "p50_ms": round(1000 * median(next_seconds), 2),
        "memory_mib": peak_memory(),
    }
    print(f"  {first_stage}, depth {stack.depth}: {json.dumps(figures)}", flush=True)


def peak_memory() -> int:
    """Return the largest memory of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def main() -> None:
    """Print the figures of each size, each from a process of its own."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("corpus", type=Path)
    options.add_argument("queries", type=Path)
    options.add_argument("--documents", type=int, nargs="+", default=[100_000, 500_000])
    options.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options.add_argument("--first-stage", help=argparse.SUPPRESS)
    args = options.parse_args()
    if args.first_stage:
        measure_queries(args.folder, args.queries, args.first_stage)
        return
    if args.folder:
        measure_ingest(args.folder, args.corpus, args.documents[0])
        return
    for count in args.documents:
        with tempfile.TemporaryDirectory() as temporary:
            command = [sys.executable, __file__, args.corpus, args.queries, "--documents", str(count)]
            command += ["--folder", Path(temporary) / "workspace"]
            subprocess.run(command, check=True)
            for first_stage in ("bm25", "tfidf"):
                subprocess.run([*command, "--first-stage", first_stage], check=True)


if __name__ == "__main__":
    main()
