"""Ranked candidates of one query."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rerank.errors import UsageError
from rerank.records import Document
from rerank.results import MOST_ROWS, frame_of, html_table
from rerank.text import count_of

Array = NDArray[np.float64]


class SignalScore(NamedTuple):
    """A document's score by one signal."""

    raw: float
    normalized: float
    weighted: float


@dataclass(frozen=True, slots=True)
class Hit:
    """One ranked document. Ranks count from 1.

    first_stage_rank: before reranking. found_by: retrievers, if known.
    relevance: probability that the document is relevant, or None if the stack has no calibration.

    >>> from rerank.stack.ranking import SignalScore
    >>> signals = {"tfidf": SignalScore(raw=0.8, normalized=1.0, weighted=0.4)}
    >>> hit = Hit("wolf", score=0.4, rank=1, first_stage_rank=3, signals=signals)
    >>> hit.explanation()
    {'tfidf': {'raw': 0.8, 'normalized': 1.0, 'weighted': 0.4}}
    """

    id: str
    score: float
    rank: int
    first_stage_rank: int
    signals: Mapping[str, SignalScore]
    found_by: tuple[str, ...] = ()
    relevance: float | None = None

    def explanation(self) -> dict[str, dict[str, float]]:
        """Return raw, normalized and weighted scores per signal."""
        return {name: score._asdict() for name, score in self.signals.items()}

    def as_dict(self, document: Document | None, *, explain: bool = True) -> dict[str, Any]:
        """Return JSON values. The text replaces a missing title."""
        values: dict[str, Any] = {
            "id": self.id,
            "title": (document.title or document.text[:100]) if document else "",
            "score": self.score,
            "relevance": self.relevance,
            "rank": self.rank,
            "first_stage_rank": self.first_stage_rank,
            "found_by": list(self.found_by),
        }
        return {**values, "signals": self.explanation()} if explain else values


