"""Documents and queries: JSON lines (BEIR), a JSON array, or a table with a header."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from operator import itemgetter, methodcaller
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from rerank.common.errors import InputError
from rerank.common.files import atomic_write
from rerank.common.values import items_in, without, without_empty
from rerank.documents.records import Document, Query
from rerank.documents.text import query_key
from rerank.formats.contents import describe_line
from rerank.formats.lines import (
    Build,
    Line,
    OnInvalid,
    Record,
    Value,
    check_fields,
    first_line,
    parse_json_lines,
    raise_invalid,
    read_numbered_lines,
    rename_or_add,
)
from rerank.formats.opening import Source, name_of
from rerank.formats.query_ids import query_ids
from rerank.formats.srw import is_query_set, read_query_set
from rerank.formats.tables import Table, read_header, skip_separator_hint, split_rows

Names = str | list[str | int] | None


class _Citation(Struct):
    ref: str | int | None = None
    section: str | int | None = None
    paragraph: str | int | None = None
    sentence: str | int | None = None
    text: str | int | None = None


class _Record(Struct, kw_only=True, rename={"id": "_id"}):
    id: str | int
    text: str | None = None
    categories: Names = None
    lang: str | None = None


class _Document(_Record, kw_only=True):
    title: str | None = None
    links: Names = None
    citations: list[str | _Citation] | None = None
    references: dict[str, str] | None = None


class _Query(_Record, kw_only=True):
    text: str
    lexical_text: str | None = None


_DOCUMENT_FIELDS = frozenset({"_id", "title", "text", "categories", "links", "lang"})
_QUERY_FIELDS = frozenset({"_id", "text", "lexical_text", "categories", "lang"})
DOCUMENT_COLUMNS = {
    "_id": ("id", "doc-id", "docid", "document-id", "corpus-id", "identifier", "docno"),
    "title": ("title", "headline"),
    "text": ("text", "body", "content", "abstract"),
    "categories": ("categories", "category"),
    "links": ("links", "link"),
    "lang": ("lang", "language"),
}
QUERY_COLUMNS = {
    "_id": ("id", "query-id", "queryid", "qid", "topic-id", "identifier"),
    "text": ("text", "query", "query-text", "question"),
    "lexical_text": ("lexical-text",),
    "categories": ("categories", "category"),
    "lang": ("lang", "language"),
}
"""Field -> names of its column in a table, without case; `_`, `-` and spaces are equal."""
_INTEGER = re.compile(r"0|-?[1-9]\d{0,17}")
_DECIMAL = re.compile(r"-?(0|[1-9]\d*)\.\d+")


def read_corpus(
    source: Source, *, invalid: Callable[[InputError], object] = raise_invalid
) -> Iterator[Document]:
    """Read documents one by one: ``{"_id", "title"?, "text"?, "categories"?, "links"?, "lang"?}``.

    ``_id`` is a string or an integer; ``categories`` and ``links`` are a list, a string or null. Other fields
    go to ``extra``, also ``citations`` (``[{"ref", "section"?, "paragraph"?, "sentence"?, "text"?}]``) and
    ``references`` (``{ref: title}``).

    The file has JSON lines, one JSON array, or a table (CSV or TSV) with a header of these names. In a table,
    ``|`` or ``;`` separates categories, and ``|`` or white space separates links.

    source: a file, plain or compressed, or ``-`` for standard input. invalid: receives the errors of invalid
    records, which are then skipped. By default, the first error is raised.

    Raises InputError (``FILE:LINE: ...``).

    >>> path = folder / "corpus.jsonl"
    >>> _ = path.write_text('{"_id": 7, "title": "Sorting", "categories": "algorithms", "year": 1962}')
    >>> document = next(read_corpus(path))
    >>> document.id, document.categories, document.extra
    ('7', ('algorithms',), {'year': 1962})
    >>> _ = path.write_text("id;title;year\\n7;Sorting;1962\\n")
    >>> next(read_corpus(path)).extra
    {'year': 1962}
    """
    yield from _read_records(source, _Document, DOCUMENT_COLUMNS, _build_document, invalid)


def read_queries(source: Source) -> list[Query]:
    """Read queries: ``{"_id", "text", "lexical_text"?, "categories"?, "lang"?}``; others go to ``params``.

    The file has one of the forms of :func:`read_corpus`. Or it is a query set of Search Relevance Workbench,
    whose queries get ids made from their texts.

    Raises InputError (``FILE:LINE: ...``), also for a repeated id or no queries.

    >>> path = folder / "queries.jsonl"
    >>> _ = path.write_text('{"_id": "q1", "text": "wolves at night"}')
    >>> read_queries(path)[0].text
    'wolves at night'
    """
    name = name_of(source)
    first, lines = first_line(skip_separator_hint(read_numbered_lines(source)))
    is_srw, lines = is_query_set(first, lines)
    if is_srw:
        text_by_key = {query_key(text): text for text in read_query_set(name, lines)}
        ids = query_ids(text_by_key)
        return [Query(ids[key], text) for key, text in text_by_key.items()]
    queries: dict[str, tuple[str, Query]] = {}
    for location, query in _parse_records(name, lines, (_Query, QUERY_COLUMNS, _build_located_query)):
        earlier_location, earlier = queries.setdefault(query.id, (location, query))
        if earlier is not query:
            line = _line_of(earlier_location)
            raise InputError(f"{location}: query id {query.id!r} is already on {line}; change one of them")
    if not queries:
        raise InputError(f'{name_of(source)}: no queries; write one per line: {{"_id": ..., "text": ...}}')
    return [query for _, query in queries.values()]


def _line_of(location: str) -> str:
    """Return the line, or the item of a JSON array, of a location such as ``queries.jsonl:3``."""
    line = location.rpartition(":")[2].strip()
    if line.isdigit():
        return f"line {line}"
    return line


def write_queries(path: str | os.PathLike[str], queries: Iterable[Query]) -> None:
    """Write queries as JSON lines, without empty fields.

    >>> write_queries(folder / "queries.jsonl", [Query("q1", "wolf", lang="en")])
    >>> (folder / "queries.jsonl").read_text()
    '{"_id":"q1","text":"wolf","lang":"en"}\\n'
    """
    with atomic_write(path) as file:
        for query in queries:
            optional = {
                "categories": query.categories,
                "lang": query.lang,
                "lexical_text": query.lexical_text,
            }
            fields = {"_id": query.id, "text": query.text, **without_empty(optional), **query.params}
            file.write(msgspec.json.encode(fields) + b"\n")


def document_from_fields(location: str, fields: Mapping[str, Any]) -> Document:
    """Return the document of a record as in a file. Raises InputError, with ``location``.

    Values of NumPy, dates, sets and decimals become values of JSON. NaN, a missing value of pandas, is null.

    >>> document_from_fields("documents[0]", {"_id": "a", "text": "A wolf", "year": 1962}).extra
    {'year': 1962}
    """
    plain = _plain_values(location, fields)
    return _build_document(location, plain, check_fields(location, plain, _Document))


def query_from_fields(location: str, fields: Mapping[str, Any]) -> Query:
    """Return the query of a record as in a file. Raises InputError, with ``location``."""
    plain = _plain_values(location, fields)
    return _build_query(location, plain, check_fields(location, plain, _Query))


def _plain_values(location: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields with values of JSON. Raises InputError for values that have no form in JSON."""
    try:
        values = msgspec.to_builtins(dict(fields), builtin_types=(bytes, bytearray), enc_hook=_plain_value)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{location}: a value is not JSON ({error}); correct it") from None
    return {name: _null_if_nan(value) for name, value in values.items()}


