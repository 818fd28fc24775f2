"""Rules for documents, words and features."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.engines.base import Encoder, Engine, SearchRequest, WriteResult
from rerank.errors import InputError, UsageError
from rerank.filters import filters_of
from rerank.records import Candidates, Document
from rerank.testing.rules import Rule, raises, same, search, true

RULES: dict[str, Callable[[Engine], None]] = {}
"""Name -> rule."""

FEATURE_RULES: dict[str, Callable[[Engine], None]] = {}
"""Name -> rule of engines that store features."""

DOCUMENTS = [
    Document("a", title="Sorting", text="A faster quicksort for sorted lists"),
    Document("b", text="Trees and lists"),
    Document("c", title="Search trees", text="Balanced trees for searching: trees, trees and more trees"),
    Document("d", text="Nothing in common"),
]


def rule(check: Rule) -> Rule:
    """Register a rule."""
    RULES[check.__name__] = check
    return check


def feature_rule(check: Rule) -> Rule:
    """Register a rule for engines that store features."""
    FEATURE_RULES[check.__name__] = check
    return check


def _every(engine: Engine) -> list[Document]:
    found = list(engine.documents())
    same(list(engine.documents()), found, "documents(), called again")
    return sorted(found, key=lambda document: document.id)


def lengths(documents: Sequence[Document]) -> NDArray[Any]:
    """Features: lengths of id and text."""
    return np.array([[len(d.id), len(d.text)] for d in documents], np.float32)


# ------------------------------------------------------------------------------------------------ documents


@rule
def an_empty_engine_holds_nothing(engine: Engine) -> None:
    """A new engine has no documents; an empty ingest changes nothing."""
    same(len(engine), 0, "len()")
    same(engine.ids(), [], "ids()")
    same(list(engine.documents()), [], "documents()")
    same(engine.get(["a"]), [None], "get()")
    same(engine.write([]), WriteResult(0, 0, 0), "write()")
    for stage in engine.first_stages:
        candidates = search(engine, "anything", stage)
        same(len(candidates), 0, "search()")
        same((candidates.scores.shape, candidates.rows.shape), ((0,), (0,)), "the shapes of scores and rows")


@rule
def what_is_added_is_there(engine: Engine) -> None:
    """Ingested documents are found by their ids."""
    same(engine.write(iter(DOCUMENTS)), WriteResult(4, 0, 0), "write()")
    same(len(engine), 4, "len()")
    same(engine.ids(), ["a", "b", "c", "d"], "ids()")
    same(_every(engine), DOCUMENTS, "documents()")
    same(engine.contains(["c", "x", "a", "\ud800"]), {"a", "c"}, "contains()")
    same(engine.get(["c", "x", "a", "c"]), [DOCUMENTS[2], None, DOCUMENTS[0], DOCUMENTS[2]], "get()")


@rule
def all_fields_come_back(engine: Engine) -> None:
    """Documents are returned unchanged."""
    document = Document(
        "a/b c",
        title="Título",
        text="line\none\x00two 😀",
        categories=("x::y", "ü"),
        links=("b", "c"),
        lang="es",
        extra={"year": 1999, "nested": {"list": [1, None, "x"]}},
    )
    engine.write([document])
    same(engine.get([document.id]), [document], "get()")
    same(_every(engine), [document], "documents()")


@rule
def an_id_that_is_there_is_updated(engine: Engine) -> None:
    """A document replaces the old one and its words."""
    engine.write(DOCUMENTS)
    new = Document("b", text="Nothing but graphs", categories=("x",))
    same(engine.write([new, Document("e", text="graphs")]), WriteResult(1, 1, 0), "write()")
    same(engine.get(["b"]), [new], "get()")
    same(sorted(document.id for document in engine.documents()), list("abcde"), "documents()")
    same(engine.ids(), list("abcde"), "ids()")
    for stage in engine.first_stages:
        same(set(search(engine, "graphs", stage).ids), {"b", "e"}, "the matches")
        same(set(search(engine, "lists", stage).ids), {"a"}, "the matches")
    done = engine.write([new])
    true(
        done in (WriteResult(0, 1, 0), WriteResult(0, 0, 0, unchanged=1)), "write() of an unchanged document"
    )
    for i in range(5):
        engine.write([Document("a", text=f"word{i}"), Document("f", text="other")])
    same(len(engine), 6, "len()")
    for stage in engine.first_stages:
        same(search(engine, "word3", stage).ids, [], "the matches of an old word")
        same(search(engine, "word4", stage).ids, ["a"], "the matches of a new word")


@rule
def what_is_deleted_is_gone(engine: Engine) -> None:
    """Deleted documents are not found; unknown ids are reported."""
    engine.write(DOCUMENTS)
    same(engine.write([], delete=["c", "x", "b", "c"]), WriteResult(0, 0, 2, ("x",)), "write()")
    same(engine.ids(), ["a", "d"], "ids()")
    for stage in engine.first_stages:
        same(search(engine, "trees lists", stage).ids, ["a"], "the matches")
    engine.write([], delete=["a"])
    same(engine.write([Document("a", text="back again")]), WriteResult(1, 0, 0), "write()")
    same(len(engine), 2, "len()")
    for stage in engine.first_stages:
        same(search(engine, "back", stage).ids, ["a"], "the matches")


@rule
def what_cannot_be_an_id_is_not_there(engine: Engine) -> None:
    """Deleting an invalid id is not an error."""
    for id in ("", "x" * 513, "\ud800"):
        engine.write(DOCUMENTS)
        same(engine.write([], delete=[id]), WriteResult(0, 0, 0, (id,)), "write()")
        done = engine.write([], delete=["a", id, "x"])
        same((done.deleted, sorted(done.unknown_deletes)), (1, sorted(["x", id])), "write()")


@rule
def a_wrong_ingest_changes_nothing(engine: Engine) -> None:
    """InputError for repeated ids, ids both written and deleted, and wrong objects."""
    engine.write(DOCUMENTS[:1])
    with raises(InputError, "'b' occurs twice"):
        engine.write([DOCUMENTS[1], DOCUMENTS[2], Document("b")])
    with raises(InputError, "'b' is both ingested and deleted"):
        engine.write(DOCUMENTS, delete=["b"])
    for bad in (Document(""), Document("x\ud800"), Document("x", text="\udc00")):
        with raises(InputError):
            engine.write([*DOCUMENTS, bad])
    same(_every(engine), DOCUMENTS[:1], "documents()")
    same(engine.get(["x\ud800"]), [None], "get()")


@rule
def a_stream_that_breaks_changes_nothing(engine: Engine) -> None:
    """If the documents' iterable raises, the old state remains."""

    def stream() -> Iterator[Document]:
        yield Document("a", text="new text")
        yield Document("z", text="new text")
        raise ZeroDivisionError

    engine.write(DOCUMENTS)
    with raises(ZeroDivisionError):
        engine.write(stream(), delete=["b"])
    same(_every(engine), DOCUMENTS, "documents()")
    for stage in engine.first_stages:
        same(search(engine, "new text", stage).ids, [], "the matches of new words")
        same(search(engine, "quicksort", stage).ids, ["a"], "the matches of old words")
    same(engine.write([Document("z", text="new text")]), WriteResult(1, 0, 0), "write()")
    same(search(engine, "new text", engine.first_stages[0]).ids, ["z"], "the matches")


