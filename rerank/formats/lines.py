"""Read numbered lines and JSON records."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from difflib import get_close_matches
from functools import partial
from itertools import chain
from typing import Any, NoReturn, TypeVar

import msgspec

from rerank.common.errors import InputError
from rerank.common.values import first_in, items_at, without
from rerank.documents.text import join_names
from rerank.formats.contents import describe_line
from rerank.formats.opening import DAMAGE, Source, name_of, open_source, reading_error

Record = TypeVar("Record", bound=msgspec.Struct)
Value = TypeVar("Value")
Build = Callable[[str, dict[str, Any], Record], Value]
"""Makes a value of FILE:LINE, all fields, and the checked fields."""

OnInvalid = Callable[[InputError], object]
"""Receives the error of an invalid record, which is then skipped."""

Line = tuple[int, bytes]
"""Number, from 1, and bytes with the end of the line."""

_TYPES = {"str": "string", "int": "integer", "float": "number", "bool": "boolean", "array": "list"}
_ALIASES = {"_id": ("id", "docid", "doc_id", "query_id", "qid"), "text": ("body", "content", "query")}
"""Field -> other names of it that users write."""
_NOT_FINITE = re.compile(rb"-?(NaN|Infinity|nan|inf)\b")
_LONE_SURROGATE = re.compile(
    r"\\u[dD][89abAB]\w\w(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]\w\w)\\u[dD][c-fC-F]\w\w"
)
LONGEST = 2**28  # bytes; 10 MB of gzip can be a line of 10 GB


def read_numbered_lines(source: Source) -> Iterator[Line]:
    """Yield the number and the bytes of each line, also of blank lines.

    source: a path, plain or compressed, or ``-`` for standard input.

    Raises InputError for an unreadable or damaged file, or a line above 256 MB.
    """
    name = name_of(source)
    number = 0
    with open_source(source) as file:
        try:
            for number, line in enumerate(iter(partial(file.readline, LONGEST + 1), b""), 1):
                if len(line) > LONGEST:
                    raise InputError(
                        f"{name}:{number}: a line of more than {LONGEST:,} bytes; write one record per line"
                    )
                yield number, line
        except (OSError, *DAMAGE) as error:
            raise reading_error(name, number + 1, error) from error


def read_lines(source: Source) -> Iterator[tuple[str, bytes]]:
    """Yield (FILE:LINE, bytes) for each line that is not blank, without its end.

    Raises InputError as :func:`read_numbered_lines`.
    """
    name = name_of(source)
    for number, line in read_numbered_lines(source):
        if not line.isspace():
            yield f"{name}:{number}", line.rstrip(b"\r\n")


def decode(location: str, line: bytes) -> str:
    """Decode UTF-8. Raises InputError with the first wrong byte.

    >>> decode("queries.jsonl:3", b"caf\\xe9")
    Traceback (most recent call last):
    rerank.common.errors.InputError: queries.jsonl:3: byte 4 (0xe9) is not UTF-8; convert the file to UTF-8
    """
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{location}: byte {error.start + 1} (0x{line[error.start]:02x}) is not UTF-8; "
            "convert the file to UTF-8"
        ) from error


def read_texts(source: Source) -> Iterator[tuple[str, str]]:
    """Yield (FILE:LINE, text) as :func:`read_lines`. Raises InputError, also for a line that is not UTF-8."""
    for location, line in read_lines(source):
        yield location, decode(location, line)


def number(text: str) -> float:
    """Return the number that a text is, or NaN. Callers test the value that they need."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def check_columns(
    location: str, columns: Sequence[str], count: int, layout: str, required: Sequence[int] | None = None
) -> None:
    """Raise InputError unless there are ``count`` columns, and required ones are filled (default: all)."""
    if required is None:
        required = range(count)
    if len(columns) != count or not all(items_at(columns, required)):
        filled = sum(map(bool, columns))
        raise InputError(f"{location}: {filled} filled columns, not {count}; {layout}")


def raise_invalid(error: InputError) -> NoReturn:
    """Raise the error of an invalid record. Functions that skip such records receive another function."""
    raise error


def read_json_lines(
    source: Source,
    kind: type[Record],
    build: Build[Record, Value],
    invalid: OnInvalid = raise_invalid,
) -> Iterator[Value]:
    """Yield ``build(FILE:LINE, fields, record)`` for each JSON object, or each item of a JSON array.

    kind: the fields to check. invalid: receives the errors of invalid records, which are then skipped.
    """
    yield from parse_json_lines(name_of(source), read_numbered_lines(source), kind, build, invalid)


def parse_json_lines(
    name: str,
    lines: Iterator[Line],
    kind: type[Record],
    build: Build[Record, Value],
    invalid: OnInvalid = raise_invalid,
) -> Iterator[Value]:
    """Yield the records of numbered lines of the file ``name``, as :func:`read_json_lines`."""
    first, lines = first_line(lines)
    items = line_items(name, lines)
    if first.startswith(b"["):
        items = array_items(name, lines)
    for location, text in items:
        try:
            fields = _parse_object(location, decode(location, text))
            value = build(location, fields, check_fields(location, fields, kind))
        except InputError as error:
            invalid(error)
            continue
        yield value


