"""Read files in archives without unpacking to disk."""

from __future__ import annotations

import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from typing import IO

from rerank.common.errors import InputError
from rerank.formats.opening import unpack

_ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.xz", ".txz", ".tar.bz2")
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
_DAMAGE = (
    OSError, EOFError, zlib.error, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile, RuntimeError,
    ValueError, LookupError,
)  # fmt: skip

File = tuple[str, bytes | None, str]
"""Name, bytes, and the problem if there are none."""


def read_files(path: Path, endings: tuple[str, ...], largest: int) -> Iterator[File]:
    """Yield (name, bytes, problem) of each file in a file, archive or folder, by name.

    endings: name endings in lower case; such files may be compressed (``.gz`` and others).
    largest: limit of unpacked bytes.

    Raises InputError for a missing path.
    """
    if path.is_dir():
        for file_path in sorted(path.rglob("*")):
            if has_ending(file_path.name, endings) and file_path.is_file():
                yield from read_files(file_path, endings, largest)
        return
    read_file = _reader(path)
    try:
        yield from read_file(path, endings, largest)
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file; check the path") from error
    except _DAMAGE as error:
        problem = f"the archive is truncated or corrupt ({_reason(error)}); download it again"
        yield str(path), None, problem


def _reader(path: Path) -> Callable[[Path, tuple[str, ...], int], Iterator[File]]:
    """Return the function that reads an archive or file of this name."""
    name = path.name.lower()
    if name.endswith(".zip"):
        return _read_zip
    if name.endswith(_ARCHIVES):
        return _read_tar
    return _read_plain


def _read_plain(path: Path, endings: tuple[str, ...], largest: int) -> Iterator[File]:
    with path.open("rb") as file:
        yield from _member(str(path), file, endings, largest)


def _read_zip(path: Path, endings: tuple[str, ...], largest: int) -> Iterator[File]:
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            yield from _zipped(archive, info, f"{path}: {info.filename}", endings, largest)


def _read_tar(path: Path, endings: tuple[str, ...], largest: int) -> Iterator[File]:
    with tarfile.open(path) as archive:
        for member in archive:
            file = archive.extractfile(member)
            if file is not None:  # a folder or a link has no content
                yield from _member(f"{path}: {member.name}", file, endings, largest)


def _zipped(
    archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str, endings: tuple[str, ...], largest: int
) -> Iterator[File]:
    """A damaged member does not stop the others."""
    try:
        with archive.open(info) as file:
            yield from _member(name, file, endings, largest)
    except _DAMAGE as error:
        yield name, None, f"cannot be read from the archive ({_reason(error)})"


def _reason(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "no reason").rstrip(":")


def has_ending(name: str, endings: tuple[str, ...]) -> bool:
    """Whether a file has one of the endings, in any case, plain or compressed.

    >>> has_ending("A.XML.bz2", (".xml",))
    True
    """
    name = name.lower()
    for suffix in _COMPRESSED:
        name = name.removesuffix(suffix)
    return name.endswith(endings)


def file_name(name: str) -> str:
    """Return the name of a file without its folders, and without the archive that contains it."""
    return Path(name.rpartition(": ")[2]).name


def _member(name: str, file: IO[bytes], endings: tuple[str, ...], largest: int) -> Iterator[File]:
    if name.lower().endswith(_ARCHIVES):
        yield name, None, "an archive inside an archive; unpack it first"
    elif has_ending(name, endings) and not file_name(name).startswith("._"):  # metadata of macOS
        data = file.read(largest + 1)
        if name.lower().endswith(_COMPRESSED):
            try:
                with ExitStack() as stack:
                    data = unpack(BytesIO(data), name, stack).read(largest + 1)
            except InputError as error:
                yield name, None, str(error).removeprefix(f"{name}: ")
                return
            except _DAMAGE as error:
                yield name, None, f"truncated or corrupt file ({_reason(error)})"
                return
        if len(data) > largest:
            yield name, None, f"more than {largest // 1_000_000} MB, more than an article has"
        else:
            yield name, data, ""
