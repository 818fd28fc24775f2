"""Mixed load for many minutes, at a share of the maximum rate: errors, times and memory.

    python benchmarks/robustness/soak.py [--workspace DIR] [--minutes 10] [--share 0.8] [--workers 1]

DIR has the rankers of ``rerank demo``; without it, the demo runs first. The articles of the demo are in a
real node with the plugin. The service runs on the same machine. Of ten requests, six are plain searches on
the node with the hook, two are /v1/search, and two are /v1/rerank with 20 documents of 200 words.

First, more and more clients send requests without a pause. The highest rate is the maximum. Then the script
sends requests at ``share`` of this rate, on schedule, without waiting for previous responses. Times are
measured from the scheduled time of a request.

``--hostile 0.05`` measures twice, the second time with this share of additional hostile requests: endless
headers, half requests, slow bodies, foreign hosts, oversized numbers and queries. It prints the statuses of
their responses (from 500, only 503 is allowed), and the p99 of the other requests with and without them. A
short run:

    python benchmarks/robustness/soak.py --workspace DIR --rate 40 --find 3 --minutes 0.5 --hostile 0.05
"""

from __future__ import annotations

import argparse
import http.client
import json
import queue
import random
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from benchmarks.common.hook import CORPUS, INDEX, filled, hook_counts, plugin_node
from benchmarks.common.processes import memory
from benchmarks.common.service import (
    cli,
    connection_to,
    demo_workspace,
    equal_weights,
    post,
    service_process,
    worker_processes,
)
from rerank.formats import read_corpus, read_queries
from rerank.workflows.demo import COLLECTION
from rerank.workspace.workspace import Workspace
from tools.opensearch_node import Node

MIX = {"hook": 6, "search": 2, "rerank": 2}
DOCUMENTS, WORDS = 20, 200
JSON = "Content-Type: application/json\r\n"
EVERY = 5  # seconds between two samples of the processes


@dataclass(frozen=True)
class Ask:
    """A request to the node or to the service."""

    kind: str
    url: str
    path: str
    body: bytes


def make_requests(node: str, service: str, count: int = 3000) -> list[Ask]:
    """Return requests of all kinds in random order, from the queries and articles of the demo."""
    draw = random.Random(0)
    queries = [query.text.split() for query in read_queries(COLLECTION / "queries.jsonl.gz")]
    words = [word for article in read_corpus(CORPUS) for word in article.text.split()]
    documents = [" ".join(words[i : i + WORDS]) for i in range(0, len(words) - WORDS, WORDS)]
    asks = []
    for kind in draw.choices(list(MIX), list(MIX.values()), k=count):
        query = draw.choice(queries)
        text = " ".join(draw.sample(query, min(8, len(query))))
        if kind == "hook":
            body: dict[str, object] = {"query": {"match": {"content": text}}, "size": 10}
            asks.append(Ask(kind, node, f"/{INDEX}/_search", json.dumps(body).encode()))
            continue
        body = {"query": text}
        if kind == "rerank":
            body["documents"] = draw.sample(documents, DOCUMENTS)
        asks.append(Ask(kind, service, f"/v1/{kind}", json.dumps(body).encode()))
    return asks


