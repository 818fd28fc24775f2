"""Candidates without stored features: the first ones are encoded, the others keep their position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.records import Document
from rerank.scoring.scorer import Scorer, ScoringInput, StageTimer


@dataclass(frozen=True)
class ScorableInput:
    """The candidates to score.

    inputs:   the m candidates that can be scored.
    scorable: (n,) bool, m of them True.
    encoded:  number of documents whose features are computed.
    skipped:  number of documents without features that are not scored.
    """

    inputs: ScoringInput
    scorable: NDArray[np.bool_]
    encoded: int = 0
    skipped: int = 0

    @property
    def without_features(self) -> dict[str, int]:
        """Return the numbers above zero, as answers and log report them."""
        counts = {"encoded": self.encoded, "unscored": self.skipped}
        return {name: count for name, count in counts.items() if count}


def select_scorable(
    scorer: Scorer, inputs: ScoringInput, timer: StageTimer, owned: NDArray[np.bool_] | None = None
) -> ScorableInput:
    """Choose the candidates to score, and read the documents to encode.

    The first candidates without features are encoded, as many as ``timer`` allows.

    inputs: n candidates with their stored features, in first-stage order.
    owned:  (n,) bool: documents of the engine; others are not scored. Default: all.
    """
    scorable = np.ones(len(inputs.ids), np.bool_) if owned is None else owned.copy()
    rankers = [name for name, missing in inputs.missing.items() if (missing & scorable).any()]
    limit = timer.encoding_limit(rankers) if rankers else None
    if not rankers or (limit is None and owned is None):
        return ScorableInput(_select(inputs, scorable), scorable)
    without_features = np.logical_or.reduce([inputs.missing[name] for name in rankers]) & scorable
    positions = np.flatnonzero(without_features).tolist()
    ids = [inputs.ids[i] for i in positions[:limit]]
    read_documents = inputs.documents or scorer.engine.get
    documents: dict[str, Document] = {}
    with timer.stage("engine"):
        for id, document in zip(ids, read_documents(ids)):
            if document is not None:
                documents[id] = document
    for position in positions:
        scorable[position] = inputs.ids[position] in documents

    def read_again(ids: Sequence[str]) -> Sequence[Document | None]:
        if documents.keys() >= {*ids}:
            return [documents[id] for id in ids]
        return read_documents(ids)

    selected = _select(replace(inputs, documents=read_again, candidates=None), scorable)
    return ScorableInput(selected, scorable, len(documents), len(positions) - len(documents))


def _select(inputs: ScoringInput, scorable: NDArray[np.bool_]) -> ScoringInput:
    return select_rows(inputs, np.flatnonzero(scorable))


def select_rows(inputs: ScoringInput, rows: NDArray[np.int64]) -> ScoringInput:
    """Return the input of some of n candidates. rows: their positions, ascending."""
    if len(rows) == len(inputs.ids):
        return inputs

    def select(columns: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        return {name: values[rows] for name, values in columns.items()}

    return replace(
        inputs,
        ids=[inputs.ids[i] for i in rows.tolist()],
        scores=select(inputs.scores),
        features=select(inputs.features),
        missing=select(inputs.missing),
        candidates=None,
    )
