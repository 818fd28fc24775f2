"""A cluster of three nodes, three shards and one replica: killed nodes, other clients that write, scores."""

from __future__ import annotations

import random
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from rerank.common.errors import EngineError
from rerank.common.progress import ignore_count
from rerank.documents.records import Document
from rerank.engines.base import Encoder, Engine, WriteOptions
from rerank.engines.opensearch import OpenSearchEngine, Settings, bulk, doc_value_features, writing
from rerank.engines.opensearch.columns import FEATURES
from rerank.engines.search_request import SearchRequest
from tests.support.opensearch import unavailable
from tests.support.service import wait_until
from tools.opensearch_node import CannotRunError, Cluster, Node

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SHARDS = 3
GREEN = "/_cluster/health?wait_for_status=green&wait_for_nodes=3&timeout=30s"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    try:
        started = Cluster(3, heap="512m").start()
    except CannotRunError as error:
        unavailable(error)
    yield started
    started.stop()


@pytest.fixture(scope="module")
def documents() -> list[Document]:
    rng = np.random.default_rng(5)
    words = [f"word{i}" for i in range(3000)]
    weights = 1 / np.arange(1, 3001)
    weights /= weights.sum()
    return [
        Document(str(i), f"title {i}", " ".join(rng.choice(words, rng.integers(5, 120), p=weights)))
        for i in range(1600)
    ]


@pytest.fixture(scope="module")
def texts(documents: list[Document]) -> list[str]:
    return [document.text[:60] for document in documents[:50]]


