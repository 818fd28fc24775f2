"""Click logs: User Behavior Insights (UBI), or a table of impressions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from itertools import chain
from typing import Any

import msgspec
from msgspec import Struct

from rerank.common.errors import InputError
from rerank.common.values import items_not_in, without_empty
from rerank.formats.lines import (
    LONGEST,
    Line,
    array_items,
    decode,
    describe_invalid_json,
    first_line,
    line_items,
    read_numbered_lines,
)
from rerank.formats.opening import Source, name_of
from rerank.formats.tables import Table, read_header, skip_separator_hint, split_rows

IMPRESSION = "impression"
CLICK = "click"
_ADVICE = (
    "give records of ubi_queries and ubi_events as JSON, or a table with the columns session, query,"
    " document, rank and clicked"
)
_COLUMNS = {
    "session": ("session", "session-id", "query-id", "visit"),
    "query": ("query", "user-query", "query-text", "text"),
    "document": ("document", "document-id", "doc-id", "docid", "object-id"),
    "rank": ("rank", "position", "ordinal"),
    "clicked": ("clicked", "click", "clicks"),
}
_YES = {"1", "true", "yes", "1.0"}
_NO = {"0", "false", "no", "0.0", ""}
_SECONDS = 10**11
"""Larger numbers are milliseconds since 1970, smaller ones are seconds."""
_LATEST = 10**15
"""Larger numbers are not times."""
_DIGITS = re.compile(r"\d{1,20}")
"""Longer numbers are not times, and Python refuses numbers of more than 4,300 digits."""


class Search(Struct):
    """One record of ``ubi_queries``: a query and the documents of its answer.

    location: FILE:LINE. time: milliseconds since 1970, or None. attributes: ``query_attributes``.
    """

    location: str
    query_id: str
    text: str
    application: str = ""
    client: str = ""
    time: int | None = None
    hits: Sequence[str] = ()
    attributes: Mapping[str, Any] = {}


class Event(Struct):
    """One record of ``ubi_events``: an action of a user.

    user_query: the text of the query, if the event has it. object: fields of the document, such as
    ``object_id``. ordinal: as logged, from 0 or from 1; None: missing or not an integer. plain_ordinal:
    whether it was logged as a number.
    """

    location: str
    action: str
    query_id: str
    user_query: str | None
    object: Mapping[str, Any]
    ordinal: int | None = None
    plain_ordinal: bool = True
    application: str = ""
    client: str = ""
    time: int | None = None


class Malformed(Struct):
    """A record whose fields have other types, or that is neither a query nor an event."""

    location: str


LogRecord = Search | Event | Malformed

_ZONE_WITHOUT_COLON = re.compile(r".[+-]\d{4}\Z", re.DOTALL)
"""The end of a time such as ``12:00:00+0100``."""

_Id = str | int | float | None
_Ordinal = int | float | str | dict[str, Any] | None


class _Position(Struct):
    ordinal: _Ordinal = None


class _Attributes(Struct):
    object: dict[str, Any] | None = None
    position: _Position | None = None


class _Fields(Struct):
    """The fields of both indices."""

    action_name: str | None = None
    query_id: _Id = None
    user_query: str | None = None
    application: str | None = None
    client_id: _Id = None
    timestamp: _Id = None
    event_attributes: _Attributes | None = None
    query_response_id: _Id = None
    query_response_hit_ids: list[_Id] | None = None
    query_attributes: Any = None


class _Hit(Struct):
    source: msgspec.Raw = msgspec.field(name="_source")


class _Hits(Struct):
    hits: list[_Hit]


class _Line(_Fields):
    """A line: a record, an action of the bulk form, or a hit."""

    index: dict[str, Any] | msgspec.UnsetType | None = msgspec.UNSET
    create: dict[str, Any] | msgspec.UnsetType | None = msgspec.UNSET
    source: msgspec.Raw | msgspec.UnsetType = msgspec.field(name="_source", default=msgspec.UNSET)
    hits: _Hits | msgspec.UnsetType = msgspec.UNSET


_decode_line = msgspec.json.Decoder(_Line).decode
_decode_fields = msgspec.json.Decoder(_Fields).decode


def read_click_log(source: Source) -> Iterator[LogRecord]:
    """Yield the records of a click log, in the order of the file.

    The file has records of ``ubi_queries`` and ``ubi_events`` as JSON lines, in the form of ``_bulk``, as a
    JSON array, or as hits of ``_search``. Or it is a table with one impression per line, and the columns
    session, query, document, rank and clicked. A table without the column clicked has one click per line;
    only the columns query and document are required.

    source: a file, plain or compressed, or ``-`` for standard input.

    Raises InputError (``FILE:LINE: ...``) for a damaged file and for other content.

    >>> path = folder / "log.csv"
    >>> _ = path.write_text("session,query,document,rank,clicked\\ns1,wolf,d7,1,1\\n")
    >>> [(record.action, record.object["object_id"]) for record in read_click_log(path)]
    [('impression', 'd7'), ('click', 'd7')]
    """
    name = name_of(source)
    first, lines = first_line(skip_separator_hint(read_numbered_lines(source)))
    if not first:
        raise InputError(f"{name}: empty; {_ADVICE}")
    if first.startswith(b"["):
        for location, item in array_items(name, lines):
            yield from records_of_line(location, item)
    elif first.startswith(b"{"):
        yield from _read_json_lines(name, lines)
    else:
        yield from _read_table(name, lines, first)


def record_of_source(location: str, fields: Mapping[str, Any]) -> LogRecord:
    """Return the record that the ``_source`` of a hit contains, or a malformed one.

    location: for messages, such as the name of the index and the id.
    """
    try:
        return _record(location, msgspec.convert(fields, _Fields))
    except msgspec.ValidationError:
        return Malformed(location)


def _read_json_lines(name: str, lines: Iterator[Line]) -> Iterator[LogRecord]:
    first_number, first = next(lines)
    lines = chain([(first_number, first)], lines)
    if not _is_json(first):  # one object on several lines
        content = _read_rest(name, first_number, lines)
        yield from records_of_line(f"{name}:{first_number}", content)
        return
    for location, line in line_items(name, lines):
        yield from records_of_line(location, line)


def _is_json(line: bytes) -> bool:
    """Return whether a line is not the beginning of a JSON object on several lines."""
    try:
        msgspec.json.decode(line, type=msgspec.Raw)
    except msgspec.DecodeError:
        return not line.rstrip().endswith((b"{", b"[", b","))
    return True


def _read_rest(name: str, number: int, lines: Iterator[Line]) -> bytes:
    content = bytearray()
    for _, line in lines:
        content += line
        if len(content) > LONGEST:
            raise InputError(
                f"{name}:{number}: a JSON object of more than {LONGEST:,} bytes; write one record per line,"
                " for example with `jq -c '.hits.hits[]'`"
            )
    return bytes(content)


def records_of_line(location: str, text: bytes) -> Iterator[LogRecord]:
    """Yield the records of a JSON object: one record, none of an action, or all hits of an answer.

    Raises InputError for other text.
    """
    try:
        yield from _records_of_object(location, _decode_line(text))
    except msgspec.ValidationError:
        yield Malformed(location)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        problem = describe_invalid_json(decode(location, text), error)
        raise InputError(f"{location}: {problem}; keep UBI records and tables in separate files") from error


def _records_of_object(location: str, line: _Line) -> Iterator[LogRecord]:
    if line.source is not msgspec.UNSET:
        yield _record(location, _decode_fields(line.source))
    elif line.hits is not msgspec.UNSET:
        for position, hit in enumerate(line.hits.hits, 1):
            yield _record(f"{location}: hit {position}", _decode_fields(hit.source))
    elif line.index is msgspec.UNSET and line.create is msgspec.UNSET:
        yield _record(location, line)


def _record(location: str, fields: _Fields) -> LogRecord:
    if fields.action_name is not None:
        return _event(location, fields, fields.action_name)
    if fields.user_query is None and fields.query_response_id is None:
        return Malformed(location)
    hits = fields.query_response_hit_ids or ()
    attributes = fields.query_attributes
    if not isinstance(attributes, dict):
        attributes = {}
    return Search(
        location=location,
        query_id=_text(fields.query_id),
        text=_text(fields.user_query),
        application=_text(fields.application),
        client=_text(fields.client_id),
        time=milliseconds(fields.timestamp),
        hits=list(map(_text, hits)),
        attributes=attributes,
    )


def _event(location: str, fields: _Fields, action: str) -> Event:
    attributes = fields.event_attributes or _Attributes()
    position = attributes.position or _Position()
    return Event(
        location=location,
        action=action,
        query_id=_text(fields.query_id),
        user_query=fields.user_query,
        object=attributes.object or {},
        ordinal=_ordinal(position.ordinal),
        plain_ordinal=isinstance(position.ordinal, int | float),
        application=_text(fields.application),
        client=_text(fields.client_id),
        time=milliseconds(fields.timestamp),
    )


def _text(value: _Id) -> str:
    """Return an id as text, "" without one."""
    if value is None:
        return ""
    return str(value)


def _ordinal(value: _Ordinal) -> int | None:
    """Return a position as an integer. Versions of UBI before 1.3 write ``{"index": 3}``."""
    if type(value) is int:
        return value
    if isinstance(value, dict):
        value = value.get("index")
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    if not number.is_integer():
        return None
    return int(number)


def milliseconds(value: _Id) -> int | None:
    """Return a time as milliseconds since 1970, or None if it cannot be read.

    >>> milliseconds("1970-01-01T00:00:01.500Z"), milliseconds("1970-01-01T01:00:02+0100")
    (1500, 2000)
    >>> milliseconds(1717527762025), milliseconds("soon"), milliseconds("\u00b2")
    (1717527762025, None, None)
    """
    if isinstance(value, str):
        if not _DIGITS.fullmatch(value):
            return _milliseconds_of_text(value)
        value = int(value)
    if value is None or not abs(value) < _LATEST:
        return None
    if abs(value) < _SECONDS:
        value *= 1000
    return int(value)


def milliseconds_of_date(text: str) -> int | None:
    """Return the start of a date, or a moment, in milliseconds since 1970; None for other texts.

    The text has a form of ISO 8601, for example ``2026-01-31``, ``20260131`` and ``2026-01-31T12:00Z``; the
    default zone is UTC. Other numbers are not dates, because they can count years or seconds.

    >>> milliseconds_of_date("1970-01-02"), milliseconds_of_date("19700102"), milliseconds_of_date("2026")
    (86400000, 86400000, None)
    """
    text = text.strip()
    if text.isdecimal():
        if len(text) != len("YYYYMMDD"):
            return None
        text = f"{text[:4]}-{text[4:6]}-{text[6:]}"
    return _milliseconds_of_text(text)


def _milliseconds_of_text(text: str) -> int | None:
    text = text.strip().replace("Z", "+00:00").replace("z", "+00:00")
    if _ZONE_WITHOUT_COLON.search(text):
        text = f"{text[:-2]}:{text[-2:]}"
    seconds, point, after_point = text.partition(".")
    if point:  # Python 3.10 reads three or six digits
        digits = after_point[: len(after_point) - len(after_point.lstrip("0123456789"))]
        text = f"{seconds}.{digits[:6]:0<6}{after_point[len(digits) :]}"
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return round(moment.timestamp() * 1000)


def _read_table(name: str, lines: Iterator[Line], first: bytes) -> Iterator[LogRecord]:
    """Yield an impression of each row, and a click if the row has one. Without ``clicked``: only clicks."""
    number, header = next(lines)
    table = _read_header_of_clicks(f"{name}:{number}", first)
    has_impressions = "clicked" in table.columns
    rows = split_rows(name, chain([(number, header)], lines), table.separator)
    next(rows)
    for location, cells in rows:
        if cells[0].startswith("{"):
            raise InputError(
                f"{location}: a JSON record in a table; keep UBI records and tables in separate files"
            )
        row = table.fields(location, cells)
        event = Event(
            location=location,
            action=IMPRESSION if has_impressions else CLICK,
            query_id=row.get("session", "" if "session" in table.columns else location),
            user_query=row.get("query", ""),
            object=without_empty({"object_id": row.get("document")}),
            ordinal=_rank(row.get("rank", ""), location),
        )
        is_clicked = _is_yes(row.get("clicked", ""), location)
        yield event
        if is_clicked:
            yield msgspec.structs.replace(event, action=CLICK)


def _read_header_of_clicks(location: str, first: bytes) -> Table:
    """Read the header of a table of clicks, or of impressions if it has ``clicked``. Raises InputError."""
    table = read_header(decode(location, first), _COLUMNS)
    if table is None:
        raise InputError(f"{location}: no column query, document; {_ADVICE}")
    required = _COLUMNS if "clicked" in table.columns else ("query", "document")
    missing = items_not_in(required, table.columns)
    if missing:
        raise InputError(f"{location}: no column {', '.join(missing)}; {_ADVICE}")
    return table


def _rank(text: str, location: str) -> int | None:
    """Return the rank in a cell, or None for an empty one. Raises InputError for anything but an integer."""
    rank = _ordinal(text)
    if text and rank is None:
        raise InputError(f"{location}: rank is {text[:40]!r}, not an integer; correct it, or leave it empty")
    return rank


def _is_yes(text: str, location: str) -> bool:
    """Return whether the cell ``clicked`` is set. Raises InputError for other texts than yes and no."""
    clicked = text.lower()
    if clicked not in _YES | _NO:
        raise InputError(
            f"{location}: clicked is {clicked[:40]!r}, not 0 or 1; give one line per shown document, not"
            " a number of clicks"
        )
    return clicked in _YES
