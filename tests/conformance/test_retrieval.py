"""Rankers that retrieve: the union of what BM25 or tf-idf and vectors find, the same on every engine.

What must come out is computed here by NumPy, over all documents.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rerank.engines.base import FIRST_STAGES, Encoder, Engine, Nearest
from rerank.engines.local import LocalEngine
from rerank.engines.opensearch import OpenSearchEngine, Settings
from rerank.errors import UsageError, WorkspaceError
from rerank.rankers.dense.ranker import DenseRanker
from rerank.rankers.dense.transformer import TextEncoder
from rerank.records import Candidates, Document, Query
from rerank.scoring.pipeline import Pipeline
from rerank.stack.stack import Stack

WIDTH = 8
WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"]


def local(folder: Path, request: pytest.FixtureRequest) -> Iterator[Engine]:
    yield LocalEngine.create(folder / "engine", lang="en")


def opensearch(folder: Path, request: pytest.FixtureRequest) -> Iterator[Engine]:
    yield from on_cluster(folder, request, shards=1)


def opensearch_shards(folder: Path, request: pytest.FixtureRequest) -> Iterator[Engine]:
    yield from on_cluster(folder, request, shards=3, search_type="dfs_query_then_fetch")


def opensearch_without_graph(folder: Path, request: pytest.FixtureRequest) -> Iterator[Engine]:
    """An index that was made before the cluster had the plugin: exact search by script."""
    for engine in on_cluster(folder, request, shards=1):
        assert isinstance(engine, OpenSearchEngine)
        node = request.getfixturevalue("knn_node")
        (name,) = engine.index.indices()
        made = node.request("GET", f"/{name}")[name]
        index = made["settings"]["index"]
        for key in [key for key in index if key.startswith("knn")]:
            del index[key]
        for key in ("creation_date", "uuid", "version", "provided_name"):
            del index[key]
        node.request("DELETE", f"/{name}")
        node.request("PUT", f"/{name}", made)
        yield engine


def on_cluster(folder: Path, request: pytest.FixtureRequest, **options: Any) -> Iterator[Engine]:
    node = request.getfixturevalue("knn_node")
    name = f"retrieval-{secrets.token_hex(4)}"
    settings = Settings((node.url,), name, replicas=0, **options)
    engine = OpenSearchEngine.create(settings, folder / "engine", "en")
    yield engine
    engine.close()
    node.request("DELETE", f"/{name}-*")


ENGINES: dict[str, Callable[[Path, pytest.FixtureRequest], Iterator[Engine]]] = {
    "local": local,
    "opensearch": opensearch,
    "opensearch, 3 shards": opensearch_shards,
    "opensearch, no graph": opensearch_without_graph,
}


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    yield from ENGINES[request.param](tmp_path, request)


stages = pytest.mark.parametrize("stage", FIRST_STAGES)


def vectors(documents: Sequence[Document], dtype: Any = np.float16) -> np.ndarray:
    """Of length 1, by the document's id; zeros where the id ends in 0."""
    rows = []
    for document in documents:
        row = np.random.default_rng(int(document.id)).normal(size=WIDTH)
        rows.append(row / np.linalg.norm(row) if not document.id.endswith("0") else 0 * row)
    return np.array(rows, dtype)


def collection(count: int = 120) -> list[Document]:
    rng = np.random.default_rng(5)
    return [
        Document(f"{i:04}", text=" ".join(rng.choice(WORDS, rng.integers(1, 4)))) for i in range(1, count + 1)
    ]


