"""Ranked candidates of one query."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rerank.common.arrays import scatter
from rerank.common.errors import UsageError
from rerank.common.results import MOST_ROWS, frame_of, html_table
from rerank.common.values import items_at
from rerank.documents.records import Document, Query
from rerank.documents.text import count_of
from rerank.stack.relevance import RelevanceModel

Array = NDArray[np.float64]


class SignalScore(NamedTuple):
    """A document's score by one signal.

    raw:        as the signal computes it.
    normalized: within the candidates of the query.
    weighted:   normalized score times weight. The final score is the sum over the signals.
    """

    raw: float
    normalized: float
    weighted: float


@dataclass(frozen=True, slots=True)
class Hit:
    """One ranked document of an answer. Ranks count from 1.

    id:               of the document.
    score:            final score.
    rank:             after reranking.
    first_stage_rank: before reranking.
    signals:          signal -> score; empty for a document that was not scored.
    found_by:         the retrievers that found the document, if they are recorded.
    relevance:        probability that the document is relevant, or None if the stack has no calibration.

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
        """Return signal -> its raw, normalized and weighted score, as JSON values."""
        return {name: score._asdict() for name, score in self.signals.items()}

    def as_dict(self, document: Document | None, *, explain: bool = True) -> dict[str, Any]:
        """Return the hit as JSON values.

        document: for the title; without a title, the beginning of the text replaces it.
        explain:  include the scores of each signal.
        """
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
    """Ordered candidates of one query. It is a sequence of :class:`Hit`.

    candidates:   n document ids, in first-stage order.
    scores:       (n,) final scores, best first.
    order:        (n,) first-stage positions from 0, best first.
    signals:      S names.
    raw, normalized, weighted: (n, S) scores, in first-stage order.
    retrieved_by: retriever -> (n,) whether it found a document, in first-stage order.
    query, relevance_model: give the probabilities :attr:`relevance`; None: there are none.
    removed:      number of documents below a minimum probability. ``scores`` and ``order`` do not have them.
    second_phase: the ranking of the second phase, of the first documents only.
    late:         whether the second phase took too long, so that the order is the one of the stack.
    scored:       (n,) whether a document was scored, in first-stage order; None: all. See
        :meth:`with_unscored`.

    >>> import numpy as np
    >>> from rerank import Stack
    >>> ranking = Stack.parse("bm25*0.5 + text*0.5").rank(["a", "b"], np.array([[9.0, 0.1], [8.0, 0.9]]))
    >>> ranking.ids, ranking.scores.tolist()
    (['a', 'b'], [0.5, 0.5])
    >>> ranking.top(1)[0].signals["bm25"].raw
    9.0
    """

    candidates: Sequence[str]
    scores: Array
    order: NDArray[np.intp]
    signals: tuple[str, ...]
    raw: Array
    normalized: Array
    weighted: Array
    retrieved_by: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)
    query: Query | None = None
    relevance_model: RelevanceModel | None = None
    removed: int = 0
    second_phase: Ranking | None = None
    late: bool = False
    scored: NDArray[np.bool_] | None = None

    def __repr__(self) -> str:
        best = ", ".join(self.best_ids(3)) + (", …" if len(self) > 3 else "")
        return f"Ranking({count_of(len(self), 'document')} by {' + '.join(self.signals)}: {best})"

    def rows(self) -> list[dict[str, Any]]:
        """Return one table row for each of the first hits, with its weighted score by each signal."""
        rows: list[dict[str, Any]] = []
        for hit in self.top(MOST_ROWS):
            row = {
                "rank": hit.rank,
                "id": hit.id,
                "score": hit.score,
                "first_stage_rank": hit.first_stage_rank,
            }
            for name, signal in hit.signals.items():
                row[name] = signal.weighted
            rows.append(row)
        return rows

    def to_frame(self) -> Any:
        """Return the rows of the first hits as a frame of pandas."""
        return frame_of(self.rows())

    def _repr_html_(self) -> str:
        rows = self.rows()
        return html_table(rows) if rows else "no document"

    # Only some callers read all ids or the probabilities, so they are computed when they are read.

    @cached_property
    def ids(self) -> list[str]:
        """The document ids, best first."""
        return self.best_ids(len(self))

    def best_ids(self, count: int) -> list[str]:
        """Return at most ``count`` ids, best first."""
        return items_at(self.candidates, self.order[:count].tolist())

    @property
    def is_calibrated(self) -> bool:
        """Whether the ranking has probabilities of relevance."""
        model = self.relevance_model
        return self.query is not None and model is not None and model.calibration is not None

    @cached_property
    def relevance(self) -> Array | None:
        """(n,) probabilities, in first-stage order, NaN if not scored; None: the stack has no calibration."""
        if self.query is None or self.relevance_model is None:
            return None
        if self.scored is None:
            return self.relevance_model.relevance(self.raw, self.query)
        probabilities = self.relevance_model.relevance(self.raw[self.scored], self.query)
        if probabilities is None:
            return None
        return scatter(probabilities, self.scored, len(self.scored), np.nan)

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, position: int) -> Hit:
        index = range(len(self))[position]  # raises IndexError; negative positions count from the end
        return self.explain(index, float(self.scores[index]), index + 1)

    def explain(self, index: int, score: float, rank: int) -> Hit:
        """Return the hit at an index of this ranking, with its score and rank on a page."""
        row = int(self.order[index])
        id = self.candidates[row]
        is_scored = self.scored is None or bool(self.scored[row])
        signals = self._signal_scores(row) if is_scored else {}
        if self.second_phase is not None and id in self._second_phase_index:
            signals |= self.second_phase[self._second_phase_index[id]].signals
        relevance = None
        if self.relevance is not None and is_scored:
            relevance = float(self.relevance[row])
        found_by = [name for name, is_found in self.retrieved_by.items() if is_found[row]]
        return Hit(
            id=id,
            score=score,
            rank=rank,
            first_stage_rank=row + 1,
            signals=signals,
            found_by=tuple(found_by),
            relevance=relevance,
        )

    def _signal_scores(self, row: int) -> dict[str, SignalScore]:
        """Return signal -> score of the document at a first-stage position."""
        cells = zip(self.raw[row].tolist(), self.normalized[row].tolist(), self.weighted[row].tolist())
        return {name: SignalScore(*cell) for name, cell in zip(self.signals, cells)}

    def __iter__(self) -> Iterator[Hit]:
        return (self[position] for position in range(len(self)))

    def above(self, min_score: float) -> Ranking:
        """Return the ranking without the documents whose probability of relevance is below ``min_score``.

        Documents that were not scored have no probability, and stay. Raises UsageError if the stack has no
        calibration.
        """
        if self.relevance is None:
            raise UsageError("the stack has no probabilities; tune it again")
        positions = np.flatnonzero(~(self.relevance[self.order] < min_score))
        return replace(
            self,
            scores=self.scores[positions],
            order=self.order[positions],
            removed=len(self) - len(positions),
        )

    def top(self, count: int) -> list[Hit]:
        """Return at most ``count`` best hits."""
        return list(islice(self, count))

    @cached_property
    def _second_phase_index(self) -> dict[str, int]:
        ids = self.second_phase.ids if self.second_phase is not None else []
        return {id: index for index, id in enumerate(ids)}

    def with_unscored(
        self, ids: Sequence[str], scored: NDArray[np.bool_], retrieved_by: Mapping[str, NDArray[np.bool_]]
    ) -> Ranking:
        """Return the ranking of n candidates. This ranking has the m candidates that were scored.

        The others keep their first-stage position, with the score of the document before them.

        ids:          n candidates in first-stage order.
        scored:       (n,) bool, m of them True.
        retrieved_by: retriever -> (n,) whether it found a document.
        """
        if scored.all():
            return replace(self, retrieved_by=retrieved_by)
        order, scores = merge_unscored(scored, self.order, self.scores)
        spread = partial(scatter, rows=scored, count=len(ids), fill=np.nan)
        return replace(
            self,
            candidates=ids,
            scores=scores,
            order=order,
            raw=spread(self.raw),
            normalized=spread(self.normalized),
            weighted=spread(self.weighted),
            retrieved_by=retrieved_by,
            scored=scored,
        )

    def run(self) -> list[tuple[str, float]]:
        """Return pairs of document id and score, best first, for :func:`rerank.formats.trec.write_run`."""
        return list(zip(self.ids, self.scores.tolist()))


def merge_unscored(
    scored: NDArray[np.bool_], order: NDArray[np.intp], scores: Array
) -> tuple[NDArray[np.intp], Array]:
    """Return the order and the scores of n candidates if only m of them are scored.

    The others keep their first-stage position, with the score of the document before them.

    scored: (n,) bool, m of them True.
    order:  (m,) positions among the scored candidates, best first.
    scores: (m,) scores, best first.

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
