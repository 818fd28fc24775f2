"""Scores of document pairs: the mean with each document as the query."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from rerank.engines.base import Engine
from rerank.errors import InputError
from rerank.progress import Progress
from rerank.rankers.base import Ranker
from rerank.records import Document, Query
from rerank.scoring.scorer import Scorer, ScoringInput, fill_missing_features
from rerank.scoring.vector_cache import encode_query
from rerank.stack.signals import Signal

_BLOCK = 1000  # documents per request


@runtime_checkable
class Relates(Protocol):
    """A ranker that scores pairs from features, in any order.

    threshold: minimum score of related pairs.
    """

    threshold: float

    def relatedness(self, a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.float64]:
        """Return (n,) scores of (n, width) and (n, width) features."""


def score_pairs(
    engine: Engine, signal: Signal, pairs: Sequence[tuple[str, str]], progress: Progress | None = None
) -> NDArray[np.float64]:
    """Return (n,) scores of n document pairs; order in a pair does not matter.

    Missing features are computed. Raises InputError for an unknown id.
    """
    progress = progress or Progress()
    ids = sorted({id for pair in pairs for id in pair})
    scorer = Scorer(engine, (signal,), engine.first_stages[0], infer=False)
    documents, features = _read(scorer, ids)
    row_of = {id: row for row, id in enumerate(ids)}
    if features is not None and isinstance(signal, Relates):
        first_rows = [row_of[first] for first, _ in pairs]
        second_rows = [row_of[second] for _, second in pairs]
        return signal.relatedness(features[first_rows], features[second_rows])
    partners: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for number, (first, second) in enumerate(pairs):
        partners[first].append((number, second))
        partners[second].append((number, first))
    scores = np.zeros(len(pairs))
    label = f"relate by {signal.name}"
    for id, numbered_partners in progress.over(partners.items(), label, len(partners), "doc"):
        partner_ids = sorted({partner for _, partner in numbered_partners})
        document = documents[id]
        query = Query(document.id, document.content, document.categories, document.lang)
        if features is not None and isinstance(signal, Ranker):
            vector = encode_query(signal, scorer.with_known_categories(query)[0])
            partner_scores = signal.score(vector, features[[row_of[partner] for partner in partner_ids]])
        else:
            partner_scores = scorer.score(query, ScoringInput(partner_ids, {})).raw[:, 0]
        score_of = dict(zip(partner_ids, partner_scores.tolist()))
        for number, partner in numbered_partners:
            scores[number] += score_of[partner] / 2
    return scores


def _read(scorer: Scorer, ids: list[str]) -> tuple[dict[str, Document], NDArray[Any] | None]:
    """Return documents, and the features of the ranker, if it is one."""
    documents: dict[str, Document] = {}
    blocks: list[NDArray[Any]] = []
    for start in range(0, len(ids), _BLOCK):
        block = ids[start : start + _BLOCK]
        block_documents = scorer.engine.get(block)
        for id, document in zip(block, block_documents):
            if document is None:
                raise InputError(f"unknown document {id!r}; run `rerank ingest` with it")
            documents[id] = document
        (signal,) = scorer.signals
        if isinstance(signal, Ranker):
            unscored = ScoringInput(block, {scorer.first_stage: np.zeros(len(block))})
            inputs = scorer.load_missing_scores_and_features(Query("query", ""), unscored)
            blocks.append(fill_missing_features(signal, inputs, dict(enumerate(block_documents))))
    return documents, np.concatenate(blocks) if blocks else None
