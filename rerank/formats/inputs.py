"""The forms in which the Python API accepts queries, judgments and pairs."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product, starmap
from typing import Any, TypeVar

from rerank.common.errors import InputError, UsageError
from rerank.common.values import first_in, is_path, is_series, items_of
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
    if values is None:
        return []
    if is_series(values) and not is_tabular(values):
        return list(values)
    return [values]


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
    if is_path(queries):
        return list(read_queries(queries))
    if isinstance(queries, Mapping) and "_id" not in queries:
        return list(starmap(_query_of_id, queries.items()))
    if is_tabular(queries):
        return list(read_frame(queries, QUERIES, QUERY_COLUMNS))
    return as_list(queries)


def _query_of_id(id: str, text_or_query: object) -> object:
    """Return the query with this id and text; a value that is not a text should be a query itself."""
    if isinstance(text_or_query, str):
        return Query(id, text_or_query)
    return text_or_query


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
    if is_path(qrels):
        qrels = read_qrels(qrels)
    elif not isinstance(qrels, Qrels):
        qrels = Qrels(_judgment_values(qrels))
    return with_query_ids(qrels, queries)


def _judgment_values(qrels: Any) -> Any:
    """Return judgments as arguments of Qrels."""
    if is_tabular(qrels):
        qrels = read_frame(qrels, JUDGMENTS, _JUDGMENT_COLUMNS)
    if is_series(qrels):
        return list(map(_as_judgment, qrels))
    return qrels


def _as_judgment(row: object) -> object:
    """Return query, document and grade of a record with these fields, by any of their names.

    Other values, such as tuples of the three, are unchanged.
    """
    if not isinstance(row, Mapping):
        return row
    by_name = {normalize_column(str(name)): value for name, value in row.items()}
    values: list[Any] = []
    for field, names in _JUDGMENT_COLUMNS.items():
        name = first_in((normalize_column(field), *names), by_name)
        if name is None:
            raise UsageError(f"qrels: {shorten(row)} has no {field}; add it")
        values.append(by_name[name])
    return tuple(values)


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
    if is_path(values):
        return read_file(values)
    return values  # type: ignore[return-value]  # not a file


def as_pairs(pairs: Pairs, find_ids: Callable[[Iterable[str]], Collection[str]]) -> Sequence[LabeledPair]:
    """Return labeled pairs.

    find_ids: returns which of these ids exist, to check a file.

    Raises UsageError for other values.

    >>> as_pairs([("a", "b", 1)], find_ids=set)
    [LabeledPair(a='a', b='b', related=True)]
    """
    if is_path(pairs):
        return read_labeled_pairs(pairs, find_ids)
    return list(map(_as_pair, as_list(pairs)))


def _as_pair(pair: object) -> LabeledPair:
    if isinstance(pair, LabeledPair):
        return pair
    values = tuple(items_of(pair))
    if len(values) != 3 or integral_grade(values[2]) not in (0, 1):
        raise UsageError(f"pairs: {shorten(pair)} is not two ids and a label (1 related, 0 not)")
    first = record_id(values[0], "pairs: an id")
    second = record_id(values[1], "pairs: an id")
    return LabeledPair(first, second, bool(values[2]))
