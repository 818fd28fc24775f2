"""Relevance judgments, BEIR or TREC."""

from __future__ import annotations

import os
from collections.abc import Iterator

from rerank.errors import InputError
from rerank.files import write_text
from rerank.formats.lines import Source, check_columns, name_of, number, read_texts
from rerank.records import Qrels

_LAYOUTS = "write query-id, tab, corpus-id, tab, score (BEIR) or: query iteration document grade (TREC)"
_COLUMNS = (
    ("query-id", "queryid", "qid", "query", "topic"),
    ("corpus-id", "corpusid", "document-id", "documentid", "doc-id", "docid", "did", "document", "doc"),
    ("score", "grade", "relevance", "rel", "label", "judgment"),
)
"""Names of columns in a header: query, document, grade."""

LARGEST = 1000
"""Largest grade: the time of trec_eval grows with the square of the grades."""


def read_qrels(source: Source) -> Qrels:
    """Read judgments. The first line decides the layout.

        query-id <tab> corpus-id <tab> score     BEIR, with or without a header, which may reorder columns
        query-id,corpus-id,score                 the same with commas
        query iteration document grade           TREC, white space; iteration is ignored

    Grades are integers, also ``2.0``; 0 and less mean not relevant.

    Raises InputError (``FILE:LINE: ...``), also for a document with two grades, or without judgments.

    >>> path = folder / "qrels.txt"
    >>> _ = path.write_text("q1 0 d7 2\\n")
    >>> read_qrels(path)["q1"]
    {'d7': 2}
    """
    judgments: dict[tuple[str, str], int] = {}
    for where, query, document, text in _rows(source):
        grade = _grade(text, where)
        before = judgments.setdefault((query, document), grade)
        if before != grade:
            raise InputError(
                f"{where}: document {document!r} was already judged {before} for query {query!r}, now"
                f" {grade}; remove one of the two"
            )
    if not judgments:
        raise InputError(f"{name_of(source)}: no judgments; {_LAYOUTS}")
    return Qrels((query, document, grade) for (query, document), grade in judgments.items())


def write_qrels(path: str | os.PathLike[str], qrels: Qrels) -> None:
    """Write judgments as BEIR."""
    rows = (f"{query}\t{document}\t{grade}\n" for query in qrels for document, grade in qrels[query].items())
    write_text(path, "query-id\tcorpus-id\tscore\n" + "".join(rows))


def _rows(source: Source) -> Iterator[tuple[str, ...]]:
    """Yield FILE:LINE, query, document and grade."""
    separator: str | None = None  # white space
    order: tuple[int, ...] = ()
    for where, text in read_texts(source):
        if not order:
            separator = next((one for one in "\t," if len(text.split(one)) == 3), None)
            header = _header(text.split(separator)) if separator else ()
            order = header or ((0, 1, 2) if separator else (0, 2, 3))
            if header:
                continue
        columns = [part.strip() for part in text.split(separator)]
        check_columns(where, columns, 3 if separator else 4, _LAYOUTS)
        yield where, *(columns[place] for place in order)


def _header(columns: list[str]) -> tuple[int, ...]:
    """Return the places of query, document and grade; () if the line is not a header."""
    names = [column.strip().strip('"').lower().replace("_", "-").replace(" ", "-") for column in columns]
    places = [next((i for i, name in enumerate(names) if name in known), -1) for known in _COLUMNS]
    if -1 not in places:
        return tuple(places)
    return (0, 1, 2) if places[0] == 0 else ()


def _grade(text: str, where: str) -> int:
    value = number(text)
    if not value.is_integer():
        raise InputError(f"{where}: grade {text[:40]!r} is not an integer; {_LAYOUTS}")
    if abs(value) > LARGEST:
        raise InputError(
            f"{where}: grade {text[:40]!r} is above {LARGEST:,}; use small grades, such as 0 to 3"
        )
    return int(value)
