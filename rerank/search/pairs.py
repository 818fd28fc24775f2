"""Scores of document pairs: the mean with each document as the query."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from rerank.engines.base import Engine, SearchRequest
from rerank.errors import InputError
from rerank.progress import Progress
from rerank.rankers.base import Ranker
from rerank.records import Document, Query
from rerank.search.scorer import Scorer, ScoringInput
from rerank.stack.signals import RankerSignal, Signal

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

    >>> import tempfile
    >>> from rerank import Workspace
    >>> from rerank.stack.signals import LexicalSignal
    >>> engine = Workspace.create(tempfile.mkdtemp() + "/ws", lang="en").engine
    >>> texts = {"a": "red fox", "b": "red fox", "c": "elm"}
    >>> _ = engine.write(Document(name, text=text) for name, text in texts.items())
    >>> score_pairs(engine, LexicalSignal("tfidf"), [("a", "b"), ("c", "a")]).round(6).tolist()
    [1.0, 0.0]
    """
    progress = progress or Progress()
    ids = sorted({one for pair in pairs for one in pair})
    documents: dict[str, Document] = {}
    for start in range(0, len(ids), _BLOCK):
        block = ids[start : start + _BLOCK]
        for name, document in zip(block, engine.get(block)):
            if document is None:
                raise InputError(f"unknown document {name!r}; run `rerank ingest` with it")
            documents[name] = document
    features: NDArray[Any] | None = None
    if isinstance(signal, RankerSignal):
        features = _features(engine, signal.ranker, documents)
    place = {name: i for i, name in enumerate(ids)}
    if features is not None and isinstance(signal, RankerSignal) and isinstance(signal.ranker, Relates):
        first, second = (features[[place[pair[side]] for pair in pairs]] for side in (0, 1))
        return signal.ranker.relatedness(first, second)
    partners: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for number, (a, b) in enumerate(pairs):
        partners[a].append((number, b))
        partners[b].append((number, a))
    scorer = Scorer(engine, (signal,), engine.first_stages[0], infer=False)
    scores = np.zeros(len(pairs))
    for name, of in progress.over(partners.items(), f"relate by {signal.name}", len(partners), "doc"):
        others = sorted({other for _, other in of})
        given = ScoringInput(others, {})
        if features is not None:
            rows = np.array([place[other] for other in others], np.int64)
            there = {signal.name: np.zeros(len(others), np.bool_)}
            nothing = {scorer.first_stage: np.zeros(len(others))}
            given = ScoringInput(others, nothing, {signal.name: features[rows]}, there)
        document = documents[name]
        query = Query(document.id, document.content, document.categories, document.lang)
        at = dict(zip(others, scorer.score(query, given).raw[:, 0].tolist()))
        for number, other in of:
            scores[number] += at[other] / 2
    return scores


def _features(engine: Engine, ranker: Ranker, documents: Mapping[str, Document]) -> NDArray[Any]:
    """Return (n, width) features by ascending id."""
    blocks: list[NDArray[Any]] = []
    ids = list(documents)
    for start in range(0, len(ids), _BLOCK):
        block = ids[start : start + _BLOCK]
        versions = {ranker.name: ranker.version}
        found = engine.find(SearchRequest("", engine.first_stages[0], ids=block, features=versions))
        order = np.argsort(found.ids)
        stored, missing = found.features[ranker.name][order], found.missing[ranker.name][order]
        if missing.any():
            fresh = ranker.encode_documents([documents[block[i]] for i in np.flatnonzero(missing).tolist()])
            if stored.shape[1:] != fresh.shape[1:]:  # no document has features of this version
                stored = np.zeros((len(block), *fresh.shape[1:]), fresh.dtype)
            stored[missing] = fresh
        blocks.append(stored)
    return np.concatenate(blocks)
