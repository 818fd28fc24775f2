"""Candidates without stored features: the first ones are encoded, the others keep their position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.common.values import items_at, without_empty, without_none
from rerank.documents.records import Document
from rerank.scoring.scorer import ReadDocuments, Scorer, ScoringInput
from rerank.scoring.timer import StageTimer


@dataclass(frozen=True)
class ScorableInput:
    """The m of n candidates to score.

    inputs:   these m candidates.
    scorable: (n,) bool, True for these m candidates.
    encoded:  number of documents whose features are computed.
    skipped:  number of documents without features that are not scored.
    """

    inputs: ScoringInput
    scorable: NDArray[np.bool_]
    encoded: int = 0
    skipped: int = 0

    @property
    def without_features(self) -> dict[str, int]:
        """The numbers above zero, with the names that answers and the log give them."""
        return without_empty({"encoded": self.encoded, "unscored": self.skipped})


def select_scorable(
    scorer: Scorer, inputs: ScoringInput, timer: StageTimer, owned: NDArray[np.bool_] | None = None
) -> ScorableInput:
    """Choose the candidates to score, and read the documents to encode.

    Candidates with stored features are scored. Of the others, the first ones are encoded, as many as the
    timer allows; a document that does not exist is not scored.

    inputs: n candidates with their stored features, in first-stage order.
    timer:  its ``encoding_limit`` is the number of documents to encode.
    owned:  (n,) bool: the documents of the engine; others are not scored. Default: all.
    """
    scorable = np.ones(len(inputs.ids), np.bool_) if owned is None else owned.copy()
    rankers = _rankers_with_gaps(inputs, scorable)
    if not rankers:
        return ScorableInput(select_rows(inputs, np.flatnonzero(scorable)), scorable)
    limit = timer.encoding_limit(rankers)
    if limit is None and owned is None:  # all documents exist, and the scorer reads the ones to encode
        return ScorableInput(inputs, scorable)
    without_features = np.logical_or.reduce(items_at(inputs.missing, rankers)) & scorable
    positions = np.flatnonzero(without_features).tolist()
    read_documents = inputs.reader(scorer.engine)
    with timer.stage("engine"):
        documents = _read_existing(items_at(inputs.ids, positions[:limit]), read_documents)
    scorable[positions] = [inputs.ids[i] in documents for i in positions]
    read_again = partial(_documents_of, documents, read_documents)
    inputs = replace(inputs, documents=read_again, candidates=None)
    scorable_inputs = select_rows(inputs, np.flatnonzero(scorable))
    return ScorableInput(scorable_inputs, scorable, len(documents), len(positions) - len(documents))


def _rankers_with_gaps(inputs: ScoringInput, scorable: NDArray[np.bool_]) -> list[str]:
    """Return the rankers for which one of the scorable candidates has no features."""
    return [name for name, missing in inputs.missing.items() if (missing & scorable).any()]


def _read_existing(ids: Sequence[str], read_documents: ReadDocuments) -> dict[str, Document]:
    """Return id -> document, for the ids that exist."""
    return without_none(dict(zip(ids, read_documents(ids))))


def _documents_of(
    documents: Mapping[str, Document], read_documents: ReadDocuments, ids: Sequence[str]
) -> Sequence[Document | None]:
    """Return the documents with these ids. They are read only if one of them is not in ``documents``."""
    if documents.keys() >= {*ids}:
        return items_at(documents, ids)
    return read_documents(ids)


def select_rows(inputs: ScoringInput, rows: NDArray[np.int64]) -> ScoringInput:
    """Return the input of m of the n candidates.

    rows: (m,) their positions, ascending.
    """
    if len(rows) == len(inputs.ids):
        return inputs
    return replace(
        inputs,
        ids=items_at(inputs.ids, rows.tolist()),
        scores=_rows_of_columns(inputs.scores, rows),
        features=_rows_of_columns(inputs.features, rows),
        missing=_rows_of_columns(inputs.missing, rows),
        candidates=None,
    )


def _rows_of_columns(columns: Mapping[str, NDArray[Any]], rows: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    """Return name -> (m, ...) rows of each (n, ...) column."""
    return {name: column[rows] for name, column in columns.items()}
