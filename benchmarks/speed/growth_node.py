"""Measure one OpenSearch node with growing collections: ingest, size, plain and hooked searches.

    python benchmarks/speed/growth_node.py CORPUS QUERIES WORKSPACE --documents 10000 63436 250000

The collections are those of ``growth.py``. WORKSPACE has rankers that were trained on CORPUS; ``ingest``
also encodes the documents with them. Each size has a new node and a new service. Plain and hooked searches
take turns in one run, and a ratio is the median of the ratios of successive pairs: a busy machine changes
both times. The processor time of the service is the mean over hooked searches. Sizes are after a merge to one
segment that drops the copies for replicas: directly after an ingest, an index is three times as large.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from hook_cases import INDEX, NONE, Case, alone, filled, percentiles, processor, service_process

from benchmarks.common.grown import grow
from rerank.formats import read_queries
from tools.opensearch_node import Node, running
from tools.opensearch_plugin import SETTINGS, build, put_pipeline

DEPTHS = (100, 1000)
WARM = 100  # searches of each kind that are not measured
ROUNDS = 200
HITS = 10
SYNC_SECONDS = 45  # longer than the interval of the background sync


def write_corpus(path: Path, corpus: Path, count: int) -> None:
    """Write a grown collection as compressed JSON lines."""
    with gzip.open(path, "wt", encoding="utf-8", compresslevel=1) as lines:
        for document in grow(corpus, count):
            record = {"_id": document.id, "title": document.title, "text": document.text}
            lines.write(json.dumps(record) + "\n")


def index_size(node: Node) -> int:
    """Return the bytes of the index on disk, when OpenSearch has dropped everything that it can drop.

    It keeps the excluded fields of documents for replicas until the next background sync. The first merge
    after it drops them. Adding and deleting a document makes sure that there is a merge.
    """
    node.request("POST", f"/{INDEX}/_flush?force=true")
    time.sleep(SYNC_SECONDS)
    node.request("PUT", f"/{INDEX}/_doc/-?refresh=true", {})
    node.request("DELETE", f"/{INDEX}/_doc/-?refresh=true")
    node.request("POST", f"/{INDEX}/_flush?force=true")
    node.request("POST", f"/{INDEX}/_forcemerge?max_num_segments=1")
    node.request("POST", f"/{INDEX}/_refresh")
    node.request("POST", f"/{INDEX}/_flush?force=true")
    statistics = node.request("GET", f"/{INDEX}/_stats/store")
    size: int = statistics["_all"]["primaries"]["store"]["size_in_bytes"]
    return size


def measure(args: argparse.Namespace, count: int) -> None:
    """Print the figures of one size."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="growth-node-")))
        grown = folder / "corpus.jsonl.gz"
        write_corpus(grown, args.corpus, count)
        node = stack.enter_context(running(SETTINGS, heap=args.heap, plugins=[build()], java=()))
        assert node.process is not None
        pids = [node.process.pid]
        before = processor(*pids)
        begin = os.times()
        workspace = filled(node, folder, args.workspace, str(grown))
        end = os.times()
        client = end.children_user + end.children_system - begin.children_user - begin.children_system
        node_seconds = processor(*pids) - before
        print(
            f"{count:,} documents: client {count / client:,.0f}, node {count / node_seconds:,.0f} per"
            f" processor second; {index_size(node) / count:.0f} bytes each",
            flush=True,
        )
        url, service = stack.enter_context(service_process(workspace, folder / "log"))
        queries = [query.text for query in islice(read_queries(args.queries), 2000)]
        for depth in DEPTHS:
            put_pipeline(node, f"depth{depth}", url=url, stack=args.stack, depth=depth, timeout=20_000)
            compare(node, queries, depth, service.pid)


def compare(node: Node, queries: list[str], depth: int, service: int) -> None:
    """Print the times of plain and hooked searches, which take turns."""
    plain = Case(node, "plain", HITS, NONE, {}, field="content")
    hooked = Case(node, f"hooked, depth {depth}", HITS, f"depth{depth}", {}, field="content")
    alone([plain, hooked], queries, 0, WARM)
    before = processor(service)
    alone([plain, hooked], queries, ROUNDS, 0)
    spent = 1000 * (processor(service) - before) / ROUNDS
    ratio = np.median(np.divide(hooked.times, plain.times))
    for case in (plain, hooked):
        print(f"  {case.name:20} {percentiles(case.times)} ms")
    print(f"  depth {depth}: {ratio:.2f} times; service {spent:.2f} ms of processor time", flush=True)


def main() -> None:
    """Print the figures of each size."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("corpus", type=Path)
    options.add_argument("queries", type=Path)
    options.add_argument("workspace", type=Path)
    options.add_argument("--documents", type=int, nargs="+", default=[10_000, 63_436])
    options.add_argument("--stack", default="bm25*0.5 + s2net*0.5")
    options.add_argument("--heap", default="1g")
    args = options.parse_args()
    for count in args.documents:
        measure(args, count)


if __name__ == "__main__":
    main()
