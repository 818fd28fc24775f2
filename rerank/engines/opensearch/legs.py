"""Clauses of a search whose scores are signals: named clauses, and the legs of a ``hybrid`` query."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.errors import InputError

HYBRID = "hybrid"
"""The query of neural-search with legs whose scores a search pipeline normalizes and combines."""

WITH_SCORES = {"include_named_queries_score": "true"}
"""Parameter of a search whose hits have the scores of named clauses."""


def with_names(body: Mapping[str, Any], legs: Sequence[str]) -> dict[str, Any]:
    """Return a search in which every requested leg has a name.

    legs: ``leg:NAME`` each. A leg of a ``hybrid`` query without a name gets its position as a name.

    Raises InputError if the query has no such clause.

    >>> body = {"query": {"hybrid": {"queries": [{"match": {"title": "wolf"}}]}}}
    >>> with_names(body, ["leg:0"])["query"]["hybrid"]["queries"]
    [{'bool': {'must': [{'match': {'title': 'wolf'}}], '_name': '0'}}]
    """
    if not legs:
        return dict(body)
    requested = [leg.partition(":")[2] for leg in legs]
    query = dict(body["query"])
    names = set(_names(query))
    if HYBRID in query:
        queries: list[Mapping[str, Any]] = []
        for position, clause in enumerate(query[HYBRID]["queries"]):
            name = str(position)
            is_unnamed = name in requested and name not in names and _own_name(clause) is None
            queries.append({"bool": {"must": [clause], "_name": name}} if is_unnamed else clause)
        query[HYBRID] = {**query[HYBRID], "queries": queries}
        names = set(_names(query))
    absent = [name for name in requested if name not in names]
    if absent:
        raise InputError(
            f'the query has no clause with "_name": "{absent[0]}"; add the name, or leave it out'
        )
    return {**body, "query": query}


def leg_scores(hits: Sequence[Mapping[str, Any]], legs: Sequence[str]) -> dict[str, NDArray[np.float64]]:
    """Return leg -> (n,) scores of n hits; 0 for a hit that the clause does not match."""
    matched = [hit.get("matched_queries", {}) for hit in hits]
    scores: dict[str, NDArray[np.float64]] = {}
    for leg in legs:
        name = leg.partition(":")[2]
        scores[leg] = np.array([scores_of_hit.get(name, 0.0) for scores_of_hit in matched], np.float64)
    return scores


def is_hybrid(body: Mapping[str, Any]) -> bool:
    """Return whether a search has a ``hybrid`` query."""
    return HYBRID in (body.get("query") or {})


def _own_name(clause: Mapping[str, Any]) -> str | None:
    """Return the name of a clause, which some queries have in the value of a field."""
    for value in clause.values():
        if not isinstance(value, Mapping):
            continue
        if "_name" in value:
            return str(value["_name"])
        for inner in value.values():
            if isinstance(inner, Mapping) and "_name" in inner:
                return str(inner["_name"])
    return None


def _names(value: object) -> Iterator[str]:
    """Yield the names of all clauses."""
    if isinstance(value, Mapping):
        if isinstance(value.get("_name"), str):
            yield value["_name"]
        for inner in value.values():
            yield from _names(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _names(inner)
