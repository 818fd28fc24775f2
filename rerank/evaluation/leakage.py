"""Detect training queries and documents in an evaluation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product

from rerank.common.values import as_mapping, without_empty
from rerank.documents.records import Qrels
from rerank.documents.text import count_of

PHRASES = {"trained": "trained on", "stopped": "stopped on", "tuned": "tuned on"}
"""Use of queries in a :class:`TrainingRecord` -> its text in messages."""


class TrainingRecord(dict[str, frozenset[str]]):
    """The ids of the queries and documents that a ranker or a stack has learned from, by use.

    trained:   queries that the ranker was fitted to.
    stopped:   queries that decided when its training stopped.
    tuned:     queries that the weights of a stack were fitted to.
    documents: relevant documents of all these queries.

    >>> qrels = Qrels([("q1", "d1", 1), ("q2", "d2", 1)])
    >>> record = TrainingRecord.from_queries(qrels, trained=["q1"])
    >>> record.among("trained", ["q1", "q2"]), record.among("documents", ["d1", "d2"])
    (['q1'], ['d1'])
    >>> record.to_json()
    {'documents': ['d1'], 'trained': ['q1']}
    >>> TrainingRecord.from_json(record.to_json()) == record
    True
    """

    def __init__(self, ids_by_use: Mapping[str, Iterable[str]]) -> None:
        distinct_ids = {use: frozenset(ids) for use, ids in ids_by_use.items()}
        super().__init__(without_empty(distinct_ids))

    @classmethod
    def from_queries(cls, qrels: Qrels, /, **queries_by_use: Iterable[str]) -> TrainingRecord:
        """Record queries and their relevant documents.

        queries_by_use: ids of queries for ``trained``, ``stopped`` or ``tuned``.
        """
        record = {use: set(query_ids) for use, query_ids in queries_by_use.items()}
        all_query_ids = chain.from_iterable(record.values())
        record["documents"] = set(chain.from_iterable(map(qrels.relevant, all_query_ids)))
        return cls(record)

    def __or__(self, record: Mapping[str, Iterable[str]]) -> TrainingRecord:  # type: ignore[override]
        uses = {*self, *record}
        return TrainingRecord({use: {*self.get(use, ()), *record.get(use, ())} for use in uses})

    def among(self, use: str, ids: Iterable[str]) -> list[str]:
        """Return which of these ids are recorded for a use, in their order."""
        recorded = self.get(use, frozenset())
        return [id for id in ids if id in recorded]

    def to_json(self) -> dict[str, list[str]]:
        """Return use -> its ids in ascending order, as JSON values."""
        return {use: sorted(ids) for use, ids in sorted(self.items())}

    @classmethod
    def from_json(cls, values: object) -> TrainingRecord:
        """Read the values of :meth:`to_json`; other values give an empty record."""
        ids_by_use: dict[str, Iterable[str]] = {}
        for use, ids in as_mapping(values).items():
            if isinstance(ids, list):
                ids_by_use[use] = map(str, ids)
        return cls(ids_by_use)


@dataclass(frozen=True)
class Leak:
    """The number of judged queries that a ranker or a stack has learned from.

    name:    of the ranker or the stack.
    use:     its use of the queries, a key of PHRASES.
    queries: number of these queries.
    """

    name: str
    use: str
    queries: int


def leakage(
    records: Mapping[str, TrainingRecord],
    label: str,
    queries: Iterable[str],
    uses: Sequence[str] = tuple(PHRASES),
) -> list[Leak]:
    """Return a leak for each ranker and use with one or more of the queries.

    records: ranker -> its record; the record of the weights has the name "".
    label:   name for the weights.
    queries: ids of the judged queries.
    uses:    keys of PHRASES.
    """
    query_ids = list(queries)
    leaks: dict[Leak, None] = {}
    for (name, record), use in product(records.items(), uses):
        count = len(record.among(use, query_ids))
        if count:
            leak = Leak(name or label, use, count)
            leaks[leak] = None
    return list(leaks)


def format_leakage(leaks: Iterable[Leak], queries: int) -> str:
    """Return one line. queries: number of judged queries.

    >>> format_leakage([Leak("text", "trained", 30), Leak("text", "stopped", 4)], 40)
    'text was trained on 30 and stopped on 4 of these 40 queries'
    >>> format_leakage([Leak("text", "trained", 1)], 1)
    'text was trained on 1 of this 1 query'
    """
    uses_by_name: dict[str, list[str]] = {}
    for leak in dict.fromkeys(leaks):
        uses_by_name.setdefault(leak.name, []).append(f"{PHRASES[leak.use]} {leak.queries}")
    clauses = [f"{name} was {' and '.join(uses)}" for name, uses in uses_by_name.items()]
    determiner = "this" if queries == 1 else "these"
    return f"{'; '.join(clauses)} of {determiner} {count_of(queries, 'query')}"


def without_training_documents(
    records: Iterable[TrainingRecord], qrels: Qrels
) -> tuple[Qrels, list[tuple[str, str]]]:
    """Return the judgments with grade 0 for training documents, and the pairs that were relevant before.

    So a ranker gets no credit for documents that it has learned from.

    records: the training records of the rankers and of the stack.
    """
    documents_of_records = [record.get("documents", ()) for record in records]
    training_documents = set(chain.from_iterable(documents_of_records))
    judgments: list[tuple[str, str, int]] = []
    dropped: list[tuple[str, str]] = []
    for query in qrels:
        for document, grade in qrels[query].items():
            is_relevant = grade > 0
            if is_relevant and document in training_documents:
                dropped.append((query, document))
                grade = 0
            judgments.append((query, document, grade))
    return Qrels(judgments), dropped
