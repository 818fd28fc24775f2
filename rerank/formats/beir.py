"""Documents and queries as JSON lines (BEIR)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from msgspec import Struct

from rerank.errors import InputError
from rerank.formats.lines import Source, name_of, read_json_lines
from rerank.records import Document, Query

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


def read_corpus(
    source: Source, *, invalid: Callable[[InputError], object] | None = None
) -> Iterator[Document]:
    """Read documents one by one: ``{"_id", "title"?, "text"?, "categories"?, "links"?, "lang"?}``.

    ``_id`` is a string or an integer; ``categories`` and ``links`` are a list, a string or null. Other fields
    go to ``extra``, also ``citations`` (``[{"ref", "section"?, "paragraph"?, "sentence"?, "text"?}]``) and
    ``references`` (``{ref: title}``).

    source: a file, plain or gzip, or ``-`` for standard input. invalid: receives the errors of invalid lines,
    which are then skipped.

    Raises InputError (``FILE:LINE: ...``), also for an invalid line without ``invalid``.

    >>> path = folder / "corpus.jsonl"
    >>> _ = path.write_text('{"_id": 7, "title": "Sorting", "categories": "algorithms", "year": 1962}')
    >>> document = next(read_corpus(path))
    >>> document.id, document.categories, document.extra
    ('7', ('algorithms',), {'year': 1962})
    """

    def parse(where: str, fields: dict[str, Any], record: _Document) -> Document:
        return Document(
            id=_id(where, record),
            title=record.title or "",
            text=record.text or "",
            categories=_categories(record.categories),
            links=_names(record.links),
            lang=record.lang or None,
            extra={name: value for name, value in fields.items() if name not in _DOCUMENT_FIELDS},
        )

    yield from read_json_lines(source, _Document, parse, invalid)


def read_queries(source: Source) -> list[Query]:
    """Read queries: ``{"_id", "text", "lexical_text"?, "categories"?, "lang"?}``; others go to ``params``.

    Raises InputError (``FILE:LINE: ...``), also for a repeated id or no queries.

    >>> path = folder / "queries.jsonl"
    >>> _ = path.write_text('{"_id": "q1", "text": "wolves at night"}')
    >>> read_queries(path)[0].text
    'wolves at night'
    """
    lines: dict[str, str] = {}

    def parse(where: str, fields: dict[str, Any], record: _Query) -> Query:
        id = _id(where, record)
        if id in lines:
            raise InputError(f"{where}: query id {id!r} is already on line {lines[id]}; change one of them")
        lines[id] = where.rpartition(":")[2]
        return Query(
            id=id,
            text=record.text,
            categories=_categories(record.categories),
            lang=record.lang or None,
            params={name: value for name, value in fields.items() if name not in _QUERY_FIELDS},
            lexical_text=record.lexical_text or None,
        )

    queries = list(read_json_lines(source, _Query, parse))
    if not queries:
        raise InputError(f'{name_of(source)}: no queries; write one per line: {{"_id": ..., "text": ...}}')
    return queries


def _id(where: str, record: _Record) -> str:
    id = str(record.id)
    if not id.strip():
        raise InputError(f'{where}: _id is empty; give every record an "_id"')
    return id


def _names(value: Names) -> tuple[str, ...]:
    return () if value is None else (value,) if isinstance(value, str) else tuple(map(str, value))


def _categories(value: Names) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for one in _names(value) if (name := one.strip())))
