"""A cluster of three nodes, three shards and one replica: nodes that die or freeze, several processes that
encode, others who write meanwhile, and what sharding does to scores.

Figures are printed: ``pytest -s tests/integration/test_opensearch_cluster.py``.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import random
import statistics
import subprocess
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rerank.engines.base import Encoder, Engine
from rerank.engines.opensearch import OpenSearchEngine, Settings, adoption, bulk, encoding
from rerank.engines.opensearch.layout import FEATURES
from rerank.errors import EngineError
from rerank.records import Document
from tests.node import CannotRunError, Cluster, Node
from tests.unavailable import unavailable

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
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
    monkeypatch.setattr(bulk, "_CHUNK_ACTIONS", 40)
    monkeypatch.setattr(encoding, "_BATCH", 64)


def make(cluster: Cluster, folder: Path, name: str, **options: Any) -> OpenSearchEngine:
    settings = Settings(**{"url": tuple(cluster.urls), "index": f"t-{name}", "shards": SHARDS, **options})
    engine = OpenSearchEngine.create(settings, folder / name, "en")
    cluster.nodes[0].request("GET", GREEN)
    return engine


def through(engine: OpenSearchEngine, *urls: str, **options: Any) -> OpenSearchEngine:
    """The same index and folder by another client."""
    settings = replace(engine.settings, **({"url": urls} if urls else {}), **options)
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


def other(documents: Sequence[Document]) -> np.ndarray:
    return -feature(documents)


def wrong_features(
    engine: OpenSearchEngine, node: Node, name: str, version: str, encode: Callable[..., np.ndarray] = feature
) -> tuple[list[str], int]:
    """Ids whose feature is not what their content gives, and how many have none, over all copies."""
    column, key = engine.encoder.stored().get(f"{name}@{version}"), f"{FEATURES}.{name}@{version}"
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


# -- 1. a node dies while documents are written --------------------------------------------------------


def test_node_killed_during_ingests(
    cluster: Cluster,
    tmp_path: Path,
    documents: list[Document],
    small_steps: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Four ingests at once when the cluster manager is killed: into a new index and in place, by clients
    that know all nodes and by clients that know only this one.
    """
    monkeypatch.setattr(bulk, "PATIENCE", 15.0)
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
                engine.ingest(documents)
            engines[f"{kind}-{reach}"] = engine if reach == "all" else through(engine, victim.url)
    cluster.nodes[0].request("GET", GREEN)
    everybody = threading.Barrier(len(engines), lambda: threading.Timer(0.03, victim.kill).start())
    outcome: dict[str, tuple[Any, float]] = {}

    def ingest(name: str, engine: OpenSearchEngine) -> None:
        seen = [0]

        def progress(count: int) -> None:
            seen[0] += count
            if seen[0] - count < 1000 <= seen[0]:
                everybody.wait(120)

        begun = time.monotonic()
        try:
            result: Any = write(name, engine, progress)
        except Exception as error:  # looked at below
            everybody.abort()
            result = error
        outcome[name] = result, time.monotonic() - begun

    def write(name: str, engine: OpenSearchEngine, progress: Callable[[int], object] | None = None) -> Any:
        if name.startswith("fresh"):
            return engine.ingest(documents, source=name, progress=progress)
        return engine.ingest([*changed, *added], deleted, source=name, progress=progress)

    jobs = [lambda name=name, engine=engine: ingest(name, engine) for name, engine in engines.items()]
    with background(*jobs):
        pass
    assert not alive(victim)
    for name, (result, seconds) in outcome.items():
        print(f"\nkilled during ingest, {name}: {seconds:.1f} s, {result}")

    # Clients that know the other nodes have finished without help.
    for kind in final:
        result, _ = outcome[f"{kind}-all"]
        if isinstance(result, Exception):
            raise result
        assert result.added + result.updated == len(documents if kind == "fresh" else [*changed, *added])
        assert engines[f"{kind}-all"].unfinished() is None
        assert engines[f"{kind}-all"].ids() == sorted(d.id for d in final[kind])

    # The others have stopped, and say how to go on: one by another node, one when the node is back.
    for name in ("fresh-one", "place-one"):
        line = one_line(outcome[name][0])
        assert "connection refused" in line
        assert "run the same command again to go on" in line
        assert engines[name].unfinished() == name
    elsewhere = through(engines["fresh-one"], survivor.url)
    write("fresh-one", elsewhere)
    assert elsewhere.unfinished() is None
    mend(cluster)
    write("place-one", engines["place-one"])
    assert engines["place-one"].unfinished() is None

    cluster.nodes[0].request("GET", GREEN)
    for name, engine in engines.items():
        for node in cluster.nodes:
            assert_holds(engine, node, final[name.split("-")[0]])


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

    def __str__(self) -> str:
        p50, most = statistics.median(self.seconds) * 1e3, max(self.seconds)
        return (
            f"{self.right} right, {len(self.wrong)} wrong, {self.failed} errors, longest gap"
            f" {self.gap:.2f} s, p50 {p50:.1f} ms, longest {most:.2f} s"
            + "".join(f"\n  {e}" for e in self.errors)
        )


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
        while not self._stop.wait(0.03):  # the nodes of a small machine need some time for themselves
            number = rng.randrange(len(self._texts))
            begun = time.monotonic()
            try:
                got = self._engine.search(self._texts[number], first_stage="bm25", depth=100)
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
    found = engine.search_many(texts, first_stage=stage, depth=100)
    return [(candidates.ids, candidates.scores.tolist()) for candidates in found]


