"""Ranked candidates of one query."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rerank.records import Document
from rerank.results import MOST_ROWS, html_table
from rerank.text import plural

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

    def explanation(self) -> dict[str, dict[str, float]]:
        """Return raw, normalized and weighted scores per signal."""
        return {name: score._asdict() for name, score in self.signals.items()}

    def as_dict(self, document: Document | None, *, explain: bool = True) -> dict[str, Any]:
        """Return JSON values. The text replaces a missing title."""
        found: dict[str, Any] = {
            "id": self.id,
            "title": (document.title or document.text[:100]) if document else "",
            "score": self.score,
            "rank": self.rank,
            "first_stage_rank": self.first_stage_rank,
            "found_by": list(self.found_by),
        }
        return {**found, "signals": self.explanation()} if explain else found


@dataclass(frozen=True)
class Ranking:
    """Ordered candidates of one query.

    ids:     n document ids, best first.
    scores:  (n,) final scores, best first.
    order:   (n,) first-stage positions from 0, best first.
    signals: S names.
    raw, normalized, weighted: (n, S), in first-stage order.
    found:   retriever -> (n,) whether it found a document, in first-stage order.
    then:    the second phase: its first documents, best first.
    late:    whether the second phase took too long.

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
    then: Ranking | None = None
    late: bool = False

    def __repr__(self) -> str:
        best = ", ".join(self.ids[:3]) + (", …" if len(self) > 3 else "")
        return f"Ranking({plural(len(self), 'document[|s]')} by {' + '.join(self.signals)}: {best})"

    def rows(self) -> list[dict[str, Any]]:
        """Return table rows of the first hits."""
        return [
            {"rank": hit.rank, "id": hit.id, "score": hit.score, "first_stage_rank": hit.first_stage_rank}
            | {name: signal.weighted for name, signal in hit.signals.items()}
            for hit in self.top(MOST_ROWS)
        ]

    def _repr_html_(self) -> str:
        rows = self.rows()
        return html_table(rows) if rows else "no document"

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, position: int) -> Hit:
        place = range(len(self))[position]
        row = int(self.order[place])
        cells = zip(self.raw[row].tolist(), self.normalized[row].tolist(), self.weighted[row].tolist())
        signals = {name: SignalScore(*cell) for name, cell in zip(self.signals, cells)}
        if self.then is not None and place < len(self.then):
            signals |= self.then[place].signals
        return Hit(
            id=self.ids[place],
            score=float(self.scores[place]),
            rank=place + 1,
            first_stage_rank=row + 1,
            signals=signals,
            found_by=tuple(name for name, where in self.found.items() if where[row]),
        )

    def __iter__(self) -> Iterator[Hit]:
        return (self[position] for position in range(len(self)))

    def top(self, count: int) -> list[Hit]:
        """Return at most ``count`` best hits."""
        return [self[position] for position in range(min(count, len(self)))]

    def run(self) -> list[tuple[str, float]]:
        """Return (document id, score) pairs for ``write_run``, best first."""
        return list(zip(self.ids, self.scores.tolist()))