@dataclass(frozen=True)
class Ranking:
    """Ordered candidates of one query.

    ids:     n document ids, best first.
    scores:  (n,) final scores, best first.
    order:   (n,) first-stage positions from 0, best first.
    signals: S names.
    raw, normalized, weighted: (n, S), in first-stage order.
    found:   retriever -> (n,) whether it found a document, in first-stage order.
    relevance: (n,) probabilities, in first-stage order; None: the stack has no calibration.
    removed: number of documents below a minimum probability. They are not among ``ids``.
    then:    the second phase: its first documents, best first.
    late:    whether the second phase took too long.
    scored:  (n,) whether a document was scored, in first-stage order; None: all. See :meth:`with_unscored`.

    >>> import numpy as np
    >>> from rerank import Stack
    >>> ranking = Stack.parse("bm25*0.5 + text*0.5").rank(["a", "b"], np.array([[9.0, 0.1], [8.0, 0.9]]))
    >>> ranking.ids, ranking.scores.tolist()
    (['a', 'b'], [0.5, 0.5])
    >>> ranking.top(1)[0].signals["bm25"].raw
    9.0
    """

    ids: list[str]
    scores: Array
    order: NDArray[np.intp]
    signals: tuple[str, ...]
    raw: Array
    normalized: Array
    weighted: Array
    found: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)
    relevance: Array | None = None
    removed: int = 0
    then: Ranking | None = None
    late: bool = False
    scored: NDArray[np.bool_] | None = None

    def __repr__(self) -> str:
        best = ", ".join(self.ids[:3]) + (", …" if len(self) > 3 else "")
        return f"Ranking({count_of(len(self), 'document')} by {' + '.join(self.signals)}: {best})"

    def rows(self) -> list[dict[str, Any]]:
        """Return table rows of the first hits."""
        return [
            {"rank": hit.rank, "id": hit.id, "score": hit.score, "first_stage_rank": hit.first_stage_rank}
            | {name: signal.weighted for name, signal in hit.signals.items()}
            for hit in self.top(MOST_ROWS)
        ]

    def to_frame(self) -> Any:
        """Return the rows of the first hits as a frame of pandas."""
        return frame_of(self.rows())

    def _repr_html_(self) -> str:
        rows = self.rows()
        return html_table(rows) if rows else "no document"

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, position: int) -> Hit:
        index = range(len(self))[position]
        row = int(self.order[index])
        id = self.ids[index]
        signals: dict[str, SignalScore] = {}
        is_scored = self.scored is None or bool(self.scored[row])
        if is_scored:
            cells = zip(self.raw[row].tolist(), self.normalized[row].tolist(), self.weighted[row].tolist())
            signals = {name: SignalScore(*cell) for name, cell in zip(self.signals, cells)}
        if self.then is not None and id in self._second_phase_index:
            signals |= self.then[self._second_phase_index[id]].signals
        return Hit(
            id=id,
            score=float(self.scores[index]),
            rank=index + 1,
            first_stage_rank=row + 1,
            signals=signals,
            found_by=tuple(name for name, rows in self.found.items() if rows[row]),
            relevance=None if self.relevance is None or not is_scored else float(self.relevance[row]),
        )

    def __iter__(self) -> Iterator[Hit]:
        return (self[position] for position in range(len(self)))

    def above(self, min_score: float) -> Ranking:
        """Return the ranking without documents whose probability is below ``min_score``.

        Documents that were not scored stay. Raises UsageError without probabilities.
        """
        if self.relevance is None:
            raise UsageError("the stack has no probabilities; tune it again")
        positions = np.flatnonzero(~(self.relevance[self.order] < min_score))
        return replace(
            self,
            ids=[self.ids[position] for position in positions.tolist()],
            scores=self.scores[positions],
            order=self.order[positions],
            removed=len(self) - len(positions),
        )

    def top(self, count: int) -> list[Hit]:
        """Return at most ``count`` best hits."""
        return [self[position] for position in range(min(count, len(self)))]

    @cached_property
    def _second_phase_index(self) -> dict[str, int]:
        ids = self.then.ids if self.then is not None else []
        return {id: index for index, id in enumerate(ids)}

    def with_unscored(
        self, ids: Sequence[str], scored: NDArray[np.bool_], found: Mapping[str, NDArray[np.bool_]]
    ) -> Ranking:
        """Return the ranking of n candidates. This ranking has the m candidates that were scored.

        The others keep their first-stage position, with the score of the document before them.

        ids:    n candidates in first-stage order.
        scored: (n,) bool, m of them True.
        found:  retriever -> (n,) whether it found a document.
        """
        if scored.all():
            return replace(self, found=found)
        order, scores = merge_unscored(scored, self.order, self.scores)

        def spread(values: Array) -> Array:
            rows = np.full((len(ids), values.shape[1]), np.nan)
            rows[scored] = values
            return rows

        return replace(
            self,
            ids=[ids[row] for row in order.tolist()],
            scores=scores,
            order=order,
            raw=spread(self.raw),
            normalized=spread(self.normalized),
            weighted=spread(self.weighted),
            relevance=None if self.relevance is None else spread(self.relevance[:, None])[:, 0],
            found=found,
            scored=scored,
        )

    def run(self) -> list[tuple[str, float]]:
        """Return (document id, score) pairs for ``write_run``, best first."""
        return list(zip(self.ids, self.scores.tolist()))


def merge_unscored(
    scored: NDArray[np.bool_], order: NDArray[np.intp], scores: Array
) -> tuple[NDArray[np.intp], Array]:
    """Return order and scores of n candidates. Those without a score keep their first-stage position.

    scored: (n,) bool. order: (m,) positions among the scored candidates, best first. scores: (m,).

    >>> merge_unscored(np.array([False, True, True, True]), np.array([2, 0, 1]), np.array([3.0, 2.0, 1.0]))
    (array([0, 3, 1, 2]), array([3., 3., 2., 1.]))
    """
    merged = np.arange(len(scored))
    values = np.zeros(len(scored))
    if len(order):
        merged[scored] = np.flatnonzero(scored)[order]
        values[scored] = scores
        before = np.maximum(np.cumsum(scored) - 1, 0)
        values[~scored] = scores[before[~scored]]
    return merged, values
