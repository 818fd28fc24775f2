"""Three nodes and a collection on them: the content of every copy, and streams of queries."""

from __future__ import annotations

import gzip
import json
import os
import random
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from rerank.engines.base import Engine, SearchRequest
from rerank.engines.opensearch import OpenSearchEngine, Settings, doc_value_features, writing
from rerank.engines.opensearch.columns import FEATURES
from rerank.errors import EngineError
from rerank.records import Document
from tests.node import CannotRunError, Cluster, Node
from tests.unavailable import unavailable

ROOT = Path(__file__).parents[1]
CACM = Path(os.environ.get("RERANK_DATA", ROOT.parent / "shared" / "data")) / "cacm"
SHARDS = 3
GREEN = "/_cluster/health?wait_for_status=green&wait_for_nodes=3&timeout=55s"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    try:
        started = Cluster(3, heap="512m")
        for node in started.nodes:  # a frozen node is given up after about 10 seconds instead of 40
            node._settings["cluster.fault_detection.follower_check.timeout"] = "4s"
            node._settings["cluster.fault_detection.follower_check.retry_count"] = "2"
        started.start()
    except CannotRunError as error:
        unavailable(error)
    yield started
    started.stop()


@pytest.fixture(scope="module")
def documents() -> list[Document]:
    """cacm where it is there, else as many made-up documents."""
    if not CACM.exists():
        rng = np.random.default_rng(5)
        words = [f"word{i}" for i in range(3000)]
        weights = 1 / np.arange(1, 3001)
        weights /= weights.sum()
        return [
            Document(str(i), f"title {i}", " ".join(rng.choice(words, rng.integers(5, 120), p=weights)))
            for i in range(3200)
        ]
    with gzip.open(CACM / "corpus.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return [Document(row["_id"], row.get("title", ""), row.get("text", "")) for row in rows]


@pytest.fixture(scope="module")
def texts(documents: list[Document]) -> list[str]:
    if not CACM.exists():
        return [document.text[:60] for document in documents[:50]]
    with gzip.open(CACM / "queries.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line)["text"] for line in lines]


@pytest.fixture(autouse=True)
def clean(cluster: Cluster) -> Iterator[None]:
    """Every test starts with three nodes and without indices."""
    yield
    for node in cluster.nodes:
        node.resume()
    next(node for node in cluster.nodes if alive(node)).request("DELETE", "/t-*")
    mend(cluster)


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many small requests, so that a fault falls between them."""
    monkeypatch.setattr(writing, "_BATCH", 40)
    monkeypatch.setattr(doc_value_features, "_BATCH", 64)


def make(cluster: Cluster, folder: Path, name: str, **options: Any) -> OpenSearchEngine:
    settings = Settings(**{"url": tuple(cluster.urls), "index": f"t-{name}", "shards": SHARDS, **options})
    engine = OpenSearchEngine.create(settings, folder / name, "en")
    cluster.nodes[0].request("GET", GREEN)
    return engine


def through(engine: OpenSearchEngine, *urls: str, **options: Any) -> OpenSearchEngine:
    """The same index and folder by another client."""
    settings = structs.replace(engine.settings, **({"url": urls} if urls else {}), **options)
    return OpenSearchEngine.open(settings, engine.index.folder, engine.lang)


def manager(cluster: Cluster) -> Node:
    """The elected cluster manager."""
    name = cluster.nodes[0].request("GET", "/_cat/cluster_manager?format=json")[0]["node"]
    return next(node for node in cluster.nodes if node.name == name)


def alive(node: Node) -> bool:
    return node.process is not None and node.process.poll() is None


def mend(cluster: Cluster) -> None:
    """Start what was killed, on its data folder, and wait for green."""
    for node in cluster.nodes:
        if not alive(node):
            node.start()
    for node in cluster.nodes:
        node.wait(3)
        health = node.request("GET", GREEN)
        assert health["status"] == "green", health


def copies(node: Node, index: str, **body: Any) -> Iterator[list[dict[str, Any]]]:
    """All hits in the primary shards, then all in the replicas."""
    node.request("POST", f"/{index}/_refresh")
    for copy in ("_primary", "_replica"):
        path = f"/{index}/_search?preference={copy}&allow_partial_search_results=false"
        yield node.request("POST", path, {"size": 10_000, "version": True, **body})["hits"]["hits"]


def assert_holds(engine: OpenSearchEngine, node: Node, expected: Iterable[Document]) -> None:
    """Every document once, with its content, in every copy."""
    wanted = {d.id: engine.layout.to_source(d) for d in expected}  # type: ignore[attr-defined]
    wanted = {id: {"title": s.get("title"), "text": s.get("text")} for id, s in wanted.items()}
    for hits in copies(node, engine.settings.index, _source=["title", "text"]):
        there = {h["_id"]: {name: h["_source"].get(name) for name in ("title", "text")} for h in hits}
        assert len(hits) == len(there)
        assert there == wanted


def feature(documents: Sequence[Document]) -> np.ndarray:
    """What the tests' rankers make of documents: two numbers that only this content gives."""
    sums = [zlib.crc32(document.content.encode()) for document in documents]
    return np.array([[value >> 16, value & 0xFFFF] for value in sums], np.float32)


def wrong_features(
    engine: OpenSearchEngine, node: Node, name: str, version: str, encode: Callable[..., np.ndarray] = feature
) -> tuple[list[str], int]:
    """Ids whose feature is not what their content gives, and how many have none, over all copies."""
    column, key = engine.doc_values.stored().get(f"{name}@{version}"), f"{FEATURES}.{name}@{version}"
    wrong, missing = [], 0
    for hits in copies(node, engine.settings.index, docvalue_fields=[key]):
        there = [hit.get("fields", {}).get(key, [None])[0] for hit in hits]
        missing += there.count(None)
        found = [engine.layout.document(hit["_id"], hit["_source"]) for hit in hits]
        if column is not None:
            values, none = column.decode(there)
            same = (values == encode(found)).all(axis=1) | none
            wrong += [document.id for document, right in zip(found, same) if not right]
    return wrong, missing


def one_line(error: BaseException | None) -> str:
    assert isinstance(error, EngineError), repr(error)
    assert "\n" not in str(error)
    return str(error)


@contextmanager
def background(*jobs: Callable[[], object]) -> Iterator[list[BaseException]]:
    """Run jobs in threads while the block runs; their exceptions come back."""
    failed: list[BaseException] = []

    def run(job: Callable[[], object]) -> None:
        try:
            job()
        except BaseException as error:  # handed to the test
            failed.append(error)

    threads = [threading.Thread(target=run, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    try:
        yield failed
    finally:
        for thread in threads:
            thread.join()


# -- 2. and 3. a node dies or freezes while others ask --------------------------------------------------


@dataclass
class Answers:
    """What became of a stream of queries."""

    right: int = 0
    wrong: list[str] = field(default_factory=list)
    failed: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    """When right answers came, and when the stream began."""

    @property
    def gap(self) -> float:
        """The longest time without any right answer."""
        times = sorted(self.times)
        return max((b - a for a, b in pairwise(times)), default=0.0)


Ranking = tuple[list[str], list[float]]


class Stream:
    """Asks the same texts again and again from several threads, and compares the answers."""

    def __init__(
        self, engine: Engine, texts: Sequence[str], expected: Sequence[Ranking], threads: int
    ) -> None:
        self._engine, self._texts, self._expected = engine, texts, expected
        self.tolerance: float | None = 1e-6
        self.answers = Answers()
        self._stop, self._guard = threading.Event(), threading.Lock()
        self._threads = [threading.Thread(target=self._run, args=(i,)) for i in range(threads)]

    def _run(self, seed: int) -> None:
        rng, answers = random.Random(seed), self.answers
        while not self._stop.wait(0.1):  # the nodes of a small machine need some time for themselves
            number = rng.randrange(len(self._texts))
            begun = time.monotonic()
            try:
                got = self._engine.find(SearchRequest(self._texts[number], first_stage="bm25", depth=100))
            except Exception as error:  # counted
                with self._guard:
                    answers.failed += 1
                    answers.errors[one_line(error) if isinstance(error, EngineError) else repr(error)] += 1
                    answers.seconds.append(time.monotonic() - begun)
                continue
            now = time.monotonic()
            ids, scores = self._expected[number]
            right = got.ids == ids and (
                self.tolerance is None or np.allclose(got.scores, scores, rtol=0, atol=self.tolerance)
            )
            with self._guard:
                answers.seconds.append(now - begun)
                if right:
                    answers.right += 1
                    answers.times.append(now)
                else:
                    answers.wrong.append(f"{self._texts[number]!r}: {got.ids[:5]} for {ids[:5]}, {len(got)}")

    def __enter__(self) -> Stream:
        self.answers.times.append(time.monotonic())
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self.answers.times.append(time.monotonic())


def rankings(engine: Engine, texts: Sequence[str], stage: str = "bm25") -> list[Ranking]:
    found = engine.search([SearchRequest(text, stage, depth=100) for text in texts])
    return [(candidates.ids, candidates.scores.tolist()) for candidates in found]
