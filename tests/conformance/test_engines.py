"""What every engine must do: the contract of rerank.engines.base, checked on each engine there is.

To put another engine under test, add a function to ENGINES that makes an empty one.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rerank.engines.base import FIRST_STAGES, Encoder, Engine, Ingested
from rerank.engines.local import LocalEngine
from rerank.engines.opensearch import OpenSearchEngine, Settings
from rerank.errors import InputError, UsageError
from rerank.records import Candidates, Document


def local(folder: Path, request: pytest.FixtureRequest) -> Iterator[Engine]:
    yield LocalEngine.create(folder / "engine", lang="en")


def opensearch(folder: Path, request: pytest.FixtureRequest) -> Iterator[Engine]:
    yield from on_cluster(folder, request, shards=1)


def opensearch_shards(folder: Path, request: pytest.FixtureRequest) -> Iterator[Engine]:
    # On several shards only global statistics give every document of a test the same idf.
    yield from on_cluster(folder, request, shards=3, search_type="dfs_query_then_fetch")


def on_cluster(folder: Path, request: pytest.FixtureRequest, **options: Any) -> Iterator[Engine]:
    node = request.getfixturevalue("node")
    name = f"conformance-{secrets.token_hex(4)}"
    engine = OpenSearchEngine.create(
        Settings((node.url,), name, replicas=0, **options), folder / "engine", "en"
    )
    yield engine
    engine.close()
    node.request("DELETE", f"/{name}-*")


ENGINES: dict[str, Callable[[Path, pytest.FixtureRequest], Iterator[Engine]]] = {
    "local": local,
    "opensearch": opensearch,
    "opensearch, 3 shards": opensearch_shards,
}

DOCUMENTS = [
    Document("a", title="Sorting", text="A faster quicksort for sorted lists"),
    Document("b", text="Trees and lists"),
    Document("c", title="Search trees", text="Balanced trees for searching: trees, trees and more trees"),
    Document("d", text="Nothing in common"),
]


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    yield from ENGINES[request.param](tmp_path, request)


stages = pytest.mark.parametrize("stage", FIRST_STAGES)


def found(engine: Engine, text: str, stage: str, depth: int = 10) -> list[str]:
    return engine.search(text, first_stage=stage, depth=depth).ids


def every(engine: Engine) -> list[Document]:
    """All documents, by id: their order is the engine's own, and stays while nothing is written."""
    found = list(engine.documents())
    assert found == list(engine.documents())
    return sorted(found, key=lambda document: document.id)


