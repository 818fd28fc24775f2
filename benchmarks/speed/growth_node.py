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
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from growth_results import FILE, Recorder

from benchmarks.common import hook
from benchmarks.common.collection import write_corpus
from benchmarks.common.grown import grow
from benchmarks.common.index import index_size
from benchmarks.common.processes import memory, processor
from benchmarks.common.service import service_process
from rerank.formats import read_queries
from tools.opensearch_node import Node
from tools.opensearch_plugin import put_pipeline

DEPTHS = (100, 1000)
TIMEOUT = {"timeout": hook.TIMEOUT_MS}
FIELD = "content"  # of BM25
WARM = 100  # searches of each kind that are not measured
ROUNDS = 150
BLOCKS, BLOCK = 5, 60
"""Blocks of searches of one case whose processor time is measured, and searches of a block."""
IDLE_SECONDS = 15  # after a start, until the node has no other work


def measure(args: argparse.Namespace, count: int) -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="growth-node-")))
        grown = folder / "corpus.jsonl.gz"
        write_corpus(grown, grow(args.corpus, count))
        node = stack.enter_context(hook.plugin_node())
        assert node.process is not None
        recorder = Recorder("node", count, FILE if args.keep else None)
        before = processor(node.process.pid)
        before_client = os.times()
        workspace = hook.filled(node, folder, args.workspace, grown)
        client_seconds = sum(os.times()[2:4]) - sum(before_client[2:4])  # of the commands
        node_seconds = processor(node.process.pid) - before
        recorder.add("ingest", {"client": count / client_seconds, "node": count / node_seconds})
        recorder.add("disk", {"index with features": index_size(node, hook.INDEX) / count})
        url, service = stack.enter_context(service_process(workspace, folder / "log"))
        queries = [query.text for query in islice(read_queries(args.queries), 2000)]
        for depth in DEPTHS:
            put_pipeline(node, f"depth{depth}", url=url, stack=args.stack, depth=depth, **TIMEOUT)
        for depth in DEPTHS:  # the node compiles the code of the searches
            hook.alone([hook.Case(node, "", f"depth{depth}", text_field=FIELD)], queries, 0, 2 * WARM)
        for depth in DEPTHS:
            compare(node, queries, depth, service.pid, recorder)
        recorder.add("memory", {"node": memory(node.process.pid), "service": memory(service.pid)})
        measure_first(node, queries[0], service.pid, recorder)


def measure_first(node: Node, text: str, service: int, recorder: Recorder) -> None:
    """Measure the first plain search and the first hooked search after a restart of the node."""
    node.kill()
    node.start().wait()
    time.sleep(IDLE_SECONDS)
    for name, pipeline in (("plain", hook.NONE), ("hooked, depth 100", "depth100")):
        case = hook.Case(node, name, pipeline, text_field=FIELD, services=[service])
        before = processor(*case.processes)
        milliseconds = case.ask(case.body(text))
        seconds = processor(*case.processes) - before
        recorder.add("first query", {name: 1000 * seconds})
        recorder.add("first query, wall", {name: milliseconds})


def compare(node: Node, queries: list[str], depth: int, service: int, recorder: Recorder) -> None:
    """Measure plain and hooked searches in turns: the latency one by one, then blocks of searches."""
    name = f"hooked, depth {depth}"
    plain = hook.Case(node, "plain", hook.NONE, text_field=FIELD, services=[service])
    hooked = hook.Case(node, name, f"depth{depth}", text_field=FIELD, services=[service])
    hook.alone([plain, hooked], queries, ROUNDS, WARM)
    ratio = np.median(np.divide(hooked.times, plain.times))
    for case in (plain, hooked):
        print(f"  {case.name:20} {hook.percentiles(case.times)} ms")
    recorder.add("ratio", {name: float(ratio)})
    recorder.add("next query, wall", {case.name: case.median for case in (plain, hooked)})
    before = processor(service)
    times = hook.processor_times([plain, hooked], queries, BLOCKS, BLOCK)
    service_milliseconds = 1000 * (processor(service) - before) / (BLOCKS * BLOCK)  # plain searches need none
    recorder.add("next query", {name: float(np.median(of_blocks)) for name, of_blocks in times.items()})
    recorder.add("next query", {f"service, depth {depth}": service_milliseconds})


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("corpus", type=Path)
    options.add_argument("queries", type=Path)
    options.add_argument("workspace", type=Path)
    options.add_argument("--documents", type=int, nargs="+", default=[10_000, 63_436])
    options.add_argument("--stack", default="bm25*0.5 + lsi*0.5")
    options.add_argument("--keep", action="store_true", help="add the figures to growth.jsonl")
    args = options.parse_args()
    for count in args.documents:
        measure(args, count)


if __name__ == "__main__":
    main()
