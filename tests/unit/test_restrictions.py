"""Conditions of a query that do not depend on its words."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerank.engines.opensearch.restrictions import restrictions
from rerank.errors import InputError

WORDS = "WORDS"
FIELDS = ("a", "b")
CONDITIONS = [{"term": {name: True}} for name in FIELDS]
TEXTS = [{"match": {f"text{i}": {"query": WORDS}}} for i in range(2)]


def matches(query: dict[str, Any], document: dict[str, bool]) -> bool:
    """Whether a document matches a query, as OpenSearch decides it."""
    ((kind, inner),) = query.items()
    if kind in ("term", "match"):
        return document[next(iter(inner))]
    if kind == "function_score":
        return matches(inner["query"], document)
    if kind == "dis_max":
        return any(matches(one, document) for one in inner["queries"])
    required = [*inner.get("must", []), *inner.get("filter", [])]
    if any(matches(one, document) for one in inner.get("must_not", [])):
        return False
    minimum = inner.get("minimum_should_match", 0 if required or not inner.get("should") else 1)
    return all(matches(one, document) for one in required) and minimum <= sum(
        matches(one, document) for one in inner.get("should", [])
    )


def compound(parts: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    some = st.lists(parts, max_size=2)
    several = {"must": some, "filter": some, "should": some}
    excluded = {"must_not": st.lists(st.sampled_from(CONDITIONS), max_size=1)}
    asked = st.fixed_dictionaries({}, optional={**several, **excluded})
    return st.one_of(
        asked.map(lambda inner: {"bool": inner}),
        parts.map(lambda one: {"function_score": {"query": one}}),
        st.lists(parts, min_size=1, max_size=2).map(lambda two: {"dis_max": {"queries": two}}),
    )


queries = st.recursive(st.sampled_from(CONDITIONS + TEXTS), compound, max_leaves=6)


@given(queries, st.none() | st.integers(0, 2))
def test_the_documents_that_some_words_can_find_meet_the_restrictions(
    query: dict[str, Any], minimum: int | None
) -> None:
    counted = minimum is not None and "bool" in query and "should" in query["bool"]
    if counted:
        query = {"bool": {**query["bool"], "minimum_should_match": minimum}}
    conditions = {"bool": {"filter": restrictions(query, WORDS)}}
    for values in product([False, True], repeat=len(FIELDS)):
        document = dict(zip(FIELDS, values))
        texts = [dict(zip(("text0", "text1"), found)) for found in product([False, True], repeat=2)]
        possible = any(matches(query, document | text) for text in texts)
        # With a number of alternatives to match, the restrictions may accept more documents.
        assert matches(conditions, document) >= possible
        assert counted or matches(conditions, document) == possible


def test_a_condition_of_alternatives_is_kept() -> None:
    brands = [{"term": {"brand": one}} for one in ("x", "y")]
    query = {"bool": {"must": TEXTS[0], "should": brands, "minimum_should_match": 1}}
    (kept,) = restrictions(query, WORDS)
    assert kept["bool"]["minimum_should_match"] == 1
    assert [one["bool"]["filter"] for one in kept["bool"]["should"]] == [[one] for one in brands]


def test_a_hybrid_query_is_restricted_by_its_filter_and_by_all_of_its_queries() -> None:
    public, new = CONDITIONS
    only_public = {"bool": {"must": TEXTS[0], "filter": public}}
    query = {"hybrid": {"queries": [only_public, {"bool": {"must": TEXTS[1]}}], "filter": new}}
    assert restrictions(query, WORDS) == [new]
    query["hybrid"]["queries"][1] = only_public
    assert len(restrictions(query, WORDS)) == 2


@pytest.mark.parametrize("kind", ["nested", "neural", "has_child"])
def test_a_filter_with_an_unknown_meaning_is_refused(kind: str) -> None:
    query = {kind: {"path": "parts", "query": {"bool": {"must": TEXTS[0], "filter": CONDITIONS[0]}}}}
    with pytest.raises(InputError, match=f'"filter" inside "{kind}"'):
        restrictions(query, WORDS)
    assert restrictions({kind: {"path": "parts", "query": TEXTS[0]}}, WORDS) == []
