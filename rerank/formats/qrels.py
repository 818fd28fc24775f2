"""Relevance judgments, BEIR or TREC."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass

from rerank.errors import InputError, UsageError
from rerank.files import write_text
from rerank.formats.lines import Source, check_columns, name_of, read_texts
from rerank.records import Qrels

_LAYOUTS = "write query-id, tab, corpus-id, tab, score (BEIR) or: query iteration document grade (TREC)"
_COLUMNS = (
    ("query-id", "queryid", "qid", "query", "topic"),
    ("corpus-id", "corpusid", "document-id", "documentid", "doc-id", "docid", "did", "document", "doc"),
    ("score", "grade", "relevance", "rel", "label", "judgment"),
)
"""Names of columns in a header: query, document, grade."""


CONFLICTS = ("refuse", "max", "first")
_MOST = 200


def read_qrels(source: Source, *, conflicts: str = "refuse") -> Qrels:
    """Read judgments. The first line decides the layout.

        query-id <tab> corpus-id <tab> score     BEIR, with or without a header, which may reorder columns
        query-id,corpus-id,score                 the same with commas
        query iteration document grade           TREC, white space; iteration is ignored

    Grades are integers, also ``2.0``; 0 and less mean not relevant.

    conflicts: for a document with two grades: ``refuse``, ``max`` or ``first``.

    Raises InputError (``FILE:LINE: ...``), also without judgments.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "qrels.txt"
    ...     _ = path.write_text("q1 0 d7 2\\n")
    ...     qrels = read_qrels(path)
    >>> qrels["q1"]
    {'d7': 2}
    """
    if conflicts not in CONFLICTS:
        raise UsageError(f"--conflicts {conflicts!r} is none of {', '.join(CONFLICTS)}")
    name = name_of(source)
    judgments: dict[tuple[str, str], int] = {}
    conflicting: list[str] = []
    for where, query, document, grade in _rows(source):
        before = judgments.setdefault((query, document), grade)
        if before != grade:
            conflicting.append(
                f"{where}: document {document!r} was already judged {before} for query {query!r}, now {grade}"
                if not conflicting
                else f"{where} ({document!r} for {query!r}: {before}, now {grade})"
            )
            if conflicts == "max":
                judgments[query, document] = max(before, grade)
    if conflicting and conflicts == "refuse":
        more = f" and {len(conflicting) - _MOST} more" if len(conflicting) > _MOST else ""
        raise InputError(
            f"{', '.join(conflicting[:_MOST])}{more}; remove one of the two, or choose one with"
            f" --conflicts max or --conflicts first"
        )
    if not judgments:
        raise InputError(f"{name}: no judgments; {_LAYOUTS}")
    return Qrels((query, document, grade) for (query, document), grade in judgments.items())


def write_qrels(path: str | os.PathLike[str], qrels: Qrels) -> None:
    """Write judgments as BEIR."""
    rows = (f"{query}\t{document}\t{grade}\n" for query in qrels for document, grade in qrels[query].items())
    write_text(path, "query-id\tcorpus-id\tscore\n" + "".join(rows))


def _rows(source: Source) -> Iterator[tuple[str, str, str, int]]:
    layout: _Layout | None = None
    for where, text in read_texts(source):
        if layout is None:
            layout, is_header = _Layout.of(text)
            if is_header:
                continue
        query, document, grade = layout.cells(text, where)
        yield where, query, document, _grade(grade, where)


@dataclass(frozen=True)
class _Layout:
    """Number of columns, separator (None: white space), places of query, document, grade."""

    width: int
    separator: str | None
    order: tuple[int, int, int]

    @classmethod
    def of(cls, text: str) -> tuple[_Layout, bool]:
        separator = "," if "\t" not in text and len(text.split(",")) == 3 else "\t"
        columns = text.split(separator)
        if len(columns) != 3:
            return cls(4, None, (0, 2, 3)), False
        order = _header(columns)
        return cls(3, separator, order or (0, 1, 2)), order is not None

    def cells(self, text: str, where: str) -> tuple[str, str, str]:
        columns = [part.strip() for part in text.split(self.separator)]
        check_columns(where, columns, self.width, _LAYOUTS)
        query, document, grade = (columns[place] for place in self.order)
        return query, document, grade


LARGEST = 1000
"""Largest grade: the time of trec_eval grows with the square of the grades."""


def _header(columns: list[str]) -> tuple[int, int, int] | None:
    names = [column.strip().strip('"').lower().replace("_", "-").replace(" ", "-") for column in columns]
    places = [next((i for i, name in enumerate(names) if name in known), -1) for known in _COLUMNS]
    if -1 not in places:
        return places[0], places[1], places[2]
    return (0, 1, 2) if places[0] == 0 else None


def _grade(text: str, where: str) -> int:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not value.is_integer():
        raise InputError(f"{where}: grade {text[:40]!r} is not an integer; {_LAYOUTS}")
    if abs(value) > LARGEST:
        raise InputError(
            f"{where}: grade {text[:40]!r} is above {LARGEST:,}; use small grades, such as 0 to 3"
        )
    return int(value)