class TestDocuments:
    def test_empty(self, engine: Engine) -> None:
        assert len(engine) == 0
        assert engine.ids() == []
        assert list(engine.documents()) == []
        assert engine.get(["a"]) == [None]
        assert engine.ingest([]) == Ingested(0, 0, 0)

    def test_add(self, engine: Engine) -> None:
        assert engine.ingest(iter(DOCUMENTS)) == Ingested(4, 0, 0)
        assert len(engine) == 4
        assert engine.ids() == ["a", "b", "c", "d"]
        assert every(engine) == DOCUMENTS
        assert engine.contains(["c", "x", "a", "\ud800"]) == {"a", "c"}
        assert engine.get(["c", "x", "a", "c"]) == [DOCUMENTS[2], None, DOCUMENTS[0], DOCUMENTS[2]]

    def test_all_fields_come_back(self, engine: Engine) -> None:
        document = Document(
            "a/b c",
            title="Título",
            text="line\none\x00two 😀",
            categories=("x::y", "ü"),
            links=("b", "c"),
            lang="es",
            extra={"year": 1999, "nested": {"list": [1, None, "x"]}},
        )
        engine.ingest([document])
        assert engine.get([document.id]) == [document]
        assert every(engine) == [document]

    def test_update(self, engine: Engine) -> None:
        engine.ingest(DOCUMENTS)
        new = Document("b", text="Nothing but graphs", categories=("x",))
        assert engine.ingest([new, Document("e", text="graphs")]) == Ingested(1, 1, 0)
        assert len(engine) == 5
        assert engine.get(["b"]) == [new]
        assert sorted(document.id for document in engine.documents()) == engine.ids() == list("abcde")
        for stage in FIRST_STAGES:
            assert set(found(engine, "graphs", stage)) == {"b", "e"}
            assert set(found(engine, "lists", stage)) == {"a"}

    def test_update_again_and_again(self, engine: Engine) -> None:
        for i in range(5):
            engine.ingest([Document("a", text=f"word{i}"), Document("b", text="other")])
        assert len(engine) == 2
        for stage in FIRST_STAGES:
            assert found(engine, "word3", stage) == []
            assert found(engine, "word4", stage) == ["a"]

    def test_delete(self, engine: Engine) -> None:
        engine.ingest(DOCUMENTS)
        assert engine.ingest([], delete=["c", "x", "b", "c"]) == Ingested(0, 0, 2, ("x",))
        assert engine.ids() == ["a", "d"]
        for stage in FIRST_STAGES:
            assert found(engine, "trees lists", stage) == ["a"]

    @pytest.mark.parametrize("id", ["", "x" * 513, "\ud800"])
    def test_delete_what_cannot_be_an_id(self, engine: Engine, id: str) -> None:
        engine.ingest(DOCUMENTS)
        assert engine.ingest([], delete=[id]) == Ingested(0, 0, 0, (id,))
        done = engine.ingest([], delete=["a", id, "x"])
        assert (done.deleted, sorted(done.unknown_deletes)) == (1, sorted(["x", id]))

    def test_add_after_delete(self, engine: Engine) -> None:
        engine.ingest(DOCUMENTS)
        engine.ingest([], delete=["a"])
        assert engine.ingest([Document("a", text="back again")]) == Ingested(1, 0, 0)
        assert len(engine) == 4
        assert found(engine, "back", "bm25") == found(engine, "back", "tfidf") == ["a"]

    def test_id_twice(self, engine: Engine) -> None:
        engine.ingest(DOCUMENTS[:1])
        with pytest.raises(InputError, match=r"'a' occurs twice.*document 2 .*document 4"):
            engine.ingest([DOCUMENTS[1], Document("a"), DOCUMENTS[2], Document("a")])
        assert every(engine) == DOCUMENTS[:1]

    def test_id_both_ingested_and_deleted(self, engine: Engine) -> None:
        with pytest.raises(InputError, match="'a' is both ingested and deleted"):
            engine.ingest(DOCUMENTS, delete=["a"])
        assert len(engine) == 0

    @pytest.mark.parametrize("bad", [Document(""), Document("x\ud800"), Document("x", text="\udc00")])
    def test_unusable_documents(self, engine: Engine, bad: Document) -> None:
        with pytest.raises(InputError):
            engine.ingest([*DOCUMENTS, bad])
        assert len(engine) == 0
        assert engine.get(["x\ud800"]) == [None]

    def test_broken_stream_leaves_the_old_state(self, engine: Engine) -> None:
        def stream():  # type: ignore[no-untyped-def]
            yield Document("a", text="new text")
            yield Document("z", text="new text")
            raise ZeroDivisionError

        engine.ingest(DOCUMENTS)
        with pytest.raises(ZeroDivisionError):
            engine.ingest(stream(), delete=["b"])
        assert every(engine) == DOCUMENTS
        for stage in FIRST_STAGES:
            assert found(engine, "new text", stage) == []
            assert found(engine, "quicksort", stage) == ["a"]
        assert engine.ingest([Document("z", text="new text")]) == Ingested(1, 0, 0)
        assert found(engine, "new text", "tfidf") == ["z"]

    def test_ids_of_all_kinds(self, engine: Engine) -> None:
        ids = [
            "é",
            "e\u0301",
            "Z",
            "a",
            "😀",
            "\uffff",
            "x" * 512,
            "ü" * 256,
            " ",
            "a b\n",
            "1",
            "10",
            "9",
            "a\x00b",
        ]
        engine.ingest([Document(id, text="same") for id in ids])
        assert engine.ids() == sorted(ids)
        assert [document and document.id for document in engine.get(ids)] == ids
        for stage in FIRST_STAGES:
            assert found(engine, "same", stage, depth=100) == sorted(ids)

    def test_rewrite_from_its_own_stream(self, engine: Engine) -> None:
        engine.ingest(DOCUMENTS)
        result = engine.ingest(Document(d.id, text=d.text + " again") for d in engine.documents())
        assert result == Ingested(0, 4, 0)
        assert found(engine, "again", "bm25", depth=2) == ["b", "d"]


