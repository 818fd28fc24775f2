"""The second phase: a cross-encoder scores the best documents of the stack again."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import numpy as np

from rerank.documents.records import Query
from rerank.scoring.scorer import ReadDocuments, ScoringResult
from rerank.scoring.timer import StageTimer
from rerank.stack.file import STACK, SecondPhase
from rerank.stack.ranking import Ranking
from rerank.stack.stack import Stack


def rank_scored(
    stack: Stack, scored: ScoringResult, timer: StageTimer, read_documents: ReadDocuments
) -> Ranking:
    """Rank scored candidates by a stack, then its best documents by its second phase, if it has one.

    stack: with the weights for the case of ``scored``.
    timer: its remaining seconds limit the second phase.
    """
    with timer.stage("score"):
        ranking = stack.rank(scored.ids, scored.raw, query=scored.query)
    second_phase = stack.second_phase
    if second_phase is not None:
        with timer.stage("second_phase"):
            limit = min(second_phase.ms / 1000, timer.remaining_seconds())
            ranking = rescore(ranking, scored.query, second_phase, read_documents, limit)
    return ranking


def rescore(
    ranking: Ranking,
    query: Query,
    second_phase: SecondPhase,
    read_documents: ReadDocuments,
    seconds: float = math.inf,
) -> Ranking:
    """Order the first ``second_phase.top`` documents of a ranking again, by the score of a cross-encoder.

    Their scores become the weighted sums of both phases. If necessary, all other scores are lowered by a
    constant, so that scores descend.

    seconds: after this time, the ranking is returned unchanged, only with ``late`` set to True.

    Raises UsageError if the model cannot be used or is not the tuned one.
    """
    end = time.monotonic() + seconds
    ids = ranking.best_ids(second_phase.top)
    count = len(ids)
    encoder = second_phase.encoder()
    scores: list[float] = []
    for document in read_documents(ids):
        if time.monotonic() > end:
            return replace(ranking, late=True)
        scores.append(encoder.score(query.text, document.content if document is not None else ""))
    if not ids:
        return ranking
    raw = np.column_stack((ranking.scores[:count], scores))
    rescored = Stack(second_phase.linear(), STACK).rank(ids, raw)
    following = ranking.scores[count:]
    following = following - max(following[:1].max(initial=-math.inf) - rescored.scores[-1], 0.0)
    return replace(
        ranking,
        scores=np.concatenate((rescored.scores, following)),
        order=np.concatenate((ranking.order[:count][rescored.order], ranking.order[count:])),
        second_phase=rescored,
    )
