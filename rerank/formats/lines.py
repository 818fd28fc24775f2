"""Read numbered lines, plain or gzip."""

from __future__ import annotations

import errno
import gzip
import io
import math
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, BinaryIO, TypeVar, cast

import msgspec

from rerank.errors import InputError

Source = str | os.PathLike[str]
Record = TypeVar("Record", bound=msgspec.Struct)
Value = TypeVar("Value")

_TYPES = {"str": "string", "int": "integer", "float": "number", "bool": "boolean", "array": "list"}
_GZIP = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"
LONGEST = 2**28  # bytes; 10 MB of gzip can be a line of 10 GB


def name_of(source: Source) -> str:
    """Return the path or ``<stdin>``."""
    name = os.fspath(source)
    return "<stdin>" if name == "-" else name


def read_lines(source: Source) -> Iterator[tuple[str, bytes]]:
    """Yield (FILE:LINE, bytes) for each line that is not blank.

    source: a path, plain or gzip, or ``-`` for standard input.

    Raises InputError for an unreadable file, corrupt gzip, or a line above 256 MB.
    """
    name = name_of(source)
    number = 0
    with ExitStack() as stack:
        try:
            file = _open(source, stack)
            for number, line in enumerate(iter(partial(file.readline, LONGEST + 1), b""), 1):
                if len(line) > LONGEST:
                    raise InputError(
                        f"{name}:{number}: a line of more than {LONGEST:,} bytes; write one record per line"
                    )
                if number == 1:
                    line = line.removeprefix(_BOM)
                line = line.rstrip(b"\r\n")
                if line and not line.isspace():
                    yield f"{name}:{number}", line
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise InputError(
                f"{name}:{number + 1}: truncated or damaged gzip ({error}); copy or download it again"
            ) from error
        except OSError as error:
            raise _unreadable(name, error) from error


def decode(where: str, line: bytes) -> str:
    """Decode UTF-8. Raises InputError with the first wrong byte.

    >>> decode("queries.jsonl:3", b"caf\\xe9")
    Traceback (most recent call last):
    rerank.errors.InputError: queries.jsonl:3: byte 4 (0xe9) is not UTF-8; convert the file to UTF-8
    """
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{where}: byte {error.start + 1} (0x{line[error.start]:02x}) is not UTF-8; "
            "convert the file to UTF-8"
        ) from error


def read_texts(source: Source) -> Iterator[tuple[str, str]]:
    """Yield (FILE:LINE, text) as :func:`read_lines`. Raises InputError, also for a line that is not UTF-8."""
    for where, line in read_lines(source):
        yield where, decode(where, line)


def number(text: str) -> float:
    """Return a number, or NaN."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def read_rows(
    source: Source, header: Sequence[str], layout: str, least: int | None = None
) -> Iterator[tuple[str, list[str]]]:
    """Yield (FILE:LINE, columns) of each line, separated by tabs; the first may be the header.

    layout: for errors. least: number of required columns. Default: all.

    Raises InputError, also for another number of columns.
    """
    least = least or len(header)
    for number, (where, text) in enumerate(read_texts(source)):
        columns = [column.strip() for column in text.split("\t")]
        if not number and len(columns) > 1 and [one.lower() for one in columns] == [*header[: len(columns)]]:
            continue
        count = len(columns) if least < len(columns) <= len(header) else least
        check_columns(where, columns, count, layout)
        yield where, columns


def check_columns(where: str, columns: Sequence[str], count: int, layout: str) -> None:
    """Raise InputError unless there are ``count`` columns without an empty one."""
    if len(columns) != count or not all(columns):
        filled = sum(map(bool, columns))
        raise InputError(f"{where}: {filled} filled columns, not {count}; {layout}")


def read_json_lines(
    source: Source,
    kind: type[Record],
    build: Callable[[str, dict[str, Any], Record], Value],
    skip: Callable[[InputError], object] | None = None,
) -> Iterator[Value]:
    """Yield ``build(FILE:LINE, fields, record)`` for each JSON object.

    kind: the fields to check. skip: receives errors; None: raise them.
    """
    for where, line in read_lines(source):
        try:
            value = build(where, *_record(where, decode(where, line), kind))
        except InputError as error:
            if skip is None:
                raise
            skip(error)
            continue
        yield value


def _record(where: str, text: str, kind: type[Record]) -> tuple[dict[str, Any], Record]:
    """Return all fields, and the fields of ``kind``. Raises InputError."""
    try:
        fields = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        problem = str(error).removeprefix("JSON is malformed: ").partition(" - at ")[0]
        raise InputError(f"{where}: invalid JSON ({problem}); write one JSON object per line") from error
    if not isinstance(fields, dict):
        raise InputError(f"{where}: not a JSON object; write one JSON object per line")
    try:
        return fields, msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        message, _, path = str(error).replace("`", "").partition(" - at ")
        if missing := re.fullmatch("Object missing required field (.*)", message):
            other = {"_id": ("id", "docid", "doc_id", "query_id", "qid")}.get(missing[1], ())
            typo = next((one for one in other if one in fields), None)
            action = f'rename "{typo}" to "{missing[1]}"' if typo else "add it"
            raise InputError(f"{where}: missing field {missing[1]}; {action}") from None
        message = message[0].lower() + message[1:].replace(" | ", " or ")
        message = re.sub(r"\b(str|int|float|bool|array)\b", lambda name: _TYPES[name[0]], message)
        name = path.removeprefix("$").removeprefix(".")
        raise InputError(f"{where}: {f'{name}: ' if name else ''}{message}; correct it") from None


def _open(source: Source, stack: ExitStack) -> BinaryIO:
    name = os.fspath(source)
    if name == "-":
        raw: BinaryIO = sys.stdin.buffer  # not closed
    else:
        raw = stack.enter_context(open(name, "rb"))  # noqa: SIM115 (closed by the stack)
    if not isinstance(raw, io.BufferedReader):  # standard input of a test runner
        raw = io.BufferedReader(io.BytesIO(raw.read()))
    if raw.peek(2)[:2] == _GZIP:
        return cast("BinaryIO", stack.enter_context(gzip.GzipFile(fileobj=raw, mode="rb")))
    return raw


def _unreadable(name: str, error: OSError) -> InputError:
    if error.errno == errno.ENOENT:
        return InputError(f"{name}: no such file; check the path")
    if error.errno == errno.EISDIR:
        return InputError(f"{name}: is a folder; name the file inside it")
    return InputError(f"{name}: cannot be read: {error.strerror or error}; check its permissions")