@dataclass
class Load:
    """Clients that send requests and record times and errors. Each has a connection per host."""

    asks: list[Ask]
    seconds: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind in MIX})
    errors: Counter[str] = field(default_factory=Counter)

    def client(self, due: queue.Queue[tuple[float, Ask] | None]) -> None:
        connections = {url: connection_to(url) for url in {ask.url for ask in self.asks}}
        while (request := due.get()) is not None:
            when, ask = request
            try:
                status, data = post(connections[ask.url], ask.path, ask.body)
                if status != 200:
                    self.errors[f"{ask.kind}: {status} {data[:100]!r}"] += 1
            except (OSError, http.client.HTTPException) as error:
                self.errors[f"{ask.kind}: {type(error).__name__} {error}"] += 1
                connections[ask.url].close()
            self.seconds[ask.kind].append(time.perf_counter() - when)

    @contextmanager
    def clients(self, count: int, waiting: int = 0) -> Iterator[queue.Queue[tuple[float, Ask] | None]]:
        """Run clients, and yield the queue of their requests. At the end, wait until it is empty.

        waiting: the most requests in the queue; 0: no limit.
        """
        due: queue.Queue[tuple[float, Ask] | None] = queue.Queue(waiting)
        threads = [threading.Thread(target=self.client, args=(due,)) for _ in range(count)]
        for thread in threads:
            thread.start()
        yield due
        for _ in threads:
            due.put(None)
        for thread in threads:
            thread.join()

    def most(self, clients: int, seconds: float) -> float:
        """Return the requests per second that ``clients`` clients complete without pauses."""
        begin, sent = time.perf_counter(), 0
        with self.clients(clients, waiting=1) as due:
            while (now := time.perf_counter()) < begin + seconds:
                due.put((now, self.asks[sent % len(self.asks)]))
                sent += 1
        return sent / (time.perf_counter() - begin)

    def steady(self, rate: float, seconds: float) -> None:
        """Send requests at this mean rate (per second), at random times."""
        draw = random.Random(1)
        with self.clients(64) as due:
            begin = when = time.perf_counter()
            number = 0
            while when < begin + seconds:
                time.sleep(max(0.0, when - time.perf_counter()))
                due.put((when, self.asks[number % len(self.asks)]))
                number += 1
                when += draw.expovariate(rate)


def hostile(service: str, node: str, number: int) -> str:
    """Send a hostile request. Return the status, ``closed`` or the name of an error."""
    large = json.dumps({"query": "a", "documents": [{"text": "a", "n": 10**400}], "return_documents": True})
    long = json.dumps({"query": {"match_all": {}}, "ext": {"rerank_stack": {"query": "x" * 850_000}}})
    kinds: list[tuple[str, list[bytes]]] = [
        (service, [b"GET /healthz HTTP/1.1\r\nX: ", *[b"x" * 65536] * 64]),
        (service, [b"GET /healthz HTTP/1.1\r\n", *[b"a: b\r\n" * 1000] * 20]),
        (service, [b"GET /hea"]),
        (service, [_post("/v1/search", "{" * 100)[:-99]]),  # the rest of the body never comes
        (service, [b"GET /metrics HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n"]),
        (service, [_post("/v1/rerank", large)]),
        (node, [_post(f"/{INDEX}/_search", long)]),
    ]
    host, parts = kinds[number % len(kinds)]
    name, _, port = host.removeprefix("http://").rpartition(":")
    with socket.create_connection((name, int(port)), timeout=30) as raw:
        with suppress(OSError):
            for part in parts:
                raw.sendall(part)
        try:
            answer = raw.recv(4096)
        except OSError as error:
            return type(error).__name__
    return answer[9:12].decode() or "closed"


def _post(path: str, body: str) -> bytes:
    headers = f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{JSON}{headers}{body}".encode()


@contextmanager
def repeating(action: Callable[[], object], seconds: float) -> Iterator[None]:
    """Run an action again and again while the block runs, with pauses of some seconds."""
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(seconds):
            action()

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def harm(service: str, node: str, rate: float) -> Iterator[Counter[str]]:
    """Send ``rate`` hostile requests per second while the block runs. Yields the responses by status."""
    answers: Counter[str] = Counter()
    numbers = count()
    lock = threading.Lock()

    def attack() -> None:
        status = hostile(service, node, next(numbers))
        with lock:
            answers[status] += 1

    with ThreadPoolExecutor(64) as pool, repeating(lambda: pool.submit(attack), 1 / rate):
        yield answers


