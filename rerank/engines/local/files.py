"""The lock of the folder, and errors of the disk, of SQLite and of tantivy."""

from __future__ import annotations

import errno
import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rerank.common.errors import BusyError, EngineError, RerankError, WorkspaceError
from rerank.common.files import as_system_error, folder_lock

INGEST_AGAIN = "remove the folder and ingest the collection again"
"""Remedy for damaged documents."""

_SHARED_MEMORY = 65_536  # bytes of SQLite's file -shm, and of its first log pages
_SIGNS = {"disk I/O": errno.EIO, "is full": errno.ENOSPC, "readonly": errno.EROFS}  # SQLite


@contextmanager
def write_lock(folder: Path) -> Iterator[None]:
    """Hold the lock of an engine's folder, so that no other process writes to it.

    Raises BusyError if another process holds it, WorkspaceError if the folder cannot be written to.
    """
    if not os.access(folder, os.W_OK):
        raise WorkspaceError(f"{folder} cannot be written to; check its rights")
    with folder_lock(folder, f"writing to {folder}"):
        yield


def is_full(path: Path) -> bool:
    """Return whether the disk of a file has no room for the index of SQLite's log."""
    space = os.statvfs(path)
    return space.f_bavail * space.f_frsize < _SHARED_MEMORY


@contextmanager
def disk(doing: str) -> Iterator[None]:
    """Turn the errors of the disk and of SQLite that the block raises into EngineError.

    doing: the action, for the message. Errors of the program itself are raised as they are.
    """
    try:
        yield
    except (sqlite3.IntegrityError, sqlite3.ProgrammingError):
        raise
    except (OSError, sqlite3.DatabaseError) as error:
        problem = f"cannot write ({_reason(error)})"
        if _says_full(error):
            problem = "disk full"
        raise EngineError(f"{problem} while {doing}; free space and run again") from error
    except RerankError as error:
        if type(error) is not RerankError:  # rerank.common.files raises the base class
            raise
        raise EngineError(f"{error} (while {doing})") from error


def _says_full(error: Exception) -> bool:
    is_number_of_full_disk = getattr(error, "errno", 0) in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return is_number_of_full_disk or "full" in str(error)


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def unreadable(folder: Path, error: Exception, remedy: str = INGEST_AGAIN) -> RerankError:
    """Return the error to raise for a folder that cannot be read.

    remedy: what to do if the folder is damaged. Problems of the machine have other remedies.
    """
    if isinstance(error, RerankError):
        return error
    text = " ".join(str(error).split())
    if isinstance(error, sqlite3.OperationalError):
        database_error = _as_database_error(text, folder)
        if database_error is not None:
            return database_error
    cause = error
    if not isinstance(error, OSError):
        cause = OSError(_error_number(text, folder), text)
    damage = WorkspaceError(f"{folder} is damaged ({text}); {remedy}")
    return as_system_error(cause, folder) or damage


def _as_database_error(message: str, folder: Path) -> RerankError | None:
    """Return the error to raise for a database that SQLite cannot open or lock, or None."""
    if "locked" in message or "busy" in message:
        return BusyError(f"another process locks the database in {folder}; try again later")
    if "unable to open" in message:
        return WorkspaceError(
            f"{folder}: the database cannot be opened; check its rights and the limit of open files"
            " (`ulimit -n`)"
        )
    return None


def _error_number(message: str, folder: Path) -> int:
    """Return the number of the system's error in a message of SQLite or tantivy; 0: it has none."""
    number_in_message = re.search(r"(?:os error |Os \{ code: )(\d+)", message)  # tantivy
    if number_in_message:
        return int(number_in_message[1])
    numbers = [number for words, number in _SIGNS.items() if words in message]
    number = next(iter(numbers), 0)
    # SQLite reports a full disk and an unreadable one with the same words.
    if number == errno.EIO and is_full(folder):
        return errno.ENOSPC
    return number
