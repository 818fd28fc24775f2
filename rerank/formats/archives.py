"""Read files in archives without unpacking to disk."""

from __future__ import annotations

import bz2
import gzip
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, cast

from rerank.errors import InputError

if TYPE_CHECKING:
    from typing_extensions import Self

_ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.xz", ".txz", ".tar.bz2")
_PACKED: dict[bytes, Callable[..., Any]] = {
    b"\x1f\x8b": gzip.open,
    b"\xfd7zXZ\0": lzma.open,
    b"BZh": bz2.open,
}
_METADATA = (
    tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)  # fmt: skip
_STREAMED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # others need memory for the whole file
_LONGEST_HEADER = 1_000_000  # bytes
_SPARSE_CONTINUES = 482  # offset in a header
_DAMAGE = (
    OSError, EOFError, zlib.error, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile, RuntimeError,
    ValueError,
)  # fmt: skip


def read_files(path: Path, wanted: tuple[str, ...], largest: int) -> Iterator[tuple[str, bytes | None, str]]:
    """Yield (name, bytes, problem) of each file in a file, archive or folder, by name.

    wanted: name endings; ``.gz`` is unpacked. largest: limit of unpacked bytes.

    Raises InputError for a missing path.
    """
    if path.is_dir():
        for one in sorted(path.rglob("*")):
            if one.name.endswith(wanted) and one.is_file():
                yield from read_files(one, wanted, largest)
        return
    name = str(path)
    try:
        if name.endswith(".zip"):
            with zipfile.ZipFile(path) as archive:
                yield from _zipped(archive, name, wanted, largest)
        elif name.endswith(_ARCHIVES):
            with path.open("rb") as file:
                yield from _in_tar(file, name, wanted, largest)
        else:
            with path.open("rb") as file:
                yield from _member(name, file, wanted, largest)
    except FileNotFoundError as error:
        raise InputError(f"{name}: no such file; check the path") from error
    except _DAMAGE as error:
        yield name, None, f"the archive is truncated or corrupt ({error}); download it again"


def _zipped(
    archive: zipfile.ZipFile, name: str, wanted: tuple[str, ...], largest: int
) -> Iterator[tuple[str, bytes | None, str]]:
    for info in archive.infolist():
        if not info.is_dir():
            inner = f"{name}: {info.filename}"
            if info.compress_type not in _STREAMED:
                yield inner, None, "unsupported compression; unpack it first"
                continue
            try:
                with archive.open(info) as file:
                    yield from _member(inner, file, wanted, largest)
            except _DAMAGE as error:
                yield inner, None, f"cannot be read from the archive ({error})"


def _in_tar(
    file: BinaryIO, name: str, wanted: tuple[str, ...], largest: int
) -> Iterator[tuple[str, bytes | None, str]]:
    magic = file.read(6)
    file.seek(0)
    inner = next((kind for start, kind in _PACKED.items() if magic.startswith(start)), None)
    stream = _Tail(inner(file) if inner else file)
    with tarfile.open(fileobj=cast("IO[bytes]", stream), mode="r|", tarinfo=_Header) as archive:
        for member in archive:
            content = archive.extractfile(member) if member.isfile() else None
            if content is not None:
                yield from _member(f"{name}: {member.name}", content, wanted, largest)
    while stream.read(1 << 20):  # a truncated file raises here
        pass
    if stream.last.strip(b"\0"):
        raise EOFError("no end marker")


class _Header(tarfile.TarInfo):
    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        header = super().frombuf(buf, encoding, errors)
        more = header.type == tarfile.GNUTYPE_SPARSE and buf[_SPARSE_CONTINUES]
        if more or (header.type in _METADATA and header.size > _LONGEST_HEADER):
            raise tarfile.ReadError(f"a header of {header.size:,} bytes")
        return header


class _Tail:
    """Keeps the last block: a complete tar file ends with empty blocks."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.last = file, b"?"

    def read(self, size: int) -> bytes:
        data = self.file.read(size)
        self.last = data[-tarfile.BLOCKSIZE :] or self.last
        return data


def file_name(name: str) -> str:
    """Return the last part of a name."""
    return Path(name.rpartition(": ")[2]).name


def _member(
    name: str, file: IO[bytes], wanted: tuple[str, ...], largest: int
) -> Iterator[tuple[str, bytes | None, str]]:
    if name.endswith(_ARCHIVES):
        yield name, None, "an archive inside an archive; unpack it first"
        return
    if not name.endswith(wanted) or file_name(name).startswith("._"):  # metadata of macOS
        return
    data = file.read(largest + 1)
    if name.endswith(".gz"):
        try:
            with gzip.open(BytesIO(data)) as inner:
                data = inner.read(largest + 1)
        except _DAMAGE as error:
            yield name, None, f"truncated or corrupt gzip ({error})"
            return
    if len(data) > largest:
        yield name, None, f"more than {largest // 1_000_000} MB, too large for an article"
        return
    yield name, data, ""
