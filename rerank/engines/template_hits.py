"""The hits of a search template or a run, and their union with the results of other retrievers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from rerank.common.order import rank
from rerank.common.values import items_at
from rerank.documents.records import Candidates
from rerank.engines.search_request import SearchRequest


def hits_of_run(request: SearchRequest) -> Candidates:
    """Return the hits of a run for the query of a request: the ``depth`` best, in the order of the run.

    A query that the run does not contain has no hits.
    """
    assert request.template is not None
    hits = request.template.template.hits.get(request.template.query.id, ())[: request.depth]
    scores = np.array([score for _, score in hits], np.float64)
    return Candidates([id for id, _ in hits], scores, np.arange(len(hits)))


def union_with_search(
    request: SearchRequest, hits: Candidates, retrieved: Candidates, rescored: Candidates | None = None
) -> Candidates:
    """Join the hits of a template or run with the results of other retrievers.

    hits:      documents that the template or run finds, with its scores.
    retrieved: documents that the other retrievers find.
    rescored:  some of these documents with the scores of the template. The others get the score 0, or the
        lowest score of a hit if that is negative.
    """
    scores = dict(zip(hits.ids, hits.scores.tolist()))
    if rescored is not None:
        scores.update(zip(rescored.ids, rescored.scores.tolist()))
    lowest = float(hits.scores.min(initial=0.0))
    ids = list(dict.fromkeys([*hits.ids, *retrieved.ids]))
    values = np.array([scores.get(id, lowest) for id in ids], np.float64)
    order = rank(ids, values)
    ids = items_at(ids, order.tolist())
    retrieved_by = {request.first_stage: _are_among(ids, hits.ids)}
    for name, is_hit in retrieved.retrieved_by.items():
        retrieved_by[name] = _are_among(ids, compress(retrieved.ids, is_hit))
    legs: dict[str, NDArray[np.float64]] = {}
    for name, leg_scores in hits.legs.items():
        by_id = dict(zip(hits.ids, leg_scores.tolist()))
        legs[name] = np.array([by_id.get(id, 0.0) for id in ids], np.float64)
    rows = np.arange(len(ids))
    return Candidates(ids, values[order], rows, retrieved_by=retrieved_by, took=hits.took, legs=legs)


def _are_among(ids: Sequence[str], members: Iterable[str]) -> NDArray[np.bool_]:
    member_set = set(members)
    return np.array([id in member_set for id in ids], np.bool_)
