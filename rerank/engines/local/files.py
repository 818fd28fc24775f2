"""What keeps the engine's files whole: the write lock, append-only files, and disk errors in words."""

from __future__ import annotations

import errno
import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

from rerank.errors import BusyError, EngineError, RerankError, WorkspaceError
from rerank.files import trouble, try_lock

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def write_lock(folder: Path) -> Iterator[None]:
    """Hold the folder's only write lock; the kernel frees it when the process ends, however it ends.

    Raises BusyError at once when another process (or another engine of this one) holds it, and
    WorkspaceError when the folder cannot be written to, or its file system has no locks.
    """
    try:
        file = open(folder / "lock", "ab")  # noqa: SIM115 (closed by the next block)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE) and (known := trouble(error, folder)):
            raise known from error
        raise WorkspaceError(f"{folder} cannot be written to: {error.strerror}; check its rights") from error
    with file:
        if not try_lock(file.fileno(), folder):
            raise BusyError(f"another process is writing to {folder}; try again when it is done")
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
        raise EngineError(f"{error} (while {doing})") from error


def _failed(doing: str, cause: str, full: bool) -> EngineError:
    what = "disk full" if full else f"cannot write ({cause})"
    return EngineError(f"{what} while {doing}; free space and run again")


def unreadable(folder: Path, error: Exception) -> RerankError:
    """Say why an engine's folder cannot be opened: what the machine has against it, or that it is damaged."""
    if isinstance(error, RerankError):
        return error
    text = " ".join(str(error).split())
    if isinstance(error, sqlite3.OperationalError) and ("locked" in text or "busy" in text):
        return BusyError(f"another process holds the database in {folder} for itself; try again later")
    found = _of_the_system(folder, error, text)
    return (found and trouble(found, folder)) or WorkspaceError(
        f"{folder} is damaged ({text}); remove the folder and ingest the collection again"
    )


def _of_the_system(folder: Path, error: Exception, text: str) -> OSError | None:
    """The error of the operating system behind one of SQLite or tantivy, which only tell of it."""
    if isinstance(error, OSError):
        return error
    # As Rust's errors are for people, and as they are.
    if number := re.search(r"os error (\d+)|Os \{ code: (\d+)", text):
        return OSError(int(number[1] or number[2]), text)
    if not isinstance(error, sqlite3.Error):
        return None
    for sign, number_ in (("disk I/O", errno.EIO), ("is full", errno.ENOSPC), ("readonly", errno.EROFS)):
        if sign in text:
            return OSError(number_, text)
    if "unable to open" in text:
        try:
            with ExitStack() as opened:  # all at once, and as many as SQLite takes: there may be too many
                for path in (*folder.glob("documents.db*"), *folder.glob("*/documents.db*")):
                    for _ in range(8):
                        opened.enter_context(open(path, "rb"))
        except OSError as cause:
            return cause
    return None


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
