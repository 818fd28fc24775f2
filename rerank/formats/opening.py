"""Open files in the compressions and encodings that users have, as UTF-8."""

from __future__ import annotations

import bz2
import codecs
import errno
import gzip
import io
import lzma
import os
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any, BinaryIO, TypeVar, cast

from rerank.common.errors import InputError, UsageError
from rerank.common.files import system_reason

Source = str | os.PathLike[str]
Value = TypeVar("Value")

DAMAGE = (
    EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError, zipfile.BadZipFile,
    NotImplementedError, RuntimeError,
)  # fmt: skip
"""Errors of damaged, encrypted or unknown compressed data. bz2 raises OSError without a number."""

_MAX_LAYERS = 3  # for example UTF-16 in gzip in zip
_UTF_8_BOM = b"\xef\xbb\xbf"
_ENCODINGS = {
    b"\xff\xfe\x00\x00": "utf-32",
    b"\x00\x00\xfe\xff": "utf-32",
    b"\xff\xfe": "utf-16",
    b"\xfe\xff": "utf-16",
}
"""Byte order mark -> encoding; UTF-32 begins like UTF-16."""
_ENCODINGS_WITHOUT_MARK: dict[tuple[bool, ...], str] = {
    (True, False): "utf-16-le",
    (False, True): "utf-16-be",
}
"""Whether the first and the second byte of an ASCII text are not zero -> encoding."""
_EXPORT = "export it as JSON lines or as CSV in UTF-8"
_UNPACK = "unpack it first"
_OTHER_KINDS = {
    b"PAR1": ("a Parquet file", _EXPORT),
    b"ARROW1": ("an Arrow file", _EXPORT),
    b"Obj\x01": ("an Avro file", _EXPORT),
    b"\x89HDF": ("an HDF5 file", _EXPORT),
    b"SQLite format 3\0": ("an SQLite database", _EXPORT),
    b"\xd0\xcf\x11\xe0": ("a file of Excel or Word", "save it as CSV in UTF-8"),
    b"%PDF": ("a PDF", "extract its text first"),
    b"7z\xbc\xaf": ("a 7z archive", _UNPACK),
    b"Rar!": ("a RAR archive", _UNPACK),
    b"\x04\x22\x4d\x18": ("compressed with lz4", _UNPACK),
    b"\x1f\x9d": ("compressed with compress (.Z)", _UNPACK),
}
"""First bytes -> kind of a file that cannot be read, and the remedy."""


_PROBLEMS_OF_PATHS = {
    errno.ENOENT: "no such file; check the path",
    errno.EISDIR: "is a folder; name the file inside it",
}


def name_of(source: Source) -> str:
    """Return the path or ``<stdin>``. Raises UsageError for a value that is not a path."""
    try:
        name = os.fsdecode(source)
    except TypeError:
        raise UsageError(f"{source!r} is not a path; name a file") from None
    if name == "-":
        return "<stdin>"
    return name


@contextmanager
def open_source(source: Source) -> Iterator[BinaryIO]:
    """Open a path, or ``-`` for standard input, as unpacked UTF-8 without a byte order mark.

    Reads gzip, bzip2, xz, zstd and zip (one file inside), and UTF-16 and UTF-32; the first bytes decide.

    Raises InputError for a missing file, and for kinds of files that cannot be read, such as Parquet.
    """
    name = name_of(source)
    with ExitStack() as stack:
        try:
            raw = _open_raw(os.fsdecode(source), stack)
            file = unpack(raw, name, stack)
        except (OSError, *DAMAGE) as error:
            raise reading_error(name, 1, error) from error
        yield file


def unpack(raw: BinaryIO, name: str, stack: ExitStack) -> BinaryIO:
    """Return a stream of unpacked UTF-8. ``stack`` closes the inner streams. Raises InputError."""
    file: Any = io.BufferedReader(cast("io.RawIOBase", raw))
    for _ in range(_MAX_LAYERS):
        inner = _unpack_layer(file, name, stack)
        if inner is None:
            break
        file = io.BufferedReader(cast("io.RawIOBase", inner))
    if file.peek(3).startswith(_UTF_8_BOM):
        file.read(len(_UTF_8_BOM))
    return cast("BinaryIO", file)


def reading_error(name: str, line: int, error: Exception) -> InputError:
    """Return the error for the user of an error while this line of a file was read."""
    if not isinstance(error, OSError) or error.errno is None:
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        return InputError(f"{name}:{line}: truncated or damaged file ({reason}); copy or download it again")
    unreadable = f"cannot be read: {system_reason(error)}; check its permissions"
    return InputError(f"{name}: {_PROBLEMS_OF_PATHS.get(error.errno, unreadable)}")


def _open_raw(name: str, stack: ExitStack) -> BinaryIO:
    if name != "-":
        return stack.enter_context(open(name, "rb", buffering=0))
    stdin = sys.stdin.buffer  # not closed
    if not isinstance(stdin, io.BufferedReader):  # standard input of a test runner
        return io.BytesIO(stdin.read())
    return cast("BinaryIO", _Unclosed(stdin))


