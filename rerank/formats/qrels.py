"""Relevance judgements, in BEIR's or in TREC's layout."""

from __future__ import annotations

from rerank.errors import InputError, UsageError, setting_hint
from rerank.formats.lines import Source, decode, name_of, read_lines
from rerank.records import Qrels

_LAYOUTS = "write query-id, tab, corpus-id, tab, score (BEIR) or: query iteration document grade (TREC)"
_COLUMNS = (
    ("query-id", "queryid", "qid", "query", "topic"),
    ("corpus-id", "corpusid", "document-id", "documentid", "doc-id", "docid", "did", "document", "doc"),
    ("score", "grade", "relevance", "rel", "label", "judgement", "judgment"),
)
"""Names of columns in a header: of the query, the document and the grade."""


CONFLICTS = ("refuse", "max", "first")
_TOLD = 200


def read_qrels(source: Source, *, conflicts: str = "refuse") -> Qrels:
    """Read judgements from a BEIR TSV or a TREC qrels file; the first line tells which.

        query-id <tab> corpus-id <tab> score     BEIR; with or without this header; ids may hold spaces.
                                                 A header may name the columns in another order
        query-id,corpus-id,score                 the same with commas
        query iteration document grade           TREC; any white space; the iteration is ignored

    Grades are integers, also written as ``2.0``; 0 and less mean not relevant. Plain or gzip'd; ``-`` is
    standard input. conflicts: of a document that is judged twice with different grades, ``refuse`` the file,
    or take the ``max`` or the ``first``.

    Raises InputError as ``FILE:LINE: what; what to do``: a wrong number of columns, a grade that is no
    integer, documents judged twice with different grades, a file without judgements.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "qrels.txt"
    ...     _ = path.write_text("q1 0 d7 2\\n")
    ...     qrels = read_qrels(path)
    >>> qrels["q1"]
    {'d7': 2}
    """
    if conflicts not in CONFLICTS:
        raise UsageError(f"{setting_hint('conflicts')} {conflicts!r} is none of {', '.join(CONFLICTS)}")
    name = name_of(source)
    judgements: dict[tuple[str, str], int] = {}
    twice: list[str] = []
    width, separator = 0, "\t"  # 3 columns = BEIR, 4 = TREC; decided by the first line
    order = (0, -2, -1)
    for number, line in read_lines(source):
        text = decode(source, number, line)
        if not width:
            if "\t" not in text and len(text.split(",")) == 3:
                separator = ","
            columns = text.split(separator)
            width = 3 if len(columns) == 3 else 4
            if width == 3 and (named := _header(columns)):
                order = named
                continue
        columns = [part.strip() for part in text.split(separator)] if width == 3 else text.split()
        if len(columns) != width or not all(columns):
            filled = sum(map(bool, columns))
            raise InputError(f"{name}:{number}: {filled} filled columns, not {width}; {_LAYOUTS}")
        query, document, written = (columns[place] for place in order)
        grade = _grade(written)
        if grade is None:
            raise InputError(f"{name}:{number}: grade {written[:40]!r} is not an integer; {_LAYOUTS}")
        if abs(grade) > LARGEST:
            raise InputError(
                f"{name}:{number}: grade {written[:40]!r} is beyond {LARGEST:,}; write small ones, as 0 to 3"
            )
        before = judgements.setdefault((query, document), grade)
        if before != grade:
            twice.append(
                f"{name}:{number}: document {document!r} was already judged {before} for query {query!r},"
                f" now {grade}"
                if not twice
                else f"{name}:{number} ({document!r} for {query!r}: {before}, now {grade})"
            )
            if conflicts == "max":
                judgements[query, document] = max(before, grade)
    if twice and conflicts == "refuse":
        more = f" and {len(twice) - _TOLD} more" if len(twice) > _TOLD else ""
        raise InputError(
            f"{', '.join(twice[:_TOLD])}{more}; keep one of the two, or say which one counts:"
            f" {setting_hint('conflicts', 'max')} or {setting_hint('conflicts', 'first')}"
        )
    if not judgements:
        raise InputError(f"{name}: no judgements; {_LAYOUTS}")
    return Qrels((query, document, grade) for (query, document), grade in judgements.items())


LARGEST = 1000
"""Of grades: trec_eval takes time that grows with their square."""


def _header(columns: list[str]) -> tuple[int, int, int] | None:
    """Where a header has query, document and grade; None for a line that is none."""
    names = [column.strip().strip('"').lower().replace("_", "-").replace(" ", "-") for column in columns]
    found = [next((i for i, name in enumerate(names) if name in known), -1) for known in _COLUMNS]
    if -1 not in found:
        return found[0], found[1], found[2]
    return (0, 1, 2) if found[0] == 0 else None


def _grade(text: str) -> int | None:
    """An integer, also one that is written with a point: ``2.0``."""
    try:
        value = float(text)
    except ValueError:
        return None
    return int(value) if value.is_integer() else None
