"""Checksums, and errors of the disk, of SQLite and of tantivy."""

from __future__ import annotations

import errno
import json
import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rerank.errors import BusyError, EngineError, RerankError, WorkspaceError
from rerank.files import file_crc, folder_lock, parse_json, trouble, write_text

_CHECKSUMS = "checksums.json"
_CHECKED = ("index/*", "tfidf/*/*")  # files that are written once
_SIGNS = {"disk I/O": errno.EIO, "is full": errno.ENOSPC, "readonly": errno.EROFS}  # SQLite


@contextmanager
def write_lock(folder: Path) -> Iterator[None]:
    """Hold the folder's lock. Raises BusyError, or WorkspaceError if the folder is read-only."""
    if not os.access(folder, os.W_OK):
        raise WorkspaceError(f"{folder} cannot be written to; check its rights")
    with folder_lock(folder, f"writing to {folder}"):
        yield


@contextmanager
def disk(doing: str) -> Iterator[None]:
    """Turn disk and SQLite errors into EngineError."""
    try:
        yield
    except (OSError, sqlite3.DatabaseError) as error:
        if isinstance(error, (sqlite3.IntegrityError, sqlite3.ProgrammingError)):
            raise
        full = getattr(error, "errno", 0) in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or "full" in str(error)
        problem = "disk full" if full else f"cannot write ({getattr(error, 'strerror', None) or error})"
        raise EngineError(f"{problem} while {doing}; free space and run again") from error
    except RerankError as error:
        if type(error) is not RerankError:  # rerank.files raises the base class
            raise
        raise EngineError(f"{error} (while {doing})") from error


def unreadable(folder: Path, error: Exception) -> RerankError:
    """Return the error for an unreadable folder."""
    if isinstance(error, RerankError):
        return error
    text = " ".join(str(error).split())
    if isinstance(error, sqlite3.OperationalError):
        if "locked" in text or "busy" in text:
            return BusyError(f"another process locks the database in {folder}; try again later")
        if "unable to open" in text:
            return WorkspaceError(
                f"{folder}: the database cannot be opened; check its rights and the limit of open files"
                " (`ulimit -n`)"
            )
    code = next((code for sign, code in _SIGNS.items() if sign in text), 0)
    if number := re.search(r"os error (\d+)|Os \{ code: (\d+)", text):  # tantivy
        code = int(number[1] or number[2])
    cause = error if isinstance(error, OSError) else OSError(code, text)
    return trouble(cause, folder) or WorkspaceError(
        f"{folder} is damaged ({text}); remove the folder and ingest the collection again"
    )


def update_checksums(folder: Path) -> None:
    """Store size and CRC-32 of derived files."""
    try:
        before = parse_json((folder / _CHECKSUMS).read_bytes())
    except (FileNotFoundError, ValueError):
        before = {}
    sums = {}
    for path in (path for pattern in _CHECKED for path in sorted(folder.glob(pattern))):
        if path.is_file() and path.suffix not in (".json", ".lock") and ".tmp" not in str(path):
            name, size = str(path.relative_to(folder)), path.stat().st_size
            known = before.get(name, (-1, 0))
            sums[name] = known if known[0] == size else [size, file_crc(path, 0, size)]
    if sums != before:
        write_text(folder / _CHECKSUMS, json.dumps(sums))


def corruptions(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield each corrupt file and its problem."""
    for name, (size, crc) in parse_json((folder / _CHECKSUMS).read_bytes()).items():
        path = folder / name
        try:
            if file_crc(path, 0, size) != crc:
                yield path, "the checksum does not match"
        except FileNotFoundError:  # tantivy merged it after the last ingest
            continue
        except (OSError, ValueError) as error:
            yield path, str(error)
