"""What tuning and evaluation share: the queries that are judged and known."""

from __future__ import annotations

from collections.abc import Sequence

from rerank.errors import InputError
from rerank.records import Qrels, Query


def only_judged(qrels: Qrels, queries: Sequence[Query]) -> Qrels:
    """Keep the judgements of these queries: one there is no text of can be neither tuned nor measured on."""
    kept = Qrels((q.id, d, grade) for q in queries for d, grade in qrels[q.id].items())
    if not kept:
        raise InputError(
            "no judged query is in the query file; check that --queries and --qrels belong together"
        )
    return kept