@stages
class TestSearch:
    def test_empty_engine(self, engine: Engine, stage: str) -> None:
        candidates = engine.search("anything", first_stage=stage, depth=10)
        assert len(candidates) == 0
        assert candidates.scores.shape == candidates.rows.shape == (0,)

    def test_order_types_and_stemming(self, engine: Engine, stage: str) -> None:
        engine.ingest(DOCUMENTS)
        candidates = engine.search("tree sorts", first_stage=stage, depth=10)
        assert set(candidates.ids) == {"a", "b", "c"}
        assert candidates.scores.dtype == np.float64
        assert candidates.rows.dtype == np.int64
        assert (np.diff(candidates.scores) <= 0).all()
        assert (candidates.scores > 0).all()
        assert candidates.features == candidates.missing == {}

    def test_title_counts(self, engine: Engine, stage: str) -> None:
        engine.ingest([Document("t", title="Sorting"), Document("u", title="Other", text="words")])
        assert found(engine, "sorting", stage) == ["t"]

    @pytest.mark.parametrize("text", ["", " ", "?!", "unknownword", "--- ***", "\x00", "\ud800"])
    def test_no_usable_term(self, engine: Engine, stage: str, text: str) -> None:
        engine.ingest(DOCUMENTS)
        assert found(engine, text, stage) == []
        assert engine.select(text, ["b", "a"], first_stage=stage).scores.tolist() == [0, 0]

    @pytest.mark.parametrize(
        "text",
        [
            "trees AND",
            "+trees -lists",
            '"trees',
            "content:trees",
            "trees*",
            "trees~2",
            "(trees",
            "trees^9 OR [a TO",
        ],
    )
    def test_query_syntax_is_plain_text(self, engine: Engine, stage: str, text: str) -> None:
        engine.ingest(DOCUMENTS)
        assert {"b", "c"} <= set(found(engine, text, stage))

    def test_depth_and_ties_by_id(self, engine: Engine, stage: str) -> None:
        # In an order that is neither that of the ids nor its reverse; 40 documents tie in two groups.
        ids = [f"{(i * 7) % 40:02}" for i in range(40)]
        engine.ingest([Document(id, text="apple pear" if int(id) % 2 else "apple") for id in ids])
        everything = found(engine, "apple pear", stage, depth=100)
        assert everything == [f"{i:02}" for i in (*range(1, 40, 2), *range(0, 40, 2))]
        for depth in (1, 2, 19, 20, 21, 39, 40, 41):
            assert found(engine, "apple pear", stage, depth=depth) == everything[:depth]

    def test_repeated_words_weigh_more(self, engine: Engine, stage: str) -> None:
        engine.ingest([Document("a", text="apple x"), Document("b", text="pear y")])
        assert found(engine, "apple pear pear", stage) == ["b", "a"]
        assert found(engine, "apple apple pear", stage) == ["a", "b"]

    def test_select_and_lexical_give_the_scores_of_search(self, engine: Engine, stage: str) -> None:
        words = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta"]
        rng = np.random.default_rng(7)
        engine.ingest(
            Document(f"{i:03}", text=" ".join(rng.choice(words, rng.integers(1, 30)))) for i in range(300)
        )
        engine.ingest(
            (Document(f"{i:03}", text="beta gamma " * (i % 5)) for i in range(40)), delete=["299", "298"]
        )
        text = "alpha gamma beta zeta zeta"
        top = engine.search(text, first_stage=stage, depth=1000)
        assert engine.lexical(text, top, stage).tolist() == top.scores.tolist()
        some = rng.permutation(len(top))[:50]
        part = Candidates([top.ids[i] for i in some], top.scores[some], top.rows[some])
        assert engine.lexical(text, part, stage).tolist() == top.scores[some].tolist()
        chosen = engine.select(text, [top.ids[i] for i in some], first_stage=stage)
        order = np.sort(some)
        assert chosen.ids == [top.ids[i] for i in order]
        assert chosen.scores.tolist() == top.scores[order].tolist()
        assert engine.search(text, first_stage=stage, depth=17).scores.tolist() == top.scores[:17].tolist()

    def test_select(self, engine: Engine, stage: str) -> None:
        engine.ingest(DOCUMENTS)
        candidates = engine.select("trees", ["d", "b", "a", "c"], first_stage=stage)
        assert candidates.ids == ["c", "b", "a", "d"]
        assert candidates.scores[2:].tolist() == [0, 0]
        assert len(engine.select("trees", [], first_stage=stage)) == 0
        for unknown in ("x", "\ud800"):
            with pytest.raises(KeyError):
                engine.select("trees", ["a", unknown], first_stage=stage)

    def test_search_many(self, engine: Engine, stage: str) -> None:
        engine.ingest(DOCUMENTS)
        texts = ["trees", "", "sorted lists", "trees"]
        many = list(engine.search_many(texts, first_stage=stage, depth=2))
        for text, candidates in zip(texts, many, strict=True):
            one = engine.search(text, first_stage=stage, depth=2)
            assert candidates.ids == one.ids
            assert candidates.scores.tolist() == one.scores.tolist()

    def test_long_query(self, engine: Engine, stage: str) -> None:
        engine.ingest(DOCUMENTS)
        text = " ".join(f"word{i}" for i in range(5000)) + " trees"
        assert found(engine, text, stage) == ["c", "b"]


