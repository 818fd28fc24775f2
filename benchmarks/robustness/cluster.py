"""Measure the hook on a cluster under load, and count errors while a node and a service are killed.

    python benchmarks/robustness/cluster.py --workspace DIR [--nodes 3] [--shards 5] [--replicas 1]

DIR has the rankers of ``rerank demo``. The articles of the demo are in a cluster on this machine. The script
prints these parts:

- *clients*: plain and hooked searches take turns, in blocks of requests. The ratio of the latency is the
  median over the pairs of blocks, and so is the share of the throughput that the hook keeps.
- *killed node*: half of the clients search with the hook and half without a pipeline, while a node that
  serves requests is killed with kill -9; several times. A client knows all nodes, and sends
  a search again to another one if a node refuses or closes the connection, as the clients of OpenSearch do.
  An error is a response with another status than 200 or with a failed shard, or a search that no node
  answers.
- *two services*: the pipeline names both. One is killed with kill -9. *not reranked* are searches with other
  hits than before.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from benchmarks.common.hook import INDEX, NONE, TIMEOUT_MS, demo_queries, filled, hook_counts, percentiles
from benchmarks.common.processes import memory
from benchmarks.common.service import connection_to, post, service_process
from tools.opensearch_node import Cluster
from tools.opensearch_plugin import SETTINGS, build, put_pipeline

WEIGHTS = "bm25*0.40 + text*0.35 + meta*0.25"
DEPTH = 100
BLOCK = 40  # searches of a client between two turns
HITS = 10
NOT_RERANKED = "not reranked"


def search(connection: http.client.HTTPConnection, pipeline: str, text: str) -> tuple[int, bytes]:
    """Search for a text, and return status and body of the response."""
    body = json.dumps({"query": {"match": {"content": text}}, "size": HITS})
    return post(connection, f"/{INDEX}/_search?search_pipeline={pipeline}", body.encode())


@dataclass
class Load:
    """Clients that search with random queries, each over its own connections.

    urls:     the nodes. Each search goes to a random one.
    pipeline: the search pipeline.
    expected: query -> ids of the hits; None: they are not compared.
    """

    urls: Sequence[str]
    pipeline: str
    queries: Sequence[str]
    expected: dict[str, list[str]] | None = None
    milliseconds: list[float] = field(default_factory=list)
    problems: Counter[str] = field(default_factory=Counter)
    completed: list[float] = field(default_factory=list)  # times of correct responses
    longest_gap: float = 0.0  # seconds without a correct response, while clients search
    lock: threading.Lock = field(default_factory=threading.Lock)

    def client(self, seed: int, count: int | None, stop: threading.Event) -> None:
        """Send ``count`` searches, or until the event is set."""
        rng = random.Random(seed)
        connections = [connection_to(url) for url in self.urls]
        for _ in itertools.count() if count is None else range(count):
            if stop.is_set():
                break
            text = rng.choice(self.queries)
            begin = time.perf_counter()
            problem = self.problem_of_search(text, rng.sample(connections, len(connections)))
            took = 1000 * (time.perf_counter() - begin)
            with self.lock:
                if problem is None:
                    self.milliseconds.append(took)
                    self.completed.append(time.monotonic())
                else:
                    self.problems[problem] += 1

    def problem_of_search(self, text: str, connections: Sequence[http.client.HTTPConnection]) -> str | None:
        """Search on the first node that answers. Return the problem, or None for a correct response."""
        for connection in connections:
            try:
                status, data = search(connection, self.pipeline, text)
            except (OSError, http.client.HTTPException):
                connection.close()
                continue
            return self.problem_of(text, status, data)
        return "no node answers"

    def problem_of(self, text: str, status: int, data: bytes) -> str | None:
        """Return why a response is an error, or None."""
        if status != 200:
            return f"status {status}: {data[:200]!r}"
        response = json.loads(data)
        if response["_shards"]["failed"] or response["timed_out"]:
            return "incomplete: " + json.dumps(response["_shards"])[:200]
        if self.expected is not None and hit_ids(response) != self.expected[text]:
            return NOT_RERANKED
        return None

    def run(self, clients: int, count: int) -> float:
        """Let each client send ``count`` searches. Return the searches per second."""
        begin = time.perf_counter()
        with self.running(clients, count):
            pass
        return clients * count / (time.perf_counter() - begin)

    @contextmanager
    def running(self, clients: int, count: int | None = None) -> Iterator[None]:
        """Let clients search during the block or, with ``count``, until each has sent so many searches."""
        stop = threading.Event()
        completed_before = len(self.completed)
        with ThreadPoolExecutor(clients) as pool:
            running = [pool.submit(self.client, seed, count, stop) for seed in range(clients)]
            try:
                yield
            finally:
                if count is None:
                    stop.set()
        for client in running:
            client.result()
        times = sorted(self.completed[completed_before:])
        gaps = (after - before for before, after in pairwise(times))
        self.longest_gap = max(self.longest_gap, *gaps, 0.0)

    def wait_for(self, count: int) -> None:
        """Wait until ``count`` more searches have ended."""
        until = len(self.milliseconds) + count
        end = time.monotonic() + 300
        while len(self.milliseconds) < until and time.monotonic() < end:
            time.sleep(0.05)

    def report(self, name: str) -> None:
        """Print the counts, the times, and the longest time without a correct response."""
        not_reranked = self.problems.pop(NOT_RERANKED, 0)
        counts = f"errors {sum(self.problems.values())}, not reranked {not_reranked}"
        times = f"{percentiles(self.milliseconds)} ms; longest gap {self.longest_gap:.1f} s"
        print(f"{name}: {len(self.milliseconds)} searches, {counts}; {times}", flush=True)
        for error, count in self.problems.most_common(3):
            print(f"    {count} times {error}")


def measure_clients(urls: Sequence[str], queries: Sequence[str], clients: int, blocks: int) -> None:
    """Print the latency and the throughput of hooked searches, divided by those of plain searches."""
    pipelines = {"plain": NONE, "hooked": "hooked"}
    latencies: dict[str, list[float]] = {name: [] for name in pipelines}
    rates: dict[str, list[float]] = {name: [] for name in pipelines}
    loads = {name: Load(urls, pipeline, queries) for name, pipeline in pipelines.items()}
    count = max(BLOCK // clients, 5)
    for _ in range(blocks):
        for name, load in loads.items():
            begin = len(load.milliseconds)
            rates[name].append(load.run(clients, count))
            latencies[name].append(float(np.median(load.milliseconds[begin:])))
    for name, load in loads.items():
        load.report(f"{clients} clients, {name}")
    ratio = np.median(np.divide(latencies["hooked"], latencies["plain"]))
    share = np.median(np.divide(rates["hooked"], rates["plain"]))
    shown = f"latency {ratio:.2f} times, throughput {share:.2f} of plain searches"
    print(f"{clients} clients: {shown}", flush=True)


def rankings(urls: Sequence[str], queries: Sequence[str], pipeline: str) -> dict[str, list[str]]:
    """Return the ids of the hits of each query."""
    connection = connection_to(urls[0])
    responses = {text: json.loads(search(connection, pipeline, text)[1]) for text in queries}
    return {text: hit_ids(response) for text, response in responses.items()}


def hit_ids(response: Mapping[str, Any]) -> list[str]:
    return [hit["_id"] for hit in response["hits"]["hits"]]


def kill_node(cluster: Cluster, queries: Sequence[str], clients: int, kills: int) -> None:
    """Kill a node under load, several times, and print the errors of the clients.

    The load is of ``clients`` clients with the hook, and of as many without a pipeline. It stops while the
    node starts again.
    """
    hooked = Load(cluster.urls, "hooked", queries)
    plain = Load(cluster.urls, NONE, queries)
    victim = cluster.nodes[-1]
    survivors = cluster.nodes[:-1]
    before = hook_counts(survivors)
    for _ in range(kills):
        with plain.running(clients), hooked.running(clients):
            hooked.wait_for(5 * clients)
            victim.kill()
            hooked.wait_for(10 * clients)
        victim.start().wait(len(cluster.nodes))
        for node in cluster.nodes:
            node.wait(len(cluster.nodes))
        cluster.nodes[0].request("GET", "/_cluster/health?wait_for_status=green&timeout=50s")
    plain.report(f"node killed {kills} times, {clients} clients, plain")
    hooked.report(f"node killed {kills} times, {clients} clients, hooked")
    print("    on the other nodes:", dict(hook_counts(survivors) - before), flush=True)


def kill_service(cluster: Cluster, workspace: Path, queries: Sequence[str], clients: int) -> None:
    """Kill one of the two services of a pipeline, and print the errors of the clients."""
    with ExitStack() as stack:
        first = stack.enter_context(service_process(workspace, workspace.parent / "first.log"))
        second = stack.enter_context(service_process(workspace, workspace.parent / "second.log"))
        config = {"stack": WEIGHTS, "depth": DEPTH, "timeout": TIMEOUT_MS}
        put_pipeline(cluster.nodes[0], "two", url=f"{first[0]},{second[0]}", **config)
        expected = rankings(cluster.urls, queries, "two")
        load = Load(cluster.urls, "two", queries, expected)
        before = hook_counts(cluster.nodes)
        with load.running(clients):
            load.wait_for(20 * clients)
            first[1].send_signal(signal.SIGKILL)
            load.wait_for(60 * clients)
        load.report(f"two services, one killed, {clients} clients")
        print("    searches:", dict(hook_counts(cluster.nodes) - before))
        print(f"    service: {memory(second[1].pid):.0f} MiB", flush=True)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--workspace", type=Path, required=True)
    options.add_argument("--nodes", type=int, default=3)
    options.add_argument("--shards", type=int, default=5)
    options.add_argument("--replicas", type=int, default=1)
    options.add_argument("--heap", default="512m", help="of each node")
    options.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    options.add_argument("--blocks", type=int, default=15, help="pairs of blocks")
    options.add_argument("--kills", type=int, default=5, help="of a node")
    args = options.parse_args()
    queries = demo_queries()[:50]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cluster-")))
        settings = {name: value for name, value in SETTINGS.items() if name != "discovery.type"}
        cluster = Cluster(args.nodes, heap=args.heap, java=(), plugins=[build()], **settings)
        stack.callback(cluster.stop)
        node = cluster.start().nodes[0]
        workspace = filled(node, folder, args.workspace, shards=args.shards, replicas=args.replicas)
        node.request("GET", "/_cluster/health?wait_for_status=green&timeout=50s")
        with service_process(workspace, folder / "service.log") as (url, process):
            put_pipeline(node, "hooked", url=url, stack=WEIGHTS, depth=DEPTH, timeout=TIMEOUT_MS)
            for pipeline in (NONE, "hooked"):  # compile the code of the nodes
                Load(cluster.urls, pipeline, queries).run(4, 100)
            for clients in args.clients:
                measure_clients(cluster.urls, queries, clients, args.blocks)
            print("searches:", dict(hook_counts(cluster.nodes)))
            print(f"service: {memory(process.pid):.0f} MiB", flush=True)
            kill_node(cluster, queries, 16, args.kills)
        kill_service(cluster, workspace, queries, 8)
        print("nodes:", [round(memory(node.process.pid)) for node in cluster.nodes if node.process], "MiB")


if __name__ == "__main__":
    main()
