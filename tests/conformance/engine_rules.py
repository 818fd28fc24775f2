"""Rules for documents, words and features."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.common.errors import InputError, UsageError
from rerank.documents.filters import filters_of
from rerank.documents.records import Candidates, Document
from rerank.engines.base import Encoder, Engine, WriteResult
from rerank.engines.search_request import SearchRequest
from tests.conformance.rules import Rules, finds, raises, same, search, true

RULES, FEATURE_RULES = Rules(), Rules()
"""Rules of all engines, and of engines that store features."""

DOCUMENTS = [
    Document("a", title="Sorting", text="A faster quicksort for sorted lists"),
    Document("b", text="Trees and lists"),
    Document("c", title="Search trees", text="Balanced trees for searching: trees, trees and more trees"),
    Document("d", text="Nothing in common"),
]


def _every(engine: Engine) -> list[Document]:
    found = list(engine.documents())
    same(list(engine.documents()), found, "documents(), called again")
    return sorted(found, key=lambda document: document.id)


def lengths(documents: Sequence[Document]) -> NDArray[Any]:
    """Features: lengths of id and text."""
    return np.array([[len(d.id), len(d.text)] for d in documents], np.float32)


OLD = Encoder("text", "v1", lengths)
NEW = Encoder("text", "v2", lambda documents: -lengths(documents))
"""Two versions of a ranker."""


# ------------------------------------------------------------------------------------------------ documents


@RULES
def an_empty_engine_has_no_documents(engine: Engine) -> None:
    """A new engine has no documents; an empty ingest changes nothing."""
    same(len(engine), 0, "len()")
    same((engine.ids(), list(engine.documents())), ([], []), "ids() and documents()")
    same(engine.get(["a"]), [None], "get()")
    same(engine.write([]), WriteResult(0, 0, 0), "write()")
    for stage in engine.first_stages:
        candidates = search(engine, "anything", stage)
        same(len(candidates), 0, "search()")
        same((candidates.scores.shape, candidates.rows.shape), ((0,), (0,)), "the shapes of scores and rows")


@RULES
def added_documents_are_stored(engine: Engine) -> None:
    """Ingested documents are found by their ids, and returned unchanged."""
    full = Document(
        "b/b c",
        title="Título",
        text="line\none\x00two 😀",
        categories=("x::y", "ü"),
        links=("b", "c"),
        lang="es",
        extra={"year": 1999, "nested": {"list": [1, None, "x"]}},
    )
    documents = sorted([*DOCUMENTS, full], key=lambda document: document.id)
    same(engine.write(iter(documents)), WriteResult(5, 0, 0), "write()")
    same((len(engine), engine.ids()), (5, [document.id for document in documents]), "len() and ids()")
    same(_every(engine), documents, "documents()")
    same(engine.contains(["c", "x", "a", "\ud800"]), {"a", "c"}, "contains()")
    same(engine.get(["c", "x", "a", "b/b c"]), [DOCUMENTS[2], None, DOCUMENTS[0], full], "get()")


@RULES
def existing_ids_are_updated(engine: Engine) -> None:
    """A document replaces the old one and its words; documents can be read while they are rewritten."""
    engine.write(DOCUMENTS)
    new = Document("b", text="Nothing but graphs", categories=("x",))
    same(engine.write([new, Document("e", text="graphs")]), WriteResult(1, 1, 0), "write()")
    same(engine.get(["b"]), [new], "get()")
    same([document.id for document in _every(engine)], list("abcde"), "documents()")
    same(engine.ids(), list("abcde"), "ids()")
    finds(engine, "graphs", {"b", "e"})
    finds(engine, "lists", ["a"])
    done = engine.write([new])
    same(done.updated + done.unchanged, 1, "write() of an unchanged document")
    for i in range(5):
        engine.write([Document("a", text=f"word{i}"), Document("f", text="other")])
    same(len(engine), 6, "len()")
    finds(engine, "word3", [])
    finds(engine, "word4", ["a"])
    result = engine.write(Document(d.id, text="again") for d in engine.documents())
    same(result, WriteResult(0, 6, 0), "write() of its documents")
    finds(engine, "again", set("abcdef"))


@RULES
def deleted_documents_are_removed(engine: Engine) -> None:
    """Deleted documents are not found; unknown and invalid ids are reported."""
    engine.write(DOCUMENTS)
    same(engine.write([], delete=["c", "x", "b", "c"]), WriteResult(0, 0, 2, ("x",)), "write()")
    same(engine.ids(), ["a", "d"], "ids()")
    finds(engine, "trees lists", ["a"])
    engine.write([], delete=["a"])
    same(engine.write([Document("a", text="back again")]), WriteResult(1, 0, 0), "write()")
    finds(engine, "back", ["a"])
    for id in ("", "x" * 513, "\ud800"):
        engine.write(DOCUMENTS)
        same(engine.write([], delete=[id]), WriteResult(0, 0, 0, (id,)), "write()")
        done = engine.write([], delete=["a", id, "x"])
        same((done.deleted, sorted(done.unknown_deletes)), (1, sorted(["x", id])), "write()")


@RULES
def a_failed_ingest_changes_nothing(engine: Engine) -> None:
    """Wrong documents are InputErrors; they, and an iterable that raises, leave the old state."""

    def stream() -> Iterator[Document]:
        yield Document("a", text="new text")
        yield Document("z", text="new text")
        raise ZeroDivisionError

    engine.write(DOCUMENTS)
    with raises(InputError, "'y' occurs twice"):
        engine.write([Document("y", text="new text"), DOCUMENTS[2], Document("y")])
    with raises(InputError, "'b' is both ingested and deleted"):
        engine.write([Document("y", text="new text"), DOCUMENTS[1]], delete=["b"])
    for bad in (Document("x\ud800"), Document("x", text="\udc00")):
        with raises(InputError):
            engine.write([Document("y", text="new text"), bad])
    with raises(ZeroDivisionError):
        engine.write(stream(), delete=["b"])
    same((_every(engine), engine.get(["x\ud800"])), (DOCUMENTS, [None]), "documents() and get()")
    finds(engine, "new text", [])
    finds(engine, "quicksort", ["a"])
    same(engine.write([Document("z", text="new text")]), WriteResult(1, 0, 0), "write()")
    finds(engine, "new text", ["z"])


@RULES
def ids_of_all_kinds(engine: Engine) -> None:
    """Ids have 1 to 512 bytes, not only spaces; they are ordered by code point."""
    ids = ["é", "e\u0301", "Z", "a", "😀", "\uffff", "x" * 512, "ü" * 256, "a b\n", "1", "10", "9"]
    ids.append("a\x00b")
    engine.write([Document(id, text="same") for id in ids])
    same(engine.ids(), sorted(ids), "ids()")
    same([document and document.id for document in engine.get(ids)], ids, "get()")
    finds(engine, "same", sorted(ids), depth=100)


# --------------------------------------------------------------------------------------------------- search


@RULES
def results_are_sorted(engine: Engine) -> None:
    """Scores are float64, above 0, descending; titles count; words are stemmed."""
    engine.write([*DOCUMENTS, Document("t", title="Forests"), Document("u", title="Other", text="words")])
    for stage in engine.first_stages:
        candidates = search(engine, "tree sorts", stage)
        same(set(candidates.ids), {"a", "b", "c"}, "the matches")
        same((candidates.scores.dtype, candidates.rows.dtype), (np.float64, np.int64), "the dtypes")
        true((np.diff(candidates.scores) <= 0).all(), "the scores do not descend")
        true((candidates.scores > 0).all(), "not all scores are above 0")
        same((candidates.features, candidates.missing), ({}, {}), "features without a request")
    finds(engine, "forest", ["t"])


@RULES
def queries_have_no_syntax(engine: Engine) -> None:
    """Queries have no operators, fields or wildcards; without known terms they find nothing and score 0."""
    engine.write(DOCUMENTS)
    texts = ["trees AND", "+trees -lists", '"trees', "content:trees", "trees*", "trees~2", "(trees"]
    for stage in engine.first_stages:
        for text in (*texts, "trees^9 OR [a TO"):
            found = search(engine, text, stage).ids
            true({"b", "c"} <= set(found), f"{text!r} does not find what `trees` does")
        for text in ("", " ", "?!", "unknownword", "--- ***", "\x00", "\ud800"):
            same(search(engine, text, stage).ids, [], f"the matches of {text!r}")
            scores = search(engine, text, stage, ids=["b", "a"]).scores.tolist()
            same(scores, [0, 0], f"the scores of {text!r}")


@RULES
def equal_scores_are_cut_by_id(engine: Engine) -> None:
    """Of equal documents, the smallest ids are found."""
    # Shuffled ids; 40 documents tie in two groups.
    ids = [f"{(i * 7) % 40:02}" for i in range(40)]
    engine.write([Document(id, text="apple pear" if int(id) % 2 else "apple") for id in ids])
    wanted = [f"{i:02}" for i in (*range(1, 40, 2), *range(0, 40, 2))]
    for depth in (1, 2, 19, 20, 21, 39, 40, 41, 100):
        finds(engine, "apple pear", wanted[:depth], depth=depth)


@RULES
def all_query_words_count(engine: Engine) -> None:
    """A repeated query word counts more, and a query may have a thousand words."""
    engine.write([Document("a", text="apple x"), Document("b", text="pear y")])
    finds(engine, "apple pear pear", ["b", "a"])
    finds(engine, "apple apple pear", ["a", "b"])
    finds(engine, " ".join(f"word{i}" for i in range(999)) + " pear", ["b"])


@RULES
def all_methods_give_equal_scores(engine: Engine) -> None:
    """Scores are independent of method, depth and other requests; unknown ones of given ids are skipped."""
    words = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta"]
    rng = np.random.default_rng(7)
    engine.write(
        Document(f"{i:03}", text=" ".join(rng.choice(words, rng.integers(1, 30)))) for i in range(300)
    )
    changed = [Document(f"{i:03}", text="beta gamma " * (i % 5)) for i in range(40)]
    engine.write(changed, delete=["299", "298"])
    text = "alpha gamma beta zeta zeta"
    for stage in engine.first_stages:
        top = search(engine, text, stage, depth=1000)
        same(engine.score(text, stage, top), top.scores, "score() of all")
        some = rng.permutation(len(top))[:50]
        part = Candidates([top.ids[i] for i in some], top.scores[some], top.rows[some])
        same(engine.score(text, stage, part), top.scores[some], "score() of some")
        given = ["x", "035", *part.ids, "\ud800", part.ids[0], "000"]  # 000 and 035 share no term
        chosen, order = search(engine, text, stage, ids=given), np.sort(some)
        same(chosen.ids, [*(top.ids[i] for i in order), "000", "035"], "the order of given documents")
        same(chosen.scores, [*top.scores[order], 0, 0], "the scores of given documents")
        same(len(search(engine, text, stage, ids=[])), 0, "the matches of no ids")
        few = search(engine, text, stage, depth=17)
        same(few.scores, top.scores[:17], "the scores of a smaller depth")
        requests = [SearchRequest(asked, stage, depth=2) for asked in (text, "", "beta alpha", text)]
        requests += [SearchRequest(text, stage, depth=1), SearchRequest(text, stage, ids=["007", "003"])]
        many, single = list(engine.search(requests)), [engine.find(request) for request in requests]
        same([one.ids for one in many], [one.ids for one in single], "the matches of several requests")
        same([one.scores.tolist() for one in many], [one.scores.tolist() for one in single], "their scores")


@RULES
def invalid_searches_are_refused(engine: Engine) -> None:
    """UsageError for an unknown signal and for a depth below 1."""
    with raises(UsageError, "'bm26'"):
        search(engine, "x", "bm26", depth=1)
    with raises(UsageError, "'bm26'"):
        engine.score("x", "bm26", Candidates([], np.empty(0), np.empty(0, np.int64)))
    with raises(UsageError, "depth"):
        search(engine, "x", engine.first_stages[0], depth=0)


KINDS: list[dict[str, Any]] = [
    {"year": 2019, "tags": ["a"], "published": "2024-05-31", "free": True},
    {"year": 2020, "tags": ["a", "b c"], "published": "2024-06-01T12:00:00+02:00", "free": False},
    {"year": 2021.5, "tags": "b c", "published": "2025-01-01", "text": "x" * 1000},
    {"year": -3, "tags": [], "nested": {"year": 7}},
]
"""Extra fields of documents."""

FILTERS: dict[tuple[str, ...], set[int]] = {
    ("year>=2020",): {1, 2},
    ("year>2020",): {2},
    ("year<=2020",): {0, 1, 3},
    ("year<2019",): {3},
    ("year=2021.5",): {2},
    ("tags=a",): {0, 1},
    ("tags=b c", "year<2021"): {1},
    ("published=2024",): {0, 1},
    ("published>=2024-06-01",): {1, 2},
    ("published>2024-06",): {2},
    ("published<2024-06-01T10:00",): {0},
    ("published=2024-06-01T10:00:00Z",): {1},
    ("free=true",): {0},
    ("categories=x",): {1, 3},
    ("lang=en", "tags=b c"): {1, 2},
    ("tags=a", "tags=b c"): {1},
    ("free=false", "year<2000"): set(),
}
"""Filters, and the positions in KINDS that they keep."""


@RULES
def results_match_the_filters(engine: Engine) -> None:
    """Filters apply before the cut, and after changes."""
    engine.write([Document("020", text="apple", extra={"year": 2030}), Document("old", text="apple")])
    documents = (
        Document(
            f"{i:03}", text="apple " * (40 - i), lang="en", categories=("x",) * (i % 2), extra=KINDS[i % 4]
        )
        for i in range(40)
    )
    engine.write(documents, delete=["old"])
    for stage in engine.first_stages:
        plain = search(engine, "apple", stage, depth=100)
        for texts, kept in FILTERS.items():
            left = [(id, s) for id, s in zip(plain.ids, plain.scores.tolist()) if int(id) % 4 in kept]
            for depth in (100, 3):
                found = search(engine, "apple", stage, depth=depth, filters=filters_of(texts))
                pairs = list(zip(found.ids, found.scores.tolist()))
                same(pairs, left[:depth], f"the matches of {' and '.join(texts)}")
    stage = engine.first_stages[0]
    for text in ("month=5", "nested=7", "text=x", "no,thing=*", "*=a"):
        with raises(UsageError, "no document has a field"):
            search(engine, "apple", stage, depth=3, filters=filters_of(text))
    for text, holds in (("year=soon", "numbers"), ("tags>=3", "words"), ("free=7", "true or false")):
        with raises(UsageError, f"holds {holds}"):
            search(engine, "apple", stage, depth=3, filters=filters_of(text))


# ------------------------------------------------------------------------------------------------- features


def _same_features(engine: Engine, text: str, version: str = "v1", sign: int = 1, count: int = 0) -> None:
    """All matches (at least ``count``) have ``sign`` times the lengths as features of a version."""
    for stage in engine.first_stages:
        top = search(engine, text, stage, depth=1000, features={"text": version})
        true(len(top) >= count, f"{len(top)} matches")
        wanted = sign * lengths([document for document in engine.get(top.ids) if document])
        same(top.features["text"].dtype, np.float32, "the dtype")
        same(top.features["text"], wanted, f"the features of {version}")
        true(not top.missing["text"].any(), "some are reported as missing")


@FEATURE_RULES
def features_are_returned(engine: Engine) -> None:
    """Features are returned unchanged, also if features were written before documents exist."""
    same(engine.write_features([OLD]), {"text": 0}, "write_features() without documents")
    engine.write(DOCUMENTS)
    same(engine.missing_features("text", "v1"), 4, "missing_features()")
    seen: list[int] = []
    same(engine.write_features([OLD], progress=seen.append), {"text": 4}, "write_features()")
    same(sum(seen), 4, "the progress")
    same(engine.missing_features("text", "v1"), 0, "missing_features()")
    _same_features(engine, "trees lists", count=3)
    for stage in engine.first_stages:
        chosen = search(engine, "x", stage, ids=["d", "a"], features={"text": "v1"})
        features = dict(zip(chosen.ids, chosen.features["text"].tolist()))
        same(features, {"a": [1, 35], "d": [1, 17]}, "given documents")
    same(engine.write_features([OLD]), {"text": 0}, "write_features() of complete features")


@FEATURE_RULES
def changed_documents_lose_their_features(engine: Engine) -> None:
    """Features of new and changed documents are zero until encoded."""
    engine.write(DOCUMENTS)
    engine.write_features([OLD])
    engine.write([Document("b", text="trees anew"), Document("e", text="trees")], delete=["a"])
    top = search(engine, "trees", engine.first_stages[0], features={"text": "v1"})
    same(dict(zip(top.ids, top.missing["text"].tolist())), {"b": True, "c": False, "e": True}, "what lacks")
    true((top.features["text"][top.missing["text"]] == 0).all(), "missing features are not 0")
    encoded: list[str] = []

    def encode(documents: Sequence[Document]) -> NDArray[Any]:
        encoded.extend(document.id for document in documents)
        return lengths(documents)

    same(engine.write_features([Encoder("text", "v1", encode)]), {"text": 2}, "write_features()")
    same(sorted(encoded), ["b", "e"], "the encoded documents")
    _same_features(engine, "trees", count=3)


@FEATURE_RULES
def versions_do_not_mix(engine: Engine) -> None:
    """Only the requested features are returned. Versions to keep stay; changed documents can have both."""
    engine.write(DOCUMENTS)
    engine.write_features([OLD])
    engine.write_features([Encoder("meta", "m", lambda some: np.ones((len(some), 3), np.float16))])
    stage, asked = engine.first_stages[-1], {"text": "v2", "meta": "m"}
    other = search(engine, "trees", stage, features=asked)
    true(other.missing["text"].all(), "features of v1 were given out as v2")
    true(not other.missing["meta"].any(), "features of another ranker are missing")
    same(other.features["meta"].dtype, np.float16, "the dtype")
    same(engine.write_features([NEW], keep={"text": ["v1"]}), {"text": 4}, "write_features()")
    _same_features(engine, "trees", "v2", -1, count=2)
    engine.write([Document("new", text="tall trees")])
    same(engine.write_features([NEW, OLD]), {"text": 2}, "write_features() of two versions")
    for version, sign in (("v1", 1), ("v2", -1)):
        same(engine.missing_features("text", version), 0, f"missing_features() of {version}")
        _same_features(engine, "trees", version, sign, count=3)


@FEATURE_RULES
def an_interrupted_encoding_resumes(engine: Engine) -> None:
    """If interrupted, completed work and the former version are kept."""
    engine.write(Document(str(i), text=f"word {i}") for i in range(1000))
    engine.write_features([OLD])
    done: list[str] = []

    def encode(documents: Sequence[Document]) -> NDArray[Any]:
        if len(done) > 500:
            raise KeyboardInterrupt
        done.extend(document.id for document in documents)
        return -lengths(documents)

    with raises(KeyboardInterrupt):
        engine.write_features([Encoder("text", "v2", encode)])
    _same_features(engine, "word", count=1000)
    same(engine.write_features([NEW]), {"text": 1000 - len(done)}, "the documents left to encode")
    _same_features(engine, "word", "v2", -1, count=1000)
