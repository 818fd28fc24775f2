"""The second phase: a cross-encoder scores the best documents of the stack again."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from rerank.records import Document, Query
from rerank.scoring.scorer import ScoringResult, StageTimer
from rerank.stack.file import STACK, SecondPhase
from rerank.stack.ranking import Ranking
from rerank.stack.stack import Stack

Read = Callable[[Sequence[str]], Sequence[Document | None]]
"""Ids -> documents, None if unknown."""


def rank_scored(stack: Stack, scored: ScoringResult, timer: StageTimer, read: Read) -> Ranking:
    """Rank scored candidates by a stack, then its second phase.

    stack: with the weights of the case of ``scored``. read: gets documents.
    """
    with timer.stage("score"):
        ranking = stack.rank(scored.ids, scored.raw, query=scored.query)
    if stack.then is not None:
        with timer.stage("then"):
            limit = min(stack.then.ms / 1000, timer.remaining_seconds())
            ranking = rescore(ranking, scored.query, stack.then, read, limit)
    return ranking


def rescore(
    ranking: Ranking, query: Query, then: SecondPhase, read: Read, seconds: float = math.inf
) -> Ranking:
    """Order the first ``then.top`` documents again.

    Their scores are the weighted sums of both phases. If necessary, all other scores are lowered by a
    constant, so that scores descend. After ``seconds``, the whole order is kept, and ``late`` is True.
    """
    ids, encoder, end = ranking.ids[: then.top], then.encoder(), time.monotonic() + seconds
    scores, count = [], len(ids)
    for document in read(ids):
        if time.monotonic() > end:
            return replace(ranking, late=True)
        scores.append(encoder.score(query.text, document.content if document is not None else ""))
    if not ids:
        return ranking
    raw = np.column_stack((ranking.scores[:count], scores))
    first = Stack(then.linear(), STACK).rank(ids, raw)
    rest = ranking.scores[count:]
    rest = rest - max(rest[:1].max(initial=-math.inf) - first.scores[-1], 0.0)
    return replace(
        ranking,
        ids=[*first.ids, *ranking.ids[count:]],
        scores=np.concatenate((first.scores, rest)),
        order=np.concatenate((ranking.order[:count][first.order], ranking.order[count:])),
        then=first,
    )
