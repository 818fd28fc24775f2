"""Detect training queries and documents in an evaluation."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from rerank.records import Qrels
from rerank.text import plural

HOW = {"trained": "trained on", "stopped": "stopped on", "tuned": "tuned on"}

_BYTES = 5


class TrainingRecord(dict[str, frozenset[bytes]]):
    """40-bit hashes of ids used in training, for privacy.

    trained:   queries for fitting.
    stopped:   queries for early stopping.
    tuned:     queries for stack weights.
    documents: relevant documents of these queries.

    >>> qrels = Qrels([("q1", "d1", 1), ("q2", "d2", 1)])
    >>> record = TrainingRecord.of(qrels, trained=["q1"])
    >>> record.among("trained", ["q1", "q2"]), record.among("documents", ["d1", "d2"])
    (['q1'], ['d1'])
    >>> TrainingRecord.from_json(record.to_json()) == record
    True
    """

    def __init__(self, hashes: Mapping[str, Iterable[bytes]]) -> None:
        kept = ((name, frozenset(ids)) for name, ids in hashes.items())
        super().__init__((name, ids) for name, ids in kept if ids)

    @classmethod
    def of(cls, qrels: Qrels, /, **queries: Iterable[str]) -> TrainingRecord:
        """Record queries and their relevant documents."""
        queries = {name: list(ids) for name, ids in queries.items()}
        relevant = {d for ids in queries.values() for query in ids for d in qrels.relevant(query)}
        return cls({name: map(_hash, ids) for name, ids in (queries | {"documents": relevant}).items()})

    def __or__(self, other: Mapping[str, Iterable[bytes]]) -> TrainingRecord:  # type: ignore[override]
        return TrainingRecord({name: {*self.get(name, ()), *other.get(name, ())} for name in {*self, *other}})

    def among(self, kind: str, ids: Iterable[str]) -> list[str]:
        """Return the recorded ids, in input order."""
        hashes = self.get(kind, frozenset())
        return [id for id in ids if _hash(id) in hashes] if hashes else []

    def to_json(self) -> dict[str, str]:
        """Return sorted hashes in base64, by kind."""
        return {name: base64.b64encode(b"".join(sorted(ids))).decode() for name, ids in sorted(self.items())}

    @classmethod
    def from_json(cls, values: Any) -> TrainingRecord:
        """Read :meth:`to_json` values; other values give an empty record."""
        hashes = {}
        try:
            for name, text in values.items():
                data = base64.b64decode(text, validate=True)
                hashes[name] = [data[i : i + _BYTES] for i in range(0, len(data), _BYTES)]
        except (ValueError, TypeError, AttributeError):
            return cls({})
        return cls(hashes)


def _hash(id: str) -> bytes:
    return blake2b(id.encode("utf-8", "surrogatepass"), digest_size=_BYTES).digest()


@dataclass(frozen=True)
class Leak:
    """The number of judged queries used to train, stop or tune a ranker or stack."""

    of: str
    how: str
    queries: int


def leakage(
    records: Mapping[str, TrainingRecord],
    label: str,
    queries: Iterable[str],
    how: Sequence[str] = tuple(HOW),
) -> list[Leak]:
    """Return leaks. records: ranker -> record; "" -> record of the weights."""
    queries = list(queries)
    leaks = (
        Leak(name or label, kind, len(record.among(kind, queries)))
        for name, record in records.items()
        for kind in how
    )
    return list(dict.fromkeys(leak for leak in leaks if leak.queries))


def format_leakage(leaks: Iterable[Leak], queries: int) -> str:
    """Return one line.

    >>> format_leakage([Leak("text", "trained", 30), Leak("text", "stopped", 4)], 40)
    'text was trained on 30 and stopped on 4 of these 40 queries'
    >>> format_leakage([Leak("text", "trained", 1)], 1)
    'text was trained on 1 of this 1 query'
    """
    by: dict[str, list[str]] = {}
    for leak in dict.fromkeys(leaks):
        by.setdefault(leak.of, []).append(f"{HOW[leak.how]} {leak.queries}")
    each = "; ".join(f"{of} was {' and '.join(how)}" for of, how in by.items())
    return f"{each} of {'these' if queries != 1 else 'this'} {plural(queries, 'quer[y|ies]')}"


def without_training_documents(
    records: Iterable[TrainingRecord], qrels: Qrels
) -> tuple[Qrels, list[tuple[str, str]]]:
    """Return judgments with grade 0 for training documents, and these (query, document) pairs."""
    relevant = {d for query in qrels for d in qrels.relevant(query)}
    known = {d for record in records for d in record.among("documents", relevant)}
    dropped = [(query, d) for query in qrels for d in qrels.relevant(query) if d in known]
    kept = ((q, d, min(grade, 0) if d in known else grade) for q in qrels for d, grade in qrels[q].items())
    return Qrels(kept), dropped
