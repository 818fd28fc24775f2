"""How many of the best hits are judged. Measures count the other hits as irrelevant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rerank.documents.records import Qrels
from rerank.documents.text import count_of

TOP = 10
"""Ranks from 1 to this one are counted: judged@10."""


@dataclass(frozen=True)
class JudgedHits:
    """Hits at the ranks from 1 to :data:`TOP`, and how many of them have a judgment, also of grade 0."""

    judged: int = 0
    hits: int = 0

    @property
    def share(self) -> float | None:
        """The share of these hits that is judged: judged@10. None without hits."""
        return self.judged / self.hits if self.hits else None

    @property
    def unjudged_share(self) -> float:
        """The share of these hits that is not judged; 0 without hits."""
        return (self.hits - self.judged) / self.hits if self.hits else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the two counts and the share of judged hits, as JSON values."""
        return {"judged": self.judged, "hits": self.hits, "share": self.share}

    def describe_unjudged(self, label: str) -> str:
        """Return the number of hits without a judgment, as a clause.

        >>> JudgedHits(266, 1500).describe_unjudged("bm25")
        '1,234 of 1,500 hits at ranks 1 to 10 of bm25 are not judged'
        """
        hits = count_of(self.hits, "hit")
        return f"{self.hits - self.judged:,} of {hits} at ranks 1 to {TOP} of {label} are not judged"


def count_judged(run: Mapping[str, Sequence[str]], qrels: Qrels) -> JudgedHits:
    """Count the judged hits of a run: query id -> document ids, best first.

    Only queries with a relevant document are counted, as in the measures.

    >>> count_judged({"q1": ["a", "b", "c"]}, Qrels([("q1", "a", 1), ("q1", "c", 0)]))
    JudgedHits(judged=2, hits=3)
    """
    judged = 0
    hits = 0
    for query in qrels:
        if not qrels.relevant(query):
            continue
        best = run.get(query, ())[:TOP]
        judged += sum(document in qrels[query] for document in best)
        hits += len(best)
    return JudgedHits(judged, hits)


def has_irrelevant(qrels: Qrels) -> bool:
    """Return whether a document is judged as irrelevant. Otherwise, only relevant documents are listed."""
    return any(grade <= 0 for grades in qrels.values() for grade in grades.values())
