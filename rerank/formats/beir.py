"""Documents and queries as BEIR's JSON lines, with categories, links and a language beside the text."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from rerank.errors import InputError
from rerank.formats.lines import Source, decode, name_of, read_lines
from rerank.records import Document, Query
from rerank.references import CitationCounts, find_doi, named_key

_DOCUMENT_FIELDS = frozenset({"_id", "title", "text", "categories", "links", "lang"})
_QUERY_FIELDS = frozenset({"_id", "text", "lexical_text", "categories", "lang"})


def read_corpus(
    source: Source,
    *,
    skip_invalid: bool = False,
    invalid: Callable[[InputError], object] | None = None,
    counts: CitationCounts | None = None,
) -> Iterator[Document]:
    """Stream documents from JSON lines: ``{"_id", "title"?, "text"?, "categories"?, "links"?, "lang"?}``.

    ``source`` is a path, or ``-`` for standard input; gzip is recognized by its content. One line is held
    in memory at a time. Ids may be JSON strings or integers. ``categories`` and ``links`` may be a list, one
    string, null or missing; a category that is named twice is kept once. Other fields go to ``extra``.

    ``citations``, ``[{"ref", "section"?, "paragraph"?, "sentence"?, "text"?}]``, and ``references``,
    ``{ref: title}``, go there, too, with references named as :func:`rerank.references.named_key` does. Those
    that cite nothing are left out, and counted in ``counts``.

    With ``skip_invalid``, a line that is not a usable document is left out and its error is passed to
    ``invalid`` (for instance the ``append`` of a list). A missing file and damaged gzip are always raised.

    Raises InputError as ``FILE:LINE: what; what to do``.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "corpus.jsonl"
    ...     _ = path.write_text('{"_id": 7, "title": "Sorting", "categories": "algorithms", "year": 1962}')
    ...     document = next(read_corpus(path))
    >>> document.id, document.categories, document.extra
    ('7', ('algorithms',), {'year': 1962})
    """
    counts = CitationCounts() if counts is None else counts
    for number, line in read_lines(source):
        try:
            record = _Record(source, number, line)
            cited = record.citations(counts)
            document = Document(
                id=record.id(),
                title=record.text("title"),
                text=record.text("text"),
                categories=record.categories(),
                links=record.names("links"),
                lang=record.text("lang") or None,
                extra={n: value for n, value in record.fields.items() if n not in _DOCUMENT_FIELDS} | cited,
            )
        except InputError as error:
            if not skip_invalid:
                raise
            counts.skipped += 1
            if invalid is not None:
                invalid(error)
            continue
        yield document


def read_queries(source: Source) -> list[Query]:
    """Read queries from JSON lines: ``{"_id", "text", "lexical_text"?, "categories"?, "lang"?}``, in order.

    Other fields go to ``params``. A text may be empty (the query then retrieves nothing) but not missing.

    Raises InputError as ``FILE:LINE: what; what to do``, also for an id that occurs twice, and for a file
    without queries.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "queries.jsonl"
    ...     _ = path.write_text('{"_id": "q1", "text": "wolves at night"}\\n')
    ...     read_queries(path)[0].text
    'wolves at night'
    """
    queries: list[Query] = []
    first_seen: dict[str, int] = {}
    for number, line in read_lines(source):
        record = _Record(source, number, line)
        query = Query(
            id=record.id(),
            text=record.required_text("text"),
            categories=record.categories(),
            lang=record.text("lang") or None,
            params={name: value for name, value in record.fields.items() if name not in _QUERY_FIELDS},
            lexical_text=record.text("lexical_text") or None,
        )
        if query.id in first_seen:
            raise record.error(
                f"query id {query.id!r} was already used on line {first_seen[query.id]}",
                "give each query its own id",
            )
        first_seen[query.id] = number
        queries.append(query)
    if not queries:
        raise InputError(f'{name_of(source)}: no queries; write one a line: {{"_id": ..., "text": ...}}')
    return queries


_QUERY_SAMPLE = 200
_QUERY_WORDS = 20


def looks_like_queries(source: Source) -> bool:
    """Whether a file that is taken for documents holds queries, as far as its first lines tell.

    True if no record has a title, links or other fields of a document, and the file's name says so or half
    of the texts are short questions. False for a file that cannot be read, and for standard input.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "queries.jsonl"
    ...     _ = path.write_text('{"_id": "q1", "text": "what do wolves hunt"}')
    ...     looks_like_queries(path)
    True
    """
    if str(source) == "-":
        return False
    try:
        some = list(islice(read_corpus(source), _QUERY_SAMPLE))
    except (InputError, OSError):  # it will be said when it is ingested
        return False
    if not some or any(d.title or d.links or d.extra for d in some):
        return False
    if "quer" in Path(source).name.lower():
        return True
    short = sum(len(d.text.split()) for d in some) <= _QUERY_WORDS * len(some)
    return short and 2 * sum(d.text.rstrip().endswith("?") for d in some) >= len(some)


class _Record:
    """One line, parsed, with typed access to its fields and errors that say where it stands."""

    def __init__(self, source: Source, number: int, line: bytes) -> None:
        self.where = f"{name_of(source)}:{number}"
        text = decode(source, number, line)
        try:
            fields = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
        except json.JSONDecodeError as error:
            raise self.error(
                f"broken JSON at column {error.colno} ({error.msg})",
                'each line must be one JSON object, {"_id": "1", "text": "..."}',
            ) from error
        except (ValueError, RecursionError) as error:  # NaN, or a number or nesting that is too large
            raise self.error(f"unreadable JSON ({error})", "each line must be one JSON object") from error
        if not isinstance(fields, dict):
            raise self.error(
                f"a JSON {_json_type(fields)}, not an object", 'write each record as {"_id": ..., ...}'
            )
        if b"\\u" in line:
            self._refuse_surrogates(fields)
        self.fields: dict[str, Any] = fields

    def error(self, what: str, what_to_do: str) -> InputError:
        return InputError(f"{self.where}: {what}; {what_to_do}")

    def id(self) -> str:
        value = self.fields.get("_id")
        if value is None:
            other = next(
                (name for name in ("id", "docid", "doc_id", "query_id", "qid") if name in self.fields), ""
            )
            raise self.error(
                "no _id", f'rename "{other}" to "_id"' if other else 'give every record an "_id"'
            )
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            raise self.error(f"_id is a JSON {_json_type(value)}", "write it as a string")
        name = str(value)
        if not name.strip():
            raise self.error("_id is empty", 'give every record an "_id"')
        return name

    def text(self, field: str) -> str:
        value = self.fields.get(field)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise self.error(f"{field} is a JSON {_json_type(value)}", "write it as a string")
        return value

    def required_text(self, field: str) -> str:
        if self.fields.get(field) is None:
            raise self.error(f"no {field}", f'give every query a "{field}"')
        return self.text(field)

    def categories(self) -> tuple[str, ...]:
        stripped = (name.strip() for name in self.names("categories"))
        return tuple(dict.fromkeys(name for name in stripped if name))

    def citations(self, counts: CitationCounts) -> dict[str, Any]:
        """The fields ``citations`` and ``references``, as far as there are any, keys written one way."""
        found: dict[str, Any] = {}
        titles = self.fields.get("references")
        if titles is not None:
            wanted = 'write {"references": {REF: TITLE}}'
            if not isinstance(titles, dict):
                raise self.error(f"references is a JSON {_json_type(titles)}", wanted)
            for title in titles.values():
                if not isinstance(title, str):
                    raise self.error(f"references holds a title that is a JSON {_json_type(title)}", wanted)
            found["references"] = {named_key(ref): title for ref, title in titles.items()}
        rows = self.fields.get("citations")
        if rows is not None:
            wanted = 'write {"citations": [{"ref": ..., "section": ..., "paragraph": ..., "sentence": ...}]}'
            if not isinstance(rows, list):
                raise self.error(f"citations is a JSON {_json_type(rows)}", wanted)
            read = [self._citation(row, wanted) for row in rows]
            found["citations"] = [row for row in read if row["ref"]]
            counts.mentions += len(read)
            counts.unresolved += len(read) - len(found["citations"])
        if found:
            cited = found.get("references", {}).keys() | {row["ref"] for row in found.get("citations", ())}
            counts.articles += 1
            counts.without_body += not found.get("citations")
            counts.without_references += not cited
            counts.references += len(cited)
            counts.with_doi += sum(bool(find_doi(ref)) for ref in cited)
        return found

    def _citation(self, row: object, wanted: str) -> dict[str, Any]:
        row = {"ref": row} if isinstance(row, str) else row
        if not isinstance(row, dict):
            raise self.error(f"citations holds a JSON {_json_type(row)}", wanted)
        read: dict[str, Any] = {}
        for name in ("ref", "section", "paragraph", "sentence", "text"):
            value = row.get(name)
            if isinstance(value, bool) or not isinstance(value, (str, int, type(None))):
                raise self.error(f"{name} of a citation is a JSON {_json_type(value)}", wanted)
            if value is not None:
                read[name] = value
        return {**read, "ref": named_key(str(read.get("ref", "")))}

    def names(self, field: str) -> tuple[str, ...]:
        value = self.fields.get(field)
        if value is None:
            return ()
        if isinstance(value, str):
            return (value,)
        if not isinstance(value, list):
            raise self.error(f"{field} is a JSON {_json_type(value)}", "write it as a list of strings")
        for item in value:
            if isinstance(item, bool) or not isinstance(item, (str, int)):
                raise self.error(f"{field} holds a JSON {_json_type(item)}", "write it as a list of strings")
        return tuple(map(str, value))

    def _refuse_surrogates(self, fields: dict[str, Any]) -> None:
        """Refuse half of a surrogate pair: JSON can spell it, but no text can hold or store it."""
        try:
            json.dumps(fields, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError as error:
            raise self.error(
                f"half of a surrogate pair (\\u{ord(error.object[error.start]):04x})",
                "repair the text's encoding",
            ) from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number: null says that there is none")


def _finite(number: str) -> float:
    """Read a number. One beyond the range would be stored as null."""
    value = float(number)
    if math.isinf(value):
        raise ValueError(f"{number[:40]} is too large a number")
    return value


def _json_type(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    return {str: "string", int: "number", float: "number", list: "list", dict: "object"}[type(value)]
