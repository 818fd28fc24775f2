"""Filters: their syntax, and the documents that match them."""

from __future__ import annotations

import random
from datetime import datetime, timezone

import pytest

from rerank import Document, Workspace
from rerank.common.errors import UsageError
from rerank.documents.filters import Filter, Span, filters_of, period, terms_of
from rerank.engines.opensearch.filtering import clause
from rerank.engines.search_request import SearchRequest

NUMBERS = [0, -0.0, 1, -1, 1e300, -1e300, 5e-324, 2**53, 0.1, float(10**400 > 0), -273.15]
LONG = [sign * number + more for sign in (1, -1) for number in (2**53, 10**300) for more in range(-3, 4)]


def holds(filter: Filter, document: Document) -> bool:
    terms = terms_of(document)
    return any(
        any(one.low <= term < one.high for term in terms) if isinstance(one, Span) else one in terms
        for one in filter.terms()
    )


def test_number_filters_compare_as_numbers():
    rng = random.Random(3)
    values = [*NUMBERS, *LONG, *(rng.uniform(-1, 1) * 10 ** rng.randrange(-20, 20) for _ in range(8))]
    for bound in values:
        for op, oracle in (
            ("=", lambda x, y: x == y),
            ("<", lambda x, y: x < y),
            ("<=", lambda x, y: x <= y),
            (">", lambda x, y: x > y),
            (">=", lambda x, y: x >= y),
        ):
            one = Filter.parse(f"x{op}{bound!r}")
            for value in values:
                assert holds(one, Document("1", extra={"x": value})) == oracle(value, bound), (one, value)


def test_a_date_is_a_period():
    def at(*parts: int) -> float:
        return datetime(*parts, tzinfo=timezone.utc).timestamp()  # type: ignore[misc, arg-type]

    assert period("2024") == (at(2024, 1, 1), at(2025, 1, 1))
    assert period("2024-12") == (at(2024, 12, 1), at(2025, 1, 1))
    assert period("2024-02-29") == (at(2024, 2, 29), at(2024, 3, 1))
    assert period("2024-02-29T23:59+02:00") == (at(2024, 2, 29, 21, 59), at(2024, 2, 29, 22, 0))
    for text in ("2024-13", "2023-02-29", "0000", "24", "2024-1-1", "2024-02-29T25:00"):
        assert period(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "2024-05-01T02:00:00+02:00",
        "2024-05-01 00:00:00+00",  # PostgreSQL
        "2024-05-01 02:00:00 +0200",
        "2024-04-30T18:30:00-05:30",
        "2024-05-01t00:00:00z",
        "2024-05-01 00:00:00 UTC",
    ],
)
def test_spellings_of_one_moment_are_equal(text):
    assert period(text) == period("2024-05-01T00:00:00Z")


def test_a_comma_separates_the_fraction_of_a_second():
    assert period("2024-05-01T00:00:00,250Z") == period("2024-05-01T00:00:00.250Z")


def test_the_last_dates_of_the_calendar_are_dates():
    """Open ends are often written in this way. The year 10000 begins 253402300800 seconds after 1970."""
    end = 253402300800.0
    assert period("9999") == (end - 365 * 86400, end)
    assert period("9999-12") == (end - 31 * 86400, end)
    assert period("9999-12-31") == (end - 86400, end)
    assert period("9999-12-31T23:59:59Z") == period("9999-12-31 23:59:59") == (end - 1, end)
    assert period("9999-12-31T23:59:59-05:00") == (end - 1 + 5 * 3600, end + 5 * 3600)
    assert period("9999-12-31T24:00:00") == (end, end + 1)
    assert period("2016-12-31T23:59:60Z") == period("2017-01-01T00:00:00Z")


@pytest.mark.parametrize("stage", ["bm25", "tfidf"])
def test_open_ends_and_years_are_compared_with_dates(tmp_path, stage):
    engine = Workspace.create(tmp_path / "ws", lang="en").engine
    ends = ["9999", "9999-12-31", "9999-12-31T23:59:59.999Z", "2031-01-01", "2020-05-01", "2019", "none"]
    engine.write(Document(end, text="contract", extra={"until": end, "code": end[:5]}) for end in ends)

    def matches(text: str) -> list[str]:
        return engine.find(SearchRequest("contract", stage, 10, filters_of(text))).ids

    assert matches("until>2025-01-01") == sorted(ends[:4])
    assert matches("until<=2019-12") == ["2019"]
    assert matches("until=2019") == ["2019"]
    assert matches("code=9999") == ["9999"]
    with pytest.raises(UsageError, match="holds words and years"):
        matches("code>2025")  # "none" and other codes are not years


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("until==2031-01-01", "write ="),
        ("until!=2031-01-01", "cannot exclude"),
        ("until<>2031", "cannot exclude"),
        ("until=>2031", "write >="),
        ("until=<2031", "write <="),
        ("until≥2031", "write >="),
        ("until≠2031", "cannot exclude"),
        ("until>>2031", "use one of"),
    ],
)
def test_other_signs_are_refused_with_the_right_one(text, remedy):
    with pytest.raises(UsageError, match=remedy):
        filters_of(text)


