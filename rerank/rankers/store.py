"""Trained rankers of a workspace.

``NAME.json`` lists versions, newest first. A folder ``NAME-VERSION`` is complete before it is listed.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated

from msgspec import Meta, MsgspecError, Struct, json

from rerank.errors import RerankError, UsageError, WorkspaceError
from rerank.files import check_name, file_crc, folder_lock, sync_folder, trouble, write_bytes, write_text
from rerank.rankers.base import Ranker
from rerank.rankers.registry import load_ranker

VERSION = r"\w[\w.-]{0,99}"
"""Pattern of versions, which are also names of folders."""
LOCK_SECONDS = 60.0
"""Time to wait for another installation. It takes a moment, and a training would be lost."""

Needed = Callable[[], Mapping[str, Collection[str]] | None]
"""Returns ranker -> versions that stacks were tuned with; None if unknown: then all versions stay."""


class Record(Struct):
    """A version of a ranker. files: name -> size and CRC-32."""

    version: Annotated[str, Meta(pattern=rf"\A{VERSION}\Z")]
    family: str
    variant: str
    files: dict[str, tuple[int, int]] = {}


Records = Annotated[list[Record], Meta(min_length=1)]
"""Content of ``NAME.json``, the newest version first."""


class RankerStore:
    """The folder ``rankers`` of a workspace.

    not_trained: error for a missing ranker. needed: older versions to keep.
    """

    def __init__(self, folder: Path, not_trained: Callable[[str], RerankError], needed: Needed) -> None:
        self.folder = folder
        self._not_trained, self._needed = not_trained, needed

    def names(self) -> list[str]:
        """Ranker names."""
        return sorted(path.stem for path in self.folder.glob("*.json"))

    def record(self, name: str, version: str | None = None) -> Record:
        """Record of a version; None: the newest. Raises KeyError if missing."""
        records = self._records(name)
        if version is None:
            return records[0]
        for record in records:
            if record.version == version and (self.folder / f"{name}-{version}").is_dir():
                return record
        raise KeyError(version)

    def versions(self, name: str) -> list[str]:
        """Versions of a ranker, newest first."""
        return [one.version for one in self._records(name)]

    def version_folder(self, name: str, version: str | None = None) -> Path:
        """Folder of a version; None: the newest. Raises KeyError if missing."""
        return self.folder / f"{name}-{self.record(name, version).version}"

    def _records(self, name: str) -> list[Record]:
        path = self.folder / f"{name}.json"
        try:
            records = json.decode(path.read_bytes(), type=Records)
            for file in (file for record in records for file in record.files):
                check_name(file)
        except FileNotFoundError:
            raise self._not_trained(name) from None
        except (OSError, ValueError, MsgspecError, RecursionError) as error:
            damaged = WorkspaceError(f"{path}: damaged ({error}); train {name} again")
            raise trouble(error, path) or damaged from error
        return records

    def load(self, name: str, version: str | None = None) -> Ranker:
        """Load a version; None: the newest.

        Raises WorkspaceError if unreadable, KeyError if missing.
        """
        while True:
            record = self.record(name, version)
            try:
                return load_ranker(self.folder / f"{name}-{record.version}")
            except WorkspaceError:
                if self.record(name, version).version == record.version:
                    raise  # else a newer version has just replaced it

    def verify(self) -> dict[str, str]:
        """Check all files: file -> problem."""
        problems = {}
        for name in self.names():
            try:
                newest, *older = self._records(name)
            except RerankError as error:
                problems[str(self.folder / f"{name}.json")] = str(error)
                continue
            for record in (newest, *older):
                folder = self.folder / f"{name}-{record.version}"
                if record is newest or folder.is_dir():
                    problems |= {str(folder / file): text for file, text in _changed(folder, record).items()}
        return problems

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Lock the folder."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with folder_lock(self.folder, f"installing a ranker in {self.folder}", patience=LOCK_SECONDS):
            yield

    def install(self, ranker: Ranker, extra: Mapping[str, str] | None = None) -> None:
        """Install a ranker as the newest version; remove unneeded ones.

        extra: name -> text of further files.
        """
        with self.changing():
            record, before = self._write(ranker, extra or {}), self._named().get(ranker.name, [])
            older = [one for one in self._still_needed(ranker.name, before) if one.version != record.version]
            write_bytes(self.folder / f"{ranker.name}.json", json.encode([record, *older]) + b"\n")
            self._sweep()

    def _write(self, ranker: Ranker, extra: Mapping[str, str]) -> Record:
        """Write a version unless it exists."""
        final = self.folder / f"{ranker.name}-{ranker.version}"
        for name, records in self._named().items():
            if name != ranker.name and any(f"{name}-{one.version}" == final.name for one in records):
                raise UsageError(f"{final} holds {name}; choose another name or version for the ranker")
        new = self._temporary(ranker.name)
        try:
            ranker.save(new)
            for file, text in extra.items():
                write_text(new / file, text)
            record = Record(ranker.version, ranker.family, ranker.variant or ranker.name, _checksums(new))
            if final.exists():
                if not record.files or not _changed(final, record):
                    return record
                final.rename(self._temporary(ranker.name))  # damaged
            new.rename(final)
            sync_folder(self.folder)
        finally:
            shutil.rmtree(new, ignore_errors=True)
        return record

    def _temporary(self, name: str) -> Path:
        """New name that :meth:`_sweep` removes."""
        return self.folder / f".{name[:100]}-{secrets.token_hex(6)}"

    def _still_needed(self, name: str, records: list[Record]) -> list[Record]:
        needed = self._needed()
        return [one for one in records if needed is None or one.version in needed.get(name, ())]

    def _named(self) -> dict[str, list[Record]]:
        """Name -> versions to keep."""
        named = {}
        for name in self.names():
            with suppress(RerankError):
                newest, *older = self._records(name)
                named[name] = [newest, *self._still_needed(name, older)]
        return named

    def _sweep(self) -> None:
        """Remove unneeded versions and leftovers."""
        named = self._named()
        kept = {f"{name}-{one.version}" for name, records in named.items() for one in records}
        damaged = tuple(f"{name}-" for name in self.names() if name not in named)
        for path in self.folder.iterdir():
            unnamed = path.name not in kept and not path.name.startswith(damaged)
            if unnamed and (path / "ranker.json").is_file():
                path = path.rename(self._temporary(path.name))  # if killed now, no half version remains
            if re.fullmatch(r"\.[\w.-]+-[0-9a-f]{12}", path.name):
                shutil.rmtree(path, ignore_errors=True)
            elif re.fullmatch(r"\.[\w.-]+\.[0-9a-f]{12}\.tmp", path.name):
                path.unlink(missing_ok=True)  # a list that was not yet in place


def _checksums(folder: Path) -> dict[str, tuple[int, int]]:
    """File -> size and CRC-32; flushes each file."""
    sums = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        with open(path, "rb") as file:
            os.fsync(file.fileno())
        size = path.stat().st_size
        sums[path.relative_to(folder).as_posix()] = size, file_crc(path, 0, size)
    return sums


def _changed(folder: Path, record: Record) -> dict[str, str]:
    problems = {}
    for name, (size, crc) in record.files.items():
        try:
            if (folder / name).stat().st_size != size or file_crc(folder / name, 0, size) != crc:
                problems[name] = "the checksum does not match"
        except (OSError, ValueError) as error:
            problems[name] = str(error)
    return problems
