"""The forms in which the Python API accepts queries, judgments and pairs."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, TypeVar

from rerank.common.errors import InputError, UsageError
from rerank.documents.records import LabeledPair, Qrels, Query, integral_grade, record_id, shorten
from rerank.documents.text import query_key
from rerank.formats import read_labeled_pairs, read_qrels, read_queries
from rerank.formats.beir import QUERY_COLUMNS, query_from_fields
from rerank.formats.frames import JUDGMENTS, QUERIES, is_tabular, read_frame
from rerank.formats.qrels import COLUMNS
from rerank.formats.tables import normalize_column

Value = TypeVar("Value")
File = str | os.PathLike[str]

Queries = Iterable[Query | Mapping[str, Any]] | Mapping[str, str] | File
"""Queries or their fields as in a file, their texts by their ids, a file, a frame, or a data set."""

Judgments = (
    Mapping[str, Mapping[str, int]] | Iterable[tuple[str, str, int]] | Iterable[Mapping[str, Any]] | File
)
"""Judgments, as :class:`rerank.Qrels`, as its arguments, or as records, a file, a frame, or a data set."""

_JUDGMENT_COLUMNS = dict(zip(("query_id", "doc_id", "grade"), COLUMNS))

Pairs = Sequence[LabeledPair] | Iterable[tuple[str, str, bool]] | File
"""Labeled pairs of documents, as tuples of two ids and a label, or a file of them."""


def as_list(values: Any) -> list[Any]:
    """Return a list; a single value is its only item, None is empty.

    >>> as_list("text"), as_list(("text", "meta"))
    (['text'], ['text', 'meta'])
    """
    if is_tabular(values):
        return [values]
    if isinstance(values, Iterable) and not isinstance(values, (str, os.PathLike, Mapping)):
        return list(values)
    return [] if values is None else [values]


def as_queries(queries: Queries, *, ignore_categories: bool = False) -> list[Query]:
    """Return queries as a list. Raises UsageError, also for a repeated id.

    ignore_categories: return them without categories.

    >>> as_queries({"q1": "wolf"}) == as_queries([{"_id": "q1", "text": "wolf"}]) == [Query("q1", "wolf")]
    True
    """
    ids: set[str] = set()
    unique_queries: list[Query] = []
    for position, value in enumerate(_query_values(queries)):
        query = _as_query(value, position)
        if query.id in ids:
            raise UsageError(f"queries: the id {query.id!r} occurs twice; give each query its own id")
        ids.add(query.id)
        unique_queries.append(replace(query, categories=()) if ignore_categories else query)
    return unique_queries


def _query_values(queries: Queries) -> list[Any]:
    """Return one value per query, each a Query or its fields."""
    if isinstance(queries, (str, os.PathLike)):
        return as_list(read_queries(queries))
    if isinstance(queries, Mapping) and "_id" not in queries:
        texts_by_id = queries.items()
        return [Query(id, text) if isinstance(text, str) else text for id, text in texts_by_id]
    if is_tabular(queries):
        return list(read_frame(queries, QUERIES, QUERY_COLUMNS))
    return as_list(queries)


def _as_query(query: object, position: int) -> Query:
    if isinstance(query, Query):
        return query
    if not isinstance(query, Mapping):
        raise UsageError(f"queries: {shorten(query)} is not a Query; give queries, texts by id, or a file")
    try:
        return query_from_fields(f"queries[{position}]", query)
    except InputError as error:
        raise UsageError(str(error)) from None


def as_qrels(qrels: Judgments, queries: Sequence[Query] = ()) -> Qrels:
    """Return judgments as :class:`rerank.Qrels`. Raises UsageError.

    queries: judgments whose query id is the text of such a query get its id, as in files of Quepid and Search
    Relevance Workbench. Case and spaces of the text do not matter. Equal texts have the same judgments.

    >>> as_qrels({"Wolf": {"d7": 1}}, [Query("q1", "wolf")])["q1"]
    {'d7': 1}
    """
    if isinstance(qrels, (str, os.PathLike)):
        qrels = read_qrels(qrels)
    elif not isinstance(qrels, Qrels):
        qrels = Qrels(_judgment_values(qrels))
    return with_query_ids(qrels, queries)


def _judgment_values(qrels: Any) -> Any:
    """Return judgments as arguments of Qrels."""
    if is_tabular(qrels):
        return list(map(_as_judgment, read_frame(qrels, JUDGMENTS, _JUDGMENT_COLUMNS)))
    if isinstance(qrels, Mapping) or not isinstance(qrels, Iterable):
        return qrels
    return [_as_judgment(row) if isinstance(row, Mapping) else row for row in qrels]


def _as_judgment(record: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """Return query, document and grade of a record with these fields, by any of their names."""
    by_name = {normalize_column(str(name)): value for name, value in record.items()}
    values: list[Any] = []
    for field, names in _JUDGMENT_COLUMNS.items():
        name = next((name for name in (normalize_column(field), *names) if name in by_name), None)
        if name is None:
            raise UsageError(f"qrels: {shorten(record)} has no {field}; add it")
        values.append(by_name[name])
    return values[0], values[1], values[2]


def with_query_ids(qrels: Qrels, queries: Sequence[Query]) -> Qrels:
    """Return judgments in which the texts of queries are replaced by their ids. Other ids stay.

    Queries with the same text get the same judgments. Raises UsageError if these contradict each other.
    """
    ids = {query.id for query in queries}
    if not ids or ids.issuperset(qrels):
        return qrels
    ids_by_text = _ids_by_text(queries)
    judgments: list[tuple[str, str, int]] = []
    for id_or_text, grades in qrels.items():
        ids_of_text = [id_or_text]
        if id_or_text not in ids:
            ids_of_text = ids_by_text.get(query_key(id_or_text), ids_of_text)
        for id, (document, grade) in product(ids_of_text, grades.items()):
            judgments.append((id, document, grade))
    return Qrels(judgments)


def _ids_by_text(queries: Iterable[Query]) -> dict[str, list[str]]:
    """Return the normalized text of queries -> the ids of the queries with this text."""
    ids: dict[str, list[str]] = {}
    for query in queries:
        ids.setdefault(query_key(query.text), []).append(query.id)
    return ids


def from_file(values: Value | File, read_file: Callable[[File], Value]) -> Value:
    """Return the content of a file, or other values unchanged."""
    return read_file(values) if isinstance(values, (str, os.PathLike)) else values


def as_pairs(pairs: Pairs, find_ids: Callable[[Iterable[str]], Collection[str]]) -> Sequence[LabeledPair]:
    """Return labeled pairs.

    find_ids: returns which of these ids exist, to check a file.

    Raises UsageError for other values.

    >>> as_pairs([("a", "b", 1)], find_ids=set)
    [LabeledPair(a='a', b='b', related=True)]
    """
    if isinstance(pairs, (str, os.PathLike)):
        return read_labeled_pairs(pairs, find_ids)
    return [_as_pair(pair) for pair in as_list(pairs)]


def _as_pair(pair: object) -> LabeledPair:
    if isinstance(pair, LabeledPair):
        return pair
    values = _items(pair)
    label = integral_grade(values[2]) if len(values) == 3 else None
    if label not in (0, 1):
        raise UsageError(f"pairs: {shorten(pair)} is not two ids and a label (1 related, 0 not)")
    first, second = (record_id(value, "pairs: an id") for value in values[:2])
    return LabeledPair(first, second, bool(label))


def _items(value: object) -> tuple[Any, ...]:
    """Return the items of a list or tuple; () for a text, an object with names, or a single value."""
    if isinstance(value, (str, Mapping)) or not isinstance(value, Iterable):
        return ()
    return tuple(value)