def _null_if_nan(value: object) -> object:
    if value != value:
        return None
    return value


def _plain_value(value: object) -> object:
    if type(value).__name__ in ("NAType", "NaTType"):  # missing values of pandas
        return None
    for kinds, convert in _CONVERTERS:
        if isinstance(value, kinds):
            return convert(value)
    raise TypeError(type(value).__name__)


def _plain_date(date: np.datetime64) -> str | None:
    if np.isnat(date):
        return None
    return str(date)


_CONVERTERS: tuple[tuple[Any, Callable[[Any], object]], ...] = (
    (np.datetime64, _plain_date),
    ((np.generic, np.ndarray), methodcaller("tolist")),
    (Mapping, dict),
    (datetime, datetime.isoformat),  # a subclass, such as Timestamp of pandas
)
"""Types of values -> the function that returns a value of JSON; the first type that fits."""


def _build_document(location: str, fields: dict[str, Any], record: _Document) -> Document:
    return Document(
        id=_id(location, record),
        title=record.title,  # type: ignore[arg-type]  # normalized by the class, as the next three
        text=record.text,  # type: ignore[arg-type]
        categories=record.categories,  # type: ignore[arg-type]
        links=record.links,  # type: ignore[arg-type]
        lang=record.lang,
        extra=without(fields, _DOCUMENT_FIELDS),
    )


def _build_query(location: str, fields: dict[str, Any], record: _Query) -> Query:
    return Query(
        id=_id(location, record),
        text=record.text,
        categories=record.categories,  # type: ignore[arg-type]  # normalized by the class
        lang=record.lang,
        params=without(fields, _QUERY_FIELDS),
        lexical_text=record.lexical_text or None,
    )


def _build_located_query(location: str, fields: dict[str, Any], record: _Query) -> tuple[str, Query]:
    return location, _build_query(location, fields, record)