@rule
def ids_of_all_kinds(engine: Engine) -> None:
    """Ids have 1 to 512 bytes, ordered by code point."""
    ids = ["é", "e\u0301", "Z", "a", "😀", "\uffff", "x" * 512, "ü" * 256, " ", "a b\n", "1", "10", "9"]
    ids.append("a\x00b")
    engine.write([Document(id, text="same") for id in ids])
    same(engine.ids(), sorted(ids), "ids()")
    same([document and document.id for document in engine.get(ids)], ids, "get()")
    for stage in engine.first_stages:
        same(search(engine, "same", stage, depth=100).ids, sorted(ids), "the order of equal documents")


@rule
def its_own_stream_can_be_ingested(engine: Engine) -> None:
    """Documents can be read while they are rewritten."""
    engine.write(DOCUMENTS)
    result = engine.write(Document(d.id, text=d.text + " again") for d in engine.documents())
    same(result, WriteResult(0, 4, 0), "write()")
    same(search(engine, "again", engine.first_stages[0], depth=2).ids, ["b", "d"], "the matches")


# --------------------------------------------------------------------------------------------------- search


@rule
def a_search_is_in_order(engine: Engine) -> None:
    """Scores are float64, above 0, descending; titles count; words are stemmed."""
    engine.write([*DOCUMENTS, Document("t", title="Forests"), Document("u", title="Other", text="words")])
    for stage in engine.first_stages:
        candidates = search(engine, "tree sorts", stage)
        same(set(candidates.ids), {"a", "b", "c"}, "the matches")
        same((candidates.scores.dtype, candidates.rows.dtype), (np.float64, np.int64), "the dtypes")
        true((np.diff(candidates.scores) <= 0).all(), "the scores do not descend")
        true((candidates.scores > 0).all(), "not all scores are above 0")
        same((candidates.features, candidates.missing), ({}, {}), "features without a request")
        same(search(engine, "forest", stage).ids, ["t"], "the matches of the title")


