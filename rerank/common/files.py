"""Atomic writes and locks."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import pwd
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from rerank.common.errors import BusyError, RerankError, UsageError, WorkspaceError

_MACHINE = {
    errno.EACCES: "permission denied to user {user}; give this user access",
    errno.EPERM: "permission denied to user {user}; give this user access",
    errno.EROFS: "the file system is read-only; write elsewhere, or mount it to be written to",
    errno.EMFILE: "too many open files; raise the limit (`ulimit -n`) and run again",
    errno.ENFILE: "too many open files on this machine; raise its limit (fs.file-max) and run again",
    errno.ENOSPC: "the disk is full; free space and run again",
    errno.EDQUOT: "the disk quota is used up; free space and run again",
    errno.EIO: "the disk reports an error; check it, and restore the files if they are lost",
    errno.ENOMEM: "not enough memory to map it; run again on a machine with more",
}

LOCK = ".lock"
"""Name of the file that is locked if a folder cannot be locked."""

DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS}
"""Error numbers of a full or broken disk."""


@contextmanager
def atomic_write(path: str | os.PathLike[str], *, follow: bool = False) -> Iterator[BinaryIO]:
    """Open a temporary binary file, and rename it to ``path`` if the block succeeds.

    After a crash, the old or the new file exists.

    follow: write through a link, pipe or device. Otherwise links are replaced.

    Raises RerankError for a missing or unwritable folder, and a full disk.

    >>> with atomic_write(folder / "run.txt") as file:
    ...     _ = file.write(b"done")
    >>> (folder / "run.txt").read_text()
    'done'
    """
    special = os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)
    if follow and special:
        try:
            with open(path, "wb") as stream:
                yield stream
        except OSError as error:
            raise _cannot_write(path, error) from error
        return
    target = Path(os.path.realpath(path)) if follow else Path(path)
    temporary = target.with_name(f".{target.name[:100]}.{secrets.token_hex(6)}.tmp")
    in_block = False
    try:
        with open(temporary, "xb") as file:
            in_block = True
            yield file
            in_block = False
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink()
        if not isinstance(error, OSError):
            raise
        if in_block and error.errno not in DISK_ERRORS:
            raise
        raise _cannot_write(path, error) from error
    sync_folder(target.parent)


def write_bytes(path: str | os.PathLike[str], data: bytes, *, follow: bool = False) -> None:
    """Write a file at once: after a crash, it is the old or the new one; see :func:`atomic_write`."""
    with atomic_write(path, follow=follow) as file:
        file.write(data)


def write_text(path: str | os.PathLike[str], text: str, *, follow: bool = False) -> None:
    """Write a text as UTF-8, as :func:`write_bytes` does. Newlines are not changed."""
    write_bytes(path, text.encode("utf-8"), follow=follow)


def check_output(path: str | os.PathLike[str], mark: str | re.Pattern[bytes]) -> None:
    """Raise UsageError if a nonempty file lacks ``mark`` near its start.

    mark: a text, or a pattern of the first 1,000 bytes, by which a command knows the files that it writes.
    """
    start = _read_start(path)
    if isinstance(mark, str):
        mark = re.compile(re.escape(mark.encode()))
    if start and not mark.search(start):
        raise UsageError(f"{os.fspath(path)}: exists and has other content; choose another name")


def check_new_file(path: str | os.PathLike[str], mark: str | re.Pattern[bytes]) -> None:
    """Raise UsageError as :func:`check_output` does, or if the folder of the file does not exist."""
    folder = os.path.dirname(os.fspath(path))
    if folder and not os.path.isdir(folder):
        raise UsageError(f"{os.fspath(path)}: the folder {folder} does not exist; make it first")
    check_output(path, mark)


def _read_start(path: str | os.PathLike[str]) -> bytes:
    """Return the first 1,000 bytes of a file; b"" without a file that can be read."""
    if not os.path.isfile(path):
        return b""
    try:
        with open(path, "rb") as file:
            return file.read(1000)
    except OSError:  # the writer reports the error
        return b""


def check_relative_path(name: str) -> None:
    """Raise ValueError for a path outside the folder, such as ``../other``."""
    parts = name.split("/")
    is_absolute_or_empty = parts[0] == ""
    if is_absolute_or_empty or ".." in parts or "\0" in name:
        raise ValueError(f"{name!r} is outside the folder")


def parse_json(text: str | bytes) -> Any:
    """Parse JSON. Raises ValueError, also for deep nesting.

    >>> parse_json('{"id": "a"}')
    {'id': 'a'}
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def system_reason(error: OSError) -> str:
    """Return the reason of a system error in words, such as ``No such file or directory``."""
    return error.strerror or str(error)


def unreadable_text(error: OSError | ValueError) -> str:
    """Return the reason why a text file cannot be read: of the system, or that it is not UTF-8."""
    if isinstance(error, OSError):
        return system_reason(error)
    return "not UTF-8 text"


def as_system_error(error: BaseException | None, path: object) -> RerankError | None:
    """Return the error for a problem of the system, such as a full disk; None if the file is invalid.

    path: where the problem occurred, if the error does not name a file.

    >>> print(as_system_error(OSError(errno.EMFILE, "Too many open files"), "ws/rerank.toml"))
    ws/rerank.toml: too many open files; raise the limit (`ulimit -n`) and run again
    """
    if not isinstance(error, OSError) or error.errno not in _MACHINE:
        return None
    location = error.filename if isinstance(error.filename, (str, os.PathLike)) else path
    user = str(os.geteuid())
    with suppress(KeyError):
        user = pwd.getpwuid(os.geteuid()).pw_name
    return WorkspaceError(f"{location}: {_MACHINE[error.errno].format(user=user)}")


@contextmanager
def folder_lock(folder: str | os.PathLike[str], doing: str, *, patience: float = 0.0) -> Iterator[None]:
    """Hold the lock of a folder (on NFS: of its file ``.lock``).

    Raises BusyError (``another process is`` + ``doing``) after ``patience`` seconds, WorkspaceError without
    locks.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    is_folder = True
    give_up = time.monotonic() + patience
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= give_up:
                    raise BusyError(f"another process is {doing}; try again when it is done") from None
                time.sleep(0.01)
            except OSError as error:
                if not is_folder:
                    raise WorkspaceError(
                        f"{os.fspath(folder)}: the file system cannot lock files ({error.strerror}), so"
                        " nothing was written; move the folder to another file system"
                    ) from error
                os.close(descriptor)
                descriptor = os.open(Path(folder) / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
                is_folder = False
        yield
    finally:
        os.close(descriptor)


def _cannot_write(path: str | os.PathLike[str], error: OSError) -> RerankError:
    reason = f"{system_reason(error)}; check the folder and the disk"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        reason = _MACHINE[error.errno]
    return RerankError(f"{os.fspath(path)}: cannot be written: {reason}")


def sync_folder(folder: Path) -> None:
    """Flush a folder or file to disk, if its file system supports that.

    A renamed file is only safe after a power failure when its folder is flushed.
    """
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
