"""The endpoint for clients that can only send ids: the stock processors of OpenSearch."""

from __future__ import annotations

from typing import Any

import numpy as np

from rerank.errors import UsageError
from rerank.search.scorer import Given
from rerank.service.endpoints import RequestContext, query_of, ranked
from rerank.service.schemas import IdsBody
from rerank.service.snapshot import Snapshot


def rerank_ids(snapshot: Snapshot, body: IdsBody, job: RequestContext) -> dict[str, Any]:
    """``POST /v1/rerank_ids``: documents that the engine has, by their ids.

    Scores are those of ``rerank query`` over these candidates: the engine scores the query's words by the
    stack's lexical signals and gives the stored features. They are rounded to single precision, which a hit
    of OpenSearch has, and always have a point or an exponent: ML Commons fails on ``1`` and on numbers of
    more than 18 characters.

    Raises UsageError when the engine knows none of the ids, or one comes twice.
    """
    job.takes(len(body.ids), "ids")
    job.query = body.query
    stack = snapshot.stack(body.stack)
    query = query_of(body.query, None)
    ids = body.ids
    if len(set(ids)) < len(ids):
        raise UsageError("an id comes twice; send each once")
    if not ids:
        return {"model": str(stack), "results": []}
    scored = snapshot.scorer(stack).score(query, Given(ids, {}), stages=job)
    job.missing = dict(scored.missing)
    if scored.unknown == len(ids) or not (scored.raw.any() or snapshot.pipeline.engine.contains(ids)):
        raise UsageError("the engine knows none of the ids; does the search return the field of the id?")
    ranking = ranked(stack, scored, job)
    single = [float(str(score)) for score in ranking.scores.astype(np.float32)]
    results = [
        {"index": place, "relevance_score": score} for place, score in zip(ranking.order.tolist(), single)
    ]
    return {"model": str(stack), "results": results}
