"""The score table for tuning."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.common.errors import TrainingError, UsageError
from rerank.common.values import items_at, items_not_in

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ScoreRow:
    """The n candidates of a query.

    query:  its id.
    ids:    n document ids, ascending.
    scores: (n, S) raw scores by the signals of the table.
    case:   source of the query's categories, one of :data:`rerank.stack.linear.CASES`; "" if unknown.
    """

    query: str
    ids: tuple[str, ...]
    scores: Array
    case: str = ""


@dataclass(frozen=True, eq=False)
class ScoreTable:
    """Scores of the candidates of queries by S signals: all that the tuner needs.

    signals: S names.
    rows:    one per query, or one per query and category case.
    """

    signals: tuple[str, ...]
    rows: tuple[ScoreRow, ...]

    @classmethod
    def build(cls, signals: Sequence[str], rows: Iterable[tuple[Any, ...]]) -> ScoreTable:
        """Build a table.

        rows: of each query its id, n document ids in any order, (n, S) raw scores and, if it is known, the
            case of its categories.

        Raises ValueError for wrong shapes, TrainingError for non-finite scores.
        """
        built = []
        for query, documents, raw, *case in rows:
            scores = np.asarray(raw, dtype=np.float64).reshape(len(documents), len(signals))
            wrong = ~np.isfinite(scores)
            if wrong.any():
                name = signals[int(wrong.any(axis=0).argmax())]
                raise TrainingError(f"query {query!r}: a score of {name} is not finite; train {name} again")
            order = sorted(range(len(documents)), key=documents.__getitem__)
            built.append(ScoreRow(query, tuple(items_at(documents, order)), scores[order], *case))
        return cls(tuple(signals), tuple(built))

    def rows_of_case(self, case: str) -> ScoreTable:
        """Return the table with only the rows of this category case."""
        return replace(self, rows=tuple(row for row in self.rows if row.case == case))

    def select_signals(self, signals: Sequence[str]) -> ScoreTable:
        """Return the table with only these signals, in this order.

        Raises UsageError for a signal that was not scored.
        """
        unscored = items_not_in(signals, self.signals)
        if unscored:
            raise UsageError(f"signal {unscored[0]} was not scored; there are {', '.join(self.signals)}")
        columns = list(map(self.signals.index, signals))
        rows = (replace(row, scores=row.scores[:, columns]) for row in self.rows)
        return ScoreTable(tuple(signals), tuple(rows))