@rule
def no_usable_term_finds_nothing(engine: Engine) -> None:
    """A text without known terms retrieves nothing and scores 0."""
    engine.write(DOCUMENTS)
    for stage in engine.first_stages:
        for text in ("", " ", "?!", "unknownword", "--- ***", "\x00", "\ud800"):
            same(search(engine, text, stage).ids, [], f"what {text!r} finds")
            scores = search(engine, text, stage, ids=["b", "a"]).scores.tolist()
            same(scores, [0, 0], f"what {text!r} scores")


@rule
def query_syntax_is_plain_text(engine: Engine) -> None:
    """Queries have no operators, fields or wildcards."""
    engine.write(DOCUMENTS)
    texts = ["trees AND", "+trees -lists", '"trees', "content:trees", "trees*", "trees~2", "(trees"]
    for stage in engine.first_stages:
        for text in (*texts, "trees^9 OR [a TO"):
            true(
                {"b", "c"} <= set(search(engine, text, stage).ids),
                f"{text!r} does not find what `trees` does",
            )


@rule
def a_cut_is_made_in_order(engine: Engine) -> None:
    """Of equal documents, the smallest ids are found."""
    # Shuffled ids; 40 documents tie in two groups.
    ids = [f"{(i * 7) % 40:02}" for i in range(40)]
    engine.write([Document(id, text="apple pear" if int(id) % 2 else "apple") for id in ids])
    wanted = [f"{i:02}" for i in (*range(1, 40, 2), *range(0, 40, 2))]
    for stage in engine.first_stages:
        for depth in (1, 2, 19, 20, 21, 39, 40, 41, 100):
            same(search(engine, "apple pear", stage, depth=depth).ids, wanted[:depth], f"the first {depth}")


@rule
def repeated_words_weigh_more(engine: Engine) -> None:
    """A repeated query word counts more."""
    engine.write([Document("a", text="apple x"), Document("b", text="pear y")])
    for stage in engine.first_stages:
        same(search(engine, "apple pear pear", stage).ids, ["b", "a"], "the order")
        same(search(engine, "apple apple pear", stage).ids, ["a", "b"], "the order")


@rule
def one_score_whoever_asks(engine: Engine) -> None:
    """Scores are independent of method and depth."""
    words = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta"]
    rng = np.random.default_rng(7)
    engine.write(
        Document(f"{i:03}", text=" ".join(rng.choice(words, rng.integers(1, 30)))) for i in range(300)
    )
    engine.write(
        (Document(f"{i:03}", text="beta gamma " * (i % 5)) for i in range(40)), delete=["299", "298"]
    )
    text = "alpha gamma beta zeta zeta"
    for stage in engine.first_stages:
        top = search(engine, text, stage, depth=1000)
        same(engine.score(text, stage, top), top.scores, "score() of all")
        some = rng.permutation(len(top))[:50]
        part = Candidates([top.ids[i] for i in some], top.scores[some], top.rows[some])
        same(engine.score(text, stage, part), top.scores[some], "score() of some")
        chosen = search(engine, text, stage, ids=[top.ids[i] for i in some])
        order = np.sort(some)
        same(chosen.ids, [top.ids[i] for i in order], "the order of given documents")
        same(chosen.scores, top.scores[order], "the scores of given documents")
        few = search(engine, text, stage, depth=17)
        same(few.scores, top.scores[:17], "the scores of a smaller depth")


