"""The local engine: its scores against the formulas, and concurrent readers and writers."""

from __future__ import annotations

import itertools
import math
import shutil
import sqlite3
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rerank.common.errors import RerankError, WorkspaceError
from rerank.documents.records import Candidates, Document
from rerank.documents.text import analyzer
from rerank.engines.base import Encoder
from rerank.engines.local import LocalEngine
from rerank.engines.local.text_index import TextIndex
from rerank.engines.search_request import SearchRequest

TEXTS = {"1": "sorting lists sorting", "2": "lists of trees", "3": "graphs"}


@pytest.fixture
def engine(tmp_path: Path) -> LocalEngine:
    return LocalEngine.create(tmp_path / "engine", lang="en")


def documents(texts: dict[str, str]) -> list[Document]:
    return [Document(id, text=text) for id, text in texts.items()]


def scores(engine: LocalEngine, text: str, stage: str) -> dict[str, float]:
    found = engine.find(SearchRequest(text, first_stage=stage, depth=1000))
    return dict(zip(found.ids, found.scores.tolist()))


def cosines(texts: dict[str, str], query: str) -> dict[str, float]:
    """Return tf-idf cosines like scikit-learn with sublinear_tf and smooth_idf, in plain Python."""
    analyze = analyzer("en").analyze
    counts = {id: Counter(analyze(text)) for id, text in texts.items()}
    df = Counter(term for count in counts.values() for term in count)
    idf = {term: math.log((1 + len(texts)) / (1 + n)) + 1 for term, n in df.items()}

    def vector(count: Counter[str]) -> dict[str, float]:
        weights = {term: (1 + math.log(n)) * idf[term] for term, n in count.items() if term in idf}
        length = math.sqrt(sum(weight**2 for weight in weights.values()))
        return {term: weight / length for term, weight in weights.items()}

    asked = vector(Counter(analyze(query)))
    result = {}
    for id, count in counts.items():
        own = vector(count)
        if shared := own.keys() & asked.keys():
            result[id] = sum(own[term] * asked[term] for term in shared)
    return result


def random_texts(n: int, seed: int) -> dict[str, str]:
    rng = np.random.default_rng(seed)
    words = [f"w{i}" for i in range(200)]
    probabilities = 1 / np.arange(1, 201)
    probabilities /= probabilities.sum()
    return {f"d{i}": " ".join(rng.choice(words, rng.integers(0, 40), p=probabilities)) for i in range(n)}


class TestTfIdf:
    def test_tfidf_scores_match_the_formula(self, engine: LocalEngine) -> None:
        texts = random_texts(300, seed=1)
        engine.write(documents(texts))
        for query in ("w1 w2 w3", "w50", "w0 w0 w0 w120 unknown", "w0 " * 30):
            assert scores(engine, query, "tfidf") == pytest.approx(cosines(texts, query), abs=1e-6)

    def test_scores_match_the_formula_after_updates(self, engine: LocalEngine) -> None:
        texts = random_texts(200, seed=2)
        engine.write(documents(texts))
        changes = {"d3": "w1 brandnew", "d9": "", "x": "w1 w2 brandnew other"}
        engine.write(documents(changes), delete=["d4", "d5", "d199"])
        engine.write(documents({"d3": "w2 newest"}))
        texts.update(changes | {"d3": "w2 newest"})
        for id in ("d4", "d5", "d199"):
            del texts[id]
        for query in ("w1 w2", "brandnew", "newest w7", "other w0"):
            assert scores(engine, query, "tfidf") == pytest.approx(cosines(texts, query), abs=1e-6)

    def test_scores_of_candidates_equal_the_scores_of_a_search(self, engine: LocalEngine) -> None:
        engine.write(documents(random_texts(500, seed=6)))
        engine.write(documents({"d7": "w1 w1 w1 brandnew", "new": "w1 w2 w150"}), delete=["d9"])
        for query in ("w1 w2 w3 w150", "w0 w0 brandnew", "unknown"):
            candidates = engine.find(SearchRequest("w0 w1 w5 w17", first_stage="bm25", depth=600))
            assert "d7" in candidates.ids
            by_id = scores(engine, query, "tfidf")
            expected = [by_id.get(id, 0.0) for id in candidates.ids]
            assert engine.score(query, "tfidf", candidates).tolist() == expected

    def test_candidates_without_a_term_removed_and_repeated_ones_are_scored(
        self, engine: LocalEngine
    ) -> None:
        texts = random_texts(300, seed=7)
        engine.write(documents(texts))
        hits = engine.find(SearchRequest("w0 w1 w2", first_stage="bm25", depth=300))
        candidates = Candidates(hits.ids * 2, np.tile(hits.scores, 2), np.tile(hits.rows, 2))
        engine.write([], delete=["d7"])
        del texts["d7"]
        assert "d7" in candidates.ids
        for query in ("w3 w150", "w199", "unknown"):
            by_id = cosines(texts, query)
            expected = [by_id.get(id, 0.0) for id in candidates.ids]
            assert 0 in expected
            assert engine.score(query, "tfidf", candidates) == pytest.approx(expected, abs=1e-6)