def test_node_killed_during_queries(
    cluster: Cluster, tmp_path: Path, documents: list[Document], texts: list[str]
) -> None:
    plain = make(cluster, tmp_path, "queries")
    plain.ingest(documents)
    cluster.nodes[0].request("GET", GREEN)
    streams = {}
    for kind in ("query_then_fetch", "dfs_query_then_fetch"):
        engine = through(plain, search_type=kind)
        streams[kind] = Stream(engine, texts, rankings(engine, texts), threads=2)
    victim = manager(cluster)
    with streams["query_then_fetch"], streams["dfs_query_then_fetch"]:
        time.sleep(2)
        killed = time.monotonic()
        victim.kill()
        time.sleep(4)
        victim.start().wait(3)
        victim.request("GET", GREEN)
        time.sleep(2)
        ended = time.monotonic()
    for kind, stream in streams.items():
        answers = stream.answers
        print(f"\nkilled during queries, {kind}: {answers} in {ended - killed + 2:.0f} s")
        assert not answers.wrong, answers.wrong[:3]
        assert all("searching: " in line for line in answers.errors), answers.errors
        assert answers.gap < 15
        assert max(answers.times[:-1]) > ended - 1


def test_node_frozen(
    cluster: Cluster,
    tmp_path: Path,
    documents: list[Document],
    texts: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bulk, "PATIENCE", 4.0)
    timeout = 3.0
    engine = make(cluster, tmp_path, "frozen", timeout=timeout, search_type="dfs_query_then_fetch")
    through(engine, timeout=60.0).ingest(documents[:1000])
    cluster.nodes[0].request("GET", GREEN)
    expected = rankings(through(engine, timeout=60.0), texts)
    victim = next(node for node in cluster.nodes if node is not manager(cluster))
    alone = through(engine, victim.url)
    calls: dict[str, Callable[[], object]] = {
        "query": lambda: alone.search(texts[0], first_stage="bm25", depth=10),
        "queries": lambda: rankings(alone, texts[:3]),
        "get": lambda: alone.get(["1"]),
        "ids": alone.ids,
        "ingest": lambda: alone.ingest(documents[:10]),
        "features": lambda: alone.write_features([Encoder("text", "v1", feature)]),
    }
    with Stream(engine, texts, expected, threads=4) as stream:
        time.sleep(1)
        victim.pause()
        for name, call in calls.items():
            begun = time.monotonic()
            with pytest.raises(EngineError, match=r"no answer from .* within 3 s") as caught:
                call()
            seconds = time.monotonic() - begun
            print(f"\nfrozen, {name}: {seconds:.2f} s: {one_line(caught.value)}")
            assert seconds < timeout + 1
        # The cluster has left it out by now, and the client asks the other nodes.
        time.sleep(8)
        errors = stream.answers.failed
        time.sleep(8)
        later = stream.answers.failed - errors
        victim.resume()
        victim.wait(3)
        time.sleep(1)
    answers = stream.answers
    print(f"\nfrozen during queries: {answers}; {later} errors after 20 s")
    assert not answers.wrong, answers.wrong[:3]
    assert max(answers.seconds) < timeout + 1.5
    assert later <= 4
    assert rankings(through(alone, timeout=60.0), texts) == expected


