"""Name the kind of a file by one of its lines, for errors about files in the wrong place."""

from __future__ import annotations

import re

import msgspec

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|nan)", re.IGNORECASE)
_KINDS = (
    (re.compile(r"\["), "a JSON array"),
    (re.compile(r"<(!doctype )?html", re.IGNORECASE), "HTML"),
    (re.compile("<"), "XML"),
    (re.compile(rf"(\S+\s+){{4}}({_NUMBER.pattern})\s+\S+\Z", re.IGNORECASE), "a TREC run"),
    (re.compile(r"(\S+\s+){3}-?\d+\Z"), "judgments (TREC)"),
)
"""Beginning of a line, or the whole line -> kind of file; the first that matches."""
_GRADE = re.compile(rf"{_NUMBER.pattern}|score|grade", re.IGNORECASE)
"""A grade, or the name of the column of grades."""
_OBJECTS = (
    ({"query", "document"}, "pairs of texts (JSON lines)"),
    ({"title"}, "documents (JSON lines)"),
    ({"text"}, "queries or documents (JSON lines)"),
)
"""Names of fields -> kind of file with a JSON object that has all of them; the first that fits."""
_TABLES = (("\t", "TSV", 2), (",", "CSV", 3), (";", "CSV with semicolons", 3))
"""Separator, kind of table, and its smallest number of cells: a sentence can have a comma."""


def describe_line(text: str) -> str:
    """Return the kind of file that has such a line; empty if it is unclear.

    >>> describe_line("q1 0 d7 2")
    'judgments (TREC)'
    >>> describe_line("q1 Q0 d7 1 12.5 bm25")
    'a TREC run'
    >>> describe_line('{"_id": "q1", "text": "wolves"}')
    'queries or documents (JSON lines)'
    """
    text = text.strip()
    if text.startswith("{"):
        return _describe_object(text)
    for beginning, kind in _KINDS:
        if beginning.match(text):
            return kind
    return _describe_table(text)


def _describe_table(text: str) -> str:
    for separator, kind, least_cells in _TABLES:
        cells = text.split(separator)
        if len(cells) == 3 and _GRADE.fullmatch(cells[2].strip(' "')):
            return f"judgments ({kind})"
        if len(cells) >= least_cells:
            return f"a table ({kind})"
    return ""


def _describe_object(text: str) -> str:
    try:
        fields = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, RecursionError):
        return ""
    for names, kind in _OBJECTS:
        if fields.keys() >= names:
            return kind
    return "JSON lines"