class TestBm25:
    def test_bm25_scores_match_the_formula(self, engine: LocalEngine) -> None:
        # tantivy stores exact lengths of documents up to 40 terms. It rounds longer ones.
        texts = random_texts(100, seed=4)
        engine.write(documents(texts))
        counts = {id: Counter(text.split()) for id, text in texts.items()}
        average = sum(count.total() for count in counts.values()) / len(texts)
        query = Counter({"w0": 1, "w3": 2, "w20": 1})
        expected: dict[str, float] = {}
        for term, weight in query.items():
            df = sum(term in count for count in counts.values())
            idf = math.log(1 + (len(texts) - df + 0.5) / (df + 0.5))
            for id, count in counts.items():
                if tf := count[term]:
                    norm = 1.2 * (1 - 0.75 + 0.75 * count.total() / average)
                    expected[id] = expected.get(id, 0) + weight * idf * tf * 2.2 / (tf + norm)
        actual = scores(engine, " ".join(query.elements()), "bm25")
        assert actual == pytest.approx(expected, rel=1e-5)

    def test_scores_do_not_depend_on_depth_or_route(self, engine: LocalEngine) -> None:
        texts = random_texts(2500, seed=5)
        engine.write(documents(texts))
        for query in ("w1 w2 w3 w5 w8 w13", "w0 w199 w50 w4 w9 w30 w31"):
            full = engine.find(SearchRequest(query, first_stage="bm25", depth=2500))
            for depth in (10, 100, 1000):
                cut = engine.find(SearchRequest(query, first_stage="bm25", depth=depth))
                assert cut.ids == full.ids[:depth]
                assert cut.scores.tolist() == full.scores[:depth].tolist()
            some = Candidates(full.ids[::3], full.scores[::3], full.rows[::3])
            assert engine.score(query, "bm25", some).tolist() == full.scores[::3].tolist()


class TestFolder:
    def test_creating_an_engine_twice_is_refused(self, engine: LocalEngine) -> None:
        engine.write(documents(TEXTS))
        with pytest.raises(WorkspaceError, match="already holds a collection"):
            LocalEngine.create(engine.folder)
        assert len(engine) == 3

    def test_dead_rows_are_removed(self, engine: LocalEngine) -> None:
        for i in range(6):
            engine.write(Document(str(n), text=f"text {i}") for n in range(50))
        for i in range(10):
            engine.write(Document(str(n), text=f"other {i}") for n in range(50))
        (db,) = engine.folder.glob("data-*/documents.db")
        assert sqlite3.connect(db).execute("SELECT count(*) FROM documents").fetchone()[0] <= 600
        assert len([*engine.folder.glob("data-*/tfidf/*")]) == 1


def contents(folder: Path) -> tuple[object, ...]:
    """Return all documents, their tf-idf scores, and the documents that BM25 finds.

    BM25 counts deleted documents until the index is built again.
    """
    engine = LocalEngine.open(folder)
    cosines = [scores(engine, text, "tfidf") for text in ("lists graphs", "w1 w2")]
    found = [scores(engine, text, "bm25").keys() for text in ("lists graphs", "w1 w2")]
    stored = list(engine.documents())
    count = len(engine)
    engine.close()
    return count, stored, cosines, found


def is_refused(folder: Path) -> bool:
    """Whether a search names the remedy; otherwise it must work. Documents are readable in both cases."""
    engine = LocalEngine.open(folder)
    assert sorted(document.id for document in engine.documents()) == engine.ids()
    problem = "`rerank encode`, which builds it again"
    try:
        for stage in ("bm25", "tfidf"):
            engine.find(SearchRequest("lists", first_stage=stage, depth=9))
        problem = ""
    except WorkspaceError as error:
        problem = problem if problem in str(error) else f"another remedy: {error}"
    engine.close()
    assert "another" not in problem
    return bool(problem)