# -- 4. to 7. features ---------------------------------------------------------------------------------


def test_node_killed_while_features_are_written(
    cluster: Cluster, tmp_path: Path, documents: list[Document], small_steps: None
) -> None:
    engine = make(cluster, tmp_path, "killed")
    engine.ingest(documents)
    cluster.nodes[0].request("GET", GREEN)
    victim = next(node for node in cluster.nodes if node is not manager(cluster))
    calls = 0

    def encode(batch: Sequence[Document]) -> np.ndarray:
        nonlocal calls
        calls += 1
        if calls == 8:
            threading.Timer(0.02, victim.kill).start()
        time.sleep(0.03)
        return feature(batch)

    begun = time.monotonic()
    try:
        done: object = engine.write_features([Encoder("text", "v1", encode)])
    except EngineError as error:
        done = one_line(error)
    print(f"\nkilled while features are written: {time.monotonic() - begun:.1f} s, {done}")
    rest = engine.write_features([Encoder("text", "v1", feature)])
    print(f"the next call: {rest}")
    assert engine.missing_features("text", "v1") == 0
    mend(cluster)
    assert wrong_features(engine, cluster.nodes[0], "text", "v1") == ([], 0)
    assert_holds(engine, cluster.nodes[0], documents)


PART = """
import json, sys, time
from pathlib import Path
import numpy as np
from rerank.engines.base import Encoder
from rerank.engines.opensearch import OpenSearchEngine, Settings
from rerank.engines.opensearch import encoding
from tests.integration.test_opensearch_cluster import feature
encoding._BATCH = 64
table, folder, version, number, count, pause, log = json.loads(sys.argv[1])
engine = OpenSearchEngine.open(Settings.read(table, "test"), Path(folder))
with open(log, "a") as seen:
    def encode(documents):
        seen.write("".join(d.id + "\\n" for d in documents))
        seen.flush()
        time.sleep(pause)
        return feature(documents)
    done = engine.write_features([Encoder("text", version, encode)], part=(number, count))
print(done["text"])
"""


def start_part(
    engine: OpenSearchEngine, version: str, part: tuple[int, int], log: Path, pause: float = 0.0
) -> subprocess.Popen[str]:
    given = json.dumps([engine.settings.table(), str(engine.index.folder), version, *part, pause, str(log)])
    command = [sys.executable, "-c", PART, given]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_processes_side_by_side(cluster: Cluster, tmp_path: Path, documents: list[Document]) -> None:
    engine = make(cluster, tmp_path, "parts")
    engine.ingest(documents)
    everything = sorted(d.id for d in documents)
    for count in (1, 2, 4):
        logs = [tmp_path / f"{count}-{i}" for i in range(count)]
        begun = time.monotonic()
        running = [start_part(engine, f"v{count}", (i, count), log) for i, log in enumerate(logs)]
        outputs = [process.communicate(timeout=120) for process in running]
        assert [process.returncode for process in running] == [0] * count, outputs
        sizes = [int(out) for out, _ in outputs]
        print(f"\n{count} processes: {sizes} documents, {time.monotonic() - begun:.1f} s")
        encoded = [log.read_text().split() for log in logs]
        assert sorted(id for ids in encoded for id in ids) == everything
        assert sizes == [len(ids) for ids in encoded]
        assert min(sizes) > len(documents) / count / 2
        assert wrong_features(engine, cluster.nodes[0], "text", f"v{count}") == ([], 0)

    # One process of three is killed, and started again when the others are done.
    logs = [tmp_path / f"killed-{i}" for i in range(3)]
    running = [start_part(engine, "v6", (i, 3), log, 0.05) for i, log in enumerate(logs)]
    while not (logs[1].exists() and len(logs[1].read_text().split()) >= 5 * 64):
        assert running[1].poll() is None
        time.sleep(0.02)
    running[1].kill()
    outputs = [process.communicate(timeout=120) for process in running]
    assert [process.returncode for process in running] == [0, -9, 0], outputs
    assert 0 < engine.missing_features("text", "v6") < len(documents) / 2
    again = start_part(engine, "v6", (1, 3), tmp_path / "again")
    out, err = again.communicate(timeout=120)
    assert again.returncode == 0, err
    encoded = [log.read_text().split() for log in [*logs, tmp_path / "again"]]
    twice = Counter(id for ids in encoded for id in ids)
    print(f"\none of 3 processes killed and started again: {[len(ids) for ids in encoded]} documents")
    assert sorted(twice) == everything
    assert set(encoded[3]).isdisjoint(encoded[0] + encoded[2])
    assert int(out) == len(encoded[3]) < len(set(encoded[1]) | set(encoded[3]))
    assert sum(n - 1 for n in twice.values()) <= (bulk.SENDERS + 2) * 64
    assert wrong_features(engine, cluster.nodes[0], "text", "v6") == ([], 0)


