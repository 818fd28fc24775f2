"""The hook on three nodes with three shards: the whole search, and ways to fetch the documents of its page.

    python benchmarks/hook_cluster.py [--workspace DIR] [--rounds N]

DIR has the rankers of ``rerank demo``; without it, the demo runs first. All cases take turns, query by query,
in random order. A time is from the first byte of a request to the last byte of its answer. The page is ten
random documents: one search of all shards, one of the shards that have these documents (``_shards``, as the
plugin does), and one search per shard (``_msearch``). The target is at most 2.0 times the plain search.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import shutil
import tempfile
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from hook_speed import INDEX, NONE, SETTINGS, WEIGHTS, Case, alone, asking, build, cli, serving, texts

import rerank.demo
from rerank.hook.plugin import OWN_FIELDS
from tests.node import Cluster, Node


def page_times(node: Node, rounds: int) -> dict[str, list[float]]:
    """Milliseconds to fetch ten documents, by each way."""
    answer = node.request("POST", f"/{INDEX}/_search", {"size": 1000, "explain": True, "_source": False})
    hits = [(hit["_id"], int(hit["_shard"].split("[")[2].rstrip("]"))) for hit in answer["hits"]["hits"]]
    draw, times = random.Random(0), defaultdict(list)
    search = f"/{INDEX}/_search?search_pipeline={NONE}"
    several = asking(node.url, "/_msearch")
    for number in range(2 * rounds):
        page = draw.sample(hits, 10)
        shards = sorted({shard for _, shard in page})

        def body(ids: list[str]) -> bytes:
            query = {"query": {"ids": {"values": ids}}, "size": len(ids), "track_total_hits": False}
            return json.dumps({**query, "seq_no_primary_term": True}).encode()

        whole = body([id for id, _ in page])
        lines = []
        for shard in shards:
            head = {"index": INDEX, "preference": f"_shards:{shard}", "search_pipeline": NONE}
            lines += [json.dumps(head).encode(), body([id for id, place in page if place == shard])]
        preference = f"&preference=_shards:{','.join(map(str, shards))}"
        ways = {
            "all shards": (asking(node.url, search), whole),
            "_shards": (asking(node.url, search + preference), whole),
            "_msearch": (several, b"\n".join(lines) + b"\n"),
        }
        for name in draw.sample(list(ways), len(ways)):
            ask, sent = ways[name]
            took, _ = ask(sent)
            if number >= rounds:
                times[name].append(took)
    return times


def main() -> None:
    """Run all cases and print their median times."""
    collection = rerank.demo.COLLECTION
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workspace")
    parser.add_argument("--rounds", type=int, default=300)
    given = parser.parse_args()
    queries = texts(str(collection / "queries.jsonl.gz"), 5)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hook-cluster-")))
        rankers = Path(given.workspace or folder / "demo")
        if given.workspace is None:
            cli("demo", "-w", rankers)
        settings = {"rerank.allowed_urls": SETTINGS["rerank.allowed_urls"]}
        cluster = Cluster(3, heap="1g", java=(), plugins=[build()], **settings)
        stack.callback(cluster.stop)
        node = cluster.start().nodes[0]
        workspace, few = folder / "ws", folder / "few.jsonl"
        with gzip.open(collection / "corpus.jsonl.gz", "rt", encoding="utf-8") as lines:
            few.write_text("".join(line for line, _ in zip(lines, range(5))), "utf-8")
        options = ("--url", node.url, "--index", INDEX, "--shards", 3, "--replicas", 0)
        cli("ingest", few, "-w", workspace, *options, "--categories", rankers / "categories.tsv")
        shutil.copytree(rankers / "rankers", workspace / "rankers")
        cli("ingest", collection / "corpus.jsonl.gz", "--replace", "-w", workspace)
        service = stack.enter_context(serving(workspace, folder / "log"))
        config = {"url": service, "stack": WEIGHTS, "depth": 100, "timeout": 20000, **OWN_FIELDS}
        phases = {
            "request_processors": [{"rerank_stack": config}],
            "response_processors": [{"rerank_stack": {}}],
        }
        node.request("PUT", "/_search/pipeline/depth100", phases)
        plain, hooked = Case(node, "plain", 10, NONE, {}), Case(node, "hook, depth 100", 10, "depth100", {})
        alone([plain, hooked], queries, given.rounds, given.rounds)
        for case in (plain, hooked):
            print(f"{case.name:16} {np.median(case.times):.2f} ms")
        ratio = np.median(hooked.times) / np.median(plain.times)
        print(f"{ratio:.2f} times (target 2.0)")
        for name, times in page_times(node, given.rounds).items():
            print(f"page, {name:10} {np.median(times):.2f} ms")


if __name__ == "__main__":
    main()