@rule
def given_documents_can_be_scored(engine: Engine) -> None:
    """A request with ids scores these; 0: no shared term; unknown ids are skipped."""
    engine.write(DOCUMENTS)
    for stage in engine.first_stages:
        candidates = search(engine, "trees", stage, ids=["d", "b", "a", "c"])
        same(candidates.ids, ["c", "b", "a", "d"], "the order")
        same(candidates.scores[2:], [0, 0], "the scores of what shares no term")
        same(len(search(engine, "trees", stage, ids=[])), 0, "the matches of no ids")
        known = search(engine, "trees", stage, ids=["x", "a", "\ud800", "a"])
        same(known.ids, ["a"], "the known documents")


@rule
def many_searches_are_single_ones(engine: Engine) -> None:
    """Several requests have the results of single ones."""
    engine.write(DOCUMENTS)
    texts = ["trees", "", "sorted lists", "trees"]
    for stage in engine.first_stages:
        requests = [SearchRequest(text, stage, depth=2) for text in texts]
        requests += [SearchRequest("trees", stage, depth=1), SearchRequest("trees", stage, ids=["d", "c"])]
        many = list(engine.search(requests))
        same([len(candidates) for candidates in many[-2:]], [1, 2], "the numbers of candidates")
        many = many[:-2]
        same(len(many), len(texts), "the number of answers")
        for text, candidates in zip(texts, many):
            one = search(engine, text, stage, depth=2)
            same((candidates.ids, candidates.scores.tolist()), (one.ids, one.scores.tolist()), repr(text))


@rule
def a_query_may_be_long(engine: Engine) -> None:
    """A query may have a thousand words."""
    engine.write(DOCUMENTS)
    text = " ".join(f"word{i}" for i in range(999)) + " trees"
    for stage in engine.first_stages:
        same(search(engine, text, stage).ids, ["c", "b"], "the matches")


@rule
def what_cannot_be_asked_is_refused(engine: Engine) -> None:
    """UsageError for an unknown signal and for a depth below 1."""
    with raises(UsageError, "'bm26'"):
        search(engine, "x", "bm26", depth=1)
    with raises(UsageError, "'bm26'"):
        engine.score("x", "bm26", Candidates([], np.empty(0), np.empty(0, np.int64)))
    with raises(UsageError, "depth"):
        search(engine, "x", engine.first_stages[0], depth=0)