class TestUsage:
    def test_unknown_stage(self, engine: Engine) -> None:
        with pytest.raises(UsageError, match="'bm26'"):
            engine.search("x", first_stage="bm26", depth=1)
        with pytest.raises(UsageError, match="'bm26'"):
            engine.lexical("x", Candidates([], np.empty(0), np.empty(0, np.int64)), "bm26")

    def test_depth_below_one(self, engine: Engine) -> None:
        with pytest.raises(UsageError, match="depth"):
            engine.search("x", first_stage="bm25", depth=0)


def lengths(documents: Sequence[Document]) -> np.ndarray:
    return np.array([[len(d.id), len(d.text)] for d in documents], np.float32)


class TestFeatures:
    def test_round_trip(self, engine: Engine) -> None:
        engine.ingest(DOCUMENTS)
        assert engine.feature_versions() == {}
        seen: list[int] = []
        assert engine.write_features([Encoder("text", "v1", lengths)], progress=seen.append) == {"text": 4}
        assert sum(seen) == 4
        assert engine.feature_versions() == {"text": "v1"}
        top = engine.search("trees lists", first_stage="bm25", depth=10, features={"text": "v1"})
        expected = lengths([document for document in engine.get(top.ids) if document])
        assert top.features["text"].dtype == np.float32
        assert np.array_equal(top.features["text"], expected)
        assert not top.missing["text"].any()
        chosen = engine.select("x", ["d", "a"], first_stage="tfidf", features={"text": "v1"})
        assert chosen.features["text"].tolist() == [[1, 35], [1, 17]]

    def test_nothing_to_do(self, engine: Engine) -> None:
        engine.ingest(DOCUMENTS)
        engine.write_features([Encoder("text", "v1", lengths)])
        assert engine.write_features([Encoder("text", "v1", lengths)]) == {"text": 0}

    def test_missing_after_an_update(self, engine: Engine) -> None:
        engine.ingest(DOCUMENTS)
        engine.write_features([Encoder("text", "v1", lengths)])
        engine.ingest([Document("b", text="trees anew"), Document("e", text="trees")], delete=["a"])
        asked = {"text": "v1"}
        top = engine.search("trees", first_stage="bm25", depth=10, features=asked)
        assert dict(zip(top.ids, top.missing["text"].tolist())) == {"b": True, "c": False, "e": True}
        assert (top.features["text"][top.missing["text"]] == 0).all()
        encoded: list[str] = []

        def encode(documents: Sequence[Document]) -> np.ndarray:
            encoded.extend(document.id for document in documents)
            return lengths(documents)

        assert engine.write_features([Encoder("text", "v1", encode)]) == {"text": 2}
        assert sorted(encoded) == ["b", "e"]
        top = engine.search("trees", first_stage="bm25", depth=10, features=asked)
        expected = lengths([document for document in engine.get(top.ids) if document])
        assert np.array_equal(top.features["text"], expected)
        assert not top.missing["text"].any()

    def test_versions_do_not_mix(self, engine: Engine) -> None:
        engine.ingest(DOCUMENTS)
        engine.write_features([Encoder("text", "v1", lengths)])
        engine.write_features(
            [Encoder("meta", "m", lambda documents: np.ones((len(documents), 3), np.float16))]
        )
        other = engine.search("trees", first_stage="tfidf", depth=10, features={"text": "v2", "meta": "m"})
        assert other.missing["text"].all()
        assert not other.missing["meta"].any()
        assert other.features["meta"].dtype == np.float16
        assert engine.write_features([Encoder("text", "v2", lambda documents: -lengths(documents))]) == {
            "text": 4
        }
        assert engine.feature_versions() == {"text": "v2", "meta": "m"}
        top = engine.search("trees", first_stage="tfidf", depth=10, features={"text": "v2"})
        assert (top.features["text"] < 0).all()

    def test_interrupted_encoding_goes_on(self, engine: Engine) -> None:
        engine.ingest(Document(str(i), text=f"word {i}") for i in range(1000))
        done: list[str] = []

        def encode(documents: Sequence[Document]) -> np.ndarray:
            if len(done) > 500:
                done.append("stop")
                raise KeyboardInterrupt
            done.extend(document.id for document in documents)
            return lengths(documents)

        with pytest.raises(KeyboardInterrupt):
            engine.write_features([Encoder("text", "v1", encode)])
        before = len(done) - 1
        rest = engine.write_features([Encoder("text", "v1", lengths)])["text"]
        assert rest == 1000 - before < 1000
        top = engine.search("word", first_stage="bm25", depth=1000, features={"text": "v1"})
        assert not top.missing["text"].any()
        assert np.array_equal(top.features["text"], lengths([d for d in engine.get(top.ids) if d]))

    def test_old_version_stays_until_the_new_one_is_complete(self, engine: Engine) -> None:
        engine.ingest(DOCUMENTS)
        engine.write_features([Encoder("text", "v1", lengths)])

        def broken(documents: Sequence[Document]) -> np.ndarray:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            engine.write_features([Encoder("text", "v2", broken)])
        assert engine.feature_versions() == {"text": "v1"}
        top = engine.search("trees", first_stage="bm25", depth=10, features={"text": "v1"})
        assert not top.missing["text"].any()

    def test_empty_engine(self, engine: Engine) -> None:
        assert engine.write_features([Encoder("text", "v1", lengths)]) == {"text": 0}
        assert engine.feature_versions() in ({}, {"text": "v1"})
        engine.ingest(DOCUMENTS)
        assert engine.write_features([Encoder("text", "v1", lengths)]) == {"text": 4}