def queries(count: int) -> tuple[list[str], np.ndarray]:
    rng = np.random.default_rng(9)
    rows = rng.normal(size=(count, WIDTH))
    texts = [" ".join(rng.choice(WORDS, 2)) for _ in range(count)]
    return texts, (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def nearest(documents: Sequence[Document], query: np.ndarray, depth: int) -> list[str]:
    """By brute force: products above 0, the largest first, ties by id."""
    products = (vectors(documents).astype(np.float64) @ query.astype(np.float64)).astype(np.float32)
    ranked = sorted((-p, d.id) for p, d in zip(products.tolist(), documents) if p > 0)
    return [id for _, id in ranked[:depth]]


@stages
@pytest.mark.parametrize("depth", [1, 7, 30, 200])
def test_the_union_is_that_of_brute_force(engine: Engine, stage: str, depth: int) -> None:
    documents = collection()
    engine.ingest(documents)
    engine.write_features([Encoder("s2net", "v1", vectors, True)])
    texts, rows = queries(12)
    found = list(
        engine.search_many(
            texts,
            first_stage=stage,
            depth=depth,
            features={"s2net": "v1"},
            retrieve=[stage, Nearest("s2net", "v1", rows)],
        )
    )
    everything = {document.id: document for document in documents}
    for text, row, candidates in zip(texts, rows, found, strict=True):
        lexical = engine.search(text, first_stage=stage, depth=depth)
        assert set(lexical.ids) == {i for i, by in zip(candidates.ids, candidates.found[stage]) if by}
        near = nearest(documents, row, depth)
        assert set(near) == {i for i, by in zip(candidates.ids, candidates.found["s2net"]) if by}
        # All have the scores of the first stage, also those that it did not find, and are in its order.
        alone = engine.select(text, sorted({*lexical.ids, *near}), first_stage=stage)
        assert candidates.ids == alone.ids
        assert candidates.scores.tolist() == alone.scores.tolist()
        expected = vectors([everything[id] for id in candidates.ids])
        assert np.array_equal(candidates.features["s2net"], expected)
        assert not candidates.missing["s2net"].any()
        assert engine.lexical(text, candidates, stage).tolist() == candidates.scores.tolist()
    one = engine.search(
        texts[0],
        first_stage=stage,
        depth=depth,
        retrieve=[stage, Nearest("s2net", "v1", rows[:1])],
    )
    assert one.ids == found[0].ids
    assert one.features == {}


@stages
def test_who_retrieves(engine: Engine, stage: str) -> None:
    documents = collection(40)
    engine.ingest(documents)
    engine.write_features([Encoder("s2net", "v1", vectors, True)])
    (text,), row = queries(1)
    by_vector = Nearest("s2net", "v1", row)
    alone = engine.search(text, first_stage=stage, depth=5, retrieve=[by_vector])
    assert sorted(alone.ids) == sorted(nearest(documents, row[0], 5))
    assert alone.scores.tolist() == engine.select(text, alone.ids, first_stage=stage).scores.tolist()
    assert list(alone.found) == ["s2net"]
    all_three = engine.search(text, first_stage=stage, depth=5, retrieve=["bm25", "tfidf", by_vector])
    assert list(all_three.found) == ["bm25", "tfidf", "s2net"]
    for other in FIRST_STAGES:
        top = engine.search(text, first_stage=other, depth=5).ids
        assert {i for i, by in zip(all_three.ids, all_three.found[other]) if by} == set(top)
    named = engine.search(text, first_stage=stage, depth=5, retrieve=[stage])
    assert named.ids == engine.search(text, first_stage=stage, depth=5).ids
    nothing = engine.search("unknownword", first_stage=stage, depth=5, retrieve=[stage, by_vector])
    assert sorted(nothing.ids) == nothing.ids == sorted(nearest(documents, row[0], 5))
    assert nothing.scores.tolist() == [0] * 5
    few = engine.search(text, first_stage=stage, depth=5, retrieve=[stage, by_vector._replace(depth=2)])
    assert {i for i, by in zip(few.ids, few.found["s2net"]) if by} == set(nearest(documents, row[0], 2))
    assert {i for i, by in zip(few.ids, few.found[stage]) if by} == set(named.ids)
    more = engine.search(text, first_stage=stage, depth=2, retrieve=[by_vector._replace(depth=9)])
    assert set(more.ids) == set(nearest(documents, row[0], 9))
    zero = Nearest("s2net", "v1", np.zeros((1, WIDTH), np.float32))
    assert engine.search(text, first_stage=stage, depth=5, retrieve=[stage, zero]).ids == named.ids
    assert len(engine.search("", first_stage=stage, depth=5, retrieve=[zero])) == 0


def test_changed_and_removed_documents(engine: Engine) -> None:
    documents = collection(40)
    engine.ingest(documents)
    engine.write_features([Encoder("s2net", "v1", vectors, True)])
    _, row = queries(1)
    by_vector = Nearest("s2net", "v1", row)
    best = nearest(documents, row[0], 40)
    engine.ingest([Document(best[1], text="alpha changed")], delete=[best[0]])
    assert engine.prepared("s2net", "v1") == 1
    now = engine.search("alpha", first_stage="bm25", depth=3, retrieve=["bm25", by_vector])
    assert [i for i, by in zip(now.ids, now.found["s2net"]) if by] == [i for i in now.ids if i in best[2:5]]
    engine.write_features([Encoder("s2net", "v1", vectors)])
    assert engine.prepared("s2net", "v1") == 0
    now = engine.search("alpha", first_stage="bm25", depth=3, retrieve=[by_vector])
    assert set(now.ids) == set(best[1:4])
    engine.ingest([Document("9999", text="more")])
    engine.write_features([Encoder("other", "o", lambda some: np.ones((len(some), 3), np.float32))])
    engine.write_features([Encoder("s2net", "v1", vectors)])
    now = engine.search("alpha", first_stage="bm25", depth=3, retrieve=[by_vector])
    known = [document for document in engine.documents() if document.id != best[0]]
    assert set(now.ids) == set(nearest(known, row[0], 3))


def test_a_new_version_goes_on_retrieving(engine: Engine) -> None:
    documents = collection(40)
    engine.ingest(documents)
    engine.write_features([Encoder("s2net", "v1", vectors, True)])
    engine.write_features([Encoder("s2net", "v2", lambda some: -vectors(some))])
    _, row = queries(1)
    assert engine.prepared("s2net", "v2") == 0
    found = engine.search("x", first_stage="bm25", depth=4, retrieve=[Nearest("s2net", "v2", -row)])
    assert set(found.ids) == set(nearest(documents, row[0], 4))


def test_equal_documents_at_the_cut_are_told_apart_by_id(engine: Engine) -> None:
    documents = collection(40)
    engine.ingest(documents[::-1])

    def same(some: Sequence[Document]) -> np.ndarray:
        return np.tile(np.array([[0.6, 0.8, 0, 0, 0, 0, 0, 0]], np.float16), (len(some), 1))

    engine.write_features([Encoder("s2net", "v1", same, True)])
    row = np.array([[0.3, 0.7, 0.1, 0, 0, 0, 0, 0]], np.float32)
    found = engine.search("x", first_stage="bm25", depth=40, retrieve=[Nearest("s2net", "v1", row)])
    assert found.ids == [document.id for document in documents]
    if isinstance(engine, LocalEngine):  # a graph may return any of the equal ones
        found = engine.search("x", first_stage="bm25", depth=7, retrieve=[Nearest("s2net", "v1", row)])
        assert found.ids == [document.id for document in documents[:7]]


def test_a_query_of_very_many_words(engine: Engine) -> None:
    documents = collection(40)
    engine.ingest(documents)
    engine.write_features([Encoder("s2net", "v1", vectors, True)])
    text = " ".join(f"word{i}" for i in range(3000)) + " alpha"
    _, row = queries(1)
    found = engine.search(
        text,
        first_stage="bm25",
        depth=5,
        features={"s2net": "v1"},
        retrieve=["bm25", Nearest("s2net", "v1", row)],
    )
    assert {i for i, by in zip(found.ids, found.found["s2net"]) if by} == set(nearest(documents, row[0], 5))
    lexical = engine.search("alpha", first_stage="bm25", depth=5).ids
    assert {i for i, by in zip(found.ids, found.found["bm25"]) if by} == set(lexical)
    assert np.array_equal(found.features["s2net"], vectors([Document(id) for id in found.ids]))


def test_what_cannot_retrieve(engine: Engine) -> None:
    engine.ingest(collection(20))
    _, row = queries(1)
    by_vector = Nearest("s2net", "v1", row)
    assert engine.prepared("s2net", "v1") is None
    with pytest.raises(UsageError, match=r"s2net cannot retrieve.*encode\(retrieve=s2net\)"):
        engine.search("alpha", first_stage="bm25", depth=5, retrieve=["bm25", by_vector])
    engine.write_features([Encoder("s2net", "v1", vectors, True)])
    with pytest.raises(UsageError, match=r"s2net cannot retrieve"):
        engine.search("alpha", first_stage="bm25", depth=5, retrieve=[Nearest("s2net", "v2", row)])
    wide = Nearest("s2net", "v1", np.zeros((1, 9), np.float32))
    with pytest.raises(WorkspaceError, match=r"s2net features have 8 numbers, not 9"):
        engine.search("alpha", first_stage="bm25", depth=5, retrieve=[wide])
    with pytest.raises(UsageError, match="'bm26'"):
        engine.search("alpha", first_stage="bm25", depth=5, retrieve=["bm26", by_vector])


def test_features_that_were_there_before(engine: Engine) -> None:
    documents = collection(40)
    engine.ingest(documents)
    engine.write_features([Encoder("s2net", "v1", vectors)])
    _, row = queries(1)
    by_vector = Nearest("s2net", "v1", row)
    if isinstance(engine, OpenSearchEngine):
        assert engine.prepared("s2net", "v1") is None
        with pytest.raises(UsageError, match="cannot retrieve"):
            engine.search("alpha", first_stage="bm25", depth=5, retrieve=[by_vector])

        def never(some: Sequence[Document]) -> np.ndarray:
            raise AssertionError("the features are there")

        assert engine.write_features([Encoder("s2net", "v1", never, True)]) == {"s2net": 40}
        assert engine.write_features([Encoder("s2net", "v1", never, True)]) == {"s2net": 0}
    assert engine.prepared("s2net", "v1") == 0
    found = engine.search("alpha", first_stage="bm25", depth=5, retrieve=[by_vector])
    assert set(found.ids) == set(nearest(documents, row[0], 5))


def test_an_ingest_with_features(engine: Engine) -> None:
    documents = collection(40)
    engine.ingest(documents[:20])
    engine.write_features([Encoder("s2net", "v1", vectors, True)])
    encoders = [Encoder("s2net", "v1", vectors)]
    engine.ingest(documents[20:30], encoders=encoders)
    engine.write_features(encoders)
    _, row = queries(1)
    by_vector = Nearest("s2net", "v1", row)
    found = engine.search("alpha", first_stage="bm25", depth=5, retrieve=[by_vector])
    assert set(found.ids) == set(nearest(documents[:30], row[0], 5))
    engine.ingest(documents, encoders=encoders, replace=True)
    engine.write_features(encoders)
    assert engine.prepared("s2net", "v1") == 0
    found = engine.search("alpha", first_stage="bm25", depth=5, retrieve=[by_vector])
    assert set(found.ids) == set(nearest(documents, row[0], 5))


# ------------------------------------------------------------------------------ several vectors a document

FRAGMENTS = 4


def fragments(documents: Sequence[Document]) -> np.ndarray:
    """Up to four vectors, by the document's id, and how many; none where the id ends in 0."""
    features = np.zeros((len(documents), FRAGMENTS * WIDTH + 1), np.int8)
    for row, document in enumerate(documents):
        rng = np.random.default_rng(int(document.id))
        count = 0 if document.id.endswith("0") else int(rng.integers(1, FRAGMENTS + 1))
        some = rng.normal(size=(count, WIDTH))
        features[row, : count * WIDTH] = np.rint(60 * some / np.abs(some).max(initial=1)).reshape(-1)
        features[row, -1] = count
    return features


def nearest_fragments(documents: Sequence[Document], query: np.ndarray, depth: int) -> list[str]:
    """By brute force, in plain Python: the largest cosine of a document's vectors, ties by id."""
    found = []
    for document, row in zip(documents, fragments(documents).astype(np.float64)):
        some = row[:-1].reshape(FRAGMENTS, WIDTH)[: int(row[-1])]
        best = max((float(v @ query.astype(np.float64)) / float(v @ v) ** 0.5 for v in some), default=0.0)
        if best > 0:
            found.append((-np.float32(best), document.id))
    return [id for _, id in sorted(found)[:depth]]


def by_fragments(rows: np.ndarray, version: str = "v1") -> Nearest:
    return Nearest("dense", version, rows, fragments=FRAGMENTS)


def dense(
    encode: Callable[..., np.ndarray] = fragments, version: str = "v1", retrieves: bool = True
) -> Encoder:
    return Encoder("dense", version, encode, retrieves, FRAGMENTS)


def found_by(candidates: Candidates, name: str) -> set[str]:
    return {id for id, by in zip(candidates.ids, candidates.found[name]) if by}


class TestSeveralVectors:
    @pytest.mark.parametrize("depth", [1, 7, 30, 200])
    def test_the_union_is_that_of_brute_force(self, engine: Engine, depth: int) -> None:
        documents = collection()
        engine.ingest(documents)
        engine.write_features([dense()])
        texts, rows = queries(12)
        found = engine.search_many(
            texts,
            first_stage="bm25",
            depth=depth,
            features={"dense": "v1"},
            retrieve=["bm25", by_fragments(rows)],
        )
        everything = {document.id: document for document in documents}
        for text, row, candidates in zip(texts, rows, found, strict=True):
            lexical = engine.search(text, first_stage="bm25", depth=depth)
            near = nearest_fragments(documents, row, depth)
            assert set(lexical.ids) == found_by(candidates, "bm25")
            assert set(near) == found_by(candidates, "dense")
            alone = engine.select(text, sorted({*lexical.ids, *near}), first_stage="bm25")
            assert candidates.ids == alone.ids
            assert candidates.scores.tolist() == alone.scores.tolist()
            expected = fragments([everything[id] for id in candidates.ids])
            assert np.array_equal(candidates.features["dense"], expected)
            assert not candidates.missing["dense"].any()
        one = engine.search(texts[0], first_stage="bm25", depth=depth, retrieve=[by_fragments(rows[:1])])
        assert set(one.ids) == set(nearest_fragments(documents, rows[0], depth))
        zero = by_fragments(np.zeros((1, WIDTH), np.float32))
        assert len(engine.search("", first_stage="bm25", depth=depth, retrieve=[zero])) == 0

    def test_vectors_are_no_documents(self, engine: Engine) -> None:
        """They are not counted, and do not change what words score."""
        documents = collection(40)
        engine.ingest(documents)
        before = engine.select("alpha beta", engine.ids(), first_stage="bm25")
        if isinstance(engine, OpenSearchEngine):  # in place, what is replaced takes part for a while
            engine.ingest(documents, encoders=[dense()], replace=True)
        engine.write_features([dense()])
        assert (len(engine), engine.ids()) == (40, [document.id for document in documents])
        assert sorted(engine.documents(), key=lambda document: document.id) == documents
        after = engine.select("alpha beta", engine.ids(), first_stage="bm25")
        assert after.scores.tolist() == before.scores.tolist()

    def test_beside_a_ranker_with_one(self, engine: Engine) -> None:
        documents = collection(60)
        engine.ingest(documents)
        engine.write_features([Encoder("s2net", "v1", vectors, True), dense()])
        (text,), row = queries(1)
        retrieve = ["tfidf", Nearest("s2net", "v1", row), by_fragments(row)._replace(depth=9)]
        found = engine.search(text, first_stage="tfidf", depth=6, retrieve=retrieve)
        assert found_by(found, "s2net") == set(nearest(documents, row[0], 6))
        assert found_by(found, "dense") == set(nearest_fragments(documents, row[0], 9))
        assert len(engine.search(text, first_stage="tfidf", depth=6)) == len(found_by(found, "tfidf"))

    def test_changed_and_removed_documents(self, engine: Engine) -> None:
        documents = collection(40)
        engine.ingest(documents)
        engine.write_features([dense()])
        _, row = queries(1)
        retrieve = [by_fragments(row)]
        best = nearest_fragments(documents, row[0], 40)
        engine.ingest([Document(best[1], text="alpha changed")], delete=[best[0]])
        assert (len(engine), engine.prepared("dense", "v1")) == (39, 1)
        now = engine.search("alpha", first_stage="bm25", depth=3, retrieve=retrieve)
        assert set(now.ids) == set(best[2:5])
        engine.write_features([dense(retrieves=False)])
        assert engine.prepared("dense", "v1") == 0
        now = engine.search("alpha", first_stage="bm25", depth=3, retrieve=retrieve)
        assert set(now.ids) == set(best[1:4])
        # What another ranker writes leaves them.
        engine.write_features([Encoder("other", "o", lambda some: np.ones((len(some), 3), np.float32))])
        assert (len(engine), engine.prepared("dense", "v1")) == (39, 0)
        now = engine.search("alpha", first_stage="bm25", depth=3, retrieve=retrieve)
        assert set(now.ids) == set(best[1:4])

    def test_new_versions_go_on_retrieving(self, engine: Engine) -> None:
        documents = collection(40)
        engine.ingest(documents)
        engine.write_features([dense()])

        def turned(some: Sequence[Document]) -> np.ndarray:
            features = fragments(some)
            features[:, :-1] *= -1
            return features

        _, row = queries(1)
        engine.write_features([dense(turned, "v2", retrieves=False)])
        assert engine.prepared("dense", "v2") == 0
        found = engine.search("x", first_stage="bm25", depth=4, retrieve=[by_fragments(-row, "v2")])
        assert set(found.ids) == set(nearest_fragments(documents, row[0], 4))
        engine.write_features([dense(fragments, "v3.1", retrieves=False)])
        found = engine.search("x", first_stage="bm25", depth=4, retrieve=[by_fragments(row, "v3.1")])
        assert set(found.ids) == set(nearest_fragments(documents, row[0], 4))
        assert engine.feature_versions() == {"dense": "v3.1"}
        if isinstance(engine, OpenSearchEngine):  # which allows an index 50 nested fields
            (made,) = engine.index.indices().values()
            nested = made["mappings"]["properties"]["rerank_features"]["properties"]["dense:knn"]
            assert set(nested["properties"]) == {"v1", "v2", "v3%2E1"}

    def test_equal_documents_at_the_cut_are_told_apart_by_id(self, engine: Engine) -> None:
        documents = collection(40)
        engine.ingest(documents[::-1])

        def same(some: Sequence[Document]) -> np.ndarray:
            """The same best vector, longer or shorter, at the first or the last place."""
            features = np.zeros((len(some), FRAGMENTS, WIDTH), np.int8)
            numbers = np.array([int(document.id) for document in some])
            counts = 1 + numbers % FRAGMENTS
            features[np.arange(len(some)), counts - 1, :2] = (1 + numbers % 9)[:, None] * np.array([6, 8])
            features[:, 0, 2][counts > 1] = -7
            return np.concatenate([features.reshape(len(some), -1), counts[:, None]], axis=1).astype(np.int8)

        engine.write_features([dense(same)])
        row = np.array([[0.6, 0.8, 0, 0, 0, 0, 0, 0]], np.float32)
        found = engine.search("x", first_stage="bm25", depth=40, retrieve=[by_fragments(row)])
        assert found.ids == [document.id for document in documents]
        if isinstance(engine, LocalEngine):  # a graph may return any of the equal ones
            found = engine.search("x", first_stage="bm25", depth=7, retrieve=[by_fragments(row)])
            assert found.ids == [document.id for document in documents[:7]]

    def test_features_that_were_there_before(self, engine: Engine) -> None:
        documents = collection(40)
        engine.ingest(documents)
        engine.write_features([dense(retrieves=False)])
        _, row = queries(1)
        if isinstance(engine, OpenSearchEngine):
            assert engine.prepared("dense", "v1") is None
            with pytest.raises(UsageError, match=r"dense cannot retrieve.*encode\(retrieve=dense\)"):
                engine.search("alpha", first_stage="bm25", depth=5, retrieve=[by_fragments(row)])

            def never(some: Sequence[Document]) -> np.ndarray:
                raise AssertionError("the features are there")

            assert engine.write_features([dense(never)]) == {"dense": 40}
            assert engine.write_features([dense(never)]) == {"dense": 0}
        assert engine.prepared("dense", "v1") == 0
        found = engine.search("alpha", first_stage="bm25", depth=5, retrieve=[by_fragments(row)])
        assert set(found.ids) == set(nearest_fragments(documents, row[0], 5))
        assert engine.prepared("dense", "v2") is None
        with pytest.raises(UsageError, match="dense cannot retrieve"):
            engine.search("alpha", first_stage="bm25", depth=5, retrieve=[by_fragments(row, "v2")])
        wide = by_fragments(np.zeros((1, 9), np.float32))
        with pytest.raises(WorkspaceError, match=r"dense features have 33 numbers, not 37"):
            engine.search("alpha", first_stage="bm25", depth=5, retrieve=[wide])

    def test_an_ingest_with_features(self, engine: Engine) -> None:
        documents = collection(40)
        engine.ingest(documents[:20])
        engine.write_features([dense()])
        encoders = [dense(retrieves=False)]
        _, row = queries(1)
        for some, anew in ((documents[20:30], False), (documents, True)):
            engine.ingest(some, encoders=encoders, replace=anew)
            engine.write_features(encoders)
            assert engine.prepared("dense", "v1") == 0
            found = engine.search("alpha", first_stage="bm25", depth=5, retrieve=[by_fragments(row)])
            assert set(found.ids) == set(nearest_fragments(documents[: len(engine)], row[0], 5))

    def test_a_query_of_very_many_words(self, engine: Engine) -> None:
        documents = collection(40)
        engine.ingest(documents)
        engine.write_features([dense()])
        text = " ".join(f"word{i}" for i in range(3000)) + " alpha"
        _, row = queries(1)
        found = engine.search(text, first_stage="bm25", depth=5, retrieve=["bm25", by_fragments(row)])
        assert found_by(found, "dense") == set(nearest_fragments(documents, row[0], 5))
        assert found_by(found, "bm25") == set(engine.search("alpha", first_stage="bm25", depth=5).ids)

    def test_a_transformer(self, engine: Engine, tiny: str) -> None:
        """``dense`` itself, in the pipeline: what it finds are the documents with the nearest fragments."""
        encoder = TextEncoder.load(tiny, longest=16)
        ranker = DenseRanker.of("dense", encoder, FRAGMENTS, {})
        rng = np.random.default_rng(3)
        documents = [
            Document(f"{i:03}", text=" ".join(f"w{w}" for w in rng.integers(40, size=rng.integers(0, 60))))
            for i in range(60)
        ]
        engine.ingest([*documents, Document("zzz")])
        encode = ranker.encode_documents
        engine.write_features([Encoder("dense", ranker.version, encode, True, ranker.fragments)])
        pipeline = Pipeline(engine, {"dense": ranker})
        stack = replace(Stack.parse("bm25*0.5 + dense*0.5"), depth=8, retrieve=("bm25", "dense"))
        query = Query("q", "w3 w14 w15")
        vector = ranker.encode_query(query).astype(np.float64)
        stored = engine.select("", engine.ids(), first_stage="bm25", features={"dense": ranker.version})
        best = {}
        for id, row in zip(stored.ids, stored.features["dense"].astype(np.float64)):
            some = row[:-1].reshape(FRAGMENTS, -1)[: int(row[-1])]
            best[id] = max((float(v @ vector) / float(v @ v) ** 0.5 for v in some), default=0.0)
        assert best["zzz"] == 0
        wanted = sorted((id for id in best if best[id] > 0), key=lambda id: (-best[id], id))[:8]
        answer = pipeline.answer(query, stack)
        assert answer.found["dense"] == len(wanted) > 0
        assert {hit.id for hit in answer.ranking if "dense" in hit.found_by} == set(wanted)
        assert answer.recomputed == {}
