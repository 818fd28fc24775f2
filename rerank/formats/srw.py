"""Judgments and query sets of Search Relevance Workbench (SRW), a plugin of OpenSearch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from operator import attrgetter

import msgspec
from msgspec import Struct

from rerank.common.errors import InputError
from rerank.formats.lines import Line, read_whole

_SRW_NAMES = re.compile(rb'"(judgmentRatings|querySetQueries|hits|_source)"')
_Number = str | int | float | None


class _Rating(Struct, rename="camel"):
    doc_id: str | int
    rating: _Number = None


class _RatedQuery(Struct):
    query: str
    ratings: list[_Rating] = []


class _Text(Struct, rename="camel"):
    query_text: str


class _Source(Struct, rename="camel"):
    judgment_ratings: list[_RatedQuery] | None = None
    query_set_queries: list[_Text | str] | None = None


class _Hit(Struct):
    source: _Source = msgspec.field(name="_source")


class _Hits(Struct):
    hits: list[_Hit]


class _File(_Source):
    hits: _Hits | None = None
    source: _Source | None = msgspec.field(name="_source", default=None)

    def sources(self) -> list[_Source]:
        """Return the lists of the file: itself, a hit, or all hits of an answer."""
        if self.hits is not None:
            return list(map(attrgetter("source"), self.hits.hits))
        return [self.source or self]


def may_be_srw(first: bytes) -> bool:
    """Return whether a file with this first line can be of SRW: a JSON object of SRW, or its beginning."""
    if not first.startswith(b"{"):
        return False
    is_beginning = first == b"{" or first.endswith(b",")
    return is_beginning or _SRW_NAMES.search(first) is not None


def read_ratings(name: str, lines: Iterator[Line]) -> Iterator[tuple[str, str, str, str]]:
    """Yield location, query text, document id and rating of judgments.

    The file has the form of an import (``judgmentRatings``), or is the answer of ``GET judgments``. Documents
    without a rating are skipped.

    Raises InputError for other content.
    """
    for source in _read(name, lines).sources():
        if source.judgment_ratings is None:
            raise InputError(
                f"{name}: no judgments; give the judgmentRatings of Search Relevance Workbench, or the"
                " grades of a pool, *.judged.jsonl"
            )
        for query in source.judgment_ratings:
            location = f"{name}: query {query.query[:40]!r}"
            for rating in query.ratings:
                if rating.rating is not None:
                    yield location, query.query, str(rating.doc_id), str(rating.rating)


def read_query_set(name: str, lines: Iterator[Line]) -> list[str]:
    """Return the texts of a query set, also of older ones with plain texts. Raises InputError."""
    texts: list[str] = []
    for source in _read(name, lines).sources():
        if source.query_set_queries is None:
            raise InputError(f"{name}: no querySetQueries; give a query set of Search Relevance Workbench")
        texts += map(_text_of, source.query_set_queries)
    return texts


def _text_of(query: _Text | str) -> str:
    if isinstance(query, str):
        return query
    return query.query_text


def _read(name: str, lines: Iterator[Line]) -> _File:
    content = read_whole(name, lines, "a JSON object", "split it")
    try:
        return msgspec.json.decode(content, type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        problem = str(error).replace("`", "")
        raise InputError(
            f"{name}: not judgments or queries of Search Relevance Workbench ({problem}); correct the file"
        ) from error


def is_query_set(first: bytes, lines: Iterator[Line]) -> tuple[bool, Iterator[Line]]:
    """Return whether the file is a query set, and its lines. Only files that may be one are read at once."""
    if not may_be_srw(first):
        return False, lines
    numbered_lines = list(lines)
    has_name = any(b'"querySetQueries"' in line for _, line in numbered_lines[:1000])
    return has_name, iter(numbered_lines)
