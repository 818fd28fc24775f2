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
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from benchmarks.common.hook import CORPUS, INDEX, filled, hook_counts, plugin_node
from benchmarks.common.processes import memory
from benchmarks.common.service import cli, demo_workspace, equal_weights, service_process, worker_processes
from rerank.formats import read_corpus, read_queries
from rerank.workflows.demo import COLLECTION
from rerank.workspace.workspace import Workspace
from tools.opensearch_node import Node

MIX = {"hook": 6, "search": 2, "rerank": 2}
DOCUMENTS, WORDS = 20, 200
EVERY = 5  # seconds between two samples of the processes


@dataclass(frozen=True)
class Ask:
    kind: str
    host: str
    path: str
    body: bytes


def requests(node: str, service: str, count: int = 3000) -> list[Ask]:
    """Requests of all kinds in random order, from the queries and articles of the demo."""
    draw = random.Random(0)
    queries = [query.text.split() for query in read_queries(COLLECTION / "queries.jsonl.gz")]
    words = [word for article in read_corpus(CORPUS) for word in article.text.split()]
    documents = [" ".join(words[i : i + WORDS]) for i in range(0, len(words) - WORDS, WORDS)]
    node, service = node.removeprefix("http://"), service.removeprefix("http://")
    made = []
    for kind in draw.choices(list(MIX), list(MIX.values()), k=count):
        query = draw.choice(queries)
        text = " ".join(draw.sample(query, min(8, len(query))))
        if kind == "hook":
            body: dict[str, object] = {"query": {"match": {"content": text}}, "size": 10}
            made.append(Ask(kind, node, f"/{INDEX}/_search", json.dumps(body).encode()))
        else:
            body = {"query": text}
            if kind == "rerank":
                body["documents"] = draw.sample(documents, DOCUMENTS)
            made.append(Ask(kind, service, f"/v1/{kind}", json.dumps(body).encode()))
    return made


