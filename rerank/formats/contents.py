"""Name the kind of a file by one of its lines, for errors about files in the wrong place."""

from __future__ import annotations

import re

import msgspec

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|nan)", re.IGNORECASE)


def describe_line(text: str) -> str | None:
    """Return the kind of file that has such a line, or None if it is unclear.

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
    if text.startswith("["):
        return "a JSON array"
    if text.startswith("<"):
        return "HTML" if re.match(r"<(!doctype )?html", text, re.IGNORECASE) else "XML"
    words = text.split()
    if len(words) == 6 and _NUMBER.fullmatch(words[4]):
        return "a TREC run"
    if len(words) == 4 and re.fullmatch(r"-?\d+", words[3]):
        return "judgments (TREC)"
    for separator, kind in (("\t", "TSV"), (",", "CSV"), (";", "CSV with semicolons")):
        cells = [cell.strip(' "') for cell in text.split(separator)]
        if len(cells) == 3 and (_NUMBER.fullmatch(cells[2]) or cells[2].lower() in ("score", "grade")):
            return f"judgments ({kind})"
        if len(cells) > 1 and (separator == "\t" or len(cells) > 2):
            return f"a table ({kind})"
    return None


def _describe_object(text: str) -> str | None:
    try:
        fields = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, RecursionError):
        return None
    if {"query", "document"} <= fields.keys():
        return "pairs of texts (JSON lines)"
    if "title" in fields:
        return "documents (JSON lines)"
    return "queries or documents (JSON lines)" if "text" in fields else "JSON lines"