class TestDerivedFiles:
    """SQLite has all documents. Every write first builds the other files again if they are not usable."""

    @pytest.fixture
    def folder(self, engine: LocalEngine) -> Path:
        engine.write(documents(TEXTS))
        engine.write(documents({"1": "lists", "4": "w1 w2", "5": "w2"}))
        engine.close()
        return engine.folder

    @pytest.mark.parametrize("damage", ["removed", "shortened"])
    def test_each_damaged_file_is_built_again(self, folder: Path, tmp_path: Path, damage: str) -> None:
        expected = contents(folder)
        files = [path for path in (folder / "data-0").glob("*/**/*") if path.is_file()]
        refused = 0
        for number, path in enumerate(path for path in files if path.stat().st_size):
            copy = Path(shutil.copytree(folder, tmp_path / f"copy{number}"))
            damaged = copy / path.relative_to(folder)
            whole = damaged.read_bytes()
            damaged.unlink()
            if damage != "removed":
                damaged.write_bytes(whole[: len(whole) // 2] if damage == "shortened" else b"")
            refused += is_refused(copy)
            LocalEngine.open(copy).write([])
            assert contents(copy) == expected, path
        assert refused > 10

    @pytest.mark.parametrize("names", [["index"], ["tfidf"], ["index", "tfidf"]])
    def test_removed_folders_are_built_again_by_the_next_ingest(self, folder: Path, names: list[str]) -> None:
        for name in names:
            shutil.rmtree(folder / "data-0" / name)
        assert is_refused(folder)
        engine = LocalEngine.open(folder)
        assert engine.write(documents({"6": "lists"})).added == 1
        assert set(scores(engine, "lists", "tfidf")) == {"1", "2", "6"}
        assert set(scores(engine, "lists", "bm25")) == {"1", "2", "6"}

    def test_files_of_another_version_are_not_mixed(self, folder: Path, tmp_path: Path) -> None:
        """Every mixture of the files of two versions is refused or correct, and repaired by a write."""
        versions = []
        for number in range(2):
            engine = LocalEngine.open(folder)
            engine.write(documents({"1": f"lists w{number}", f"new{number}": "w1"}))
            engine.close()
            versions.append(Path(shutil.copytree(folder / "data-0", tmp_path / f"version{number}")))
        expected = []
        for version in versions:
            shutil.rmtree(folder / "data-0")
            shutil.copytree(version, folder / "data-0")
            expected.append(contents(folder))
        for mixture in itertools.product(range(2), repeat=3):
            shutil.rmtree(folder / "data-0")
            shutil.copytree(versions[mixture[0]], folder / "data-0")
            for name, number in zip(("index", "tfidf"), mixture[1:]):
                shutil.rmtree(folder / "data-0" / name)
                shutil.copytree(versions[number] / name, folder / "data-0" / name)
            assert is_refused(folder) == (len(set(mixture)) > 1)
            LocalEngine.open(folder).write([])
            assert contents(folder) == expected[mixture[0]]

    def test_an_index_of_a_newer_version_is_not_taken_for_an_interrupted_one(
        self, folder: Path, tmp_path: Path
    ) -> None:
        """The database is copied after SQLite committed a version, and the other files after later ones."""
        copy = tmp_path / "copy"

        def copied(self: TextIndex, *given: Any) -> int:
            if not copy.exists():
                shutil.copytree(folder, copy)
            return write(self, *given)

        write = TextIndex.write
        engine = LocalEngine.open(folder)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TextIndex, "write", copied)
            engine.write(documents({"6": "lists"}))
        interrupted = sorted(document.id for document in LocalEngine.open(copy).documents())
        assert "6" not in interrupted
        engine.write(documents({"7": "lists w1"}))
        engine.close()
        for name in ("index", "tfidf"):
            shutil.rmtree(copy / "data-0" / name)
            shutil.copytree(folder / "data-0" / name, copy / "data-0" / name)
        assert is_refused(copy)
        engine = LocalEngine.open(copy)
        engine.write([])
        assert (
            set(scores(engine, "lists", "bm25")) == set(scores(engine, "lists", "tfidf")) == {"1", "2", "6"}
        )

    def test_a_damaged_database_is_not_indexed(self, folder: Path) -> None:
        shutil.rmtree(folder / "data-0" / "index")
        database = folder / "data-0" / "documents.db"
        content = bytearray(database.read_bytes())
        content[16_384 * 2 :] = bytes(len(content) - 16_384 * 2)
        database.write_bytes(content)
        with pytest.raises(RerankError, match=r"documents\.db.* restore it from a backup|is damaged"):
            LocalEngine.open(folder).write([])


class TestSeveral:
    """One process writes while others read."""

    def test_readers_see_the_old_state_until_a_write_ends(self, engine: LocalEngine) -> None:
        engine.write(documents(TEXTS))
        old = LocalEngine.open(engine.folder)
        before = {stage: scores(old, "lists graphs", stage) for stage in ("bm25", "tfidf")}

        def stream():  # type: ignore[no-untyped-def]
            yield from (Document(str(i), text="lists") for i in range(1, 3000))
            for reader in (old, engine, LocalEngine.open(engine.folder)):
                for stage in ("bm25", "tfidf"):
                    assert scores(reader, "lists graphs", stage) == before[stage]
                assert len(reader) == 3
                assert list(reader.documents()) == documents(TEXTS)

        engine.write(stream(), delete=[])
        for reader in (old, engine):
            assert len(reader) == 2999
            for stage in ("bm25", "tfidf"):
                assert set(scores(reader, "graphs", stage)) == set()
                assert len(scores(reader, "lists", stage)) == 1000

    def test_an_outdated_reader_finishes_its_stream_and_updates(self, engine: LocalEngine) -> None:
        engine.write(documents(TEXTS))
        reader = LocalEngine.open(engine.folder)
        stream = reader.documents()
        first = next(stream)
        for i in range(4):
            engine.write(documents({"1": f"again {i}", "2": f"again {i}"}))
        assert [first, *stream] == documents(TEXTS)
        assert [document.text for document in reader.get(["1", "3"]) if document] == ["again 3", "graphs"]

    def test_each_thread_gets_the_documents_that_it_asks_for(self, engine: LocalEngine) -> None:
        """With a shared cache of statements, Python 3.13 and 3.14 return rows of another thread."""
        engine.write(documents(random_texts(120, seed=8)))
        ids = [document.id for document in engine.documents()]
        shares = [ids[start::4] for start in range(4)]
        failures: list[object] = []

        def read(share: list[str]) -> None:
            try:
                for _ in range(300):
                    actual = [document and document.id for document in engine.get(share)]
                    if actual != share:
                        failures.append(actual)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=read, args=(share,)) for share in shares]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []

    def test_threads_read_while_another_writes(self, engine: LocalEngine) -> None:
        engine.write(documents(random_texts(150, seed=6)))
        failures: list[BaseException] = []
        stop = threading.Event()

        def read() -> None:
            try:
                while not stop.is_set():
                    for stage in ("bm25", "tfidf"):
                        actual = engine.find(SearchRequest("w1 w2 w3", first_stage=stage, depth=50))
                        assert len(actual) == 50
                        assert len(engine.get(actual.ids)) == 50
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=read) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            for i in range(3):
                engine.write(documents(random_texts(150, seed=i)))
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert failures == []


