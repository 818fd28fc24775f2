"""Rules for retrieval by vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rerank.common.arrays import feature_width
from rerank.common.errors import UsageError, WorkspaceError
from rerank.documents.filters import filters_of
from rerank.documents.records import Candidates, Document
from rerank.engines.base import Encoder, Engine, WriteOptions
from rerank.engines.search_request import SearchRequest, VectorQuery
from tests.conformance.rules import Rules, raises, same, search, true

WIDTH, PASSAGES = 8, 4
WORDS = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta")
Encode = Callable[[Sequence[Document]], NDArray[Any]]


class Case(NamedTuple):
    """A ranker that retrieves. passages: most vectors of a document; 0: one."""

    name: str
    passages: int

    def encode(self, documents: Sequence[Document]) -> NDArray[Any]:
        """Features from ids; no vector if the id ends in 0."""
        features = np.zeros((len(documents), max(self.passages, 1), WIDTH))
        counts = np.zeros((len(documents), 1))
        for i, document in enumerate(documents):
            rng = np.random.default_rng(int(document.id))
            counts[i] = 0 if document.id.endswith("0") else rng.integers(1, features.shape[1] + 1)
            features[i, : int(counts[i, 0])] = rng.normal(size=(int(counts[i, 0]), WIDTH))
        features /= np.maximum(np.linalg.norm(features, axis=2, keepdims=True), 1e-9)
        if not self.passages:
            return features[:, 0].astype(np.float16)
        return np.hstack([np.rint(127 * features).reshape(len(documents), -1), counts]).astype(np.int8)

    def encoder(self, version: str = "v1", encode: Encode | None = None, retrieves: bool = True) -> Encoder:
        """Return the encoder of the features."""
        return Encoder(self.name, version, encode or self.encode, retrieves, self.passages)

    def by(self, vector: NDArray[Any], version: str = "v1", depth: int | None = None) -> VectorQuery:
        """Return the retriever for a vector."""
        return VectorQuery(self.name, version, vector.astype(np.float32), depth, self.passages)

    def nearest(self, documents: Sequence[Document], query: NDArray[Any], depth: int) -> list[str]:
        """Return ids by brute force: products or largest cosines above 0; ties by id."""
        features = self.encode(documents)[:, : WIDTH * max(self.passages, 1)].astype(np.float64)
        vectors = features.reshape(len(documents), -1, WIDTH)
        scores = vectors @ query.astype(np.float64)
        if self.passages:
            scores /= np.maximum(np.linalg.norm(vectors, axis=2), 1e-9)
        best = scores.max(axis=1).astype(np.float32).tolist()
        found = [(-score, document.id) for score, document in zip(best, documents) if score > 0]
        return [id for _, id in sorted(found)[:depth]]


CASES = (Case("s2net", 0), Case("dense", PASSAGES))
RULES = Rules()
"""Name of rule and case -> rule."""

TIES = "equal_documents_are_cut_by_id"
"""The rule that a graph of the nearest vectors cannot keep."""


def rule(check: Callable[[Engine, Case], None]) -> None:
    """Register a rule for every case."""
    for case in CASES:

        @wraps(check)
        def bound(engine: Engine, case: Case = case) -> None:
            check(engine, case)

        bound.__name__ += "-several" if case.passages else "-one"
        RULES(bound)


def collection(count: int = 40) -> list[Document]:
    """Return documents of a few words."""
    rng = np.random.default_rng(5)
    return [
        Document(f"{i:04}", text=" ".join(rng.choice(WORDS, rng.integers(1, 4)))) for i in range(1, count + 1)
    ]


def queries(count: int) -> tuple[list[str], NDArray[Any]]:
    """Return texts, and (count, WIDTH) vectors of length 1."""
    rng = np.random.default_rng(9)
    rows = rng.normal(size=(count, WIDTH))
    texts = [" ".join(rng.choice(WORDS, 2)) for _ in range(count)]
    return texts, (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


(TEXT,), (ROW,) = queries(1)


def found_by(candidates: Candidates, name: str) -> set[str]:
    """Return ids found by a retriever."""
    return {id for id, by in zip(candidates.ids, candidates.retrieved_by[name]) if by}


def _filled(engine: Engine, *cases: Case, count: int = 40) -> list[Document]:
    documents = collection(count)
    engine.write(documents)
    engine.write_features([case.encoder() for case in cases])
    return documents


def _near(
    engine: Engine, query: VectorQuery, depth: int = 5, stage: str | None = None, **options: Any
) -> list[str]:
    """Ids that a vector retrieves, ordered by id, because their score is 0."""
    stage = stage or engine.first_stages[0]
    found = search(engine, "unknownword", stage, depth=depth, retrievers=[stage, query], **options)
    same(found.scores, [0] * len(found), "the scores if words match nothing")
    return found.ids


def _all_near(engine: Engine, case: Case, documents: Sequence[Document], version: str = "v1") -> None:
    """All features are searchable, and the nearest documents are found."""
    same(engine.count_missing_vectors(case.name, version), 0, "count_missing_vectors()")
    same(set(_near(engine, case.by(ROW, version))), set(case.nearest(documents, ROW, 5)), "the matches")


@rule
def the_union_equals_brute_force(engine: Engine, case: Case) -> None:
    """Words and vectors find their best; the first stage orders them."""
    everything = {document.id: document for document in _filled(engine, case, count=120)}
    texts, rows = queries(12)
    for stage in engine.first_stages:
        for depth in (1, 7, 30, 200):
            options = {"depth": depth, "features": {case.name: "v1"}}
            requests = [
                SearchRequest(text, stage, retrievers=[stage, case.by(row)], **options)  # type: ignore[arg-type]
                for text, row in zip(texts, rows)
            ]
            for text, row, candidates in zip(texts, rows, engine.search(requests)):
                lexical = search(engine, text, stage, depth=depth).ids
                near = case.nearest([*everything.values()], row, depth)
                same(found_by(candidates, stage), set(lexical), "the matches of words")
                same(found_by(candidates, case.name), set(near), "the matches of vectors")
                alone = search(engine, text, stage, ids=sorted({*lexical, *near}))
                same(candidates.ids, alone.ids, "the order")
                same(candidates.scores, alone.scores, "the scores")
                wanted = case.encode([everything[id] for id in candidates.ids])
                same(candidates.features[case.name], wanted, "the features")
                true(not candidates.missing[case.name].any(), "some features are missing")
                same(engine.score(text, stage, candidates), candidates.scores, "score()")


@rule
def retrievers_are_reported(engine: Engine, case: Case) -> None:
    """Only the named retrievers find documents, each to its depth; rankers retrieve together."""
    documents, name = _filled(engine, *CASES), case.name
    (other,) = (one for one in CASES if one.name != name)
    by, zero = case.by(ROW), case.by(np.zeros(WIDTH))
    near = [set(case.nearest(documents, ROW, depth)) for depth in range(10)]
    words = {one: search(engine, TEXT, one, depth=5).ids for one in engine.first_stages}
    all_words = {one: set(ids) for one, ids in words.items()}
    nine = {other.name: set(other.nearest(documents, ROW, 9))}
    for stage in engine.first_stages:
        own = {stage: all_words[stage]}
        expected: list[tuple[list[str | VectorQuery], dict[str, set[str]]]] = [
            ([by], {name: near[5]}),
            ([*engine.first_stages, by], all_words | {name: near[5]}),
            ([stage, case.by(ROW, depth=2)], own | {name: near[2]}),
            ([stage, case.by(ROW, depth=9)], own | {name: near[9]}),
            ([stage, by, other.by(ROW, depth=9)], own | {name: near[5]} | nine),
            ([stage, zero], own | {name: set()}),
        ]
        for retrievers, wanted in expected:
            found = search(engine, TEXT, stage, depth=5, retrievers=retrievers)
            same({one: found_by(found, one) for one in found.retrieved_by}, wanted, "the matches")
            same((set(found.ids), found.features), (set().union(*wanted.values()), {}), "all, and features")
        for some in ([stage], [stage, zero]):
            same(search(engine, TEXT, stage, depth=5, retrievers=some).ids, words[stage], "the order")
        same(_near(engine, by, stage=stage), sorted(near[5]), "the matches if words match nothing")
        same(search(engine, "", stage, retrievers=[stage, zero]).ids, [], "what zeros find")


@rule
def filters_come_before_the_cut(engine: Engine, case: Case) -> None:
    """Filters apply before the cut."""
    documents = collection(120)
    engine.write(replace(document, extra={"year": int(document.id)}) for document in documents)
    engine.write_features([case.encoder()])
    stage = engine.first_stages[0]
    wanted = {"year>=90": range(90, 121), "year<4": range(1, 4), "year>60,year<50": range(0)}
    for text, kept in wanted.items():
        by = filters_of(text.split(","))
        near = set(case.nearest([one for one in documents if int(one.id) in kept], ROW, 5)) if kept else set()
        both = search(engine, "alpha", stage, depth=5, retrievers=[stage, case.by(ROW)], filters=by)
        words = search(engine, "alpha", stage, depth=5, filters=by)
        same((found_by(both, case.name), found_by(both, stage)), (near, set(words.ids)), "the matches")
        same(set(_near(engine, case.by(ROW), filters=by)), near, "the matches of vectors only")


@rule
def changed_documents_are_found_after_encoding(engine: Engine, case: Case) -> None:
    """Vectors of changed and removed documents are not found."""
    best, by = case.nearest(_filled(engine, case), ROW, 40), case.by(ROW)
    engine.write([Document(best[1], text="alpha changed")], delete=[best[0]])
    same(
        (len(engine), engine.count_missing_vectors(case.name, "v1")),
        (39, 1),
        "len() and count_missing_vectors()",
    )
    same(set(_near(engine, by, 3)), set(best[2:5]), "the matches")
    engine.write_features([case.encoder(retrieves=False)])
    same(set(_near(engine, by, 3)), set(best[1:4]), "the matches after encoding")
    engine.write([Document("9999", text="more")])
    engine.write_features([Encoder("other", "o", lambda some: np.ones((len(some), 3), np.float32))])
    engine.write_features([case.encoder(retrieves=False)])
    _all_near(engine, case, list(engine.documents()))


@rule
def new_versions_retrieve(engine: Engine, case: Case) -> None:
    """New versions also retrieve, only by their vectors."""
    documents = _filled(engine, case)

    def turned(some: Sequence[Document]) -> NDArray[Any]:
        features = case.encode(some)
        features[:, : feature_width(case.passages, WIDTH) - bool(case.passages)] *= -1
        return features

    engine.write_features([case.encoder("v2", turned, retrieves=False)])
    wanted = case.nearest(documents, ROW, 5)
    same(set(_near(engine, case.by(-ROW, "v2"))), set(wanted), "the matches of v2")
    engine.write_features([case.encoder("v3.1", retrieves=False)])
    _all_near(engine, case, documents, "v3.1")


@rule
def equal_documents_are_cut_by_id(engine: Engine, case: Case) -> None:
    """Of equally near documents, the smallest ids are found."""
    one = case.encode([Document("1")])
    engine.write(collection()[::-1])
    engine.write_features([case.encoder(encode=lambda some: np.tile(one, (len(some), 1)))])
    vector = one[0, :WIDTH].astype(np.float32)
    by = case.by(vector / np.linalg.norm(vector))
    same(_near(engine, by, 7), [document.id for document in collection(7)], "the matches")


@rule
def invalid_retrievers_are_refused(engine: Engine, case: Case) -> None:
    """UsageError without vectors, also after a failed encoding; WorkspaceError for another width."""

    def fails(documents: Sequence[Document]) -> NDArray[Any]:
        raise ArithmeticError("no vectors")

    engine.write(collection())
    with raises(ArithmeticError):
        engine.write_features([case.encoder(encode=fails)])
    for version in ("v1", "v2"):
        same(engine.count_missing_vectors(case.name, version), None, "count_missing_vectors()")
        with raises(UsageError, f"{case.name} cannot retrieve"):
            _near(engine, case.by(ROW, version))
        engine.write_features([case.encoder()])
    have, given = (feature_width(case.passages, numbers) for numbers in (WIDTH, 9))
    with raises(WorkspaceError, f"{case.name} features have {have} numbers, not {given}"):
        _near(engine, case.by(np.zeros(9)))
    with raises(UsageError, "'bm26'"):
        search(engine, "alpha", engine.first_stages[0], depth=5, retrievers=["bm26", case.by(ROW)])


@rule
def stored_features_are_not_encoded_again(engine: Engine, case: Case) -> None:
    """Stored features become searchable without encoding."""

    def never(some: Sequence[Document]) -> NDArray[Any]:
        raise AssertionError("the encoder was called, although all features are stored")

    documents = collection()
    engine.write(documents)
    engine.write_features([case.encoder(retrieves=False)])
    if engine.count_missing_vectors(case.name, "v1") is None:
        same(engine.write_features([case.encoder(encode=never)]), {case.name: 40}, "write_features()")
    same(engine.write_features([case.encoder(encode=never)]), {case.name: 0}, "write_features()")
    _all_near(engine, case, documents)


@rule
def an_ingest_can_contain_features(engine: Engine, case: Case) -> None:
    """Documents ingested with encoders are found by vectors, which do not change documents and scores."""
    documents, encoders = collection(), [case.encoder(retrieves=False)]
    _filled(engine, case, count=20)
    for some, replaces in ((documents[20:30], False), (documents, True)):
        engine.write(some, options=WriteOptions(encoders, replaces))
        engine.write_features(encoders)
        _all_near(engine, case, documents[: len(engine)])
    found, stage = [], engine.first_stages[0]
    for _ in range(2):  # with vectors and without
        same(sorted(engine.documents(), key=lambda document: document.id), documents, "documents()")
        found.append(search(engine, "alpha beta", stage, ids=engine.ids()).scores)
        engine.write(documents, options=WriteOptions(replace=True))
    same(found[0], found[1], "the scores")