@pytest.fixture(autouse=True)
def clean(cluster: Cluster) -> Iterator[None]:
    """Each test starts with three nodes and without indices."""
    yield
    next(node for node in cluster.nodes if is_alive(node)).request("DELETE", "/t-*")
    restart_killed_nodes(cluster)


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use many small requests, so that a fault occurs between them."""
    monkeypatch.setattr(writing, "_BATCH", 40)
    monkeypatch.setattr(doc_value_features, "_BATCH", 64)


def make(cluster: Cluster, folder: Path, name: str, **options: Any) -> OpenSearchEngine:
    settings = Settings(**{"url": tuple(cluster.urls), "index": f"t-{name}", "shards": SHARDS, **options})
    engine = OpenSearchEngine.create(settings, folder / name, "en")
    wait_for_green(cluster.nodes[0])
    return engine


def open_again(engine: OpenSearchEngine, *urls: str, **options: Any) -> OpenSearchEngine:
    """Open the same index and folder with another client."""
    settings = structs.replace(engine.settings, **({"url": urls} if urls else {}), **options)
    return OpenSearchEngine.open(settings, engine.index.folder, engine.lang)


def wait_for_green(node: Node) -> None:
    """Wait until all nodes and all copies are available."""

    def there() -> bool:
        with suppress(ValueError):  # not within 30 seconds
            return str(node.request("GET", GREEN)["status"]) == "green"
        return False

    wait_until(there)


def manager(cluster: Cluster) -> Node:
    """Return the elected cluster manager."""
    name = cluster.nodes[0].request("GET", "/_cat/cluster_manager?format=json")[0]["node"]
    return next(node for node in cluster.nodes if node.name == name)


def is_alive(node: Node) -> bool:
    return node.process is not None and node.process.poll() is None


def restart_killed_nodes(cluster: Cluster) -> None:
    """Start killed nodes with their data folders, and wait for green."""
    for node in cluster.nodes:
        if not is_alive(node):
            node.start()
    for node in cluster.nodes:
        node.wait(3)
        wait_for_green(node)


def copies(node: Node, index: str, **body: Any) -> Iterator[list[dict[str, Any]]]:
    """Yield all hits in the primary shards, then all hits in the replicas."""
    node.request("POST", f"/{index}/_refresh")
    for copy in ("_primary", "_replica"):
        path = f"/{index}/_search?preference={copy}&allow_partial_search_results=false"
        yield node.request("POST", path, {"size": 10_000, "version": True, **body})["hits"]["hits"]


def assert_contains(engine: OpenSearchEngine, node: Node, expected: Iterable[Document]) -> None:
    """Assert that each copy contains each document once, with its content."""
    wanted = {d.id: engine.layout.to_source(d) for d in expected}  # type: ignore[attr-defined]
    wanted = {id: {"title": s.get("title"), "text": s.get("text")} for id, s in wanted.items()}
    for hits in copies(node, engine.settings.index, _source=["title", "text"]):
        there = {h["_id"]: {name: h["_source"].get(name) for name in ("title", "text")} for h in hits}
        assert len(hits) == len(there)
        assert there == wanted


def feature(documents: Sequence[Document]) -> np.ndarray:
    """Return two numbers per document that depend only on its content."""
    sums = [zlib.crc32(document.content.encode()) for document in documents]
    return np.array([[value >> 16, value & 0xFFFF] for value in sums], np.float32)


def wrong_features(
    engine: OpenSearchEngine, node: Node, name: str, version: str, encode: Callable[..., np.ndarray] = feature
) -> tuple[list[str], int]:
    """Return the ids of wrong features, and the number of missing features, over all copies."""
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
    """Run jobs in threads during the block, and yield the list of their exceptions."""
    failed: list[BaseException] = []

    def run(job: Callable[[], object]) -> None:
        try:
            job()
        except BaseException as error:  # passed to the test
            failed.append(error)

    threads = [threading.Thread(target=run, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    try:
        yield failed
    finally:
        for thread in threads:
            thread.join()


@dataclass
class Answers:
    """Counts of right and wrong answers to a stream of queries."""

    right: int = 0
    wrong: list[str] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    times: list[float] = field(default_factory=list)
    """Times of right answers, and the start time of the stream."""

    @property
    def gap(self) -> float:
        """The longest time without a right answer."""
        times = sorted(self.times)
        return max((b - a for a, b in pairwise(times)), default=0.0)


Ranking = tuple[list[str], list[float]]


class Stream:
    """Repeats queries in several threads, and compares the answers with the expected rankings."""

    def __init__(
        self, engine: Engine, texts: Sequence[str], expected: Sequence[Ranking], threads: int
    ) -> None:
        self._engine, self._texts, self._expected = engine, texts, expected
        self.answers = Answers()
        self._stop, self._guard = threading.Event(), threading.Lock()
        self._threads = [threading.Thread(target=self._run, args=(i,)) for i in range(threads)]

    def _run(self, seed: int) -> None:
        rng, answers = random.Random(seed), self.answers
        while not self._stop.wait(0.1):  # leave the nodes some time on a small machine
            number = rng.randrange(len(self._texts))
            try:
                got = self._engine.find(SearchRequest(self._texts[number], first_stage="bm25", depth=100))
            except Exception as error:  # counted
                with self._guard:
                    answers.errors[one_line(error) if isinstance(error, EngineError) else repr(error)] += 1
                continue
            now = time.monotonic()
            ids, scores = self._expected[number]
            right = got.ids == ids and np.allclose(got.scores, scores, rtol=0, atol=1e-6)
            with self._guard:
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


def test_a_node_is_killed_during_ingests(
    cluster: Cluster,
    tmp_path: Path,
    documents: list[Document],
    small_steps: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Four concurrent ingests while the cluster manager is killed: into a new index and in place, by
    clients that know all nodes and by clients that know only the killed node.
    """
    monkeypatch.setattr(bulk, "PATIENCE", 25.0)
    victim = manager(cluster)
    survivor = next(node for node in cluster.nodes if node is not victim)
    changed = [replace(d, text=d.text + " once more") for d in documents[500:]]
    added = [Document(f"new-{i}", text=f"added document {i}") for i in range(200)]
    deleted = [d.id for d in documents[:100]]
    final = {"fresh": documents, "place": [*documents[100:500], *changed, *added]}

    engines: dict[str, OpenSearchEngine] = {}
    for kind in final:
        for reach in ("all", "one"):
            engine = make(cluster, tmp_path, f"{kind}-{reach}")
            if kind == "place":
                engine.write(documents)
            engines[f"{kind}-{reach}"] = engine if reach == "all" else open_again(engine, victim.url)
    wait_for_green(cluster.nodes[0])
    everybody = threading.Barrier(len(engines), lambda: threading.Timer(0.03, victim.kill).start())
    outcome: dict[str, Any] = {}

    def ingest(name: str, engine: OpenSearchEngine) -> None:
        seen = [0]

        def progress(count: int) -> None:
            seen[0] += count
            if seen[0] - count < 600 <= seen[0]:
                everybody.wait(120)

        try:
            outcome[name] = write(name, engine, progress)
        except Exception as error:  # checked below
            everybody.abort()
            outcome[name] = error

    def write(name: str, engine: OpenSearchEngine, progress: Callable[[int], object] = ignore_count) -> Any:
        if name.startswith("fresh"):
            return engine.write(documents, options=WriteOptions(progress=progress))
        return engine.write([*changed, *added], deleted, WriteOptions(progress=progress))

    jobs = [lambda name=name, engine=engine: ingest(name, engine) for name, engine in engines.items()]
    with background(*jobs):
        pass
    assert not is_alive(victim)

    # Clients that know the other nodes have finished.
    for kind in final:
        result = outcome[f"{kind}-all"]
        if isinstance(result, Exception):
            raise result
        assert result.added + result.updated == len(documents if kind == "fresh" else [*changed, *added])
        assert engines[f"{kind}-all"].ids() == sorted(d.id for d in final[kind])

    # The other clients have stopped with advice: one continues with another node, one when the node is
    # back.
    for name in ("fresh-one", "place-one"):
        line = one_line(outcome[name])
        assert "Connection refused" in line
        assert "run the same command again" in line
    elsewhere = open_again(engines["fresh-one"], survivor.url)
    write("fresh-one", elsewhere)
    restart_killed_nodes(cluster)
    write("place-one", engines["place-one"])

    wait_for_green(cluster.nodes[0])
    for name, engine in engines.items():
        for node in cluster.nodes:
            assert_contains(engine, node, final[name.split("-")[0]])