def _read_records(
    source: Source,
    kind: type[Record],
    columns: Mapping[str, Sequence[str]],
    build: Build[Record, Value],
    invalid: OnInvalid,
) -> Iterator[Value]:
    """Yield the records of a file of JSON or of a table; the first line decides."""
    lines = skip_separator_hint(read_numbered_lines(source))
    yield from _parse_records(name_of(source), lines, (kind, columns, build), invalid)


def _parse_records(
    name: str,
    lines: Iterator[Line],
    form: tuple[type[Record], Mapping[str, Sequence[str]], Build[Record, Value]],
    invalid: OnInvalid = raise_invalid,
) -> Iterator[Value]:
    """Yield the records of the lines of a file. form: the fields, the columns, and the value of a record."""
    kind, columns, build = form
    first, lines = first_line(lines)
    table = _table_of(name, first, columns)
    if table is None:
        yield from parse_json_lines(name, lines, kind, build, invalid)
        return
    rows = split_rows(name, lines, table.separator)
    _check_header(table, *next(rows), columns)
    for location, cells in rows:
        try:
            fields = _fields_of_row(table, location, cells, columns)
            value = build(location, fields, check_fields(location, fields, kind))
        except InputError as error:
            invalid(error)
            continue
        yield value


def _table_of(name: str, first: bytes, columns: Mapping[str, Sequence[str]]) -> Table | None:
    """Return the table that begins with this line, or None if it is a line of JSON or unclear.

    Raises InputError for the first line of a table that names no column.
    """
    if first[:1] in (b"{", b"[", b""):
        return None
    text = first.decode("utf-8", "replace")
    table = read_header(text, columns)
    if table is None and _looks_like_table(name, text):
        names = ",".join(map(itemgetter(0), columns.values()))
        raise InputError(
            f"{name}:1: the first line of the table has no name of a column; begin with a header of some of"
            f" {names}"
        )
    return table


def _looks_like_table(name: str, text: str) -> bool:
    """Return whether a file with this name and this first line should be a table."""
    return Path(name).suffix.lower() in (".csv", ".tsv") or describe_line(text).startswith("a table")


def _check_header(
    table: Table, location: str, header: Sequence[str], columns: Mapping[str, Sequence[str]]
) -> None:
    """Raise InputError for a header with two equal columns, or without an id or a text."""
    if table.repeated:
        raise InputError(
            f"{location}: the header has several columns {table.repeated[0]!r}; rename or remove them"
        )
    text_columns = items_in(("title", "text"), columns)
    for alternatives in (["_id"], text_columns):
        if table.columns.keys().isdisjoint(alternatives):
            raise _missing_column(location, alternatives, table, header)


def _missing_column(
    location: str, alternatives: Sequence[str], table: Table, header: Sequence[str]
) -> InputError:
    """Return the error for a header without any of these columns, which may be a line of judgments."""
    problem = f"{location}: the header has no column {' or '.join(alternatives)}"
    kind = describe_line(table.separator.join(header))
    if kind.startswith("judgments"):
        return InputError(f"{problem} and looks like {kind}; check the order of the files")
    return InputError(f"{problem}; {rename_or_add([*table.others])}")


def _fields_of_row(
    table: Table, location: str, cells: Sequence[str], columns: Mapping[str, Sequence[str]]
) -> dict[str, Any]:
    """Return the fields of a row, as a JSON line has them. Raises InputError for a wrong number of cells."""
    fields: dict[str, Any] = dict(table.fields(location, cells))
    for field, value in fields.items():
        if field in ("categories", "links"):
            fields[field] = split_cell(value, spaces=field == "links")
        elif field not in table.columns:
            fields[field] = parse_cell(value)
    if "title" not in columns:  # an empty text of a query
        fields.setdefault("text", "")
    return fields


def split_cell(cell: str, *, spaces: bool) -> list[str]:
    """Return the names in a cell, separated by ``|``, otherwise by ``;`` (or white space if ``spaces``).

    >>> split_cell("wolves; foxes", spaces=False), split_cell("a b", spaces=True)
    (['wolves', 'foxes'], ['a', 'b'])
    """
    if "|" in cell:
        names = cell.split("|")
    elif spaces:
        names = cell.split()
    else:
        names = cell.split(";")
    return list(filter(None, map(str.strip, names)))


def parse_cell(cell: str) -> str | int | float:
    """Return a number if the cell is written as one, else the text.

    >>> parse_cell("1962"), parse_cell("-0.50"), parse_cell("007"), parse_cell("1e5")
    (1962, -0.5, '007', '1e5')
    """
    if _INTEGER.fullmatch(cell):
        return int(cell)
    if _DECIMAL.fullmatch(cell):
        return float(cell)
    return cell


def _id(location: str, record: _Record) -> str:
    id = str(record.id)
    if not id.strip():
        raise InputError(f'{location}: _id is empty; give every record an "_id"')
    return id
