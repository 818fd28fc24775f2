"""The endpoint for callers that can send no more than ids: the stock processors of OpenSearch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.errors import UsageError
from rerank.order import rank
from rerank.scoring.pipeline import INFERENCE_DEPTH
from rerank.service import work
from rerank.service.bodies import IdsBody
from rerank.service.snapshot import Snapshot
from rerank.service.work import Work


def rerank_ids(snapshot: Snapshot, body: IdsBody, job: Work) -> dict[str, Any]:
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
    query = work._query(body.query, None)
    if len(set(body.ids)) < len(body.ids):
        raise UsageError("an id comes twice; send each once")
    if not body.ids:
        return {"model": str(stack), "results": []}
    ids = body.ids
    scores: dict[str, NDArray[np.float64]] = {}
    sent: dict[str, work.Features] = {}
    engine = snapshot.pipeline.engine
    with job.stage("engine"):
        work._fetch(snapshot, stack, query.text, ids, scores, sent, job)
        known = work._compute(snapshot, ids, sent, job)
        first = scores[stack.first_stage]
        if not known or not (first.any() or engine.contains(ids)):
            raise UsageError("the engine knows none of the ids; does the search return the field of the id?")
        order = rank(ids, first).tolist()

        def voters() -> list[tuple[float, Sequence[str]]]:
            best = order[:INFERENCE_DEPTH]
            found = zip(best, engine.get([ids[i] for i in best]))
            return [(float(first[i]), document.categories) for i, document in found if document is not None]

        query = work._with_categories(snapshot, stack, query, voters)
    lexical = {name: values[order] for name, values in scores.items()}
    ranked = [ids[i] for i in order]
    ranking = work._rank(snapshot, stack, query, ranked, lexical, lambda name: sent[name][0][order], job)
    single = [float(str(score)) for score in ranking.scores.astype(np.float32)]
    results = [
        {"index": order[place], "relevance_score": score}
        for place, score in zip(ranking.order.tolist(), single)
    ]
    return {"model": str(stack), "results": results}
