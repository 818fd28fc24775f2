"""What keeps the engine's files whole: the write lock, append-only files, and disk errors in words."""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from rerank.errors import BusyError, EngineError, RerankError, WorkspaceError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def write_lock(folder: Path) -> Iterator[None]:
    """Hold the folder's only write lock; the kernel frees it when the process ends, however it ends.

    Raises BusyError at once when another process (or another engine of this one) holds it, and
    WorkspaceError when the folder cannot be written to.
    """
    try:
        file = open(folder / "lock", "ab")  # noqa: SIM115 (closed by the next block)
    except OSError as error:
        raise WorkspaceError(f"{folder} cannot be written to: {error.strerror}; check its rights") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError(f"another process is writing to {folder}; try again when it is done") from None
        yield


@contextmanager
def disk(doing: str) -> Iterator[None]:
    """Turn errors of the disk and of SQLite inside the block into one EngineError.

    doing: what was under way, as in ``ingesting; nothing was ingested``.
    """
    try:
        yield
    except OSError as error:
        raise _failed(doing, error.strerror or str(error), error.errno in _FULL) from error
    except (sqlite3.OperationalError, sqlite3.DatabaseError) as error:
        if isinstance(error, (sqlite3.IntegrityError, sqlite3.ProgrammingError)):
            raise
        raise _failed(doing, str(error), "full" in str(error)) from error
    except RerankError as error:
        if type(error) is not RerankError:  # the plain one comes from rerank.files
            raise
        raise EngineError(f"{error.message} (while {doing})") from error


def _failed(doing: str, cause: str, full: bool) -> EngineError:
    what = "disk full" if full else f"cannot write ({cause})"
    return EngineError(f"{what} while {doing}; free space and run again")


def append_to(path: Path, size: int) -> BinaryIO:
    """Open ``path`` for appending after its first ``size`` bytes; what a crash left behind them goes."""
    file = open(path, "r+b" if path.exists() else "w+b")  # noqa: SIM115 (the caller closes it)
    file.truncate(size)
    file.seek(size)
    return file


def close_synced(*files: BinaryIO) -> None:
    """Flush the files to the disk and close them."""
    for file in files:
        with file:
            file.flush()
            os.fsync(file.fileno())