def test_others_write_while_features_are_written(
    cluster: Cluster, tmp_path: Path, documents: list[Document], small_steps: None
) -> None:
    engine = make(cluster, tmp_path, "others")
    engine.ingest(documents)
    index, node = engine.settings.index, cluster.nodes[1]
    expected = {d.id: d for d in documents}
    guard = threading.Lock()
    rng = random.Random(3)
    written: Counter[str] = Counter()

    def change(id: str, number: int) -> None:
        """Write one document as another client would."""
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
        if calls <= 40:  # these were read, and are not yet written
            for document in batch[::16]:
                change(document.id, calls)
        return feature(batch)

    stop = threading.Event()

    def elsewhere() -> None:
        ids = [d.id for d in documents]
        while not stop.is_set():
            change(rng.choice(ids), rng.randrange(10**6))

    with background(elsewhere) as failed:
        done = engine.write_features([Encoder("text", "v1", encode)])
        stop.set()
    assert not failed, failed
    assert min(written.values()) > 20
    print(f"\nothers write: {dict(written)}; encoded {done['text']} in {calls} calls")
    assert_holds(engine, node, expected.values())
    wrong, missing = wrong_features(engine, node, "text", "v1")
    assert wrong == []
    lacking = engine.missing_features("text", "v1")
    assert missing == 2 * lacking
    assert engine.write_features([Encoder("text", "v1", feature)]) == {"text": lacking}
    assert wrong_features(engine, node, "text", "v1") == ([], 0)

    some = [replace(one, text=f"{one.text} again") for one in list(expected.values())[:300]]
    expected |= {one.id: one for one in some}
    engine.ingest(some)
    assert engine.missing_features("text", "v1") == 300
    assert engine.write_features([Encoder("text", "v1", feature)]) == {"text": 300}
    assert wrong_features(engine, node, "text", "v1") == ([], 0)
    assert_holds(engine, node, expected.values())


def adopted(cluster: Cluster, folder: Path, documents: Sequence[Document], routing: bool) -> OpenSearchEngine:
    """Attach an index that somebody else has made; with routing, documents are where that says."""
    node, name = cluster.nodes[0], "t-theirs"
    mappings = {"title": {"type": "text"}, "about": {"properties": {"body": {"type": "text"}}}}
    body = {"settings": {"number_of_shards": SHARDS}, "mappings": {"properties": mappings}}
    node.request("PUT", f"/{name}", body)
    for i, document in enumerate(documents):
        route = f"?routing=r{i % 7}" if routing else ""
        source = {"title": document.title, "about": {"body": document.text}, "theirs": i}
        node.request("PUT", f"/{name}/_doc/{document.id}{route}", source)
    node.request("POST", f"/{name}/_refresh")
    node.request("GET", GREEN)
    settings = Settings(tuple(cluster.urls), name)
    fields = {"title": ("title",), "text": ("about.body",)}
    found = adoption.look(settings, fields)
    assert found.documents == len(documents)
    return OpenSearchEngine.open(settings, folder / "theirs", None, fields)


@pytest.mark.parametrize("routing", [False, True], ids=["", "routed"])
def test_an_index_of_others_is_only_read(
    cluster: Cluster, tmp_path: Path, documents: list[Document], routing: bool, small_steps: None
) -> None:
    documents = documents[:400]
    engine = adopted(cluster, tmp_path, documents, routing)
    for version, encode in (("v1", feature), ("v2", other)):
        # Equal texts share a feature, and are encoded once unless one call has several of them.
        encoded = engine.write_features([Encoder("text", version, encode)])["text"]
        assert len({document.content for document in documents}) <= encoded <= len(documents)
        assert engine.write_features([Encoder("text", version, encode)]) == {"text": 0}
        found = engine.search("computer program", first_stage="bm25", depth=50, features={"text": version})
        assert len(found) == 50
        assert not found.missing["text"].any()
        known = [document for document in engine.get(found.ids) if document is not None]
        np.testing.assert_array_equal(found.features["text"], encode(known))
    hits = [hit for hits in copies(cluster.nodes[0], engine.settings.index) for hit in hits]
    assert {hit["_version"] for hit in hits} == {1}
    assert all(set(hit["_source"]) == {"title", "about", "theirs"} for hit in hits)
    assert [d for d in engine.get([d.id for d in documents]) if d] == documents


