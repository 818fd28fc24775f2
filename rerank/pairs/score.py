"""Scores of document pairs: the mean with each document as the query."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from rerank.common.errors import InputError
from rerank.common.progress import SILENT, Progress
from rerank.documents.records import Document, Query
from rerank.engines.base import Engine
from rerank.rankers.base import Ranker
from rerank.scoring.encoding import fill_missing_features
from rerank.scoring.scorer import Scorer, ScoringInput
from rerank.scoring.vector_cache import encode_query
from rerank.stack.signals import Signal

_BLOCK = 1000  # documents per request


@runtime_checkable
class Relates(Protocol):
    """A ranker with its own symmetric score of two documents, for example a classifier of pairs.

    threshold: smallest score of related documents.
    """

    threshold: float

    def relatedness(self, a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.float64]:
        """Return the (n,) scores of n pairs.

        a, b: (n, width) features of the first and of the second documents. Exchanging them changes nothing.
        """


def score_pairs(
    engine: Engine, signal: Signal, pairs: Sequence[tuple[str, str]], progress: Progress = SILENT
) -> NDArray[np.float64]:
    """Return (n,) scores of n pairs of document ids.

    The score of a pair is the mean of two scores: of the second document with the first one as the query, and
    the other way round. A ranker that is a :class:`Relates` computes it itself.

    Missing features are computed.

    Raises InputError for an unknown id.
    """
    ids = sorted({*chain.from_iterable(pairs)})
    scorer = Scorer(engine, (signal,), engine.first_stages[0], infer=False)
    documents, features = _read(scorer, ids)
    row_of = dict(zip(ids, range(len(ids))))
    if features is not None and isinstance(signal, Relates):
        first_rows = [row_of[first] for first, _ in pairs]
        second_rows = [row_of[second] for _, second in pairs]
        return signal.relatedness(features[first_rows], features[second_rows])

    scores = np.zeros(len(pairs))
    pairs_of = _pairs_by_document(pairs)
    label = f"relate by {signal.name}"
    for id, positions_by_partner in progress.over(pairs_of.items(), label, len(pairs_of), "doc"):
        partner_ids = sorted(positions_by_partner)
        partner_features = None
        if features is not None:
            partner_features = features[[row_of[partner] for partner in partner_ids]]
        partner_scores = _score_partners(scorer, documents[id], partner_ids, partner_features)
        for partner, score in zip(partner_ids, partner_scores.tolist()):
            np.add.at(scores, positions_by_partner[partner], score / 2)  # both, if a pair is of one document
    return scores


def _score_partners(
    scorer: Scorer, document: Document, partner_ids: list[str], features: NDArray[Any] | None
) -> NDArray[np.float64]:
    """Return the (n,) scores of n documents, with another document as the query.

    features: (n, width) their features; None: the signal is not a ranker.
    """
    query = Query(document.id, document.content, document.categories, document.lang)
    (signal,) = scorer.signals
    if features is not None and isinstance(signal, Ranker):
        with_known_categories, _ = scorer.with_known_categories(query)
        return signal.score(encode_query(signal, with_known_categories), features)
    return scorer.score(query, ScoringInput(partner_ids, {})).raw[:, 0]


def _pairs_by_document(pairs: Sequence[tuple[str, str]]) -> dict[str, dict[str, list[int]]]:
    """Return document -> each document that it is paired with -> the positions of these pairs.

    Each pair has two entries, one from each side.
    """
    pairs_of: dict[str, dict[str, list[int]]] = {}
    for position, (first, second) in enumerate(pairs):
        pairs_of.setdefault(first, {}).setdefault(second, []).append(position)
        pairs_of.setdefault(second, {}).setdefault(first, []).append(position)
    return pairs_of


def _read(scorer: Scorer, ids: list[str]) -> tuple[dict[str, Document], NDArray[Any] | None]:
    """Return id -> document, and the (n, width) features of n documents if the signal is a ranker.

    Raises InputError for an unknown id.
    """
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
            features = inputs.features[signal.name]
            is_missing = inputs.missing[signal.name]
            by_position = dict(enumerate(block_documents))
            blocks.append(fill_missing_features(signal, features, is_missing, by_position))
    if not blocks:
        return documents, None
    return documents, np.concatenate(blocks)
