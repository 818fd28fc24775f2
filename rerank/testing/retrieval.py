"""Rules for retrieval by vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rerank.arrays import feature_width
from rerank.engines.base import Encoder, Engine, Retriever, SearchRequest, VectorQuery
from rerank.errors import UsageError, WorkspaceError
from rerank.filters import filters_of
from rerank.records import Candidates, Document
from rerank.testing.rules import Rule, raises, same, search, true

WIDTH, PASSAGES = 8, 4
WORDS = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta")
Encode = Callable[[Sequence[Document]], NDArray[Any]]


def vectors(documents: Sequence[Document]) -> NDArray[Any]:
    """Vectors of length 1, by id; zeros if the id ends in 0."""
    rows = []
    for document in documents:
        row = np.random.default_rng(int(document.id)).normal(size=WIDTH)
        rows.append(row / np.linalg.norm(row) if not document.id.endswith("0") else 0 * row)
    return np.array(rows, np.float16)


def passages(documents: Sequence[Document]) -> NDArray[Any]:
    """Up to four vectors by id, and their number; none if the id ends in 0."""
    features = np.zeros((len(documents), PASSAGES * WIDTH + 1), np.int8)
    for row, document in enumerate(documents):
        rng = np.random.default_rng(int(document.id))
        count = 0 if document.id.endswith("0") else int(rng.integers(1, PASSAGES + 1))
        some = rng.normal(size=(count, WIDTH))
        features[row, : count * WIDTH] = np.rint(60 * some / np.abs(some).max(initial=1)).reshape(-1)
        features[row, -1] = count
    return features


def _same_vectors(documents: Sequence[Document]) -> NDArray[Any]:
    return np.tile(np.array([[0.6, 0.8, 0, 0, 0, 0, 0, 0]], np.float16), (len(documents), 1))


def _same_passages(documents: Sequence[Document]) -> NDArray[Any]:
    features = np.zeros((len(documents), PASSAGES, WIDTH), np.int8)
    numbers = np.array([int(document.id) for document in documents])
    counts = 1 + numbers % PASSAGES
    features[np.arange(len(documents)), counts - 1, :2] = (1 + numbers % 9)[:, None] * np.array([6, 8])
    features[:, 0, 2][counts > 1] = -7
    return np.concatenate([features.reshape(len(documents), -1), counts[:, None]], axis=1).astype(np.int8)


class Case(NamedTuple):
    """A ranker that retrieves. same: encodes all documents as equally near."""

    name: str
    encode: Encode
    same: Encode
    passages: int

    def encoder(self, version: str = "v1", encode: Encode | None = None, retrieves: bool = True) -> Encoder:
        """Return the encoder of the features."""
        return Encoder(self.name, version, encode or self.encode, retrieves, self.passages)

    def by(self, rows: NDArray[Any], version: str = "v1", depth: int | None = None) -> VectorQuery:
        """Return the retriever for a vector or a matrix of one row."""
        return VectorQuery(self.name, version, rows.astype(np.float32).reshape(-1), depth, self.passages)

    def nearest(self, documents: Sequence[Document], query: NDArray[Any], depth: int) -> list[str]:
        """Return ids by brute force: products or largest cosines above 0; ties by id."""
        found = []
        for document, row in zip(documents, self.encode(documents).astype(np.float64)):
            if self.passages:
                some = row[:-1].reshape(PASSAGES, WIDTH)[: int(row[-1])]
                best = max((float(v @ query) / float(v @ v) ** 0.5 for v in some), default=0.0)
            else:
                best = float(row @ query.astype(np.float64))
            if best > 0:
                found.append((-np.float32(best), document.id))
        return [id for _, id in sorted(found)[:depth]]


CASES = (Case("s2net", vectors, _same_vectors, 0), Case("dense", passages, _same_passages, PASSAGES))
RULES: dict[str, Callable[[Engine], None]] = {}
"""Name of rule and case -> rule."""

TIES = "equal_documents_at_a_cut_are_told_apart_by_id"
"""The rule that a graph of the nearest vectors cannot keep."""


def rule(check: Rule) -> Rule:
    """Register a rule for every case."""
    for case in CASES:
        bound = partial(check, case=case)
        bound.__doc__, name = check.__doc__, f"{check.__name__}-{'several' if case.passages else 'one'}"
        bound.__name__ = name  # type: ignore[attr-defined]
        RULES[name] = bound
    return check


def collection(count: int = 120) -> list[Document]:
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


def found_by(candidates: Candidates, name: str) -> set[str]:
    """Return ids found by a retriever."""
    return {id for id, by in zip(candidates.ids, candidates.retrieved_by[name]) if by}


def _filled(engine: Engine, case: Case, count: int = 40) -> tuple[list[Document], NDArray[Any]]:
    documents = collection(count)
    engine.write(documents)
    engine.write_features([case.encoder()])
    return documents, queries(1)[1]


def _near(engine: Engine, query: VectorQuery, depth: int = 5, **options: Any) -> list[str]:
    """Ids that a vector retrieves, ordered by id."""
    stage = engine.first_stages[0]
    return search(engine, "unknownword", stage, depth=depth, retrievers=[query], **options).ids


@rule
def the_union_is_that_of_brute_force(engine: Engine, case: Case) -> None:
    """Words and vectors find their best; the first stage orders them."""
    documents, _ = _filled(engine, case, 120)
    texts, rows = queries(12)
    everything = {document.id: document for document in documents}
    ranked = [case.nearest(documents, row, len(documents)) for row in rows]
    for stage in engine.first_stages:
        for depth in (1, 7, 30, 200):
            features = {case.name: "v1"}
            found = engine.search(
                [
                    SearchRequest(text, stage, depth, retrievers=[stage, case.by(row)], features=features)
                    for text, row in zip(texts, rows)
                ]
            )
            for text, nearest, candidates in zip(texts, ranked, found):
                lexical = search(engine, text, stage, depth=depth)
                near = nearest[:depth]
                same(found_by(candidates, stage), set(lexical.ids), "the matches of words")
                same(found_by(candidates, case.name), set(near), "the matches of vectors")
                alone = search(engine, text, stage, ids=sorted({*lexical.ids, *near}))
                same(candidates.ids, alone.ids, "the order")
                same(candidates.scores, alone.scores, "the scores")
                wanted = case.encode([everything[id] for id in candidates.ids])
                same(candidates.features[case.name], wanted, "the features")
                true(not candidates.missing[case.name].any(), "some features are missing")
                same(engine.score(text, stage, candidates), candidates.scores, "score()")
            one = search(engine, texts[0], stage, depth=depth, retrievers=[case.by(rows[:1])])
            same((set(one.ids), one.features), (set(ranked[0][:depth]), {}), "the matches of vectors only")


@rule
def who_retrieves(engine: Engine, case: Case) -> None:
    """Only the named retrievers find documents, each to its depth."""
    documents, row = _filled(engine, case)
    (text,), _ = queries(1)
    zero = case.by(np.zeros((1, WIDTH)))
    for stage in engine.first_stages:
        alone = search(engine, text, stage, depth=5, retrievers=[case.by(row)])
        same(set(alone.ids), set(case.nearest(documents, row[0], 5)), "the matches of vectors only")
        same(alone.scores, search(engine, text, stage, ids=alone.ids).scores, "the scores")
        same(list(alone.retrieved_by), [case.name], "who retrieves")
        everybody: list[Retriever] = [*engine.first_stages, case.by(row)]
        together = search(engine, text, stage, depth=5, retrievers=everybody)
        same(list(together.retrieved_by), [*engine.first_stages, case.name], "who retrieves")
        for other in engine.first_stages:
            top = search(engine, text, other, depth=5).ids
            same(found_by(together, other), set(top), f"what {other} finds")
        named = search(engine, text, stage, depth=5, retrievers=[stage])
        same(named.ids, search(engine, text, stage, depth=5).ids, "the matches of a first stage")
        nothing = search(engine, "unknownword", stage, depth=5, retrievers=[stage, case.by(row)])
        same(nothing.ids, sorted(case.nearest(documents, row[0], 5)), "the matches if words match nothing")
        same(nothing.scores, [0] * 5, "its scores")
        few = search(engine, text, stage, depth=5, retrievers=[stage, case.by(row, depth=2)])
        same(found_by(few, case.name), set(case.nearest(documents, row[0], 2)), "a smaller depth's")
        same(found_by(few, stage), set(named.ids), "the matches of words")
        more = search(engine, text, stage, depth=2, retrievers=[case.by(row, depth=9)])
        same(set(more.ids), set(case.nearest(documents, row[0], 9)), "a larger depth's")
        both = search(engine, text, stage, depth=5, retrievers=[stage, zero])
        same(both.ids, named.ids, "the matches together with a vector of zeros")
        same(len(search(engine, "", stage, depth=5, retrievers=[zero])), 0, "what zeros find")


@rule
def filters_come_before_the_cut(engine: Engine, case: Case) -> None:
    """Filters apply before the cut."""
    engine.write(replace(document, extra={"year": int(document.id)}) for document in collection())
    engine.write_features([case.encoder()])
    row, stage = queries(1)[1], engine.first_stages[0]
    wanted = {"year>=90": range(90, 121), "year<4": range(1, 4), "year>60,year<50": range(0)}
    for text, kept in wanted.items():
        by = filters_of(text.split(","))
        left = case.nearest([one for one in collection() if int(one.id) in kept], row[0], 5)
        both = search(engine, "alpha", stage, depth=5, retrievers=[stage, case.by(row)], filters=by)
        same(found_by(both, case.name), set(left), "the matches of vectors")
        words = search(engine, "alpha", stage, depth=5, filters=by)
        same(found_by(both, stage), set(words.ids), "the matches of words")
        same(set(_near(engine, case.by(row), filters=by)), set(left), "the matches of vectors only")


@rule
def a_change_is_not_found_before_it_is_encoded(engine: Engine, case: Case) -> None:
    """Vectors of changed and removed documents are not found."""
    documents, row = _filled(engine, case)
    best, by = case.nearest(documents, row[0], 40), case.by(row)
    engine.write([Document(best[1], text="alpha changed")], delete=[best[0]])
    same((len(engine), engine.prepared(case.name, "v1")), (39, 1), "len() and prepared()")
    same(set(_near(engine, by, 3)), set(best[2:5]), "the matches")
    engine.write_features([case.encoder(retrieves=False)])
    same(engine.prepared(case.name, "v1"), 0, "prepared()")
    same(set(_near(engine, by, 3)), set(best[1:4]), "the matches after encoding")
    engine.write([Document("9999", text="more")])
    engine.write_features([Encoder("other", "o", lambda some: np.ones((len(some), 3), np.float32))])
    engine.write_features([case.encoder(retrieves=False)])
    same((len(engine), engine.prepared(case.name, "v1")), (40, 0), "len() and prepared()")
    nearest = case.nearest(list(engine.documents()), row[0], 3)
    same(set(_near(engine, by, 3)), set(nearest), "the matches together with another ranker")


@rule
def new_versions_go_on_retrieving(engine: Engine, case: Case) -> None:
    """New versions also retrieve, only by their vectors."""
    documents, row = _filled(engine, case)

    def turned(some: Sequence[Document]) -> NDArray[Any]:
        features = case.encode(some)
        features[:, : feature_width(case.passages, WIDTH) - bool(case.passages)] *= -1
        return features

    for version, encode, sign in (("v2", turned, -1), ("v3.1", case.encode, 1)):
        engine.write_features([case.encoder(version, encode, retrieves=False)])
        same(engine.prepared(case.name, version), 0, "prepared()")
        wanted = case.nearest(documents, row[0], 5)
        same(set(_near(engine, case.by(sign * row, version))), set(wanted), "the matches")


def _equally_near(engine: Engine, case: Case, depth: int) -> None:
    engine.write(collection(40)[::-1])
    engine.write_features([case.encoder(encode=case.same)])
    found = _near(engine, case.by(np.array([0.6, 0.8, 0, 0, 0, 0, 0, 0])), depth)
    same(found, [document.id for document in collection(depth)], "the matches")


@rule
def equal_documents_are_in_order(engine: Engine, case: Case) -> None:
    """Equally near documents are ordered by id."""
    _equally_near(engine, case, 40)


@rule
def equal_documents_at_a_cut_are_told_apart_by_id(engine: Engine, case: Case) -> None:
    """Of equally near documents, the smallest ids are found."""
    _equally_near(engine, case, 7)


@rule
def what_cannot_retrieve_is_refused(engine: Engine, case: Case) -> None:
    """UsageError without vectors, also after a failed encoding; WorkspaceError for another width."""

    def fails(documents: Sequence[Document]) -> NDArray[Any]:
        raise ArithmeticError("no vectors")

    engine.write(collection(20))
    row, stage = queries(1)[1], engine.first_stages[0]
    with raises(ArithmeticError):
        engine.write_features([case.encoder(encode=fails)])
    same(engine.prepared(case.name, "v1"), None, "prepared()")
    with raises(UsageError, f"{case.name} cannot retrieve"):
        _near(engine, case.by(row))
    engine.write_features([case.encoder()])
    same(engine.prepared(case.name, "v2"), None, "prepared()")
    with raises(UsageError, f"{case.name} cannot retrieve"):
        _near(engine, case.by(row, "v2"))
    have, given = (feature_width(case.passages, numbers) for numbers in (WIDTH, 9))
    with raises(WorkspaceError, f"{case.name} features have {have} numbers, not {given}"):
        _near(engine, case.by(np.zeros(9)))
    with raises(UsageError, "'bm26'"):
        search(engine, "alpha", stage, depth=5, retrievers=["bm26", case.by(row)])


@rule
def features_that_are_there_are_not_encoded_again(engine: Engine, case: Case) -> None:
    """Stored features become searchable without encoding."""

    def never(some: Sequence[Document]) -> NDArray[Any]:
        raise AssertionError("the encoder was called, although all features are stored")

    documents, row = collection(40), queries(1)[1]
    engine.write(documents)
    engine.write_features([case.encoder(retrieves=False)])
    if engine.prepared(case.name, "v1") is None:
        with raises(UsageError, f"{case.name} cannot retrieve"):
            _near(engine, case.by(row))
        same(engine.write_features([case.encoder(encode=never)]), {case.name: 40}, "write_features()")
    same(engine.write_features([case.encoder(encode=never)]), {case.name: 0}, "write_features()")
    same(engine.prepared(case.name, "v1"), 0, "prepared()")
    same(set(_near(engine, case.by(row))), set(case.nearest(documents, row[0], 5)), "the matches")


@rule
def an_ingest_may_bring_features(engine: Engine, case: Case) -> None:
    """Documents ingested with encoders are found by vectors."""
    documents, row = collection(40), queries(1)[1]
    engine.write(documents[:20])
    engine.write_features([case.encoder()])
    encoders = [case.encoder(retrieves=False)]
    for some, replaces in ((documents[20:30], False), (documents, True)):
        engine.write(some, encoders=encoders, replace=replaces)
        engine.write_features(encoders)
        same(engine.prepared(case.name, "v1"), 0, "prepared()")
        wanted = case.nearest(documents[: len(engine)], row[0], 5)
        same(set(_near(engine, case.by(row))), set(wanted), "the matches")


@rule
def vectors_are_no_documents(engine: Engine, case: Case) -> None:
    """Vectors do not change counts and lexical scores."""
    documents, stage = collection(40), engine.first_stages[0]
    engine.write(documents)
    before = search(engine, "alpha beta", stage, ids=engine.ids())
    engine.write(documents, encoders=[case.encoder()], replace=True)
    engine.write_features([case.encoder()])
    same((len(engine), engine.ids()), (40, [document.id for document in documents]), "len() and ids()")
    same(sorted(engine.documents(), key=lambda document: document.id), documents, "documents()")
    after = search(engine, "alpha beta", stage, ids=engine.ids())
    same(after.scores, before.scores, "the scores")


@rule
def two_rankers_retrieve_side_by_side(engine: Engine, case: Case) -> None:
    """Rankers retrieve together, each to its depth."""
    documents = collection(60)
    engine.write(documents)
    (other,) = (one for one in CASES if one.name != case.name)
    engine.write_features([case.encoder(), other.encoder()])
    (text,), row = queries(1)
    stage = engine.first_stages[-1]
    found = search(engine, text, stage, depth=6, retrievers=[stage, case.by(row), other.by(row, depth=9)])
    same(found_by(found, case.name), set(case.nearest(documents, row[0], 6)), "the matches of one")
    same(found_by(found, other.name), set(other.nearest(documents, row[0], 9)), "the matches of the other")
    same(len(found_by(found, stage)), len(search(engine, text, stage, depth=6)), "words")
