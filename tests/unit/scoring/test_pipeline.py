"""The query path on a real engine with a simple ranker, and the score tables that it builds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from rerank.documents.categories import CategoryNames
from rerank.documents.records import Document, Qrels, Query
from rerank.engines.base import Encoder
from rerank.engines.local import LocalEngine
from rerank.engines.search_request import SearchRequest
from rerank.evaluation.protocols import Protocol
from rerank.scoring.build_table import TableRequest, score_table
from rerank.scoring.pipeline import Pipeline
from rerank.scoring.scorer import FEEDBACK_DEPTH, ScoringInput
from rerank.scoring.timer import StageTimer
from rerank.scoring.vector_cache import VectorCache
from rerank.stack.stack import Stack
from tests.support.rankers import Plain


class Counting(Plain):
    """Score: (words of the document + 10 * categories shared with the query) * scale. Features are fp16."""

    family = "counting"

    def __init__(self, name="count", version="v1", scale=1.0, uses_categories=True):
        self.name, self.version, self.bounds = name, version, (0.0, 1000.0)
        self.scale, self.uses_categories = scale, uses_categories
        self.documents: list[str] = []
        self.queries: list[Query] = []

    def encode_documents(self, documents: Sequence[Document]) -> np.ndarray:
        self.documents += [document.id for document in documents]
        rows = [
            [self.scale * len(d.text.split()), *(self.scale * (c in d.categories) for c in "abc")]
            for d in documents
        ]
        return np.array(rows, np.float16).reshape(len(documents), 4)

    def encode_query(self, query: Query) -> np.ndarray:
        self.queries.append(query)
        return np.array([1, *(10 * (c in query.categories) for c in "abc")], np.float32)


def documents(n=30):
    """Return documents: document i has the word apple, i + 1 words, and category a, b or c in turn."""
    return [
        Document(
            f"d{i:02}",
            text="apple " + " ".join(["pear"] * (i % 3) + ["fig"] * (i - i % 3)),
            categories=("abc"[i % 3],),
        )
        for i in range(n)
    ]


@pytest.fixture
def engine(tmp_path):
    engine = LocalEngine.create(tmp_path / "engine", lang="en")
    engine.write(documents())
    yield engine
    engine.close()


STACK = Stack.parse("tfidf*0.5+count*0.5")


def expected(document, categories=(), scale=1.0):
    return scale * (len(document.text.split()) + 10 * len(set(categories) & set(document.categories)))


def test_each_signal_has_its_column(engine):
    engine.write_features([Encoder("count", "v1", Counting().encode_documents)])
    pipeline = Pipeline(engine, {"count": Counting()})
    query = Query("q", "apple pear", ("a", "c"))
    stack = Stack.parse("count*0.2+bm25*0.3+tfidf*0.5", first_stage="tfidf")
    answer = pipeline.answer(query, stack)
    actual = engine.find(SearchRequest("apple pear", first_stage="tfidf", depth=1000))
    bm25 = engine.find(SearchRequest("apple pear", first_stage="bm25", depth=1000))
    by_bm25 = dict(zip(bm25.ids, bm25.scores.tolist()))
    hits = {hit.id: hit for hit in answer.ranking}
    assert len(hits) == len(actual) == 30
    for place, (document, score) in enumerate(zip(engine.get(actual.ids), actual.scores.tolist()), 1):
        hit = hits[document.id]
        assert hit.first_stage_rank == place
        assert hit.signals["tfidf"].raw == score
        assert hit.signals["bm25"].raw == by_bm25[document.id]
        assert hit.signals["count"].raw == expected(document, "ac")
    assert (answer.query, answer.inferred, answer.recomputed) == (query, False, {})
    assert set(answer.seconds) == {"engine", "encode", "score"}
    assert all(value >= 0 for value in answer.seconds.values())


def test_a_query_without_results_gives_an_empty_answer(engine):
    ranker = Counting()
    answer = Pipeline(engine, {"count": ranker}).answer(Query("q", "unheard"), STACK)
    assert (len(answer.ranking), list(answer.ranking), answer.recomputed) == (0, [], {})
    assert ranker.queries == ranker.documents == []


def run_of(answer):
    return [(hit.id, hit.score, hit.signals) for hit in answer.ranking]


def test_only_missing_features_of_candidates_are_computed(engine):
    engine.write_features([Encoder("count", "v1", Counting().encode_documents)])
    late = [Document("late", text="apple fig", categories=("a",)), Document("other", text="plum")]
    engine.write([*late, Document("d05", text="apple now quite another text")])
    ranker = Counting()
    answer = Pipeline(engine, {"count": ranker}).answer(Query("q", "apple", ("a",)), STACK)
    assert answer.recomputed == {"count": 2}
    assert sorted(ranker.documents) == ["d05", "late"]
    for hit in answer.ranking:
        (document,) = engine.get([hit.id])
        assert hit.signals["count"].raw == expected(document, "a")


def test_features_of_two_versions_are_not_mixed(engine):
    """Version v2 counts double. Half of its features are stored with the complete features of v1."""
    engine.write_features([Encoder("count", "v1", Counting().encode_documents)])
    new = Counting(version="v2", scale=2.0)
    answer = Pipeline(engine, {"count": new}).answer(Query("q", "apple", ("c",)), STACK)
    assert answer.recomputed == {"count": 30}
    for hit in answer.ranking:
        (document,) = engine.get([hit.id])
        assert hit.signals["count"].raw == expected(document, "c", 2.0)
    old = Pipeline(engine, {"count": Counting()}).answer(Query("q", "apple", ("c",)), STACK)
    assert old.recomputed == {}
    assert {hit.signals["count"].raw for hit in old.ranking} == {
        hit.signals["count"].raw / 2 for hit in answer.ranking
    }


def test_a_query_without_categories_gets_those_of_its_candidates(engine):
    """The word ``only`` is in documents of category b and in one of c, so about 3 of 4 votes are for b."""
    engine.write(
        [Document(f"o{i}", text="only this", categories=("b",)) for i in range(3)]
        + [Document("o3", text="only this and much else beside it and more", categories=("c",))]
    )
    ranker = Counting()
    pipeline = Pipeline(engine, {"count": ranker})
    answer = pipeline.answer(Query("q", "only"), STACK)
    assert (answer.query.categories, answer.inferred) == (("b",), True)
    assert [query.categories for query in ranker.queries] == [("b",)]
    assert {hit.id: hit.signals["count"].raw for hit in answer.ranking}["o1"] == 12
    # Given categories are kept, even if the candidates have others.
    given = pipeline.answer(Query("q", "only", ("a",)), STACK)
    assert (given.query.categories, given.inferred) == (("a",), False)


def test_categories_ignore_case_and_unknown_ones_are_ignored(engine):
    def answer(*categories, infer=True):
        ranker = Counting()
        ranker.categories = CategoryNames("abc")
        pipeline = Pipeline(engine, {"count": ranker}, infer_categories=infer)
        return pipeline.answer(Query("q", "apple", categories), STACK)

    plain = answer("a", infer=False)
    assert (plain.case, plain.unknown_categories) == ("given", ())
    for given, unknown in ((("A",), ()), (("A", "a"), ()), (("x", "A"), ("x",))):
        other = answer(*given)
        assert (other.query.categories, other.unknown_categories) == (("a",), unknown)
        assert (other.case, other.ranking.scores.tolist()) == ("given", plain.ranking.scores.tolist())
    for infer, case in ((True, "inferred"), (False, "none")):
        none, bare = answer("x", "y", infer=infer), answer(infer=infer)
        assert (none.case, bare.case, none.unknown_categories) == (case, case, ("x", "y"))
        assert none.ranking.scores.tolist() == bare.ranking.scores.tolist()
        assert none.to_json([])["unknown_categories"] == ["x", "y"]


def test_only_the_first_candidates_vote(engine):
    engine.write(
        Document(f"x{i:02}", text="unique", categories=("a",) if i < FEEDBACK_DEPTH else ("b",))
        for i in range(60)
    )
    answer = Pipeline(engine, {"count": Counting()}).answer(Query("q", "unique"), STACK)
    assert answer.query.categories == ("a",)


QUERIES = [
    Query("q1", "apple", ("a",)),
    Query("q2", "pear"),
    Query("q3", "unheard"),
    Query("q4", "fig", ("c",)),
]
QRELS = Qrels(
    [
        ("q1", "d03", 2),
        ("q1", "d01", 1),
        ("q2", "d04", 1),
        ("q2", "nowhere", 1),
        ("q3", "d00", 1),
        ("q4", "d29", 1),
        ("q4", "d28", 0),
        ("lost", "d01", 1),
    ]
)


def table_of(engine, cut, *, signals=("tfidf", "count"), queries=QUERIES, **options):
    pipeline = Pipeline(engine, {"count": Counting()})
    options = {"first_stage": "tfidf", "protocol": Protocol(cut), **options}
    request = TableRequest(queries=queries, qrels=QRELS, signals=signals, **options)
    return score_table(pipeline, request)


def test_a_table_contains_the_answers_of_the_pipeline(engine):
    table, report = table_of(engine, 1000)
    assert [row.query for row in table.rows] == ["q1", "q2", "q3", "q4"]
    assert [len(row.ids) for row in table.rows] == [30, 20, 0, 27]
    pipeline = Pipeline(engine, {"count": Counting()})
    for row, query in zip(table.rows, QUERIES):
        answer = pipeline.answer(query, STACK)
        assert sorted(answer.ranking.ids) == list(row.ids)
        for hit in answer.ranking:
            scores = row.scores[row.ids.index(hit.id)].tolist()
            assert scores == [hit.signals["tfidf"].raw, hit.signals["count"].raw]
    assert (report.queries, report.unknown_documents) == (4, 1)
    assert (report.without_hits, report.inferred_categories) == (1, 1)
    assert report.recomputed == {"count": 77}


def test_judged_documents_infer_the_same_categories_as_the_first_stage(engine):
    """The relevant document is ranked because it is relevant. It must not vote for that reason."""
    engine.write([Document("d04", text="pear and much besides " * 20, categories=("wanted",))])
    retrieved, _ = table_of(engine, 1000, signals=("tfidf", "count"))
    judged, report = table_of(engine, None)
    for one, other in zip(retrieved.rows, judged.rows):
        values, scores = (dict(zip(row.ids, row.scores[:, 1].tolist())) for row in (one, other))
        assert scores.keys() == {d for d in QRELS[other.query] if d != "nowhere"}
        assert {d: values[d] for d in scores if d in values} == {
            d: score for d, score in scores.items() if d in values
        }
    assert (report.inferred_categories, report.unknown_documents) == (1, 1)


def test_a_repeated_query_is_not_encoded_again(engine):
    """The service keeps query vectors. They are reused only for the same version, words and categories."""
    ranker, newer = Counting(), Counting(version="v2")
    pipeline = Pipeline(engine, {"count": ranker}, False, VectorCache(size=2))

    def encoded(query, pipeline=pipeline):
        before = len(ranker.queries) + len(newer.queries)
        pipeline.answer(query, STACK)
        return len(ranker.queries) + len(newer.queries) - before

    first, again = (pipeline.answer(Query(id, "apple"), STACK).ranking for id in ("q", "another"))
    assert (again.ids, again.raw.tolist()) == (first.ids, first.raw.tolist())
    assert len(ranker.queries) == 1
    categories = Query("q", "apple", ("a",))
    assert [encoded(categories), encoded(categories)] == [1, 0]
    more = Query("q", "apple", params={"year": 2020})  # a ranker may read this parameter
    assert [encoded(more), encoded(more)] == [1, 1]
    assert [encoded("pear"), encoded(categories), encoded("apple")] == [1, 0, 1]  # the last two are kept
    assert encoded("apple", replace(pipeline, rankers={"count": newer})) == 1
    assert encoded("apple", Pipeline(engine, {"count": ranker}, False)) == 1


class Limit(StageTimer):
    """A limit on the number of encoded documents."""

    def __init__(self, documents: int) -> None:
        super().__init__()
        self.documents = documents

    def encoding_limit(self, rankers):
        return self.documents


def test_documents_above_the_encoding_limit_keep_their_first_stage_position(engine):
    ranker = Counting(uses_categories=False)
    pipeline = Pipeline(engine, {"count": ranker}, infer_categories=False)
    stack = Stack.parse("tfidf*0.0001+count*0.9999")
    first_stage = pipeline.answer("apple", Stack.parse("tfidf")).ranking.ids
    answer = pipeline.answer("apple", stack, timer=Limit(4))
    ids = answer.ranking.ids
    assert sorted(ranker.documents) == sorted(first_stage[:4])
    assert ids[4:] == first_stage[4:]
    assert ids[:4] == sorted(first_stage[:4], reverse=True)  # by the number of words
    assert ids[:4] != first_stage[:4]
    hits = pipeline.hits(answer, 6)
    assert [len(hit["signals"]) for hit in hits] == [2, 2, 2, 2, 0, 0]
    assert [hit["first_stage_rank"] for hit in hits[4:]] == [5, 6]
    scores = [hit["score"] for hit in hits]
    assert scores == sorted(scores, reverse=True)
    assert answer.to_json(hits)["unscored"] == 26
    nothing = pipeline.answer("apple", stack, timer=Limit(0))
    assert nothing.ranking.ids == first_stage
    assert nothing.to_json([])["unscored"] == 30


def test_encoding_stops_between_chunks(engine):
    class Stop(Exception):
        pass

    class Client(StageTimer):
        """A client that is gone when some documents are encoded."""

        def check(self) -> None:
            if len(ranker.documents) > 20:
                raise Stop

    ranker = Counting()
    documents = [Document(str(i), text="apple") for i in range(100)]
    scorer = Pipeline(engine, {"count": ranker}).scorer(["count"], "tfidf")
    inputs = ScoringInput.from_documents(documents, {"tfidf": np.zeros(100)}, ["count"])
    with pytest.raises(Stop):
        scorer.score(Query("q", "apple"), inputs, timer=Client())
    assert 20 < len(ranker.documents) < 60
