"""The cases of the benchmarks of the hook: an index, a service, searches, and their times."""

from __future__ import annotations

import gzip
import http.client
import json
import random
import shutil
import socket
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from benchmarks.common.index import force_merge
from benchmarks.common.service import cli
from benchmarks.common.service import processor as processor
from benchmarks.common.service import service_process as service_process
from tools.opensearch_node import Node

INDEX = "speed"
WEIGHTS = "tfidf*0.40 + text*0.35 + meta*0.25"
NONE = "_none"


def connect(url: str) -> http.client.HTTPConnection:
    """Open a connection that sends data without delay (TCP_NODELAY)."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
    connection.connect()
    connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def asking(url: str, path: str) -> Callable[[bytes], tuple[float, bytes]]:
    """Return a function that posts a body and returns the milliseconds and the response."""
    connection = connect(url)

    def ask(body: bytes) -> tuple[float, bytes]:
        begin = time.perf_counter()
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        data = answer.read()
        spent = 1000 * (time.perf_counter() - begin)
        if answer.status != 200:
            sys.exit(f"{path}: {answer.status} {data[:500]!r}")
        return spent, data

    return ask


def texts(path: str, words: int, seed: int = 0) -> list[str]:
    """Queries of a file in random order, each reduced to ``words`` random words. 0: all words."""
    with (
        gzip.open(path, "rt", encoding="utf-8") if path.endswith(".gz") else open(path, encoding="utf-8") as f
    ):
        found = [json.loads(line)["text"] for line in f]
    draw = random.Random(seed)
    draw.shuffle(found)
    if words:
        found = [" ".join(draw.sample(text.split(), min(words, len(text.split())))) for text in found]
    return [text for text in found if text.strip()]


def filled(node: Node, folder: Path, rankers: Path, corpus: str, *options: object) -> Path:
    """Create a workspace with these rankers and an index of the collection, one segment per shard."""
    workspace, few = folder / "ws", folder / "few.jsonl"
    with gzip.open(corpus, "rt", encoding="utf-8") as lines:
        few.write_text("".join(line for line, _ in zip(lines, range(5))), "utf-8")
    options = ("--url", node.url, "--index", INDEX, "--replicas", 0, *options)
    categories = rankers / "categories.tsv"
    if categories.exists():
        options += ("--categories", categories)
    cli("ingest", few, "-w", workspace, *options)
    shutil.copytree(rankers / "rankers", workspace / "rankers")
    print(cli("ingest", corpus, "--replace", "-w", workspace).strip())
    force_merge(node, INDEX)
    return workspace


def percentiles(times: Sequence[float]) -> str:
    low, middle, high = np.percentile(times, (50, 90, 99))
    return f"p50 {low:6.2f}  p90 {middle:6.2f}  p99 {high:6.2f}"


class Case:
    """A kind of search: number of hits and pipeline."""

    def __init__(
        self,
        node: Node,
        name: str,
        size: int,
        pipeline: str,
        more: dict[str, object],
        index: str = INDEX,
        field: str = "content.tfidf",
    ) -> None:
        self.name, self.size, self.more = name, size, more
        self.attached = index != INDEX
        self.field = field
        self.path = f"/{index}/_search?search_pipeline={pipeline}"
        self.url = node.url
        self.ask = asking(node.url, self.path)
        self.times: list[float] = []

    def body(self, text: str) -> bytes:
        query: dict[str, object] = {"match": {self.field: {"query": text}}}
        if self.attached:
            words = {"query": text, "fields": ["title^2", "text"], "type": "most_fields"}
            query = {"bool": {"must": {"multi_match": words}, "must_not": {"term": {"categories": "none"}}}}
        return json.dumps({"query": query, "size": self.size, **self.more}).encode()


def alone(cases: Sequence[Case], queries: Sequence[str], rounds: int, warm: int) -> None:
    """Measure all cases in turns, one query at a time, in a random order in each turn."""
    draw = random.Random(0)
    for number in range(warm + rounds):
        for case in draw.sample(cases, len(cases)):
            took, _ = case.ask(case.body(queries[number % len(queries)]))
            if number >= warm:
                case.times.append(took)


def together(case: Case, queries: Sequence[str], clients: int, rounds: int) -> list[float]:
    """Milliseconds of one case with several concurrent clients."""

    def client(first: int) -> list[float]:
        ask = asking(case.url, case.path)
        return [ask(case.body(queries[(first + i) % len(queries)]))[0] for i in range(rounds)]

    with ThreadPoolExecutor(clients) as pool:
        return [took for times in pool.map(client, range(0, clients * 37, 37)) for took in times]
