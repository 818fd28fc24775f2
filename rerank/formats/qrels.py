"""Relevance judgements, in BEIR's or in TREC's layout."""

from __future__ import annotations

from rerank.errors import InputError
from rerank.formats.lines import Source, decode, name_of, read_lines
from rerank.records import Qrels

_LAYOUTS = "write query-id, tab, corpus-id, tab, score (BEIR) or: query iteration document grade (TREC)"
_HEADERS = ("query-id", "query_id", "queryid", "qid", "query")


def read_qrels(source: Source) -> Qrels:
    """Read judgements from a BEIR TSV or a TREC qrels file; the first line tells which.

        query-id <tab> corpus-id <tab> score     BEIR; with or without this header; ids may hold spaces
        query iteration document grade           TREC; any white space; the iteration is ignored

    Grades are integers; 0 and less mean not relevant. Plain or gzip'd; ``-`` is standard input.

    Raises InputError as ``FILE:LINE: what; what to do``: a wrong number of columns, a grade that is no
    integer, one document judged twice with different grades, a file without judgements.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "qrels.txt"
    ...     _ = path.write_text("q1 0 d7 2\\n")
    ...     qrels = read_qrels(path)
    >>> qrels["q1"]
    {'d7': 2}
    """
    name = name_of(source)
    judgements: dict[tuple[str, str], int] = {}
    width = 0  # 3 = BEIR, 4 = TREC; decided by the first line
    for number, line in read_lines(source):
        text = decode(source, number, line)
        if not width:
            columns = text.split("\t")
            width = 3 if len(columns) == 3 else 4
            if width == 3 and columns[0].strip().lower() in _HEADERS:
                continue
        columns = [part.strip() for part in text.split("\t")] if width == 3 else text.split()
        if len(columns) != width or not all(columns):
            filled = sum(map(bool, columns))
            raise InputError(f"{name}:{number}: {filled} filled columns, not {width}; {_LAYOUTS}")
        query, document, grade_text = columns[0], columns[-2], columns[-1]
        try:
            grade = int(grade_text)
        except ValueError:
            raise InputError(f"{name}:{number}: grade {grade_text!r} is not an integer; {_LAYOUTS}") from None
        if judgements.setdefault((query, document), grade) != grade:
            raise InputError(
                f"{name}:{number}: document {document!r} was already judged {judgements[query, document]} "
                f"for query {query!r}, now {grade}; keep one of the two"
            )
    if not judgements:
        raise InputError(f"{name}: no judgements; {_LAYOUTS}")
    return Qrels((query, document, grade) for (query, document), grade in judgements.items())