class TestFeatures:
    def test_feature_rows_that_are_not_in_the_manifest_are_ignored(self, engine: LocalEngine) -> None:
        engine.write(documents(TEXTS))
        engine.write_features([Encoder("text", "v1", lambda docs: np.ones((len(docs), 2), np.float32))])
        with open(engine.folder / "data-0/features/text/v1/float32x2", "ab") as file:
            file.write(b"\xff" * 13)
        engine.write(documents({"1": "lists", "4": "lists"}))

        def encode(docs: Sequence[Document]) -> np.ndarray:
            return np.array([[int(d.id), 9] for d in docs], np.float32)

        assert engine.write_features([Encoder("text", "v1", encode)]) == {"text": 2}
        top = engine.find(SearchRequest("lists", first_stage="bm25", depth=5, features={"text": "v1"}))
        assert dict(zip(top.ids, top.features["text"].tolist())) == {"1": [1, 9], "2": [1, 1], "4": [4, 9]}


def test_term_statistics_are_of_one_version(engine: LocalEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer may have stored documents that the text index does not have yet."""
    engine.write(documents(TEXTS))
    snapshot = engine._snapshot()
    engine.write([Document("4", text="graphs and lists")])
    monkeypatch.setattr(engine, "_snapshot", lambda: snapshot)
    statistics = engine.term_statistics("graphs lists")
    assert (statistics.documents, statistics.frequencies) == (3, {"graph": 1, "list": 2})
