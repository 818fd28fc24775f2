"""Measure the hook on three nodes with three shards and one replica, and ways to fetch the page of results.

    python benchmarks/hook_cluster.py [--workspace DIR] [--rounds N] [--clients N]

DIR has the rankers of ``rerank demo``; without it, the demo runs first. All cases take turns, query by
query, in random order. A time is from the first byte of a request to the last byte of its response. The
page is ten random documents. It is fetched in three ways: one search of all shards, one search of the
shards that have these documents (``_shards``), and one search per shard (``_msearch``, as the plugin does).
Targets: a search takes at most 2.0 times as long as the plain search, and keeps half of its throughput with
eight clients.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from hook_cases import INDEX, NONE, WEIGHTS, Case, alone, asking, cli, filled, serving, texts, together

import rerank.demo
from tests.node import Cluster, Node
from tests.plugin import SETTINGS, build, put_pipeline


def page_times(node: Node, rounds: int) -> dict[str, list[float]]:
    """Milliseconds to fetch ten documents, for each way."""
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
            head = {"index": INDEX, "preference": f"_shards:{shard}"}
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
    parser.add_argument("--clients", type=int, default=8)
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
        corpus = str(collection / "corpus.jsonl.gz")
        workspace = filled(node, folder, rankers, corpus, "--shards", 3, "--replicas", 1)
        service = stack.enter_context(serving(workspace, folder / "log"))
        put_pipeline(node, "depth100", url=service, stack=WEIGHTS, depth=100, timeout=20000)
        plain, hooked = Case(node, "plain", 10, NONE, {}), Case(node, "hook, depth 100", 10, "depth100", {})
        alone([plain, hooked], queries, given.rounds, given.rounds)
        for case in (plain, hooked):
            print(f"{case.name:16} {np.median(case.times):.2f} ms")
        ratio = np.median(hooked.times) / np.median(plain.times)
        print(f"{ratio:.2f} times (target 2.0)")
        rates = {}
        for case in (plain, hooked):
            begin = time.perf_counter()
            count = len(together(case, queries, given.clients, given.rounds // 2))
            rates[case.name] = count / (time.perf_counter() - begin)
            print(f"{given.clients} clients: {case.name:16} {rates[case.name]:.0f} searches a second")
        share = rates[hooked.name] / rates[plain.name]
        print(f"{given.clients} clients: the hook keeps {share:.2f} (target 0.5)")
        for name, times in page_times(node, given.rounds).items():
            print(f"page, {name:10} {np.median(times):.2f} ms")


if __name__ == "__main__":
    main()
