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
    ids = sorted({one for pair in pairs for one in pair})
    scorer = Scorer(engine, (signal,), engine.first_stages[0], infer=False)
    documents, features = _read(scorer, ids)
    place = {name: i for i, name in enumerate(ids)}
    if features is not None and isinstance(signal, Relates):
        first, second = (features[[place[pair[side]] for pair in pairs]] for side in (0, 1))
        return signal.relatedness(first, second)
    partners: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for number, (a, b) in enumerate(pairs):
        partners[a].append((number, b))
        partners[b].append((number, a))
    scores = np.zeros(len(pairs))
    for name, of in progress.over(partners.items(), f"relate by {signal.name}", len(partners), "doc"):
        others, document = sorted({other for _, other in of}), documents[name]
        query = Query(document.id, document.content, document.categories, document.lang)
        if features is not None and isinstance(signal, Ranker):
            vector = encode_query(signal, scorer.with_known_categories(query)[0])
            found = signal.score(vector, features[[place[other] for other in others]])
        else:
            found = scorer.score(query, ScoringInput(others, {})).raw[:, 0]
        at = dict(zip(others, found.tolist()))
        for number, other in of:
            scores[number] += at[other] / 2
    return scores


def _read(scorer: Scorer, ids: list[str]) -> tuple[dict[str, Document], NDArray[Any] | None]:
    """Return documents, and the features of the ranker, if it is one."""
    documents: dict[str, Document] = {}
    blocks: list[NDArray[Any]] = []
    for start in range(0, len(ids), _BLOCK):
        block = ids[start : start + _BLOCK]
        read = scorer.engine.get(block)
        for name, document in zip(block, read):
            if document is None:
                raise InputError(f"unknown document {name!r}; run `rerank ingest` with it")
            documents[name] = document
        (signal,) = scorer.signals
        if isinstance(signal, Ranker):
            unscored = ScoringInput(block, {scorer.first_stage: np.zeros(len(block))})
            known = scorer.load_missing_scores_and_features(Query("query", ""), unscored)
            blocks.append(fill_missing_features(signal, known, dict(enumerate(read))))
    return documents, np.concatenate(blocks) if blocks else None