@dataclass
class Load:
    """Clients that send requests and record times and errors. Each has a connection per host."""

    asks: list[Ask]
    seconds: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind in MIX})
    errors: Counter[str] = field(default_factory=Counter)

    def client(self, due: queue.Queue[tuple[float, Ask] | None]) -> None:
        connections: dict[str, http.client.HTTPConnection] = {}
        while (found := due.get()) is not None:
            when, ask = found
            connection = connections.get(ask.host)
            if connection is None:
                connection = connections[ask.host] = http.client.HTTPConnection(ask.host, timeout=60)
            try:
                connection.request("POST", ask.path, ask.body, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                data = answer.read()
                if answer.status != 200:
                    self.errors[f"{ask.kind}: {answer.status} {data[:100]!r}"] += 1
            except (OSError, http.client.HTTPException) as error:
                self.errors[f"{ask.kind}: {type(error).__name__} {error}"] += 1
                connection.close()
                del connections[ask.host]
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
    """Send a hostile request. Returns the status, ``closed`` or the name of an error."""
    head = b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    large = json.dumps({"query": "a", "documents": [{"text": "a", "n": 10**400}], "return_documents": True})
    long = json.dumps({"query": {"match_all": {}}, "ext": {"rerank_stack": {"query": "x" * 850_000}}})
    kinds: list[tuple[str, list[bytes]]] = [
        (service, [b"GET /healthz HTTP/1.1\r\nX: ", *[b"x" * 65536] * 64]),
        (service, [b"GET /healthz HTTP/1.1\r\n", *[b"a: b\r\n" * 1000] * 20]),
        (service, [b"GET /hea"]),
        (service, [head + b"Content-Length: 100\r\n\r\n{"]),
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
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
    )
    return f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()


@contextmanager
def harm(service: str, node: str, rate: float) -> Iterator[Counter[str]]:
    """Send ``rate`` hostile requests per second while the block runs. Yields the responses by status."""
    answers: Counter[str] = Counter()
    over = threading.Event()
    lock = threading.Lock()

    def attack(number: int) -> None:
        found = hostile(service, node, number)
        with lock:
            answers[found] += 1

    def attacks() -> None:
        with ThreadPoolExecutor(64) as pool:
            for number in count():
                if over.wait(1 / rate):
                    return
                pool.submit(attack, number)

    thread = threading.Thread(target=attacks)
    thread.start()
    try:
        yield answers
    finally:
        over.set()
        thread.join()


class Watch:
    """Samples of the memory of processes while the block runs."""

    def __init__(self, processes: dict[str, int]) -> None:
        self.processes = processes
        self.samples: dict[str, list[float]] = {name: [] for name in processes}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._over.wait(EVERY):
            for name, process in self.processes.items():
                self.samples[name].append(memory(process))

    def report(self) -> None:
        for name, rss in self.samples.items():
            half = rss[len(rss) // 2]
            print(
                f"{name}: RSS {rss[0]:.0f} MiB at first, {half:.0f} at half time, {rss[-1]:.0f} at the end,"
                f" at most {max(rss):.0f}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workspace", type=Path, help="Workspace with rankers. Default: run `rerank demo`.")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--share", type=float, default=0.8, help="Share of the maximum rate. Default: 0.8.")
    parser.add_argument("--rate", type=float, help="Requests per second; replaces --share.")
    parser.add_argument("--find", type=float, default=15, help="Seconds per number of clients. Default: 15.")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument(
        "--hostile", type=float, default=0.0, help="Hostile requests, as a share of the others. Default: 0."
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as temporary:
        folder = Path(temporary)
        rankers = demo_workspace(given.workspace, folder)
        with plugin_node() as node:
            workspace = filled(node, folder, rankers)
            stack = equal_weights(["tfidf", *Workspace.open(workspace).trained()])
            log = folder / "serve.log"
            options = ("--stack", stack, "--workers", given.workers, "--max-requests", 256)
            with service_process(workspace, log, *options) as (service, _):
                pids = worker_processes(log, given.workers)
                workers = {f"worker {number}": pid for number, pid in enumerate(pids, 1)}
                hook = ("--service", service, "--stack", stack, "--timeout", 20, "--default")
                cli("hook", "install", "-w", workspace, *hook)
                soak(given, node, service, workers)
            problems = [line for line in log.read_text().splitlines() if '"level": "error"' in line]
            print(f"errors in the service's log: {len(problems)}", *problems[:5], sep="\n    ")


def soak(given: argparse.Namespace, node: Node, service: str, workers: dict[str, int]) -> None:
    asks = requests(node.url, service)
    Load(asks).most(8, given.find)  # warm-up
    rates = {}
    for clients in (4, 8, 16, 32, 64) if given.rate is None else ():
        load = Load(asks)
        rates[clients] = load.most(clients, given.find)
        print(
            f"{clients} clients: {rates[clients]:.0f} a second, {sum(load.errors.values())} errors",
            flush=True,
        )
    rate = given.rate or given.share * max(rates.values())
    print(f"{given.minutes:g} minutes at {rate:.0f} a second, {given.workers} workers", flush=True)
    before = hook_counts([node])
    load = Load(asks)
    assert node.process is not None
    with Watch({**workers, "node": node.process.pid}) as watch:
        load.steady(rate, 60 * given.minutes)
    after = hook_counts([node])
    for kind, seconds in load.seconds.items():
        low, high, last = 1000 * np.percentile(seconds, (50, 99, 100))
        print(f"{kind}: {len(seconds)} requests, p50 {low:.1f} ms, p99 {high:.1f} ms, longest {last:.0f} ms")
    print(
        f"errors: {sum(load.errors.values())} of {sum(map(len, load.seconds.values()))}", *load.errors.items()
    )
    print("hook:", ", ".join(f"{name} {count}" for name, count in (after - before).items()))
    watch.report()
    if given.hostile:
        again = Load(asks)
        with Watch({**workers, "node": node.process.pid}) as watch, ExitStack() as stack:
            answers = stack.enter_context(harm(service, node.url, given.hostile * rate))
            again.steady(rate, 60 * given.minutes)
        for kind, seconds in again.seconds.items():
            with_harm, without = (1000 * np.percentile(times, 99) for times in (seconds, load.seconds[kind]))
            times = with_harm / without
            print(f"{kind}, with hostile ones: p99 {with_harm:.1f} ms, {times:.2f} times (target 2)")
        bad = sum(n for status, n in answers.items() if status.startswith("5") and status != "503")
        print(
            f"hostile: {dict(answers)}; 5xx of ours: {bad} (target 0); errors of others: {dict(again.errors)}"
        )
        watch.report()


if __name__ == "__main__":
    main()
