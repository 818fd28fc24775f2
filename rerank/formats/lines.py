"""Numbered lines of a text file, plain or gzip'd, or of standard input; shared by every reader here."""

from __future__ import annotations

import errno
import gzip
import io
import os
import sys
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import BinaryIO, cast

from rerank.errors import InputError

Source = str | os.PathLike[str]

_GZIP = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"
_LONGEST = 2**28  # bytes of a line: 10 MB of gzip may be 10 GB without an end


def name_of(source: Source) -> str:
    """Return how messages call this source: its path, or ``<stdin>`` for ``-``."""
    name = os.fspath(source)
    return "<stdin>" if name == "-" else name


def read_lines(source: Source) -> Iterator[tuple[int, bytes]]:
    """Yield (line number from 1, line without its end) for each line that is not blank.

    ``-`` is standard input. Gzip is known by its first two bytes, not by the file's name. A byte order
    mark is dropped. Lines are bytes: :func:`decode` turns one into text.

    Raises InputError for a missing or unreadable file, a folder, damaged gzip, and a line without end.
    """
    name = name_of(source)
    number = 0
    with ExitStack() as stack:
        try:
            file = _open(source, stack)
            for number, line in enumerate(iter(partial(file.readline, _LONGEST + 1), b""), 1):
                if len(line) > _LONGEST:
                    raise InputError(
                        f"{name}:{number}: a line of more than {_LONGEST:,} bytes; is each record on a line"
                        " of its own?"
                    )
                if number == 1:
                    line = line.removeprefix(_BOM)
                line = line.rstrip(b"\r\n")
                if line and not line.isspace():
                    yield number, line
        except EOFError as error:
            raise InputError(
                f"{name}:{number + 1}: the gzip file ends too early; copy or download it again"
            ) from error
        except (gzip.BadGzipFile, zlib.error) as error:
            raise InputError(
                f"{name}:{number + 1}: damaged gzip ({error}); copy or download it again"
            ) from error
        except OSError as error:
            raise _unreadable(name, error) from error


def decode(source: Source, number: int, line: bytes) -> str:
    """Decode a line as UTF-8. Raises InputError with the place of the first wrong byte.

    >>> decode("queries.jsonl", 3, b"caf\\xe9")
    Traceback (most recent call last):
    rerank.errors.InputError: queries.jsonl:3: byte 4 (0xe9) is not UTF-8; convert the file to UTF-8
    """
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{name_of(source)}:{number}: byte {error.start + 1} (0x{line[error.start]:02x}) is not UTF-8; "
            "convert the file to UTF-8"
        ) from error


def _open(source: Source, stack: ExitStack) -> BinaryIO:
    name = os.fspath(source)
    if name == "-":
        raw: BinaryIO = sys.stdin.buffer  # left open: it is not ours
    else:
        raw = stack.enter_context(open(name, "rb"))  # noqa: SIM115 (closed by the stack)
    if not isinstance(raw, io.BufferedReader):  # a stand-in for standard input, as test runners make
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