def test_versions_and_writes(
    cluster: Cluster, tmp_path: Path, documents: list[Document], small_steps: None
) -> None:
    documents = documents[:400]
    engine = make(cluster, tmp_path, "versions")
    engine.ingest(documents)
    node = cluster.nodes[0]

    def versions() -> set[int]:
        return {hit["_version"] for hits in copies(node, engine.settings.index) for hit in hits}

    def there(name: str, version: str, encode: Callable[..., np.ndarray] = feature) -> bool:
        wrong, missing = wrong_features(engine, node, name, version, encode)
        assert wrong == []
        assert missing in (0, 2 * len(documents))
        return missing == 0

    assert versions() == {1}
    n = len(documents)
    encoders = [Encoder("text", "v1", feature), Encoder("meta", "v1", other)]
    assert engine.write_features(encoders) == {"text": n, "meta": n}
    assert versions() == {2}
    assert engine.write_features(encoders) == {"text": 0, "meta": 0}
    assert versions() == {2}
    assert engine.write_features([Encoder("third", "v1", feature)]) == {"third": n}
    assert versions() == {3}
    assert all([there("text", "v1"), there("meta", "v1", other), there("third", "v1")])

    assert engine.write_features([Encoder("text", "v2", other)]) == {"text": n}
    assert all([there("text", "v1"), there("text", "v2", other)])
    assert engine.feature_versions() == {"text": "v2", "meta": "v1", "third": "v1"}
    assert engine.write_features([Encoder("text", "v3", feature)]) == {"text": n}
    assert not there("text", "v1")
    assert all([there("text", "v2", other), there("text", "v3")])
    assert all([there("meta", "v1", other), there("third", "v1")])
    assert versions() == {5}
    assert [d for d in engine.get([d.id for d in documents]) if d] == documents
    found = engine.search("computer program", first_stage="bm25", depth=50, features={"text": "v3"})
    assert not found.missing["text"].any()


# -- 8. and 9. figures ---------------------------------------------------------------------------------


def ndcg(ids: Sequence[str], grades: dict[str, int], k: int = 10) -> float:
    gains = [grades.get(id, 0) / math.log2(i + 2) for i, id in enumerate(ids[:k])]
    best = sum(g / math.log2(i + 2) for i, g in enumerate(sorted(grades.values(), reverse=True)[:k]))
    return sum(gains) / best


def test_scores_over_shards(
    cluster: Cluster, tmp_path: Path, documents: list[Document], texts: list[str]
) -> None:
    one = make(cluster, tmp_path, "one", shards=1)
    three = make(cluster, tmp_path, "three")
    for engine in (one, three):
        engine.ingest(documents)
    dfs = through(three, search_type="dfs_query_then_fetch")
    for stage in ("bm25", "tfidf"):
        alone, global_, local = (rankings(engine, texts, stage) for engine in (one, dfs, three))
        for text, (ids, scores), (global_ids, global_scores) in zip(texts, alone, global_):
            assert global_ids == ids, text
            assert np.allclose(global_scores, scores, rtol=1e-5, atol=0), text
        overlap = [len({*a[0][:10]} & {*b[0][:10]}) / len(a[0][:10]) for a, b in zip(alone, local) if a[0]]
        same = [a[0][:10] == b[0][:10] for a, b in zip(alone, local)]
        print(
            f"\n{stage}, {len(texts)} queries, 3 shards without dfs against 1 shard: overlap@10"
            f" {np.mean(overlap):.3f} (least {min(overlap):.1f}), top 10 in the same order"
            f" {np.mean(same):.2f}, score differences {score_differences(alone, local)}"
        )
        if CACM.exists():
            figures = [mean_ndcg(rows) for rows in (alone, global_, local)]
            print(f"NDCG@10 1 shard {figures[0]:.4f}, 3 with dfs {figures[1]:.4f}, without {figures[2]:.4f}")
            assert figures[0] == figures[1]
            assert abs(figures[0] - figures[2]) < 0.05
    print(idf_differences(cluster.nodes[0], "t-three", texts))