@contextmanager
def watching(processes: dict[str, int]) -> Iterator[None]:
    """Sample the memory of processes while the block runs, and print it."""
    samples: dict[str, list[float]] = {name: [] for name in processes}

    def sample() -> None:
        for name, process in processes.items():
            samples[name].append(memory(process))

    with repeating(sample, EVERY):
        yield
    for name, rss in samples.items():
        half = rss[len(rss) // 2]
        begin_and_half = f"{rss[0]:.0f} MiB at first, {half:.0f} at half time"
        print(f"{name}: RSS {begin_and_half}, {rss[-1]:.0f} at the end, at most {max(rss):.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workspace", type=Path, help="Workspace with rankers. Default: run `rerank demo`.")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--share", type=float, default=0.8, help="Share of the maximum rate. Default: 0.8.")
    parser.add_argument("--rate", type=float, help="Requests per second; replaces --share.")
    parser.add_argument("--find", type=float, default=15, help="Seconds per number of clients. Default: 15.")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--hostile", type=float, default=0.0, help="Share of hostile requests. Default: 0.")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as temporary:
        folder = Path(temporary)
        rankers = demo_workspace(options.workspace, folder)
        with plugin_node() as node:
            workspace = filled(node, folder, rankers)
            stack = equal_weights(["tfidf", *Workspace.open(workspace).trained()])
            log = folder / "serve.log"
            serving = ("--stack", stack, "--workers", options.workers, "--max-requests", 256)
            with service_process(workspace, log, *serving) as (service, _):
                workers = worker_processes(log, options.workers)
                hook = ("--service", service, "--stack", stack, "--timeout", 20, "--default")
                cli("hook", "install", "-w", workspace, *hook)
                soak(options, node, service, workers)
            problems = [line for line in log.read_text().splitlines() if '"level": "error"' in line]
            print(f"errors in the service's log: {len(problems)}", *problems[:5], sep="\n    ")


def soak(options: argparse.Namespace, node: Node, service: str, workers: dict[str, int]) -> None:
    asks = make_requests(node.url, service)
    Load(asks).most(8, options.find)  # warm-up
    rates = {}
    for clients in (4, 8, 16, 32, 64) if options.rate is None else ():
        load = Load(asks)
        rates[clients] = load.most(clients, options.find)
        errors = sum(load.errors.values())
        print(f"{clients} clients: {rates[clients]:.0f} a second, {errors} errors", flush=True)
    rate = options.rate or options.share * max(rates.values())
    print(f"{options.minutes:g} minutes at {rate:.0f} a second, {options.workers} workers", flush=True)
    before = hook_counts([node])
    load = Load(asks)
    assert node.process is not None
    processes = {**workers, "node": node.process.pid}
    with watching(processes):
        load.steady(rate, 60 * options.minutes)
    after = hook_counts([node])
    for kind, seconds in load.seconds.items():
        low, high, last = 1000 * np.percentile(seconds, (50, 99, 100))
        print(f"{kind}: {len(seconds)} requests, p50 {low:.1f} ms, p99 {high:.1f} ms, longest {last:.0f} ms")
    requests = sum(map(len, load.seconds.values()))
    print(f"errors: {sum(load.errors.values())} of {requests}", *load.errors.items())
    print("hook:", ", ".join(f"{name} {count}" for name, count in (after - before).items()))
    if options.hostile:
        again = Load(asks)
        with watching(processes), harm(service, node.url, options.hostile * rate) as answers:
            again.steady(rate, 60 * options.minutes)
        for kind, seconds in again.seconds.items():
            with_harm, without = (1000 * np.percentile(times, 99) for times in (seconds, load.seconds[kind]))
            times = with_harm / without
            print(f"{kind}, with hostile ones: p99 {with_harm:.1f} ms, {times:.2f} times (target 2)")
        bad = sum(n for status, n in answers.items() if status.startswith("5") and status != "503")
        print(f"hostile: {dict(answers)}; 5xx: {bad} (target 0); errors of others: {dict(again.errors)}")


if __name__ == "__main__":
    main()
