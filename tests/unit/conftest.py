"""Shortcuts of unit tests. Tests in other folders run without them."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from functools import cache
from importlib.metadata import entry_points
from itertools import count
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")
"""A file system in memory, if the machine has one."""
NEEDED = 2_000_000_000
"""Free bytes in ``MEMORY``. All folders of the unit tests together have 250 MB."""


@pytest.fixture(autouse=True, scope="session")
def shortcuts() -> Iterator[None]:
    """Do not wait for the disk, and search for installed packages once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda file: None)
        for registry in ("rankers", "engines"):
            patch.setattr(f"rerank.{registry}.registry.entry_points", cache(entry_points))
        yield


class Folders:
    """Makes folders in ``base``. The factory of pytest lists all its folders to number the next one.

    disk: makes folders that outlive the tests or that several processes share.
    """

    def __init__(self, base: Path, disk: pytest.TempPathFactory) -> None:
        self.base = base
        self.getbasetemp = disk.getbasetemp
        self._numbers = count()

    def mktemp(self, name: str, numbered: bool = True) -> Path:
        folder = self.base / (f"{name}{next(self._numbers)}" if numbered else name)
        folder.mkdir(mode=0o700)
        return folder


@pytest.fixture(scope="session")
def tmp_path_factory(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Folders | pytest.TempPathFactory]:
    """Folders in memory, because SQLite and tantivy wait for the disk too. They are removed at the end.

    ``--basetemp FOLDER`` keeps the folders, on the disk.
    """
    if not has_memory() or request.config.getoption("basetemp"):
        yield tmp_path_factory
        return
    with tempfile.TemporaryDirectory(prefix="rerank-tests-", dir=MEMORY, ignore_cleanup_errors=True) as base:
        yield Folders(Path(base), tmp_path_factory)


def has_memory() -> bool:
    """Return whether the file system in memory has enough space and can run programs."""
    if not os.access(MEMORY, os.W_OK):
        return False
    runs_programs = not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC
    return runs_programs and shutil.disk_usage(MEMORY).free > NEEDED


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: Folders | pytest.TempPathFactory) -> Path:
    """Return a new folder for one test."""
    return tmp_path_factory.mktemp(re.sub(r"\W", "_", request.node.name)[:30])
