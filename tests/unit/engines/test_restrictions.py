"""Conditions of a query that do not depend on its words."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rerank.common.errors import InputError
from rerank.engines.opensearch.restrictions import is_word_field, restrictions

CASES = json.loads((Path(__file__).parents[2] / "conditions.json").read_text("utf-8"))
FIELDS = ("a", "b")
CONDITIONS = [{"term": {name: True}} for name in FIELDS]
TEXTS = [{"match": {f"text{i}": {"query": "wolf"}}} for i in range(2)]
WORDS = ["text0", "text1"]


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_conditions_of_queries(case: dict[str, Any]) -> None:
    """The plugin passes the same test: ConditionsTest.java."""
    if "unknown" in case:
        with pytest.raises(InputError):
            restrictions(case["query"], case["words"])
    else:
        assert restrictions(case["query"], case["words"]) == case["conditions"]


def matches(query: dict[str, Any], document: dict[str, bool]) -> bool:
    """Whether a document matches a query, as OpenSearch decides it."""
    ((kind, inner),) = query.items()
    if kind == "match_all":
        return True
    if kind in ("term", "match"):
        return document[next(iter(inner))]
    if kind == "function_score":
        return matches(inner["query"], document)
    if kind == "dis_max":
        return any(matches(alternative, document) for alternative in inner["queries"])
    required = [*inner.get("must", []), *inner.get("filter", [])]
    if any(matches(excluded, document) for excluded in inner.get("must_not", [])):
        return False
    should = inner.get("should", [])
    minimum = inner.get("minimum_should_match", 0 if required or not should else 1)
    minimum = min(int(minimum), 10) if should else 0
    return all(matches(clause, document) for clause in required) and minimum <= sum(
        matches(clause, document) for clause in should
    )


def compound(parts: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    clauses = st.lists(parts, max_size=2)
    bools = st.fixed_dictionaries(
        {},
        optional={
            "must": clauses,
            "filter": clauses,
            "should": clauses,
            "must_not": st.lists(parts, max_size=1),
            "minimum_should_match": st.integers(0, 2),
        },
    )
    return st.one_of(
        bools.map(lambda inner: {"bool": inner}),
        parts.map(lambda inner: {"function_score": {"query": inner}}),
        st.lists(parts, min_size=1, max_size=2).map(lambda queries: {"dis_max": {"queries": queries}}),
    )


queries = st.recursive(st.sampled_from(CONDITIONS + TEXTS), compound, max_leaves=8)


def required_conditions(query: dict[str, Any]) -> Iterator[tuple[dict[str, Any], bool]]:
    """Yield every ``filter`` (True) and ``must_not`` (False) clause that all hits of a query obey."""
    ((kind, inner),) = query.items()
    if kind == "function_score":
        yield from required_conditions(inner["query"])
    if kind == "bool":
        yield from ((clause, True) for clause in inner.get("filter", []))
        yield from ((clause, False) for clause in inner.get("must_not", []))
        for clause in inner.get("must", []):
            yield from required_conditions(clause)


@given(queries)
def test_hits_meet_the_conditions_and_documents_that_fail_a_filter_do_not(query: dict[str, Any]) -> None:
    conditions = {"bool": {"filter": restrictions(query, WORDS)}}
    for values in product([False, True], repeat=4):
        document = dict(zip((*FIELDS, *WORDS), values))
        meets = matches(conditions, document)
        assert meets or not matches(query, document)
        for clause, is_required in required_conditions(query):
            assert matches(clause, document) == is_required or not meets


@given(queries)
@example({"bool": {"should": [{"bool": {}}], "minimum_should_match": 2}})
def test_conditions_are_the_query_if_no_field_has_words(query: dict[str, Any]) -> None:
    conditions = {"bool": {"filter": restrictions(query, [])}}
    for values in product([False, True], repeat=4):
        document = dict(zip((*FIELDS, *WORDS), values))
        assert matches(conditions, document) == matches(query, document)


@given(st.text("ab*", max_size=8), st.text("ab\n", max_size=8))
def test_a_star_in_a_field_stands_for_any_characters(pattern, name):
    expected = re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name, re.DOTALL) is not None
    assert is_word_field(name, [pattern]) == expected


def test_many_stars_in_the_field_of_a_user_take_little_time():
    """A regular expression would need more than the age of the universe for this name."""
    begin = time.process_time()
    assert not is_word_field("*" * 200 + "x", ["description_of_the_article"])
    assert not is_word_field("*e" * 200 + "*x", ["e" * 500])
    assert is_word_field("*e" * 200, ["e" * 500])
    assert time.process_time() - begin < 1