class _Unclosed(io.RawIOBase):
    """Reads from a stream and leaves it open."""

    def __init__(self, stream: io.BufferedReader) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        return self._stream.readinto1(buffer)


def _unpack_layer(file: io.BufferedReader, name: str, stack: ExitStack) -> BinaryIO | None:
    """Return the stream inside a compressed or encoded stream, or None."""
    start = file.peek(512)
    unpacker = _look_up(start, _UNPACKERS)
    if unpacker is not None:
        return unpacker(file, name, stack)
    other_kind = _look_up(start, _OTHER_KINDS)
    if other_kind is not None:
        kind, remedy = other_kind
        raise InputError(f"{name}: the file is {kind}; {remedy}")
    if start[257:262] == b"ustar":
        raise InputError(f"{name}: the file is a tar archive; {_UNPACK}")
    encoding = _encoding(start)
    if encoding is None:
        return None
    return cast("BinaryIO", _Recoded(file, name, encoding))


def _look_up(start: bytes, values: Mapping[bytes, Value]) -> Value | None:
    """Return the value of the first key that the start of a file has, or None."""
    for key, value in values.items():
        if start.startswith(key):
            return value
    return None


def _encoding(start: bytes) -> str | None:
    """Return UTF-16 or UTF-32 of a text that begins so, or None."""
    encoding = _look_up(start, _ENCODINGS)
    if encoding is not None:
        return encoding
    are_filled = tuple(map(bool, start[:2]))
    return _ENCODINGS_WITHOUT_MARK.get(are_filled)


class _Recoded(io.RawIOBase):
    """A stream in another encoding as UTF-8."""

    def __init__(self, stream: io.BufferedReader, name: str, encoding: str) -> None:
        self._stream = stream
        self._name = name
        self._encoding = encoding
        self._decoder = codecs.getincrementaldecoder(encoding)()
        self._pending = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while not self._pending:
            block = self._stream.read(1 << 16)
            try:
                self._pending = self._decoder.decode(block, final=not block).encode("utf-8")
            except UnicodeError as error:
                raise InputError(
                    f"{self._name}: the file is not valid {self._encoding.upper()}; convert it to UTF-8"
                ) from error
            if not block:
                break
        count = min(len(buffer), len(self._pending))
        buffer[:count] = self._pending[:count]
        self._pending = self._pending[count:]
        return count


def _open_gzip(file: io.BufferedReader, name: str, stack: ExitStack) -> BinaryIO:
    return cast("BinaryIO", stack.enter_context(gzip.GzipFile(fileobj=file, mode="rb")))


def _open_bzip2(file: io.BufferedReader, name: str, stack: ExitStack) -> BinaryIO:
    return cast("BinaryIO", stack.enter_context(bz2.BZ2File(file)))


def _open_xz(file: io.BufferedReader, name: str, stack: ExitStack) -> BinaryIO:
    return cast("BinaryIO", stack.enter_context(lzma.LZMAFile(file)))


def _open_zstd(file: io.BufferedReader, name: str, stack: ExitStack) -> BinaryIO:
    for module in ("compression.zstd", "backports.zstd", "zstandard"):
        try:
            zstd = import_module(module)
        except ImportError:
            continue
        return cast("BinaryIO", stack.enter_context(zstd.open(file, "rb")))
    raise InputError(
        f"{name}: the file is compressed with zstd; run `pip install zstandard`, or unpack it with `zstd -d`"
    )


def _open_zip(file: io.BufferedReader, name: str, stack: ExitStack) -> BinaryIO:
    if not file.seekable():
        raise InputError(f"{name}: a zip archive cannot be read from a pipe; {_UNPACK}")
    archive = stack.enter_context(zipfile.ZipFile(file))
    members = list(filter(_is_file_of_user, archive.namelist()))
    if "[Content_Types].xml" in members:
        raise InputError(f"{name}: the file is a workbook of Excel; save it as CSV in UTF-8")
    if len(members) != 1:
        raise InputError(f"{name}: a zip archive of {len(members)} files, not one; {_UNPACK}")
    return cast("BinaryIO", stack.enter_context(archive.open(members[0])))


def _is_file_of_user(member: str) -> bool:
    """Return whether a member of a zip archive is neither a folder nor an entry that macOS adds."""
    return not member.endswith("/") and not member.startswith("__MACOSX/")


_UNPACKERS: dict[bytes, Callable[[io.BufferedReader, str, ExitStack], BinaryIO]] = {
    b"\x1f\x8b": _open_gzip,
    b"BZh": _open_bzip2,
    b"\xfd7zXZ\x00": _open_xz,
    b"\x28\xb5\x2f\xfd": _open_zstd,
    b"PK\x03\x04": _open_zip,
    b"PK\x05\x06": _open_zip,  # an empty archive
}
"""First bytes -> the function that opens the stream inside."""