def first_line(lines: Iterator[Line]) -> tuple[bytes, Iterator[Line]]:
    """Return the first line that is not blank, stripped, and all lines from it on."""
    for number, line in lines:
        stripped = line.strip()
        if stripped:
            return stripped, chain([(number, line)], lines)
    return b"", iter(())


def line_items(name: str, lines: Iterable[Line]) -> Iterator[tuple[str, bytes]]:
    """Yield the location and the stripped bytes of each line that is not blank."""
    for number, line in lines:
        stripped = line.strip()
        if stripped:
            yield f"{name}:{number}", stripped


def read_whole(name: str, lines: Iterable[Line], kind: str, remedy: str) -> bytearray:
    """Return all lines of a file in one text. Raises InputError above 256 MB.

    kind: of the content, and remedy: for the error.
    """
    content = bytearray()
    for number, line in lines:
        content += line
        if len(content) > LONGEST:
            raise InputError(f"{name}:{number}: {kind} of more than {LONGEST:,} bytes; {remedy}")
    return content


def array_items(name: str, lines: Iterator[Line]) -> Iterator[tuple[str, bytes]]:
    """Yield the location and the text of each item of a JSON array, which is read at once."""
    remedy = "write one object per line, for example with `jq -c '.[]'`"
    content = read_whole(name, lines, "a JSON array", remedy)
    try:
        items = msgspec.json.decode(content, type=list[msgspec.Raw])
    except (msgspec.DecodeError, RecursionError):
        yield from line_items(name, enumerate(bytes(content).splitlines(), 1))  # errors with lines
        return
    for position, item in enumerate(items, 1):
        yield f"{name}: item {position}", bytes(item)


def _parse_object(location: str, text: str) -> dict[str, Any]:
    remedy = "write one JSON object per line"
    try:
        fields = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        if text == "{":
            remedy += ", for example with `jq -c .`"
        raise InputError(f"{location}: {describe_invalid_json(text, error)}; {remedy}") from error
    if not isinstance(fields, dict):
        raise InputError(f"{location}: not a JSON object; {remedy}")
    return fields


def describe_invalid_json(text: str, error: Exception) -> str:
    """Return the problem of a text that is not JSON: it looks like another kind of file, or has an error."""
    kind = describe_line(text)
    if kind:
        return f"not JSON, it looks like {kind}"
    return f"invalid JSON ({_describe_error(error, text)})"


def _describe_error(error: Exception, text: str) -> str:
    """Return the problem of an invalid JSON text in words of JSON."""
    problem = str(error).removeprefix("JSON is malformed: ").partition(" - at ")[0]
    position = re.search(r"\(byte (\d+)\)", problem)
    value = position and _NOT_FINITE.match(text.encode(), int(position[1]))
    if value:
        return f"{value[0].decode()} is not a number of JSON, use null"
    if _LONE_SURROGATE.search(text):
        return "half of a pair of surrogates such as \\ud83d\\ude00"
    return problem


def check_fields(location: str, fields: dict[str, Any], kind: type[Record]) -> Record:
    """Return the fields of ``kind``. Raises InputError for a missing field or a wrong type.

    location: FILE:LINE. fields: all fields of the record, also fields that ``kind`` does not have.
    """
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        known_fields = {field.encode_name for field in msgspec.structs.fields(kind)}
        problem = _describe_field(error, fields, known_fields)
    raise InputError(f"{location}: {problem}")


def rename_or_add(other_names: Sequence[str]) -> str:
    """Return the remedy for a missing field or column.

    other_names: of the fields or columns that have no meaning yet; one of them may be the missing one.

    >>> rename_or_add(["sku", "price"]), rename_or_add(["sku"]), rename_or_add([])
    ('rename one of sku, price, or add it', 'rename sku, or add it', 'add it')
    """
    if not other_names:
        return "add it"
    if len(other_names) == 1:
        return f"rename {join_names(other_names)}, or add it"
    return f"rename one of {join_names(other_names)}, or add it"


def _describe_field(
    error: msgspec.ValidationError, fields: Mapping[str, object], known_fields: Set[str]
) -> str:
    """Return the problem of a field, in words of JSON, and its remedy.

    known_fields: names of the fields that a record of this kind can have.
    """
    message, _, path = str(error).replace("`", "").partition(" - at ")
    missing = re.fullmatch("Object missing required field (.*)", message)
    if missing is not None:
        field = missing[1]
        similar = _similar_field(field, fields)
        if similar is not None:
            return f'missing field {field}; rename "{similar}" to "{field}"'
        return f"missing field {field}; {rename_or_add(list(without(fields, known_fields)))}"
    message = message[0].lower() + message[1:].replace(" | ", " or ")
    message = re.sub(r"\b(str|int|float|bool|array)\b", lambda name: _TYPES[name[0]], message)
    name = path.removeprefix("$").removeprefix(".")
    if not name:
        return f"{message}; correct it"
    return f"{name}: {message}; correct it"


def _similar_field(field: str, names: Iterable[str]) -> str | None:
    """Return the name that a user probably wrote instead of the field, or None."""
    other_names = [name for name in names if name != field]
    alias = first_in(_ALIASES.get(field, ()), other_names)
    similar_names = get_close_matches(field.lower(), other_names, 1, 0.75)
    return alias or next(iter(similar_names), None)
