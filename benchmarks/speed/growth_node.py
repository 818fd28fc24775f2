"""Measure one OpenSearch node with growing collections: ingest, size, plain and hooked searches.

    python benchmarks/speed/growth_node.py CORPUS QUERIES WORKSPACE --documents 10000 63436 250000
    python benchmarks/speed/growth_node.py CORPUS QUERIES WORKSPACE --keep   # also add to growth.jsonl

The collections are those of ``growth.py``. WORKSPACE has rankers that were trained on CORPUS; ``ingest``
also encodes the documents with them. Each size has a new node and a new service. Plain and hooked searches
take turns in one run, and a ratio is the median of the ratios of successive pairs: a busy machine changes
both times. The processor time of a search is the mean over a block of searches, of the node and the service
together. The first search follows a restart of the node. Sizes are after a merge to one segment that drops
the copies for replicas: directly after an ingest, an index is three times as large.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import sys
import tempfile
import time
from contextlib import ExitStack
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from growth_results import FILE, Recorder
from hook_cases import INDEX, NONE, Case, alone, filled, percentiles, processor, service_process

from benchmarks.common.grown import grow
from benchmarks.common.index import force_merge
from rerank.formats import read_queries
from tools.opensearch_node import Node, running
from tools.opensearch_plugin import SETTINGS, build, put_pipeline

DEPTHS = (100, 1000)
WARM = 100  # searches of each kind that are not measured
ROUNDS = 150
BLOCKS, BLOCK = 5, 60
"""Blocks of searches of one case whose processor time is measured, and searches of a block."""
HITS = 10
SYNC_SECONDS = 45  # longer than the interval of the background sync
IDLE_SECONDS = 15  # after a start, until the node has no other work


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
    force_merge(node, INDEX)
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
        recorder = Recorder("node", count, FILE if args.keep else None)
        before = processor(*pids)
        begin = os.times()
        workspace = filled(node, folder, args.workspace, str(grown))
        end = os.times()
        client = end.children_user + end.children_system - begin.children_user - begin.children_system
        node_seconds = processor(*pids) - before
        recorder.add("ingest", {"client": count / client, "node": count / node_seconds})
        recorder.add("disk", {"index with features": index_size(node) / count})
        url, service = stack.enter_context(service_process(workspace, folder / "log"))
        queries = [query.text for query in islice(read_queries(args.queries), 2000)]
        for depth in DEPTHS:
            put_pipeline(node, f"depth{depth}", url=url, stack=args.stack, depth=depth, timeout=20_000)
        for depth in DEPTHS:  # the node compiles the code of the searches
            alone([Case(node, "", HITS, f"depth{depth}", {}, field="content")], queries, 0, 2 * WARM)
        for depth in DEPTHS:
            compare(node, queries, depth, service.pid, recorder)
        recorder.add("memory", {"node": resident_mib(node.process.pid), "service": resident_mib(service.pid)})
        measure_first(node, queries[0], service.pid, recorder)


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process, in MiB."""
    match = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert match is not None
    return int(match[1]) / 1024


def measure_first(node: Node, text: str, service: int, recorder: Recorder) -> None:
    """Measure the first plain search and the first hooked search after a restart of the node."""
    node.kill()
    node.start().wait()
    assert node.process is not None
    time.sleep(IDLE_SECONDS)
    for name, pipeline in (("plain", NONE), ("hooked, depth 100", "depth100")):
        case = Case(node, name, HITS, pipeline, {}, field="content")
        before = processor(node.process.pid, service)
        milliseconds, _ = case.ask(case.body(text))
        seconds = processor(node.process.pid, service) - before
        recorder.add("first query", {name: 1000 * seconds})
        recorder.add("first query, wall", {name: milliseconds})


def compare(node: Node, queries: list[str], depth: int, service: int, recorder: Recorder) -> None:
    """Measure plain and hooked searches, which take turns: the latency one by one, then blocks of searches.

    A block is long, because the system counts processor time in hundredths of a second.
    """
    plain = Case(node, "plain", HITS, NONE, {}, field="content")
    hooked = Case(node, f"hooked, depth {depth}", HITS, f"depth{depth}", {}, field="content")
    alone([plain, hooked], queries, ROUNDS, WARM)
    ratio = np.median(np.divide(hooked.times, plain.times))
    for case in (plain, hooked):
        print(f"  {case.name:20} {percentiles(case.times)} ms")
    recorder.add("ratio", {hooked.name: float(ratio)})
    latencies = {case.name: float(np.median(case.times)) for case in (plain, hooked)}
    recorder.add("next query, wall", latencies)
    assert node.process is not None
    processes = (node.process.pid, service)
    times: dict[str, list[float]] = {plain.name: [], hooked.name: [], "service": []}
    for block in range(BLOCKS):
        for case in (plain, hooked):
            before = processor(*processes)
            service_before = processor(service)
            alone([case], queries[block * BLOCK :], BLOCK, 0)
            times[case.name].append(1000 * (processor(*processes) - before) / BLOCK)
            if case is hooked:
                times["service"].append(1000 * (processor(service) - service_before) / BLOCK)
    recorder.add("next query", {case.name: float(np.median(times[case.name])) for case in (plain, hooked)})
    recorder.add("next query", {f"service, depth {depth}": float(np.mean(times["service"]))})


def main() -> None:
    """Print the figures of each size."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("corpus", type=Path)
    options.add_argument("queries", type=Path)
    options.add_argument("workspace", type=Path)
    options.add_argument("--documents", type=int, nargs="+", default=[10_000, 63_436])
    options.add_argument("--stack", default="bm25*0.5 + lsi*0.5")
    options.add_argument("--keep", action="store_true", help="add the figures to growth.jsonl")
    options.add_argument("--heap", default="1g")
    args = options.parse_args()
    for count in args.documents:
        measure(args, count)


if __name__ == "__main__":
    main()
