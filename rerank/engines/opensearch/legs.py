"""Clauses of a search whose scores are signals: named clauses, and the legs of a ``hybrid`` query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.common.errors import InputError
from rerank.common.values import as_mapping, objects_inside

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
    requested = list(map(_name_of, legs))
    query = dict(body["query"])
    absent = set(requested).difference(_names(query))
    if absent and HYBRID in query:
        queries = []
        for position, clause in enumerate(query[HYBRID]["queries"]):
            queries.append(_with_position_as_name(clause, str(position), absent))
        query[HYBRID] = {**query[HYBRID], "queries": queries}
        absent.difference_update(_names(query))
    for name in requested:
        if name in absent:
            raise InputError(f'the query has no clause with "_name": "{name}"; add the name, or leave it out')
    return {**body, "query": query}


def _with_position_as_name(clause: Mapping[str, Any], name: str, absent: set[str]) -> Mapping[str, Any]:
    """Return a leg with its position as its name, if this name is needed and the leg has no other one."""
    has_other_name = _own_name(clause) is not None
    if has_other_name or name not in absent:
        return clause
    return {"bool": {"must": [clause], "_name": name}}


def leg_scores(hits: Sequence[Mapping[str, Any]], legs: Sequence[str]) -> dict[str, NDArray[np.float64]]:
    """Return leg -> (n,) scores of n hits; 0 for a hit that the clause does not match."""
    scores_of_hits = [hit.get("matched_queries", {}) for hit in hits]
    scores: dict[str, NDArray[np.float64]] = {}
    for leg in legs:
        name = _name_of(leg)
        scores[leg] = np.array([by_name.get(name, 0.0) for by_name in scores_of_hits], np.float64)
    return scores


def is_hybrid(body: Mapping[str, Any]) -> bool:
    """Return whether the query of a search is a ``hybrid`` query. body: the body of the search."""
    return HYBRID in (body.get("query") or {})


def _name_of(leg: str) -> str:
    """Return the name of the clause of a leg.

    >>> _name_of("leg:title")
    'title'
    """
    return leg.partition(":")[2]


def _own_name(clause: Mapping[str, Any]) -> str | None:
    """Return the name of a clause, which some queries have in the value of a field."""
    for value in clause.values():
        options = as_mapping(value)
        for inner in (options, *options.values()):
            if "_name" in as_mapping(inner):
                return str(inner["_name"])
    return None


def _names(query: Mapping[str, Any]) -> set[object]:
    """Return the names of all clauses."""
    names: set[object] = set()
    for clause in objects_inside(query):
        if isinstance(clause.get("_name"), str):
            names.add(clause["_name"])
    return names