def test_spellings_of_the_same_value_match():
    document = Document(
        "1",
        extra={"ville": "Orle\u0301ans", "nom\u00e9": "\uff21\uff22\u00ad\uff23"},
        categories=("Caf\u00e9",),
    )
    for text in (
        "ville=Orl\u00e9ans",
        "ville=Orle\u0301ans",
        "nome\u0301=ABC",
        "nom\u00e9=A\u200bBC",
        "categories=Cafe\u0301",
    ):
        assert holds(Filter.parse(text), document)
    assert not holds(Filter.parse("ville=Orleans"), document)
    assert clause(Filter.parse("ville=Orl\u00e9ans"), "keyword", "shop") == {
        "terms": {"ville": ["Orl\u00e9ans", "Orle\u0301ans"]}
    }


def test_terms_of_a_field_keep_numbers_words_and_dates():
    extra = {
        "n": [1, None, "a", True, {"b": 1}, ["c"]],
        "long": "x" * 257,
        "": "e",
        "far": 10**400,
        "f" * 257: 1,
    }
    terms = terms_of(Document("1", extra=extra, lang="en"))
    assert [bytes.fromhex(term[:-1]).decode() if term else "" for term in terms if term.endswith("k")] == []
    kept = {(term.partition(kind)[0], kind) for term in terms for kind in "knty" if kind in term}
    names = {name: bytes.hex(name.encode()) for name in ("n", "lang")}
    assert {(names["n"], "n"), (names["n"], "k"), (names["n"], "y"), (names["lang"], "k")} <= kept
    assert len(terms) == 5  # including the word of the field with an empty name


@pytest.mark.parametrize("text", ["year", "=a", "year>=", "", " " * 100_000, "year>=soon", "year<1e"])
def test_invalid_filters_are_refused(text):
    with pytest.raises(UsageError, match=r"no field, sign and value|is neither a number nor a date"):
        filters_of(text)


@pytest.mark.parametrize(
    ("text", "kind", "part"),
    [
        ("year=soon", "integer", "'soon' is no number"),
        ("year=+-5", "integer", "'\\+-5' is no number"),
        ("year=²", "integer", "'²' is no number"),
        ("year<1e999", "double", "'1e999' is no number"),
        ("when>7", "date", "'7' is no date"),
        ("tags>7", "keyword", "compares numbers and dates"),
        ("free=yes", "boolean", "neither true nor false"),
        ("body=wolf", "text", r"filter by one of type keyword, body\.keyword"),
        ("none=1", "", "has no field 'none'"),
        ("mixed=1", "keyword, long", "is of type keyword, long"),
    ],
)
def test_filters_that_an_attached_index_does_not_support_are_refused(text, kind, part):
    with pytest.raises(UsageError, match=part):
        clause(Filter.parse(text), kind, "shop", {"body.keyword": ["keyword"]})


def test_filters_become_clauses_for_an_attached_index():
    def of(text: str, kind: str) -> object:
        return clause(Filter.parse(text), kind, "shop")

    assert of("id=9007199254740993", "long") == {"term": {"id": 9007199254740993}}
    assert of("price<1.5", "float") == {"range": {"price": {"lt": 1.5}}}
    assert of("free=true", "boolean") == {"term": {"free": True}}
    assert of("tags=a b", "keyword") == {"term": {"tags": "a b"}}
    day = {"gte": 1719705600000, "lt": 1719792000000, "format": "epoch_millis"}
    assert of("when=2024-06-30", "date") == {"range": {"when": day}}


def test_filters_work_after_new_generations_and_compaction(tmp_path):
    engine = Workspace.create(tmp_path / "ws", lang="en").engine
    many = [Document(f"{i:04}", text="apple", extra={"year": i}) for i in range(90)]
    for changed in (many, [Document(d.id, text="apple", extra={"year": -1}) for d in many[:80]]):
        engine.write(changed)

    def found(stage: str, text: str) -> list[str]:
        return engine.find(SearchRequest("apple", stage, 200, filters_of(text))).ids

    for stage in engine.first_stages:
        assert len(found(stage, "year=-1")) == 80
        assert found(stage, "year>=0") == [document.id for document in many[80:]]
    with engine.lock():
        assert engine.compact() in (0, 80)
    assert found("tfidf", "year>=0") == [document.id for document in many[80:]]