@rule
def only_what_the_filters_leave_is_found(engine: Engine) -> None:
    """Filters apply before the cut, and after changes."""
    kinds: list[dict[str, Any]] = [
        {"year": 2019, "tags": ["a"], "published": "2024-05-31", "free": True},
        {"year": 2020, "tags": ["a", "b c"], "published": "2024-06-01T12:00:00+02:00", "free": False},
        {"year": 2021.5, "tags": "b c", "published": "2025-01-01", "text": "x" * 1000},
        {"year": -3, "tags": [], "nested": {"year": 7}},
    ]
    documents = [
        Document(
            f"{i:03}", text="apple " * (40 - i), lang="en", categories=("x",) * (i % 2), extra=kinds[i % 4]
        )
        for i in range(40)
    ]
    engine.write([Document("020", text="apple", extra={"year": 2030}), Document("old", text="apple")])
    engine.write(documents, delete=["old"])
    wanted: dict[tuple[str, ...], set[int]] = {
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
    for stage in engine.first_stages:
        plain = search(engine, "apple", stage, depth=100)
        for texts, kept in wanted.items():
            by = filters_of(texts)
            left = [id for id in plain.ids if int(id) % 4 in kept]
            for depth in (100, 3):
                found = search(engine, "apple", stage, depth=depth, filters=by)
                same(found.ids, left[:depth], f"what {' and '.join(texts)} leaves")
                scores = [score for id, score in zip(plain.ids, plain.scores.tolist()) if id in left]
                same(found.scores.tolist(), scores[:depth], "the scores")
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


@feature_rule
def features_come_back(engine: Engine) -> None:
    """Features are returned unchanged."""
    engine.write(DOCUMENTS)
    same(engine.missing_features("text", "v1"), 4, "missing_features()")
    seen: list[int] = []
    encoder = Encoder("text", "v1", lengths)
    same(engine.write_features([encoder], progress=seen.append), {"text": 4}, "write_features()")
    same(sum(seen), 4, "the progress")
    same(engine.missing_features("text", "v1"), 0, "missing_features()")
    _same_features(engine, "trees lists", count=3)
    for stage in engine.first_stages:
        chosen = search(engine, "x", stage, ids=["d", "a"], features={"text": "v1"})
        features = dict(zip(chosen.ids, chosen.features["text"].tolist()))
        same(features, {"a": [1, 35], "d": [1, 17]}, "given documents")
    same(engine.write_features([encoder]), {"text": 0}, "write_features() of complete features")


@feature_rule
def a_change_drops_features(engine: Engine) -> None:
    """Features of new and changed documents are zero until encoded."""
    engine.write(DOCUMENTS)
    engine.write_features([Encoder("text", "v1", lengths)])
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


@feature_rule
def versions_do_not_mix(engine: Engine) -> None:
    """Only the requested features are returned."""
    engine.write(DOCUMENTS)
    engine.write_features([Encoder("text", "v1", lengths)])
    engine.write_features([Encoder("meta", "m", lambda some: np.ones((len(some), 3), np.float16))])
    stage, asked = engine.first_stages[-1], {"text": "v2", "meta": "m"}
    other = search(engine, "trees", stage, features=asked)
    true(other.missing["text"].all(), "features of v1 were given out as v2")
    true(not other.missing["meta"].any(), "features of another ranker are missing")
    same(other.features["meta"].dtype, np.float16, "the dtype")
    new = Encoder("text", "v2", lambda documents: -lengths(documents))
    same(engine.write_features([new]), {"text": 4}, "write_features()")
    _same_features(engine, "trees", "v2", -1, count=2)


@feature_rule
def versions_are_kept(engine: Engine) -> None:
    """Versions to keep stay; changed documents can have both."""
    engine.write(DOCUMENTS)
    old = Encoder("text", "v1", lengths)
    new = Encoder("text", "v2", lambda documents: -lengths(documents))
    engine.write_features([old])
    same(engine.write_features([new], keep={"text": ["v1"]}), {"text": 4}, "write_features()")
    engine.write([Document("new", text="tall trees")])
    same(engine.write_features([new, old]), {"text": 2}, "write_features() of two versions")
    for version, sign in (("v1", 1), ("v2", -1)):
        same(engine.missing_features("text", version), 0, f"missing_features() of {version}")
        _same_features(engine, "trees", version, sign, count=3)


@feature_rule
def an_interrupted_encoding_goes_on(engine: Engine) -> None:
    """If interrupted, completed work is kept."""
    engine.write(Document(str(i), text=f"word {i}") for i in range(1000))
    done: list[str] = []

    def encode(documents: Sequence[Document]) -> NDArray[Any]:
        if len(done) > 500:
            raise KeyboardInterrupt
        done.extend(document.id for document in documents)
        return lengths(documents)

    with raises(KeyboardInterrupt):
        engine.write_features([Encoder("text", "v1", encode)])
    rest = engine.write_features([Encoder("text", "v1", lengths)])["text"]
    same(rest, 1000 - len(done), "the documents left to encode")
    _same_features(engine, "word", count=1000)


@feature_rule
def a_version_serves_until_the_next_is_complete(engine: Engine) -> None:
    """A failed encoding keeps the former version."""

    def broken(documents: Sequence[Document]) -> NDArray[Any]:
        raise ZeroDivisionError

    engine.write(DOCUMENTS)
    engine.write_features([Encoder("text", "v1", lengths)])
    with raises(ZeroDivisionError):
        engine.write_features([Encoder("text", "v2", broken)])
    _same_features(engine, "trees", count=2)


@feature_rule
def without_documents_there_is_nothing_to_encode(engine: Engine) -> None:
    """Features can be written before documents exist."""
    same(engine.write_features([Encoder("text", "v1", lengths)]), {"text": 0}, "write_features()")
    engine.write(DOCUMENTS)
    same(engine.write_features([Encoder("text", "v1", lengths)]), {"text": 4}, "write_features()")
