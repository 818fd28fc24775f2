"""Relevance judgments: BEIR, TREC, Quepid, or Search Relevance Workbench."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import NamedTuple

from rerank.common.batches import batched
from rerank.common.errors import InputError
from rerank.common.files import atomic_write
from rerank.common.values import first_in, items_at
from rerank.documents.records import LARGEST_GRADE, Qrels
from rerank.formats.contents import describe_line
from rerank.formats.lines import Line, check_columns, decode, first_line, number, read_numbered_lines
from rerank.formats.opening import Source, name_of
from rerank.formats.srw import may_be_srw, read_ratings
from rerank.formats.tables import (
    Row,
    format_rows,
    normalize_column,
    skip_separator_hint,
    split_line,
    split_rows,
)

_FRACTIONS = (
    "ratings with fractions come from a click model; make grades from the clicks with `rerank judge clicks`"
)
_LAYOUTS = "write query-id, tab, corpus-id, tab, score (BEIR) or: query iteration document grade (TREC)"
COLUMNS = (
    ("query-id", "queryid", "qid", "query", "query-text", "topic"),
    (
        "corpus-id",
        "corpusid",
        "document-id",
        "documentid",
        "doc-id",
        "docid",
        "docno",
        "did",
        "document",
        "doc",
    ),
    ("score", "grade", "relevance", "rel", "label", "judgment", "rating"),
)
"""Names of columns in a header: query, document, grade."""
_BEIR_COLUMNS = (0, 1, 2)
_TREC_COLUMNS = (0, 2, 3)
"""Positions of query, document and grade."""
_BLOCK = 10_000  # judgments that are formatted at once


def read_qrels(source: Source) -> Qrels:
    """Read judgments. The first line decides the layout.

        query-id <tab> corpus-id <tab> score     BEIR, with or without a header, which may reorder columns
        query-id,corpus-id,score                 the same with commas or semicolons
        query iteration document grade           TREC, white space; iteration is ignored
        query,docid,rating                       Quepid; the query is a text
        {"judgmentRatings": [...]}               Search Relevance Workbench, also as answer of GET judgments

    Cells of the first two can be quoted, and a header can have more columns.

    Grades are integers, also ``2.0``; 0 and less mean not relevant. Judgments of query texts are used for the
    queries with this text (:func:`rerank.formats.inputs.as_qrels`).

    Raises InputError (``FILE:LINE: ...``), also for a document with two grades, or without judgments.

    >>> path = folder / "qrels.txt"
    >>> _ = path.write_text("q1 0 d7 2\\n")
    >>> read_qrels(path)["q1"]
    {'d7': 2}
    """
    judgments: dict[str, dict[str, int]] = {}
    for location, query, document, text in _rows(source):
        grade = _grade(text, location)
        before = judgments.setdefault(query, {}).setdefault(document, grade)
        if before != grade:
            raise InputError(
                f"{location}: document {document!r} was already judged {before} for query {query!r}, now"
                f" {grade}; remove one of the two"
            )
    if not judgments:
        raise InputError(f"{name_of(source)}: no judgments; {_LAYOUTS}")
    return Qrels(judgments)


def write_qrels(path: str | os.PathLike[str], qrels: Qrels) -> None:
    """Write judgments in the layout of BEIR, with a header, in their order."""
    write_judgments(
        path, ((query, document, grade) for query in qrels for document, grade in qrels[query].items())
    )


def write_judgments(path: str | os.PathLike[str], judgments: Iterable[tuple[str, str, int]]) -> None:
    """Write query ids, document ids and grades as BEIR."""
    rows: Iterator[tuple[object, ...]] = chain([("query-id", "corpus-id", "score")], judgments)
    with atomic_write(path) as file:
        for block in batched(rows, _BLOCK):
            file.write(format_rows(block).encode())


def _unknown_layout(location: str, first: bytes) -> InputError:
    """Return the error for a first line that is in no form of judgments."""
    kind = describe_line(decode(location, first))
    problem = f"{len(first.split())} filled columns"
    if kind:
        problem = f"not judgments, it looks like {kind}"
    return InputError(f"{location}: {problem}; {_LAYOUTS}")


def _rows(source: Source) -> Iterator[tuple[str, str, str, str]]:
    """Yield FILE:LINE, query, document and grade."""
    name = name_of(source)
    first, lines = first_line(skip_separator_hint(read_numbered_lines(source)))
    if not first:
        return
    if may_be_srw(first):
        yield from read_ratings(name, lines)
        return
    layout = _layout(first.decode("utf-8", "replace"))
    if layout is None:
        raise _unknown_layout(f"{name}:{next(lines)[0]}", first)
    rows = _split(name, lines, layout.separator)
    if layout.has_header:
        next(rows)
    for location, cells in rows:
        check_columns(location, cells, layout.width, _LAYOUTS, required=layout.columns)
        query, document, grade = items_at(cells, layout.columns)
        yield location, query, document, grade


def _split(name: str, lines: Iterator[Line], separator: str | None) -> Iterator[Row]:
    if separator is not None:
        return split_rows(name, lines, separator)
    return _split_at_spaces(name, lines)


def _split_at_spaces(name: str, lines: Iterator[Line]) -> Iterator[Row]:
    for line_number, line in lines:
        location = f"{name}:{line_number}"
        cells = decode(location, line).split()
        if cells:
            yield location, cells


class _Layout(NamedTuple):
    """The layout of a file of judgments.

    separator:  between cells; None: white space.
    columns:    the positions of query, document and grade.
    width:      the number of columns.
    has_header: whether the first line is a header.
    """

    separator: str | None
    columns: tuple[int, ...]
    width: int
    has_header: bool = False


def _layout(first: str) -> _Layout | None:
    """Return the layout of a file with this first line, or None if the line has no judgment."""
    if first.startswith(("{", "<")):
        return None
    cells_by_separator: dict[str | None, list[str]] = {
        "\t": split_line(first, "\t"),
        ",": split_line(first, ","),
        ";": split_line(first, ";"),
        None: first.split(),
    }
    for separator, cells in cells_by_separator.items():
        columns = _header(cells)
        if columns:
            return _Layout(separator, columns, len(cells), has_header=True)
    return _layout_without_header(cells_by_separator)


def _layout_without_header(cells_by_separator: Mapping[str | None, list[str]]) -> _Layout | None:
    """Return the layout of a file whose first line is a judgment, or None if it is none.

    cells_by_separator: the cells of the line for each separator; None: any spaces.
    """
    for separator in ("\t", None, ",", ";"):
        cells = cells_by_separator[separator]
        if len(cells) == 4 and _is_grade(cells[3]):
            return _Layout(separator, _TREC_COLUMNS, 4)
        if len(cells) == 3 and separator is not None:
            return _Layout(separator, _BEIR_COLUMNS, 3)
    if len(cells_by_separator[None]) == 4:
        return _Layout(None, _TREC_COLUMNS, 4)
    return None


def _header(cells: list[str]) -> tuple[int, ...]:
    """Return the positions of query, document and grade; () if the line is not a header."""
    names = list(map(normalize_column, cells))
    header_names = [first_in(names, known_names) for known_names in COLUMNS]
    if None not in header_names:
        return tuple(map(names.index, filter(None, header_names)))
    if len(names) == 3 and names[0] in COLUMNS[0]:
        return _BEIR_COLUMNS
    return ()


def _is_grade(text: str) -> bool:
    return number(text).is_integer()


def _grade(text: str, location: str) -> int:
    value = number(text)
    if not value.is_integer():
        remedy = _LAYOUTS
        if math.isfinite(value):
            remedy = _FRACTIONS
        raise InputError(f"{location}: grade {text[:40]!r} is not an integer; {remedy}")
    if abs(value) > LARGEST_GRADE:
        raise InputError(
            f"{location}: grade {text[:40]!r} is above {LARGEST_GRADE:,}; use small grades, such as 0 to 3"
        )
    return int(value)