def mean_ndcg(rows: Sequence[Ranking]) -> float:
    with gzip.open(CACM / "queries.jsonl.gz", "rt", encoding="utf-8") as lines:
        queries = [json.loads(line)["_id"] for line in lines]
    qrels: dict[str, dict[str, int]] = {}
    for part in ("dev", "test"):
        for line in (CACM / "qrels" / f"{part}.tsv").read_text().splitlines()[1:]:
            query, document, grade = line.split("\t")
            qrels.setdefault(query, {})[document] = int(grade)
    return float(np.mean([ndcg(ids, qrels[q]) for q, (ids, _) in zip(queries, rows) if q in qrels]))


def score_differences(left: Sequence[Ranking], right: Sequence[Ranking]) -> str:
    relative = []
    for (ids, scores), (other_ids, other_scores) in zip(left, right):
        there = dict(zip(other_ids, other_scores))
        relative += [abs(there[id] / score - 1) for id, score in zip(ids, scores) if id in there]
    return (
        f"median {np.median(relative):.1%}, p95 {np.quantile(relative, 0.95):.1%}, most {max(relative):.1%}"
    )


def idf_differences(node: Node, index: str, texts: Sequence[str]) -> str:
    """BM25's idf of the queries' terms in each shard against that over all shards."""
    tokens = node.request("POST", f"/{index}/_analyze", {"field": "content", "text": list(texts)})["tokens"]
    terms = sorted({token["token"] for token in tokens})
    body = {
        "size": 0,
        "track_total_hits": True,
        "aggs": {
            "terms": {"filters": {"filters": {term: {"term": {"content": term}} for term in terms}}},
        },
    }
    seen: list[tuple[int, dict[str, int]]] = []
    for shard in range(SHARDS):
        found = node.request("POST", f"/{index}/_search?preference=_shards:{shard}", body)
        buckets = found["aggregations"]["terms"]["buckets"]
        counts = {term: buckets[term]["doc_count"] for term in terms}
        seen.append((found["hits"]["total"]["value"], counts))

    def idf(count: int, df: int) -> float:
        return math.log(1 + (count - df + 0.5) / (df + 0.5))

    total = sum(count for count, _ in seen)
    relative: list[float] = []
    absent = 0
    for term in terms:
        df = sum(counts[term] for _, counts in seen)
        if df:
            absent += any(not counts[term] for _, counts in seen)
            relative += [abs(idf(n, c[term]) / idf(total, df) - 1) for n, c in seen if c[term]]
    return (
        f"idf of {len(terms)} query terms in shards of {[n for n, _ in seen]} documents against the whole:"
        f" median {np.median(relative):.1%}, p95 {np.quantile(relative, 0.95):.1%}, most {max(relative):.1%};"
        f" {absent} terms are absent from some shard"
    )


def test_queries_while_features_are_written(
    cluster: Cluster, tmp_path: Path, documents: list[Document], texts: list[str]
) -> None:
    engine = make(cluster, tmp_path, "busy")
    engine.ingest(documents)
    engine.write_features([Encoder("text", "v1", feature)])
    asked = through(engine)

    def p50(stop: Callable[[], bool]) -> tuple[float, float, int]:
        seconds = []
        while not stop():
            begun = time.monotonic()
            text = texts[len(seconds) % len(texts)]
            found = asked.search(text, first_stage="bm25", depth=100, features={"text": "v1"})
            seconds.append(time.monotonic() - begun)
            assert not found.missing["text"].any()
        return statistics.median(seconds) * 1e3, float(np.quantile(seconds, 0.95)) * 1e3, len(seconds)

    def for_seconds(seconds: float) -> Callable[[], bool]:
        until = time.monotonic() + seconds
        return lambda: time.monotonic() > until

    p50(for_seconds(2))
    before = p50(for_seconds(3))
    finished = threading.Event()

    def encode() -> None:
        try:
            for version in ("v2", "v3"):
                engine.write_features([Encoder("meta", version, feature)])
        finally:
            finished.set()

    with background(encode) as failed:
        during = p50(finished.is_set)
    assert not failed, failed
    for name, (middle, high, count) in (("before", before), ("during", during)):
        print(f"\nqueries {name} encoding: p50 {middle:.1f} ms, p95 {high:.1f} ms ({count} queries)")
