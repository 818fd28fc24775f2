"""A cluster of three nodes, three shards and one replica: nodes that die or freeze, several processes that
encode, other clients that write, and the scores of shards.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rerank.engines.base import Encoder
from rerank.engines.opensearch import OpenSearchEngine, bulk
from rerank.errors import EngineError
from rerank.records import Document
from tests.cluster import (
    GREEN,
    Stream,
    alive,
    assert_holds,
    background,
    clean,
    cluster,
    documents,
    feature,
    make,
    manager,
    mend,
    one_line,
    rankings,
    small_steps,
    texts,
    through,
    wrong_features,
)
from tests.node import Cluster

__all__ = ["clean", "cluster", "documents", "small_steps", "texts"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


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
    documents = documents[:1600]
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
            engines[f"{kind}-{reach}"] = engine if reach == "all" else through(engine, victim.url)
    cluster.nodes[0].request("GET", GREEN)
    everybody = threading.Barrier(len(engines), lambda: threading.Timer(0.03, victim.kill).start())
    outcome: dict[str, tuple[Any, float]] = {}

    def ingest(name: str, engine: OpenSearchEngine) -> None:
        seen = [0]

        def progress(count: int) -> None:
            seen[0] += count
            if seen[0] - count < 600 <= seen[0]:
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
            return engine.write(documents, progress=progress)
        return engine.write([*changed, *added], deleted, progress=progress)

    jobs = [lambda name=name, engine=engine: ingest(name, engine) for name, engine in engines.items()]
    with background(*jobs):
        pass
    assert not alive(victim)

    # Clients that know the other nodes have finished without help.
    for kind in final:
        result, _ = outcome[f"{kind}-all"]
        if isinstance(result, Exception):
            raise result
        assert result.added + result.updated == len(documents if kind == "fresh" else [*changed, *added])
        assert engines[f"{kind}-all"].ids() == sorted(d.id for d in final[kind])

    # The others have stopped, and say how to go on: one by another node, one when the node is back.
    for name in ("fresh-one", "place-one"):
        line = one_line(outcome[name][0])
        assert "Connection refused" in line
        assert "run the same command again" in line
    elsewhere = through(engines["fresh-one"], survivor.url)
    write("fresh-one", elsewhere)
    mend(cluster)
    write("place-one", engines["place-one"])

    cluster.nodes[0].request("GET", GREEN)
    for name, engine in engines.items():
        for node in cluster.nodes:
            assert_holds(engine, node, final[name.split("-")[0]])


def test_node_killed_during_queries(
    cluster: Cluster, tmp_path: Path, documents: list[Document], texts: list[str]
) -> None:
    plain = make(cluster, tmp_path, "queries")
    plain.write(documents)
    cluster.nodes[0].request("GET", GREEN)
    streams = {}
    for kind in ("query_then_fetch", "dfs_query_then_fetch"):
        engine = through(plain, search_type=kind)
        streams[kind] = Stream(engine, texts, rankings(engine, texts), threads=2)
    victim = manager(cluster)
    with streams["query_then_fetch"], streams["dfs_query_then_fetch"]:
        time.sleep(2)
        victim.kill()
        time.sleep(4)
        victim.start().wait(3)
        victim.request("GET", GREEN)
        time.sleep(2)
        ended = time.monotonic()
    for stream in streams.values():
        answers = stream.answers
        assert not answers.wrong, answers.wrong[:3]
        assert all("searching: " in line for line in answers.errors), answers.errors
        assert answers.gap < 15
        assert max(answers.times[:-1]) > ended - 1


# -- 4. to 7. features ---------------------------------------------------------------------------------


def test_node_killed_while_features_are_written(
    cluster: Cluster, tmp_path: Path, documents: list[Document], small_steps: None
) -> None:
    documents = documents[:1600]
    engine = make(cluster, tmp_path, "killed")
    engine.write(documents)
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

    try:
        engine.write_features([Encoder("text", "v1", encode)])
    except EngineError as error:
        one_line(error)
    engine.write_features([Encoder("text", "v1", feature)])
    assert engine.missing_features("text", "v1") == 0
    mend(cluster)
    assert wrong_features(engine, cluster.nodes[0], "text", "v1") == ([], 0)
    assert_holds(engine, cluster.nodes[0], documents)


def test_others_write_while_features_are_written(
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
        engine.write_features([Encoder("text", "v1", encode)])
        stop.set()
    assert not failed, failed
    assert min(written.values()) > 20
    assert_holds(engine, node, expected.values())
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
    assert_holds(engine, node, expected.values())
