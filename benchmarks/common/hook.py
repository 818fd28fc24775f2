"""A node with the plugin, indices and workspaces for it, and searches with their times."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

import numpy as np

from benchmarks.common.collection import write_corpus
from benchmarks.common.index import fill_index, force_merge
from benchmarks.common.processes import processor
from benchmarks.common.service import cli, connection_to, post, service_process
from rerank import Stack, Workspace
from rerank.formats import read_corpus, read_queries
from rerank.workflows.demo import COLLECTION
from tools.opensearch_node import Node, running
from tools.opensearch_plugin import SETTINGS, build, put_pipeline

CORPUS = COLLECTION / "corpus.jsonl.gz"
INDEX = "speed"
ATTACHED = "attached"
WEIGHTS = "tfidf*0.40 + text*0.35 + meta*0.25"
ATTACHED_WEIGHTS = WEIGHTS.replace("tfidf", "bm25")
NONE = "_none"
TIMEOUT_MS = 20_000  # of a call of the service: a busy machine must not change the results
FEW = 5  # documents with which a workspace is created, before it has rankers
QUERY_WORDS = 5
ADDED = ((100, 100), (50, 50))
"""Candidates, and documents that ``text`` adds."""
PERCENTILES = (10, 50, 99)
"""Percentiles of quotients of latencies."""


def plugin_node(heap: str = "1g") -> AbstractContextManager[Node]:
    """Run a node with the plugin, like the distribution, during a block."""
    return running(SETTINGS, heap=heap, plugins=[build()], java=())


def asking(url: str, path: str) -> Callable[[bytes], float]:
    """Return a function that posts a body and returns the milliseconds until the end of the response."""
    connection = connection_to(url)
    connection.connect()

    def ask(body: bytes) -> float:
        begin = time.perf_counter()
        status, data = post(connection, path, body)
        milliseconds = 1000 * (time.perf_counter() - begin)
        if status != 200:
            sys.exit(f"{path}: {status} {data[:500]!r}")
        return milliseconds

    return ask


def demo_queries() -> list[str]:
    """Return the queries of the demo in random order, each reduced to a few random words."""
    texts = [query.text for query in read_queries(COLLECTION / "queries.jsonl.gz")]
    draw = random.Random(0)
    draw.shuffle(texts)
    reduced = [" ".join(draw.sample(text.split(), min(QUERY_WORDS, len(text.split())))) for text in texts]
    return [text for text in reduced if text]


def filled(
    node: Node, folder: Path, rankers: Path, corpus: Path = CORPUS, *, shards: int = 1, replicas: int = 0
) -> Path:
    """Create a workspace with these rankers and an index of the collection, one segment per shard."""
    workspace = folder / "ws"
    few = folder / "few.jsonl.gz"
    write_corpus(few, islice(read_corpus(corpus), FEW))
    options = ["--url", node.url, "--index", INDEX, "--replicas", replicas, "--shards", shards]
    categories = rankers / "categories.tsv"
    if categories.exists():
        options += ["--categories", categories]
    cli("ingest", few, "-w", workspace, *options)
    shutil.copytree(rankers / "rankers", workspace / "rankers")
    print(cli("ingest", corpus, "--replace", "-w", workspace).strip())
    force_merge(node, INDEX)
    return workspace


def hook_counts(nodes: Sequence[Node]) -> Counter[str]:
    """Return how many searches these nodes reranked, passed and failed to rerank, by reason."""
    total: Counter[str] = Counter()
    for node in nodes:
        stats = node.request("GET", "/_plugins/_rerank_stack/stats")
        total["reranked"] += stats["reranked"]
        for kind in ("passed", "failed"):
            total.update({f"{kind} {reason}": count for reason, count in stats[kind].items()})
    return total


def percentiles(times: Sequence[float]) -> str:
    low, middle, high = np.percentile(times, (50, 90, 99))
    return f"p50 {low:6.2f}  p90 {middle:6.2f}  p99 {high:6.2f}"


@dataclass(eq=False)
class Case:
    """A kind of search: number of hits and pipeline.

    services: processes that answer its searches together with the node.
    times:    milliseconds of its measured searches.
    """

    node: Node
    name: str
    pipeline: str
    size: int = 10
    index: str = INDEX
    text_field: str = "content.tfidf"
    services: Sequence[int] = ()
    times: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.path = f"/{self.index}/_search?search_pipeline={self.pipeline}"
        self.ask = asking(self.node.url, self.path)

    def body(self, text: str) -> bytes:
        query: dict[str, object] = {"match": {self.text_field: {"query": text}}}
        if self.index == ATTACHED:
            words = {"query": text, "fields": ["title^2", "text"], "type": "most_fields"}
            query = {"bool": {"must": {"multi_match": words}, "must_not": {"term": {"categories": "none"}}}}
        return json.dumps({"query": query, "size": self.size}).encode()

    @property
    def processes(self) -> list[int]:
        """Return the processes that answer its searches."""
        assert self.node.process is not None
        return [self.node.process.pid, *self.services]

    @property
    def median(self) -> float:
        """Return the median latency in milliseconds."""
        return float(np.median(self.times))

    def quotients(self, reference: Case) -> str:
        """Return its latency divided by the latency of another case, at three percentiles."""
        ratios = np.percentile(self.times, PERCENTILES) / np.percentile(reference.times, PERCENTILES)
        return ", ".join(f"p{percentile} {ratio:.2f}" for percentile, ratio in zip(PERCENTILES, ratios))


def alone(cases: Sequence[Case], queries: Sequence[str], rounds: int, warm: int) -> None:
    """Measure all cases in turns, one query at a time, in a random order in each turn."""
    draw = random.Random(0)
    for number in range(warm + rounds):
        for case in draw.sample(cases, len(cases)):
            milliseconds = case.ask(case.body(queries[number % len(queries)]))
            if number >= warm:
                case.times.append(milliseconds)


def together(case: Case, queries: Sequence[str], clients: int, rounds: int) -> list[float]:
    """Return the milliseconds of one case with several concurrent clients."""

    def client(first: int) -> list[float]:
        ask = asking(case.node.url, case.path)
        return [ask(case.body(queries[(first + i) % len(queries)])) for i in range(rounds)]

    with ThreadPoolExecutor(clients) as pool:
        return [took for times in pool.map(client, range(0, clients * 37, 37)) for took in times]


@dataclass
class AttachedIndex:
    """The documents of the demo in an index that rerank does not own, and its workspace.

    python, checkout: the version of rerank that prepares the workspace and serves it.
    """

    node: Node
    workspace: Path
    python: Path = Path(sys.executable)
    checkout: Path | None = None

    def prepare(self, rankers: Path) -> None:
        """Index the documents, attach the workspace, and encode the documents by ``text`` and ``meta``."""
        text = {"type": "text", "analyzer": "english"}
        properties = {"title": text, "text": text, "categories": {"type": "keyword"}}
        fields = ("title", "text", "categories")
        corpus = read_corpus(CORPUS)
        documents = ((document.id, {name: getattr(document, name) for name in fields}) for document in corpus)
        fill_index(self.node, ATTACHED, {"dynamic": "false", "properties": properties}, documents)
        where = ("--url", self.node.url, "--index", ATTACHED, "-w", self.workspace, "--lang", "en")
        categories = rankers / "categories.tsv"
        self.run("attach", *(f"{name}={name}" for name in fields), *where, "--categories", categories)
        source = rankers / "rankers"
        others = [path.name for path in source.iterdir() if not re.match("(text|meta)[-.]", path.name)]
        shutil.copytree(source, self.workspace / "rankers", ignore=shutil.ignore_patterns(*others))
        self.run("encode", "-w", self.workspace)

    def run(self, *arguments: object) -> None:
        subprocess.run([self.python, "-m", "rerank.cli", *map(str, arguments)], check=True, cwd=self.checkout)

    def plain(self, name: str) -> Case:
        """Return a case without a pipeline."""
        return Case(self.node, name, NONE, index=ATTACHED)

    def hooked(self, name: str, exits: ExitStack, *options: object, **settings: object) -> Case:
        """Start a service and a pipeline, and return their case."""
        pipeline = re.sub(r"\W+", "-", name)
        log = self.workspace.parent / f"{pipeline}.log"
        service = service_process(self.workspace, log, *options, python=self.python, cwd=self.checkout)
        url, process = exits.enter_context(service)
        put_pipeline(self.node, pipeline, url=url, timeout=TIMEOUT_MS, **settings)
        return Case(self.node, name, pipeline, index=ATTACHED, services=[process.pid])

    def adding(self, name: str, exits: ExitStack, depth: int, added: int) -> Case:
        """Return a case in which ``text`` adds documents to the candidates."""
        versions = Workspace.open(self.workspace).versions()
        retrieve = ("bm25", f"text:{added}")
        stack = replace(Stack.parse(ATTACHED_WEIGHTS), retrieve=retrieve, versions=versions)
        file = self.workspace.parent / f"added-{added}.json"
        stack.save(file)
        settings = {"depth": depth, "retrieve": True, "words": ["title", "text"]}
        return self.hooked(name, exits, "--stack", file, **settings)


def processor_times(
    cases: Sequence[Case], queries: Sequence[str], blocks: int, block_size: int
) -> dict[str, list[float]]:
    """Return name -> milliseconds of processor time of a search, in alternating blocks of searches.

    It depends less on other programs of the machine than the latency. A block is long, because the system
    counts processor time in hundredths of a second.
    """
    times: dict[str, list[float]] = {case.name: [] for case in cases}
    draw = random.Random(0)
    for block in range(blocks):
        for case in draw.sample(cases, len(cases)):
            begin = processor(*case.processes)
            for number in range(block_size):
                case.ask(case.body(queries[(block * block_size + number) % len(queries)]))
            times[case.name].append(1000 * (processor(*case.processes) - begin) / block_size)
    return times
