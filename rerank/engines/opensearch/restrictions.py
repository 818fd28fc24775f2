"""Conditions of a query that do not depend on its words, as filters for other retrievers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rerank.errors import InputError

_INNER = {
    **dict.fromkeys(("function_score", "script_score"), "query"),
    **{"constant_score": "filter", "boosting": "positive"},
}
"""Compound query -> the query that its hits match."""

_NESTED = ("filter", "must_not")


def restrictions(query: Any, words: str) -> list[dict[str, Any]]:
    """Return filters: the conditions that every hit of the query meets, for all values of ``words``.

    words: a text that stands only where the query has the words of the user.

    Raises InputError for a condition in a query whose meaning is unknown.

    >>> text, public = {"match": {"body": "WORDS"}}, {"term": {"public": True}}
    >>> restrictions({"bool": {"must": text, "filter": public}}, "WORDS")
    [{'term': {'public': True}}]
    >>> restrictions({"bool": {"should": [text, public], "must_not": {"term": {"old": True}}}}, "WORDS")
    [{'bool': {'must_not': [{'term': {'old': True}}]}}]
    """
    if words not in json.dumps(query):
        return [query]
    ((kind, inner),) = query.items()
    if kind == "bool":
        return _of_bool(inner, words)
    if kind in _INNER:
        return restrictions(inner[_INNER[kind]], words) if _INNER[kind] in inner else []
    if kind in ("dis_max", "hybrid"):
        always = [inner["filter"]] if "filter" in inner else []
        return always + _alternatives(inner.get("queries", []), 1, words)
    for name in _NESTED:
        if f'"{name}": ' in json.dumps(inner):
            raise InputError(
                f'the template has "{name}" inside "{kind}"; for --retrieve, write it into a "bool" around it'
            )
    return []


def _of_bool(inner: Mapping[str, Any], words: str) -> list[dict[str, Any]]:
    required = _listed(inner.get("must", [])) + _listed(inner.get("filter", []))
    conditions: list[dict[str, Any]] = []
    for query in required:
        conditions += restrictions(query, words)
    excluded = _listed(inner.get("must_not", []))
    if excluded:
        conditions.append({"bool": {"must_not": excluded}})
    if not required or "minimum_should_match" in inner:
        minimum = inner.get("minimum_should_match", 1)
        conditions += _alternatives(_listed(inner.get("should", [])), minimum, words)
    return conditions


def _alternatives(queries: Sequence[Any], minimum: Any, words: str) -> list[dict[str, Any]]:
    """Return the condition that ``minimum`` of the queries match; none if a query has no conditions."""
    conditions_of_queries = [restrictions(query, words) for query in queries]
    if not conditions_of_queries or not all(conditions_of_queries):
        return []
    should = [{"bool": {"filter": conditions}} for conditions in conditions_of_queries]
    return [{"bool": {"should": should, "minimum_should_match": minimum}}]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
