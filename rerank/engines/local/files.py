"""Locks, checksums, and disk errors."""

from __future__ import annotations

import errno
import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rerank.errors import BusyError, EngineError, RerankError, WorkspaceError
from rerank.files import file_crc, parse_json, trouble, try_lock, write_text

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_CHECKSUMS = "checksums.json"
_CHECKED = ("index/*", "tfidf/*/*")  # files that are written once


@contextmanager
def write_lock(folder: Path) -> Iterator[None]:
    """Hold the folder's write lock. Raises BusyError, or WorkspaceError if it cannot be locked."""
    try:
        file = open(folder / "lock", "ab")  # noqa: SIM115 (closed by the next block)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE) and (problem := trouble(error, folder)):
            raise problem from error
        raise WorkspaceError(f"{folder} cannot be written to: {error.strerror}; check its rights") from error
    with file:
        if not try_lock(file.fileno(), folder):
            raise BusyError(f"another process is writing to {folder}; try again when it has finished")
        yield


@contextmanager
def disk(doing: str) -> Iterator[None]:
    """Turn disk and SQLite errors into EngineError."""
    try:
        yield
    except OSError as error:
        raise _failed(doing, error.strerror or str(error), error.errno in _FULL) from error
    except sqlite3.DatabaseError as error:
        if isinstance(error, (sqlite3.IntegrityError, sqlite3.ProgrammingError)):
            raise
        raise _failed(doing, str(error), "full" in str(error)) from error
    except RerankError as error:
        if type(error) is not RerankError:  # rerank.files raises the base class
            raise
        raise EngineError(f"{error} (while {doing})") from error


def _failed(doing: str, cause: str, full: bool) -> EngineError:
    problem = "disk full" if full else f"cannot write ({cause})"
    return EngineError(f"{problem} while {doing}; free space and run again")


def unreadable(folder: Path, error: Exception) -> RerankError:
    """Return the error for an unreadable folder."""
    if isinstance(error, RerankError):
        return error
    text = " ".join(str(error).split())
    if isinstance(error, sqlite3.OperationalError) and ("locked" in text or "busy" in text):
        return BusyError(f"another process locks the database in {folder}; try again later")
    cause = _system_error(folder, error, text)
    return (cause and trouble(cause, folder)) or WorkspaceError(
        f"{folder} is damaged ({text}); remove the folder and ingest the collection again"
    )


def _system_error(folder: Path, error: Exception, text: str) -> OSError | None:
    if isinstance(error, OSError):
        return error
    if number := re.search(r"os error (\d+)|Os \{ code: (\d+)", text):  # tantivy
        return OSError(int(number[1] or number[2]), text)
    if not isinstance(error, sqlite3.Error):
        return None
    for sign, code in (("disk I/O", errno.EIO), ("is full", errno.ENOSPC), ("readonly", errno.EROFS)):
        if sign in text:
            return OSError(code, text)
    if "unable to open" in text:
        try:
            with ExitStack() as opened:  # as many files as SQLite needs: the limit may be too low
                for path in folder.glob("*/documents.db*"):
                    for _ in range(8):
                        opened.enter_context(open(path, "rb"))
        except OSError as cause:
            return cause
    return None


def update_checksums(folder: Path) -> None:
    """Store size and CRC-32 of derived files."""
    try:
        before = parse_json((folder / _CHECKSUMS).read_bytes())
    except (FileNotFoundError, ValueError):
        before = {}
    sums = {}
    for path in _checked(folder):
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


def _checked(folder: Path) -> Iterator[Path]:
    for pattern in _CHECKED:
        for path in sorted(folder.glob(pattern)):
            if path.is_file() and path.suffix not in (".json", ".lock") and ".tmp" not in str(path):
                yield path