def test_a_node_is_killed_during_queries(
    cluster: Cluster, tmp_path: Path, documents: list[Document], texts: list[str]
) -> None:
    plain = make(cluster, tmp_path, "queries")
    plain.write(documents)
    wait_for_green(cluster.nodes[0])
    streams = {}
    for kind in ("query_then_fetch", "dfs_query_then_fetch"):
        engine = open_again(plain, search_type=kind)
        streams[kind] = Stream(engine, texts, rankings(engine, texts), threads=2)
    victim = manager(cluster)

    def more(count: int) -> None:
        """Wait until each stream has received this many additional right answers."""
        wanted = {kind: stream.answers.right + count for kind, stream in streams.items()}
        wait_until(lambda: all(streams[kind].answers.right >= n for kind, n in wanted.items()))

    with streams["query_then_fetch"], streams["dfs_query_then_fetch"]:
        more(20)
        victim.kill()
        more(50)  # from the remaining nodes
        victim.start().wait(3)
        wait_for_green(victim)
        more(20)
    for stream in streams.values():
        answers = stream.answers
        assert not answers.wrong, answers.wrong[:3]
        assert all("searching: " in line for line in answers.errors), answers.errors
        assert answers.gap < 150


def test_a_node_is_killed_while_features_are_written(
    cluster: Cluster, tmp_path: Path, documents: list[Document], small_steps: None
) -> None:
    engine = make(cluster, tmp_path, "killed")
    engine.write(documents)
    wait_for_green(cluster.nodes[0])
    victim = next(node for node in cluster.nodes if node is not manager(cluster))
    calls = 0

    def encode(batch: Sequence[Document]) -> np.ndarray:
        nonlocal calls
        calls += 1
        if calls == 8:
            threading.Timer(0.02, victim.kill).start()
        time.sleep(0.03)
        return feature(batch)

    try:
        engine.write_features([Encoder("text", "v1", encode)])
    except EngineError as error:
        one_line(error)
    engine.write_features([Encoder("text", "v1", feature)])
    assert engine.missing_features("text", "v1") == 0
    restart_killed_nodes(cluster)
    assert wrong_features(engine, cluster.nodes[0], "text", "v1") == ([], 0)
    assert_contains(engine, cluster.nodes[0], documents)


def test_other_clients_write_while_features_are_written(
    cluster: Cluster, tmp_path: Path, documents: list[Document], small_steps: None
) -> None:
    engine = make(cluster, tmp_path, "others")
    engine.write(documents)
    index, node = engine.settings.index, cluster.nodes[1]
    expected = {d.id: d for d in documents}
    guard = threading.Lock()
    rng = random.Random(3)
    written: Counter[str] = Counter()

    def change(id: str, number: int) -> None:
        """Write one document like another client."""
        with guard:
            kind = rng.choice(["index", "update", "update", "delete"])
            if kind == "index" or id not in expected:
                expected[id] = Document(id, text=f"written anew {number}")
                node.request("PUT", f"/{index}/_doc/{id}", {"id": id, "text": expected[id].text})
            elif kind == "update":
                expected[id] = replace(expected[id], text=f"partly new {number}")
                path = f"/{index}/_update/{id}?retry_on_conflict=20"
                node.request("POST", path, {"doc": {"text": expected[id].text}})
            else:
                del expected[id]
                node.request("DELETE", f"/{index}/_doc/{id}")
            written[kind] += 1

    calls = 0

    def encode(batch: Sequence[Document]) -> np.ndarray:
        nonlocal calls
        calls += 1
        if calls <= 40:  # these documents have been read, but their features are not written yet
            for document in batch[::16]:
                change(document.id, calls)
        return feature(batch)

    stop = threading.Event()

    def elsewhere() -> None:
        ids = [d.id for d in documents]
        while not stop.is_set():
            change(rng.choice(ids), rng.randrange(10**6))

    with background(elsewhere) as failed:
        engine.write_features([Encoder("text", "v1", encode)])
        stop.set()
    assert not failed, failed
    assert min(written.values()) > 20
    assert_contains(engine, node, expected.values())
    wrong, missing = wrong_features(engine, node, "text", "v1")
    assert wrong == []
    lacking = engine.missing_features("text", "v1")
    assert missing == 2 * lacking
    assert engine.write_features([Encoder("text", "v1", feature)]) == {"text": lacking}
    assert wrong_features(engine, node, "text", "v1") == ([], 0)

    some = [replace(one, text=f"{one.text} again") for one in list(expected.values())[:300]]
    expected |= {one.id: one for one in some}
    engine.write(some)
    assert engine.missing_features("text", "v1") == 300
    assert engine.write_features([Encoder("text", "v1", feature)]) == {"text": 300}
    assert wrong_features(engine, node, "text", "v1") == ([], 0)
    assert_contains(engine, node, expected.values())
