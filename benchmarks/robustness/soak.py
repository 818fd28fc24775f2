"""Mixed load for many minutes, at a share of the maximum rate: errors, times, memory, open files.

    python benchmarks/robustness/soak.py [--workspace DIR] [--minutes 10] [--share 0.8] [--workers 1]

DIR has the rankers of ``rerank demo``; without it, the demo runs first. The articles of the demo are in a
real node with the plugin. The service runs on the same machine. Of ten requests, six are plain searches on
the node with the hook, two are /v1/search, and two are /v1/rerank with 20 documents of 200 words.

First, more and more clients send requests without a pause. The highest rate is the maximum. Then the script
sends requests at ``share`` of this rate, on schedule, without waiting for previous responses. Times are
measured from the scheduled time of a request. The growth of memory is the RSS per hour of each worker, by a
line fitted to the second half of the time. The number of sockets grows with the number of concurrent
requests, because clients and the node keep a connection for each. The number of open files does not grow
with them.

``--hostile 0.05`` measures twice, the second time with this share of additional hostile requests: endless
headers, half requests, slow bodies, foreign hosts, oversized numbers and queries. It prints the statuses of
their responses (from 500, only 503 is allowed), and the p99 of the other requests with and without them. A
short run:

    python benchmarks/robustness/soak.py --workspace DIR --rate 40 --find 3 --minutes 0.5 --hostile 0.05
"""

from __future__ import annotations

import argparse
import gzip
import http.client
import json
import os
import queue
import random
import re
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

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # tools
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "speed"))

import numpy as np
from hook_cases import INDEX, filled

import rerank.workflows.demo
from benchmarks.common.service import cli, equal_weights, service_process, worker_processes
from rerank.workspace.workspace import Workspace
from tools.opensearch_node import Node, running
from tools.opensearch_plugin import SETTINGS, build

MIX = {"hook": 6, "search": 2, "rerank": 2}
DOCUMENTS, WORDS = 20, 200
EVERY = 5  # seconds between two samples of the processes


@dataclass(frozen=True)
class Ask:
    """A request."""

    kind: str
    host: str
    path: str
    body: bytes


def requests(node: str, service: str, count: int = 3000) -> list[Ask]:
    """Requests of all kinds in random order, from the queries and articles of the demo."""
    draw = random.Random(0)

    def read(name: str) -> list[dict[str, str]]:
        with gzip.open(rerank.workflows.demo.COLLECTION / name, "rt", encoding="utf-8") as lines:
            return [json.loads(line) for line in lines]

    queries = [query["text"].split() for query in read("queries.jsonl.gz")]
    words = [word for article in read("corpus.jsonl.gz") for word in article["text"].split()]
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

    def most(self, clients: int, seconds: float) -> float:
        """Requests per second that ``clients`` clients complete without pauses."""
        due: queue.Queue[tuple[float, Ask] | None] = queue.Queue(1)
        threads = [threading.Thread(target=self.client, args=(due,)) for _ in range(clients)]
        for thread in threads:
            thread.start()
        begin, sent = time.perf_counter(), 0
        while (now := time.perf_counter()) < begin + seconds:
            due.put((now, self.asks[sent % len(self.asks)]))
            sent += 1
        for _ in threads:
            due.put(None)
        for thread in threads:
            thread.join()
        return sent / (time.perf_counter() - begin)

    def steady(self, rate: float, seconds: float, clients: int = 64) -> None:
        """Send requests at this mean rate (per second), at random times."""
        due: queue.Queue[tuple[float, Ask] | None] = queue.Queue()
        threads = [threading.Thread(target=self.client, args=(due,)) for _ in range(clients)]
        for thread in threads:
            thread.start()
        draw = random.Random(1)
        begin = when = time.perf_counter()
        number = 0
        while when < begin + seconds:
            time.sleep(max(0.0, when - time.perf_counter()))
            due.put((when, self.asks[number % len(self.asks)]))
            number += 1
            when += draw.expovariate(rate)
        for _ in threads:
            due.put(None)
        for thread in threads:
            thread.join()


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
    """Samples of processes while the block runs: RSS in MiB, open files, and connections."""

    def __init__(self, processes: dict[str, int]) -> None:
        self.processes = processes
        self.samples: dict[str, list[tuple[float, float, int, int]]] = {name: [] for name in processes}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        begin = time.monotonic()
        while not self._over.wait(EVERY):
            for name, process in self.processes.items():
                status = Path(f"/proc/{process}/status").read_text()
                found = re.search(r"VmRSS:\s+(\d+) kB", status)
                assert found is not None
                opened = [
                    _kind(f"/proc/{process}/fd/{number}") for number in os.listdir(f"/proc/{process}/fd")
                ]
                sockets = opened.count("socket")
                sample = (time.monotonic() - begin, int(found[1]) / 1024, len(opened) - sockets, sockets)
                self.samples[name].append(sample)

    def report(self) -> None:
        for name, samples in self.samples.items():
            times, rss, files, sockets = map(np.array, zip(*samples))
            half = len(times) // 2
            slope = (
                3600 * np.polyfit(times[half:], rss[half:], 1)[0] if len(times) - half > 2 else float("nan")
            )
            print(
                f"{name}: RSS {rss[0]:.0f} MiB at first, {rss[half]:.0f} at half time, {rss[-1]:.0f} at the"
                f" end, at most {rss.max():.0f}, {slope:+.1f} MiB an hour;"
                f" open files {files[0]}, at most {files.max()}, {files[-1]} at the end;"
                f" sockets {sockets[0]}, at most {sockets.max()}, {sockets[-1]} at the end"
            )


def _kind(descriptor: str) -> str:
    try:
        return os.readlink(descriptor).partition(":")[0]
    except FileNotFoundError:  # closed since the listing
        return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workspace", help="Workspace with rankers. Default: run `rerank demo`.")
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
        rankers = Path(given.workspace or folder / "demo")
        if given.workspace is None:
            cli("demo", "-w", rankers)
        if not (rankers / "rankers").is_dir():
            sys.exit(
                f"{rankers}: no trained rankers. Omit --workspace, or pass the workspace of `rerank demo`."
            )
        with running(plugins=[build()], settings=SETTINGS, java=()) as node:
            workspace = filled(
                node, folder, rankers, str(rerank.workflows.demo.COLLECTION / "corpus.jsonl.gz")
            )
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
    before = node.request("GET", "/_plugins/_rerank_stack/stats")
    load = Load(asks)
    assert node.process is not None
    with Watch({**workers, "node": node.process.pid}) as watch:
        load.steady(rate, 60 * given.minutes)
    after = node.request("GET", "/_plugins/_rerank_stack/stats")
    for kind, seconds in load.seconds.items():
        low, high, last = 1000 * np.percentile(seconds, (50, 99, 100))
        print(f"{kind}: {len(seconds)} requests, p50 {low:.1f} ms, p99 {high:.1f} ms, longest {last:.0f} ms")
    print(
        f"errors: {sum(load.errors.values())} of {sum(map(len, load.seconds.values()))}", *load.errors.items()
    )
    counts = {
        "reranked": after["reranked"] - before["reranked"],
        **{
            f"{kind} {reason}": count - before[kind].get(reason, 0)
            for kind in ("passed", "failed")
            for reason, count in after[kind].items()
        },
    }
    print("hook:", ", ".join(f"{name} {count}" for name, count in counts.items()))
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
