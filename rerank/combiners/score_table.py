"""The score table for tuning."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.errors import TrainingError, UsageError

Array = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ScoreTable:
    """Scores of Q queries' candidates by S signals.

    signals:      S names.
    query_ids:    Q ids.
    document_ids: ascending ids per query.
    scores:       (Q, C, S) float64 raw scores, padded with NaN.
    counts:       (Q,) candidates, can be 0.
    cases:        (Q,) category cases (``rerank.combiners.linear.CASES``); a query can have several.
    """

    signals: tuple[str, ...]
    query_ids: tuple[str, ...]
    document_ids: tuple[tuple[str, ...], ...]
    scores: Array
    counts: Integers
    cases: tuple[str, ...] = ()

    @classmethod
    def build(
        cls,
        signals: Sequence[str],
        rows: Iterable[tuple[str, Sequence[str], NDArray[Any]]],
        *,
        cases: Sequence[str] = (),
    ) -> ScoreTable:
        """Build from (query id, n document ids, (n, S) raw scores), documents in any order.

        cases: one per row.

        Raises ValueError for wrong shapes, TrainingError for non-finite scores.
        """
        queries: list[str] = []
        ids: list[tuple[str, ...]] = []
        blocks: list[Array] = []
        for query, documents, raw in rows:
            block = np.asarray(raw, dtype=np.float64).reshape(len(documents), len(signals))
            wrong = ~np.isfinite(block)
            if wrong.any():
                name = signals[int(wrong.any(axis=0).argmax())]
                raise TrainingError(f"query {query!r}: a score of {name} is not finite; train {name} again")
            order = sorted(range(len(documents)), key=documents.__getitem__)
            queries.append(query)
            ids.append(tuple(documents[position] for position in order))
            blocks.append(block[order])
        counts = np.array([len(block) for block in blocks], dtype=np.int64)
        scores = np.full((len(blocks), int(counts.max(initial=0)), len(signals)), np.nan)
        for query_index, block in enumerate(blocks):
            scores[query_index, : len(block)] = block
        return cls(tuple(signals), tuple(queries), tuple(ids), scores, counts, tuple(cases))

    def __len__(self) -> int:
        return len(self.query_ids)

    def of(self, case: str) -> ScoreTable:
        """Return the rows of one case."""
        rows = [row for row, found in enumerate(self.cases) if found == case]
        return replace(
            self,
            query_ids=tuple(self.query_ids[row] for row in rows),
            document_ids=tuple(self.document_ids[row] for row in rows),
            scores=self.scores[rows],
            counts=self.counts[rows],
            cases=(case,) * len(rows),
        )

    def only(self, signals: Sequence[str]) -> ScoreTable:
        """Return the table with these signals, in this order. Raises UsageError for an unknown one."""
        for name in signals:
            if name not in self.signals:
                raise UsageError(f"signal {name} was not scored; there are {', '.join(self.signals)}")
        columns = [self.signals.index(name) for name in signals]
        return replace(self, signals=tuple(signals), scores=self.scores[:, :, columns])
